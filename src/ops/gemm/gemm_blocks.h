/* gemm_blocks.h: rows of float32 times quantized columns by the matrix unit (gemm_tiles_simd.c). A column's terms are
 * blocks of 32, each w = scale q + base, where q is a whole number of -128 to 127. */
#ifndef KR_GEMM_BLOCKS_H
#define KR_GEMM_BLOCKS_H

#include <krait/ops.h>

#include "half.h"

enum { KR_BLOCK = 32, KR_BLOCKS_AT_ONCE = 8 };

/* Blocks of column n from one on, KR_BLOCKS_AT_ONCE at most, the first of them a multiple of that: their q in pairs of
 * bfloat16, the scales, and the bases where there are any, which have room for 16. */
typedef void kr_block_load_fn(const void *args, int64_t n, int64_t first, int n_blocks, float *pairs, float *scales,
                              float *bases);
/* Rows m to m + n, 16 at most, by vectors. */
typedef int32_t kr_block_rows_fn(const krait_ctx *ctx, const void *args, int64_t m, int64_t n);

typedef struct kr_blocks {
  krait_gemm_args product; /* all but Bmat */
  const void *args;        /* of the operator */
  kr_block_load_fn *load;
  kr_block_rows_fn *rows; /* for those that are not finite, which have no parts */
  int has_bases;
} kr_blocks;

uint64_t kr_gemm_blocks_scratch_avx512(const krait_ctx *ctx, kr_blocks b);
uint64_t kr_gemm_blocks_scratch_scalar(const krait_ctx *ctx, kr_blocks b);
int32_t kr_gemm_blocks_avx512(const krait_ctx *ctx, kr_blocks b);
int32_t kr_gemm_blocks_scalar(const krait_ctx *ctx, kr_blocks b);

/* A block's q as they are packed: terms i and i + 16 side by side. */
static inline void kr_block_pairs(const float q[KR_BLOCK], float *pairs) {
  for (int i = 0; i < KR_BLOCK / 2; i++)
    pairs[i] = kr_bits_float(kr_float_bits(q[i]) >> 16 | kr_float_bits(q[i + KR_BLOCK / 2]));
}

#endif
