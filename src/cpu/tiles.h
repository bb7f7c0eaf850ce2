/* tiles.h: the eight registers of a matrix unit: 16 x 16 float32 accumulators, or operands of 16 lines of 32 bfloat16.
 * AMX registers with KR_TILES_AMX, else arrays and loops of the same meaning, for tests.
 *
 *   kr_tmms t; KR_TMM_BEGIN(t) ... KR_TMM_END(t)   around their use, on one thread
 *   KR_TMM_ZERO(t, n)  LOAD(t, n, p)  STORE(t, n, p, pitch)   operand lines are 64 bytes apart, accumulators `pitch`
 *   KR_TMM_DOT(t, n, a, b)   accumulator n += A B: A's line is a row; B's line i is a pair of terms: its numbers 2 j
 *                            and 2 j + 1 belong to column j and to numbers 2 i and 2 i + 1 of A's lines
 * The unit treats denormals as 0, in operands and results. */
#ifndef KR_TILES_H
#define KR_TILES_H

#include <stdint.h>
#include <string.h>

#include "half.h"

enum { KR_TILE = 16, KR_TILE_TERMS = 32, KR_TILE_BYTES = 1024 };

#if defined(KR_TILES_AMX)
typedef struct kr_tmms {
  uint8_t palette, start, rest[14];
  uint16_t line_bytes[16];
  uint8_t lines[16];
} kr_tmms;

static inline kr_tmms kr_tmms_shape(void) {
  kr_tmms t = {.palette = 1};
  for (int n = 0; n < 8; n++) t.line_bytes[n] = 64, t.lines[n] = KR_TILE;
  return t;
}
#define KR_TMM_BEGIN(t) ((t) = kr_tmms_shape()); __asm__ volatile("ldtilecfg %0" : : "m"(t))
#define KR_TMM_END(t) __asm__ volatile("tilerelease" : : : "memory")
#define KR_TMM_ZERO(t, n) __asm__ volatile("tilezero %%tmm" #n : :)
#define KR_TMM_LOAD(t, n, p) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n : : "r"(p), "r"((int64_t)64) : "memory")
#define KR_TMM_STORE(t, n, p, pitch) \
  __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" : : "r"(p), "r"((int64_t)(pitch)) : "memory")
#define KR_TMM_DOT(t, n, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #n : :)
#else
typedef union kr_tmm {
  float sums[KR_TILE][KR_TILE];
  uint16_t lines[KR_TILE][KR_TILE_TERMS];
} kr_tmm;
typedef struct kr_tmms {
  kr_tmm all[8];
} kr_tmms;

static inline float kr_tmm_flushed(float x) { return x > -0x1p-126f && x < 0x1p-126f ? 0 : x; }
static inline float kr_tmm_number(uint16_t h) { return kr_tmm_flushed(kr_bf16_to_float(h)); }

static inline void kr_tmm_dot(kr_tmm *n, const kr_tmm *a, const kr_tmm *b) {
  float numbers[2][KR_TILE][KR_TILE];
  for (int i = 0; i < KR_TILE; i++)
    for (int j = 0; j < KR_TILE; j++)
      for (int odd = 0; odd < 2; odd++) numbers[odd][i][j] = kr_tmm_number(b->lines[i][2 * j + odd]);
  for (int m = 0; m < KR_TILE; m++) {
    float sums[2][KR_TILE] = {{0}};
    for (int i = 0; i < KR_TILE_TERMS; i++) {
      const float x = kr_tmm_number(a->lines[m][i]), *y = numbers[i % 2][i / 2];
      float *sum = sums[i % 2];
      for (int j = 0; j < KR_TILE; j++) sum[j] = kr_tmm_flushed(sum[j] + kr_tmm_flushed(x * y[j]));
    }
    for (int j = 0; j < KR_TILE; j++)
      n->sums[m][j] = kr_tmm_flushed(n->sums[m][j] + kr_tmm_flushed(sums[0][j] + sums[1][j]));
  }
}

static inline void kr_tmm_store(const kr_tmm *n, float *to, int64_t pitch) {
  for (int m = 0; m < KR_TILE; m++) memcpy((char *)to + m * pitch, n->sums[m], sizeof n->sums[m]);
}
#define KR_TMM_BEGIN(t) memset(&(t), 0, sizeof(t))
#define KR_TMM_END(t) (void)(t)
#define KR_TMM_ZERO(t, n) memset(&(t).all[n], 0, sizeof(kr_tmm))
#define KR_TMM_LOAD(t, n, p) memcpy(&(t).all[n], p, sizeof(kr_tmm))
#define KR_TMM_STORE(t, n, p, pitch) kr_tmm_store(&(t).all[n], p, pitch)
#define KR_TMM_DOT(t, n, a, b) kr_tmm_dot(&(t).all[n], &(t).all[a], &(t).all[b])
#endif

#endif
