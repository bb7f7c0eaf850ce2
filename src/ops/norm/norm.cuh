/* norm.cuh: vectorised accesses of any type (runs of features), row reductions, gates. Compiled once per 16-bit storage
 * type KR_DTYPE, which may be mixed with float32 tensors, and once for float32 alone. */
#ifndef KR_NORM_CUH
#define KR_NORM_CUH

#include "kernel.cuh"
#include "norm_params.h"

/* Compile-time configuration. */
typedef struct form {
  int E, units; /* features per run: 8 (16-bit: 16 bytes) or 1; runs per thread, 32 runs apart */
  int mixed;    /* 0: all row tensors have type KR_DTYPE. Parameters may always be float32 */
  int ahead;    /* backward: prefetch the next row while processing a row; 2: all but `second` */
  int keep;     /* backward: keep the stored row and the weights in registers, else reload them where needed */
} form;

#define EACH(k) _Pragma("unroll") for (int k = 0; k < f.E; k++)
#define EACH_UNIT(u) _Pragma("unroll") for (int u = 0; u < f.units; u++)

/* A run as stored: conversion waits until the loads of all tensors are in flight. */
typedef struct raw_run {
  kr_raw16 low, high; /* high: float32 only */
} raw_run;

KR_DEV int is_wide(const form f, const kr_norm_view &v) {
  return KR_DTYPE == KRAIT_F32 || (f.mixed && v.dtype == KRAIT_F32);
}

/* Features m ... m + E - 1 of row r, contiguous; zeros out of range and for absent views. */
KR_DEV raw_run load_run(const form f, const kr_norm_view &v, int64_t r, int64_t m, int inside) {
  raw_run raw = {{{0, 0, 0, 0}}, {{0, 0, 0, 0}}};
  const int64_t at = r * v.row + m;
  if (!v.data || !inside) return raw;
  if (is_wide(f, v)) {
    const float *from = (const float *)v.data + at;
    if (f.E == 1) raw.low.w[0] = kr_float_to_bits(*from);
    else raw.low = *(const kr_raw16 *)from, raw.high = *(const kr_raw16 *)(from + 4);
  } else {
    const uint16_t *from = (const uint16_t *)v.data + at;
    if (f.E == 1) raw.low.w[0] = *from;
    else raw.low = *(const kr_raw16 *)from;
  }
  return raw;
}

KR_DEV void convert_run(const form f, const kr_norm_view &v, const raw_run &raw, float (&x)[8]) {
  if (is_wide(f, v)) EACH(k) x[k] = kr_bits_to_float(k < 4 ? raw.low.w[k & 3] : raw.high.w[k & 3]);
  else EACH(k) x[k] = kr_unpack(raw.low.w[k >> 1], k & 1, KR_DTYPE);
}

/* Converts; `other` everywhere if the view is absent. */
KR_DEV void convert_or(const form f, const kr_norm_view &v, const raw_run &raw, float other, float (&x)[8]) {
  if (v.data) convert_run(f, v, raw, x);
  else EACH(k) x[k] = other;
}

/* For parameters, whose type may always differ. */
KR_DEV form of_parameters(const form f) { return form{f.E, f.units, 1, f.ahead, f.keep}; }
KR_DEV void read_parameter(const form f, const kr_norm_view &v, int64_t m, int inside, float other, float (&x)[8]) {
  const form g = of_parameters(f);
  convert_or(g, v, load_run(g, v, 0, m, inside), other, x);
}

KR_DEV void write_run(const form f, const kr_norm_view &v, int64_t r, int64_t m, const float (&x)[8]) {
  const int64_t at = r * v.row + m;
  if (is_wide(f, v)) {
    float *to = (float *)v.data + at;
    const kr_float4 low = {{x[0], x[1], x[2], x[3]}}, high = {{x[4], x[5], x[6], x[7]}};
    if (f.E == 1) *to = x[0];
    else *(kr_float4 *)to = low, *(kr_float4 *)(to + 4) = high;
  } else if (f.E == 1) {
    kr_store(v.data, at, KR_DTYPE, x[0]);
  } else {
    kr_raw16 raw;
#pragma unroll
    for (int k = 0; k < 4; k++) raw.w[k] = kr_pack(x[2 * k], x[2 * k + 1], KR_DTYPE);
    *(kr_raw16 *)((uint16_t *)v.data + at) = raw;
  }
}

/* One feature of a view of any type, for the generic kernels. */
KR_DEV float get(const kr_norm_view &v, int64_t r, int64_t m, float other) {
  return v.data ? kr_load(v.data, r * v.row + m * v.col, v.dtype) : other;
}
KR_DEV void put(const kr_norm_view &v, int64_t r, int64_t m, float x) {
  if (v.data) kr_store(v.data, r * v.row + m * v.col, v.dtype, x);
}

/* A thread's position: its row within the block, its lane within the row, its group. */
typedef struct place {
  int sub, thread, threads;
  int64_t group; /* first feature of the group */
} place;

KR_DEV place here(const kr_norm_params &p) {
  place at;
  at.sub = kr_thread() >> p.row_shift;
  at.threads = p.warps * 32;
  at.thread = kr_thread() - at.sub * at.threads;
  at.group = (int64_t)kr_block_y() * p.n;
  return at;
}

/* First feature of the thread's run u, relative to the group. */
KR_DEV int first_feature(const place &at, const form f, int u) {
  return ((at.thread >> 5) * 32 * f.units + (at.thread & 31)) * f.E + u * 32 * f.E;
}

enum { MOST_WARPS = KR_NORM_THREADS / 32 };

/* Sum of v over a row's threads in fixed order; every thread of the block must call it. Consecutive sums alternate
 * between places in shared memory, so that each needs one barrier only. Lanes, not loops, add the warps' sums: rows
 * have up to 16 warps. */
KR_DEV float sum_row(const kr_norm_params &p, const place &at, float v, float *shared) {
  const int k = kr_thread() & (MOST_WARPS - 1);
  for (int d = 16; d; d >>= 1) v += kr_shuffle_xor(v, d);
  if (p.warps == 1) return v;
  if ((kr_thread() & 31) == 0) shared[kr_thread() >> 5] = v;
  kr_sync();
  v = k < p.warps ? shared[at.sub * p.warps + k] : 0.0f;
  for (int d = MOST_WARPS / 2; d; d >>= 1) v += kr_shuffle_xor(v, d);
  return v;
}

/* Two sums at once: the lower lanes reduce a, the upper ones b. */
KR_DEV void sum_row_pair(const kr_norm_params &p, const place &at, float &a, float &b, float *shared) {
  const int k = kr_thread() & (MOST_WARPS - 1), upper = (kr_thread() & 31) >= MOST_WARPS;
  const float other_a = kr_shuffle_xor(a, MOST_WARPS), other_b = kr_shuffle_xor(b, MOST_WARPS);
  float v = upper ? b + other_b : a + other_a;
  for (int d = MOST_WARPS / 2; d; d >>= 1) v += kr_shuffle_xor(v, d);
  if (p.warps > 1) {
    if (k == 0) shared[upper * MOST_WARPS + (kr_thread() >> 5)] = v;
    kr_sync();
    v = k < p.warps ? shared[upper * MOST_WARPS + at.sub * p.warps + k] : 0.0f;
    for (int d = MOST_WARPS / 2; d; d >>= 1) v += kr_shuffle_xor(v, d);
  }
  a = kr_shuffle_from(v, 0), b = kr_shuffle_from(v, MOST_WARPS);
}

/* silu'(z) */
KR_DEV float gate_slope(float z) {
  const float s = kr_sigmoid(z);
  return s * kr_fma(z, 1.0f - s, 1.0f);
}

#endif
