/* mamba_lm.h: Mamba language models (MODEL.md has the equations and the keys): their configuration. */
#ifndef KR_MAMBA_LM_H
#define KR_MAMBA_LM_H

#include "lm/lm_blocks.h"

enum { KR_MIXER_MAMBA1, KR_MIXER_MAMBA2, KR_MIXER_MAMBA3 };

/* The attention layers of a hybrid. */
typedef struct kr_mamba_lm_attention {
  uint8_t layers[KR_LM_MOST_LAYERS]; /* 1: of attention */
  int32_t n;                         /* how many */
  int64_t H, Hk, D, W, R; /* query and key heads, their size, taps of the convolution (0: none), rotated pairs */
  int32_t is_interleaved;
  float scale, base; /* scale 0: 1 / sqrt D; of the angles */
} kr_mamba_lm_attention;

typedef struct kr_mamba_lm_config {
  int32_t mixer;                       /* KR_MIXER_* */
  int64_t d, n_layers, V, Di, N, W, F; /* model width, layers, vocabulary, inner width, states, taps, width of the gated
                                          MLP (0: none) */
  int64_t R;                           /* Mamba-1: rank of dt */
  int64_t H, P, G;                     /* Mamba-2: heads, their size, groups; Mamba-1: 1, Di, 1 */
  kr_lm_mamba3_sizes mamba3;           /* of its mixer; then Di, N, W, H, P, G are 0 */
  float eps, dt_eps;                   /* of the norms; of FalconMamba's norms of dt, B and C, 0: none */
  int32_t is_rms;
  int64_t n_used; /* tokens that may be sampled: vocab_size before padding */
  int64_t eos[KR_LM_MOST_EOS];
  int32_t n_eos;
  kr_mamba_lm_attention attention;
} kr_mamba_lm_config;

/* Its list of blocks. */
int32_t kr_mamba_lm_describe(const kr_mamba_lm_config *from, kr_lm_config **config);
int32_t kr_mamba_lm_config_read(const kr_model_folder *folder, kr_mamba_lm_config *config);

extern const kr_lm_family kr_mamba_lm;

#endif
