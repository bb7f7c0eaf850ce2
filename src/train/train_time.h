/* train_time.h: how long a training step takes, for `krait bench train`. */
#ifndef KR_TRAIN_TIME_H
#define KR_TRAIN_TIME_H

#include <krait/train.h>

/* The time of a step: it does not depend on the data, so random data are used and no recordings are needed. */
typedef struct kr_train_times {
  uint32_t size, n_steps; /* sizeof this struct; timed steps, of which the fastest counts */
  int64_t batch, frames;
  double step_s, generator_s;           /* a complete step; one without the discriminator */
  uint64_t step_bytes, generator_bytes; /* activations between the operators of a step */
} kr_train_times;
/* Uses config, settings and weights of options. each may be NULL; it is called with the time of every single operator
 * call. */
int32_t kr_train_time(const krait_ctx *ctx, const krait_train_options *options, kr_train_times *times,
                      void (*each)(void *user, const char *node, const char *op, const char *impl, double seconds),
                      void *user);

#endif
