/* gemm_q8_words_simd.c: 8-bit weights times many rows in 16-bit integers: a row's block of 32 becomes words with a
 * scale of its own (half a step is 2^-16 of the block's largest value), its product with a block of weights is exact,
 * and each sum is multiplied by both scales. Half the instructions of float32. */
#include <math.h>
#include <string.h>

#include "ctx.h"
#include "gemm/gemm_q8_impls.h"
#include "op_list.h"
#include "status.h"
#include "vec_tile.h"
#include "view.h"
#include "word_sums.h"

/* PANEL: outputs at once, two vectors; PART: blocks of a panel that are packed at once, which the second-level cache
 * keeps. */
enum { BLOCK = 32, PANEL = 2 * KR_VL, ROWS = 6, PART = 64, LINE = 64 };
static const float MOST_WORD = 32767, LEAST = 1e-30f, MOST = 1e30f;

typedef struct words {
  const kr_gemm_q8_args *a;
  int16_t *A;      /* (M, 32 S) */
  float *A_scales; /* (M, S) */
  uint8_t *is_odd; /* (M): a row with values that words cannot stand for */
  char *threads;
} words;

/* A part of a panel, and the rows that it is multiplied by. */
typedef struct part {
  const int16_t *A;
  const float *A_scales;
  int64_t lda, lds, ldc;
  const int16_t *weights; /* (blocks, 16 pairs, PANEL, 2) */
  const float *scales;    /* (blocks, PANEL) */
  const float *bias;      /* where the sums begin; NULL: at C */
  float *C;
  int n_blocks, n; /* n: outputs */
} part;

/* ---- memory ---- */

static uint64_t in_lines(uint64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }
static uint64_t thread_bytes(void) { return in_lines(PART * BLOCK * PANEL * 2 + (PART + 1) * PANEL * sizeof(float)); }

/* Returns what it needs of scratch. */
static uint64_t place_words(const kr_gemm_q8_args *a, words *w) {
  const uint64_t M = (uint64_t)a->M, S = (uint64_t)a->S, rows = in_lines(M * S * BLOCK * 2),
                 scales = in_lines(M * S * sizeof(float));
  char *at = (char *)(((uintptr_t)a->call.scratch + LINE - 1) / LINE * LINE);
  *w = (words){.a = a,
               .A = (int16_t *)at,
               .A_scales = (float *)(at + rows),
               .is_odd = (uint8_t *)(at + rows + scales),
               .threads = at + rows + scales + in_lines(M)};
  return LINE + rows + scales + in_lines(M);
}

/* ---- rows ---- */

static void round_row(const words *w, int64_t m) {
  const float *x = (const float *)w->a->A.data + m * w->a->A.stride[0];
  int16_t *to = w->A + m * w->a->S * BLOCK;
  float *scales = w->A_scales + m * w->a->S;
  kr_v odd = kr_v_zero();
  int is_odd = 0;
  for (int64_t s = 0; s < w->a->S; s++, x += BLOCK, to += BLOCK) {
    const kr_v low = kr_v_load(x), high = kr_v_load(x + KR_VL);
    const float most = kr_v_largest(kr_v_max(kr_v_abs(low), kr_v_abs(high)));
    const kr_v by = kr_v_set1(most > 0 ? MOST_WORD / most : 0);
    odd = kr_v_fma(low, kr_v_zero(), kr_v_fma(high, kr_v_zero(), odd)); /* NaN where a value is not finite */
    is_odd |= most != 0 && !(most > LEAST && most < MOST);
    kr_words_round(to, kr_v_mul(low, by));
    kr_words_round(to + KR_VL, kr_v_mul(high, by));
    scales[s] = most / MOST_WORD;
  }
  w->is_odd[m] = (uint8_t)(is_odd || isnan(kr_v_sum(odd)));
}

static void round_rows(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (int64_t m = begin; m < end; m++) round_row(user, m);
}

/* ---- weights ---- */

/* Blocks first to first + n_blocks of a panel's outputs; past the last output it repeats. */
static void pack_part(const kr_gemm_q8_args *a, int64_t n0, int64_t first, int n_blocks, int16_t *weights,
                      float *scales) {
  for (int i = 0; i < PANEL; i += KR_VL) {
    const int8_t *bytes[KR_VL];
    for (int lane = 0; lane < KR_VL; lane++) {
      const int64_t n = n0 + i + lane < a->N ? n0 + i + lane : a->N - 1;
      float row[PART];
      bytes[lane] = (const int8_t *)((const int32_t *)a->qweight.data + n * a->qweight.stride[0]) + first * BLOCK;
      kr_row_load(row, a->scales.data, a->scales.dtype, kr_at2(&a->scales, n, first), a->scales.stride[1], n_blocks);
      for (int s = 0; s < n_blocks; s++) scales[s * PANEL + i + lane] = row[s];
    }
    for (int s = 0; s < n_blocks; s++) {
      kr_v pairs[KR_VL];
      for (int lane = 0; lane < KR_VL; lane++) pairs[lane] = kr_words_from_i8(bytes[lane] + s * BLOCK);
      kr_v_transpose(pairs);
      for (int k = 0; k < BLOCK / 2; k++)
        kr_v_store((float *)(void *)(weights + ((s * BLOCK / 2 + k) * PANEL + i) * 2), pairs[k]);
    }
  }
}

/* ---- products ---- */

/* The outputs of `rows` rows from row m on; rows is a constant after inlining. */
KR_INLINE void add_part(const int rows, const part *p, int64_t m) {
  const int lanes[2] = {p->n < KR_VL ? p->n : KR_VL, p->n < KR_VL ? 0 : p->n - KR_VL};
  const int16_t *A = p->A + m * p->lda, *weights = p->weights;
  const float *A_scales = p->A_scales + m * p->lds;
  float *C = p->C + m * p->ldc;
  kr_v total[ROWS][2];
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++)
      total[r][v] = p->bias ? kr_v_load(p->bias + v * KR_VL) : kr_v_loadn(C + r * p->ldc + v * KR_VL, lanes[v]);
  for (int s = 0; s < p->n_blocks; s++, A += BLOCK) {
    kr_vi sum[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = kr_words_zero();
#pragma GCC unroll 4
    for (int k = 0; k < BLOCK; k += 2, weights += 2 * PANEL) {
      const kr_vi low = kr_words_load(weights), high = kr_words_load(weights + PANEL);
#pragma GCC unroll 8
      for (int r = 0; r < rows; r++) {
        const kr_vi x = kr_words_pair(A + r * p->lda + k);
        sum[r][0] = kr_words_dot(sum[r][0], x, low), sum[r][1] = kr_words_dot(sum[r][1], x, high);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
      const kr_v by = kr_v_set1(A_scales[r * p->lds + s]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++)
        total[r][v] = kr_v_fma(kr_v_mul(kr_vi_to_v(sum[r][v]), by), kr_v_load(p->scales + s * PANEL + v * KR_VL),
                               total[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) kr_v_storen(C + r * p->ldc + v * KR_VL, total[r][v], lanes[v]);
}

typedef void add_fn(const part *p, int64_t m);
#define ADD(rows) \
  static void add_##rows(const part *p, int64_t m) { add_part(rows, p, m); }
ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6)
static add_fn *const adds[ROWS] = {add_1, add_2, add_3, add_4, add_5, add_6};

static void multiply_word_panels(void *user, int64_t begin, int64_t end, int worker) {
  const words *w = user;
  const kr_gemm_q8_args *a = w->a;
  int16_t *weights = (int16_t *)(w->threads + (uint64_t)worker * thread_bytes());
  float *scales = (float *)(weights + PART * BLOCK * PANEL), *bias = scales + PART * PANEL;
  for (int64_t i = begin; i < end; i++) {
    const int64_t n0 = i * PANEL;
    part p = {.lda = a->S * BLOCK, .lds = a->S, .ldc = a->out.stride[0], .weights = weights, .scales = scales};
    p.n = (int)(a->N - n0 < PANEL ? a->N - n0 : PANEL), p.C = (float *)a->out.data + n0;
    for (int n = 0; n < PANEL; n++)
      bias[n] = kr_has(&a->bias) && n < p.n ? (float)kr_get(&a->bias, kr_at1(&a->bias, n0 + n)) : 0;
    for (int64_t s = 0; s < a->S; s += PART) {
      p.n_blocks = (int)(a->S - s < PART ? a->S - s : PART);
      p.A = w->A + s * BLOCK, p.A_scales = w->A_scales + s, p.bias = s ? NULL : bias;
      pack_part(a, n0, s, p.n_blocks, weights, scales);
      for (int64_t m = 0; m < a->M; m += ROWS) adds[a->M - m < ROWS ? a->M - m - 1 : ROWS - 1](&p, m);
    }
  }
}

uint64_t KR_FN(kr_gemm_q8_words_scratch)(const krait_ctx *ctx, const void *args) {
  words w;
  return place_words(args, &w) + (uint64_t)krait_ctx_n_threads(ctx) * thread_bytes();
}

int32_t KR_FN(kr_gemm_q8_words)(const krait_ctx *ctx, const void *args) {
  kr_gemm_q8_args one = *(const kr_gemm_q8_args *)args;
  words w;
  place_words(args, &w);
  kr_parallel(ctx, w.a->M, 1 + 4096 / (BLOCK * w.a->S + 1), round_rows, &w);
  kr_parallel(ctx, (w.a->N + PANEL - 1) / PANEL, 1, multiply_word_panels, &w);
  one.M = 1;
  for (int64_t m = 0; m < w.a->M; m++) {
    one.A.data = (float *)w.a->A.data + m * w.a->A.stride[0];
    one.out.data = (float *)w.a->out.data + m * w.a->out.stride[0];
    if (w.is_odd[m]) KR_TRY(KR_FN(kr_gemm_q8_few)(ctx, &one));
  }
  return KRAIT_OK;
}
