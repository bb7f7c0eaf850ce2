/* gemm_m16_simd.c: few rows of A against weights as layers store them, the K inputs of each output contiguous: dot
 * products, so that the weights are read once, in place and unconverted. Memory-bound: the cache lines of the next
 * outputs are prefetched while the current ones are multiplied. */
#include "gemm/gemm_impls.h"
#include "gemm/gemm_vectors.h"
#include "op_list.h"

/* Rows of A and outputs at once: their accumulators plus a vector of each must fit the register file (16 or 32). */
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
enum { ROWS = 6 };
#else
enum { ROWS = 3 };
#endif
/* PART_BYTES: of A, kept in the L1 cache. */
enum {
  OUTPUTS = 4,
  EVEN_VECTORS = 32,
  FAR_BYTES = 4096,
  IN_ORDER_BYTES = 12288,
  LINE_BYTES = 64,
  PART_BYTES = 24 * 1024
};

typedef struct product {
  const kr_gemm_args *args;
  const float *A;    /* contiguous rows, lda apart */
  int64_t lda, part, piece; /* part: K multiplied at once; piece: outputs per task, a vector or OUTPUTS */
  int n_parts;              /* of the rows */
} product;

typedef struct weights { /* of some outputs, one part of K */
  const void *data;
  int64_t at, next, K,
      ahead; /* in elements: offset of the first output, output stride; in bytes: prefetch distance */
  unsigned fetch;             /* one bit per output to prefetch for */
} weights;

/* sums[m * KR_VL + n] += A[m] . B[n], not yet reduced across lanes; rows and dtype are constants after inlining. */
KR_INLINE void dot_half_rows(const int rows, const int32_t dtype, const float *A, int64_t lda, const weights *w,
                             kr_v *sums) {
  const int64_t K = w->K, bytes = dtype == KRAIT_F32 ? 4 : 2, line = LINE_BYTES / bytes,
                step = line > KR_VL ? line : KR_VL;
  const char *B = (const char *)w->data + w->at * bytes;
  kr_v sum[ROWS * OUTPUTS];
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
    for (int n = 0; n < OUTPUTS; n++) sum[m * OUTPUTS + n] = sums[m * KR_VL + n];
  int64_t k = 0;
  for (; k + step <= K; k += step) {
#pragma GCC unroll 4
    for (int n = 0; n < OUTPUTS; n++)
      if (w->fetch >> n & 1) __builtin_prefetch(B + (n * w->next + k) * bytes + w->ahead, 0, 2);
#pragma GCC unroll 8
    for (int64_t j = k; j < k + step; j += KR_VL)
#pragma GCC unroll 4
      for (int n = 0; n < OUTPUTS; n++) {
        const kr_v b = kr_v_load_as(B, n * w->next + j, KR_VL, dtype);
#pragma GCC unroll 8
        for (int m = 0; m < rows; m++)
          sum[m * OUTPUTS + n] = kr_v_fma(kr_v_load(A + m * lda + j), b, sum[m * OUTPUTS + n]);
      }
  }
  for (; k < K; k += KR_VL) {
    const int rest = K - k < KR_VL ? (int)(K - k) : KR_VL;
#pragma GCC unroll 4
    for (int n = 0; n < OUTPUTS; n++) {
      const kr_v b = kr_v_load_as(B, n * w->next + k, rest, dtype);
#pragma GCC unroll 8
      for (int m = 0; m < rows; m++)
        sum[m * OUTPUTS + n] = kr_v_fma(rest == KR_VL ? kr_v_load(A + m * lda + k) : kr_v_loadn(A + m * lda + k, rest),
                                        b, sum[m * OUTPUTS + n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
    for (int n = 0; n < OUTPUTS; n++) sums[m * KR_VL + n] = sum[m * OUTPUTS + n];
}

typedef void dots_fn(const float *A, int64_t lda, const weights *w, kr_v *sums);
#define DOTS(rows)                                                                            \
  static void dots_##rows##_f32(const float *A, int64_t lda, const weights *w, kr_v *sums) {  \
    dot_half_rows(rows, KRAIT_F32, A, lda, w, sums);                                                   \
  }                                                                                           \
  static void dots_##rows##_f16(const float *A, int64_t lda, const weights *w, kr_v *sums) {  \
    dot_half_rows(rows, KRAIT_F16, A, lda, w, sums);                                                   \
  }                                                                                           \
  static void dots_##rows##_bf16(const float *A, int64_t lda, const weights *w, kr_v *sums) { \
    dot_half_rows(rows, KRAIT_BF16, A, lda, w, sums);                                                  \
  }
#define ENTRY(rows) {dots_##rows##_f32, dots_##rows##_f16, dots_##rows##_bf16},
DOTS(2) DOTS(3)
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
DOTS(4) DOTS(5) DOTS(6)
#endif

static dots_fn *const kernels[ROWS - 1][3] = {
    ENTRY(2) ENTRY(3)
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
    ENTRY(4) ENTRY(5) ENTRY(6)
#endif
};

/* A . B for one row of A: one output at a time, so that memory is read sequentially, which hardware prefetchers follow
 * best. Lines are asked for far ahead: 2 to 4 KB ahead, where a page begins, some prefetchers lose the stream. */
KR_INLINE kr_v dot_half(const int32_t dtype, const float *A, const void *data, int64_t at, int64_t K) {
  enum { AT_ONCE = 4, STEP = AT_ONCE * KR_VL };
  const int64_t bytes = dtype == KRAIT_F32 ? 4 : 2;
  kr_v sum[AT_ONCE] = {kr_v_zero(), kr_v_zero(), kr_v_zero(), kr_v_zero()};
  int64_t k = 0;
  for (; k + STEP <= K; k += STEP) {
    for (int64_t line = 0; line < STEP * bytes; line += LINE_BYTES)
      __builtin_prefetch((const char *)data + (at + k) * bytes + IN_ORDER_BYTES + line, 0, 2);
#pragma GCC unroll 4
    for (int i = 0; i < AT_ONCE; i++)
      sum[i] = kr_v_fma(kr_v_load(A + k + i * KR_VL), kr_v_load_as(data, at + k + i * KR_VL, KR_VL, dtype), sum[i]);
  }
  for (int64_t line = 0; line < (K - k) * bytes; line += LINE_BYTES)
    __builtin_prefetch((const char *)data + (at + k) * bytes + IN_ORDER_BYTES + line, 0, 2);
#pragma GCC unroll 4
  for (int i = 0; i < AT_ONCE - 1; i++) {
    if (k + KR_VL > K) break;
    sum[i] = kr_v_fma(kr_v_load(A + k), kr_v_load_as(data, at + k, KR_VL, dtype), sum[i]);
    k += KR_VL;
  }
  if (k < K) {
    const int rest = (int)(K - k);
    sum[3] = kr_v_fma(kr_v_loadn(A + k, rest), kr_v_load_as(data, at + k, rest, dtype), sum[3]);
  }
  return kr_v_add(kr_v_add(sum[0], sum[1]), kr_v_add(sum[2], sum[3]));
}

static void sum_gemm_m16_row(const product *p, const kr_view *B, int64_t n0, int lanes, kr_v *sums) {
  const int64_t K = p->args->K, next = B->stride[1];
  for (int n = 0; n < lanes; n++) {
    const int64_t at = (n0 + n) * next;
    if (B->dtype == KRAIT_F32) sums[n] = dot_half(KRAIT_F32, p->A, B->data, at, K);
    else if (B->dtype == KRAIT_F16) sums[n] = dot_half(KRAIT_F16, p->A, B->data, at, K);
    else sums[n] = dot_half(KRAIT_BF16, p->A, B->data, at, K);
  }
}

/* All rows against some outputs, in parts as even as possible, which take turns at prefetching. */
static void add_gemm_m16_rows(const product *p, int64_t k, int32_t dtype, weights *w, kr_v *sums) {
  const int M = (int)p->args->M;
  for (int part = 0, m = 0; part < p->n_parts; part++) {
    const int left = p->n_parts - part, rows = (M - m + left - 1) / left;
    w->fetch = 0;
    for (int n = part; n < OUTPUTS; n += p->n_parts) w->fetch |= 1u << n;
    kernels[rows - 2][dtype](p->A + m * p->lda + k, p->lda, w, sums + m * KR_VL);
    m += rows;
  }
}

/* The tail: n outputs, fewer than a kernel computes, one at a time as if they were several. */
static void add_gemm_m16_last(const product *p, int64_t k, int32_t dtype, weights w, int n, kr_v *sums) {
  const int64_t next = w.next;
  kr_v same[KR_GEMM_MOST_M16 * KR_VL];
  w.next = 0;
  for (int i = 0; i < n; i++, w.at += next) {
    for (int r = 0; r < p->args->M * KR_VL; r++) same[r] = kr_v_zero();
    add_gemm_m16_rows(p, k, dtype, &w, same);
    for (int m = 0; m < p->args->M; m++) sums[m * KR_VL + i] = kr_v_add(sums[m * KR_VL + i], same[m * KR_VL]);
  }
}

/* sums[m * KR_VL + n] for a vector of outputs from n0. */
static void sum_gemm_m16_outputs(const product *p, const kr_view *B, int64_t n0, int lanes, kr_v *sums) {
  if (p->args->M == 1) {
    sum_gemm_m16_row(p, B, n0, lanes, sums);
    return;
  }
  const int64_t K = p->args->K, next = B->stride[1], far = OUTPUTS * next * (int64_t)krait_dtype_bytes(B->dtype);
  for (int64_t k = 0; k < K; k += p->part)
    for (int n = 0; n < lanes; n += OUTPUTS) {
      weights w = {B->data,
                   (n0 + n) * next + k,
                   next,
                   K - k < p->part ? K - k : p->part,
                   far > 0 ? (FAR_BYTES + far - 1) / far * far : 0,
                   0};
      if (n + OUTPUTS <= lanes) add_gemm_m16_rows(p, k, B->dtype, &w, sums + n);
      else add_gemm_m16_last(p, k, B->dtype, w, lanes - n, sums + n);
    }
}

static void multiply_gemm_m16(void *user, int64_t begin, int64_t end, int worker) {
  const product *p = user;
  const kr_gemm_args *a = p->args;
  const int is_gated = kr_has(&a->B2);
  kr_v sums[2][KR_GEMM_MOST_M16 * KR_VL];
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const int64_t n = i * p->piece;
    const int lanes = a->N - n < p->piece ? (int)(a->N - n) : (int)p->piece;
    const kr_v bias =
        kr_has(&a->bias) ? gemm_load(&a->bias, n * a->bias.stride[0], a->bias.stride[0], lanes) : kr_v_zero();
    const kr_v bias2 =
        kr_has(&a->bias2) ? gemm_load(&a->bias2, n * a->bias2.stride[0], a->bias2.stride[0], lanes) : kr_v_zero();
    for (int k = 0; k < a->M * KR_VL; k++) sums[0][k] = sums[1][k] = kr_v_zero();
    sum_gemm_m16_outputs(p, &a->Bmat, n, lanes, sums[0]);
    if (is_gated) sum_gemm_m16_outputs(p, &a->B2, n, lanes, sums[1]);
    for (int64_t m = 0; m < a->M; m++) {
      const kr_v scale = kr_v_set1(gemm_scale(a, 0, m)), v = kr_v_fma(kr_v_sum_each(sums[0] + m * KR_VL), scale, bias);
      const kr_v gate = is_gated ? kr_v_fma(kr_v_sum_each(sums[1] + m * KR_VL), scale, bias2) : kr_v_zero();
      gemm_finish_some(a, 0, m, n, lanes, v, is_gated ? &gate : NULL);
    }
  }
}

static int is_in_place_for_gemm_m16(const kr_gemm_args *a) {
  return a->A.dtype == KRAIT_F32 && (a->A.stride[1] == 1 || a->K == 1);
}
static int64_t gemm_m16_row_floats(const kr_gemm_args *a) { return (a->K + 15) / 16 * 16; }

uint64_t KR_FN(kr_gemm_m16_scratch)(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  (void)ctx;
  return is_in_place_for_gemm_m16(a) ? 0 : (uint64_t)(a->M * gemm_m16_row_floats(a)) * sizeof(float);
}

int32_t KR_FN(kr_gemm_m16)(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  product p = {.args = a, .A = a->A.data, .lda = a->A.stride[0], .n_parts = (int)(a->M + ROWS - 1) / ROWS};
  if (a->M == 0) return KRAIT_OK;
  p.part = PART_BYTES / (int64_t)sizeof(float) / a->M / 16 * 16;
  if (!is_in_place_for_gemm_m16(a)) {
    float *rows = a->call.scratch;
    p.A = rows, p.lda = gemm_m16_row_floats(a);
    for (int64_t m = 0; m < a->M; m++)
      kr_row_load(rows + m * p.lda, a->A.data, a->A.dtype, m * a->A.stride[0], a->A.stride[1], a->K);
  }
  /* Few outputs are dealt in less than a vector each, lest one thread has a whole vector more. */
  p.piece = a->N < EVEN_VECTORS * KR_VL && a->K <= p.part && KR_VL > OUTPUTS ? OUTPUTS : KR_VL;
  kr_parallel_long(ctx, (a->N + p.piece - 1) / p.piece, 1 + 8192 / (p.piece * (a->K + 1)), multiply_gemm_m16, &p);
  return KRAIT_OK;
}
