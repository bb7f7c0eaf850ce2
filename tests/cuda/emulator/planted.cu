/* planted.cu: kernels with one fault each, for the emulator's tests to find. All reverse the n floats of x, with one
 * block of at most 128 threads, or with KR_PLANTED_BLOCKS of 40 that live at once. */
#include "kernel.cuh"
#include "packets.cuh"
#include "planted.h"

KR_KERNEL void kr_planted_right(const kr_planted_params p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  if (i < p.n) tile[i] = p.x[i];
  kr_sync();
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}

KR_KERNEL void kr_planted_missing_barrier(const kr_planted_params p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  if (i < p.n) tile[i] = p.x[i];
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}

/* Each thread reads a value written by an earlier thread: correct only if threads happen to run in order. */
KR_KERNEL void kr_planted_lucky_order(const kr_planted_params p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  if (i < p.n) tile[i] = p.x[i];
  if (i >= p.n / 2 && i < p.n) p.out[i] = tile[p.n - 1 - i], p.out[p.n - 1 - i] = p.x[i];
}

KR_KERNEL void kr_planted_read_past_input(const kr_planted_params p) {
  const int i = kr_thread();
  if (i < p.n) p.out[i] = i ? p.x[p.n - 1 - i] : p.x[p.n - 1] + 0.0f * p.x[p.n + (i & 1)];
}

KR_KERNEL void kr_planted_write_past_shared(const kr_planted_params p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  if (i < p.n) tile[i] = p.x[i];
  if (i == 0) tile[p.n < 128 ? 128 : 127] = 0.0f;
  kr_sync();
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}

KR_KERNEL void kr_planted_write_past_dynamic(const kr_planted_params p) {
  KR_DYNAMIC_SHARED(shared);
  float *tile = (float *)shared;
  const int i = kr_thread();
  if (i <= p.n) tile[i] = i < p.n ? p.x[i] : 0.0f;
  kr_sync();
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}

/* A thread's own array, which it wrote before another thread ran. */
KR_KERNEL void kr_planted_read_past_own(const kr_planted_params p) {
  float own[8];
  const int i = kr_thread();
  for (int k = 0; k < 8; k++) own[k] = i < p.n ? p.x[i] : 0.0f;
  kr_sync();
  const float *const from = own;
  if (i < p.n) p.out[i] = p.x[p.n - 1 - i] + 0.0f * from[i == 0 ? 8 + (p.n & 7) : 0];
}

KR_KERNEL void kr_planted_misaligned(const kr_planted_params p) {
  const int i = kr_thread();
  if (i >= p.n) return;
  const kr_float4 four = i == 0 && p.n > 4 ? *(const kr_float4 *)(p.x + 1) : kr_float4{{0, 0, 0, 0}};
  p.out[i] = p.x[p.n - 1 - i] + 0.0f * four.v[0];
}

KR_KERNEL void kr_planted_misaligned_copy(const kr_planted_params p) {
  KR_SHARED kr_float4 four;
  const int i = kr_thread();
  if (i == 0 && p.n > 4) kr_copy16(&four, p.x + 1);
  kr_commit_copies();
  kr_copied<0>();
  if (i < p.n) p.out[i] = p.x[p.n - 1 - i];
}

KR_KERNEL void kr_planted_barrier_for_half(const kr_planted_params p) {
  KR_SHARED float tile[128];
  const int i = kr_thread();
  tile[i] = i < p.n ? p.x[i] : 0.0f;
  if (i & 1) kr_sync();
  else (void)kr_shuffle_xor(tile[i], 1);
  if (i < p.n) p.out[i] = tile[p.n - 1 - i];
}

/* ---- several blocks that live at once ---------------------------------------------------------------------------- */

KR_DEV uint64_t tagged(uint32_t tag, float v) { return (uint64_t)tag << 32 | kr_float_to_bits(v); }

KR_DEV float with_tag(const uint64_t *from, uint32_t tag) {
  for (;; kr_poll_again()) {
    const uint64_t word = kr_get_word(from);
    if (word >> 32 == tag) return kr_bits_to_float((uint32_t)word);
  }
}

KR_DEV float both_with_tag(const uint64_t *from, uint32_t tag) {
  for (;; kr_poll_again()) {
    uint64_t a, b;
    kr_get_words(from, a, b);
    if (a >> 32 == tag && b >> 32 == tag) return a == b ? kr_bits_to_float((uint32_t)a) : 0.0f;
  }
}

/* Every thread passes its value on, takes that of the mirrored one, and passes it on again; the lanes of a warp wait
 * for different blocks, then for each other. */
KR_DEV void pass_words(const kr_planted_params &p, int is_forgotten) {
  KR_DYNAMIC_SHARED(shared);
  float *const tile = (float *)shared;
  uint64_t *const pairs = p.words + 128;
  const int i = kr_thread() * KR_PLANTED_BLOCKS + kr_block_x(), next = (i + 1) % p.n;
  if (i < p.n && !(is_forgotten && i == p.n / 2)) kr_put_word(p.words + i, tagged(1, p.x[i]));
  if (i < p.n) tile[kr_thread()] = with_tag(p.words + p.n - 1 - i, 1);
  kr_sync_warp();
  const float mine = kr_shuffle_xor(i < p.n ? tile[kr_thread()] : 0.0f, 0);
  kr_sync();
  if (i < p.n) kr_put_words(pairs + 2 * i, tagged(2, mine), tagged(2, mine));
  if (i < p.n) p.out[next] = both_with_tag(pairs + 2 * next, 2);
}
KR_KERNEL void kr_planted_words(const kr_planted_params p) { pass_words(p, 0); }
KR_KERNEL void kr_planted_word_forgotten(const kr_planted_params p) { pass_words(p, 1); }

/* The first block's values become bytes that the others copy when a counter says so. */
KR_DEV void copy_bytes(const kr_planted_params &p, int is_awaited) {
  KR_DYNAMIC_SHARED(shared);
  const float *const tile = (const float *)shared;
  float *const values = (float *)(p.words + 64);
  const uint32_t full = kr_shared_at(shared + 512);
  const int i = kr_thread();
  if (kr_block_x() == 0) {
    for (int j = i; j < p.n; j += kr_block_threads()) values[j] = p.x[j];
    kr_sync();
    if (i == 0) kr_publish((int32_t *)p.words, 1);
  } else if (i == 0)
    kr_await((const int32_t *)p.words, 1);
  if (i == 0) kr_barrier_open(full, 1), kr_barriers_opened();
  kr_sync();
  if (i == 0) kr_barrier_expect(full, 512), kr_load_bytes(kr_shared_at(tile), values, 512, full);
  if (is_awaited) kr_barrier_await(full, 0);
  for (int j = i * KR_PLANTED_BLOCKS + kr_block_x(); j < p.n; j += kr_block_threads() * KR_PLANTED_BLOCKS)
    p.out[j] = tile[p.n - 1 - j];
}
KR_KERNEL void kr_planted_bytes(const kr_planted_params p) { copy_bytes(p, 1); }
KR_KERNEL void kr_planted_bytes_not_awaited(const kr_planted_params p) { copy_bytes(p, 0); }

KR_KERNEL void kr_planted_static_shared(const kr_planted_params p) {
  KR_SHARED float tile[40];
  const int i = kr_thread() * KR_PLANTED_BLOCKS + kr_block_x();
  if (i < p.n) tile[kr_thread()] = p.x[p.n - 1 - i];
  kr_sync();
  if (i < p.n) p.out[i] = tile[kr_thread()];
}
