/* selective_scan_channels_last.cu: the forward scan of channels-last rows (selective_scan_ref.c has the equation;
 * scan_channels_last.cuh the block's layout): real A, B and C per time step with any strides, one type.
 *   kr_scan_channels_last_out               y of one chunk per block from the chunk's first state, N up to 16; _n32,
 * _n64: up to that many states; _keep: also the state before every 8 steps kr_scan_channels_last_state             the
 * chunk's last state from zero, and its sum of dt: phase one when channels are few kr_scan_channels_last_sweep for the
 * gradient, N up to 16: the state before every 8 steps kr_scan_channels_last_cut               the same if chunked,
 * from zero: last states, sums of dt, and the gradient of the chunk's first state from zero at its end, which is the
 * sum of g C times all decays up to there Pipeline per tile: raw rows arrive while the previous tile is processed; dt
 * and dt u (and g) go to shared memory as (channel, step), B and C as (step, state); each warp steps through the tile
 * and leaves its partial y there; after the next barrier the partial sums are added, gated and stored. */
#include "scan_channels_last.cuh"

enum last_mode { OUTPUT, STATE, SWEEP, CUT };
enum { TL = KR_SCAN_CHANNELS_LAST_TILE, STEPS = TL / 8, WIDTH = TL + 4, VALUES = CHANNELS * WIDTH, RAW = TL * RAW_ROW };

#ifndef KR_LAST_MOVED
#define KR_LAST_MOVED 8
#endif
/* Moves one decay in so many off the special-function unit, which bounds these kernels. */
KR_DEV int is_moved(const int MODE, int i, int s) {
  return MODE != CUT && KR_LAST_MOVED && (i * 4 + s) % (KR_LAST_MOVED ? KR_LAST_MOVED : 1) == 0;
}

KR_DEV int n_tensors(const int MODE) { return MODE == CUT ? 4 : MODE == OUTPUT ? 3 : 2; }

/* What a thread keeps of a tile until its outputs are stored. */
typedef struct last_tile {
  last_two u[STEPS], z[STEPS];
} last_tile;

/* This thread's addresses in the next tile's rows. */
typedef struct last_rows {
  const char *u, *delta, *z, *dout;
  char *out;
} last_rows;

KR_DEV void copy_tile(const int ANY, const kr_scan_params &p, const last_place &w, const int MODE,
                      int t0, uint32_t *raw, last_rows &r) {
  copy_rows(ANY, p, w, p.u, r.u, TL, t0, raw);
  copy_rows(ANY, p, w, p.delta, r.delta, TL, t0, raw + RAW);
  if ((MODE == OUTPUT || MODE == CUT) && p.z.data) copy_rows(ANY, p, w, p.z, r.z, TL, t0, raw + 2 * RAW);
  if (MODE == CUT && p.dout.data) copy_rows(ANY, p, w, p.dout, r.dout, TL, t0, raw + 3 * RAW);
  if (ANY) return;
  r.u += (int64_t)TL * step_bytes(p.u), r.delta += (int64_t)TL * step_bytes(p.delta);
  if (MODE == OUTPUT || MODE == CUT) r.z += (int64_t)TL * step_bytes(p.z);
  if (MODE == CUT) r.dout += (int64_t)TL * step_bytes(p.dout);
}

/* dt, dt u and g = dout silu(z); dt is 0 past the end, which leaves the state unchanged. */
KR_DEV void stage(const int ANY, const kr_scan_params &p, const last_place &w, const int MODE, int t0,
                  const uint32_t *raw, const float (&bias)[2], float *s_dt, last_tile &tile) {
  float dt[2][STEPS], du[2][STEPS], g[2][STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const int t = w.at + i;
    const last_two delta = read_two(ANY, p, w, p.delta, raw + RAW, t0, t);
    tile.u[i] = read_two(ANY, p, w, p.u, raw, t0, t);
    if ((MODE == OUTPUT || MODE == CUT) && p.z.data)
      tile.z[i] = read_two(ANY, p, w, p.z, raw + 2 * RAW, t0, t);
#pragma unroll
    for (int c = 0; c < 2; c++) dt[c][i] = value_of(delta, c) + bias[c];
    if (MODE != CUT) continue;
    last_two dout;
    if (p.dout.data) dout = read_two(ANY, p, w, p.dout, raw + 3 * RAW, t0, t);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      g[c][i] = p.dout.data ? value_of(dout, c) : 0.0f;
      if (p.z.data) g[c][i] *= kr_silu(value_of(tile.z[i], c));
    }
  }
  if (p.softplus) {
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int i = 0; i < STEPS; i++) dt[c][i] = softplus_of(dt[c][i]);
  }
  if (t0 + TL > w.end) {
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int i = 0; i < STEPS; i++) dt[c][i] = until(dt[c][i], w.at + i, w.end - t0);
  }
#pragma unroll
  for (int c = 0; c < 2; c++) {
    float *const to = s_dt + (w.pair * 2 + c) * WIDTH + w.at;
#pragma unroll
    for (int i = 0; i < STEPS; i++) du[c][i] = dt[c][i] * value_of(tile.u[i], c);
    put_steps<STEPS>(to, dt[c]);
    put_steps<STEPS>(to + VALUES, du[c]);
    if (MODE == CUT) put_steps<STEPS>(to + 2 * VALUES, g[c]);
  }
}

/* Stores y of a tile: four partial sums, plus D u, times silu(z). */
KR_DEV void finish(const int ANY, const kr_scan_params &p, const last_place &w, int t0, const float *s_y,
                   const float (&skip)[2], const last_tile &tile, char *&out) {
  float y[2][STEPS];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const float *const from = s_y + (w.pair * 2 + c) * WIDTH + w.at;
    get_steps<STEPS>(from, y[c]);
#pragma unroll
    for (int k = 1; k < WARPS; k++) {
      float part[STEPS];
      get_steps<STEPS>(from + k * VALUES, part);
#pragma unroll
      for (int i = 0; i < STEPS; i++) y[c][i] += part[i];
    }
  }
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
      y[c][i] = kr_fma(skip[c], value_of(tile.u[i], c), y[c][i]);
      if (p.z.data) y[c][i] *= gate_of(value_of(tile.z[i], c));
    }
    if (t0 + w.at + i < w.end) store_two(ANY, p, w, out + (int64_t)i * step_bytes(p.out), y[0][i], y[1][i]);
  }
  out += (int64_t)TL * step_bytes(p.out);
}

/* Steps through the tile, of which `left` steps exist. */
template <int S, int MODE, int KEEP>
KR_DEV void walk(const kr_scan_params &p, const last_place &w, int t0, const float *s_dt, const float *s_bc,
                 const float (&A)[S], float (&x)[S], float (&decays)[S], float (&carry)[S], float &sum_dt, float *s_y) {
  enum { ROWS = MODE == OUTPUT || MODE == CUT ? 8 * S : 4 * S };
  const float *step = s_dt + w.lane * WIDTH, *bc = s_bc + w.warp * S;
  float *y_to = s_y + w.warp * VALUES + w.lane * WIDTH;
#pragma unroll 2
  for (int k = 0; k < TL; k += 4) {
    const kr_float4 dt = *(const kr_float4 *)(step + k), du = *(const kr_float4 *)(step + VALUES + k);
    kr_float4 g, y;
    if (MODE == CUT) g = *(const kr_float4 *)(step + 2 * VALUES + k);
    if ((MODE >= SWEEP || KEEP) && k % KR_SCAN_KEPT == 0 && t0 + k < w.end) {
      const int kept = (t0 + k) / KR_SCAN_KEPT;
      if (!KEEP || w.warp * S < p.kept_N) put_states<S>(w, kept_at<S>(p, w, kept), x);
      if (MODE == CUT && w.warp == 0 && w.lane < w.n_channels)
        p.kept_dt[(w.b * p.n_kept + kept) * p.D + w.d0 + w.lane] = sum_dt;
    }
    if (MODE == STATE || MODE == CUT) sum_dt += dt.v[0] + dt.v[1] + (dt.v[2] + dt.v[3]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float B[S], C[S];
      read_states<S>(bc + (k + i) * ROWS, B);
      if (MODE == OUTPUT || MODE == CUT) read_states<S>(bc + (k + i) * ROWS + 4 * S, C);
#pragma unroll
      for (int s = 0; s < S; s++) {
        const float decay = is_moved(MODE, i, s) ? exp2_of_product(dt.v[i], A[s]) : kr_exp2(dt.v[i] * A[s]);
        x[s] = kr_fma(decay, x[s], du.v[i] * B[s]);
        if (MODE == OUTPUT) y.v[i] = s ? kr_fma(C[s], x[s], y.v[i]) : C[0] * x[0];
        if (MODE == CUT) decays[s] *= decay, carry[s] = kr_fma(decays[s], g.v[i] * C[s], carry[s]);
      }
    }
    if (MODE == OUTPUT) *(kr_float4 *)(y_to + k) = y;
  }
}

template <int S, int MODE, int ANY, int KEEP = 0>
KR_DEV void scan_last(const kr_scan_params &p) {
  KR_DYNAMIC_SHARED(shared);
  enum { ROWS = MODE == OUTPUT || MODE == CUT ? 8 * S : 4 * S, N_PACKS = (TL * ROWS / E + THREADS - 1) / THREADS };
  last_place w = place_block(p, STEPS);
  uint32_t *const raw = (uint32_t *)shared;
  float *const s_dt = (float *)(raw + n_tensors(MODE) * RAW), *const s_bc = s_dt + (MODE == CUT ? 3 : 2) * VALUES,
               *const s_y = s_bc + TL * ROWS;
  float A[S], x[S], decays[S], carry[S], bias[2], skip[2], sum_dt = 0;
  const int64_t slab = w.b * p.n_chunks + w.chunk;
  last_bc<N_PACKS> bc;
  last_tile tile;
  load_view<S>(p, w, p.A, p.A_d, p.A_n, KR_LOG2E, A);
  load_two(w, p.bias, p.bias_stride, bias);
  if (MODE == OUTPUT) load_two(w, p.D_vec, p.D_stride, skip);
#pragma unroll
  for (int s = 0; s < S; s++) x[s] = carry[s] = 0.0f, decays[s] = 1.0f;
  if (MODE == OUTPUT && p.n_chunks > 1) {
#pragma unroll
    for (int s = 0; s < S; s++) x[s] = w.lane < w.n_channels ? p.chunk_state[states_at<S>(p, w, slab) + s] : 0.0f;
  } else if (MODE == OUTPUT || MODE == SWEEP)
    load_view<S>(p, w, p.initial.data ? p.initial.data + w.b * p.initial.b : 0, p.initial.d, p.initial.n, 1.0f, x);
#pragma unroll
  for (int s = 0; s < S; s++)
    if ((is_moved(MODE, 0, s % 4) || is_moved(MODE, 1, s % 4) || is_moved(MODE, 2, s % 4) ||
         is_moved(MODE, 3, s % 4)) &&
        A[s] != A[s])
      x[s] = A[s]; /* exp2_of_product does not propagate NaN */
  last_rows rows = {first_pack(p.u, w, w.begin), first_pack(p.delta, w, w.begin), first_pack(p.z, w, w.begin),
                    first_pack(p.dout, w, w.begin), first_two(p.out, w, w.begin)};
  if (!ANY) { /* advanced from tile to tile, cheaper than recomputing */
    kr_one_pointer(rows.u), kr_one_pointer(rows.delta), kr_one_pointer(rows.z), kr_one_pointer(rows.dout);
  }
  kr_one_pointer(rows.out);
  copy_tile(ANY, p, w, MODE, w.begin, raw, rows);
  kr_commit_copies();
  find_bc<ROWS>(p, w, w.begin, bc);
  load_bc<TL, ROWS, 0>(p, w, w.begin, 1, bc);
  for (int t0 = w.begin; t0 < w.end; t0 += TL) {
    kr_copied<0>();
    kr_sync();
    if (MODE == OUTPUT && t0 > w.begin) finish(ANY, p, w, t0 - TL, s_y, skip, tile, rows.out);
    stage(ANY, p, w, MODE, t0, raw, bias, s_dt, tile);
    put_bc<TL, ROWS, N_PACKS>(w, bc, s_bc);
    kr_sync();
    if (t0 + TL < w.end) {
      copy_tile(ANY, p, w, MODE, t0 + TL, raw, rows);
      load_bc<TL, ROWS, 0>(p, w, t0 + TL, 1, bc);
    }
    kr_commit_copies();
    walk<S, MODE, KEEP>(p, w, t0, s_dt, s_bc, A, x, decays, carry, sum_dt, s_y);
  }
  if (MODE == OUTPUT) {
    kr_sync();
    finish(ANY, p, w, w.begin + (w.end - w.begin - 1) / TL * TL, s_y, skip, tile, rows.out);
    if (!p.last.data || w.chunk + 1 < p.n_chunks || w.lane >= w.n_channels) return;
#pragma unroll
    for (int s = 0; s < S; s++)
      if (w.warp * S + s < p.N)
        p.last.data[w.b * p.last.b + (w.d0 + w.lane) * p.last.d + (w.warp * S + s) * p.last.n] = x[s];
  } else if (MODE != SWEEP) {
    put_states<S>(w, p.chunk_state + states_at<S>(p, w, slab), x);
    if (MODE == CUT) put_states<S>(w, p.chunk_carry + states_at<S>(p, w, slab), carry);
    if (w.warp == 0 && w.lane < w.n_channels) p.chunk_dt[slab * p.D + w.d0 + w.lane] = sum_dt;
  }
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_out(const kr_scan_params p) {
  scan_last<4, OUTPUT, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_out_any(const kr_scan_params p) {
  scan_last<4, OUTPUT, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_out_keep(const kr_scan_params p) {
  scan_last<4, OUTPUT, 0, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_out_keep_any(const kr_scan_params p) {
  scan_last<4, OUTPUT, 1, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_channels_last_out_n32(const kr_scan_params p) {
  scan_last<8, OUTPUT, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_channels_last_out_n64(const kr_scan_params p) {
  scan_last<16, OUTPUT, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_state(const kr_scan_params p) {
  scan_last<4, STATE, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_state_any(const kr_scan_params p) {
  scan_last<4, STATE, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_channels_last_state_n32(const kr_scan_params p) {
  scan_last<8, STATE, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_channels_last_state_n64(const kr_scan_params p) {
  scan_last<16, STATE, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_sweep(const kr_scan_params p) {
  scan_last<4, SWEEP, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_sweep_any(const kr_scan_params p) {
  scan_last<4, SWEEP, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_cut(const kr_scan_params p) {
  scan_last<4, CUT, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_channels_last_cut_any(const kr_scan_params p) {
  scan_last<4, CUT, 1>(p);
}
