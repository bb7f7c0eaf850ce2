/* gemm_m16.cu: up to 16 rows of A (tokens) times weights contiguous in k: bound by reading the weights once. The weight
 * loads are issued before the preceding kernel has ended (overlap.cuh). Compiled once per type; float32 (KR_FLOAT) has
 * the products of one or two tokens alone.
 *   kr_gemm_one, _two   one or two tokens, by FMAs: p.n_splits warps share the K of four columns; a lane loads
 *                       eight neighbours of a row of weights at a time
 *   kr_*_wide, _once     the same for up to 2560 k, all in flight at once; wide: eight columns per warp
 *   kr_norm_gemm_*, kr_gate_gemm_*  the same with a fused RMS norm of the row: of a residual stream plus an addend, or
 *                       of a row and its gate; a convolution step may follow on some result columns. One row: up to
 *                       2560 k, _deep up to 5120, all in flight at once; _gated, up to 2048: silu of one product times
 *                       another
 *   kr_gemm_m16_8, _16  a block computes 16 result columns; its warps share K, each loading 128 bytes of 16 weight rows
 *                       at a time directly into registers as the tensor cores' left operand, tokens being the right
 *                       one: the order of k within a step is irrelevant as long as both operands share it */
#include "row_lanes.cuh"
#include "gemm_m16.h"
#include "gemm_finish.cuh"
#include "turing.cuh"

#ifdef KR_FLOAT
typedef float stored; /* as an element lies in memory */
enum { DTYPE = KRAIT_F32 };
#elif defined(KR_HALF)
typedef kr_f16 element;
typedef uint16_t stored;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
typedef uint16_t stored;
enum { DTYPE = KRAIT_BF16 };
#endif
enum { WARPS = KR_FEW_THREADS / 32, STEP = 64, COLUMNS = KR_FEW_COLUMNS, AHEAD = 2 };

KR_DEV kr_raw16 read_16(const stored *from, int exists) {
  if (exists) return *(const kr_raw16 *)from;
  return (kr_raw16){{0, 0, 0, 0}};
}
KR_DEV kr_raw16 read_16_once(const stored *from, int exists) {
  if (exists) return kr_read_once(from);
  return (kr_raw16){{0, 0, 0, 0}};
}
typedef kr_eight<DTYPE> eight;
enum { PARTS = sizeof(eight) / sizeof(kr_raw16), IN_PART = 8 / PARTS };
KR_DEV eight read_eight(const stored *from, int exists) {
  eight v;
#pragma unroll
  for (int i = 0; i < PARTS; i++) v.part[i] = read_16(from + IN_PART * i, exists);
  return v;
}
KR_DEV eight read_eight_once(const stored *from, int exists) {
  eight v;
#pragma unroll
  for (int i = 0; i < PARTS; i++) v.part[i] = read_16_once(from + IN_PART * i, exists);
  return v;
}

/* ---- FMAs -------------------------------------------------------------------------------------------------------- */

enum { RUN = KR_FEW_RUN, IN_GROUP = KR_FEW_GROUP }; /* k per warp and step; columns */

KR_DEV void widen(const eight &raw, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = kr_eight_at<DTYPE>(raw, i);
}

/* The epilogue for one row of a group's four columns. */
template <int GATED>
KR_DEV void finish_plain(const kr_gemm_m16_params &p, int m, int n, float (&v)[IN_GROUP],
                         const float (&second)[IN_GROUP], const kr_float4 &added) {
#pragma unroll
  for (int i = 0; i < IN_GROUP; i++) v[i] *= p.scale;
  kr_activate<IN_GROUP>(v, p.activation);
  if (GATED) {
#pragma unroll
    for (int i = 0; i < IN_GROUP; i++) v[i] *= second[i] * p.scale;
  }
#pragma unroll
  for (int i = 0; i < IN_GROUP; i++) v[i] += added.v[i];
  kr_store_four<DTYPE>(p.out, m * p.out_row + n, p.out_dtype == KRAIT_F32, v);
}

/* A warp takes FOURS groups of four columns; its weight rows are B's, then B2's. ONCE: the warps hold all of K at once,
 * in that many runs each. */
template <int TOKENS, int GATED, int NORM, int FOURS, int ONCE>
KR_DEV void run_lanes(const kr_gemm_m16_params &p) {
  const int COLUMNS = IN_GROUP * FOURS, ROWS = COLUMNS * (1 + GATED),
            UNITS = ONCE ? ONCE : GATED || NORM || PARTS > 1 ? 1 : 2;
  KR_SHARED kr_float4 sums[KR_FEW_MOST_WARPS][TOKENS][ROWS / IN_GROUP];
  KR_SHARED float root_parts[KR_FEW_MOST_WARPS][TOKENS]; /* of the norm: sums of squares */
  KR_SHARED kr_conv_run<DTYPE> convs[NORM ? KR_FEW_MOST_WARPS : 1][FOURS * TOKENS];
  const int lane = kr_thread() & 31, warp = kr_thread() / 32, splits = p.n_splits, group = warp / splits,
            part = warp - group * splits, n = (kr_block_x() * p.n_groups + group) * COLUMNS, K = p.K,
            step = UNITS * splits * RUN, writes = NORM && kr_block_x() == 0 && group == 0;
  kr_launch_dependents();
  const stored *A = (const stored *)p.A + 8 * lane,
                 *B[] = {(const stored *)p.B + n * p.B_column + 8 * lane,
                         (const stored *)p.B2 + n * p.B2_column + 8 * lane};
  if (p.P > 1) {
    const int batch = kr_block_y();
    A += batch * p.params.A.batch, B[0] += batch * p.params.B.batch, B[1] += batch * p.params.B2.batch;
  }
  if (!p.is_plain && p.params.bias.data && n < p.N)
    kr_fetch((const char *)p.params.bias.data + n * p.params.bias.row * (p.params.bias.dtype == KRAIT_F32 ? 4 : 2));
  float sum[TOKENS][ROWS] = {}, squares[TOKENS] = {};
  int waits = 1;
  for (int k = part * RUN; k < K || waits; k += step) {
    eight w[UNITS][ROWS];
#pragma unroll
    for (int u = 0; u < UNITS; u++)
#pragma unroll
      for (int r = 0; r < ROWS; r++)
        w[u][r] = read_eight_once(
            B[r / COLUMNS] + r % COLUMNS * (r < COLUMNS ? p.B_column : p.B2_column) + k + u * splits * RUN,
            n + r % COLUMNS < p.N && k + u * splits * RUN + 8 * lane < K);
    eight weight[UNITS]; /* of the norm */
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const int at = k + u * splits * RUN + 8 * lane;
      if (NORM) weight[u] = read_eight((const stored *)p.norm.weight + at, at < K);
    }
    if (NORM && waits)
      kr_keep_near(p.norm.other), kr_keep_near(p.norm.sum), kr_keep_near(p.conv.state), kr_keep_near(p.conv.out);
    if (waits) {
      kr_keep_near(p.out), kr_keep_near(p.out_row), kr_keep_near(p.scale), kr_keep_near(p.is_plain),
          kr_keep_near(p.added);
      if (NORM && p.conv.state && !p.state_ahead) kr_griddep_wait();
      if (NORM && p.conv.state && part == 0) {
        const int of = lane / KR_CONV_PIECES, c = n + IN_GROUP * (of / TOKENS) - p.conv.from;
        if (of < FOURS * TOKENS && of % TOKENS < p.M && c >= 0 && c < p.conv.channels)
          kr_fetch_conv<DTYPE>(p.conv, of % TOKENS, c, lane % KR_CONV_PIECES, convs[group][of]);
        kr_commit_copies();
      }
      kr_griddep_wait();
    }
    waits = 0;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      const int at = k + u * splits * RUN;
      float x[TOKENS][8];
#pragma unroll
      for (int t = 0; t < TOKENS; t++) {
        const int m = t < p.M ? t : 0, exists = at + 8 * lane < K;
        widen(read_eight(A + m * p.A_row + at, exists && (!NORM || p.A)), x[t]);
        if (NORM)
          kr_norm_run<NORM, DTYPE>(p.norm, weight[u], m, at + 8 * lane, exists, t < p.M && writes, x[t], squares[t]);
      }
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float v[8];
        widen(w[u][r], v);
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
#pragma unroll
          for (int i = 0; i < 8; i++) sum[t][r] = kr_fma(v[i], x[t][i], sum[t][r]);
      }
    }
    if (ONCE) break;
  }
  const int m = lane % TOKENS, four = lane / TOKENS, own = n + IN_GROUP * four, finishes = part == 0 && four < FOURS,
            channel = own - p.conv.from; /* what this lane finishes: one row of four columns */
  const int has_conv =
      NORM && p.conv.state && finishes && m < p.M && channel >= 0 && channel < p.conv.channels;
  kr_float4 added = {};
  if (!NORM && p.added && finishes && m < p.M && own < p.N)
    added = *(const kr_float4 *)(p.added + m * p.added_row + own);
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
#pragma unroll
    for (int r = 0; r < ROWS; r += IN_GROUP) {
      const float one = kr_sum_lanes_of_four(sum[t] + r);
      if (lane < IN_GROUP) sums[warp][t][r / IN_GROUP].v[lane] = one;
    }
    if (!NORM) continue;
    const float square = kr_sum_lanes(squares[t]);
    if (lane == 0) root_parts[warp][t] = square;
  }
  if (NORM) kr_copied<0>();
  kr_sync();
  if (!finishes) return;
  float v[IN_GROUP] = {}, second[IN_GROUP] = {}, square = 0.0f;
#pragma unroll
  for (int s = 0; s < KR_FEW_MOST_WARPS; s++) { /* no branches, so that all loads are in flight at once */
    const int counts = s < splits, of = warp + (counts ? s : 0);
#pragma unroll
    for (int i = 0; i < IN_GROUP; i++) {
      v[i] += kr_select(counts, sums[of][m][four].v[i], 0.0f);
      if (GATED) second[i] += kr_select(counts, sums[of][m][FOURS + four].v[i], 0.0f);
    }
    if (NORM) square += kr_select(counts, root_parts[of][m], 0.0f);
  }
  if (NORM) {
    const float scale = kr_rsqrt(kr_fma(square, p.norm.inverse_K, p.norm.eps));
#pragma unroll
    for (int i = 0; i < IN_GROUP; i++) v[i] *= scale, second[i] *= scale;
  }
  if (p.is_plain) {
    if (m < p.M && own < p.N) finish_plain<GATED>(p, m, own, v, second, added);
    if (has_conv) kr_convolve<DTYPE>(p.conv, m, channel, convs[group][four * TOKENS + m], v);
    return;
  }
  kr_column_terms<IN_GROUP> terms;
  kr_read_terms<IN_GROUP>(p.params, own, terms);
  kr_finish_run<IN_GROUP, GATED>(p.params, terms, kr_block_y(), m, own, v, second);
}

/* ---- tensor cores ------------------------------------------------------------------------------------------------ */

#ifndef KR_FLOAT

/* One step: this lane's part of two runs of 32 k in its row of a factor. */
KR_DEV void read_step(kr_raw16 (&v)[2], const uint16_t *row, int k, int K) {
#pragma unroll
  for (int h = 0; h < 2; h++) v[h] = read_16(row + k + 32 * h, k + 32 * h < K);
}

KR_DEV void read_weights(kr_raw16 (&low)[2], kr_raw16 (&high)[2], const uint16_t *low_row, const uint16_t *high_row,
                         int k, int K) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int exists = k + 32 * h < K;
    low[h] = read_16_once(low_row + k + 32 * h, exists), high[h] = read_16_once(high_row + k + 32 * h, exists);
  }
}

template <int TOKENS>
KR_DEV void read_tokens(kr_raw16 (&x)[TOKENS][2], const kr_gemm_params &p, const uint16_t *A, int k, int K) {
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
    const int m = 8 * t + (kr_thread() & 31) / 4;
    read_step(x[t], A + (m < p.M ? m : 0) * p.A.row, k, m < p.M ? K : 0);
  }
}

template <int TOKENS>
KR_DEV void multiply(float (&d)[TOKENS][4], const kr_raw16 (&low)[2], const kr_raw16 (&high)[2],
                     const kr_raw16 (&x)[TOKENS][2]) {
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int pair = 0; pair < 4; pair += 2) {
      const uint32_t a[4] = {low[h].w[pair], high[h].w[pair], low[h].w[pair + 1], high[h].w[pair + 1]};
#pragma unroll
      for (int t = 0; t < TOKENS; t++) kr_mma_as(element(), d[t], a, x[t][h].w[pair], x[t][h].w[pair + 1]);
    }
}

/* TOKENS: in groups of eight. */
template <int TOKENS, int GATED>
KR_DEV void run(const kr_gemm_params &p) {
  KR_SHARED float sums[1 + GATED][WARPS][8 * TOKENS][COLUMNS + 1];
  const int lane = kr_thread() & 31, warp = kr_thread() / 32, g = lane / 4, q = lane % 4, n = kr_block_x() * COLUMNS,
            batch = kr_block_y(), K = p.K;
  const int low_row = n + g < p.N ? n + g : p.N - 1, high_row = n + g + 8 < p.N ? n + g + 8 : p.N - 1;
  const uint16_t *B = (const uint16_t *)p.B.data + batch * p.B.batch + 8 * q,
                 *B2 = (const uint16_t *)p.B2.data + batch * p.B2.batch + 8 * q,
                 *A = (const uint16_t *)p.A.data + batch * p.A.batch + 8 * q;
  const uint16_t *low = B + low_row * p.B.column, *high = B + high_row * p.B.column, *low2 = B2 + low_row * p.B2.column,
                 *high2 = B2 + high_row * p.B2.column;
  float d[TOKENS][4], d2[TOKENS][4];
  kr_launch_dependents();
  const int m = kr_thread() / 2, column = kr_thread() % 2 * 8;
  kr_column_terms<8> terms;
  if (m < 8 * TOKENS) kr_read_terms<8>(p, n + column, terms);
  int waits = 1;
#pragma unroll
  for (int i = 0; i < 4 * TOKENS; i++) d[i / 4][i % 4] = d2[i / 4][i % 4] = 0.0f;
  for (int k = warp * STEP; k < K || waits; k += AHEAD * WARPS * STEP) {
    kr_raw16 l[AHEAD][2], h[AHEAD][2], x[AHEAD][TOKENS][2];
#pragma unroll
    for (int s = 0; s < AHEAD; s++) read_weights(l[s], h[s], low, high, k + s * WARPS * STEP, K - 8 * q);
    if (waits) kr_griddep_wait();
    waits = 0;
#pragma unroll
    for (int s = 0; s < AHEAD; s++) read_tokens<TOKENS>(x[s], p, A, k + s * WARPS * STEP, K - 8 * q);
#pragma unroll
    for (int s = 0; s < AHEAD; s++) multiply<TOKENS>(d, l[s], h[s], x[s]);
    if (!GATED) continue;
#pragma unroll
    for (int s = 0; s < AHEAD; s++) read_weights(l[s], h[s], low2, high2, k + s * WARPS * STEP, K - 8 * q);
#pragma unroll
    for (int s = 0; s < AHEAD; s++) multiply<TOKENS>(d2, l[s], h[s], x[s]);
  }
#pragma unroll
  for (int t = 0; t < TOKENS; t++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      sums[0][warp][8 * t + 2 * q + i % 2][g + i / 2 * 8] = d[t][i];
      if (GATED) sums[GATED][warp][8 * t + 2 * q + i % 2][g + i / 2 * 8] = d2[t][i];
    }
  kr_sync();
  if (m >= 8 * TOKENS) return;
  float v[8], second[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    v[i] = second[i] = 0.0f;
    for (int w = 0; w < WARPS; w++) {
      v[i] += sums[0][w][m][column + i];
      if (GATED) second[i] += sums[GATED][w][m][column + i];
    }
  }
  kr_finish_run<8, GATED>(p, terms, batch, m, n + column, v, second);
}

#endif

/* TWO, THREE: blocks of a multiprocessor for kernels with many weights in registers; float32's take twice as many. */
#ifdef KR_FLOAT
enum { TWO = 1, THREE = 2, FOUR = 2 };
#else
enum { TWO = 2, THREE = 3, FOUR = 4 };
#endif
enum { LANES_THREADS = 32 * KR_FEW_MOST_WARPS };
KR_KERNEL void KR_BOUNDS(LANES_THREADS, 3) kr_gemm_one(kr_gemm_m16_params params) {
  run_lanes<1, 0, KR_NO_NORM, 1, 0>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, 2) kr_gemm_two(kr_gemm_m16_params params) {
  run_lanes<2, 0, KR_NO_NORM, 1, 0>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, THREE) kr_gemm_one_wide(kr_gemm_m16_params params) {
  run_lanes<1, 0, KR_NO_NORM, 2, 1>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, TWO) kr_gemm_one_gated(kr_gemm_m16_params params) {
  run_lanes<1, 1, KR_NO_NORM, 1, 0>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, TWO) kr_gemm_two_gated(kr_gemm_m16_params params) {
  run_lanes<2, 1, KR_NO_NORM, 1, 0>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, THREE) kr_gemm_one_gated_once(kr_gemm_m16_params params) {
  run_lanes<1, 1, KR_NO_NORM, 1, 1>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, 3) kr_norm_gemm_one(kr_gemm_m16_params params) {
  run_lanes<1, 0, KR_ADD_NORM, 1, 1>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, TWO) kr_norm_gemm_two(kr_gemm_m16_params params) {
  run_lanes<2, 0, KR_ADD_NORM, 1, 0>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, THREE) kr_norm_gemm_one_wide(kr_gemm_m16_params params) {
  run_lanes<1, 0, KR_ADD_NORM, 2, 1>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, 3) kr_gate_gemm_one(kr_gemm_m16_params params) {
  run_lanes<1, 0, KR_GATED_NORM, 1, 1>(params);
}
KR_KERNEL void KR_BOUNDS(32 * KR_FEW_GATED_WARPS, FOUR) kr_norm_gemm_one_gated(kr_gemm_m16_params params) {
  run_lanes<1, 1, KR_ADD_NORM, 1, 1>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, TWO) kr_norm_gemm_one_deep(kr_gemm_m16_params params) {
  run_lanes<1, 0, KR_ADD_NORM, 1, 2>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, TWO) kr_gate_gemm_one_deep(kr_gemm_m16_params params) {
  run_lanes<1, 0, KR_GATED_NORM, 1, 2>(params);
}
KR_KERNEL void KR_BOUNDS(LANES_THREADS, TWO) kr_gate_gemm_two(kr_gemm_m16_params params) {
  run_lanes<2, 0, KR_GATED_NORM, 1, 0>(params);
}
#ifndef KR_FLOAT
KR_KERNEL void KR_BOUNDS(32 * KR_FEW_GATED_DEEP_WARPS, 5) kr_norm_gemm_one_gated_deep(kr_gemm_m16_params params) {
  run_lanes<1, 1, KR_ADD_NORM, 1, 2>(params);
}
KR_KERNEL void KR_BOUNDS(KR_FEW_THREADS, 3) kr_gemm_m16_8(kr_gemm_params params) { run<1, 0>(params); }
KR_KERNEL void KR_BOUNDS(KR_FEW_THREADS, 2) kr_gemm_m16_16(kr_gemm_params params) { run<2, 0>(params); }
KR_KERNEL void KR_BOUNDS(KR_FEW_THREADS, 2) kr_gemm_m16_8_gated(kr_gemm_params params) { run<1, 1>(params); }
KR_KERNEL void KR_BOUNDS(KR_FEW_THREADS, 1) kr_gemm_m16_16_gated(kr_gemm_params params) { run<2, 1>(params); }
#endif
