/* selective_scan_channels_last_bwd.cu: backward kernel of the scan's gradient for channels-last rows, N up to 16
 * (scan_channels_last.cuh has the block's layout, selective_scan_channels_last.cu the sweep that keeps the state before
 * every 8 steps). Equations and partial sums as in selective_scan_bwd.cu. kr_scan_channels_last_back   one chunk per
 * block, from the gradient of its last state; _any: unaligned rows; _usual: omits the checks that is_usual
 * (scan_channels_last_params.c) has made, a third less work For 8 steps a lane keeps all decays, and a x of the state
 * before each, in registers. Sums over states (y, s1, s2) are left in shared memory as four partial sums per channel.
 * Sums over channels (dB, dC) use tensor cores to reduce the lanes of a quad: a lane's values are the A operand; the B
 * operand selects the result columns they go to. Operands have 11 bits; the remainder of a value goes the same way,
 * except in bfloat16, where the result is rounded to 8. */
#include "scan_channels_last.cuh"

enum {
  TL = KR_SCAN_BWD_TILE,
  STEPS = TL / 8,
  WIDTH = TL + 4,
  VALUES = CHANNELS * WIDTH,
  RAW = TL * RAW_ROW,
  S = 4,
  RUN = KR_SCAN_KEPT,
  N_PACKS = TL * 8 * S / E / THREADS > 0 ? TL * 8 * S / E / THREADS : 1
};
/* Floats of a quad's and of a step's partial dB and dC; padding against bank conflicts. */
enum {
  QUADS = 8,
  PART_QUAD = 8 * S + 4,
  PART_STEP = QUADS * PART_QUAD + 8
};
enum { U, DELTA, DOUT, Z, N_TENSORS }; /* raw inputs */
enum { DT, DU, G, N_VALUES };          /* converted */
enum { Y, S1, S2, N_RESULTS };         /* four partial sums each */

typedef struct back_shared {
  uint32_t *raw;
  float *values, *bc, *results, *parts;
} back_shared;

/* kr_scan_channels_last_back_bytes adds it up. */
KR_DEV back_shared lay_out(unsigned char *base) {
  back_shared m;
  m.raw = (uint32_t *)base;
  m.values = (float *)(m.raw + N_TENSORS * RAW);
  m.bc = m.values + N_VALUES * VALUES;
  m.results = m.bc + TL * 8 * S;
  m.parts = m.results + N_RESULTS * WARPS * VALUES;
  return m;
}

typedef struct back_tile {
  last_two u[STEPS], dout[STEPS], z[STEPS];
} back_tile;

typedef struct back_sums {
  float dD[2], dbias[2];
} back_sums;

/* Common case: the thread's channel pair at a step; a pack of a tile's row, at most one per thread. */
KR_DEV char *whole_two(const kr_rows &v, const last_place &w, int t) {
  return (char *)v.data + (w.b * v.b + w.d0) * BYTES + (uint32_t)((t + w.at) * step_bytes(v) + w.pair * 2 * BYTES);
}
KR_DEV void copy_whole(const kr_rows &v, const last_place &w, int t0, uint32_t *raw) {
  const int row = w.thread / ROW_PACKS, pack = w.thread % ROW_PACKS;
  copy_16(raw + row * RAW_ROW + pack * 4,
          (const char *)v.data + (w.b * v.b + w.d0) * BYTES + (uint32_t)((t0 + row) * step_bytes(v) + pack * 16));
}

/* Addresses are recomputed per tile: kept, they would take registers that the inner loop needs. */
template <int ANY, int USUAL>
KR_DEV void copy_tile(const kr_scan_params &p, const last_place &w, int t0, uint32_t *raw) {
  if (USUAL) {
    if (w.thread >= TL * ROW_PACKS) return;
    copy_whole(p.u, w, t0, raw + U * RAW);
    copy_whole(p.delta, w, t0, raw + DELTA * RAW);
    copy_whole(p.dout, w, t0, raw + DOUT * RAW);
    copy_whole(p.z, w, t0, raw + Z * RAW);
    return;
  }
  copy_rows(ANY, p, w, p.u, first_pack(p.u, w, t0), TL, t0, raw + U * RAW);
  copy_rows(ANY, p, w, p.delta, first_pack(p.delta, w, t0), TL, t0, raw + DELTA * RAW);
  if (p.dout.data) copy_rows(ANY, p, w, p.dout, first_pack(p.dout, w, t0), TL, t0, raw + DOUT * RAW);
  if (p.z.data) copy_rows(ANY, p, w, p.z, first_pack(p.z, w, t0), TL, t0, raw + Z * RAW);
}

/* 1 / (1 + e^-z): one special-function op instead of two where bfloat16 rounding hides the difference. */
KR_DEV float slope_gate(float z) {
#if KR_DTYPE == 2 && KR_TIER >= 80 && !defined(KR_EMULATE)
  return kr_fma(0.5f, kr_tanh(0.5f * z), 0.5f);
#else
  return kr_sigmoid(z);
#endif
}

/* dt, dt u and g = dout silu(z) of the thread's share; dt is 0 past the end, which leaves state and gradient unchanged.
 * */
template <int ANY, int USUAL>
KR_DEV void stage(const kr_scan_params &p, const last_place &w, int t0, const back_shared &m, const float (&bias)[2],
                  back_tile &tile) {
  float dt[2][STEPS], du[2][STEPS], g[2][STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const int t = w.at + i;
    const last_two delta = read_two(ANY, p, w, p.delta, m.raw + DELTA * RAW, t0, t);
    tile.u[i] = read_two(ANY, p, w, p.u, m.raw + U * RAW, t0, t);
    if (USUAL || p.dout.data) tile.dout[i] = read_two(ANY, p, w, p.dout, m.raw + DOUT * RAW, t0, t);
    if (USUAL || p.z.data) tile.z[i] = read_two(ANY, p, w, p.z, m.raw + Z * RAW, t0, t);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      dt[c][i] = value_of(delta, c) + bias[c];
      g[c][i] = USUAL || p.dout.data ? value_of(tile.dout[i], c) : 0.0f;
      if (USUAL || p.z.data) {
        const float z = value_of(tile.z[i], c);
        g[c][i] *= z * slope_gate(z);
      }
    }
  }
  if (USUAL || p.softplus) {
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int i = 0; i < STEPS; i++) dt[c][i] = softplus_of(dt[c][i]);
  }
  if (!USUAL && t0 + TL > w.end) {
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int i = 0; i < STEPS; i++) dt[c][i] = until(dt[c][i], w.at + i, w.end - t0);
  }
#pragma unroll
  for (int c = 0; c < 2; c++) {
    float *const to = m.values + (w.pair * 2 + c) * WIDTH + w.at;
#pragma unroll
    for (int i = 0; i < STEPS; i++) du[c][i] = dt[c][i] * value_of(tile.u[i], c);
    put_steps<STEPS>(to + DT * VALUES, dt[c]);
    put_steps<STEPS>(to + DU * VALUES, du[c]);
    put_steps<STEPS>(to + G * VALUES, g[c]);
  }
}

/* The sum of a result's four partial sums. */
KR_DEV void add_parts(const last_place &w, const back_shared &m, int result, int c, float (&v)[STEPS]) {
  const float *const from = m.results + result * WARPS * VALUES + (w.pair * 2 + c) * WIDTH + w.at;
  get_steps<STEPS>(from, v);
#pragma unroll
  for (int k = 1; k < WARPS; k++) {
    float part[STEPS];
    get_steps<STEPS>(from + k * VALUES, part);
#pragma unroll
    for (int i = 0; i < STEPS; i++) v[i] += part[i];
  }
}

/* Stores the finished tile's gradients, and the block's partial dB and dC to scratch. */
template <int ANY, int USUAL>
KR_DEV void finish(const kr_scan_params &p, const last_place &w, int t0, const back_shared &m, const float (&skip)[2],
                   const back_tile &tile, back_sums &sums) {
  float du[2][STEPS], ddelta[2][STEPS], dz[2][STEPS];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const float *const values = m.values + (w.pair * 2 + c) * WIDTH + w.at;
    float dt[STEPS], g[STEPS], s1[STEPS], s2[STEPS];
    get_steps<STEPS>(values + DT * VALUES, dt);
    get_steps<STEPS>(values + G * VALUES, g);
    add_parts(w, m, S1, c, s1);
    add_parts(w, m, S2, c, s2);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const float u = value_of(tile.u[i], c);
      ddelta[c][i] = kr_fma(u, s1[i], KR_LN2 * s2[i]);
      if (USUAL || p.softplus) ddelta[c][i] *= kr_softplus_slope(dt[i]);
      if (!USUAL) ddelta[c][i] = until(ddelta[c][i], w.at + i, w.end - t0);
      sums.dbias[c] += ddelta[c][i];
      du[c][i] = kr_fma(skip[c], g[i], dt[i] * s1[i]);
      sums.dD[c] = kr_fma(g[i], u, sums.dD[c]);
    }
    if (USUAL || p.z.data) {
      float y[STEPS];
      add_parts(w, m, Y, c, y);
#pragma unroll
      for (int i = 0; i < STEPS; i++) {
        const float z = value_of(tile.z[i], c), s = slope_gate(z), gate = z * s,
                    dout = USUAL || p.dout.data ? value_of(tile.dout[i], c) : 0.0f;
        dz[c][i] = dout * kr_fma(skip[c], value_of(tile.u[i], c), y[i]) * kr_fma(gate, 1.0f - s, s);
      }
    }
  }
#pragma unroll
  for (int i = 0; USUAL && i < STEPS; i++) {
    store_two(0, p, w, whole_two(p.du, w, t0 + i), du[0][i], du[1][i]);
    store_two(0, p, w, whole_two(p.ddelta, w, t0 + i), ddelta[0][i], ddelta[1][i]);
    store_two(0, p, w, whole_two(p.dz, w, t0 + i), dz[0][i], dz[1][i]);
  }
#pragma unroll
  for (int i = 0; !USUAL && i < STEPS; i++) {
    if (t0 + w.at + i >= w.end) break;
    if (p.du.data) store_two(ANY, p, w, first_two(p.du, w, t0 + i), du[0][i], du[1][i]);
    if (p.ddelta.data) store_two(ANY, p, w, first_two(p.ddelta, w, t0 + i), ddelta[0][i], ddelta[1][i]);
    if (p.dz.data && p.z.data) store_two(ANY, p, w, first_two(p.dz, w, t0 + i), dz[0][i], dz[1][i]);
  }
  const int t = w.thread / 8, row = w.thread % 8 * 4;
  if (USUAL || t0 + t < w.end) {
    kr_float4 sum = *(const kr_float4 *)(m.parts + t * PART_STEP + row);
#pragma unroll
    for (int k = 1; k < QUADS; k++) {
      const kr_float4 q = *(const kr_float4 *)(m.parts + t * PART_STEP + k * PART_QUAD + row);
#pragma unroll
      for (int j = 0; j < 4; j++) sum.v[j] += q.v[j];
    }
    *(kr_float4 *)(p.part_bc + ((int64_t)kr_block_x() * p.L + t0 + t) * (8 * S) + row) = sum;
  }
}

/* ---- sums over channels ---- */

#ifdef KR_EMULATE
/* Adds the quads' sums of step i's four values to those of its lanes i. */
KR_DEV void sum_quads(float (&d)[4], const float (&)[2], int i, const float (&v)[S]) {
  for (int s = 0; s < S; s++) {
    float sum = v[s] + kr_shuffle_xor(v[s], 1);
    sum += kr_shuffle_xor(sum, 2);
    if ((kr_thread() & 3) == i) d[s] += sum;
  }
}
#else
/* d += a b on tensor cores: m16n8k8, 11-bit operands (other mantissa bits are ignored). With g = lane / 4 and q = lane
 * % 4 a lane holds in a: rows g and g + 8 of column q, then of column q + 4; in b: rows q and q + 4 of column g; in d:
 * columns 2 q and 2 q + 1 of row g, then of row g + 8. */
KR_DEV void mma_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(kr_float_to_bits(a[0])), "r"(kr_float_to_bits(a[1])), "r"(kr_float_to_bits(a[2])),
        "r"(kr_float_to_bits(a[3])), "r"(kr_float_to_bits(b[0])), "r"(kr_float_to_bits(b[1])));
}

/* The same by mma: pick is 1 in the lanes of quads 2 i and 2 i + 1, else 0. */
KR_DEV void sum_quads(float (&d)[4], const float (&pick)[2], int, const float (&v)[S]) {
#if KR_DTYPE == 2
  mma_tf32(d, {v[0], v[2], v[1], v[3]}, pick);
#else
  float high[S], low[S];
#pragma unroll
  for (int s = 0; s < S; s++) high[s] = kr_bits_to_float(kr_float_to_bits(v[s]) & 0xffffe000u), low[s] = v[s] - high[s];
  mma_tf32(d, {high[0], high[2], high[1], high[3]}, pick);
  mma_tf32(d, {low[0], low[2], low[1], low[3]}, pick);
#endif
}
#endif

/* Four steps' sums: lane q of quad g holds its quad's sum of step q. */
KR_DEV void put_parts(const last_place &w, const float (&d)[4], float *to) {
  *(kr_float4 *)(to + (w.lane & 3) * PART_STEP + (w.lane >> 2) * PART_QUAD) = kr_float4{{d[0], d[1], d[2], d[3]}};
}

/* ---- the scan ---- */

typedef struct back_state {
  float A[S], carry[S], dA[S], pick[4][2];
} back_state;

/* 8 steps forward from the state before them, and back. `at`: their first step in the tile. */
KR_DEV void walk_run(const last_place &w, const back_shared &m, int at, float (&x)[S], back_state &b) {
  const float *const values = m.values + w.lane * WIDTH + at, *const bc = m.bc + at * 8 * S + w.warp * S;
  float *const results = m.results + w.warp * VALUES + w.lane * WIDTH + at, *const parts =
                                                                                m.parts + at * PART_STEP + w.warp * S;
  float dt[RUN], du[RUN], g[RUN], a[RUN][S], kept[RUN][S], sum[RUN], second[RUN];
#pragma unroll
  for (int k = 0; k < RUN; k += 4) {
    const kr_float4 q0 = *(const kr_float4 *)(values + DT * VALUES + k),
                    q1 = *(const kr_float4 *)(values + DU * VALUES + k),
                    q2 = *(const kr_float4 *)(values + G * VALUES + k);
#pragma unroll
    for (int j = 0; j < 4; j++) dt[k + j] = q0.v[j], du[k + j] = q1.v[j], g[k + j] = q2.v[j];
  }
#pragma unroll
  for (int k = 0; k < RUN; k += 4) {
    float d[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = k; i < k + 4; i++) {
      const kr_float4 B = *(const kr_float4 *)(bc + i * 8 * S), C = *(const kr_float4 *)(bc + i * 8 * S + 4 * S);
      float dC[S];
#pragma unroll
      for (int s = 0; s < S; s++) {
        a[i][s] = kr_exp2(dt[i] * b.A[s]);
        kept[i][s] = a[i][s] * x[s];
        x[s] = kr_fma(du[i], B.v[s], kept[i][s]);
        sum[i] = s ? kr_fma(C.v[s], x[s], sum[i]) : C.v[0] * x[0];
        dC[s] = g[i] * x[s];
      }
      sum_quads(d, b.pick[i - k], i - k, dC);
    }
    put_parts(w, d, parts + k * PART_STEP + 4 * S);
    *(kr_float4 *)(results + Y * WARPS * VALUES + k) = kr_float4{{sum[k], sum[k + 1], sum[k + 2], sum[k + 3]}};
  }
#pragma unroll
  for (int k = RUN - 4; k >= 0; k -= 4) {
    float d[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = k + 3; i >= k; i--) {
      const kr_float4 B = *(const kr_float4 *)(bc + i * 8 * S), C = *(const kr_float4 *)(bc + i * 8 * S + 4 * S);
      float dB[S];
#pragma unroll
      for (int s = 0; s < S; s++) {
        const float dx = kr_fma(g[i], C.v[s], b.carry[s]), q = dx * kept[i][s];
        b.carry[s] = a[i][s] * dx;
        sum[i] = s ? kr_fma(dx, B.v[s], sum[i]) : dx * B.v[0];
        second[i] = s ? kr_fma(b.A[s], q, second[i]) : b.A[0] * q;
        b.dA[s] = kr_fma(dt[i], q, b.dA[s]);
        dB[s] = dx * du[i];
      }
      sum_quads(d, b.pick[i - k], i - k, dB);
    }
    put_parts(w, d, parts + k * PART_STEP);
    *(kr_float4 *)(results + S1 * WARPS * VALUES + k) = kr_float4{{sum[k], sum[k + 1], sum[k + 2], sum[k + 3]}};
    *(kr_float4 *)(results + S2 * WARPS * VALUES + k) =
        kr_float4{{second[k], second[k + 1], second[k + 2], second[k + 3]}};
  }
}

/* The state kept before the 8 steps at t; if chunked, plus the decayed first state of the chunk. */
typedef struct back_kept {
  kr_float4 x;
  float sum_dt;
} back_kept;

/* `from` moves back one. */
KR_DEV back_kept load_kept(const kr_scan_params &p, const last_place &w, int is_cut, int t, const float *&from) {
  back_kept k = {{{0, 0, 0, 0}}, 0};
  if (w.lane < w.n_channels && w.warp * S < p.kept_N && t >= w.begin) k.x = *(const kr_float4 *)from;
  from -= p.kept_k;
  if (w.lane >= w.n_channels || t < w.begin) return k;
  if (is_cut) k.sum_dt = p.kept_dt[(w.b * p.n_kept + t / RUN) * p.D + w.d0 + w.lane];
  return k;
}

/* Sums over the chunk: dA, and dD and dbias over the threads that share a channel. */
KR_DEV void write_sums(const kr_scan_params &p, const last_place &w, const back_shared &m, const back_state &b,
                       const back_sums &sums, int64_t slab) {
  put_states<S>(w, p.part_A + states_at<S>(p, w, slab), b.dA);
  float *const at = m.results; /* (channel, share of a tile), twice */
#pragma unroll
  for (int c = 0; c < 2; c++) {
    at[(w.pair * 2 + c) * 9 + w.at / STEPS] = sums.dD[c];
    at[(CHANNELS + w.pair * 2 + c) * 9 + w.at / STEPS] = sums.dbias[c];
  }
  kr_sync();
  if (w.thread >= 2 * CHANNELS || (w.thread & 31) >= w.n_channels) return;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 8; k++) sum += at[w.thread * 9 + k];
  (w.thread < CHANNELS ? p.part_D : p.part_bias)[slab * p.D + w.d0 + (w.thread & 31)] = sum;
}

template <int ANY, int USUAL>
KR_DEV void scan_back(const kr_scan_params &p) {
  KR_DYNAMIC_SHARED(shared);
  last_place w = place_block(p, STEPS);
  if (USUAL) w.n_channels = CHANNELS;
  const int is_cut = !USUAL && p.n_chunks > 1;
  const back_shared m = lay_out(shared);
  const int64_t slab = w.b * p.n_chunks + w.chunk;
  float bias[2], skip[2], first[S];
  back_state b;
  back_sums sums = {{0, 0}, {0, 0}};
  back_tile tile;
  last_bc<N_PACKS> bc;
  load_two(w, p.bias, p.bias_stride, bias);
  load_two(w, p.D_vec, p.D_stride, skip);
  load_view<S>(p, w, p.A, p.A_d, p.A_n, KR_LOG2E, b.A);
  if (!is_cut)
    load_view<S>(p, w, p.dlast.data ? p.dlast.data + w.b * p.dlast.b : 0, p.dlast.d, p.dlast.n, 1.0f, b.carry);
#pragma unroll
  for (int s = 0; s < S; s++) {
    const int exists = is_cut && w.lane < w.n_channels;
    if (is_cut) b.carry[s] = exists ? p.chunk_carry[states_at<S>(p, w, slab) + s] : 0.0f;
    first[s] = exists ? p.chunk_state[states_at<S>(p, w, slab) + s] : 0.0f;
    b.dA[s] = 0;
  }
#pragma unroll
  for (int k = 0; k < 8; k++) b.pick[k / 2][k % 2] = w.lane >> 2 == k ? 1.0f : 0.0f;
  int t0 = w.begin + (w.end - w.begin - 1) / TL * TL;
  copy_tile<ANY, USUAL>(p, w, t0, m.raw);
  kr_commit_copies();
  find_bc<8 * S>(p, w, t0, bc);
  load_bc<TL, 8 * S, USUAL>(p, w, t0, -1, bc);
  const int last_run = t0 + TL - RUN < w.end ? t0 + TL - RUN : t0;
  const float *kept_from = kept_at<S>(p, w, last_run / RUN);
  kr_one_pointer(kept_from);
  back_kept next = load_kept(p, w, is_cut, last_run, kept_from);
  int walked = -1;
  for (; t0 >= w.begin; t0 -= TL) {
    kr_copied<0>();
    kr_sync();
    if (walked >= 0) finish<ANY, USUAL>(p, w, walked, m, skip, tile, sums);
    stage<ANY, USUAL>(p, w, t0, m, bias, tile);
    put_bc<TL, 8 * S, N_PACKS>(w, bc, m.bc);
    kr_sync();
    if (t0 > w.begin) {
      copy_tile<ANY, USUAL>(p, w, t0 - TL, m.raw);
      load_bc<TL, 8 * S, USUAL>(p, w, t0 - TL, -1, bc);
    }
    kr_commit_copies();
#pragma unroll 1
    for (int at = USUAL || t0 + TL - RUN < w.end ? TL - RUN : 0; at >= 0; at -= RUN) {
      float x[S];
#pragma unroll
      for (int s = 0; s < S; s++)
        x[s] = is_cut ? kr_fma(kr_exp2(b.A[s] * next.sum_dt), first[s], next.x.v[s]) : next.x.v[s];
      next = load_kept(p, w, is_cut, t0 + at - RUN, kept_from);
      walk_run(w, m, at, x, b);
    }
    walked = t0;
  }
  kr_sync();
  if (walked >= 0) finish<ANY, USUAL>(p, w, walked, m, skip, tile, sums);
  kr_sync();
  write_sums(p, w, m, b, sums, slab);
  if (!p.dinitial.data || w.chunk > 0 || w.lane >= w.n_channels) return;
#pragma unroll
  for (int s = 0; s < S; s++)
    if (w.warp * S + s < p.N)
      p.dinitial.data[w.b * p.dinitial.b + (w.d0 + w.lane) * p.dinitial.d + (w.warp * S + s) * p.dinitial.n] =
          b.carry[s];
}

#ifndef KR_LAST_BACK_BLOCKS
#define KR_LAST_BACK_BLOCKS 3
#endif
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_LAST_BACK_BLOCKS) kr_scan_channels_last_back(const kr_scan_params p) {
  scan_back<0, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_LAST_BACK_BLOCKS) kr_scan_channels_last_back_any(const kr_scan_params p) {
  scan_back<1, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_LAST_BACK_BLOCKS)
    kr_scan_channels_last_back_usual(const kr_scan_params p) {
  scan_back<0, 1>(p);
}
