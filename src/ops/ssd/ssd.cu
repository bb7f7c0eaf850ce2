/* ssd.cu: the SSD as a plain recurrence (ssd_ref.c), for every type, size and option: each warp scans four channels of
 * a head over time, states spread over its lanes. Instruction-bound; the tensor-core version is ssd_chunks.cu.
 * kr_ssd_walk_sS   S states of a channel per lane
 * kr_ssd_ranks_sS  the same for rows that are ranks of tokens (kr_ssd_params.last_rank) */
#include "ssd_walk.cuh"

KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_walk_s4(const kr_ssd_params p) { walk<4, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_walk_s16(const kr_ssd_params p) { walk<16, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_ranks_s4(const kr_ssd_params p) { walk<4, 0, 1>(p); }
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_ranks_s16(const kr_ssd_params p) { walk<16, 0, 1>(p); }

/* Zeroes the states of empty sequences. One thread per state element, one block row per sequence. */
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_clear_empty(const kr_ssd_params p) {
  const int i = kr_block_y();
  const int64_t e = (int64_t)kr_block_x() * KR_SSD_THREADS + kr_thread();
  if (p.offsets[i * p.offsets_step] != p.offsets[(i + 1) * p.offsets_step] || e >= (int64_t)p.H * p.P * p.N) return;
  ((float *)p.varlen.data)[of(p.varlen, i, e / p.N % p.P, e / p.N / p.P, e % p.N)] = 0.0f;
}
