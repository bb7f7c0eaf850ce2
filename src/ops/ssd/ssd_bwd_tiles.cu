/* ssd_bwd_tiles.cu: the SSD's gradient in chunks by multiply-adds (equations in ssd_bwd_chunks.cu), for every GPU, type
 * and stride; ssd_tiles.cu's kernels prepare step sizes and C B^T. Every chunk of a head is a block of its own; only
 * what is summed over a group's heads is computed by blocks that take several in turn.
 * kr_ssd_bwd_tiles_gate       dy, if there is a gate
 * kr_ssd_bwd_tiles_additions  what every chunk adds to the state after it, and to the gradient of the state before it
 * kr_ssd_bwd_tiles_states     from these S, the state before, and M, its gradient after every chunk
 * kr_ssd_bwd_tiles_inputs     dx, and the sums of tokens with what comes after them
 * kr_ssd_bwd_tiles_outputs    dz, and the sums of tokens with what came before them
 * kr_ssd_bwd_tiles_pairs      W = sum over heads (dy x^T) o 2^(a_i - a_j) d_j, and the sums over pairs of tokens
 * kr_ssd_bwd_tiles_matrices   dC = sum over heads 2^a dy S + W B; dB = sum over heads d 2^(a_end - a) x M + W^T C
 * kr_ssd_bwd_tiles_sum        dB and dC, where several blocks shared a group's heads
 * kr_ssd_bwd_tiles_finish     step-size gradients from the per-token sums */
#include "ssd_bwd_inner.cuh"
#include "ssd_tiles.cuh"

enum { PAIRS_ROW = Q + 1 };

KR_DEV kr_ssd_slice slice_of(const kr_ssd_bwd_params &p, void *states) {
  return kr_ssd_slice{(float *)states, 0, 0, p.n_chunks};
}

/* Of the blocks along x the second half goes back in time. */
KR_DEV int goes_back(int *block) {
  const int half = kr_grid_x() / 2, back = kr_block_x() >= half;
  *block = kr_block_x() - back * half;
  return back;
}

KR_KERNEL void KR_BOUNDS(TILERS, 6) kr_ssd_bwd_tiles_additions(const kr_ssd_bwd_params p) {
  KR_SHARED float __attribute__((aligned(16))) stages[STAGES];
  KR_SHARED float weights[Q];
  int block;
  if (goes_back(&block)) leave_additions<1>(p.f, slice_of(p, p.M), block, p.f.dout, p.f.Cmat, stages, weights);
  else leave_additions<0>(p.f, slice_of(p, p.S), block, p.f.x, p.f.Bmat, stages, weights);
}

KR_KERNEL void KR_BOUNDS(WALKERS, 4) kr_ssd_bwd_tiles_states(const kr_ssd_bwd_params p) {
  const kr_ssd_tensor none = {};
  int block;
  const int spoilt = goes_back(&block) ? pass_states<1>(p.f, slice_of(p, p.M), block, p.dfinal, p.dinitial)
                                       : pass_states<0>(p.f, slice_of(p, p.S), block, p.f.initial, none);
  if (spoilt) report_nonfinite_group(p.f, kr_block_z(), kr_block_y());
}

/* Sum over the eight threads that share a row of a tile. */
KR_DEV float add_tile_row(float v) {
  v += kr_shuffle_xor(v, 2);
  v += kr_shuffle_xor(v, 4);
  return v + kr_shuffle_xor(v, 8);
}

/* sums[row] += the products of a row's results with these elements of v; 64 sums in shared memory. */
KR_DEV void add_products(float *sums, const float (&d)[8][8], const kr_ssd_params &f, const kr_ssd_tensor &v,
                         const chunk_place &at) {
  const tile_place me = own_place();
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int row = result_at(me.y, i);
    float sum = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int c = at.p0 + 32 * h + 4 * me.x;
      float e[4];
      read_four(v, element_at(v, at, row, c), row < at.n ? f.P - c : 0, e);
#pragma unroll
      for (int k = 0; k < 4; k++) sum = kr_fma(e[k], d[i][4 * h + k], sum);
    }
    sum = add_tile_row(sum);
    if (me.x == 0) sums[row] = at.p0 ? sums[row] + sum : sum;
  }
}

KR_DEV void leave_dD(const kr_ssd_bwd_params &p, const chunk_place &at, const chunk_steps &steps) {
  const int c = at.p0 + kr_thread();
  float sum = 0;
  if (!p.dD.data || c >= p.f.P) return;
  for (int t = 0; t < at.n; t++) {
    const float x = kr_load(p.f.x.data, element_at(p.f.x, at, t, c), p.f.x.dtype),
                dy = kr_load(p.f.dout.data, element_at(p.f.dout, at, t, c), p.f.dout.dtype);
    sum = steps.segment[t] < 0 ? sum : kr_fma(x, dy, sum);
  }
  p.parts[(((int64_t)at.b * p.n_chunks + at.chunk) * p.f.H + at.h) * (p.f.P + 2) + c] = sum;
}

/* dx of a thread's results. */
KR_DEV void write_dx(const kr_ssd_bwd_params &p, const chunk_place &at, const chunk_steps &steps,
                     const float (&all)[8][8]) {
  const kr_ssd_params &f = p.f;
  const tile_place me = own_place();
  float D[8];
  read_D(f, at, D);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int row = result_at(me.y, i), is_padding = steps.segment[row] < 0;
    if (row >= at.n) continue;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int c = at.p0 + 32 * h + 4 * me.x, left = f.P - c;
      float dy[4], dx[4];
      read_four(f.dout, element_at(f.dout, at, row, c), f.D.data ? left : 0, dy);
#pragma unroll
      for (int k = 0; k < 4; k++)
        dx[k] = is_padding ? 0.0f : kr_fma(D[4 * h + k], dy[k], steps.d[row] * all[i][4 * h + k]);
      write_four(p.dx, element_at(p.dx, at, row, c), left, dx);
    }
  }
}

/* all = 2^(a_end - a) B M^T + P^T dy, P = (C B^T) o 2^(a_i - a_j); dx = d all + D dy. */
KR_KERNEL void KR_BOUNDS(TILERS, 4) kr_ssd_bwd_tiles_inputs(const kr_ssd_bwd_params p) {
  KR_SHARED float __attribute__((aligned(16))) stages[STAGES];
  KR_SHARED chunk_steps steps;
  KR_SHARED float after[Q], inputs[Q];
  const kr_ssd_params &f = p.f;
  const kr_ssd_slice M = slice_of(p, p.M);
  const tile_place me = own_place();
  chunk_place at = place_in(f, kr_block_x(), kr_block_y(), 0, 0);
  int spoilt = 0;
  load_steps_of(steps, f, at);
#pragma unroll 1
  for (; at.p0 < f.P; at.p0 += PB) {
    float all[8][8];
    clear(all);
    multiply_tile<ALONG_TERMS, ALONG_TERMS>(all, stages, tokens_by_columns(f.Bmat, at, at.g, 0, f.N), as_stored{},
                                            channels_by_states(f, M, at), as_stored{}, f.N);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int row = result_at(me.y, i);
      const float into =
          steps.segment[row] == steps.last ? decay(steps.a[row], steps.from[row], steps.total, steps.pad[0]) : 0.0f;
#pragma unroll
      for (int j = 0; j < 8; j++) all[i][j] *= into;
    }
    add_products(after, all, f, f.x, at);
    const factor products = {products_at(f, at), 0, 1, Q, KRAIT_F32, 1, Q, Q};
    multiply_tile<ALONG_ROWS, ALONG_ROWS>(all, stages, products, by_earlier{f, steps},
                                          columns_by_tokens(f.dout, at, at.h, at.p0, f.P), as_stored{}, at.n);
    add_products(inputs, all, f, f.x, at);
    spoilt |= is_spoilt(all);
    if (p.dx.data) write_dx(p, at, steps, all);
    leave_dD(p, at, steps);
  }
  kr_sync();
  float *const sums = sums_at(p, at.b, at.h, at.chunk)->of[kr_thread()].v;
  sums[1] = steps.d[kr_thread()] * after[kr_thread()], sums[2] = inputs[kr_thread()];
  if (spoilt) report_nonfinite_group(f, at.b, at.h);
}

KR_DEV void write_dz(const kr_ssd_bwd_params &p, const chunk_place &at, const chunk_steps &steps,
                     const float (&y)[8][8]) {
  const kr_ssd_params &f = p.f;
  const tile_place me = own_place();
  float D[8];
  read_D(f, at, D);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int row = result_at(me.y, i), is_padding = steps.segment[row] < 0;
    if (row >= at.n) continue;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int c = at.p0 + 32 * h + 4 * me.x, left = f.P - c;
      float x[4], z[4], dout[4], dz[4];
      read_four(f.x, element_at(f.x, at, row, c), f.D.data ? left : 0, x);
      read_four(f.z, element_at(f.z, at, row, c), left, z);
      read_four(p.gated, element_at(p.gated, at, row, c), left, dout);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float gate = kr_sigmoid(z[k]), all = kr_fma(D[4 * h + k], x[k], y[i][4 * h + k]);
        dz[k] = is_padding || dout[k] == 0 ? 0.0f : dout[k] * all * gate * kr_fma(z[k], 1.0f - gate, 1.0f);
      }
      write_four(f.dz, element_at(f.dz, at, row, c), left, dz);
    }
  }
}

/* <S, M> of a chunk; sums: for each warp. */
KR_DEV void leave_through(const kr_ssd_bwd_params &p, const chunk_place &at, float *sums) {
  const float *const S = state_tile(p.f, slice_of(p, p.S), at), *const M = state_tile(p.f, slice_of(p, p.M), at);
  float v = 0;
#pragma unroll 4
  for (int i = kr_thread(); i < p.f.P * p.f.N; i += TILERS) v = kr_fma(S[i], M[i], v);
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) v += kr_shuffle_xor(v, d);
  if ((kr_thread() & 31) == 0) sums[kr_thread() >> 5] = v;
  kr_sync();
  if (kr_thread() == 0) sums_at(p, at.b, at.h, at.chunk)->through = sums[0] + sums[1];
}

KR_KERNEL void KR_BOUNDS(TILERS, 6) kr_ssd_bwd_tiles_outputs(const kr_ssd_bwd_params p) {
  KR_SHARED float __attribute__((aligned(16))) stages[STAGES];
  KR_SHARED chunk_steps steps;
  KR_SHARED float before[Q], through[TILERS / 32];
  const kr_ssd_params &f = p.f;
  chunk_place at = place_in(f, kr_block_x(), kr_block_y(), 0, 0);
  int spoilt = 0;
  load_steps_of(steps, f, at);
#pragma unroll 1
  for (; at.p0 < f.P; at.p0 += PB) {
    float y[8][8];
    clear(y);
    add_state_output(y, stages, f, slice_of(p, p.S), at, steps);
    add_products(before, y, f, f.dout, at);
    if (f.dz.data) {
      add_own_output(y, stages, f, at, steps);
      write_dz(p, at, steps, y);
    }
    spoilt |= is_spoilt(y);
  }
  leave_through(p, at, through);
  sums_at(p, at.b, at.h, at.chunk)->of[kr_thread()].v[0] = before[kr_thread()];
  if (spoilt) report_nonfinite_group(f, at.b, at.h);
}

/* ---- what is summed over a group's heads ------------------------------------------------------------------------- */

/* A block's heads: its share of a group's, first to end. */
typedef struct share {
  int split, g, h, end;
} share;

KR_DEV share share_of(const kr_ssd_bwd_params &p, int unit) {
  const int g = unit / p.n_splits, split = unit - g * p.n_splits,
            per_split = (p.f.heads + p.n_splits - 1) / p.n_splits, first = split * per_split,
            end = first + per_split < p.f.heads ? first + per_split : p.f.heads;
  return share{split, g, g * p.f.heads + first, g * p.f.heads + end};
}

KR_DEV float *W_at(const kr_ssd_bwd_params &p, const chunk_place &at, int split) {
  return p.W + ((((int64_t)split * p.f.B + at.b) * p.n_chunks + at.chunk) * (p.f.H / p.f.heads) + at.g) * Q * Q;
}

/* Of every pair of tokens in pairs[later][earlier], sums over those with a token before t and one from t on. */
KR_DEV float sum_pairs(float *pairs) {
  const int t = kr_thread();
  float sum = 0, within = 0;
  kr_sync();
  for (int j = 0; j < t; j++) pairs[t * PAIRS_ROW + j] = sum += pairs[t * PAIRS_ROW + j];
  kr_sync();
  for (int i = t; t > 0 && i < Q; i++) within += pairs[i * PAIRS_ROW + t - 1];
  return within;
}

KR_KERNEL void KR_BOUNDS(TILERS, 4) kr_ssd_bwd_tiles_pairs(const kr_ssd_bwd_params p) {
  KR_SHARED float __attribute__((aligned(16))) pairs[Q * PAIRS_ROW]; /* before that, stages */
  KR_SHARED chunk_steps steps;
  const kr_ssd_params &f = p.f;
  const share mine = share_of(p, kr_block_y());
  const tile_place me = own_place();
  float W[8][8];
  clear(W);
#pragma unroll 1
  for (int h = mine.h; h < mine.end; h++) {
    chunk_place at = place_in(f, kr_block_x(), h, 0, 0);
    const float *const CB = products_at(f, at);
    float xy[8][8];
    clear(xy);
    kr_sync();
    load_steps_of(steps, f, at);
    multiply_tile<ALONG_TERMS, ALONG_TERMS>(xy, pairs, tokens_by_columns(f.dout, at, h, 0, f.P), as_stored{},
                                            tokens_by_columns(f.x, at, h, 0, f.P), as_stored{}, f.P);
    kr_sync();
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const int to = result_at(me.y, i), from = result_at(me.x, j);
        const float w = passes<1>(f, steps, xy[i][j], to, from);
        W[i][j] += w;
        pairs[to * PAIRS_ROW + from] = from < to ? w * CB[to * Q + from] : 0.0f;
      }
    const float within = sum_pairs(pairs);
    token_sums &sums = *sums_at(p, at.b, h, at.chunk);
    sums.of[kr_thread()].v[3] = within, sums.taken[kr_thread()] = 0.0f;
  }
  float *const to = W_at(p, place_in(f, kr_block_x(), mine.g * f.heads, 0, 0), mine.split);
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) to[result_at(me.y, i) * Q + result_at(me.x, j)] = W[i][j];
}

/* A block's part of dB or dC, (token, state). */
KR_DEV void write_matrix(const kr_ssd_params &f, const chunk_place &at, const kr_ssd_tensor &v, int64_t first,
                         const float (&d)[8][8]) {
  const tile_place me = own_place();
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int row = result_at(me.y, i), n = at.n0 + result_at(me.x, j);
      if (row < at.n && n < f.N)
        kr_store(v.data, first + at.b * v.b + (at.t0 + row) * v.t + at.g * v.h + n * v.n, v.dtype, d[i][j]);
    }
}

/* OF_B: dB, else dC. */
template <int OF_B>
KR_DEV void leave_matrix(const kr_ssd_bwd_params &p, const share &mine, int n_block, float *stages, float *weights) {
  const kr_ssd_params &f = p.f;
  const kr_ssd_slice states = slice_of(p, OF_B ? p.M : p.S);
  const kr_ssd_tensor &rows = OF_B ? f.x : f.dout, &parts = OF_B ? p.sum_B : p.sum_C, &whole = OF_B ? p.dB : p.dC,
                      &to = p.n_splits > 1 ? parts : whole;
  chunk_place at = place_in(f, kr_block_x(), mine.g * f.heads, 0, n_block);
  float d[8][8];
  clear(d);
  const float *const W = W_at(p, at, mine.split);
  const factor later = {W, 0, Q, 1, KRAIT_F32, 1, Q, Q}, earlier = {W, 0, 1, Q, KRAIT_F32, 1, Q, Q};
  if (OF_B)
    multiply_tile<ALONG_ROWS, ALONG_ROWS>(d, stages, earlier, as_stored{},
                                          columns_by_tokens(f.Cmat, at, at.g, at.n0, f.N), as_stored{}, at.n);
  else
    multiply_tile<ALONG_TERMS, ALONG_ROWS>(d, stages, later, as_stored{},
                                           columns_by_tokens(f.Bmat, at, at.g, at.n0, f.N), as_stored{}, at.n);
#pragma unroll 1
  for (at.h = mine.h; at.h < mine.end; at.h++) {
    const chunk_steps &steps = *steps_at(f, at.b, at.h, at.chunk);
    const int t = kr_thread();
    weights[t] = OF_B ? input_left(steps, f.seq_idx != 0, t) : state_reaches(steps, t);
#pragma unroll 1
    for (at.p0 = 0; at.p0 < f.P; at.p0 += PB)
      multiply_tile<ALONG_TERMS, ALONG_ROWS>(d, stages, tokens_by_columns(rows, at, at.h, at.p0, f.P), by_row{weights},
                                             states_by_channels(f, states, at), as_stored{},
                                             f.P - at.p0 < PB ? f.P - at.p0 : PB);
  }
  if (is_spoilt(d)) report_nonfinite_group(f, at.b, mine.g * f.heads);
  if (to.data) write_matrix(f, at, to, p.n_splits > 1 ? (int64_t)mine.split * f.B * parts.b : 0, d);
}

/* Blocks along y: shares of groups, by 64 states, by dB or dC. */
KR_KERNEL void KR_BOUNDS(TILERS, 6) kr_ssd_bwd_tiles_matrices(const kr_ssd_bwd_params p) {
  KR_SHARED float __attribute__((aligned(16))) stages[STAGES];
  KR_SHARED float weights[Q];
  const int n_blocks = (p.f.N + TILE - 1) / TILE, unit = kr_block_y() / 2, s = unit / n_blocks;
  if (kr_block_y() % 2) leave_matrix<1>(p, share_of(p, s), unit - s * n_blocks, stages, weights);
  else leave_matrix<0>(p, share_of(p, s), unit - s * n_blocks, stages, weights);
}

/* One thread per element; y: dB or dC. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_ssd_bwd_tiles_sum(const kr_ssd_bwd_params p) {
  const kr_ssd_params &f = p.f;
  const kr_ssd_tensor &parts = kr_block_y() ? p.sum_C : p.sum_B, &to = kr_block_y() ? p.dC : p.dB;
  const int groups = f.H / f.heads, b = kr_block_z();
  const int64_t i = (int64_t)kr_block_x() * THREADS + kr_thread(), row = i / f.N, n = i - row * f.N, t = row / groups,
                g = row - t * groups;
  if (t >= f.L || !to.data) return;
  float sum = 0;
  for (int split = 0; split < p.n_splits; split++)
    sum += ((const float *)parts.data)[((int64_t)split * f.B + b) * parts.b + t * parts.t + g * parts.h + n];
  kr_store(to.data, b * to.b + t * to.t + g * to.h + n * to.n, to.dtype, sum);
}

/* f.out: dy, of float32. One thread per element. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_ssd_bwd_tiles_gate(const kr_ssd_bwd_params p) {
  const kr_ssd_params &f = p.f;
  const int64_t i = (int64_t)kr_block_x() * THREADS + kr_thread(), row = i / f.P, t = row / f.H;
  const int c = (int)(i - row * f.P), h = (int)(row - t * f.H), b = kr_block_z();
  if (t >= f.L) return;
  const kr_ssd_tensor &gated = p.gated, &z = f.z;
  const int is_padding = f.seq_idx && f.seq_idx[b * f.seq_b + t * f.seq_t] < 0;
  const float dout = kr_load(gated.data, b * gated.b + t * gated.t + h * gated.h + c * gated.n, gated.dtype),
              gate = kr_silu(kr_load(z.data, b * z.b + t * z.t + h * z.h + c * z.n, z.dtype));
  ((float *)f.out.data)[b * f.out.b + t * f.out.t + h * f.out.h + c] = is_padding ? 0.0f : dout * gate;
}

KR_KERNEL void KR_BOUNDS(WALKERS, 4) kr_ssd_bwd_tiles_finish(const kr_ssd_bwd_params p) { finish<1>(p); }
