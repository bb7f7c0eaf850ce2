/* layers_simd.c: the layers of layers.h in the vocabulary of vec.h. Channels lie across lanes, so nothing but the
 * channel norm and the dot product ever adds lanes together. */
#include "layers.h"

#include "vec_math.h"

#define INLINE static inline __attribute__((always_inline))

static void panels_scale(const kr_panels *p, const float *scale, kr_panels *out, float *storage) {
  enum { NR = 2 * KR_VL };
  *out = *p;
  out->data = storage;
  int64_t columns = (p->N + KR_VL - 1) / KR_VL * KR_VL;
  for (int64_t first = 0; first < columns; first += NR) {
    int64_t width = columns - first < NR ? columns - first : NR;
    const float *from = p->data + first * p->K;
    float *to = storage + first * p->K;
    for (int64_t k = 0; k < p->K; k++, from += width, to += width) {
      kr_v s = kr_v_set1(scale[k]);
      for (int64_t j = 0; j < width; j += KR_VL) kr_v_store(to + j, kr_v_mul(s, kr_v_load(from + j)));
    }
  }
}

/* Rows of whole vectors with a known count stay in registers between the two sums. */
INLINE void norm_row(const float *x, float *out, const int vectors, float inverse_C, float eps) {
  kr_v v[8], sum = kr_v_zero(), squares = kr_v_zero();
  for (int i = 0; i < vectors; i++) sum = kr_v_add(sum, v[i] = kr_v_load(x + i * KR_VL));
  kr_v mean = kr_v_set1(kr_v_sum(sum) * inverse_C);
  for (int i = 0; i < vectors; i++) {
    v[i] = kr_v_sub(v[i], mean);
    squares = kr_v_fma(v[i], v[i], squares);
  }
  kr_v variance = kr_v_set1(kr_v_sum(squares) * inverse_C + eps);
  kr_v factor = kr_v_div(kr_v_set1(1.0f), kr_v_sqrt(variance));
  for (int i = 0; i < vectors; i++) kr_v_store(out + i * KR_VL, kr_v_mul(v[i], factor));
}

static void norm_row_any(const float *x, float *out, int64_t C, float eps) {
  int64_t whole = C / KR_VL * KR_VL;
  int rest = (int)(C - whole);
  float inverse_C = 1.0f / (float)C;
  kr_v sum = rest ? kr_v_loadn(x + whole, rest) : kr_v_zero();
  for (int64_t c = 0; c < whole; c += KR_VL) sum = kr_v_add(sum, kr_v_load(x + c));
  float mean = kr_v_sum(sum) * inverse_C, squares = 0;
  kr_v m = kr_v_set1(mean), vector_squares = kr_v_zero();
  for (int64_t c = 0; c < whole; c += KR_VL) {
    kr_v d = kr_v_sub(kr_v_load(x + c), m);
    vector_squares = kr_v_fma(d, d, vector_squares);
  }
  for (int64_t c = whole; c < C; c++) squares += (x[c] - mean) * (x[c] - mean);
  kr_v variance = kr_v_set1((kr_v_sum(vector_squares) + squares) * inverse_C + eps);
  kr_v factor = kr_v_div(kr_v_set1(1.0f), kr_v_sqrt(variance));
  for (int64_t c = 0; c < whole; c += KR_VL) kr_v_store(out + c, kr_v_mul(kr_v_sub(kr_v_load(x + c), m), factor));
  if (!rest) return;
  kr_v tail = kr_v_mul(kr_v_sub(kr_v_loadn(x + whole, rest), m), factor);
  kr_v_store(out + whole, kr_v_zero());
  kr_v_storen(out + whole, tail, rest);
}

static void norm_rows(const float *x, int64_t ldx, int64_t n, int64_t C, float eps, float *out, int64_t ldo) {
  if (C == 64 && KR_VL >= 8) {
    for (int64_t p = 0; p < n; p++)
      norm_row(x + p * ldx, out + p * ldo, 64 / KR_VL < 8 ? 64 / KR_VL : 8, 1.0f / 64, eps);
  } else {
    for (int64_t p = 0; p < n; p++) norm_row_any(x + p * ldx, out + p * ldo, C, eps);
  }
}

enum {
  BLOCK = 6
}; /* positions whose sums stay in registers: two filters, two weights and an input beside them fit 16 */

INLINE void pair_block(const float *x, int64_t ldx, const int positions, int64_t Cp, int64_t k, const float *ta,
                       const float *tb, kr_v bias_a, kr_v bias_b, kr_v a[BLOCK], kr_v b[BLOCK]) {
#pragma GCC unroll 8
  for (int i = 0; i < positions; i++) a[i] = bias_a, b[i] = bias_b;
  for (int64_t t = 0; t < k; t++, ta += Cp, tb += Cp, x += ldx) {
    kr_v wa = kr_v_load(ta), wb = kr_v_load(tb);
#pragma GCC unroll 8
    for (int i = 0; i < positions; i++) {
      kr_v v = kr_v_load(x + i * ldx);
      a[i] = kr_v_fma(v, wa, a[i]);
      b[i] = kr_v_fma(v, wb, b[i]);
    }
  }
}

INLINE void pair_positions(const float *x, int64_t ldx, const int positions, int64_t Cp, int64_t k, const float *ta,
                           const float *tb, kr_v bias_a, kr_v bias_b, float *out_a, float *out_b, int64_t ldo) {
  kr_v a[BLOCK], b[BLOCK];
  pair_block(x, ldx, positions, Cp, k, ta, tb, bias_a, bias_b, a, b);
#pragma GCC unroll 8
  for (int i = 0; i < positions; i++) {
    kr_v_store(out_a + i * ldo, a[i]);
    kr_v_store(out_b + i * ldo, b[i]);
  }
}

static void depthwise_pair(const float *x, int64_t ldx, int64_t n, int64_t Cp, int64_t k, const float *const taps[2],
                           const float *const bias[2], float *const out[2], int64_t ldo) {
  for (int64_t c = 0; c < Cp; c += KR_VL) {
    const float *ta = taps[0] + c, *tb = taps[1] + c;
    kr_v bias_a = kr_v_load(bias[0] + c), bias_b = kr_v_load(bias[1] + c);
    int64_t p = 0;
    for (; p + BLOCK <= n; p += BLOCK)
      pair_positions(x + p * ldx + c, ldx, BLOCK, Cp, k, ta, tb, bias_a, bias_b, out[0] + p * ldo + c,
                     out[1] + p * ldo + c, ldo);
    for (; p < n; p++)
      pair_positions(x + p * ldx + c, ldx, 1, Cp, k, ta, tb, bias_a, bias_b, out[0] + p * ldo + c, out[1] + p * ldo + c,
                     ldo);
  }
}

static void depthwise_gate(const float *x, int64_t ldx, int64_t n, int64_t Cp, int64_t k, const float *taps,
                           const float *bias, float *out, int64_t ldo, float *sum) {
  for (int64_t c = 0; c < Cp; c += KR_VL) {
    kr_v bias_a = kr_v_load(bias + c), bias_b = kr_v_load(bias + Cp + c), total = kr_v_zero();
    for (int64_t p = 0; p < n; p++) {
      kr_v a = bias_a, b = bias_b;
      for (int64_t t = 0; t < k; t++) {
        const float *row = x + (p + t) * ldx + c, *w = taps + t * 2 * Cp + c;
        a = kr_v_fma(kr_v_load(row), kr_v_load(w), a);
        b = kr_v_fma(kr_v_load(row + Cp), kr_v_load(w + Cp), b);
      }
      a = kr_v_mul(a, b);
      total = kr_v_add(total, a);
      kr_v_store(out + p * ldo + c, a);
    }
    kr_v_store(sum + c, total);
  }
}

static void depthwise_3x3(const float *const rows[3], int64_t ldx, int64_t n, int64_t Cp, const float *taps,
                          const float *bias, float *out, int64_t ldo) {
  for (int64_t c = 0; c < Cp; c += KR_VL) {
    kr_v w[9], first = kr_v_load(bias + c);
    for (int i = 0; i < 9; i++) w[i] = kr_v_load(taps + i * Cp + c);
    const float *r0 = rows[0] + c - ldx, *r1 = rows[1] + c - ldx, *r2 = rows[2] + c - ldx;
    float *to = out + c;
    for (int64_t p = 0; p < n; p++, r0 += ldx, r1 += ldx, r2 += ldx, to += ldo) {
      kr_v a = kr_v_fma(kr_v_load(r0), w[0], first), b = kr_v_mul(kr_v_load(r1), w[3]),
           d = kr_v_mul(kr_v_load(r2), w[6]);
      a = kr_v_fma(kr_v_load(r0 + ldx), w[1], a);
      b = kr_v_fma(kr_v_load(r1 + ldx), w[4], b);
      d = kr_v_fma(kr_v_load(r2 + ldx), w[7], d);
      a = kr_v_fma(kr_v_load(r0 + 2 * ldx), w[2], a);
      b = kr_v_fma(kr_v_load(r1 + 2 * ldx), w[5], b);
      d = kr_v_fma(kr_v_load(r2 + 2 * ldx), w[8], d);
      kr_v_store(to, kr_v_add(kr_v_add(a, b), d));
    }
  }
}

/* Four partial sums per channel: shorter chains, smaller rounding. */
INLINE kr_v column_sum(const float *x, int64_t ldx, int64_t n) {
  kr_v s[4] = {kr_v_zero(), kr_v_zero(), kr_v_zero(), kr_v_zero()};
  int64_t p = 0;
  for (; p + 4 <= n; p += 4)
    for (int i = 0; i < 4; i++) s[i] = kr_v_add(s[i], kr_v_load(x + (p + i) * ldx));
  for (; p < n; p++) s[0] = kr_v_add(s[0], kr_v_load(x + p * ldx));
  return kr_v_add(kr_v_add(s[0], s[1]), kr_v_add(s[2], s[3]));
}

static void column_sums(const float *x, int64_t ldx, int64_t n, int64_t Cp, float *sum) {
  for (int64_t c = 0; c < Cp; c += KR_VL) kr_v_store(sum + c, column_sum(x + c, ldx, n));
}

static void moments(const float *x, int64_t ldx, int64_t n, int64_t Cp, float *mean, float *m2) {
  kr_v inverse_n = kr_v_set1(1.0f / (float)n);
  for (int64_t c = 0; c < Cp; c += KR_VL) {
    kr_v m = kr_v_mul(column_sum(x + c, ldx, n), inverse_n),
         s[4] = {kr_v_zero(), kr_v_zero(), kr_v_zero(), kr_v_zero()};
    int64_t p = 0;
    for (; p + 4 <= n; p += 4)
      for (int i = 0; i < 4; i++) {
        kr_v d = kr_v_sub(kr_v_load(x + (p + i) * ldx + c), m);
        s[i] = kr_v_fma(d, d, s[i]);
      }
    for (; p < n; p++) {
      kr_v d = kr_v_sub(kr_v_load(x + p * ldx + c), m);
      s[0] = kr_v_fma(d, d, s[0]);
    }
    kr_v_store(mean + c, m);
    kr_v_store(m2 + c, kr_v_add(kr_v_add(s[0], s[1]), kr_v_add(s[2], s[3])));
  }
}

INLINE kr_v prelu(kr_v v, kr_v slope) { return kr_v_select(kr_v_lt(v, kr_v_zero()), kr_v_mul(v, slope), v); }

static void affine_prelu(float *x, int64_t ldx, int64_t n, int64_t Cp, const float *scale, const float *shift,
                         const float *slope) {
  for (int64_t p = 0; p < n; p++, x += ldx)
    for (int64_t c = 0; c < Cp; c += KR_VL) {
      kr_v v = kr_v_fma(kr_v_load(x + c), kr_v_load(scale + c), kr_v_load(shift + c));
      kr_v_store(x + c, prelu(v, kr_v_load(slope + c)));
    }
}

static void lift_pair(const float *a, const float *b, int64_t n, int64_t Cp, const float *wa, const float *wb,
                      const float *shift, const float *slope, float *out, int64_t ldo) {
  for (int64_t c = 0; c < Cp; c += KR_VL) {
    kr_v va = kr_v_load(wa + c), vb = kr_v_load(wb + c), vs = kr_v_load(shift + c), negative = kr_v_load(slope + c);
    for (int64_t p = 0; p < n; p++) {
      kr_v v = kr_v_fma(kr_v_set1(a[p]), va, kr_v_fma(kr_v_set1(b[p]), vb, vs));
      kr_v_store(out + p * ldo + c, prelu(v, negative));
    }
  }
}

static void dot_rows(const float *x, int64_t ldx, int64_t n, int64_t K, const float *w, float bias, float *out,
                     int64_t ldo) {
  for (int64_t p = 0; p < n; p++, x += ldx) {
    kr_v sum = kr_v_zero();
    for (int64_t k = 0; k < K; k += KR_VL) sum = kr_v_fma(kr_v_load(x + k), kr_v_load(w + k), sum);
    out[p * ldo] = kr_v_sum(sum) + bias;
  }
}

static void scale_add(const float *x, int64_t ldx, const float *y, int64_t ldy, int64_t n, int64_t Cp,
                      const float *scale, float *out, int64_t ldo) {
  for (int64_t p = 0; p < n; p++)
    for (int64_t c = 0; c < Cp; c += KR_VL)
      kr_v_store(out + p * ldo + c,
                 kr_v_fma(kr_v_load(y + p * ldy + c), kr_v_load(scale + c), kr_v_load(x + p * ldx + c)));
}

/* 2 sigmoid(2x) - 1: its error is absolute, which is what a gate needs. */
INLINE kr_v tanh_gate(kr_v x) {
  kr_v two = kr_v_set1(2.0f);
  return kr_v_sub(kr_v_mul(two, kr_v_sigmoid(kr_v_mul(two, x))), kr_v_set1(1.0f));
}

static void gru_step(const float *gx, const float *gh, int64_t n, int64_t Hp, float *h, float *out) {
  for (int64_t s = 0; s < n; s++, gx += 3 * Hp, gh += 3 * Hp, h += Hp, out += Hp)
    for (int64_t j = 0; j < Hp; j += KR_VL) {
      kr_v r = kr_v_sigmoid(kr_v_add(kr_v_load(gx + j), kr_v_load(gh + j)));
      kr_v z = kr_v_sigmoid(kr_v_add(kr_v_load(gx + Hp + j), kr_v_load(gh + Hp + j)));
      kr_v candidate = tanh_gate(kr_v_fma(r, kr_v_load(gh + 2 * Hp + j), kr_v_load(gx + 2 * Hp + j)));
      kr_v next = kr_v_fma(z, kr_v_sub(kr_v_load(h + j), candidate), candidate);
      kr_v_store(h + j, next);
      kr_v_store(out + j, next);
    }
}

static void lstm_step(const float *gates, int64_t n, int64_t Hp, float *c, float *h, float *out) {
  for (int64_t s = 0; s < n; s++, gates += 4 * Hp, c += Hp, h += Hp, out += Hp)
    for (int64_t j = 0; j < Hp; j += KR_VL) {
      kr_v input = kr_v_sigmoid(kr_v_load(gates + j)), forget = kr_v_sigmoid(kr_v_load(gates + Hp + j));
      kr_v cell = kr_v_fma(forget, kr_v_load(c + j), kr_v_mul(input, tanh_gate(kr_v_load(gates + 2 * Hp + j))));
      kr_v next = kr_v_mul(kr_v_sigmoid(kr_v_load(gates + 3 * Hp + j)), tanh_gate(cell));
      kr_v_store(c + j, cell);
      kr_v_store(h + j, next);
      kr_v_store(out + j, next);
    }
}

#define KR_STRING2(x) #x
#define KR_STRING(x) KR_STRING2(x)

extern const kr_layers KR_FN(kr_layers);
const kr_layers KR_FN(kr_layers) = {
    .isa = KR_STRING(KR_ISA_NAME),
    .vl = KR_VL,
    .mr = KR_VL == 16 ? 12 : KR_VL == 8 ? 6 : 4,
    .panels_floats = KR_FN(kr_panels_floats),
    .panels_pack = KR_FN(kr_panels_pack),
    .gemm_rows = KR_FN(kr_gemm_rows),
    .panels_scale = panels_scale,
    .norm_rows = norm_rows,
    .depthwise_pair = depthwise_pair,
    .depthwise_gate = depthwise_gate,
    .depthwise_3x3 = depthwise_3x3,
    .column_sums = column_sums,
    .moments = moments,
    .affine_prelu = affine_prelu,
    .lift_pair = lift_pair,
    .dot_rows = dot_rows,
    .scale_add = scale_add,
    .gru_step = gru_step,
    .lstm_step = lstm_step,
};
