/* lm_blocks.h: the kinds of blocks that families share, with their sizes; the fields of their weights are in their
 * files. A family's own kind may stand in its folder. */
#ifndef KR_LM_BLOCKS_H
#define KR_LM_BLOCKS_H

#include "lm_config.h"

/* Causal attention. States keys, values and, with a convolution, conv. The rope table's pairs are the model's. */
extern const kr_lm_block_kind kr_lm_attention;
typedef struct kr_lm_attention_sizes {
  int64_t d, H, Hk, D;       /* width; heads of queries, of keys and values; their size */
  int64_t W;                 /* taps of a convolution of queries, keys and values; 0: none */
  int64_t R, is_interleaved; /* rotated pairs of features (0: no positions), and which */
  double scale;              /* 0: 1 / sqrt D */
} kr_lm_attention_sizes;

/* A gated MLP: down(silu(gate x) * up x). */
extern const kr_lm_block_kind kr_lm_mlp;
typedef struct kr_lm_mlp_sizes {
  int64_t d, F;
  int64_t is_up_first; /* of one matrix with both */
} kr_lm_mlp_sizes;

/* The mixers of Mamba and Mamba-2. States conv and ssm. */
extern const kr_lm_block_kind kr_lm_mamba1, kr_lm_mamba2;
typedef struct kr_lm_mamba_sizes {
  int64_t d, Di, N, W; /* width, inner width, states, taps */
  int64_t R;           /* Mamba: rank of dt */
  int64_t H, P, G;     /* Mamba-2: heads, their size, groups; Mamba: 1, Di, 1 */
  double dt_eps;       /* Mamba: of FalconMamba's norms of dt, B and C; 0: none */
} kr_lm_mamba_sizes;

#endif
