/* argmax_rows.cu: the first maximum of each row. NaNs never count.
 *   kr_argmax_rows   one row, or part, per block; each thread keeps its first maximum; lanes, then warps are reduced,
 *                    and in a cluster its parts
 *   kr_argmax_parts  without clusters: one warp reduces a row's parts */
#include "cluster.cuh"
#include "overlap.cuh"
#include "pack.cuh"

#include "argmax_rows_params.h"

enum { AHEAD = 8, PACKS = 4, WARPS = KR_ARGMAX_THREADS / 32 }; /* elements in flight; packs of four of them */

KR_DEV void take_better(float &value, int &at, float other, int other_at) {
  const int better = other_at >= 0 && (at < 0 || other > value || (other == value && other_at < at));
  value = better ? other : value;
  at = better ? other_at : at;
}

/* Every lane gets the warp's first maximum. */
KR_DEV void take_best_lane(float &value, int &at) {
#pragma unroll
  for (int d = 16; d; d /= 2) {
    const float other = kr_shuffle_xor(value, d), other_at = kr_shuffle_xor(kr_bits_to_float((uint32_t)at), d);
    take_better(value, at, other, (int)kr_float_to_bits(other_at));
  }
}

/* Contiguous float32, by packs: elements [from, to) of a row; returns where it stopped. */
KR_DEV int read_packs(const kr_argmax_rows_args &a, int64_t row, int from, int to, float &value, int &at) {
  const kr_float4 *packs = (const kr_float4 *)((const float *)a.x.data + row);
  const int n = to / 4;
  for (int m = from / 4 + kr_thread(); m < n; m += PACKS * KR_ARGMAX_THREADS) {
    kr_float4 v[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
      const int i = m + k * KR_ARGMAX_THREADS;
      v[k] = packs[i < n ? i : m];
    }
#pragma unroll
    for (int k = 0; k < 4 * PACKS; k++) {
      const int i = m + k / 4 * KR_ARGMAX_THREADS;
      const float one = v[k / 4].v[k % 4];
      take_better(value, at, one, i < n && one == one ? 4 * i + k % 4 : -1);
    }
  }
  return 4 * n;
}

KR_KERNEL void KR_BOUNDS(KR_ARGMAX_THREADS, 1) kr_argmax_rows(const kr_argmax_params p) {
  KR_SHARED float values[WARPS];
  KR_SHARED int places[WARPS];
  KR_DYNAMIC_SHARED(shared);
  kr_float4 *const sent = (kr_float4 *)shared; /* of a cluster's blocks */
  const kr_argmax_rows_args &a = p.a;
  const int thread = kr_thread(), lane = thread & 31, r = kr_block_x() / p.n_parts, part = kr_block_x() - r * p.n_parts,
            end = (int)min64(a.M, (part + 1) * p.part);
  const int64_t row = r * a.x.stride[0];
  float value = 0.0f;
  int at = -1, begin = (int)min64(a.M, part * p.part);
  if (p.in_cluster) kr_cluster_starts();
  kr_launch_dependents(), kr_griddep_wait();
  if (a.x.dtype == KRAIT_F32 && a.x.stride[1] == 1 && a.x.stride[0] % 4 == 0 && (uint64_t)a.x.data % 16 == 0)
    begin = read_packs(a, row, begin, end, value, at);
  for (int64_t m = begin + thread; m < end; m += AHEAD * KR_ARGMAX_THREADS) {
    float v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int64_t i = m + k * KR_ARGMAX_THREADS;
      v[k] = i < end ? kr_load(a.x.data, row + i * a.x.stride[1], a.x.dtype) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int64_t i = m + k * KR_ARGMAX_THREADS;
      take_better(value, at, v[k], i < end && v[k] == v[k] ? (int)i : -1);
    }
  }
  take_best_lane(value, at);
  if (lane == 0) values[thread / 32] = value, places[thread / 32] = at;
  kr_sync();
  if (thread < 32) {
    value = lane < WARPS ? values[lane] : 0.0f, at = lane < WARPS ? places[lane] : -1;
    take_best_lane(value, at);
  }
  if (p.in_cluster) {
    kr_cluster_started();
    if (thread == 0) kr_send(sent[part].v, kr_float4{{value, kr_bits_to_float((uint32_t)at), 0.0f, 0.0f}}, p.n_parts);
    if (!kr_gathered(p.n_parts) || thread >= 32) return;
    value = lane < p.n_parts ? sent[lane].v[0] : 0.0f;
    at = lane < p.n_parts ? (int)kr_float_to_bits(sent[lane].v[1]) : -1;
    take_best_lane(value, at);
  }
  if (thread) return;
  if (p.n_parts > 1 && !p.in_cluster)
    p.values[kr_block_x()] = value, p.places[kr_block_x()] = at;
  else
    ((int32_t *)a.out.data)[r * a.out.stride[0]] = at < 0 ? 0 : at;
}

KR_KERNEL void KR_BOUNDS(32, 1) kr_argmax_parts(const kr_argmax_params p) {
  const int r = kr_block_x();
  float value = 0.0f;
  int at = -1;
  kr_launch_dependents(), kr_griddep_wait();
#pragma unroll
  for (int k = 0; k < KR_ARGMAX_PARTS / 32; k++) {
    const int part = kr_thread() + 32 * k;
    if (part < p.n_parts) take_better(value, at, p.values[r * p.n_parts + part], p.places[r * p.n_parts + part]);
  }
  take_best_lane(value, at);
  if (kr_thread() == 0) ((int32_t *)p.a.out.data)[r * p.a.out.stride[0]] = at < 0 ? 0 : at;
}
