/* gemm_q8_simd.c: few rows: dot products block by block, each block's sum times its scale; bound by reading the bytes. Many rows: groups of outputs are
 * widened into float32, packed, and multiplied by gemm's own kernel. */
#include "gemm/gemm_kernel.h"
#include "gemm_q8/gemm_q8_rows.h"
#include "op_list.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { ROWS = 4, GROUP = 64, BLOCK = 32, SOME = 64 }; /* of A at once; outputs of a group; weights of a block; scales read at once */

/* rows outputs' worth of one n: sums[m]. rows is a constant after inlining. */
KR_INLINE void dots(const int rows, const krait_gemm_q8_args *a, int64_t m, int64_t n, float *sums) {
  const int8_t *w = (const int8_t *)((const int32_t *)a->words.data + n * a->words.stride[0]);
  const float *A = (const float *)a->A.data + m * a->A.stride[0];
  const int64_t lda = a->A.stride[0];
  float scales[SOME];
  kr_v sum[ROWS];
  for (int i = 0; i < rows; i++) sum[i] = kr_v_zero();
  for (int64_t s = 0; s < a->S; s++) {
    if (s % SOME == 0) kr_row_load(scales, a->scales.data, a->scales.dtype, kr_at2(&a->scales, n, s), a->scales.stride[1], a->S - s < SOME ? a->S - s : SOME);
    const kr_v scale = kr_v_set1(scales[s % SOME]);
    kr_v part[ROWS];
#pragma GCC unroll 8
    for (int k = 0; k < BLOCK; k += KR_VL) {
      const kr_v b = kr_v_load_i8(w + s * BLOCK + k);
#pragma GCC unroll 4
      for (int i = 0; i < rows; i++) {
        const kr_v x = kr_v_load(A + i * lda + s * BLOCK + k);
        part[i] = k ? kr_v_fma(x, b, part[i]) : kr_v_mul(x, b);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++) sum[i] = kr_v_fma(part[i], scale, sum[i]);
  }
  for (int i = 0; i < rows; i++) sums[i] = kr_v_sum(sum[i]);
}

#define ROWS_OF(rows)                                                                        \
  for (; m + rows <= a->M; m += rows) {                                                      \
    float sums[rows];                                                                        \
    dots(rows, a, m, n, sums);                                                               \
    for (int i = 0; i < rows; i++) out[(m + i) * a->out.stride[0] + n * a->out.stride[1]] = sums[i] + bias; \
  }

static void multiply_few(void *user, int64_t begin, int64_t end, int worker) {
  const krait_gemm_q8_args *a = user;
  float *out = a->out.data;
  (void)worker;
  for (int64_t n = begin; n < end; n++) {
    const float bias = kr_has(&a->bias) ? (float)kr_get(&a->bias, kr_at1(&a->bias, n)) : 0;
    int64_t m = 0;
    ROWS_OF(4) ROWS_OF(2) ROWS_OF(1)
  }
}

int32_t KR_FN(kr_gemm_q8_few)(const krait_ctx *ctx, const void *args) {
  const krait_gemm_q8_args *a = args;
  kr_parallel(ctx, a->N, 1 + 32768 / (BLOCK * a->S + 1), multiply_few, (void *)args);
  return KRAIT_OK;
}

/* A thread's memory: a group's weights as float32, its biases, and its panels. */
static int64_t thread_floats(const krait_gemm_q8_args *a) { return (GROUP * BLOCK * a->S + GROUP + KR_FN(kr_panels_floats)(BLOCK * a->S, GROUP, 0) + 31) / 16 * 16; }

static void widen(const krait_gemm_q8_args *a, int64_t n, float *to) {
  const int8_t *w = (const int8_t *)((const int32_t *)a->words.data + n * a->words.stride[0]);
  for (int64_t s = 0; s < a->S; s++) {
    const kr_v scale = kr_v_set1((float)kr_get(&a->scales, kr_at2(&a->scales, n, s)));
    for (int k = 0; k < BLOCK; k += KR_VL) kr_v_store(to + s * BLOCK + k, kr_v_mul(scale, kr_v_load_i8(w + s * BLOCK + k)));
  }
}

static void multiply_groups(void *user, int64_t begin, int64_t end, int worker) {
  const krait_gemm_q8_args *a = user;
  float *weights = (float *)a->call.scratch + worker * thread_floats(a), *bias = weights + GROUP * BLOCK * a->S, *storage = bias + GROUP;
  for (int64_t g = begin; g < end; g++) {
    const int64_t first = g * GROUP, n = a->N - first < GROUP ? a->N - first : GROUP, K = BLOCK * a->S;
    kr_panels panels;
    for (int64_t i = 0; i < n; i++) {
      widen(a, first + i, weights + i * K);
      bias[i] = kr_has(&a->bias) ? (float)kr_get(&a->bias, kr_at1(&a->bias, first + i)) : 0;
    }
    KR_FN(kr_panels_pack)(&panels, storage, K, n, 0, weights, 1, K, bias);
    KR_FN(kr_gemm_rows)(&(kr_gemm_rows_call){.weights = &panels, .A = a->A.data, .lda = a->A.stride[0], .M = a->M, .C = (float *)a->out.data + first, .ldc = a->out.stride[0], .n_store = n,
                                             .epilogue = KR_GEMM_SET});
  }
}

uint64_t KR_FN(kr_gemm_q8_scratch)(const krait_ctx *ctx, const void *args) { return (uint64_t)(thread_floats(args) * krait_ctx_n_threads(ctx)) * sizeof(float); }

int32_t KR_FN(kr_gemm_q8)(const krait_ctx *ctx, const void *args) {
  const krait_gemm_q8_args *a = args;
  kr_parallel(ctx, (a->N + GROUP - 1) / GROUP, 1, multiply_groups, (void *)args);
  return KRAIT_OK;
}
