/* planted.cu: kernels with one fault each, for the emulator's tests to find. All reverse the n floats of x, with one
 * block of at most 128 threads. */
#include "kernel.cuh"
#include "planted.h"

KR_KERNEL void kr_planted_right(const kr_planted_plan p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  if (i < p.n) tile[i] = p.x[i];
  kr_sync();
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}

KR_KERNEL void kr_planted_missing_barrier(const kr_planted_plan p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  if (i < p.n) tile[i] = p.x[i];
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}

/* Each thread reads a value written by an earlier thread: correct only if threads happen to run in order. */
KR_KERNEL void kr_planted_lucky_order(const kr_planted_plan p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  if (i < p.n) tile[i] = p.x[i];
  if (i >= p.n / 2 && i < p.n) p.out[i] = tile[p.n - 1 - i], p.out[p.n - 1 - i] = p.x[i];
}

KR_KERNEL void kr_planted_read_past_input(const kr_planted_plan p) {
  const int i = kr_thread();
  if (i < p.n) p.out[i] = i ? p.x[p.n - 1 - i] : p.x[p.n - 1] + 0.0f * p.x[p.n + (i & 1)];
}

KR_KERNEL void kr_planted_write_past_shared(const kr_planted_plan p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  if (i < p.n) tile[i] = p.x[i];
  if (i == 0) tile[p.n < 128 ? 128 : 127] = 0.0f;
  kr_sync();
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}

KR_KERNEL void kr_planted_write_past_dynamic(const kr_planted_plan p) {
  KR_DYNAMIC_SHARED(shared);
  float *tile = (float *)shared;
  const int i = kr_thread();
  if (i <= p.n) tile[i] = i < p.n ? p.x[i] : 0.0f;
  kr_sync();
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}

KR_KERNEL void kr_planted_misaligned(const kr_planted_plan p) {
  const int i = kr_thread();
  if (i >= p.n) return;
  const kr_float4 four = i == 0 && p.n > 4 ? *(const kr_float4 *)(p.x + 1) : kr_float4{{0, 0, 0, 0}};
  p.out[i] = p.x[p.n - 1 - i] + 0.0f * four.v[0];
}

KR_KERNEL void kr_planted_misaligned_copy(const kr_planted_plan p) {
  KR_SHARED kr_float4 four;
  const int i = kr_thread();
  if (i == 0 && p.n > 4) kr_copy16(&four, p.x + 1);
  kr_commit_copies();
  kr_copied<0>();
  if (i < p.n) p.out[i] = p.x[p.n - 1 - i];
}

KR_KERNEL void kr_planted_barrier_for_half(const kr_planted_plan p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  tile[i] = i < p.n ? p.x[i] : 0.0f;
  if (i & 1) kr_sync();
  else (void)kr_shuffle_xor(tile[i], 1);
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}
