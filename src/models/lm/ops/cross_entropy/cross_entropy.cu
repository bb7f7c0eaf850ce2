/* cross_entropy.cu: the loss at labels and its gradient, a block a row (cross_entropy_ref.c has the equations). Rows
 * are read once, by packs of 16 bytes from the first aligned element on; what is before and behind these, and rows that
 * are not contiguous, element by element.
 * kr_cross_entropy_TYPE       each thread keeps the largest of its logits and the sum of exponentials below it
 * kr_cross_entropy_bwd_TYPE   may write over the logits: a thread reads its elements before */
#include "cross_entropy_params.h"
#include "pack.cuh"

enum { THREADS = KR_LOSS_ROW_THREADS, WARPS = THREADS / 32, AHEAD = 4 /* packs in flight */ };

/* The largest value so far, the sum of exponentials below it, the sum of all. Without any value or with values of minus
 * infinity alone the largest is that, and the sum is 0. */
typedef struct level {
  float top, sum, total;
} level;

/* exp(x - top); of a top that nothing has reached yet, 0 for what is as low. */
KR_DEV float exp_below(float x, float top) { return kr_exp2((x - (top == -__builtin_inff() ? 0.0f : top)) * KR_LOG2E); }

KR_DEV level join(level a, level b) {
  level both;
  both.top = a.top > b.top ? a.top : b.top;
  both.sum = a.sum * exp_below(a.top, both.top) + b.sum * exp_below(b.top, both.top);
  both.total = a.total + b.total;
  return both;
}

template <int N>
KR_DEV void take(level &own, const float (&x)[N]) {
  float top = own.top, sum = 0.0f;
#pragma unroll
  for (int k = 0; k < N; k++) top = x[k] > top ? x[k] : top;
#pragma unroll
  for (int k = 0; k < N; k++) sum += exp_below(x[k], top), own.total += x[k];
  own.sum = own.sum * exp_below(own.top, top) + sum, own.top = top;
}

/* A row: packs of E elements from `head` on; the rest one by one: element i of these is at element_of(i). */
typedef struct row {
  int64_t head, packs, rest;
} row;
template <int DTYPE>
KR_DEV row row_of(const kr_cross_entropy_params &p, int64_t r) {
  const int E = DTYPE == KRAIT_F32 ? 4 : 8, bytes = 16 / E;
  const uint64_t at = (uint64_t)p.logits.data + (uint64_t)(r * p.logits.stride[0]) * bytes;
  row own = {0, 0, p.V};
  if (!p.packs || p.V < 2 * E) return own;
  own.head = (int64_t)((16 - at % 16) % 16) / bytes;
  own.packs = (p.V - own.head) / E;
  own.rest = p.V - own.packs * E;
  return own;
}
template <int E>
KR_DEV int64_t element_of(const row &own, int64_t i) {
  return i < own.head ? i : i + own.packs * E;
}

template <int DTYPE>
KR_DEV level level_of(const kr_cross_entropy_params &p, int64_t r) {
  enum { E = DTYPE == KRAIT_F32 ? 4 : 8 };
  const row own = row_of<DTYPE>(p, r);
  const int64_t at = r * p.logits.stride[0];
  const kr_raw16 *const packs = (const kr_raw16 *)((const char *)p.logits.data + (at + own.head) * (16 / E));
  level all = {-__builtin_inff(), 0.0f, 0.0f};
  for (int64_t i = kr_thread(); i < own.packs; i += AHEAD * THREADS) {
    kr_raw16 raw[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) raw[k] = packs[i + k * THREADS < own.packs ? i + k * THREADS : i];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      if (i + k * THREADS >= own.packs) break;
      float x[E];
#pragma unroll
      for (int e = 0; e < E; e++) x[e] = pack_at(raw[k], e, DTYPE) * p.scale;
      take<E>(all, x);
    }
  }
  for (int64_t i = kr_thread(); i < own.rest; i += THREADS) {
    const float x[1] = {kr_load(p.logits.data, at + element_of<E>(own, i) * p.logits.stride[1], DTYPE) * p.scale};
    take<1>(all, x);
  }
  return all;
}

/* Of the block, in a fixed order; every thread gets it. */
KR_DEV level join_block(level own, float (&tops)[WARPS], float (&sums)[WARPS], float (&totals)[WARPS]) {
#pragma unroll
  for (int d = 16; d; d /= 2) {
    level other;
    other.top = kr_shuffle_xor(own.top, d), other.sum = kr_shuffle_xor(own.sum, d);
    other.total = kr_shuffle_xor(own.total, d);
    own = join(own, other);
  }
  const int warp = kr_thread() / 32;
  if (kr_thread() % 32 == 0) tops[warp] = own.top, sums[warp] = own.sum, totals[warp] = own.total;
  kr_sync();
  own.top = tops[0], own.sum = sums[0], own.total = totals[0];
#pragma unroll
  for (int w = 1; w < WARPS; w++) {
    level other;
    other.top = tops[w], other.sum = sums[w], other.total = totals[w];
    own = join(own, other);
  }
  return own;
}

template <int DTYPE>
KR_DEV void write_losses(const kr_cross_entropy_params &p) {
  KR_SHARED float tops[WARPS], sums[WARPS], totals[WARPS];
  const int64_t r = kr_block_x();
  const level all = join_block(level_of<DTYPE>(p, r), tops, sums, totals);
  if (kr_thread()) return;
  const int32_t label = ((const int32_t *)p.labels.data)[r * p.labels.stride[0]];
  const float log_sum = kr_log2(all.sum) * KR_LN2;
  ((float *)p.top.data)[r * p.top.stride[0]] = all.top, ((float *)p.log_sum.data)[r * p.log_sum.stride[0]] = log_sum;
  if (p.lse.data) ((float *)p.lse.data)[r * p.lse.stride[0]] = all.top + log_sum;
  if (!p.losses.data) return;
  float loss = label < 0 ? 0.0f : __builtin_nanf("");
  if (label >= 0 && label < p.V) {
    const float x = kr_load(p.logits.data, r * p.logits.stride[0] + label * p.logits.stride[1], DTYPE) * p.scale;
    loss = log_sum + (1.0f - p.smoothing) * (all.top - x);
    if (p.smoothing > 0.0f) loss += p.smoothing * (all.top - all.total / (float)p.V);
  }
  ((float *)p.losses.data)[r * p.losses.stride[0]] = loss;
}

/* What a row's gradients are made of: exp(x - top - log_sum) by_exp - all, and - own at the label. */
typedef struct slopes {
  float top, log_sum, by_exp, all, own;
  int64_t label;
} slopes;
KR_DEV slopes slopes_of(const kr_cross_entropy_params &p, int64_t r) {
  const int32_t label = ((const int32_t *)p.labels.data)[r * p.labels.stride[0]];
  float dloss = p.losses.data && label >= 0 ? ((const float *)p.losses.data)[r * p.losses.stride[0]] : 0.0f;
  if (label >= p.V) dloss = __builtin_nanf("");
  const float dlse = p.dlse.data ? ((const float *)p.dlse.data)[r * p.dlse.stride[0]] : 0.0f;
  slopes s;
  s.top = ((const float *)p.top.data)[r * p.top.stride[0]];
  s.log_sum = ((const float *)p.log_sum.data)[r * p.log_sum.stride[0]];
  s.by_exp = p.scale * (dloss + dlse);
  s.all = p.scale * dloss * p.smoothing / (float)p.V;
  s.own = p.scale * dloss * (1.0f - p.smoothing);
  s.label = label;
  return s;
}
KR_DEV float slope_at(const slopes &s, float x, int64_t v) {
  const float by_label = v == s.label ? s.own + s.all : s.all;
  return s.by_exp == 0.0f ? -by_label : s.by_exp * kr_exp2((x - s.top - s.log_sum) * KR_LOG2E) - by_label;
}

template <int DTYPE>
KR_DEV void write_gradient(const kr_cross_entropy_params &p) {
  enum { E = DTYPE == KRAIT_F32 ? 4 : 8 };
  const int64_t r = kr_block_x(), at = r * p.logits.stride[0], to = r * p.dlogits.stride[0];
  const row own = row_of<DTYPE>(p, r);
  const slopes s = slopes_of(p, r);
  const kr_raw16 *const packs = (const kr_raw16 *)((const char *)p.logits.data + (at + own.head) * (16 / E));
  kr_raw16 *const out = (kr_raw16 *)((char *)p.dlogits.data + (to + own.head) * (16 / E));
  for (int64_t i = kr_thread(); i < own.packs; i += AHEAD * THREADS) {
    kr_raw16 raw[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) raw[k] = packs[i + k * THREADS < own.packs ? i + k * THREADS : i];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int64_t pack = i + k * THREADS;
      if (pack >= own.packs) break;
      float d[E];
#pragma unroll
      for (int e = 0; e < E; e++) d[e] = slope_at(s, pack_at(raw[k], e, DTYPE) * p.scale, own.head + pack * E + e);
      kr_raw16 made;
#pragma unroll
      for (int w = 0; w < 4; w++)
        made.w[w] = E == 4 ? kr_float_to_bits(d[w % E]) : kr_pack(d[2 * w % E], d[(2 * w + 1) % E], DTYPE);
      out[pack] = made;
    }
  }
  for (int64_t i = kr_thread(); i < own.rest; i += THREADS) {
    const int64_t v = element_of<E>(own, i);
    const float x = kr_load(p.logits.data, at + v * p.logits.stride[1], DTYPE) * p.scale;
    kr_store(p.dlogits.data, to + v * p.dlogits.stride[1], DTYPE, slope_at(s, x, v));
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_cross_entropy_f32(const kr_cross_entropy_params p) {
  write_losses<KRAIT_F32>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_cross_entropy_bwd_f32(const kr_cross_entropy_params p) {
  write_gradient<KRAIT_F32>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_cross_entropy_f16(const kr_cross_entropy_params p) {
  write_losses<KRAIT_F16>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_cross_entropy_bwd_f16(const kr_cross_entropy_params p) {
  write_gradient<KRAIT_F16>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_cross_entropy_bf16(const kr_cross_entropy_params p) {
  write_losses<KRAIT_BF16>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_cross_entropy_bwd_bf16(const kr_cross_entropy_params p) {
  write_gradient<KRAIT_BF16>(p);
}
