/* norm.cuh: runs of features of any type, sums over a row's threads, gates. */
#ifndef KR_NORM_CUH
#define KR_NORM_CUH

#include "kernel.cuh"
#include "norm_plan.h"

/* Functions take E as a constant: 8 features of 16-byte runs, or one feature at any stride. */
#define EACH(k)                          \
  _Pragma("unroll") for (int k = 0; k < 8; k++) \
    if (k < E)

/* Features m ... m + E - 1 of row r; zeros outside. */
KR_DEV void read_run(const int E, const kr_norm_view &v, int64_t r, int64_t m, int inside, float (&x)[8]) {
  EACH(k) x[k] = 0.0f;
  if (!inside) return;
  const int64_t at = r * v.row + m * v.col;
  if (E == 1) {
    x[0] = kr_load(v.data, at, v.dtype);
  } else if (v.dtype == KRAIT_F32) {
    const kr_float4 low = *(const kr_float4 *)((const float *)v.data + at), high = *(const kr_float4 *)((const float *)v.data + at + 4);
    EACH(k) x[k] = k < 4 ? low.v[k & 3] : high.v[k & 3];
  } else {
    const kr_raw16 raw = *(const kr_raw16 *)((const uint16_t *)v.data + at);
    EACH(k) x[k] = kr_unpack(raw.w[k >> 1], k & 1, v.dtype);
  }
}

KR_DEV void write_run(const int E, const kr_norm_view &v, int64_t r, int64_t m, const float (&x)[8]) {
  const int64_t at = r * v.row + m * v.col;
  if (E == 1) {
    kr_store(v.data, at, v.dtype, x[0]);
  } else if (v.dtype == KRAIT_F32) {
    const kr_float4 low = {{x[0], x[1], x[2], x[3]}}, high = {{x[4], x[5], x[6], x[7]}};
    *(kr_float4 *)((float *)v.data + at) = low;
    *(kr_float4 *)((float *)v.data + at + 4) = high;
  } else {
    kr_raw16 raw;
#pragma unroll
    for (int k = 0; k < 4; k++) raw.w[k] = kr_pack(x[2 * k], x[2 * k + 1], v.dtype);
    *(kr_raw16 *)((uint16_t *)v.data + at) = raw;
  }
}

/* The same, `other` everywhere where the view is absent. */
KR_DEV void read_or(const int E, const kr_norm_view &v, int64_t r, int64_t m, int inside, float other, float (&x)[8]) {
  if (v.data) return read_run(E, v, r, m, inside, x);
  EACH(k) x[k] = other;
}

/* Where a thread stands: its row's number in the block, and its number among the row's threads. */
typedef struct place {
  int sub, thread, threads;
  int64_t group; /* first feature */
} place;

KR_DEV place here(const kr_norm_plan &p) {
  place at;
  at.sub = (kr_thread() >> 5) / p.warps;
  at.threads = p.warps * 32;
  at.thread = kr_thread() - at.sub * at.threads;
  at.group = (int64_t)kr_block_y() * p.n;
  return at;
}

/* a and b summed over the threads of each row, in the same order always; every thread of the block calls it. */
KR_DEV void sum_rows(const kr_norm_plan &p, const place &at, float &a, float &b, float *shared) {
  for (int d = 16; d; d >>= 1) {
    a += kr_shuffle_xor(a, d);
    b += kr_shuffle_xor(b, d);
  }
  if (p.warps == 1) return;
  kr_sync();
  if ((kr_thread() & 31) == 0) shared[kr_thread() >> 5] = a, shared[16 + (kr_thread() >> 5)] = b;
  kr_sync();
  a = b = 0.0f;
  for (int k = 0; k < p.warps; k++) a += shared[at.sub * p.warps + k], b += shared[16 + at.sub * p.warps + k];
}

/* silu'(z) */
KR_DEV float gate_slope(float z) {
  const float s = kr_sigmoid(z);
  return s * kr_fma(z, 1.0f - s, 1.0f);
}

#endif
