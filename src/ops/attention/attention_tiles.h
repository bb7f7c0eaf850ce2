/* attention_tiles.h: shared by the vectorized rows of attention and its gradient: rows of a head as panels of floats,
 * the register tile that multiplies them, exponentials of scores. A panel holds NR columns of some rows: [row][NR]; n
 * columns are (n + NR - 1) / NR consecutive panels, zero-padded. Panels serve as the left factor (broadcast) as well as
 * the right one (whole vectors) of a product. */
#ifndef KR_ATTENTION_TILES_H
#define KR_ATTENTION_TILES_H

#include <string.h>

#include "attention_inputs.h"
#include "attention_impls.h"
#include "vec_math.h"
#include "vec_tile.h"

/* 2 MR accumulators, two vectors of the right factor and one broadcast must fit the register file (16 or 32). */
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
enum { MR = 12 };
#elif defined(KR_ISA_avx2)
enum { MR = 6 };
#else
enum { MR = 4 };
#endif
enum { NR = 2 * KR_VL };

enum { KEYS = 256 };         /* per block; a multiple of 32, as dropout counts, and of every NR */
enum { SCORES = KEYS + 16 }; /* floats per query's scores */

static const float LOG2E = 1.44269504088896340736f, LN2 = 0.69314718055994530942f;

static inline int64_t attention_padded(int64_t n) { return (n + NR - 1) / NR * NR; }
static inline int64_t attention_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t attention_most(int64_t a, int64_t b) { return a > b ? a : b; }

/* One tile of C = A B or C += A B: `rows` rows of A, row m, column k at A[m a_row + k a_k], in panels of NR columns
 * a_panel apart; B [k][NR]; C [row][c_row]. rows, a_row, a_k and adds are constants after inlining. */
KR_INLINE void attention_tile(const int rows, const float *A, const int a_row, const int a_k, int64_t a_panel,
                              const float *B, int64_t K, float *C, const int c_row, const int adds) {
  kr_v sum[2 * MR];
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++) {
    sum[2 * m] = adds ? kr_v_load(C + m * c_row) : kr_v_zero();
    sum[2 * m + 1] = adds ? kr_v_load(C + m * c_row + KR_VL) : kr_v_zero();
  }
  for (int64_t left = K; left > 0; left -= NR, A += a_panel) {
    const int n = left < NR ? (int)left : NR;
    const float *a = A;
    for (int k = 0; k < n; k++, B += NR, a += a_k) {
      const kr_v b0 = kr_v_load(B), b1 = kr_v_load(B + KR_VL);
#pragma GCC unroll 16
      for (int m = 0; m < rows; m++) {
        const kr_v x = kr_v_set1(a[m * a_row]);
        sum[2 * m] = kr_v_fma(x, b0, sum[2 * m]);
        sum[2 * m + 1] = kr_v_fma(x, b1, sum[2 * m + 1]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < rows; m++)
    kr_v_store(C + m * c_row, sum[2 * m]), kr_v_store(C + m * c_row + KR_VL, sum[2 * m + 1]);
}

/* Makes the number of rows a constant: MR, or the remainder. */
#define ATTENTION_ROWS(n, CALL) \
  switch (n) {                  \
    ATTENTION_MORE_ROWS(CALL)   \
    case 1: CALL(1); break;     \
    case 2: CALL(2); break;     \
    case 3: CALL(3); break;     \
    case 4: CALL(4); break;     \
  }
#if defined(KR_ISA_avx512) || defined(KR_ISA_neon)
#define ATTENTION_MORE_ROWS(CALL) \
  case 5: CALL(5); break;         \
  case 6: CALL(6); break;         \
  case 7: CALL(7); break;         \
  case 8: CALL(8); break;         \
  case 9: CALL(9); break;         \
  case 10: CALL(10); break;       \
  case 11: CALL(11); break;       \
  default: CALL(12); break;
#elif defined(KR_ISA_avx2)
#define ATTENTION_MORE_ROWS(CALL) \
  case 5: CALL(5); break;         \
  default: CALL(6); break;
#else
#define ATTENTION_MORE_ROWS(CALL)
#endif

/* scores = rows (panels of D columns, `pitch` rows each) times keys [D][NR]. */
static inline void attention_scores(int rows, const float *Q, int64_t pitch, const float *K, int64_t D, float *scores) {
#define CALL(n) attention_tile(n, Q, NR, 1, pitch *NR, K, D, scores, SCORES, 0)
  ATTENTION_ROWS(rows, CALL)
#undef CALL
}

/* sums [row][NR] += P [row][SCORES] times a panel of values [n_keys][NR]. */
static inline void attention_add_values(int rows, const float *P, const float *V, int64_t n_keys, float *sums) {
#define CALL(n) attention_tile(n, P, SCORES, 1, NR, V, n_keys, sums, NR, 1)
  ATTENTION_ROWS(rows, CALL)
#undef CALL
}

/* sums [key][NR] += P^T [query][SCORES], from a column on, times a panel of queries [n][NR]. */
static inline void attention_add_turned(int keys, const float *P, const float *B, int64_t n_queries, float *sums) {
#define CALL(n) attention_tile(n, P, 1, SCORES, NR *SCORES, B, n_queries, sums, NR, 1)
  ATTENTION_ROWS(keys, CALL)
#undef CALL
}

/* ---- rows of a head ---- */

enum { ROW_FLOATS = KR_ATTENTION_MOST_D + 32 };

/* Row `row` of panels of `pitch` rows: n values times scale. Returns zeros, or NaN where a value is not finite. */
static inline kr_v attention_pack_row(float *to, int64_t pitch, int64_t row, const kr_view *view, int64_t at,
                                      int64_t n, float scale) {
  float values[ROW_FLOATS];
  const kr_v by = kr_v_set1(scale), zero = kr_v_zero();
  kr_v odd = zero;
  kr_row_load(values, view->data, view->dtype, at, view->stride[3], n);
  for (int64_t i = (n + 15) / 16 * 16; i < attention_padded(n); i++) values[i] = 0;
  for (int64_t first = 0; first < n; first += NR) {
    float *out = to + first * pitch + row * NR;
    const kr_v a = kr_v_mul(by, kr_v_load(values + first)), b = kr_v_mul(by, kr_v_load(values + first + KR_VL));
    odd = kr_v_fma(a, zero, kr_v_fma(b, zero, odd));
    kr_v_store(out, a), kr_v_store(out + KR_VL, b);
  }
  return odd;
}

static inline void attention_unpack_row(const float *from, int64_t pitch, int64_t row, const kr_view *view,
                                        int64_t at, int64_t n, float scale) {
  float values[ROW_FLOATS];
  const kr_v by = kr_v_set1(scale);
  for (int64_t first = 0; first < n; first += NR) {
    const float *in = from + first * pitch + row * NR;
    kr_v_store(values + first, kr_v_mul(by, kr_v_load(in)));
    kr_v_store(values + first + KR_VL, kr_v_mul(by, kr_v_load(in + KR_VL)));
  }
  kr_row_store(values, view->data, view->dtype, at, view->stride[3], n);
}

/* Keys j0..j0+n-1 of a key head as transposed panels [key panel][D][NR], zero from n on; lines: NR ROW_FLOATS. */
static inline void attention_pack_turned(float *to, const kr_attention_inputs *in, const kr_attention_sequence *s,
                                         const kr_view *view, int64_t g, int64_t j0, int64_t n, int64_t D,
                                         float *lines) {
  for (int64_t first = 0; first < n; first += NR) {
    const int lanes = (int)attention_least(n - first, NR);
    if (!kr_has(in->block_table) && view->stride[3] == 1) {
      for (int part = 0; part < NR; part += KR_VL) {
        const int here = lanes - part < 0 ? 0 : lanes - part < KR_VL ? lanes - part : KR_VL;
        const kr_plane plane = {view->data, view->dtype,
                                kr_attention_key(in, s, view, j0 + first + part) + g * view->stride[2], 1,
                                view->stride[1]};
        kr_tile_load(to + first * D + part, NR, &plane, (int)D, here);
      }
      continue;
    }
    for (int j = 0; j < lanes; j++)
      kr_row_load(lines + j * ROW_FLOATS, view->data, view->dtype,
                  kr_attention_key(in, s, view, j0 + first + j) + g * view->stride[2], view->stride[3], D);
    for (int part = 0; part < NR; part += KR_VL) {
      const int here = lanes - part < 0 ? 0 : lanes - part < KR_VL ? lanes - part : KR_VL;
      const kr_plane plane = {lines, KRAIT_F32, part * ROW_FLOATS, 1, ROW_FLOATS};
      kr_tile_load_as(to + first * D + part, NR, &plane, (int)D, here, KRAIT_F32);
    }
  }
}

/* Keys j0..j0+n-1 as panels of KEYS rows. Returns whether any is not finite. */
static inline int attention_pack_keys(float *to, const kr_attention_inputs *in, const kr_attention_sequence *s,
                                      const kr_view *view, int64_t g, int64_t j0, int64_t n, int64_t D) {
  kr_v odd = kr_v_zero();
  for (int64_t j = 0; j < n; j++)
    odd = kr_v_add(
        odd, attention_pack_row(to, KEYS, j, view, kr_attention_key(in, s, view, j0 + j) + g * view->stride[2], D, 1));
  return isnan(kr_v_sum(odd));
}

/* ---- which keys some queries see, in a block whose first key is j0 ---- */

typedef struct attention_span { /* of rows of scores: columns as whole panels; empty if to is 0 */
  int from, to, end;            /* end: of the last key that any of them sees */
} attention_span;

static inline attention_span attention_span_of(const kr_attention_inputs *in, const kr_attention_sequence *s, int64_t i,
                                               int n, int64_t j0, int64_t n_keys) {
  const int64_t first = attention_most(kr_attention_first(in, s, i) - j0, 0),
                end = attention_least(kr_attention_end(in, s, i + n - 1) - j0, n_keys);
  if (end <= first) return (attention_span){0, 0, 0};
  return (attention_span){(int)(first / NR * NR), (int)attention_padded(end), (int)end};
}

/* Non-finite values must not be multiplied by the zeros of rows that do not see them: such products go row by row, from
 * each row's `first` to `end`. */
static inline void attention_add_exact(const kr_attention_inputs *in, const kr_attention_sequence *s, int64_t i,
                                       int rows, int64_t j0, int64_t n_keys, const float *P, const float *V,
                                       float *sums) {
  for (int m = 0; m < rows; m++) {
    const int64_t first = attention_most(kr_attention_first(in, s, i + m) - j0, 0),
                  end = attention_least(kr_attention_end(in, s, i + m) - j0, n_keys);
    if (first < end) attention_add_values(1, P + m * SCORES + first, V + first * NR, end - first, sums + m * NR);
  }
}

/* Masks query i's invisible columns within its rows' span. */
static inline void attention_hide(const kr_attention_inputs *in, const kr_attention_sequence *s, int64_t i, int64_t j0,
                                  int64_t n_keys, const attention_span *span, float *row, float with) {
  const int64_t first = attention_least(attention_most(kr_attention_first(in, s, i) - j0, span->from), span->to);
  const int64_t end = attention_most(attention_least(kr_attention_end(in, s, i) - j0, n_keys), span->from);
  for (int64_t j = span->from; j < first; j++) row[j] = with;
  for (int64_t j = end; j < span->to; j++) row[j] = with;
}

/* ---- exponentials ---- */

/* 2^x for x up to 126; 0 below -151 and at -inf; NaN propagates. */
KR_INLINE kr_v attention_exp2(kr_v x) {
  const kr_v magic = kr_v_set1(KR_ROUND_MAGIC), c = kr_v_max(kr_v_set1(-151.0f), x),
             n = kr_v_sub(kr_v_add(c, magic), magic);
  return kr_v_ldexp(kr_exp2_minus_poly(kr_v_sub(n, c)), n);
}

/* Softcap and linear bias of query i's scores, columns from..to-1 (whole vectors) of the block at key j0, after the
 * product with scaled queries. With softcap, queries are scaled by `scale` alone and scores still come out in units of
 * log 2; slopes, if wanted, get 1 - tanh^2. */
static inline void attention_bend(const kr_attention_inputs *in, float *score, float *slope, int from, int to,
                                  float bias, int64_t distance) {
  for (int j = from; j < to; j += KR_VL) {
    kr_v v = kr_v_load(score + j);
    if (in->softcap > 0) {
      const kr_v t = kr_v_tanh(kr_v_mul(v, kr_v_set1(1 / in->softcap)));
      v = kr_v_mul(t, kr_v_set1(in->softcap * LOG2E));
      if (slope) kr_v_store(slope + j, kr_v_fnma(t, t, kr_v_set1(1.0f)));
    }
    if (bias != 0) {
      float far[KR_VL];
      for (int lane = 0; lane < KR_VL; lane++) far[lane] = (float)(distance - j - lane);
      v = kr_v_fnma(kr_v_set1(bias), kr_v_abs(kr_v_load(far)), v);
    }
    kr_v_store(score + j, v);
  }
}

/* The factor applied to queries before the product. */
static inline float attention_query_scale(const kr_attention_inputs *in) {
  return in->softcap > 0 ? in->scale : in->scale * LOG2E;
}

static inline float attention_bias(const kr_attention_inputs *in, int64_t b, int64_t h) {
  return kr_has(in->alibi_slopes)
             ? kr_scalar_load(in->alibi_slopes->data, kr_at2(in->alibi_slopes, b, h), in->alibi_slopes->dtype) * LOG2E
             : 0;
}

/* Dropout on query i's row: kept values are scaled by 1 / (1 - dropout), the others become 0; columns from..to-1 of the
 * block at key j0. */
static inline void attention_drop(const kr_attention_dropout *d, int64_t b_head, int64_t i, int64_t j0, int from,
                                  int to, float *row) {
  for (int j = from / 32 * 32; j < to; j += 32)
    for (int pair = 0; pair < 4; pair++) {
      const uint32_t counter[4] = {(uint32_t)((j0 + j) / 32 * 4 + pair), (uint32_t)(i / 16 * 8 + i % 8),
                                   (uint32_t)b_head, d->stream};
      uint32_t words[4];
      kr_attention_philox(d->key, counter, words);
      for (int group = 0; group < 4; group++)
        for (int odd = 0; odd < 2; odd++) {
          const uint32_t byte = words[group] >> (i % 16 / 8 * 2 + odd) * 8 & 0xff;
          row[j + group * 8 + pair * 2 + odd] *= byte < d->threshold ? d->scale : 0;
        }
    }
}

#endif
