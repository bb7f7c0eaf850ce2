/* mamba3_plain.cu: what surrounds the SSD in plain calls of Mamba 3's scan and its gradient: one rank without factors
 * or norm, rows in aligned vectors of eight (kr_mamba3_is_plain). Bound by memory: a lane has 16 bytes of a row, and a
 * thread asks for two tokens' before it uses one's. Compiled as mamba3.cu, whose kernels these replace.
 *   kr_mamba3_plain_rows, _halves      as kr_mamba3_rows; of direct gradients, too
 *   kr_mamba3_plain_finish             as kr_mamba3_finish_P
 *   kr_mamba3_plain_leave              as kr_mamba3_leave_P
 *   kr_mamba3_plain_inputs             as kr_mamba3_inputs_P
 *   kr_mamba3_plain_matrices, _halves  as kr_mamba3_matrices, in tiles of 2048 / N tokens */
#include "mamba3_plain.cuh"

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum { PART = KR_MAMBA3_PLAIN_PART };

/* Inputs of a part's tokens in the rows of their keys, by all threads: eight channels each. */
template <int IS_PACK>
KR_DEV void copy_inputs(const kr_mamba3_params &p, int b, int h, int64_t t0, int n) {
  const int shift = log2_of(p.P / 8), items = n << shift;
  for (int first = kr_thread(); first < items; first += AT_ONCE * THREADS) {
    raw8 x[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int i = first + k * THREADS;
      if (i < items) x[k] = load_eight(p.x.data, at4(p.x, b, t0 + (i >> shift), h, 0) + 8 * (i & (p.P / 8 - 1)));
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int i = first + k * THREADS, c = 8 * (i & (p.P / 8 - 1));
      if (i >= items) continue;
      const token at = token_of<IS_PACK>(p, b, t0 + (i >> shift));
      const eight e = unpacked(x[k]);
      if (has_next(p, at)) store_eight(p.rows_x, place_of(p, unit_of(p, b, h), at.block + 1, shift + 3) + c, e);
      put_final_inputs(p, b, h, at, c);
    }
  }
}

/* A token's query and key, given without biases, and their product; called by all lanes. */
template <int HALVES>
KR_DEV void put_quads(const kr_mamba3_params &p, int h, const token &at, const quad_place &to, int is_there, int first,
                      eight q, eight k, const quad_angles &angles) {
  const float product = add_lanes(dot(q, k), p.N / 8);
  if (!is_there) return;
  if (first == 0) p.dots[to.value] = product;
  if (first < p.M) {
    rotation by[4];
    rotations_of<0>(p, angles, by);
    turn_quad<HALVES>(q, by, 1.0f), turn_quad<HALVES>(k, by, 1.0f);
  }
  store_quad<HALVES>(p.q, to.row, first, p.N, q);
  if (p.is_direct || has_next(p, at)) store_quad<HALVES>(p.k, to.row + (p.is_direct ? 0 : p.N), first, p.N, k);
  if (at.ends && p.final_B.data) put_final_key<HALVES>(p, h, at, 0, first, k);
}

/* A token's query and key for a lane's pairs, before they turn. */
typedef struct quads {
  raw8 q, k;
  quad_angles angles;
} quads;

template <int HALVES>
KR_DEV quads load_quads(const kr_mamba3_params &p, const token &at, const quad_place &from, int first) {
  quads v = {load_quad<HALVES>(p.Cmat.data, from.q, first, p.N),
             load_quad<HALVES>(p.Bmat.data, from.k, first, p.N),
             {}};
  if (first < p.M) v.angles = load_angles<0>(p, from, at, first);
  return v;
}

/* Of a direct call: a token's weight and decay, and its D. The next token's share that is not finite is its own
 * output's matter, not this one's. */
KR_DEV void put_direct(const kr_mamba3_params &p, int b, int h, int64_t t) {
  const steps now = steps_at(p, b, h, t);
  const int64_t place = value_of(p, unit_of(p, b, h), t);
  float share = 0;
  if (t + 1 < p.L) {
    const steps next = steps_at(p, b, h, t + 1);
    share = next.rest * next.d;
    share = share * 0.0f == 0.0f ? share : 0.0f;
  }
  p.weight[place] = kr_fma(now.lambda, now.d, share), p.decay[place] = now.decay, p.gamma[place] = -share;
  p.skips[place] = kr_fma(-share, p.dots[place], p.Dvec.data ? get(p.Dvec, h * p.Dvec.stride[0]) : 0.0f);
}

template <int HALVES, int IS_PACK>
KR_DEV void plain_rows(const kr_mamba3_params &p, float *biases) {
  const int part = kr_block_x() / p.H, h = kr_block_x() - part * p.H, b = kr_block_z(), shift = log2_of(p.N / 8),
            first = 4 * (kr_thread() & (p.N / 8 - 1)), each = THREADS >> shift;
  const int64_t t0 = (int64_t)part * PART, end = t0 + PART < p.L ? t0 + PART : p.L;
  const quad_place step = apart(p, each);
  int64_t t = t0 + (kr_thread() >> shift);
  token at = token_of<IS_PACK>(p, b, t < end ? t : end - 1);
  quad_place place = quad_at(p, b, h, at);
  quads next = load_quads<HALVES>(p, at, place, first);
  load_biases(p, h, biases);
  if (!p.is_direct) copy_inputs<IS_PACK>(p, b, h, t0, (int)(end - t0));
  kr_sync();
  const eight q_bias = quad_of<HALVES>(biases, first, p.N), k_bias = quad_of<HALVES>(biases + p.N, first, p.N);
#pragma unroll 1
  for (int64_t from = t0; from < end; from += each, t += each) {
    const quads now = next;
    const token of = at;
    const quad_place to = place;
    if (t + each < end) {
      at = token_of<IS_PACK>(p, b, t + each);
      place = IS_PACK ? quad_at(p, b, h, at) : moved(place, step);
      next = load_quads<HALVES>(p, at, place, first);
    }
    put_quads<HALVES>(p, h, of, to, t < end, first, plus(unpacked(now.q), q_bias), plus(unpacked(now.k), k_bias),
                      now.angles);
  }
  if (p.is_direct) kr_sync(); /* products of queries and keys are there */
  if (kr_thread() >= end - t0) return;
  if (p.is_direct)
    put_direct(p, b, h, t0 + kr_thread());
  else
    put_weights(p, b, h, token_of<IS_PACK>(p, b, t0 + kr_thread()));
}

template <int HALVES>
KR_DEV void plain_rows_of(const kr_mamba3_params &p) {
  KR_SHARED __attribute__((aligned(16))) float biases[2 * MOST_N];
  if (p.cu_seqlens.data)
    plain_rows<HALVES, 1>(p, biases);
  else
    plain_rows<HALVES, 0>(p, biases);
}
enum { ROWS_AT_ONCE = KR_DTYPE == 0 ? 2 : 3 }; /* blocks of a multiprocessor */
KR_KERNEL void KR_BOUNDS(THREADS, ROWS_AT_ONCE) kr_mamba3_plain_rows(const kr_mamba3_params p) { plain_rows_of<0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, ROWS_AT_ONCE) kr_mamba3_plain_rows_halves(const kr_mamba3_params p) {
  plain_rows_of<1>(p);
}

/* ---- channels ---------------------------------------------------------------------------------------------------- */

/* Eight channels of a token: thread's item i of a chunk. */
typedef struct channels {
  token at;
  int c, is_there;
  float own; /* what multiplies x in y and dy in dx */
  int64_t row; /* of y, at c */
} channels;

KR_DEV channels channels_at(const kr_mamba3_params &p, int b, int h, int64_t t0, int i) {
  const int shift = log2_of(p.P / 8);
  const int64_t t = t0 + (i >> shift);
  channels v;
  v.is_there = t < p.L, v.c = 8 * (i & (p.P / 8 - 1));
  v.at = token_at(p, b, v.is_there ? t : p.L - 1);
  const int64_t unit = unit_of(p, b, h), place = value_of(p, unit, v.at.t);
  v.own = kr_fma(p.gamma[place], p.dots[place], p.Dvec.data ? get(p.Dvec, h * p.Dvec.stride[0]) : 0.0f);
  v.row = place_of(p, unit, v.at.block, shift + 3) + v.c;
  return v;
}
KR_DEV raw8 load_channels(const kr_view &v, int b, int h, const channels &of) {
  return load_eight(v.data, at4(v, b, of.at.t, h, of.c));
}
KR_DEV void store_channels(const kr_view &v, int b, int h, const channels &of, const eight &e) {
  store_eight(v.data, at4(v, b, of.at.t, h, of.c), e);
}

KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_mamba3_plain_finish(const kr_mamba3_params p) {
  const int chunk = kr_block_x() / p.H, h = kr_block_x() - chunk * p.H, b = kr_block_z(), n = CHUNK * p.P / 8;
  for (int first = kr_thread(); first < n; first += AT_ONCE * THREADS) {
    raw8 x[AT_ONCE], y[AT_ONCE], z[AT_ONCE];
    channels of[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int i = first + k * THREADS;
      of[k] = channels_at(p, b, h, (int64_t)chunk * CHUNK, i);
      of[k].is_there = of[k].is_there && i < n;
      x[k] = load_channels(p.x, b, h, of[k]), y[k] = load_eight(p.y, of[k].row);
      if (p.z.data) z[k] = load_channels(p.z, b, h, of[k]);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      eight o = plus_times(of[k].own, unpacked(x[k]), unpacked(y[k]));
      if (p.z.data) {
        const eight gate = unpacked(z[k]);
#pragma unroll
        for (int j = 0; j < 8; j++) o.v[j] *= kr_silu(gate.v[j]);
      }
      if (of[k].is_there) store_channels(p.out, b, h, of[k], o);
    }
  }
}

/* dy of eight channels from dout (which it replaces), and dz. */
KR_DEV eight leave_gate(const eight &y, const eight &z, eight &d) {
  eight dz;
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const float s = kr_sigmoid(z.v[j]), silu = z.v[j] * s, slope = s * kr_fma(z.v[j], 1.0f - s, 1.0f);
    dz.v[j] = d.v[j] == 0 ? 0.0f : d.v[j] * y.v[j] * slope;
    d.v[j] *= silu;
  }
  return dz;
}

KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_mamba3_plain_leave(const kr_mamba3_bwd_params p) {
  const kr_mamba3_params &f = p.f;
  const int chunk = kr_block_x() / f.H, h = kr_block_x() - chunk * f.H, b = kr_block_z(), n = CHUNK * f.P / 8;
  for (int first = kr_thread(); first - (kr_thread() & 31) < n; first += AT_ONCE * THREADS) {
    raw8 x[AT_ONCE], y[AT_ONCE], z[AT_ONCE], d[AT_ONCE];
    channels of[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int i = first + k * THREADS;
      of[k] = channels_at(f, b, h, (int64_t)chunk * CHUNK, i);
      of[k].is_there = of[k].is_there && i < n;
      x[k] = load_channels(f.x, b, h, of[k]), d[k] = raw8{};
      if (p.dout.data) d[k] = load_channels(p.dout, b, h, of[k]);
      if (f.z.data) z[k] = load_channels(f.z, b, h, of[k]), y[k] = load_eight(f.y, of[k].row);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const eight input = unpacked(x[k]);
      eight dy = unpacked(d[k]), dz;
      if (f.z.data) dz = leave_gate(plus_times(of[k].own, input, unpacked(y[k])), unpacked(z[k]), dy);
      const float product = add_lanes(dot(dy, input), f.P / 8);
      if (!of[k].is_there) continue;
      store_eight(f.y, of[k].row, dy);
      if (p.dz.data) store_channels(p.dz, b, h, of[k], dz);
      if (of[k].c == 0) p.products[value_of(f, unit_of(f, b, h), of[k].at.t)] = product;
    }
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_mamba3_plain_inputs(const kr_mamba3_bwd_params p) {
  const kr_mamba3_params &f = p.f;
  const int chunk = kr_block_x() / f.H, h = kr_block_x() - chunk * f.H, b = kr_block_z(), n = CHUNK * f.P / 8;
  const int64_t t0 = (int64_t)chunk * CHUNK;
  for (int first = kr_thread(); p.dx.data && !f.is_direct && first < n; first += AT_ONCE * THREADS) {
    raw8 d[AT_ONCE], dy[AT_ONCE];
    channels of[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int i = first + k * THREADS;
      of[k] = channels_at(f, b, h, t0, i);
      of[k].is_there = of[k].is_there && i < n;
      dy[k] = load_eight(f.y, of[k].row), d[k] = raw8{};
      if (has_next(f, of[k].at)) d[k] = load_eight(p.rows_dx, of[k].row + f.P);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (!of[k].is_there) continue;
      eight dx = plus_times(of[k].own, unpacked(dy[k]), unpacked(d[k]));
#pragma unroll
      for (int j = 0; j < 8 && of[k].at.ends && p.dfinal_x.data; j++)
        dx.v[j] += get(p.dfinal_x, at3(p.dfinal_x, of[k].at.row, h, of[k].c + j));
      store_channels(p.dx, b, h, of[k], dx);
    }
  }
  if (!p.dDvec.data || kr_thread() >= 32) return;
  const int64_t unit = unit_of(f, b, h);
  float sum = 0;
  for (int64_t t = t0 + kr_thread(); t < t0 + CHUNK && t < f.L; t += 32) sum += p.products[value_of(f, unit, t)];
  sum = add_warp(sum);
  if (kr_thread() == 0) p.factors[(((int64_t)b * f.n_chunks + chunk) * f.H + h + 1) * p.n_parts - 1] = sum;
}

/* ---- B and C ----------------------------------------------------------------------------------------------------- */

template <int HALVES>
KR_DEV void plain_matrices_of(const kr_mamba3_bwd_params &p) {
  KR_SHARED __attribute__((aligned(16))) float sums[2][WARPS][2 * MOST_N];
  KR_SHARED __attribute__((aligned(16))) float biases[2][2 * MOST_N];
  if (p.f.cu_seqlens.data)
    leave_matrices<HALVES, 1, 1>(p, sums, biases);
  else
    leave_matrices<HALVES, 0, 1>(p, sums, biases);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_plain_matrices(const kr_mamba3_bwd_params p) { plain_matrices_of<0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_plain_matrices_halves(const kr_mamba3_bwd_params p) {
  plain_matrices_of<1>(p);
}
