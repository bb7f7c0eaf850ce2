/* gemm_split.cu: float32 matrices as sums of 16-bit ones, for gemm_hopper.cu.
 *   kr_gemm_split         three bfloat16 parts, cut, not rounded: 8 significant bits each, so that their sum is exact
 *                         and the first part of a finite number is finite; a thread splits eight neighbours along the
 *                         contiguous dimension
 *   kr_gemm_split_halves  two float16 parts of 11 bits, the second 2^11 times too large, of a line scaled by a power
 *                         of two that brings its largest number to 2^14 to 2^15; a warp splits a line
 *   kr_gemm_split_across  the same where K lies across lines: the scale is that of a column, whose largest number
 *                         kr_gemm_split_largest has found of each run of lines; a lane splits four columns of a run */
#include "gemm_split.h"
#include "kernel.cuh"

/* The upper 16 bits of a number, which are a bfloat16, and the remainder. Infinities and NaN have no remainder. */
KR_DEV uint32_t cut(float &x) {
  const uint32_t high = kr_float_to_bits(x) & 0xffff0000u;
  const int is_finite = (high & 0x7f800000u) != 0x7f800000u;
  x = is_finite ? x - kr_bits_to_float(high) : 0.0f;
  return high;
}

KR_KERNEL void KR_BOUNDS(KR_SPLIT_THREADS, 4) kr_gemm_split(const kr_split_params p) {
  const int64_t packs = p.line / 8, index = (int64_t)kr_block_x() * KR_SPLIT_THREADS + kr_thread(), row = index / packs;
  const int at = (int)(index - row * packs) * 8, left = p.n_along - at;
  if (row >= (int64_t)p.P * p.n_across) return;
  const int64_t batch = row / p.n_across, across = row - batch * p.n_across;
  const float *from = p.from + batch * p.from_batch + across * p.from_across + at * p.from_along;
  float x[8];
  if (p.packs && left >= 8) {
    const kr_float4 low = *(const kr_float4 *)from, high = *(const kr_float4 *)(from + 4);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < 4 ? low.v[i & 3] : high.v[i & 3];
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < left ? from[i * p.from_along] : 0.0f;
  }
  uint16_t *to = p.to + row * p.line + at;
#pragma unroll
  for (int part = 0; part < KR_N_PARTS; part++, to += (int64_t)p.P * p.n_across * p.line) {
    kr_raw16 raw;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t first = cut(x[2 * i]), second = cut(x[2 * i + 1]);
      raw.w[i] = first >> 16 | second;
    }
    *(kr_raw16 *)to = raw;
  }
}

KR_DEV void read_line(const kr_split_params &p, const float *from, int at, float (&x)[8]) {
  const int left = p.n_along - at;
  if (p.packs && left >= 8) {
    const kr_float4 low = *(const kr_float4 *)(from + at), high = *(const kr_float4 *)(from + at + 4);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < 4 ? low.v[i & 3] : high.v[i & 3];
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < left ? from[at + i] : 0.0f;
  }
}

/* log2 of the scale for a largest magnitude of these bits. Infinities and NaN, whose sums are computed again, count as
 * the largest finite numbers. */
KR_DEV int scale_of(uint32_t largest) {
  const int exponent = (int)(largest >> 23), most = exponent > 254 ? 254 : exponent,
            wanted = exponent == 0 ? 0 : 14 + 127 - most;
  return wanted > 126 ? 126 : wanted;
}
KR_DEV float power_of_two(int exponent) { return kr_bits_to_float((uint32_t)(127 + exponent) << 23); }

/* The parts of two scaled neighbours, as pairs. */
KR_DEV void halve(float a, float b, uint32_t &high, uint32_t &low) {
  high = kr_pack_f16(a, b);
  const float rest_a = a - kr_unpack(high, 0, KRAIT_F16), rest_b = b - kr_unpack(high, 1, KRAIT_F16);
  low = kr_pack_f16(rest_a * KR_HALVES_APART, rest_b * KR_HALVES_APART);
}

KR_DEV uint32_t magnitude_of(float x) { return kr_float_to_bits(x) & 0x7fffffffu; }

KR_KERNEL void KR_BOUNDS(KR_SPLIT_THREADS, 4) kr_gemm_split_halves(const kr_split_params p) {
  const int lane = kr_thread() & 31;
  const int64_t row = ((int64_t)kr_block_x() * KR_SPLIT_THREADS + kr_thread()) / 32;
  if (row >= (int64_t)p.P * p.n_across) return;
  const int64_t batch = row / p.n_across, across = row - batch * p.n_across;
  const float *from = p.from + batch * p.from_batch + across * p.from_across;
  uint32_t largest = 0; /* bits of the magnitude, which compare like the numbers */
  float x[8];
  for (int at = 8 * lane; at < p.n_along; at += 256) {
    read_line(p, from, at, x);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t bits = magnitude_of(x[i]);
      largest = bits > largest ? bits : largest;
    }
  }
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const uint32_t other = kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float(largest), d));
    largest = other > largest ? other : largest;
  }
  const int up = scale_of(largest);
  const float scale = power_of_two(up);
  if (lane == 0) p.unscale[row] = power_of_two(-up);
  uint16_t *to = p.to + row * p.line;
  const int64_t second = (int64_t)p.P * p.n_across * p.line;
  for (int at = 8 * lane; at < p.n_along; at += 256) {
    kr_raw16 high, low;
    read_line(p, from, at, x);
#pragma unroll
    for (int i = 0; i < 4; i++) halve(x[2 * i] * scale, x[2 * i + 1] * scale, high.w[i], low.w[i]);
    *(kr_raw16 *)(to + at) = high, *(kr_raw16 *)(to + second + at) = low;
  }
}

/* ---- K across lines ---------------------------------------------------------------------------------------------- */

enum { COLUMNS = KR_SPLIT_COLUMNS, WARPS = KR_SPLIT_THREADS / 32 };

/* A block's columns, of which a lane has four, and lines. */
typedef struct strip {
  int64_t batch;
  int column, run, first, end; /* run: number of the run of lines [first, end) */
} strip;

KR_DEV strip strip_of(const kr_split_across_params &a) {
  const kr_split_params &p = a.split;
  const int n_columns = (p.n_along + COLUMNS - 1) / COLUMNS, index = kr_block_x() / n_columns;
  strip s;
  s.column = (kr_block_x() - index * n_columns) * COLUMNS + (kr_thread() & 31) * 4;
  s.batch = index / a.n_runs, s.run = index - (int)s.batch * a.n_runs;
  s.first = s.run * a.run;
  s.end = p.n_across - s.first < a.run ? p.n_across : s.first + a.run;
  return s;
}

KR_DEV void read_four(const kr_split_params &p, const strip &s, int line, float (&x)[4]) {
  const float *from = p.from + s.batch * p.from_batch + line * p.from_across + s.column;
  const int left = p.n_along - s.column;
  if (p.packs && left >= 4) {
    const kr_float4 v = *(const kr_float4 *)from;
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = v.v[i];
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = i < left ? from[i] : 0.0f;
  }
}

KR_KERNEL void KR_BOUNDS(KR_SPLIT_THREADS, 4) kr_gemm_split_largest(const kr_split_across_params a) {
  const kr_split_params &p = a.split;
  KR_SHARED uint32_t of_warps[WARPS][COLUMNS];
  const strip s = strip_of(a);
  const int warp = kr_thread() / 32, lane = kr_thread() & 31;
  uint32_t largest[4] = {0, 0, 0, 0};
  float x[4];
#pragma unroll 4
  for (int line = s.first + warp; line < s.end; line += WARPS) {
    read_four(p, s, line, x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t bits = magnitude_of(x[i]);
      largest[i] = bits > largest[i] ? bits : largest[i];
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) of_warps[warp][4 * lane + i] = largest[i];
  kr_sync();
  const int column = kr_thread(), at = s.column - 4 * lane + column;
  if (column >= COLUMNS || at >= p.n_along) return;
  uint32_t most = 0;
  for (int w = 0; w < WARPS; w++) most = of_warps[w][column] > most ? of_warps[w][column] : most;
  a.largest[(s.batch * a.n_runs + s.run) * p.line + at] = most;
}

KR_KERNEL void KR_BOUNDS(KR_SPLIT_THREADS, 4) kr_gemm_split_across(const kr_split_across_params a) {
  const kr_split_params &p = a.split;
  KR_SHARED float __attribute__((aligned(16))) scales[COLUMNS];
  const strip s = strip_of(a);
  const int warp = kr_thread() / 32, lane = kr_thread() & 31, column = kr_thread(), at = s.column - 4 * lane + column;
  if (column < COLUMNS) {
    uint32_t largest = 0;
    for (int run = 0; run < a.n_runs && at < p.n_along; run++) {
      const uint32_t bits = a.largest[(s.batch * a.n_runs + run) * p.line + at];
      largest = bits > largest ? bits : largest;
    }
    const int up = scale_of(largest);
    scales[column] = power_of_two(up);
    if (s.run == 0 && at < p.n_along) p.unscale[s.batch * p.n_along + at] = power_of_two(-up);
  }
  kr_sync();
  if (s.column >= p.line) return;
  const int64_t second = (int64_t)p.P * p.n_across * p.line;
  const kr_float4 scale = *(const kr_float4 *)(scales + 4 * lane);
  for (int line = s.first + warp; line < s.end; line += WARPS) {
    float x[4];
    uint32_t high[2], low[2];
    read_four(p, s, line, x);
#pragma unroll
    for (int i = 0; i < 2; i++) halve(x[2 * i] * scale.v[2 * i], x[2 * i + 1] * scale.v[2 * i + 1], high[i], low[i]);
    uint16_t *to = p.to + (s.batch * p.n_across + line) * p.line + s.column;
    *(uint64_t *)to = (uint64_t)high[1] << 32 | high[0];
    *(uint64_t *)(to + second) = (uint64_t)low[1] << 32 | low[0];
  }
}
