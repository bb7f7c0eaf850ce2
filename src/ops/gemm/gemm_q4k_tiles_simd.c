/* gemm_q4k_tiles_simd.c: 4-bit weights for the matrix unit: q, and a scale and base per 32. */
#include "gemm/gemm_blocks.h"
#include "gemm/gemm_q4k_parts.h"
#include "gemm/gemm_q4k_impls.h"
#include "op_list.h"
#include "vec_tile.h"

/* Loads a super-block, which is KR_BLOCKS_AT_ONCE blocks. */
static void load_gemm_q4k_tiles(const void *args, int64_t n, int64_t first, int n_blocks, float *pairs, float *scales,
                                float *bases) {
  const uint8_t *w = bytes_of(args, n) + first / KR_BLOCKS_AT_ONCE * SUPER_BYTES;
  const kr_levels whole = kr_levels_of(1, 0);
  raw_parts raw;
  parts p;
  (void)n_blocks;
  memset(&raw, 0, sizeof raw);
  read_raw(w, &raw);
  make_parts(&raw, &p);
  for (int j = 0; j < KR_BLOCKS_AT_ONCE; j++) scales[j] = p.scale[j], bases[j] = p.base[j];
  for (int j = 0; j < KR_BLOCKS_AT_ONCE; j += 2, pairs += KR_BLOCK) {
    float q[2][KR_BLOCK];
    for (int k = 0; k < KR_BLOCK; k += KR_VL) {
      kr_v low, high;
      kr_v_load_levels(w + 16 + j / 2 * PART + k, whole, whole, &low, &high);
      kr_v_store(q[0] + k, low), kr_v_store(q[1] + k, high);
    }
    kr_block_pairs(q[0], pairs), kr_block_pairs(q[1], pairs + KR_BLOCK / 2);
  }
}

static int32_t run_gemm_q4k_tiles_rows(const krait_ctx *ctx, const void *args, int64_t m, int64_t n) {
  kr_gemm_q4k_args a = *(const kr_gemm_q4k_args *)args;
  a.M = n, a.A.data = (float *)a.A.data + m * a.A.stride[0], a.out.data = (float *)a.out.data + m * a.out.stride[0];
  return KR_FN(kr_gemm_q4k_few)(ctx, &a);
}

static kr_blocks gemm_q4k_tiles_blocks_of(const kr_gemm_q4k_args *a) {
  return (kr_blocks){.product = {.call = a->call,
                                 .M = a->M,
                                 .N = a->N,
                                 .K = SUPER * a->S,
                                 .A = a->A,
                                 .bias = a->bias,
                                 .out = a->out},
                     .args = a,
                     .load = load_gemm_q4k_tiles,
                     .rows = run_gemm_q4k_tiles_rows,
                     .has_bases = 1};
}

uint64_t KR_FN(kr_gemm_q4k_tiles_scratch)(const krait_ctx *ctx, const void *args) {
  return KR_FN(kr_gemm_blocks_scratch)(ctx, gemm_q4k_tiles_blocks_of(args));
}
int32_t KR_FN(kr_gemm_q4k_tiles)(const krait_ctx *ctx, const void *args) {
  return KR_FN(kr_gemm_blocks)(ctx, gemm_q4k_tiles_blocks_of(args));
}
