/* lm_load.h: a language model's weights in the context's memory. */
#ifndef KR_LM_LOAD_H
#define KR_LM_LOAD_H

#include "lm_config.h"

typedef struct kr_lm_weights {
  kr_weight_ref embedding, head, norm_f, norm_f_bias; /* beside those of the configuration's blocks */
  int32_t dtype;  /* of activations: float32 on a CPU, on a GPU `stored` */
  int32_t stored; /* of the first layer's first matrix; float16 if it is quantized */
  uint64_t bytes; /* that a token reads */
  kr_loader loader;
} kr_lm_weights;

/* folder NULL: random ones of dtype; else dtype as in kr_lm_open_as. Close it also after a failure. */
int32_t kr_lm_weights_open(const krait_ctx *ctx, const kr_model_folder *folder, kr_lm_config *c, int32_t dtype,
                           kr_lm_weights *w);
void kr_lm_weights_close(kr_lm_weights *w);
struct kr_lm;
const kr_lm_weights *kr_lm_weights_of(const struct kr_lm *model); /* (lm.c) */

#endif
