/* attention_scale.cu: bfloat16 queries, keys and values as float16 ones, for attention_ampere.cu in the turing tier: a
 * head's numbers times the power of two that brings the largest finite one to 2^14 to 2^15. Its eight bits stay whole
 * down to 2^-31 of the largest.
 *   kr_attention_largest  the largest magnitude of each run of a head's tokens
 *   kr_attention_scale    the copies, and the powers' logarithms */
#include "attention_turing.h"
#include "halves.cuh"

enum { THREADS = KR_ATTENTION_SCALE_THREADS, WARPS = THREADS / 32, AT_ONCE = 4 /* tokens a lane */ };

/* A block's run of tokens of one head. */
typedef struct portion {
  int head, b, h, run, first, end; /* head: of all batches */
} portion;

KR_DEV const kr_attention_scaled &tensor_of(const kr_attention_scale_params &p, int block) {
  return p.of[block >= p.of[2].first_block ? 2 : block >= p.of[1].first_block];
}

KR_DEV portion portion_of(const kr_attention_scaled &t, int block) {
  portion r;
  const int index = block - t.first_block;
  r.head = index / t.n_runs, r.run = index - r.head * t.n_runs;
  r.b = r.head / t.H, r.h = r.head - r.b * t.H;
  r.first = r.run * t.run, r.end = t.L - r.first < t.run ? t.L : r.first + t.run;
  return r;
}

KR_DEV kr_raw16 read_token(const kr_attention_scaled &t, const portion &r, int token, int column) {
  return *(const kr_raw16 *)((const uint16_t *)t.from.data + r.b * t.from.b + r.h * t.from.h + token * t.from.t +
                             column);
}

/* What is not finite is left as it is, and does not count. */
KR_DEV uint32_t finite_magnitude(float x) {
  const uint32_t bits = kr_magnitude(x);
  return bits < 0x7f800000u ? bits : 0;
}

KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_attention_largest(const kr_attention_scale_params p) {
  KR_SHARED uint32_t of_warps[WARPS];
  const kr_attention_scaled &t = tensor_of(p, kr_block_x());
  const portion r = portion_of(t, kr_block_x());
  const int column = (kr_thread() & ((1 << p.log_lanes) - 1)) * 8, step = THREADS >> p.log_lanes,
            end = column < p.D ? r.end : r.first; /* some lanes have no channels */
  uint32_t largest = 0;
#pragma unroll 4
  for (int token = r.first + (kr_thread() >> p.log_lanes); token < end; token += step) {
    const kr_raw16 eight = read_token(t, r, token, column);
#pragma unroll
    for (int i = 0; i < 8; i++)
      largest = kr_larger(largest, finite_magnitude(kr_unpack(eight.w[i / 2], i % 2, KRAIT_BF16)));
  }
#pragma unroll
  for (int d = 1; d < 32; d <<= 1)
    largest = kr_larger(largest, kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float(largest), d)));
  if (kr_thread() % 32 == 0) of_warps[kr_thread() / 32] = largest;
  kr_sync();
  if (kr_thread()) return;
  for (int w = 1; w < WARPS; w++) largest = kr_larger(largest, of_warps[w]);
  t.largest[r.head * t.n_runs + r.run] = largest;
}

KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_attention_scale(const kr_attention_scale_params p) {
  const kr_attention_scaled &t = tensor_of(p, kr_block_x());
  const portion r = portion_of(t, kr_block_x());
  const int column = (kr_thread() & ((1 << p.log_lanes) - 1)) * 8, step = THREADS >> p.log_lanes,
            end = column < p.D ? r.end : r.first; /* some lanes have no channels */
  uint32_t largest = 0;
  for (int run = 0; run < t.n_runs; run++) largest = kr_larger(largest, t.largest[r.head * t.n_runs + run]);
  const int up = kr_halves_scale(largest);
  const float scale = kr_power_of_two(up);
  if (kr_thread() == 0 && r.run == 0) t.up[r.head] = up;
  for (int first = r.first + (kr_thread() >> p.log_lanes); first < end; first += AT_ONCE * step) {
    kr_raw16 eight[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++)
      if (first + k * step < end) eight[k] = read_token(t, r, first + k * step, column);
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      kr_raw16 out;
#pragma unroll
      for (int i = 0; i < 4; i++)
        out.w[i] = kr_pack_f16(kr_unpack(eight[k].w[i], 0, KRAIT_BF16) * scale,
                               kr_unpack(eight[k].w[i], 1, KRAIT_BF16) * scale);
      if (first + k * step < end)
        *(kr_raw16 *)(t.to + ((int64_t)r.head * t.L + first + k * step) * p.D + column) = out;
    }
  }
}
