/* expert_gemm.cu: mixtures of experts, for every GPU.
 *   kr_expert_rows   a warp computes KR_EXPERTS_EACH outputs of a row's choice, lanes along K. Where a row's choices
 *                    are summed, a block's warps share them, in an order that does not depend on the grid
 *   kr_expert_route  a warp chooses a row's experts, each lane's in registers */
#include "pack.cuh"
#include "q4k.cuh"
#include "row_lanes.cuh"

#include "expert_gemm_params.h"

/* ---- products ---- */

/* Products of a row of A with rows of B from n on, of this lane's k. */
KR_DEV void multiply_any(const kr_experts_params &p, const kr_view &B, int64_t a_at, int64_t b_at, int n,
                         float (&sums)[KR_EXPERTS_EACH]) {
  const kr_expert_gemm_args &a = p.a;
  for (int64_t k = kr_thread() & 31; k < a.K; k += 32) {
    const float x = kr_load(a.A.data, a_at + k * a.A.stride[2], a.A.dtype);
#pragma unroll
    for (int i = 0; i < KR_EXPERTS_EACH; i++)
      if (n + i < a.N)
        sums[i] = kr_fma(x, kr_load(B.data, b_at + i * B.stride[1] + k * B.stride[2], B.dtype), sums[i]);
  }
}

/* The same of aligned rows of one type, several packs of each row on their way at once. */
template <int TYPE>
KR_DEV void multiply_packs(const kr_experts_params &p, const kr_view &B, int64_t a_at, int64_t b_at, int n,
                           float (&sums)[KR_EXPERTS_EACH]) {
  enum { AHEAD = 3, EACH = TYPE == KRAIT_F32 ? 4 : 8 };
  const kr_expert_gemm_args &a = p.a;
  for (int64_t first = (kr_thread() & 31) * EACH; first < a.K; first += AHEAD * 32 * EACH) {
    kr_raw16 x[AHEAD], w[AHEAD][KR_EXPERTS_EACH];
#pragma unroll
    for (int m = 0; m < AHEAD; m++) {
      const int64_t k = first + m * 32 * EACH, left = a.K - k;
      x[m] = load_pack(a.A.data, a_at + k, 1, TYPE, 1, left);
#pragma unroll
      for (int i = 0; i < KR_EXPERTS_EACH; i++)
        w[m][i] = load_pack(B.data, b_at + (n + i < a.N ? i : 0) * B.stride[1] + k, 1, TYPE, 1, left);
    }
#pragma unroll
    for (int m = 0; m < AHEAD; m++)
#pragma unroll
      for (int i = 0; i < KR_EXPERTS_EACH; i++)
#pragma unroll
        for (int c = 0; c < EACH; c++) sums[i] = kr_fma(pack_at(x[m], c, TYPE), pack_at(w[m][i], c, TYPE), sums[i]);
  }
}

KR_DEV void multiply_rows(const kr_experts_params &p, const kr_view &B, int64_t a_at, int64_t b_at, int n,
                          float (&sums)[KR_EXPERTS_EACH]) {
  if (!p.packs) multiply_any(p, B, a_at, b_at, n, sums);
  else if (p.a.A.dtype == KRAIT_F16) multiply_packs<KRAIT_F16>(p, B, a_at, b_at, n, sums);
  else if (p.a.A.dtype == KRAIT_BF16) multiply_packs<KRAIT_BF16>(p, B, a_at, b_at, n, sums);
  else multiply_packs<KRAIT_F32>(p, B, a_at, b_at, n, sums);
}

/* Word i of a row of words. */
KR_DEV uint32_t word_at(const kr_view &words, int64_t at, int64_t i) {
  return (uint32_t)((const int32_t *)words.data)[at + i * words.stride[2]];
}

/* Eight weights of q4_k from k on. */
KR_DEV void widen_q4k(const kr_view &words, int64_t at, int64_t k, float (&w)[8]) {
  const int64_t super = k / 256 * KR_Q4K_SUPER_WORDS;
  const int i = (int)(k % 256), j = i / 32;
  uint32_t head[4];
  float scale, base;
#pragma unroll
  for (int m = 0; m < 4; m++) head[m] = word_at(words, at, super + m);
  kr_q4k_part(head, j, scale, base);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const uint32_t word = word_at(words, at, super + 4 + i / 64 * 8 + i % 32 / 4 + half) >> j % 2 * 4;
#pragma unroll
    for (int m = 0; m < 4; m++) w[4 * half + m] = kr_fma(scale, (float)(word >> 8 * m & 15), base);
  }
}

/* Eight weights of q8_0 from k on. */
KR_DEV void widen_q8(const kr_view &words, const kr_view &scales, int64_t at, int64_t scales_at, int64_t k,
                     float (&w)[8]) {
  const float scale = kr_load(scales.data, scales_at + k / 32 * scales.stride[2], scales.dtype);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const uint32_t word = word_at(words, at, k / 4 + half);
#pragma unroll
    for (int m = 0; m < 4; m++) w[4 * half + m] = scale * (float)(int8_t)(word >> 8 * m & 255);
  }
}

/* The same with words; K is a multiple of 32. */
KR_DEV void multiply_words(const kr_experts_params &p, int64_t e, int64_t a_at, int n,
                           float (&sums)[KR_EXPERTS_EACH]) {
  const kr_expert_gemm_args &a = p.a;
  for (int64_t k = (kr_thread() & 31) * 8; k < a.K; k += 256) {
    float x[8], w[8];
#pragma unroll
    for (int m = 0; m < 8; m++) x[m] = kr_load(a.A.data, a_at + (k + m) * a.A.stride[2], a.A.dtype);
#pragma unroll
    for (int i = 0; i < KR_EXPERTS_EACH; i++) {
      if (n + i >= a.N) continue;
      const int64_t at = e * a.qweight.stride[0] + (n + i) * a.qweight.stride[1];
      if (a.scales.data)
        widen_q8(a.qweight, a.scales, at, e * a.scales.stride[0] + (n + i) * a.scales.stride[1], k, w);
      else
        widen_q4k(a.qweight, at, k, w);
#pragma unroll
      for (int m = 0; m < 8; m++) sums[i] = kr_fma(x[m], w[m], sums[i]);
    }
  }
}

KR_DEV void sum_outputs(float (&y)[KR_EXPERTS_EACH]) {
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++) y[i] = kr_sum_lanes(y[i]);
}

/* y of a row, a choice, and outputs from n on. */
template <int WORDS>
KR_DEV void expert_outputs(const kr_experts_params &p, int64_t t, int64_t j, int n, float (&y)[KR_EXPERTS_EACH]) {
  const kr_expert_gemm_args &a = p.a;
  const int64_t e = ((const int32_t *)a.index.data)[t * a.index.stride[0] + j * a.index.stride[1]],
                a_at = t * a.A.stride[0] + (a.S > 1 ? j : 0) * a.A.stride[1];
  float up[KR_EXPERTS_EACH];
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++) y[i] = up[i] = 0.0f;
  if (e < 0 || e >= a.E) return;
  if (WORDS)
    multiply_words(p, e, a_at, n, y);
  else
    multiply_rows(p, a.Bmat, a_at, e * a.Bmat.stride[0] + n * a.Bmat.stride[1], n, y);
  sum_outputs(y);
  if (WORDS) return;
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++)
    if (a.activation == KRAIT_ACT_SILU) y[i] = kr_silu(y[i]);
  if (!a.B2.data) return;
  multiply_rows(p, a.B2, a_at, e * a.B2.stride[0] + n * a.B2.stride[1], n, up);
  sum_outputs(up);
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++) y[i] *= up[i];
}

KR_DEV void store_outputs(const kr_expert_gemm_args &a, int64_t at, int64_t step, int n,
                          const float (&y)[KR_EXPERTS_EACH]) {
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++)
    if ((kr_thread() & 31) == i && n + i < a.N) kr_store(a.out.data, at + (n + i) * step, a.out.dtype, y[i]);
}

/* A block computes the same outputs of all choices of a row, a warp those of every KR_EXPERTS_WARPS-th. */
template <int WORDS>
KR_DEV void sum_choices(const kr_experts_params &p, int64_t t, int tile) {
  KR_SHARED float parts[KR_EXPERTS_WARPS][KR_EXPERTS_EACH];
  const kr_expert_gemm_args &a = p.a;
  const int warp = kr_thread() / 32, n = tile * KR_EXPERTS_EACH;
  float sum[KR_EXPERTS_EACH], y[KR_EXPERTS_EACH];
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++) sum[i] = 0.0f;
  for (int64_t j = warp; j < a.J; j += KR_EXPERTS_WARPS) {
    const float by = kr_load(a.weights.data, t * a.weights.stride[0] + j * a.weights.stride[1], KRAIT_F32);
    expert_outputs<WORDS>(p, t, j, n, y);
#pragma unroll
    for (int i = 0; i < KR_EXPERTS_EACH; i++) sum[i] = kr_fma(by, y[i], sum[i]);
  }
  if ((kr_thread() & 31) == 0) {
#pragma unroll
    for (int i = 0; i < KR_EXPERTS_EACH; i++) parts[warp][i] = sum[i];
  }
  kr_sync();
  if (warp) return;
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++)
    for (int w = 1; w < KR_EXPERTS_WARPS; w++) sum[i] += parts[w][i];
  store_outputs(a, t * a.out.stride[0], a.out.stride[1], n, sum);
}

template <int WORDS>
KR_DEV void run_rows(const kr_experts_params &p) {
  const kr_expert_gemm_args &a = p.a;
  const uint32_t block = (uint32_t)kr_block_x();
  const int64_t row = block / p.tiles, t = row / a.J, j = row - t * a.J;
  const int tile = (int)(block - (uint32_t)row * p.tiles),
            n = (tile * KR_EXPERTS_WARPS + kr_thread() / 32) * KR_EXPERTS_EACH;
  float y[KR_EXPERTS_EACH];
  if (a.weights.data) {
    sum_choices<WORDS>(p, row, tile);
    return;
  }
  if (n >= a.N) return;
  expert_outputs<WORDS>(p, t, j, n, y);
  store_outputs(a, t * a.out.stride[0] + j * a.out.stride[1], a.out.stride[2], n, y);
}

KR_KERNEL void KR_BOUNDS(32 * KR_EXPERTS_WARPS, 4) kr_expert_rows(const kr_experts_params p) { run_rows<0>(p); }
KR_KERNEL void KR_BOUNDS(32 * KR_EXPERTS_WARPS, 4) kr_expert_words(const kr_experts_params p) { run_rows<1>(p); }

/* ---- choices ---- */

enum { OF_LANE = KR_ROUTE_CUDA_EXPERTS / 32 }; /* experts lane, lane + 32, ... */
static const float NOTHING = -3.0e38f;

/* The warp's largest, of equal ones the lowest place, in every lane. */
KR_DEV void take_best_of_lanes(float &value, int &at) {
#pragma unroll
  for (int d = 16; d; d /= 2) {
    const float other = kr_shuffle_xor(value, d);
    const int other_at = (int)kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float((uint32_t)at), d));
    const int better = other > value || (other == value && other_at < at);
    value = better ? other : value, at = better ? other_at : at;
  }
}

KR_DEV float largest_of_lanes(float value) {
#pragma unroll
  for (int d = 16; d; d /= 2) {
    const float other = kr_shuffle_xor(value, d);
    value = other > value ? other : value;
  }
  return value;
}

/* The sum of a group's two best. */
KR_DEV float rate_group(const float (&choice)[OF_LANE], int first, int n) {
  const int lane = kr_thread() & 31;
  float best = NOTHING, second = NOTHING;
#pragma unroll
  for (int i = 0; i < OF_LANE; i++) {
    const int e = lane + 32 * i;
    const float v = e >= first && e < first + n ? choice[i] : NOTHING;
    second = v > best ? best : v > second ? v : second;
    best = v > best ? v : best;
  }
#pragma unroll
  for (int d = 16; d; d /= 2) {
    const float b = kr_shuffle_xor(best, d), s = kr_shuffle_xor(second, d);
    const float low = b > best ? best : b, high = b > best ? b : best, rest = s > second ? s : second;
    best = high, second = low > rest ? low : rest;
  }
  return n > 1 ? best + second : best;
}

KR_DEV void leave_best_groups(const kr_expert_route_args &a, float (&choice)[OF_LANE]) {
  const int lane = kr_thread() & 31, n = (int)(a.E / a.n_groups);
  float rates[64];
  for (int g = 0; g < a.n_groups; g++) rates[g] = rate_group(choice, g * n, n);
  for (int g = 0; g < a.n_groups; g++) {
    int n_before = 0;
    for (int o = 0; o < a.n_groups; o++) n_before += rates[o] > rates[g] || (rates[o] == rates[g] && o < g);
#pragma unroll
    for (int i = 0; i < OF_LANE; i++)
      if (n_before >= a.best_groups && lane + 32 * i >= g * n && lane + 32 * i < (g + 1) * n) choice[i] = NOTHING;
  }
}

/* The sum over all experts of exp(x - most). */
KR_DEV float sum_of_all(const float (&x)[OF_LANE], int n, float most) {
  const int lane = kr_thread() & 31;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < OF_LANE; i++)
    if (lane + 32 * i < n) sum += kr_exp(x[i] - most);
  return kr_sum_lanes(sum);
}

KR_KERNEL void KR_BOUNDS(32 * KR_EXPERTS_WARPS, 2) kr_expert_route(const kr_route_params p) {
  const kr_expert_route_args &a = p.a;
  const int lane = kr_thread() & 31, E = (int)a.E, K = (int)a.K, is_sigmoid = a.scores == KR_ROUTE_SIGMOID;
  const int64_t t = (int64_t)kr_block_x() * KR_EXPERTS_WARPS + kr_thread() / 32;
  float x[OF_LANE], choice[OF_LANE], most = NOTHING, total = 0.0f, chosen_sum = 0.0f;
  if (t >= a.T) return;
#pragma unroll
  for (int i = 0; i < OF_LANE; i++) {
    const int e = lane + 32 * i;
    const float v = e < E ? kr_load(a.x.data, t * a.x.stride[0] + e * a.x.stride[1], a.x.dtype) : NOTHING;
    x[i] = is_sigmoid && e < E ? kr_sigmoid(v) : v;
    choice[i] = e < E ? x[i] : NOTHING;
    if (a.bias.data && e < E) choice[i] += kr_load(a.bias.data, e * a.bias.stride[0], KRAIT_F32);
    if (!(choice[i] > NOTHING)) choice[i] = e < E ? 0.99f * NOTHING : NOTHING; /* NaN: after all others */
    most = x[i] > most ? x[i] : most;
  }
  most = largest_of_lanes(most);
  const float all = a.scores == KR_ROUTE_ALL ? sum_of_all(x, E, most) : 1.0f;
  if (a.n_groups > 1) leave_best_groups(a, choice);
  for (int pass = 0; pass < 2; pass++) { /* the second one knows the sum */
    const float by = a.scale / (a.scores == KR_ROUTE_CHOSEN           ? chosen_sum
                                : a.call.flags & KR_ROUTE_NORMED ? total + a.eps
                                                                 : 1.0f);
    uint32_t taken = 0;
    for (int k = 0; k < K; k++) {
      float best = 2.0f * NOTHING, own = 0.0f;
      int at = 1 << 30;
#pragma unroll
      for (int i = 0; i < OF_LANE; i++)
        if (!(taken >> i & 1) && lane + 32 * i < E && choice[i] > best) best = choice[i], at = lane + 32 * i;
      take_best_of_lanes(best, at);
#pragma unroll
      for (int i = 0; i < OF_LANE; i++)
        if (lane + 32 * i == at) taken |= 1u << i, own = x[i];
      const float value = kr_shuffle_from(own, at & 31), part = is_sigmoid ? value : kr_exp(value - most) / all;
      if (!pass) total += part, chosen_sum += part;
      if (!pass || lane) continue;
      ((int32_t *)a.index.data)[t * a.index.stride[0] + k * a.index.stride[1]] = at;
      ((float *)a.weights.data)[t * a.weights.stride[0] + k * a.weights.stride[1]] =
          part * by * (a.scores == KR_ROUTE_CHOSEN && a.call.flags & KR_ROUTE_NORMED ? 1.0f / (1.0f + a.eps) : 1.0f);
    }
  }
}
