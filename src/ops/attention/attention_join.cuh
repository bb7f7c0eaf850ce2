/* attention_join.cuh: joins the parts of attention split over keys (attention_keys.cu, attention_few.cu). */
#ifndef KR_ATTENTION_JOIN_CUH
#define KR_ATTENTION_JOIN_CUH

#include "attention_fragments.cuh"
#include "attention_join.h"
#include "overlap.cuh"

/* A block per row of the call and 32 channels: the parts' means weighted by their sums, whose logarithms are in base 2.
 * One thread per part, then one per channel and every WARPS-th part. */
KR_DEV void join_parts(const kr_attention_params &p) {
  const int THREADS = KR_ATTENTION_KEYS_THREADS, WARPS = THREADS / 32;
  KR_SHARED float weights[KR_ATTENTION_KEYS_THREADS], warps[2 * KR_ATTENTION_KEYS_THREADS / 32],
      sums[KR_ATTENTION_KEYS_THREADS / 32][32];
  const int chunks = KR_ATTENTION_JOIN_CHUNKS(p.D), row = kr_block_x() / chunks, chunk = kr_block_x() - row * chunks,
            thread = kr_thread(), warp = thread >> 5, lane = thread & 31, n_rows = p.B * p.H * p.rows_q;
  kr_launch_dependents(), kr_griddep_wait();
  const int i = row % p.rows_q, h = row / p.rows_q % p.H, b = row / p.rows_q / p.H;
  const sequence s = sequence_of(p, b);
  if (i >= s.rows_q) return;
  const float sink = p.sinks ? kr_load(p.sinks, h * p.sinks_h, p.sinks_dtype) * KR_LOG2E : MINUS_INFINITY;
  const float mine = thread < p.n_splits
                         ? p.partial[(int64_t)p.n_splits * n_rows * p.D + (int64_t)thread * n_rows + row]
                         : MINUS_INFINITY;
  float most = mine == mine ? mine : -MINUS_INFINITY; /* higher drops what is not a number */
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) most = higher(most, kr_shuffle_xor(most, d));
  if (lane == 0) warps[warp] = most;
  kr_sync();
#pragma unroll
  for (int w = 0; w < WARPS; w++) most = higher(most, warps[w]);
  const int none = most == MINUS_INFINITY;
  most = higher(most, sink);
  const float weight = none ? 0.0f : kr_exp2(mine - most);
  float total = weight;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) total += kr_shuffle_xor(total, d);
  weights[thread] = weight;
  if (lane == 0) warps[WARPS + warp] = total;
  kr_sync();
  total = sink > MINUS_INFINITY && !none ? kr_exp2(sink - most) : 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) total += warps[WARPS + w];
  const float by = none ? 0.0f : 1.0f / total;
  if (thread == 0 && chunk == 0 && p.lse.data)
    ((float *)p.lse.data)[query_at(p.lse, s, h, i)] = none ? -MINUS_INFINITY : KR_LN2 * (most + kr_log2(total));
  const int d = 32 * chunk + lane, exists = d < p.D;
  const float *from = p.partial + (int64_t)row * p.D + (exists ? d : 0);
  float o = 0;
#pragma unroll 8
  for (int k = warp; k < p.n_splits; k += WARPS) o = kr_fma(weights[k], from[(int64_t)k * n_rows * p.D], o);
  sums[warp][lane] = o;
  kr_sync();
  if (warp || !exists) return;
#pragma unroll
  for (int w = 1; w < WARPS; w++) o += sums[w][lane];
  kr_store(p.out.data, query_at(p.out, s, h, i) + d, p.out.dtype, o * by);
}

#endif
