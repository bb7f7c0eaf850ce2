/* attention_cuda.h: the GPU implementations of attention and its gradient, and the params both derive from a call.
 * base: everything; base_tiles: tiles by multiply-adds. turing (float16; turing_scaled: bfloat16 as scaled float16),
 * ampere, hopper: tiles on tensor cores. keys: few rows, many keys; few_base: the same by multiply-adds. */
#ifndef KR_ATTENTION_CUDA_H
#define KR_ATTENTION_CUDA_H

#include "attention_halves.h"
#include "op.h"
#include "op_args.h"
#include "cuda.h"

kr_attention_params kr_attention_params_of(const kr_attention_args *a);
kr_attention_params kr_attention_bwd_params_of(const kr_attention_bwd_args *a);
/* Why no kernel takes the sizes, or NULL. */
const char *kr_attention_refuse_sizes(const kr_attention_params *p);
int kr_attention_rows_take_packs(const kr_attention_tensor *t); /* 16-byte aligned */
/* Whether bulk copies take the tensor of L tokens, H heads, B batches: 16-byte aligned, contiguous channels. */
int kr_attention_boxes_take(const kr_attention_tensor *t, int64_t L, int64_t H, int64_t B);
/* Boxes of 64 channels by `rows` tokens, 128-byte swizzling. The device's context must be current. */
int32_t kr_attention_make_map(const krait_ctx *ctx, kr_attention_map *map, const kr_attention_tensor *t, int64_t D,
                              int64_t L, int64_t H, int64_t B, int rows);
/* Heads whose keys and values fit half of the L2 cache together. */
int32_t kr_attention_heads_together(const krait_ctx *ctx, const kr_attention_params *p);

/* Why attention_ampere.cu's kernels do not take a call of their type, with so much shared memory; or NULL. */
const char *kr_attention_refuse_mma(const krait_ctx *ctx, const kr_attention_args *a, uint32_t shared_bytes);
/* The kernel of attention_ampere.cu that takes a call, whose tiles it plans. */
typedef struct kr_attention_mma {
  const kr_kernel *kernel;
  uint32_t n_blocks, shared_bytes;
} kr_attention_mma;
kr_attention_mma kr_attention_plan_mma(const krait_ctx *ctx, kr_attention_params *p, int is_turing);

/* A call's batches and heads of keys in groups, which take the call's scratch in turn: n groups of at most so many, and
 * the bytes of a group's parts. */
typedef struct kr_halves_groups {
  int32_t n, n_batches, n_heads;
  uint64_t bytes;
} kr_halves_groups;
/* As large as fits in half of the L2 cache or, if that is more, fills the device or takes a quarter of q's bytes, up to
 * twice the cache; of these the groups that fill the device's turns best. rows, keys: how many blocks of 64 of them a
 * multiprocessor has at a time; keys 0: only rows are tiled, and only parts of k and v are made. */
kr_halves_groups kr_attention_group_halves(const krait_ctx *ctx, const kr_attention_params *p, int rows, int keys);
kr_attention_params kr_attention_group_of(const kr_attention_params *p, const kr_halves_groups *groups, int32_t i);
/* Makes the parts of two of the tensors, and no others, in scratch. */
int32_t kr_attention_halve(const krait_ctx *ctx, kr_attention_halves_params *h, int first, int second, void *scratch,
                           void *stream, uint64_t tier);
/* Why there are none of a call's tensors, or NULL. */
const char *kr_attention_refuse_halves(const kr_attention_params *p);

#define KR_ATTENTION_ROW(name)                                              \
  const char *kr_attention_##name##_refuse(const krait_ctx *ctx, const void *args); \
  int32_t kr_attention_##name(const krait_ctx *ctx, const void *args);      \
  uint64_t kr_attention_##name##_scratch(const krait_ctx *ctx, const void *args);
KR_ATTENTION_ROW(base)
KR_ATTENTION_ROW(base_tiles)
KR_ATTENTION_ROW(ampere)
KR_ATTENTION_ROW(turing)
KR_ATTENTION_ROW(turing_scaled)
KR_ATTENTION_ROW(halves)
KR_ATTENTION_ROW(turing_halves)
KR_ATTENTION_ROW(parts)
KR_ATTENTION_ROW(hopper)
KR_ATTENTION_ROW(keys)
KR_ATTENTION_ROW(few_base)
KR_ATTENTION_ROW(bwd_base)
KR_ATTENTION_ROW(bwd_ampere)
KR_ATTENTION_ROW(bwd_turing)
KR_ATTENTION_ROW(bwd_halves)
KR_ATTENTION_ROW(bwd_parts)
KR_ATTENTION_ROW(bwd_hopper)
KR_ATTENTION_ROW(bwd_hopper_sums)
KR_ATTENTION_ROW(bwd_ampere_sums)

#endif
