/* gemm_q8_simd.c: few rows: dot products block by block, each block's sum times its scale; bound by reading the bytes.
 * Many rows: groups of outputs are widened to float32, packed, and multiplied by gemm's own kernel. */
#include <string.h>

#include "gemm/gemm_kernel.h"
#include "gemm/gemm_q8_impls.h"
#include "gemm/gemm_widened.h"
#include "op_list.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

/* Rows of A and outputs at once, outputs per group for many rows, weights per block. */
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
enum { ROWS = 6 };
#else
enum { ROWS = 2 };
#endif
/* PART: blocks multiplied at once; SCALES_AHEAD: in outputs. */
enum {
  OUTPUTS = 4,
  EVEN_VECTORS = 32,
  GROUP = 64,
  BLOCK = 32,
  FAR_BYTES = 4096,
  IN_ORDER_BYTES = 12288,
  SCALES_AHEAD = 16,
  PART = 32
};

typedef struct few_weights { /* PART blocks of OUTPUTS outputs */
  const int8_t *data;
  int64_t next, n_blocks, ahead; /* in bytes: output stride, prefetch distance */
  unsigned fetch;                /* one bit per output to prefetch for */
  float scales[OUTPUTS][PART];
} few_weights;

/* sum[m * OUTPUTS + n] += A[m] . a block of output n. */
KR_INLINE void add_q8_block(const int rows, const float *A, int64_t lda, const int8_t *bytes, kr_v scale, int n,
                         kr_v *sum) {
#pragma GCC unroll 8
  for (int k = 0; k < BLOCK; k += KR_VL) {
    const kr_v b = kr_v_mul(scale, kr_v_load_i8(bytes + k));
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++) sum[m * OUTPUTS + n] = kr_v_fma(kr_v_load(A + m * lda + k), b, sum[m * OUTPUTS + n]);
  }
}

/* sums[m * KR_VL + n] += A[m] . output n, not yet reduced across lanes. rows is a constant after inlining. */
KR_INLINE void dot_q8_rows(const int rows, const float *A, int64_t lda, const few_weights *w, kr_v *sums) {
  kr_v sum[ROWS * OUTPUTS];
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
    for (int n = 0; n < OUTPUTS; n++) sum[m * OUTPUTS + n] = sums[m * KR_VL + n];
  const int64_t pairs = w->n_blocks / 2;
  const int8_t *bytes = w->data;
  for (int64_t s = 0; s < pairs; s++, A += 2 * BLOCK, bytes += 2 * BLOCK) { /* a cache line */
#pragma GCC unroll 4
    for (int n = 0; n < OUTPUTS; n++) {
      if (w->fetch >> n & 1) __builtin_prefetch(bytes + n * w->next + w->ahead, 0, 2);
      add_q8_block(rows, A, lda, bytes + n * w->next, kr_v_set1(w->scales[n][2 * s]), n, sum);
      add_q8_block(rows, A + BLOCK, lda, bytes + n * w->next + BLOCK, kr_v_set1(w->scales[n][2 * s + 1]), n, sum);
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < OUTPUTS; n++)
    if (w->n_blocks % 2)
      add_q8_block(rows, A, lda, bytes + n * w->next, kr_v_set1(w->scales[n][w->n_blocks - 1]), n, sum);
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
    for (int n = 0; n < OUTPUTS; n++) sums[m * KR_VL + n] = sum[m * OUTPUTS + n];
}

typedef void dots_fn(const float *A, int64_t lda, const few_weights *w, kr_v *sums);
#define DOTS(rows)                                                                         \
  static void dots_##rows(const float *A, int64_t lda, const few_weights *w, kr_v *sums) { \
    dot_q8_rows(rows, A, lda, w, sums);                                                           \
  }
DOTS(1) DOTS(2)
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
DOTS(3) DOTS(4) DOTS(5) DOTS(6)
static dots_fn *const kernels[ROWS] = {dots_1, dots_2, dots_3, dots_4, dots_5, dots_6};
#else
static dots_fn *const kernels[ROWS] = {dots_1, dots_2};
#endif

/* Adds a block of one row of A, its sum scaled. */
KR_INLINE kr_v add_scaled(const float *A, const int8_t *bytes, float scale, kr_v sum) {
  kr_v part = kr_v_mul(kr_v_load(A), kr_v_load_i8(bytes));
#pragma GCC unroll 8
  for (int k = KR_VL; k < BLOCK; k += KR_VL) part = kr_v_fma(kr_v_load(A + k), kr_v_load_i8(bytes + k), part);
  return kr_v_fma(part, kr_v_set1(scale), sum);
}

/* One row of A, one output at a time, so that memory is read sequentially. */
static void sum_gemm_q8_row(const kr_gemm_q8_args *a, int64_t n0, int lanes, kr_v *sums) {
  const int64_t scale_bytes = (int64_t)krait_dtype_bytes(a->scales.dtype), ahead = SCALES_AHEAD * a->scales.stride[0];
  for (int n = 0; n < lanes; n++) {
    const int64_t at = kr_at2(&a->scales, n0 + n, 0);
    const int8_t *bytes = (const int8_t *)a->qweight.data + (n0 + n) * 4 * a->qweight.stride[0];
    const float *A = a->A.data;
    kr_v even = kr_v_zero(), odd = kr_v_zero();
    for (int64_t s = 0; s < a->S; s += PART) {
      const int64_t n_blocks = a->S - s < PART ? a->S - s : PART;
      float scales[PART];
      __builtin_prefetch((const char *)a->scales.data + (at + ahead + s * a->scales.stride[1]) * scale_bytes, 0, 2);
      kr_row_load(scales, a->scales.data, a->scales.dtype, at + s * a->scales.stride[1], a->scales.stride[1], n_blocks);
      for (int64_t i = 0; i + 2 <= n_blocks; i += 2, A += 2 * BLOCK, bytes += 2 * BLOCK) { /* a cache line */
        __builtin_prefetch(bytes + IN_ORDER_BYTES, 0, 2);
        even = add_scaled(A, bytes, scales[i], even);
        odd = add_scaled(A + BLOCK, bytes + BLOCK, scales[i + 1], odd);
      }
      if (n_blocks % 2) even = add_scaled(A, bytes, scales[n_blocks - 1], even); /* the odd last block */
    }
    sums[n] = kr_v_add(even, odd);
  }
}

/* All rows against OUTPUTS outputs, in parts as even as possible, which take turns at prefetching. */
static void add_gemm_q8_rows(const kr_gemm_q8_args *a, int64_t first, few_weights *w, kr_v *sums) {
  const int M = (int)a->M, n_parts = (M + ROWS - 1) / ROWS;
  for (int part = 0, m = 0; part < n_parts; part++) {
    const int left = n_parts - part, rows = (M - m + left - 1) / left;
    w->fetch = 0;
    for (int n = part; n < OUTPUTS; n += n_parts) w->fetch |= 1u << n;
    kernels[rows - 1]((const float *)a->A.data + m * a->A.stride[0] + first * BLOCK, a->A.stride[0], w,
                      sums + m * KR_VL);
    m += rows;
  }
}

/* The tail: n outputs, fewer than OUTPUTS, one at a time as if they were several. */
static void add_gemm_q8_last(const kr_gemm_q8_args *a, int64_t first, few_weights *w, int n, kr_v *sums) {
  few_weights one = *w;
  kr_v same[KR_GEMM_Q8_MOST_FEW * KR_VL];
  one.next = 0;
  for (int i = 0; i < n; i++, one.data += w->next) {
    for (int r = 0; r < a->M * KR_VL; r++) same[r] = kr_v_zero();
    for (int k = 0; k < OUTPUTS; k++) memcpy(one.scales[k], w->scales[i], sizeof one.scales[k]);
    add_gemm_q8_rows(a, first, &one, same);
    for (int m = 0; m < a->M; m++) sums[m * KR_VL + i] = kr_v_add(sums[m * KR_VL + i], same[m * KR_VL]);
  }
}

/* sums[m * KR_VL + n] for a vector of outputs from n0. */
static void sum_gemm_q8_outputs(const kr_gemm_q8_args *a, int64_t n0, int lanes, kr_v *sums) {
  const int64_t next = 4 * a->qweight.stride[0], far = OUTPUTS * next,
                ahead = far > 0 ? (FAR_BYTES + far - 1) / far * far : 0;
  for (int64_t s = 0; s < a->S; s += PART)
    for (int n = 0; n < lanes; n += OUTPUTS) {
      few_weights w = {.next = next, .n_blocks = a->S - s < PART ? a->S - s : PART, .ahead = ahead};
      const int whole = n + OUTPUTS <= lanes;
      w.data = (const int8_t *)a->qweight.data + (n0 + n) * next + s * BLOCK;
      for (int i = 0; i < OUTPUTS; i++)
        kr_row_load(w.scales[i], a->scales.data, a->scales.dtype,
                    kr_at2(&a->scales, n0 + (n + i < lanes ? n + i : lanes - 1), s), a->scales.stride[1], w.n_blocks);
      if (whole) add_gemm_q8_rows(a, s, &w, sums + n);
      else add_gemm_q8_last(a, s, &w, lanes - n, sums + n);
    }
}

/* Few outputs of one row are dealt to threads in less than a vector each, lest one thread has a whole vector more. */
static int64_t piece_of(const kr_gemm_q8_args *a) {
  return a->M == 1 && a->N < EVEN_VECTORS * KR_VL && KR_VL > OUTPUTS ? OUTPUTS : KR_VL;
}

static void multiply_gemm_q8_few(void *user, int64_t begin, int64_t end, int worker) {
  const kr_gemm_q8_args *a = user;
  const int64_t piece = piece_of(a);
  kr_v sums[KR_GEMM_Q8_MOST_FEW * KR_VL];
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const int64_t n = i * piece;
    const int lanes = (int)(a->N - n < piece ? a->N - n : piece);
    float bias[KR_VL] = {0};
    for (int lane = 0; kr_has(&a->bias) && lane < lanes; lane++)
      bias[lane] = kr_scalar_load(a->bias.data, (n + lane) * a->bias.stride[0], a->bias.dtype);
    for (int k = 0; k < a->M * KR_VL; k++) sums[k] = kr_v_zero();
    if (a->M == 1) sum_gemm_q8_row(a, n, lanes, sums);
    else sum_gemm_q8_outputs(a, n, lanes, sums);
    for (int64_t m = 0; m < a->M; m++) {
      const kr_v v = kr_v_add(kr_v_sum_each(sums + m * KR_VL), kr_v_load(bias));
      kr_v_store_as(a->out.data, m * a->out.stride[0] + n, lanes, KRAIT_F32, v);
    }
  }
}

int32_t KR_FN(kr_gemm_q8_few)(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q8_args *a = args;
  const int64_t piece = piece_of(a);
  kr_parallel_long(ctx, (a->N + piece - 1) / piece, 1 + 16384 / (piece * (BLOCK * a->S + 1)), multiply_gemm_q8_few,
                   (void *)args);
  return KRAIT_OK;
}

/* A thread's scratch: a group's weights as float32, its biases, and its panels. */
static int64_t gemm_q8_thread_floats(const kr_gemm_q8_args *a) {
  return (GROUP * BLOCK * a->S + GROUP + KR_FN(kr_panels_floats)(BLOCK * a->S, GROUP) + 31) / 16 * 16;
}

static void widen_gemm_q8(const kr_gemm_q8_args *a, int64_t n, float *to) {
  const int8_t *w = (const int8_t *)((const int32_t *)a->qweight.data + n * a->qweight.stride[0]);
  float scales[PART];
  for (int64_t s = 0; s < a->S; s++) {
    if (s % PART == 0)
      kr_row_load(scales, a->scales.data, a->scales.dtype, kr_at2(&a->scales, n, s), a->scales.stride[1],
                  a->S - s < PART ? a->S - s : PART);
    const kr_v scale = kr_v_set1(scales[s % PART]);
    for (int k = 0; k < BLOCK; k += KR_VL)
      kr_v_store(to + s * BLOCK + k, kr_v_mul(scale, kr_v_load_i8(w + s * BLOCK + k)));
  }
}

static void multiply_gemm_q8_groups(void *user, int64_t begin, int64_t end, int worker) {
  const kr_gemm_q8_args *a = user;
  float *weights = (float *)a->call.scratch + worker * gemm_q8_thread_floats(a), *bias = weights + GROUP * BLOCK * a->S,
        *storage = bias + GROUP;
  for (int64_t g = begin; g < end; g++) {
    const int64_t first = g * GROUP, n = a->N - first < GROUP ? a->N - first : GROUP, K = BLOCK * a->S;
    for (int64_t i = 0; i < n; i++) {
      widen_gemm_q8(a, first + i, weights + i * K);
      bias[i] = kr_has(&a->bias) ? (float)kr_get(&a->bias, kr_at1(&a->bias, first + i)) : 0;
    }
    multiply_widened(&(widened){K, n, weights, bias, storage}, &a->A, a->M, &a->out, first);
  }
}

uint64_t KR_FN(kr_gemm_q8_scratch)(const krait_ctx *ctx, const void *args) {
  return (uint64_t)(gemm_q8_thread_floats(args) * krait_ctx_n_threads(ctx)) * sizeof(float);
}

int32_t KR_FN(kr_gemm_q8)(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q8_args *a = args;
  kr_parallel(ctx, (a->N + GROUP - 1) / GROUP, 1, multiply_gemm_q8_groups, (void *)args);
  return KRAIT_OK;
}
