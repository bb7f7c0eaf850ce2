/* argmax_rows.cu: a block takes a row; each thread keeps the first largest of its elements, which lie KR_ARGMAX_THREADS
 * apart, and a tree finds the first of these. An element that is NaN never counts. */
#include "overlap.cuh"
#include "pack.cuh"

#include "argmax_rows_plan.h"

enum { AHEAD = 16, PACKS = 8 }; /* elements under way: one row of a vocabulary is one block's; packs of four of them */

KR_DEV void take_better(float &value, int &at, float other, int other_at) {
  const int better = other_at >= 0 && (at < 0 || other > value || (other == value && other_at < at));
  value = better ? other : value;
  at = better ? other_at : at;
}

/* Of float32 that lie together, by packs; returns how many of the row are done. */
KR_DEV int64_t read_packs(const krait_argmax_rows_args &a, int64_t row, float &value, int &at) {
  const kr_float4 *from = (const kr_float4 *)((const float *)a.x.data + row);
  const int64_t n = a.M / 4;
  for (int64_t m = kr_thread(); m < n; m += PACKS * KR_ARGMAX_THREADS) {
    kr_float4 v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
      const int64_t i = m + k * KR_ARGMAX_THREADS;
      v[k] = from[i < n ? i : m];
    }
#pragma unroll
    for (int k = 0; k < 4 * PACKS; k++) {
      const int64_t i = m + k / 4 * KR_ARGMAX_THREADS;
      const float one = v[k / 4].v[k % 4];
      take_better(value, at, one, i < n && one == one ? (int)(4 * i) + k % 4 : -1);
    }
  }
  return 4 * n;
}

KR_KERNEL void KR_BOUNDS(KR_ARGMAX_THREADS, 1) kr_argmax_rows(const krait_argmax_rows_args a) {
  KR_SHARED float values[KR_ARGMAX_THREADS];
  KR_SHARED int places[KR_ARGMAX_THREADS];
  const int thread = kr_thread();
  const int64_t r = kr_block_x(), row = r * a.x.stride[0];
  float value = 0.0f;
  int at = -1;
  int64_t done = 0;
  kr_next_may_start(), kr_others_done();
  if (a.x.dtype == KRAIT_F32 && a.x.stride[1] == 1 && a.x.stride[0] % 4 == 0 && (uint64_t)a.x.data % 16 == 0)
    done = read_packs(a, row, value, at);
  for (int64_t m = done + thread; m < a.M; m += AHEAD * KR_ARGMAX_THREADS) {
    float v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int64_t i = m + k * KR_ARGMAX_THREADS;
      v[k] = i < a.M ? kr_load(a.x.data, row + i * a.x.stride[1], a.x.dtype) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int64_t i = m + k * KR_ARGMAX_THREADS;
      take_better(value, at, v[k], i < a.M && v[k] == v[k] ? (int)i : -1);
    }
  }
  values[thread] = value, places[thread] = at;
  for (int half = KR_ARGMAX_THREADS / 2; half > 0; half /= 2) {
    kr_sync();
    if (thread < half) {
      take_better(value, at, values[thread + half], places[thread + half]);
      values[thread] = value, places[thread] = at;
    }
  }
  if (thread == 0) ((int32_t *)a.out.data)[r * a.out.stride[0]] = at < 0 ? 0 : at;
}
