/* block_mamba.h: what the files of Mamba's mixers share. */
#ifndef KR_BLOCK_MAMBA_H
#define KR_BLOCK_MAMBA_H

#include "lm_blocks.h"
#include "lm_builder.h"

enum { KR_MAMBA_CONV, KR_MAMBA_SSM }; /* states: (channels, W - 1), (H, P, N) */
/* Of Mamba-3: (H, M), (H, P, N), (R, H, N), (H, P). */
enum { KR_MAMBA3_ANGLE, KR_MAMBA3_SSM, KR_MAMBA3_KEY, KR_MAMBA3_VALUE };

typedef struct kr_lm_mamba_weights {
  kr_weight_ref in_proj, in_proj_bias, conv, conv_bias; /* (rows, d); (channels, 1, W) */
  kr_weight_ref A, D, dt_bias;                          /* float32; A: -exp(A_log) */
  kr_weight_ref x_proj, dt_proj;                        /* Mamba: (R + 2N, Di), (Di, R) */
  kr_weight_ref gate_norm, in_scales;                   /* Mamba-2 */
  kr_weight_ref small_norm[3];                          /* Mamba: of dt, B, C; absent: 1 */
  kr_weight_ref out_proj, out_proj_bias;
  int32_t is_D_per_channel; /* Mamba-2: D is (H,P), not (H) */
} kr_lm_mamba_weights;

static inline int kr_mamba_is_second(const kr_lm_block *block) { return block->kind == &kr_lm_mamba2; }
static inline int64_t kr_mamba_channels(const kr_lm_block *block) { /* of the convolution */
  const kr_lm_mamba_sizes *s = block->sizes;
  return kr_mamba_is_second(block) ? s->Di + 2 * s->G * s->N : s->Di;
}
static inline int64_t kr_mamba_rows(const kr_lm_block *block) { /* of in_proj */
  const kr_lm_mamba_sizes *s = block->sizes;
  return kr_mamba_is_second(block) ? s->Di + kr_mamba_channels(block) + s->H : 2 * s->Di;
}

/* in_proj, the convolution, out_proj; D has n_D elements. */
int32_t kr_mamba_load(kr_lm_loader *l, const kr_lm_block *block, int64_t n_D);
int32_t kr_mamba_list_states(const kr_lm_block *block, kr_lm_state *states);
static inline kr_tensor kr_mamba_out(const kr_lm_builder *b, const kr_lm_block *block, kr_tensor y) {
  const kr_lm_mamba_sizes *s = block->sizes;
  const kr_lm_mamba_weights *w = block->weights;
  return result_of(b, block, "out_proj", y, .w = &w->out_proj, .bias = &w->out_proj_bias, .N = s->d, .K = s->Di);
}

/* ---- all layers of a step as one call (block_mamba_fused.c, block_mamba3_fused.c) ---- */

enum { KR_LAYERED_DATA, KR_LAYERED_WORDS, KR_LAYERED_SCALES };
#define KR_LAYERED_NORM ((size_t)-1)
/* Tensors of one kind as (layers, ...), by their offset in the mixer's weights (the block's norm's: KR_LAYERED_NORM):
 * their addresses must be equally spaced, or *fits becomes 0. dims: of one layer. Absent if a layer's is. */
kr_view kr_lm_layered(const kr_lm_config *c, size_t offset, int which, kr_dims dims, int *fits);
/* As an input of the graph; absent if v is. */
kr_view kr_lm_record_layered(const kr_token_builder *r, const char *name, const kr_view *v, kr_dims dims);

/* kr_lm_block_kind.can_fuse, record_fused */
int kr_mamba3_can_fuse(const kr_lm_builder *b);
kr_tensor kr_mamba3_record_fused(kr_lm_builder *b, kr_tensor x);
int kr_mamba_can_fuse(const kr_lm_builder *b);
kr_tensor kr_mamba_record_fused(kr_lm_builder *b, kr_tensor x);

#endif
