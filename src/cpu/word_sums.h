/* word_sums.h: sums of products of 16-bit integers, a pair of terms a lane (AVX-512 VNNI), for the _simd.c files that
 * src/meson.build compiles with it. */
#ifndef KR_WORD_SUMS_H
#define KR_WORD_SUMS_H

#include "vec.h"

#ifndef __AVX512VNNI__
#error "needs AVX-512 VNNI"
#endif

static inline kr_vi kr_words_zero(void) { return _mm512_setzero_si512(); }
static inline kr_vi kr_words_load(const int16_t *p) { return _mm512_loadu_si512(p); }
/* A pair in every lane. */
static inline kr_vi kr_words_pair(const int16_t *p) {
  int32_t both;
  memcpy(&both, p, sizeof both);
  return _mm512_set1_epi32(both);
}
/* sum + a[0] b[0] + a[1] b[1] of each lane. */
static inline kr_vi kr_words_dot(kr_vi sum, kr_vi a, kr_vi b) { return _mm512_dpwssd_epi32(sum, a, b); }
/* Two KR_VL bytes as pairs; a vector of floats only by its bits. */
static inline kr_v kr_words_from_i8(const int8_t *p) {
  return _mm512_castsi512_ps(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)p)));
}
/* KR_VL values, rounded to nearest even. */
static inline void kr_words_round(int16_t *to, kr_v v) {
  _mm256_storeu_si256((void *)to, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v)));
}

#endif
