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

/* The same of aligned rows of one type, several packs of each row on their way at once. GATED: also of B2's. */
template <int TYPE, int GATED>
KR_DEV void multiply_packs(const kr_experts_params &p, int64_t e, int64_t a_at, int n,
                           float (&sums)[1 + GATED][KR_EXPERTS_EACH]) {
  enum { AHEAD = 3, EACH = TYPE == KRAIT_F32 ? 4 : 8, BYTES = 16 / EACH };
  const kr_expert_gemm_args &a = p.a;
  const char *rows[1 + GATED][KR_EXPERTS_EACH];
#pragma unroll
  for (int which = 0; which <= GATED; which++) {
    const kr_view &B = which ? a.B2 : a.Bmat;
#pragma unroll
    for (int i = 0; i < KR_EXPERTS_EACH; i++)
      rows[which][i] =
          (const char *)B.data + (e * B.stride[0] + (n + i < a.N ? n + i : n) * B.stride[1]) * (int64_t)BYTES;
  }
  for (int64_t first = (kr_thread() & 31) * EACH; first < a.K; first += AHEAD * 32 * EACH) {
    kr_raw16 x[AHEAD], w[AHEAD][1 + GATED][KR_EXPERTS_EACH];
#pragma unroll
    for (int m = 0; m < AHEAD; m++) {
      const int64_t k = first + m * 32 * EACH;
      const int exists = k < a.K;
      x[m] = load_pack(a.A.data, a_at + k, 1, TYPE, 1, a.K - k);
#pragma unroll
      for (int which = 0; which <= GATED; which++)
#pragma unroll
        for (int i = 0; i < KR_EXPERTS_EACH; i++)
          w[m][which][i] = exists ? kr_read_once(rows[which][i] + k * BYTES) : kr_raw16{{0, 0, 0, 0}};
    }
#pragma unroll
    for (int m = 0; m < AHEAD; m++)
#pragma unroll
      for (int which = 0; which <= GATED; which++)
#pragma unroll
        for (int i = 0; i < KR_EXPERTS_EACH; i++)
#pragma unroll
          for (int c = 0; c < EACH; c++)
            sums[which][i] = kr_fma(pack_at(x[m], c, TYPE), pack_at(w[m][which][i], c, TYPE), sums[which][i]);
  }
}

template <int GATED>
KR_DEV void multiply_rows(const kr_experts_params &p, int64_t e, int64_t a_at, int n,
                          float (&sums)[1 + GATED][KR_EXPERTS_EACH]) {
  if (p.packs && p.a.A.dtype == KRAIT_F16) multiply_packs<KRAIT_F16, GATED>(p, e, a_at, n, sums);
  if (p.packs && p.a.A.dtype == KRAIT_BF16) multiply_packs<KRAIT_BF16, GATED>(p, e, a_at, n, sums);
  if (p.packs && p.a.A.dtype == KRAIT_F32) multiply_packs<KRAIT_F32, GATED>(p, e, a_at, n, sums);
#pragma unroll
  for (int which = 0; which <= GATED && !p.packs; which++) {
    const kr_view &B = which ? p.a.B2 : p.a.Bmat;
    multiply_any(p, B, a_at, e * B.stride[0] + n * B.stride[1], n, sums[which]);
  }
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

/* What a kernel multiplies: matrices, gated ones, or words. */
enum { PLAIN, GATED, WORDS };

/* y of a row, a choice, and outputs from n on. */
template <int KIND>
KR_DEV void expert_outputs(const kr_experts_params &p, int64_t t, int64_t j, int n, float (&y)[KR_EXPERTS_EACH]) {
  const kr_expert_gemm_args &a = p.a;
  const int64_t e = ((const int32_t *)a.index.data)[t * a.index.stride[0] + j * a.index.stride[1]],
                a_at = t * a.A.stride[0] + (a.S > 1 ? j : 0) * a.A.stride[1];
  float sums[1 + (KIND == GATED)][KR_EXPERTS_EACH] = {};
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++) y[i] = 0.0f;
  if (e < 0 || e >= a.E) return;
  if (KIND == WORDS)
    multiply_words(p, e, a_at, n, sums[0]);
  else
    multiply_rows<KIND == GATED>(p, e, a_at, n, sums);
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++) {
    y[i] = kr_sum_lanes(sums[0][i]);
    if (KIND != WORDS && a.activation == KRAIT_ACT_SILU) y[i] = kr_silu(y[i]);
    if (KIND == GATED) y[i] *= kr_sum_lanes(sums[KIND == GATED][i]);
  }
}

KR_DEV void store_outputs(const kr_expert_gemm_args &a, int64_t at, int64_t step, int n,
                          const float (&y)[KR_EXPERTS_EACH]) {
#pragma unroll
  for (int i = 0; i < KR_EXPERTS_EACH; i++)
    if ((kr_thread() & 31) == i && n + i < a.N) kr_store(a.out.data, at + (n + i) * step, a.out.dtype, y[i]);
}

/* A block computes the same outputs of all choices of a row, a warp those of every KR_EXPERTS_SUM_WARPS-th. */
template <int KIND>
KR_DEV void sum_choices(const kr_experts_params &p) {
  KR_SHARED float parts[KR_EXPERTS_SUM_WARPS][KR_EXPERTS_EACH];
  const kr_expert_gemm_args &a = p.a;
  const int64_t t = (uint32_t)kr_block_x() / p.tiles;
  const int warp = kr_thread() / 32, n = (int)((uint32_t)kr_block_x() - (uint32_t)t * p.tiles) * KR_EXPERTS_EACH;
  float sum[KR_EXPERTS_EACH] = {}, y[KR_EXPERTS_EACH];
  for (int64_t j = warp; j < a.J; j += KR_EXPERTS_SUM_WARPS) {
    const float by = kr_load(a.weights.data, t * a.weights.stride[0] + j * a.weights.stride[1], KRAIT_F32);
    expert_outputs<KIND>(p, t, j, n, y);
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
    for (int w = 1; w < KR_EXPERTS_SUM_WARPS; w++) sum[i] += parts[w][i];
  store_outputs(a, t * a.out.stride[0], a.out.stride[1], n, sum);
}

template <int KIND>
KR_DEV void multiply_choice(const kr_experts_params &p) {
  const kr_expert_gemm_args &a = p.a;
  const uint32_t block = (uint32_t)kr_block_x();
  const int64_t row = block / p.tiles, t = row / a.J, j = row - t * a.J;
  const int tile = (int)(block - (uint32_t)row * p.tiles),
            n = (tile * KR_EXPERTS_WARPS + kr_thread() / 32) * KR_EXPERTS_EACH;
  float y[KR_EXPERTS_EACH];
  if (n >= a.N) return;
  expert_outputs<KIND>(p, t, j, n, y);
  store_outputs(a, t * a.out.stride[0] + j * a.out.stride[1], a.out.stride[2], n, y);
}

template <int KIND>
KR_DEV void run_rows(const kr_experts_params &p) {
  kr_launch_dependents();
  kr_keep_all_near(p);
  kr_griddep_wait();
  if (p.a.weights.data)
    sum_choices<KIND>(p);
  else
    multiply_choice<KIND>(p);
}

/* The sums' blocks have the most threads. */
enum { THREADS = 32 * KR_EXPERTS_SUM_WARPS };
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_expert_rows(const kr_experts_params p) { run_rows<PLAIN>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_expert_rows_gated(const kr_experts_params p) { run_rows<GATED>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_expert_words(const kr_experts_params p) { run_rows<WORDS>(p); }

/* ---- choices ---- */

/* OF_LANE: experts of a lane: lane, lane + 32, ... */
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
template <int OF_LANE>
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

template <int OF_LANE>
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
template <int OF_LANE>
KR_DEV float sum_of_all(const float (&x)[OF_LANE], int n, float most) {
  const int lane = kr_thread() & 31;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < OF_LANE; i++)
    if (lane + 32 * i < n) sum += kr_exp(x[i] - most);
  return kr_sum_lanes(sum);
}

/* A row's choice k; total and chosen: sums of all its choices' parts. */
KR_DEV void put_choice(const kr_expert_route_args &a, int64_t t, int k, int at, float part, float total, float chosen) {
  const int is_normed = (a.call.flags & KR_ROUTE_NORMED) != 0;
  const float sum = a.scores == KR_ROUTE_CHOSEN ? chosen : is_normed ? total + a.eps : 1.0f,
              by = a.scale / sum * (a.scores == KR_ROUTE_CHOSEN && is_normed ? 1.0f / (1.0f + a.eps) : 1.0f);
  ((int32_t *)a.index.data)[t * a.index.stride[0] + k * a.index.stride[1]] = at;
  ((float *)a.weights.data)[t * a.weights.stride[0] + k * a.weights.stride[1]] = part * by;
}

template <int OF_LANE>
KR_DEV void choose_experts(const kr_route_params &p) {
  const kr_expert_route_args &a = p.a;
  const int lane = kr_thread() & 31, E = (int)a.E, K = (int)a.K, is_sigmoid = a.scores == KR_ROUTE_SIGMOID;
  const int64_t t = (int64_t)kr_block_x() * KR_EXPERTS_WARPS + kr_thread() / 32;
  float x[OF_LANE], choice[OF_LANE], most = NOTHING, total = 0.0f, chosen_sum = 0.0f;
  kr_launch_dependents();
  kr_keep_all_near(p);
  kr_griddep_wait();
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
  int own_at = 0; /* choice `lane`, of up to 32 */
  float own_part = 0.0f;
  for (int pass = 0; pass < (K > 32 ? 2 : 1); pass++) { /* the second one knows the sum */
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
      if (k == lane) own_at = at, own_part = part;
      if (pass && !lane) put_choice(a, t, k, at, part, total, chosen_sum);
    }
  }
  if (K <= 32 && lane < K) put_choice(a, t, lane, own_at, own_part, total, chosen_sum);
}

enum { ROUTE_THREADS = 32 * KR_EXPERTS_WARPS };
KR_KERNEL void KR_BOUNDS(ROUTE_THREADS, 4) kr_expert_route_few(const kr_route_params p) {
  choose_experts<KR_ROUTE_CUDA_FEW / 32>(p);
}
KR_KERNEL void KR_BOUNDS(ROUTE_THREADS, 2) kr_expert_route(const kr_route_params p) {
  choose_experts<KR_ROUTE_CUDA_EXPERTS / 32>(p);
}
