/* gemm_q4k_simd.c: few rows: weights are unpacked from 4 bits in registers and multiplied at once; bound by reading the
 * bytes. Many rows: groups of outputs are widened to float32, packed, and multiplied by gemm's own kernel. */
#include "gemm/gemm_kernel.h"
#include "gemm/gemm_q4k_parts.h"
#include "gemm/gemm_q4k_impls.h"
#include "gemm/gemm_widened.h"
#include "op_list.h"
#include "vec_math.h"
#include "view.h"

/* Rows of A at once, outputs per group for many rows, super-blocks whose scales are read together. */
enum { ROWS = 4, GROUP = 64, SUPERS = 16 };

/* n super-blocks of each of n_outputs outputs; n_outputs n <= SUPERS. */
static void read_parts(const uint8_t *super, int64_t n, int64_t n_outputs, int64_t next_bytes, parts *p) {
  raw_parts raw[SUPERS];
  memset(raw, 0, (size_t)(n * n_outputs) * sizeof *raw);
  for (int64_t i = 0; i < n_outputs; i++)
    for (int64_t s = 0; s < n; s++) read_raw(super + i * next_bytes + s * SUPER_BYTES, &raw[i * n + s]);
  for (int64_t i = 0; i < n * n_outputs; i++) make_parts(&raw[i], &p[i]);
}

/* sums[m] of `rows` rows for output n. rows is a constant after inlining. p: all of its super-blocks, or if those
 * exceed SUPERS, room for some. */
KR_INLINE void dot_q4k_rows(const int rows, const kr_gemm_q4k_args *a, int64_t m, int64_t n, parts *p, float *sums) {
  const uint8_t *w = bytes_of(a, n);
  const int64_t lda = a->A.stride[0];
  const float *A = (const float *)a->A.data + m * lda;
  kr_v sum[ROWS], other[ROWS];
  for (int i = 0; i < rows; i++) sum[i] = other[i] = kr_v_zero();
  for (int64_t s = 0; s < a->S; s++, w += SUPER_BYTES, A += SUPER) {
    const int64_t left = a->S - s, at = s % SUPERS;
    if (a->S > SUPERS && at == 0) read_parts(w, left < SUPERS ? left : SUPERS, 1, 0, p);
    const parts *own = &p[at];
    for (int j = 0; j < 8; j += 2) {
      const kr_levels low = kr_levels_of(own->scale[j], own->base[j]),
                      high = kr_levels_of(own->scale[j + 1], own->base[j + 1]);
      const float *x = A + PART * j;
#pragma GCC unroll 8
      for (int k = 0; k < PART; k += KR_VL) {
        kr_v wl, wh;
        kr_v_load_levels(w + 16 + j / 2 * PART + k, low, high, &wl, &wh);
#pragma GCC unroll 4
        for (int i = 0; i < rows; i++) {
          sum[i] = kr_v_fma(kr_v_load(x + i * lda + k), wl, sum[i]);
          other[i] = kr_v_fma(kr_v_load(x + i * lda + PART + k), wh, other[i]);
        }
      }
    }
  }
  for (int i = 0; i < rows; i++) sums[i] = kr_v_sum(kr_v_add(sum[i], other[i]));
}

#define ROWS_OF(rows)                                                                                       \
  for (; m + rows <= a->M; m += rows) {                                                                     \
    float sums[rows];                                                                                       \
    dot_q4k_rows(rows, a, m, n, p + i * of_one, sums);                                                      \
    for (int k = 0; k < rows; k++) out[(m + k) * a->out.stride[0] + n * a->out.stride[1]] = sums[k] + bias; \
  }

static float gemm_q4k_bias_of(const kr_gemm_q4k_args *a, int64_t n) {
  return kr_has(&a->bias) ? (float)kr_get(&a->bias, kr_at1(&a->bias, n)) : 0;
}

static void multiply_gemm_q4k_few(void *user, int64_t begin, int64_t end, int worker) {
  const kr_gemm_q4k_args *a = user;
  float *out = a->out.data;
  (void)worker;
  parts p[SUPERS];
  const int64_t of_one = a->S <= SUPERS ? a->S : 0, at_once = of_one ? SUPERS / of_one : 1;
  for (int64_t first = begin; first < end; first += at_once) {
    const int64_t n_outputs = end - first < at_once ? end - first : at_once;
    if (of_one) read_parts(bytes_of(a, first), a->S, n_outputs, a->qweight.stride[0] * (int64_t)sizeof(int32_t), p);
    for (int64_t i = 0; i < n_outputs; i++) {
      const int64_t n = first + i;
      const float bias = gemm_q4k_bias_of(a, n);
      int64_t m = 0;
      ROWS_OF(4) ROWS_OF(2) ROWS_OF(1)
    }
  }
}

int32_t KR_FN(kr_gemm_q4k_few)(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q4k_args *a = args;
  kr_parallel_long(ctx, a->N, 1 + 32768 / (SUPER * a->S + 1), multiply_gemm_q4k_few, (void *)args);
  return KRAIT_OK;
}

/* A thread's scratch: a group's weights as float32, its biases, and its panels. */
static int64_t gemm_q4k_thread_floats(const kr_gemm_q4k_args *a) {
  return (GROUP * SUPER * a->S + GROUP + KR_FN(kr_panels_floats)(SUPER * a->S, GROUP) + 31) / 16 * 16;
}

static void widen_gemm_q4k(const kr_gemm_q4k_args *a, int64_t n, float *to) {
  const uint8_t *w = bytes_of(a, n);
  for (int64_t s = 0; s < a->S; s++, w += SUPER_BYTES) {
    parts p;
    read_parts(w, 1, 1, 0, &p);
    for (int j = 0; j < 8; j += 2, to += 2 * PART) {
      const kr_levels low = kr_levels_of(p.scale[j], p.base[j]), high = kr_levels_of(p.scale[j + 1], p.base[j + 1]);
      for (int k = 0; k < PART; k += KR_VL) {
        kr_v wl, wh;
        kr_v_load_levels(w + 16 + j / 2 * PART + k, low, high, &wl, &wh);
        kr_v_store(to + k, wl);
        kr_v_store(to + PART + k, wh);
      }
    }
  }
}

static void multiply_gemm_q4k_groups(void *user, int64_t begin, int64_t end, int worker) {
  const kr_gemm_q4k_args *a = user;
  const int64_t K = SUPER * a->S;
  float *weights = (float *)a->call.scratch + worker * gemm_q4k_thread_floats(a), *bias = weights + GROUP * K,
        *storage = bias + GROUP;
  for (int64_t g = begin; g < end; g++) {
    const int64_t first = g * GROUP, n = a->N - first < GROUP ? a->N - first : GROUP;
    for (int64_t i = 0; i < n; i++) {
      widen_gemm_q4k(a, first + i, weights + i * K);
      bias[i] = gemm_q4k_bias_of(a, first + i);
    }
    multiply_widened(&(widened){K, n, weights, bias, storage}, &a->A, a->M, &a->out, first);
  }
}

uint64_t KR_FN(kr_gemm_q4k_scratch)(const krait_ctx *ctx, const void *args) {
  return (uint64_t)(gemm_q4k_thread_floats(args) * krait_ctx_n_threads(ctx)) * sizeof(float);
}

int32_t KR_FN(kr_gemm_q4k)(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q4k_args *a = args;
  kr_parallel(ctx, (a->N + GROUP - 1) / GROUP, 1, multiply_gemm_q4k_groups, (void *)args);
  return KRAIT_OK;
}
