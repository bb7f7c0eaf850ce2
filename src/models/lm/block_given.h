/* block_given.h: weights that blocks do not load, but are given (krait/shared_lm.h). */
#ifndef KR_BLOCK_GIVEN_H
#define KR_BLOCK_GIVEN_H

#include "lm_blocks.h"
#include "lm_builder.h"

typedef struct kr_lm_given_attention {
  kr_weight_ref qkv[3], bias[3]; /* biases absent: none */
  kr_weight_ref qk_norm;         /* of every head, in float32; absent without qk_norm */
  kr_weight_ref o;
} kr_lm_given_attention;
/* Of a block without adapters, convolution and gates. */
void kr_lm_attention_give(const kr_lm_block *block, const kr_lm_given_attention *from);
typedef struct kr_lm_given_mamba3 {
  kr_weight_ref in_proj, out_proj;
  kr_weight_ref dt_bias, D, BC_norm, B_bias, C_bias; /* float32 */
  kr_weight_ref mimo_x, mimo_z, mimo_o, gate_norm;   /* float32, or absent */
} kr_lm_given_mamba3;
void kr_lm_mamba3_give(const kr_lm_block *block, const kr_lm_given_mamba3 *from);
/* Of an MLP of silu. */
void kr_lm_mlp_give(const kr_lm_block *block, const kr_lm_mlp_matrices *from);

#endif
