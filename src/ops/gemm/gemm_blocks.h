/* gemm_blocks.h: float32 rows times quantized columns on the matrix unit (gemm_tiles_simd.c). A column consists of
 * blocks of 32 terms, each w = scale q + base with integer q from -128 to 127. */
#ifndef KR_GEMM_BLOCKS_H
#define KR_GEMM_BLOCKS_H

#include "half.h"
#include "op_args.h"

enum { KR_BLOCK = 32, KR_BLOCKS_AT_ONCE = 8 };

/* Loads blocks of column n from `first`, a multiple of KR_BLOCKS_AT_ONCE, at most that many: q as bfloat16 pairs,
 * scales, and bases if there are any, with room for 16. */
typedef void kr_block_load_fn(const void *args, int64_t n, int64_t first, int n_blocks, float *pairs, float *scales,
                              float *bases);
/* Rows m to m + n, at most 16, by the vector implementation. */
typedef int32_t kr_block_impls_fn(const krait_ctx *ctx, const void *args, int64_t m, int64_t n);

typedef struct kr_blocks {
  kr_gemm_args product; /* all but Bmat */
  const void *args;        /* the operator's */
  kr_block_load_fn *load;
  kr_block_impls_fn *rows; /* for non-finite rows, which cannot be split into parts */
  int has_bases;
} kr_blocks;

uint64_t kr_gemm_blocks_scratch_avx512(const krait_ctx *ctx, kr_blocks b);
uint64_t kr_gemm_blocks_scratch_scalar(const krait_ctx *ctx, kr_blocks b);
int32_t kr_gemm_blocks_avx512(const krait_ctx *ctx, kr_blocks b);
int32_t kr_gemm_blocks_scalar(const krait_ctx *ctx, kr_blocks b);

/* A block's q in packed order: terms i and i + 16 adjacent. */
static inline void kr_block_pairs(const float q[KR_BLOCK], float *pairs) {
  for (int i = 0; i < KR_BLOCK / 2; i++)
    pairs[i] = kr_bits_float(kr_float_bits(q[i]) >> 16 | kr_float_bits(q[i + KR_BLOCK / 2]));
}

#endif
