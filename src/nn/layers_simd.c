/* layers_simd.c: the layers of layers.h in the vocabulary of vec.h. Channels lie across lanes, so nothing but the
 * dot product ever adds lanes together. */
#include "layers.h"

#include "vec_math.h"

#define INLINE static inline __attribute__((always_inline))

/* The forms with a gate are devices' alone. */
static int64_t panels_floats(int64_t K, int64_t N, int gate) {
  (void)gate;
  return KR_FN(kr_panels_floats)(K, N);
}
static void panels_pack(kr_panels *p, float *storage, int64_t K, int64_t N, int gate, const float *B, int64_t stride_k,
                        int64_t stride_n, const float *bias) {
  (void)gate;
  KR_FN(kr_panels_pack)(p, storage, K, N, B, stride_k, stride_n, bias);
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

#define KR_STRING2(x) #x
#define KR_STRING(x) KR_STRING2(x)

extern const kr_layers KR_FN(kr_layers);
const kr_layers KR_FN(kr_layers) = {
    .isa = KR_STRING(KR_ISA_NAME),
    .vl = KR_VL,
    .panels_floats = panels_floats,
    .panels_pack = panels_pack,
    .gemm_rows = KR_FN(kr_gemm_rows),
    .depthwise_3x3 = depthwise_3x3,
    .moments = moments,
    .affine_prelu = affine_prelu,
    .lift_pair = lift_pair,
    .dot_rows = dot_rows,
};
