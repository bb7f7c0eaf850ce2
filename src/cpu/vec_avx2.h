/* vec_avx2.h: the vocabulary of vec.h on 256-bit registers with FMA and F16C. */
#ifndef KR_VEC_AVX2_H
#define KR_VEC_AVX2_H
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "needs AVX2, FMA and F16C"
#endif

#include <immintrin.h>
#include <string.h>

#include "half.h"

#define KR_VL 8
typedef __m256 kr_v;
typedef __m256i kr_vi;
typedef __m256 kr_vm;

static inline __m256i kr_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

static inline kr_v kr_v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void kr_v_store(float *p, kr_v v) { _mm256_storeu_ps(p, v); }
static inline kr_v kr_v_loadn(const float *p, int n) { return _mm256_maskload_ps(p, kr_lanes(n)); }
static inline kr_v kr_v_load_from(const float *p, int n) {
  return _mm256_maskload_ps(p, _mm256_xor_si256(kr_lanes(n), _mm256_set1_epi32(-1)));
}
static inline void kr_v_storen(float *p, kr_v v, int n) { _mm256_maskstore_ps(p, kr_lanes(n), v); }

/* 16-bit types have no masked loads and stores: partial vectors go through a small buffer. */
static inline __m128i kr_load_u16n(const uint16_t *p, int n) {
  uint16_t buffer[8] = {0};
  memcpy(buffer, p, (size_t)n * 2);
  return _mm_loadu_si128((const void *)buffer);
}
static inline void kr_store_u16n(uint16_t *p, __m128i v, int n) {
  uint16_t buffer[8];
  _mm_storeu_si128((void *)buffer, v);
  memcpy(p, buffer, (size_t)n * 2);
}

static inline __m128i kr_to_h(kr_v v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline kr_v kr_v_load_h(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }
static inline void kr_v_store_h(uint16_t *p, kr_v v) { _mm_storeu_si128((void *)p, kr_to_h(v)); }
static inline kr_v kr_v_loadn_h(const uint16_t *p, int n) { return _mm256_cvtph_ps(kr_load_u16n(p, n)); }
static inline void kr_v_storen_h(uint16_t *p, kr_v v, int n) { kr_store_u16n(p, kr_to_h(v), n); }

static inline __m128i kr_to_b(kr_v v) {
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  __m256i words = _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0xd8);
  return _mm256_castsi256_si128(packed);
}
static inline kr_v kr_from_b(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
static inline kr_v kr_v_load_b(const uint16_t *p) { return kr_from_b(_mm_loadu_si128((const void *)p)); }
static inline void kr_v_store_b(uint16_t *p, kr_v v) { _mm_storeu_si128((void *)p, kr_to_b(v)); }
static inline kr_v kr_v_loadn_b(const uint16_t *p, int n) { return kr_from_b(kr_load_u16n(p, n)); }
static inline void kr_v_storen_b(uint16_t *p, kr_v v, int n) { kr_store_u16n(p, kr_to_b(v), n); }

static inline kr_v kr_v_load_i8(const int8_t *p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}

typedef struct kr_levels {
  __m256 scale, base;
} kr_levels;
static inline kr_levels kr_levels_of(float scale, float base) {
  return (kr_levels){_mm256_set1_ps(scale), _mm256_set1_ps(base)};
}
static inline void kr_v_load_levels(const uint8_t *p, kr_levels low, kr_levels high, kr_v *l, kr_v *h) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
  *l = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15))), low.scale, low.base);
  *h = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4)), high.scale, high.base);
}

static inline kr_v kr_v_set1(float x) { return _mm256_set1_ps(x); }
static inline kr_v kr_v_zero(void) { return _mm256_setzero_ps(); }
static inline kr_v kr_v_add(kr_v a, kr_v b) { return _mm256_add_ps(a, b); }
static inline kr_v kr_v_sub(kr_v a, kr_v b) { return _mm256_sub_ps(a, b); }
static inline kr_v kr_v_mul(kr_v a, kr_v b) { return _mm256_mul_ps(a, b); }
static inline kr_v kr_v_div(kr_v a, kr_v b) { return _mm256_div_ps(a, b); }
static inline kr_v kr_v_min(kr_v a, kr_v b) { return _mm256_min_ps(a, b); }
static inline kr_v kr_v_max(kr_v a, kr_v b) { return _mm256_max_ps(a, b); }
static inline kr_v kr_v_sqrt(kr_v a) { return _mm256_sqrt_ps(a); }
static inline kr_v kr_v_neg(kr_v a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
static inline kr_v kr_v_abs(kr_v a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline kr_v kr_v_fma(kr_v a, kr_v b, kr_v c) { return _mm256_fmadd_ps(a, b, c); }
static inline kr_v kr_v_fnma(kr_v a, kr_v b, kr_v c) { return _mm256_fnmadd_ps(a, b, c); }
static inline kr_v kr_v_lost(kr_v a, kr_v b) { return kr_v_fma(a, b, kr_v_neg(kr_v_mul(a, b))); }
static inline float kr_v_sum(kr_v v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
static inline float kr_v_largest(kr_v v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

static inline kr_vm kr_v_gt(kr_v a, kr_v b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
static inline kr_vm kr_v_lt(kr_v a, kr_v b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline kr_vm kr_v_isnan(kr_v a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
static inline kr_v kr_v_select(kr_vm m, kr_v a, kr_v b) { return _mm256_blendv_ps(b, a, m); }

static inline kr_vi kr_v_round_i(kr_v v) { return _mm256_cvtps_epi32(v); }
static inline kr_v kr_vi_to_v(kr_vi i) { return _mm256_cvtepi32_ps(i); }
static inline kr_v kr_v_scale2(kr_v v, kr_vi i) {
  return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(i, _mm256_set1_epi32(127)), 23)));
}

/* v 2^n for t = n + KR_ROUND_MAGIC, by adding n to the exponent bits: v, v 2^n and n must be in normal range, or v 0.
 * */
static inline kr_v kr_v_add_exponent(kr_v v, kr_v t) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
static inline kr_v kr_v_split(kr_v v, kr_v *exponent) {
  __m256i bits = _mm256_castps_si256(v), shifted = _mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3));
  __m256i n = _mm256_srai_epi32(shifted, 23);
  *exponent = _mm256_cvtepi32_ps(n);
  return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(n, 23)));
}

static inline void kr_v_transpose(kr_v r[KR_VL]) {
  kr_v a[KR_VL], b[KR_VL];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
    }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

/* A transpose whose halves are added as they meet. */
static inline kr_v kr_v_sum_each(const kr_v r[KR_VL]) {
  kr_v a[4], b[2];
  for (int i = 0; i < 4; i++)
    a[i] = _mm256_add_ps(_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]));
  for (int i = 0; i < 2; i++)
    b[i] =
        _mm256_add_ps(_mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44), _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
  return _mm256_add_ps(_mm256_permute2f128_ps(b[0], b[1], 0x20), _mm256_permute2f128_ps(b[0], b[1], 0x31));
}

static inline void kr_v_load_apart(kr_v *v, const float *p, int n) {
  for (int i = 0; i < n; i++, p++)
    v[i] = _mm256_set_ps(p[7 * n], p[6 * n], p[5 * n], p[4 * n], p[3 * n], p[2 * n], p[n], p[0]);
}
static inline void kr_v_store_apart(float *p, const kr_v *v, int n) {
  float lane[KR_VL];
  for (int i = 0; i < n; i++) {
    kr_v_store(lane, v[i]);
    for (int k = 0; k < KR_VL; k++) p[k * n + i] = lane[k];
  }
}

#endif
