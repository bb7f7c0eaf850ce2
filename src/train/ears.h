/* ears.h: what is heard of the difference between clean signals and those that a model made (audio/disturbance), by the
 * host's threads, an item each. */
#ifndef KR_EARS_H
#define KR_EARS_H

#include "pool.h"

typedef struct kr_ears kr_ears;

/* For up to `most` signals of n samples. */
int32_t kr_ears_open(kr_pool *pool, int64_t n, int64_t most, kr_ears **ears);
void kr_ears_close(kr_ears **ears);
/* clean, made, pull (items, n) -> the sum over items. pull: scale times the gradients by made's samples; or NULL. */
double kr_ears_hear(kr_ears *ears, int64_t items, const float *clean, const float *made, float scale, float *pull);

#endif
