/* gemm_q8_tiles_simd.c: 8-bit weights for the matrix unit. */
#include "gemm/gemm_blocks.h"
#include "gemm/gemm_q8_impls.h"
#include "op_list.h"
#include "vec_tile.h"
#include "view.h"

static void load_gemm_q8_tiles(const void *args, int64_t n, int64_t first, int n_blocks, float *pairs, float *scales,
                               float *bases) {
  const kr_gemm_q8_args *a = args;
  const int8_t *w = (const int8_t *)((const int32_t *)a->qweight.data + n * a->qweight.stride[0]) + first * KR_BLOCK;
  (void)bases;
  kr_row_load(scales, a->scales.data, a->scales.dtype, kr_at2(&a->scales, n, first), a->scales.stride[1], n_blocks);
  for (int j = 0; j < n_blocks; j++, w += KR_BLOCK, pairs += KR_BLOCK / 2) {
    float q[KR_BLOCK];
    for (int k = 0; k < KR_BLOCK; k += KR_VL) kr_v_store(q + k, kr_v_load_i8(w + k));
    kr_block_pairs(q, pairs);
  }
}

static int32_t run_gemm_q8_tiles_rows(const krait_ctx *ctx, const void *args, int64_t m, int64_t n) {
  kr_gemm_q8_args a = *(const kr_gemm_q8_args *)args;
  a.M = n, a.A.data = (float *)a.A.data + m * a.A.stride[0], a.out.data = (float *)a.out.data + m * a.out.stride[0];
  return KR_FN(kr_gemm_q8_few)(ctx, &a);
}

static kr_blocks gemm_q8_tiles_blocks_of(const kr_gemm_q8_args *a) {
  return (kr_blocks){.product = {.call = a->call,
                                 .M = a->M,
                                 .N = a->N,
                                 .K = KR_BLOCK * a->S,
                                 .A = a->A,
                                 .bias = a->bias,
                                 .out = a->out},
                     .args = a,
                     .load = load_gemm_q8_tiles,
                     .rows = run_gemm_q8_tiles_rows};
}

uint64_t KR_FN(kr_gemm_q8_tiles_scratch)(const krait_ctx *ctx, const void *args) {
  return KR_FN(kr_gemm_blocks_scratch)(ctx, gemm_q8_tiles_blocks_of(args));
}
int32_t KR_FN(kr_gemm_q8_tiles)(const krait_ctx *ctx, const void *args) {
  return KR_FN(kr_gemm_blocks)(ctx, gemm_q8_tiles_blocks_of(args));
}
