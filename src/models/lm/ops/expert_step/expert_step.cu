/* expert_step.cu: a mixture of experts of a few rows of 16 bits, bound by reading the chosen experts' weights once.
 *   kr_expert_scores  a warp computes the score of an expert
 *   kr_expert_hidden  a block computes KR_EXPERT_STEP_HIDDEN values silu(gate x) * up x of a choice, or of the MLP for
 *                     all rows, whose weights it asks for before the scores are there. Blocks of choices find their
 *                     expert by its rank among the scores; one of each row stores the choice and its weights
 *   kr_expert_sums    a block computes KR_EXPERT_STEP_SUMS outputs; its warps share the row's hidden values */
#include "pack.cuh"
#include "row_lanes.cuh"

#include "expert_step_params.h"

enum { RUN = 256 }; /* values of a row that a warp multiplies at once: eight a lane */

/* Eight of a row in memory, if it has them. */
KR_DEV kr_raw16 read_weights(const uint16_t *row, int k, int n) {
  return k < n ? kr_read_once(row + k) : kr_raw16{{0, 0, 0, 0}};
}
KR_DEV kr_raw16 read_values(const uint16_t *row, int k, int n) {
  return k < n ? *(const kr_raw16 *)(row + k) : kr_raw16{{0, 0, 0, 0}};
}

template <int TYPE>
KR_DEV float multiply_pack(const kr_raw16 &x, const kr_raw16 &w, float sum) {
#pragma unroll
  for (int i = 0; i < 8; i++) sum = kr_fma(pack_at(x, i, TYPE), pack_at(w, i, TYPE), sum);
  return sum;
}

/* ---- scores ---- */

template <int TYPE>
KR_DEV void score_experts(const kr_expert_step_params &p) {
  enum { AHEAD = 6 };
  const int lane = kr_thread() & 31, tiles = (p.E + KR_EXPERT_STEP_WARPS - 1) / KR_EXPERT_STEP_WARPS,
            t = kr_block_x() / tiles, e = (kr_block_x() - t * tiles) * KR_EXPERT_STEP_WARPS + kr_thread() / 32;
  const uint16_t *x = (const uint16_t *)p.a.x.data + t * p.a.x.stride[0],
                 *row = (const uint16_t *)p.a.router.data + (e < p.E ? e : 0) * p.a.router.stride[0];
  float sum = 0.0f;
  kr_launch_dependents();
  for (int first = lane * 8, waits = 1; first < p.M || waits; first += AHEAD * RUN) {
    kr_raw16 w[AHEAD];
#pragma unroll
    for (int m = 0; m < AHEAD; m++) w[m] = read_weights(row, first + m * RUN, p.M);
    if (waits) kr_keep_near(p.scores), kr_griddep_wait();
    waits = 0;
#pragma unroll
    for (int m = 0; m < AHEAD; m++) sum = multiply_pack<TYPE>(read_values(x, first + m * RUN, p.M), w[m], sum);
  }
  sum = kr_sum_lanes(sum);
  if (lane == 0 && e < p.E) p.scores[t * p.E + e] = sum;
}

/* ---- choices ---- */

struct __attribute__((aligned(16))) choices {
  float scores[KR_EXPERT_STEP_EXPERTS]; /* up to a multiple of eight, the last ones below all others */
  int32_t order[KR_EXPERT_STEP_EXPERTS]; /* experts, best first */
};

/* By all threads of a block: two lanes count the experts before one. NaN is behind all others. */
KR_DEV void order_experts(const kr_expert_step_params &p, int t, choices &of) {
  const int padded = (p.E + 7) / 8 * 8;
  for (int e = kr_thread(); e < padded; e += 32 * KR_EXPERT_STEP_WARPS) {
    const float v = e < p.E ? p.scores[t * p.E + e] : 0.0f;
    of.scores[e] = e >= p.E ? -3.2e38f : v > -3.0e38f ? v : -3.0e38f;
  }
  kr_sync();
  for (int first = 0; first < p.E; first += 16 * KR_EXPERT_STEP_WARPS) {
    const int e = first + kr_thread() / 2;
    const float v = e < p.E ? of.scores[e] : 0.0f;
    float n = 0.0f;
#pragma unroll 2
    for (int o = 4 * (kr_thread() & 1); o < padded; o += 8) {
      const kr_float4 others = *(const kr_float4 *)&of.scores[o];
#pragma unroll
      for (int i = 0; i < 4; i++)
        n += others.v[i] > v || (others.v[i] == v && o + i < e) ? 1.0f : 0.0f;
    }
    n += kr_shuffle_xor(n, 1);
    if (e < p.E && !(kr_thread() & 1)) of.order[(int)n] = e;
  }
  kr_sync();
}

/* Always one of the experts, whatever was read. */
KR_DEV int expert_at(const kr_expert_step_params &p, const choices &of, int j) {
  const int e = of.order[j];
  return e >= 0 && e < p.E ? e : 0;
}

/* By a warp: the weights of expert_route. */
KR_DEV void store_choices(const kr_expert_step_params &p, int t, const choices &of) {
  const int lane = kr_thread() & 31, is_normed = (p.a.call.flags & KR_ROUTE_NORMED) != 0,
            of_all = p.a.scores == KR_ROUTE_ALL, e = expert_at(p, of, lane < p.K ? lane : 0);
  const float most = of.scores[expert_at(p, of, 0)];
  float all = 0.0f;
  if (of_all)
    for (int o = lane; o < p.E; o += 32) all += kr_exp(of.scores[o] - most);
  all = of_all ? kr_sum_lanes(all) : 1.0f;
  const float part = lane < p.K ? kr_exp(of.scores[e] - most) / all : 0.0f, sum = kr_sum_lanes(part),
              by = of_all ? (is_normed ? p.a.scale / (sum + p.a.eps) : p.a.scale)
                          : p.a.scale / (is_normed ? sum * (1.0f + p.a.eps) : sum);
  if (lane < p.K) p.index[t * p.K + lane] = e, p.weights[t * p.K + lane] = part * by;
}

/* ---- hidden values ---- */

enum { EACH = KR_EXPERT_STEP_HIDDEN / KR_EXPERT_STEP_WARPS, DEEP = 6 };

/* The warp's rows of gate, then of up. */
struct rows {
  const uint16_t *at[2][EACH];
};

KR_DEV rows rows_from(const void *gate, int64_t gate_at, int64_t gate_step, const void *up, int64_t up_at,
                      int64_t up_step, int n, int N) {
  rows r;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int row = n + i < N ? n + i : N - 1;
    r.at[0][i] = (const uint16_t *)gate + gate_at + row * gate_step;
    r.at[1][i] = (const uint16_t *)up + up_at + row * up_step;
  }
  return r;
}

KR_DEV void ask_for_rows(const rows &r, int first, int M, kr_raw16 (&w)[DEEP][2][EACH]) {
#pragma unroll
  for (int m = 0; m < DEEP; m++)
#pragma unroll
    for (int which = 0; which < 2; which++)
#pragma unroll
      for (int i = 0; i < EACH; i++) w[m][which][i] = read_weights(r.at[which][i], first + m * RUN, M);
}

template <int TYPE>
KR_DEV void compute_hidden(const kr_expert_step_params &p) {
  KR_SHARED choices of;
  const kr_expert_step_args &a = p.a;
  const int each_row = p.shared_tiles + p.K * p.tiles, t = kr_block_x() / each_row, tile = kr_block_x() - t * each_row,
            is_shared = tile < p.shared_tiles, j = is_shared ? 0 : (tile - p.shared_tiles) / p.tiles,
            N = is_shared ? p.S : p.F, lane = kr_thread() & 31,
            n = ((is_shared ? tile : tile - p.shared_tiles - j * p.tiles) * KR_EXPERT_STEP_WARPS + kr_thread() / 32) *
                EACH;
  const uint16_t *x = (const uint16_t *)a.x.data + t * a.x.stride[0];
  kr_raw16 w[DEEP][2][EACH];
  float sums[2][EACH] = {};
  rows r;
  kr_launch_dependents();
  if (is_shared) {
    r = rows_from(a.shared_gate.data, 0, a.shared_gate.stride[0], a.shared_up.data, 0, a.shared_up.stride[0], n, N);
    ask_for_rows(r, lane * 8, p.M, w);
  }
  kr_keep_all_near(p);
  kr_griddep_wait();
  if (!is_shared) {
    order_experts(p, t, of);
    const int64_t e = expert_at(p, of, j);
    if (tile == p.shared_tiles && kr_thread() < 32) store_choices(p, t, of);
    r = rows_from(a.gate.data, e * a.gate.stride[0], a.gate.stride[1], a.up.data, e * a.up.stride[0], a.up.stride[1],
                  n, N);
    ask_for_rows(r, lane * 8, p.M, w);
  }
  for (int first = lane * 8; first < p.M; first += DEEP * RUN) {
    if (first >= DEEP * RUN) ask_for_rows(r, first, p.M, w);
#pragma unroll
    for (int m = 0; m < DEEP; m++) {
      const kr_raw16 values = read_values(x, first + m * RUN, p.M);
#pragma unroll
      for (int which = 0; which < 2; which++)
#pragma unroll
        for (int i = 0; i < EACH; i++) sums[which][i] = multiply_pack<TYPE>(values, w[m][which][i], sums[which][i]);
    }
  }
  uint16_t *to = (uint16_t *)p.hidden + (int64_t)t * (p.S + p.K * p.F) + (is_shared ? 0 : p.S + j * p.F);
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const float gate = kr_sum_lanes(sums[0][i]), up = kr_sum_lanes(sums[1][i]);
    if (lane == i && n + i < N) kr_store(to, n + i, TYPE, kr_silu(gate) * up);
  }
}

/* ---- sums ---- */

template <int TYPE>
KR_DEV void sum_hidden(const kr_expert_step_params &p) {
  enum { WARPS = KR_EXPERT_STEP_SUM_WARPS, OUTPUTS = KR_EXPERT_STEP_SUMS, RUNS = KR_EXPERT_STEP_PART / RUN };
  KR_SHARED float parts[WARPS][OUTPUTS];
  const kr_expert_step_args &a = p.a;
  const int tiles = (p.M + OUTPUTS - 1) / OUTPUTS, t = kr_block_x() / tiles, n = (kr_block_x() - t * tiles) * OUTPUTS,
            warp = kr_thread() / 32, lane = kr_thread() & 31, n_parts = p.shared_parts + p.K * p.parts;
  const uint16_t *hidden = (const uint16_t *)p.hidden + (int64_t)t * (p.S + p.K * p.F);
  float sum[OUTPUTS] = {};
  int waits = 1;
  kr_launch_dependents();
  kr_keep_all_near(p);
  for (int part = warp; part < n_parts; part += WARPS) {
    const int is_shared = part < p.shared_parts, of = part - p.shared_parts, j = is_shared ? 0 : of / p.parts,
              first = (is_shared ? part : of - j * p.parts) * KR_EXPERT_STEP_PART + lane * 8, N = is_shared ? p.S : p.F;
    if (!is_shared && waits) kr_griddep_wait(), waits = 0;
    const int64_t step = is_shared ? a.shared_down.stride[0] : a.down.stride[1];
    const uint16_t *rows = is_shared ? (const uint16_t *)a.shared_down.data
                                     : (const uint16_t *)a.down.data + p.index[t * p.K + j] * a.down.stride[0],
                   *values = hidden + (is_shared ? 0 : p.S + j * p.F);
    kr_raw16 w[RUNS][OUTPUTS];
#pragma unroll
    for (int m = 0; m < RUNS; m++)
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++)
        w[m][i] = read_weights(rows + (n + i < p.M ? n + i : n) * step, first + m * RUN, N);
    if (waits) kr_griddep_wait();
    waits = 0;
    const float by = is_shared ? a.shared_scale : p.weights[t * p.K + j];
    float y[OUTPUTS] = {};
#pragma unroll
    for (int m = 0; m < RUNS; m++) {
      const kr_raw16 x = read_values(values, first + m * RUN, N);
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++) y[i] = multiply_pack<TYPE>(x, w[m][i], y[i]);
    }
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) sum[i] = kr_fma(by, y[i], sum[i]);
  }
  if (waits) kr_griddep_wait();
  const float one = kr_sum_lanes_of_four(sum);
  if (lane < OUTPUTS) parts[warp][lane] = one;
  kr_sync();
  if (warp || lane >= OUTPUTS || n + lane >= p.M) return;
  float all = 0.0f;
#pragma unroll
  for (int i = 0; i < WARPS; i++) all += parts[i][lane];
  kr_store(a.out.data, t * a.out.stride[0] + (n + lane) * a.out.stride[1], TYPE, all);
}

enum { THREADS = 32 * KR_EXPERT_STEP_WARPS, SUM_THREADS = 32 * KR_EXPERT_STEP_SUM_WARPS };
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_expert_scores_f16(const kr_expert_step_params p) {
  score_experts<KRAIT_F16>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_expert_scores_bf16(const kr_expert_step_params p) {
  score_experts<KRAIT_BF16>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_expert_hidden_f16(const kr_expert_step_params p) {
  compute_hidden<KRAIT_F16>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_expert_hidden_bf16(const kr_expert_step_params p) {
  compute_hidden<KRAIT_BF16>(p);
}
KR_KERNEL void KR_BOUNDS(SUM_THREADS, 3) kr_expert_sums_f16(const kr_expert_step_params p) { sum_hidden<KRAIT_F16>(p); }
KR_KERNEL void KR_BOUNDS(SUM_THREADS, 3) kr_expert_sums_bf16(const kr_expert_step_params p) {
  sum_hidden<KRAIT_BF16>(p);
}
