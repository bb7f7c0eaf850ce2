/* vec_neon.h: the vocabulary of vec.h on 128-bit AArch64 registers. */
#ifndef KR_VEC_NEON_H
#define KR_VEC_NEON_H
#if !defined(__aarch64__)
#error "needs AArch64"
#endif

#include <arm_neon.h>
#include <string.h>

#include "half.h"

#define KR_VL 4
typedef float32x4_t kr_v;
typedef int32x4_t kr_vi;
typedef uint32x4_t kr_vm;

static inline kr_v kr_v_load(const float *p) { return vld1q_f32(p); }
static inline void kr_v_store(float *p, kr_v v) { vst1q_f32(p, v); }
static inline kr_v kr_v_loadn(const float *p, int n) {
  float lane[KR_VL] = {0};
  memcpy(lane, p, (size_t)n * sizeof *p);
  return vld1q_f32(lane);
}
static inline kr_v kr_v_load_from(const float *p, int n) {
  float lane[KR_VL] = {0};
  for (int k = n; k < KR_VL; k++) lane[k] = p[k];
  return vld1q_f32(lane);
}
static inline void kr_v_storen(float *p, kr_v v, int n) {
  float lane[KR_VL];
  vst1q_f32(lane, v);
  memcpy(p, lane, (size_t)n * sizeof *p);
}

static inline uint16x4_t kr_load_u16n(const uint16_t *p, int n) {
  uint16_t lane[KR_VL] = {0};
  memcpy(lane, p, (size_t)n * sizeof *p);
  return vld1_u16(lane);
}
static inline void kr_store_u16n(uint16_t *p, uint16x4_t v, int n) {
  uint16_t lane[KR_VL];
  vst1_u16(lane, v);
  memcpy(p, lane, (size_t)n * sizeof *p);
}

static inline kr_v kr_from_h(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
static inline uint16x4_t kr_to_h(kr_v v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
static inline kr_v kr_v_load_h(const uint16_t *p) { return kr_from_h(vld1_u16(p)); }
static inline void kr_v_store_h(uint16_t *p, kr_v v) { vst1_u16(p, kr_to_h(v)); }
static inline kr_v kr_v_loadn_h(const uint16_t *p, int n) { return kr_from_h(kr_load_u16n(p, n)); }
static inline void kr_v_storen_h(uint16_t *p, kr_v v, int n) { kr_store_u16n(p, kr_to_h(v), n); }

static inline kr_v kr_from_b(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }
static inline uint16x4_t kr_to_b(kr_v v) {
  uint32x4_t bits = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
}
static inline kr_v kr_v_load_b(const uint16_t *p) { return kr_from_b(vld1_u16(p)); }
static inline void kr_v_store_b(uint16_t *p, kr_v v) { vst1_u16(p, kr_to_b(v)); }
static inline kr_v kr_v_loadn_b(const uint16_t *p, int n) { return kr_from_b(kr_load_u16n(p, n)); }
static inline void kr_v_storen_b(uint16_t *p, kr_v v, int n) { kr_store_u16n(p, kr_to_b(v), n); }

static inline kr_v kr_v_load_i8(const int8_t *p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}

typedef struct kr_levels {
  float32x4_t scale, base;
} kr_levels;
static inline kr_levels kr_levels_of(float scale, float base) {
  return (kr_levels){vdupq_n_f32(scale), vdupq_n_f32(base)};
}
static inline void kr_v_load_levels(const uint8_t *p, kr_levels low, kr_levels high, kr_v *l, kr_v *h) {
  uint32_t four;
  memcpy(&four, p, sizeof four);
  const uint32x4_t bytes = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
  *l = vfmaq_f32(low.base, vcvtq_f32_u32(vandq_u32(bytes, vdupq_n_u32(15))), low.scale);
  *h = vfmaq_f32(high.base, vcvtq_f32_u32(vshrq_n_u32(bytes, 4)), high.scale);
}

static inline kr_v kr_v_set1(float x) { return vdupq_n_f32(x); }
static inline kr_v kr_v_zero(void) { return vdupq_n_f32(0); }
static inline kr_v kr_v_add(kr_v a, kr_v b) { return vaddq_f32(a, b); }
static inline kr_v kr_v_sub(kr_v a, kr_v b) { return vsubq_f32(a, b); }
static inline kr_v kr_v_mul(kr_v a, kr_v b) { return vmulq_f32(a, b); }
static inline kr_v kr_v_div(kr_v a, kr_v b) { return vdivq_f32(a, b); }
static inline kr_v kr_v_min(kr_v a, kr_v b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline kr_v kr_v_max(kr_v a, kr_v b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline kr_v kr_v_sqrt(kr_v a) { return vsqrtq_f32(a); }
static inline kr_v kr_v_neg(kr_v a) { return vnegq_f32(a); }
static inline kr_v kr_v_abs(kr_v a) { return vabsq_f32(a); }
static inline kr_v kr_v_fma(kr_v a, kr_v b, kr_v c) { return vfmaq_f32(c, a, b); }
static inline kr_v kr_v_fnma(kr_v a, kr_v b, kr_v c) { return vfmsq_f32(c, a, b); }
static inline kr_v kr_v_lost(kr_v a, kr_v b) { return kr_v_fma(a, b, kr_v_neg(kr_v_mul(a, b))); }
static inline float kr_v_sum(kr_v v) { return vaddvq_f32(v); }
static inline float kr_v_largest(kr_v v) { return vmaxvq_f32(v); }

static inline kr_vm kr_v_gt(kr_v a, kr_v b) { return vcgtq_f32(a, b); }
static inline kr_vm kr_v_lt(kr_v a, kr_v b) { return vcltq_f32(a, b); }
static inline kr_vm kr_v_isnan(kr_v a) { return vmvnq_u32(vceqq_f32(a, a)); }
static inline kr_v kr_v_select(kr_vm m, kr_v a, kr_v b) { return vbslq_f32(m, a, b); }

static inline kr_vi kr_v_round_i(kr_v v) { return vcvtnq_s32_f32(v); }
static inline kr_v kr_vi_to_v(kr_vi i) { return vcvtq_f32_s32(i); }
static inline kr_v kr_v_scale2(kr_v v, kr_vi i) {
  return vmulq_f32(v, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(i, vdupq_n_s32(127)), 23)));
}

/* v 2^n for t = n + KR_ROUND_MAGIC, by adding n to the exponent bits: v, v 2^n and n must be in normal range, or v 0.
 * */
static inline kr_v kr_v_add_exponent(kr_v v, kr_v t) {
  return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(v), vshlq_n_u32(vreinterpretq_u32_f32(t), 23)));
}
static inline kr_v kr_v_split(kr_v v, kr_v *exponent) {
  int32x4_t bits = vreinterpretq_s32_f32(v), n = vshrq_n_s32(vsubq_s32(bits, vdupq_n_s32(0x3f3504f3)), 23);
  *exponent = vcvtq_f32_s32(n);
  return vreinterpretq_f32_s32(vsubq_s32(bits, vshlq_n_s32(n, 23)));
}

static inline void kr_v_transpose(kr_v r[KR_VL]) {
  float32x4x2_t low = vtrnq_f32(r[0], r[1]), high = vtrnq_f32(r[2], r[3]);
  r[0] = vcombine_f32(vget_low_f32(low.val[0]), vget_low_f32(high.val[0]));
  r[1] = vcombine_f32(vget_low_f32(low.val[1]), vget_low_f32(high.val[1]));
  r[2] = vcombine_f32(vget_high_f32(low.val[0]), vget_high_f32(high.val[0]));
  r[3] = vcombine_f32(vget_high_f32(low.val[1]), vget_high_f32(high.val[1]));
}

static inline kr_v kr_v_sum_each(const kr_v r[KR_VL]) {
  kr_v t[KR_VL] = {r[0], r[1], r[2], r[3]};
  kr_v_transpose(t);
  return kr_v_add(kr_v_add(t[0], t[2]), kr_v_add(t[1], t[3]));
}

static inline void kr_v_load_apart(kr_v *v, const float *p, int n) {
  for (int i = 0; i < n; i++) {
    const float lane[KR_VL] = {p[i], p[n + i], p[2 * n + i], p[3 * n + i]};
    v[i] = vld1q_f32(lane);
  }
}
static inline void kr_v_store_apart(float *p, const kr_v *v, int n) {
  float lane[KR_VL];
  for (int i = 0; i < n; i++) {
    vst1q_f32(lane, v[i]);
    for (int k = 0; k < KR_VL; k++) p[k * n + i] = lane[k];
  }
}

#endif
