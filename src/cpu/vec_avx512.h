/* vec_avx512.h: the vocabulary of vec.h on 512-bit registers. */
#ifndef KR_VEC_AVX512_H
#define KR_VEC_AVX512_H
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "needs AVX-512 F, BW, DQ, VL"
#endif

#include <immintrin.h>
#include <string.h>

#include "half.h"

#define KR_VL 16
typedef __m512 kr_v;
typedef __m512i kr_vi;
typedef __mmask16 kr_vm;

static inline kr_vm kr_lanes(int n) { return (kr_vm)((1u << n) - 1); }

static inline kr_v kr_v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void kr_v_store(float *p, kr_v v) { _mm512_storeu_ps(p, v); }
static inline kr_v kr_v_loadn(const float *p, int n) { return _mm512_maskz_loadu_ps(kr_lanes(n), p); }
static inline kr_v kr_v_load_from(const float *p, int n) { return _mm512_maskz_loadu_ps((kr_vm)~kr_lanes(n), p); }
static inline void kr_v_storen(float *p, kr_v v, int n) { _mm512_mask_storeu_ps(p, kr_lanes(n), v); }

static inline kr_v kr_v_load_h(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
static inline void kr_v_store_h(uint16_t *p, kr_v v) {
  _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline kr_v kr_v_loadn_h(const uint16_t *p, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(kr_lanes(n), p));
}
static inline void kr_v_storen_h(uint16_t *p, kr_v v, int n) {
  _mm256_mask_storeu_epi16(p, kr_lanes(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline __m256i kr_to_b(kr_v v) {
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  __m512i nan = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, nan));
}
static inline kr_v kr_from_b(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
static inline kr_v kr_v_load_b(const uint16_t *p) { return kr_from_b(_mm256_loadu_si256((const void *)p)); }
static inline void kr_v_store_b(uint16_t *p, kr_v v) { _mm256_storeu_si256((void *)p, kr_to_b(v)); }
static inline kr_v kr_v_loadn_b(const uint16_t *p, int n) {
  return kr_from_b(_mm256_maskz_loadu_epi16(kr_lanes(n), p));
}
static inline void kr_v_storen_b(uint16_t *p, kr_v v, int n) { _mm256_mask_storeu_epi16(p, kr_lanes(n), kr_to_b(v)); }

static inline kr_v kr_v_load_i8(const int8_t *p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

typedef __m512 kr_levels; /* by table lookup */
static inline kr_levels kr_levels_of(float scale, float base) {
  return _mm512_fmadd_ps(_mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_ps(scale),
                         _mm512_set1_ps(base));
}
static inline void kr_v_load_levels(const uint8_t *p, kr_levels low, kr_levels high, kr_v *l, kr_v *h) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
  *l = _mm512_permutexvar_ps(bytes, low);
  *h = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), high);
}

static inline kr_v kr_v_set1(float x) { return _mm512_set1_ps(x); }
static inline kr_v kr_v_zero(void) { return _mm512_setzero_ps(); }
static inline kr_v kr_v_add(kr_v a, kr_v b) { return _mm512_add_ps(a, b); }
static inline kr_v kr_v_sub(kr_v a, kr_v b) { return _mm512_sub_ps(a, b); }
static inline kr_v kr_v_mul(kr_v a, kr_v b) { return _mm512_mul_ps(a, b); }
static inline kr_v kr_v_div(kr_v a, kr_v b) { return _mm512_div_ps(a, b); }
static inline kr_v kr_v_min(kr_v a, kr_v b) { return _mm512_min_ps(a, b); }
static inline kr_v kr_v_max(kr_v a, kr_v b) { return _mm512_max_ps(a, b); }
static inline kr_v kr_v_sqrt(kr_v a) { return _mm512_sqrt_ps(a); }
static inline kr_v kr_v_neg(kr_v a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
static inline kr_v kr_v_abs(kr_v a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
static inline kr_v kr_v_fma(kr_v a, kr_v b, kr_v c) { return _mm512_fmadd_ps(a, b, c); }
static inline kr_v kr_v_fnma(kr_v a, kr_v b, kr_v c) { return _mm512_fnmadd_ps(a, b, c); }
static inline kr_v kr_v_lost(kr_v a, kr_v b) { return kr_v_fma(a, b, kr_v_neg(kr_v_mul(a, b))); }
static inline float kr_v_sum(kr_v v) { return _mm512_reduce_add_ps(v); }
static inline float kr_v_largest(kr_v v) { return _mm512_reduce_max_ps(v); }

static inline kr_vm kr_v_gt(kr_v a, kr_v b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
static inline kr_vm kr_v_lt(kr_v a, kr_v b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline kr_vm kr_v_isnan(kr_v a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static inline kr_v kr_v_select(kr_vm m, kr_v a, kr_v b) { return _mm512_mask_blend_ps(m, b, a); }

static inline kr_vi kr_v_round_i(kr_v v) { return _mm512_cvtps_epi32(v); }
static inline kr_v kr_vi_to_v(kr_vi i) { return _mm512_cvtepi32_ps(i); }
static inline kr_v kr_v_scale2(kr_v v, kr_vi i) { return _mm512_scalef_ps(v, _mm512_cvtepi32_ps(i)); }

/* v 2^n for t = n + KR_ROUND_MAGIC, by adding n to the exponent bits: v, v 2^n and n must be in normal range, or v 0.
 * */
static inline kr_v kr_v_add_exponent(kr_v v, kr_v t) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}
static inline kr_v kr_v_split(kr_v v, kr_v *exponent) {
  __m512i bits = _mm512_castps_si512(v), shifted = _mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3));
  __m512i n = _mm512_srai_epi32(shifted, 23);
  *exponent = _mm512_cvtepi32_ps(n);
  return _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(n, 23)));
}

static inline void kr_v_transpose(kr_v r[KR_VL]) {
  kr_v a[KR_VL], b[KR_VL];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) { /* b[4k+c]: column c of each 4x4 block of rows 4k..4k+3 */
      b[i + 2 * j] = _mm512_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm512_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
    }
  for (int c = 0; c < 4; c++) {
    a[c] = _mm512_shuffle_f32x4(b[c], b[c + 4], 0x88);
    a[c + 4] = _mm512_shuffle_f32x4(b[c], b[c + 4], 0xdd);
    a[c + 8] = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0x88);
    a[c + 12] = _mm512_shuffle_f32x4(b[c + 8], b[c + 12], 0xdd);
  }
  for (int c = 0; c < 4; c++) {
    r[c] = _mm512_shuffle_f32x4(a[c], a[c + 8], 0x88);
    r[c + 8] = _mm512_shuffle_f32x4(a[c], a[c + 8], 0xdd);
    r[c + 4] = _mm512_shuffle_f32x4(a[c + 4], a[c + 12], 0x88);
    r[c + 12] = _mm512_shuffle_f32x4(a[c + 4], a[c + 12], 0xdd);
  }
}

/* A transpose whose halves are added as they meet. */
static inline kr_v kr_v_sum_each(const kr_v r[KR_VL]) {
  kr_v a[8], b[4], c[2];
  for (int i = 0; i < 8; i++)
    a[i] = _mm512_add_ps(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
  for (int i = 0; i < 4; i++)
    b[i] =
        _mm512_add_ps(_mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44), _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
  for (int i = 0; i < 2; i++)
    c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x44),
                         _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
}

/* Each result is selected from two vectors at a time. */
static inline void kr_v_load_apart(kr_v *v, const float *p, int n) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  kr_v whole[4];
  for (int i = 0; i < n; i++) whole[i] = kr_v_load(p + i * KR_VL);
  for (int i = 0; i < n; i++) {
    const __m512i at = _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(n)), _mm512_set1_epi32(i));
    v[i] = _mm512_permutex2var_ps(whole[0], at, whole[1]);
    if (n > 2)
      v[i] = _mm512_mask_blend_ps(_mm512_cmpgt_epi32_mask(at, _mm512_set1_epi32(31)), v[i],
                                  _mm512_permutex2var_ps(whole[2], at, whole[n - 1]));
  }
}
static inline void kr_v_store_apart(float *p, const kr_v *v, int n) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int i = 0; i < n; i++) {
    const __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32(i * KR_VL)),
                  of = _mm512_srli_epi32(_mm512_mullo_epi32(at, _mm512_set1_epi32((127 + n) / n)), 7), /* at / n */
        from = _mm512_sub_epi32(at, _mm512_mullo_epi32(of, _mm512_set1_epi32(n))),
                  pair = _mm512_or_si512(of, _mm512_slli_epi32(from, 4)); /* bit 4: the second of two */
    kr_v whole = _mm512_permutex2var_ps(v[0], pair, v[1]);
    if (n > 2)
      whole = _mm512_mask_blend_ps(_mm512_cmpgt_epi32_mask(from, _mm512_set1_epi32(1)), whole,
                                   _mm512_permutex2var_ps(v[2], pair, v[n - 1]));
    kr_v_store(p + i * KR_VL, whole);
  }
}

#endif
