/* gemm_split.cu: float32 matrices as sums of two float16 ones, for gemm_hopper.cu and gemm_ampere.cu: parts of 11 bits,
 * the second 2^11 times too large, of a line scaled by a power of two that brings its largest number to 2^14 to 2^15;
 * or the first part alone (tf32). bfloat16 ones (KR_BF16), whose eight bits fit in one part, become one float16 matrix,
 * scaled alike. Both factors of a product in one launch:
 *   kr_gemm_split          some warps split a line; or, where K lies across lines and the scale is that of a column, a
 *                          lane splits four columns of a run of lines
 *   kr_gemm_split_largest  before: the largest number in each column of such a run */
#include "gemm_split.h"
#include "halves.cuh"
#include "overlap.cuh"

enum { WARPS = KR_SPLIT_THREADS / 32, PIECES = KR_SPLIT_PIECES };
#ifdef KR_BF16
enum { TYPE = KRAIT_BF16 };
typedef uint16_t element;
#else
enum { TYPE = KRAIT_F32 };
typedef float element;
#endif

/* Eight numbers of a line of n, zeros beyond its end. */
KR_DEV void read_line(const kr_split_params &p, const element *from, int at, int n, float (&x)[8]) {
  const int left = n - at;
  if (p.packs && left >= 8) {
#ifdef KR_BF16
    const kr_raw16 raw = *(const kr_raw16 *)(from + at);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = kr_unpack(raw.w[i / 2], i % 2, TYPE);
#else
    const kr_float4 low = *(const kr_float4 *)(from + at), high = *(const kr_float4 *)(from + at + 4);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < 4 ? low.v[i & 3] : high.v[i & 3];
#endif
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < left ? kr_load(from, at + i, TYPE) : 0.0f;
  }
}

/* The largest of bits of magnitudes and of those of eight numbers. */
KR_DEV uint32_t larger_of(uint32_t largest, const float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i++) largest = kr_larger(largest, kr_magnitude(x[i]));
  return largest;
}

KR_DEV void leave_parts(const kr_split_params &p, uint16_t *to, const float (&x)[8], float scale) {
  kr_raw16 high, low;
#pragma unroll
  for (int i = 0; i < 4; i++) kr_halve(x[2 * i] * scale, x[2 * i + 1] * scale, KR_HALVES_APART, high.w[i], low.w[i]);
  *(kr_raw16 *)to = high;
  if (TYPE == KRAIT_F32 && p.n_parts > 1) *(kr_raw16 *)(to + (int64_t)p.P * p.n_across * p.line) = low;
}

/* Lines of a factor: a lane keeps its first PIECES times eight numbers of a line, of longer ones it reads the others
 * twice. */
KR_DEV void split_lines(const kr_split_factor &f, int block) {
  KR_SHARED uint32_t of_warps[WARPS];
  const kr_split_params &p = f.split;
  const int width = 32 << f.log_warps, lane = kr_thread() & (width - 1), step = 8 * width;
  const int64_t row = (int64_t)block * (KR_SPLIT_THREADS / width) + kr_thread() / width, batch = row / p.n_across,
                across = row - batch * p.n_across, n_rows = (int64_t)p.P * p.n_across;
  const element *const from = (const element *)p.from + batch * p.from_batch + across * p.from_across;
  const int n = row < n_rows ? p.n_along : 0;
  uint32_t largest = 0; /* bits of the magnitude, which compare like the numbers */
  float x[PIECES][8], rest[8];
#pragma unroll
  for (int i = 0; i < PIECES; i++) read_line(p, from, 8 * lane + i * step, n, x[i]);
#pragma unroll
  for (int i = 0; i < PIECES; i++) largest = larger_of(largest, x[i]);
  for (int at = 8 * lane + PIECES * step; at < n; at += step)
    read_line(p, from, at, n, rest), largest = larger_of(largest, rest);
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const uint32_t other = kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float(largest), d));
    largest = other > largest ? other : largest;
  }
  if (f.log_warps) {
    const int first = kr_thread() / width << f.log_warps;
    if ((lane & 31) == 0) of_warps[kr_thread() / 32] = largest;
    kr_sync();
    for (int w = 0; w < 1 << f.log_warps; w++) largest = of_warps[first + w] > largest ? of_warps[first + w] : largest;
  }
  if (row >= n_rows) return;
  const int up = kr_halves_scale(largest);
  const float scale = kr_power_of_two(up);
  if (lane == 0) p.unscale[row] = kr_power_of_two(-up);
  uint16_t *const to = p.to + row * p.line;
#pragma unroll
  for (int i = 0; i < PIECES; i++)
    if (8 * lane + i * step < n) leave_parts(p, to + 8 * lane + i * step, x[i], scale);
  for (int at = 8 * lane + PIECES * step; at < n; at += step)
    read_line(p, from, at, n, rest), leave_parts(p, to + at, rest, scale);
}

/* ---- K across lines ---------------------------------------------------------------------------------------------- */

enum { COLUMNS = KR_SPLIT_COLUMNS, LINES = 4 }; /* LINES: read before the first is written */

/* A block's columns, of which a lane has four, and lines. */
typedef struct strip {
  int64_t batch;
  int column, run, first, end; /* run: number of the run of lines [first, end) */
} strip;

KR_DEV strip strip_of(const kr_split_factor &a, int block) {
  const kr_split_params &p = a.split;
  const int n_columns = (p.n_along + COLUMNS - 1) / COLUMNS, index = block / n_columns;
  strip s;
  s.column = (block - index * n_columns) * COLUMNS + (kr_thread() & 31) * 4;
  s.batch = index / a.n_runs, s.run = index - (int)s.batch * a.n_runs;
  s.first = s.run * a.run;
  s.end = p.n_across - s.first < a.run ? p.n_across : s.first + a.run;
  return s;
}

KR_DEV void read_four(const kr_split_params &p, const strip &s, int line, float (&x)[4]) {
  const element *from = (const element *)p.from + s.batch * p.from_batch + line * p.from_across + s.column;
  const int left = line < s.end ? p.n_along - s.column : 0;
  if (p.packs && left >= 4) {
#ifdef KR_BF16
    const uint64_t pairs = *(const uint64_t *)from;
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = kr_unpack((uint32_t)(pairs >> i / 2 * 32), i % 2, TYPE);
#else
    const kr_float4 v = *(const kr_float4 *)from;
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = v.v[i];
#endif
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = i < left ? kr_load(from, i, TYPE) : 0.0f;
  }
}

KR_DEV void find_largest(const kr_split_factor &a, int block) {
  const kr_split_params &p = a.split;
  KR_SHARED uint32_t of_warps[WARPS][COLUMNS];
  const strip s = strip_of(a, block);
  const int warp = kr_thread() / 32, lane = kr_thread() & 31;
  uint32_t largest[4] = {0, 0, 0, 0};
  float x[4];
#pragma unroll 4
  for (int line = s.first + warp; line < s.end; line += WARPS) {
    read_four(p, s, line, x);
#pragma unroll
    for (int i = 0; i < 4; i++) largest[i] = kr_larger(largest[i], kr_magnitude(x[i]));
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

KR_DEV void leave_four(const kr_split_params &p, const strip &s, int line, const float (&x)[4],
                       const kr_float4 &scale) {
  uint32_t high[2], low[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    kr_halve(x[2 * i] * scale.v[2 * i], x[2 * i + 1] * scale.v[2 * i + 1], KR_HALVES_APART, high[i], low[i]);
  uint16_t *const to = p.to + (s.batch * p.n_across + line) * p.line + s.column;
  *(uint64_t *)to = (uint64_t)high[1] << 32 | high[0];
  if (TYPE == KRAIT_F32 && p.n_parts > 1)
    *(uint64_t *)(to + (int64_t)p.P * p.n_across * p.line) = (uint64_t)low[1] << 32 | low[0];
}

KR_DEV void split_across(const kr_split_factor &a, int block) {
  const kr_split_params &p = a.split;
  KR_SHARED float __attribute__((aligned(16))) scales[COLUMNS];
  const strip s = strip_of(a, block);
  const int warp = kr_thread() / 32, lane = kr_thread() & 31, column = kr_thread(), at = s.column - 4 * lane + column;
  if (column < COLUMNS) {
    uint32_t largest = 0;
    for (int run = 0; run < a.n_runs && at < p.n_along; run++) {
      const uint32_t bits = a.largest[(s.batch * a.n_runs + run) * p.line + at];
      largest = bits > largest ? bits : largest;
    }
    const int up = kr_halves_scale(largest);
    scales[column] = kr_power_of_two(up);
    if (s.run == 0 && at < p.n_along) p.unscale[s.batch * p.n_along + at] = kr_power_of_two(-up);
  }
  kr_sync();
  if (s.column >= p.line) return;
  const kr_float4 scale = *(const kr_float4 *)(scales + 4 * lane);
  for (int from = s.first + warp; from < s.end; from += LINES * WARPS) {
    float x[LINES][4];
#pragma unroll
    for (int i = 0; i < LINES; i++) read_four(p, s, from + i * WARPS, x[i]);
#pragma unroll
    for (int i = 0; i < LINES; i++) {
      const int line = from + i * WARPS;
      if (line < s.end) leave_four(p, s, line, x[i], scale);
    }
  }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Blocks go backwards: what was read or written last is still in the L2 cache. */
KR_DEV void split_factor(const kr_split_factor &f, int block) {
  if (f.n_runs)
    split_across(f, block);
  else
    split_lines(f, block);
}

KR_KERNEL void KR_BOUNDS(KR_SPLIT_THREADS, 3) kr_gemm_split(const kr_split_factors p) {
  kr_launch_dependents();
  kr_griddep_wait();
  if (kr_block_x() < p.n_first)
    split_factor(p.of[0], kr_block_x());
  else
    split_factor(p.of[1], kr_block_x() - p.n_first);
}

KR_KERNEL void KR_BOUNDS(KR_SPLIT_THREADS, 4) kr_gemm_split_largest(const kr_split_factors p) {
  kr_launch_dependents();
  kr_griddep_wait();
  if (kr_block_x() < p.n_first)
    find_largest(p.of[0], kr_block_x());
  else
    find_largest(p.of[1], kr_block_x() - p.n_first);
}
