/* qwen2.h: Qwen2 language models (MODEL.md has the equations and the keys): their configuration. */
#ifndef KR_QWEN2_H
#define KR_QWEN2_H

#include "lm/lm_config.h"

typedef struct kr_qwen2_config {
  int64_t d, n_layers, V, F; /* width, layers, vocabulary, width of the gated MLP */
  int64_t H, Hk, D;          /* query and key heads, their size */
  float eps;
  double base;    /* of the rotary embedding */
  int64_t n_used; /* tokens that may be sampled */
  int64_t eos[KR_LM_MOST_EOS];
  int32_t n_eos, is_tied;
} kr_qwen2_config;

/* Its list of blocks. */
int32_t kr_qwen2_describe(const kr_qwen2_config *from, kr_lm_config **config);
int32_t kr_qwen2_config_read(const kr_model_folder *folder, kr_qwen2_config *config);

extern const kr_lm_family kr_qwen2;

#endif
