/* gather_rows.cu: one element per thread, or 16 bytes if table and out allow it; a row's threads read its index from
 * the same address. Indices out of range give 0. */
#include "pack.cuh"
#include "gather_rows_params.h"

KR_KERNEL void KR_BOUNDS(KR_GATHER_THREADS, 4) kr_gather_rows(const kr_gather_params p) {
  const uint32_t thread = (uint32_t)kr_block_x() * KR_GATHER_THREADS + (uint32_t)kr_thread();
  if (thread >= p.n_threads) return;
  const uint32_t r = kr_divide(thread, p.M), m = thread - r * p.M.by;
  const int64_t row = ((const int32_t *)p.a.index.data)[(int64_t)r * p.a.index.stride[0]];
  const int is_row = row >= 0 && row < p.a.V;
  const float value =
      is_row ? kr_load(p.a.table.data, row * p.a.table.stride[0] + (int64_t)m * p.a.table.stride[1], p.a.table.dtype)
             : 0.0f;
  kr_store(p.a.out.data, (int64_t)r * p.a.out.stride[0] + (int64_t)m * p.a.out.stride[1], p.a.out.dtype, value);
}

/* M counts 16-byte packs here; strides are in elements. A thread takes its pack of several rows: first their indices,
 * then all packs at once. */
KR_KERNEL void KR_BOUNDS(KR_GATHER_THREADS, 8) kr_gather_rows_packs(const kr_gather_params p) {
  const uint32_t thread = (uint32_t)kr_block_x() * KR_GATHER_THREADS + (uint32_t)kr_thread();
  if (thread >= p.n_threads) return;
  const uint32_t group = kr_divide(thread, p.M), m = thread - group * p.M.by;
  const int64_t first = (int64_t)group * KR_GATHER_ROWS, E = p.a.out.dtype == KRAIT_F32 ? 4 : 8,
                step = p.a.table.stride[0] / E;
  const kr_raw16 *const table = (const kr_raw16 *)p.a.table.data + m;
  kr_raw16 *to = (kr_raw16 *)p.a.out.data + first * (p.a.out.stride[0] / E) + m;
  int32_t row[KR_GATHER_ROWS];
  kr_raw16 value[KR_GATHER_ROWS];
#pragma unroll
  for (int i = 0; i < KR_GATHER_ROWS; i++)
    row[i] = first + i < p.a.R ? ((const int32_t *)p.a.index.data)[(first + i) * p.a.index.stride[0]] : -1;
#pragma unroll
  for (int i = 0; i < KR_GATHER_ROWS; i++) {
    value[i] = (kr_raw16){{0, 0, 0, 0}};
    if (row[i] >= 0 && row[i] < p.a.V) value[i] = table[row[i] * step];
  }
#pragma unroll
  for (int i = 0; i < KR_GATHER_ROWS; i++, to += p.a.out.stride[0] / E)
    if (first + i < p.a.R) *to = value[i];
}
