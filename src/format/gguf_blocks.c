/* gguf_blocks.c: the bit layout of the blocks of ggml's types, and the weights' values. */
#include "gguf_blocks.h"

#include <stddef.h>
#include <string.h>

#include "half.h"
#include "quantize.h"

const kr_gguf_type kr_gguf_types[KR_GGUF_N_TYPES] = {{KR_GGUF_F32, "F32", 1, 4, KR_GGUF_PLAIN},
                                                     {KR_GGUF_F16, "F16", 1, 2, KR_GGUF_PLAIN},
                                                     {KR_GGUF_BF16, "BF16", 1, 2, KR_GGUF_PLAIN},
                                                     {KR_GGUF_Q8_0, "Q8_0", 32, 34, KR_GGUF_AS_Q8},
                                                     {KR_GGUF_Q5_0, "Q5_0", 32, 22, KR_GGUF_AS_Q8},
                                                     {KR_GGUF_Q5_1, "Q5_1", 32, 24, KR_GGUF_AS_HALF},
                                                     {KR_GGUF_Q4_0, "Q4_0", 32, 18, KR_GGUF_AS_Q8},
                                                     {KR_GGUF_Q4_1, "Q4_1", 32, 20, KR_GGUF_AS_HALF},
                                                     {KR_GGUF_Q2_K, "Q2_K", 256, 84, KR_GGUF_AS_HALF},
                                                     {KR_GGUF_Q3_K, "Q3_K", 256, 110, KR_GGUF_AS_HALF},
                                                     {KR_GGUF_Q4_K, "Q4_K", 256, 144, KR_GGUF_AS_Q4K},
                                                     {KR_GGUF_Q5_K, "Q5_K", 256, 176, KR_GGUF_AS_HALF},
                                                     {KR_GGUF_Q6_K, "Q6_K", 256, 210, KR_GGUF_AS_HALF}};

const kr_gguf_type *kr_gguf_type_find(uint32_t type) {
  for (int i = 0; i < KR_GGUF_N_TYPES; i++)
    if (kr_gguf_types[i].type == type) return &kr_gguf_types[i];
  return NULL;
}

static uint16_t bits_at(const unsigned char *at) { return (uint16_t)(at[0] | at[1] << 8); }
static float half_at(const unsigned char *at) { return kr_f16_to_float(bits_at(at)); }

/* ---- 32 weights: a factor, in types _1 a minimum, in 5-bit types their highest bits, then four bits each ---- */

static int has_least(uint32_t type) { return type == KR_GGUF_Q4_1 || type == KR_GGUF_Q5_1; }

/* Weight k's level from 0 on: the low fours of the first 16 bytes' worth, then the high ones. */
static int level_of(uint32_t type, const unsigned char *block, int k) {
  const int has_fifth = type == KR_GGUF_Q5_0 || type == KR_GGUF_Q5_1;
  const unsigned char *fifths = block + (has_least(type) ? 4 : 2), *fours = fifths + (has_fifth ? 4 : 0);
  const int level = fours[k % 16] >> (k / 16 * 4) & 15;
  return has_fifth ? level | (fifths[k / 8] >> (k % 8) & 1) << 4 : level;
}

uint16_t kr_gguf_as_q8(uint32_t type, const unsigned char *block, int8_t *to) {
  const int middle = type == KR_GGUF_Q5_0 ? 16 : 8;
  if (type == KR_GGUF_Q8_0) memcpy(to, block + 2, 32);
  else
    for (int k = 0; k < 32; k++) to[k] = (int8_t)(level_of(type, block, k) - middle);
  return bits_at(block);
}

static void widen_small(uint32_t type, const unsigned char *block, float *to) {
  const float factor = half_at(block);
  int8_t multiples[32];
  if (has_least(type)) {
    for (int k = 0; k < 32; k++) to[k] = factor * (float)level_of(type, block, k) + half_at(block + 2);
    return;
  }
  kr_gguf_as_q8(type, block, multiples);
  for (int k = 0; k < 32; k++) to[k] = factor * (float)multiples[k];
}

/* ---- 256 weights ---- */

/* 16 bytes of a scale and a least value of four bits for 16 weights each, 64 of two bits a weight, two factors. */
static void widen_q2(const unsigned char *block, float *to) {
  const float factor = half_at(block + 80), least = half_at(block + 82);
  for (int k = 0; k < 256; k++) {
    const int level = block[16 + k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3, both = block[k / 16];
    to[k] = factor * (float)(both & 15) * (float)level - least * (float)(both >> 4);
  }
}

/* 32 bytes of third bits, 64 of the lower two, 12 of six-bit scales for 16 weights each, moved by 32: their low fours
 * in 8 bytes, their high twos in 4; a factor. */
static void widen_q3(const unsigned char *block, float *to) {
  const unsigned char *scales = block + 96;
  const float factor = half_at(block + 108);
  for (int k = 0; k < 256; k++) {
    const int i = k / 16, low = scales[i % 8] >> (i / 8 * 4) & 15, high = scales[8 + i % 4] >> (i / 4 * 2) & 3,
              level = (block[32 + k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3) |
                      (block[k % 32] >> (k / 32) & 1) << 2;
    to[k] = factor * (float)((low | high << 4) - 32) * (float)(level - 4);
  }
}

static void widen_q4(const unsigned char *block, float *to) {
  int32_t words[36];
  memcpy(words, block, sizeof words);
  kr_q4k_row(words, 1, to);
}

/* Q4_K's head, 32 bytes of fifth bits, Q4_K's fours: the fifth bit of part j adds 16 scales. */
static void widen_q5(const unsigned char *block, float *to) {
  unsigned char as_q4[144];
  memcpy(as_q4, block, 16);
  memcpy(as_q4 + 16, block + 48, 128);
  widen_q4(as_q4, to);
  for (int k = 0; k < 256; k++) {
    const int j = k / 32;
    const unsigned char *scales = block + 4;
    const int scale = j < 4 ? scales[j] & 63 : (scales[4 + j] & 15) | scales[j - 4] >> 6 << 4;
    if (block[16 + k % 32] >> j & 1) to[k] += 16 * half_at(block) * (float)scale;
  }
}

/* 128 bytes of low fours, 64 of high twos, 16 scales, a factor. */
static void widen_q6(const unsigned char *block, float *to) {
  const float factor = half_at(block + 208);
  for (int k = 0; k < 256; k++) {
    const int half = k / 128, part = k % 128 / 32, l = k % 32;
    const int low = block[half * 64 + l + part % 2 * 32] >> (part / 2 * 4) & 15,
              high = block[128 + half * 32 + l] >> (2 * part) & 3;
    to[k] = factor * (float)(int8_t)block[192 + k / 16] * (float)((low | high << 4) - 32);
  }
}

void kr_gguf_widen(uint32_t type, const unsigned char *block, float *to) {
  if (type == KR_GGUF_Q2_K) widen_q2(block, to);
  else if (type == KR_GGUF_Q3_K) widen_q3(block, to);
  else if (type == KR_GGUF_Q4_K) widen_q4(block, to);
  else if (type == KR_GGUF_Q5_K) widen_q5(block, to);
  else if (type == KR_GGUF_Q6_K) widen_q6(block, to);
  else widen_small(type, block, to);
}
