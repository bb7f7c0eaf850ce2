/* vec_scalar.h: the vocabulary of vec.h in plain C, four lanes in a struct; the compiler may use the baseline's vector
 * instructions. */
#ifndef KR_VEC_SCALAR_H
#define KR_VEC_SCALAR_H

#include <math.h>
#include <string.h>

#include "half.h"

#define KR_VL 4
typedef struct kr_v { float f[KR_VL]; } kr_v;
typedef struct kr_vi { int32_t i[KR_VL]; } kr_vi;
typedef struct kr_vm { int32_t m[KR_VL]; } kr_vm;

#define KR_EACH for (int k = 0; k < KR_VL; k++)

static inline kr_v kr_v_zero(void) { return (kr_v){{0}}; }
static inline kr_v kr_v_loadn(const float *p, int n) {
  kr_v v = {{0}};
  for (int k = 0; k < n; k++) v.f[k] = p[k];
  return v;
}
static inline kr_v kr_v_load_from(const float *p, int n) {
  kr_v v;
  KR_EACH v.f[k] = k < n ? 0 : p[k];
  return v;
}
static inline void kr_v_storen(float *p, kr_v v, int n) {
  for (int k = 0; k < n; k++) p[k] = v.f[k];
}
static inline kr_v kr_v_load(const float *p) { kr_v v; memcpy(&v, p, sizeof v); return v; }
static inline void kr_v_store(float *p, kr_v v) { memcpy(p, &v, sizeof v); }

static inline kr_v kr_v_loadn_h(const uint16_t *p, int n) {
  kr_v v = {{0}};
  for (int k = 0; k < n; k++) v.f[k] = kr_f16_to_float(p[k]);
  return v;
}
static inline void kr_v_storen_h(uint16_t *p, kr_v v, int n) {
  for (int k = 0; k < n; k++) p[k] = kr_float_to_f16(v.f[k]);
}
static inline kr_v kr_v_load_h(const uint16_t *p) { return kr_v_loadn_h(p, KR_VL); }
static inline void kr_v_store_h(uint16_t *p, kr_v v) { kr_v_storen_h(p, v, KR_VL); }
static inline kr_v kr_v_loadn_b(const uint16_t *p, int n) {
  kr_v v = {{0}};
  for (int k = 0; k < n; k++) v.f[k] = kr_bf16_to_float(p[k]);
  return v;
}
static inline void kr_v_storen_b(uint16_t *p, kr_v v, int n) {
  for (int k = 0; k < n; k++) p[k] = kr_float_to_bf16(v.f[k]);
}
static inline kr_v kr_v_load_b(const uint16_t *p) { return kr_v_loadn_b(p, KR_VL); }
static inline void kr_v_store_b(uint16_t *p, kr_v v) { kr_v_storen_b(p, v, KR_VL); }

static inline kr_v kr_v_load_i8(const int8_t *p) {
  kr_v v;
  KR_EACH v.f[k] = (float)p[k];
  return v;
}

typedef struct kr_levels {
  float scale, base;
} kr_levels;
static inline kr_levels kr_levels_of(float scale, float base) { return (kr_levels){scale, base}; }
static inline void kr_v_load_levels(const uint8_t *p, kr_levels low, kr_levels high, kr_v *l, kr_v *h) {
  KR_EACH {
    l->f[k] = (float)(p[k] & 15) * low.scale + low.base;
    h->f[k] = (float)(p[k] >> 4) * high.scale + high.base;
  }
}

static inline kr_v kr_v_set1(float x) { kr_v v; KR_EACH v.f[k] = x; return v; }
static inline kr_v kr_v_add(kr_v a, kr_v b) { KR_EACH a.f[k] += b.f[k]; return a; }
static inline kr_v kr_v_sub(kr_v a, kr_v b) { KR_EACH a.f[k] -= b.f[k]; return a; }
static inline kr_v kr_v_mul(kr_v a, kr_v b) { KR_EACH a.f[k] *= b.f[k]; return a; }
static inline kr_v kr_v_div(kr_v a, kr_v b) { KR_EACH a.f[k] /= b.f[k]; return a; }
static inline kr_v kr_v_min(kr_v a, kr_v b) { KR_EACH a.f[k] = a.f[k] < b.f[k] ? a.f[k] : b.f[k]; return a; }
static inline kr_v kr_v_max(kr_v a, kr_v b) { KR_EACH a.f[k] = a.f[k] > b.f[k] ? a.f[k] : b.f[k]; return a; }
static inline kr_v kr_v_sqrt(kr_v a) { KR_EACH a.f[k] = sqrtf(a.f[k]); return a; }
static inline kr_v kr_v_neg(kr_v a) { KR_EACH a.f[k] = -a.f[k]; return a; }
static inline kr_v kr_v_abs(kr_v a) { KR_EACH a.f[k] = fabsf(a.f[k]); return a; }
/* Two roundings: a fused one would be a library call per lane on the baseline. */
static inline kr_v kr_v_fma(kr_v a, kr_v b, kr_v c) { KR_EACH c.f[k] = a.f[k] * b.f[k] + c.f[k]; return c; }
static inline kr_v kr_v_fnma(kr_v a, kr_v b, kr_v c) { KR_EACH c.f[k] = c.f[k] - a.f[k] * b.f[k]; return c; }
static inline kr_v kr_v_lost(kr_v a, kr_v b) {
  KR_EACH a.f[k] = (float)((double)a.f[k] * (double)b.f[k] - (double)(a.f[k] * b.f[k]));
  return a;
}
static inline float kr_v_sum(kr_v v) { return (v.f[0] + v.f[2]) + (v.f[1] + v.f[3]); }
static inline float kr_v_largest(kr_v v) {
  float largest = v.f[0];
  KR_EACH largest = v.f[k] > largest ? v.f[k] : largest;
  return largest;
}

static inline kr_vm kr_v_gt(kr_v a, kr_v b) { kr_vm m; KR_EACH m.m[k] = a.f[k] > b.f[k]; return m; }
static inline kr_vm kr_v_lt(kr_v a, kr_v b) { kr_vm m; KR_EACH m.m[k] = a.f[k] < b.f[k]; return m; }
static inline kr_vm kr_v_isnan(kr_v a) { kr_vm m; KR_EACH m.m[k] = a.f[k] != a.f[k]; return m; }
static inline kr_v kr_v_select(kr_vm m, kr_v a, kr_v b) { KR_EACH a.f[k] = m.m[k] ? a.f[k] : b.f[k]; return a; }

/* Adding 1.5 2^23 rounds to nearest even for |v| < 2^22, enough for all callers. */
static inline kr_vi kr_v_round_i(kr_v v) {
  kr_vi i;
  KR_EACH i.i[k] = (int32_t)(kr_float_bits(v.f[k] + 12582912.0f) - 0x4b400000u);
  return i;
}
static inline kr_v kr_vi_to_v(kr_vi i) { kr_v v; KR_EACH v.f[k] = (float)i.i[k]; return v; }
static inline kr_v kr_v_scale2(kr_v v, kr_vi i) {
  KR_EACH v.f[k] *= kr_bits_float((uint32_t)(i.i[k] + 127) << 23);
  return v;
}

/* v 2^n for t = n + KR_ROUND_MAGIC, by adding n to the exponent bits: v, v 2^n and n must be in normal range, or v 0.
 * */
static inline kr_v kr_v_add_exponent(kr_v v, kr_v t) {
  KR_EACH v.f[k] = kr_bits_float(kr_float_bits(v.f[k]) + (kr_float_bits(t.f[k]) << 23));
  return v;
}
static inline kr_v kr_v_split(kr_v v, kr_v *exponent) {
  KR_EACH {
    uint32_t bits = kr_float_bits(v.f[k]), shifted = bits - 0x3f3504f3u;
    int32_t n = (int32_t)(shifted >> 23) - (int32_t)(shifted >> 31 << 9); /* arithmetic shift */
    exponent->f[k] = (float)n;
    v.f[k] = kr_bits_float(bits - ((uint32_t)n << 23));
  }
  return v;
}

static inline void kr_v_transpose(kr_v r[KR_VL]) {
  for (int i = 0; i < KR_VL; i++)
    for (int j = i + 1; j < KR_VL; j++) {
      float swap = r[i].f[j];
      r[i].f[j] = r[j].f[i];
      r[j].f[i] = swap;
    }
}

static inline kr_v kr_v_sum_each(const kr_v r[KR_VL]) {
  kr_v t[KR_VL] = {r[0], r[1], r[2], r[3]};
  kr_v_transpose(t);
  return kr_v_add(kr_v_add(t[0], t[2]), kr_v_add(t[1], t[3]));
}

static inline void kr_v_load_apart(kr_v *v, const float *p, int n) {
  for (int i = 0; i < n; i++) KR_EACH v[i].f[k] = p[k * n + i];
}
static inline void kr_v_store_apart(float *p, const kr_v *v, int n) {
  for (int i = 0; i < n; i++) KR_EACH p[k * n + i] = v[i].f[k];
}

#endif
