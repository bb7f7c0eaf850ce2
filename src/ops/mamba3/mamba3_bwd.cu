/* mamba3_bwd.cu: what surrounds the SSD's gradient in that of Mamba 3's scan (equations in mamba3_bwd_ref.c); compiled
 * as mamba3.cu, whose kernels make the rows. Every sum has one order.
 *   kr_mamba3_leave_P   dy of every rank from dout; dz; the products of a token with itself; sums for factors and norm
 *   kr_mamba3_far       dy beside tokens
 *   kr_mamba3_inputs_P  dx; sums for mimo_x and D
 *   kr_mamba3_matrices  dB, dC and their biases, turned back; each token's share of the gradient of angles
 *   kr_mamba3_sums, kr_mamba3_later  that share's sums over spans, then over the spans behind
 *   kr_mamba3_steps     gradients of angles, dt, trap and the decay
 *   kr_mamba3_initial   gradients of the states before a sequence
 *   kr_mamba3_add       sums over blocks: gradients of parameters */
#include "mamba3_rows.cuh"

enum { TILE = KR_MAMBA3_TILE, EACH = TILE / WARPS, SLICES = KR_MAMBA3_SLICES };

KR_DEV int lane_channel(int i) { return 64 * i + 2 * (kr_thread() & 31); }

/* A head's sums over one of n_factors blocks. */
KR_DEV float *factors_at(const kr_mamba3_bwd_params &p, int64_t block, int h) {
  return p.factors + (block * p.f.H + h) * p.n_parts;
}
/* Places in these: dmimo_z, dmimo_o and dmimo_x of rank r, dnorm_weight, dD. */
KR_DEV int place_z(const kr_mamba3_params &f, int r) { return r * f.P; }
KR_DEV int place_o(const kr_mamba3_params &f, int r) { return (f.R + r) * f.P; }
KR_DEV int place_x(const kr_mamba3_params &f, int r) { return (2 * f.R + r) * f.P; }
KR_DEV int place_norm(const kr_mamba3_params &f) { return 3 * f.R * f.P; }
KR_DEV int place_D(const kr_mamba3_params &f) { return (3 * f.R + 1) * f.P; }

/* Sums of the warps' channels, by all threads. adds: to what is there. */
template <int TWOS>
KR_DEV void add_warps(const kr_mamba3_params &f, float (*warps)[64 * TWOS], const kr_float2 (&own)[TWOS], float *to,
                      int adds) {
  kr_sync();
#pragma unroll
  for (int i = 0; i < TWOS; i++) {
    warps[kr_thread() >> 5][lane_channel(i)] = own[i].v[0];
    warps[kr_thread() >> 5][lane_channel(i) + 1] = own[i].v[1];
  }
  kr_sync();
  for (int c = kr_thread(); c < f.P; c += THREADS) {
    float sum = adds ? to[c] : 0.0f;
    for (int w = 0; w < WARPS; w++) sum += warps[w][c];
    to[c] = sum;
  }
}

/* ---- dy ---------------------------------------------------------------------------------------------------------- */

/* What a rank's channels give back: y as it was, the gate's factor and slope. */
typedef struct gate {
  kr_float2 d, n, factor, slope; /* d: dout with mimo_o; n: after the norm; factor: silu */
} gate;

KR_DEV kr_float2 load_dout(const kr_mamba3_bwd_params &p, int b, int h, const token &at, int r, int c) {
  const kr_mamba3_params &f = p.f;
  if (!p.dout.data) return kr_float2{{0, 0}};
  const int row = f.mimo_o.data ? h : r * f.H + h;
  return get_two(p.dout, at4(p.dout, b, at.t, row, c), p.dout.stride[3], f.P - c);
}

KR_DEV kr_float2 times(const kr_float2 &x, const kr_float2 &y) { return kr_float2{{x.v[0] * y.v[0], x.v[1] * y.v[1]}}; }

/* Two factors of a (H,R,P) parameter; ones if it is absent. */
KR_DEV kr_float2 factor_at(const kr_mamba3_params &f, const kr_view &v, int h, int r, int c) {
  if (!v.data) return kr_float2{{1, 1}};
  return get_two(v, at3(v, h, r, c), v.stride[2], f.P - c);
}

KR_DEV gate gate_at(const kr_mamba3_bwd_params &p, int b, int h, const token &at, int r, int c, const kr_float2 &y,
                    const kr_float2 &z, float scale) {
  const kr_mamba3_params &f = p.f;
  gate v = {times(load_dout(p, b, h, at, r, c), factor_at(f, f.mimo_o, h, r, c)), y, {{1, 1}}, {{0, 0}}};
  if (f.norm_weight.data) {
    const kr_float2 norm = get_two(f.norm_weight, at2(f.norm_weight, h, c), f.norm_weight.stride[1], f.P - c);
    v.n = kr_float2{{y.v[0] * scale * norm.v[0], y.v[1] * scale * norm.v[1]}};
  }
  if (!f.z.data) return v;
  const kr_float2 by = factor_at(f, f.mimo_z, h, r, c);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const float zr = z.v[k] * by.v[k], s = kr_sigmoid(zr);
    v.factor.v[k] = zr * s, v.slope.v[k] = s * kr_fma(zr, 1.0f - s, 1.0f);
  }
  return v;
}

/* y of a rank, by a warp. */
template <int TWOS>
KR_DEV void load_y(const kr_mamba3_bwd_params &p, int b, int h, const token &at, int r, float weight, float D,
                   const kr_float2 (&x)[TWOS], kr_float2 (&y)[TWOS]) {
#pragma unroll
  for (int i = 0; i < TWOS; i++) {
    const int c = lane_channel(i);
    y[i] = c < p.f.P && p.needs_y ? complete(p.f, b, h, at, r, c, weight, x[i], D) : kr_float2{{0, 0}};
    if (c == p.f.P - 1) y[i].v[1] = 0;
  }
}

/* dy of a rank, through the norm, from dn (which it replaces). */
template <int TWOS>
KR_DEV void leave_norm(const kr_mamba3_params &f, int h, const kr_float2 (&y)[TWOS], float scale,
                       kr_float2 (&dn)[TWOS]) {
  float mean = 0;
#pragma unroll
  for (int i = 0; i < TWOS; i++) {
    const int c = lane_channel(i);
    if (c >= f.P) continue;
    dn[i] = times(dn[i], get_two(f.norm_weight, at2(f.norm_weight, h, c), f.norm_weight.stride[1], f.P - c));
    mean = kr_fma(dn[i].v[0], y[i].v[0] * scale, kr_fma(dn[i].v[1], y[i].v[1] * scale, mean));
  }
  mean = add_warp(mean) / (float)f.P;
#pragma unroll
  for (int i = 0; i < TWOS; i++)
#pragma unroll
    for (int k = 0; k < 2; k++) dn[i].v[k] = scale * (dn[i].v[k] - y[i].v[k] * scale * mean);
}

/* dy of a token's ranks to their rows, dz, and the products with its inputs, by a warp. */
template <int TWOS>
KR_DEV void leave_token(const kr_mamba3_bwd_params &p, int b, int h, const token &at) {
  const kr_mamba3_params &f = p.f;
  const steps now = steps_at(f, b, h, at.t);
  const float D = f.Dvec.data ? get(f.Dvec, h * f.Dvec.stride[0]) : 0.0f;
  float *const products = dots_of(p.products, f, b, h, at.t);
  kr_float2 x[TWOS], z[TWOS] = {}, y[TWOS], dz[TWOS] = {}, dn[TWOS];
  load_twos(f, f.x, at4(f.x, b, at.t, h, 0), f.x.stride[3], x);
  if (f.z.data) load_twos(f, f.z, at4(f.z, b, at.t, h, 0), f.z.stride[3], z);
#pragma unroll 1
  for (int r = 0; r < f.R; r++) {
    load_y(p, b, h, at, r, now.lambda * now.d, D, x, y);
    const float scale = f.norm_weight.data ? norm_scale(f, y) : 1.0f;
#pragma unroll
    for (int i = 0; i < TWOS; i++) {
      const int c = lane_channel(i);
      dn[i] = kr_float2{{0, 0}};
      if (c >= f.P) continue;
      const gate v = gate_at(p, b, h, at, r, c, y[i], z[i], scale);
      const kr_float2 by = factor_at(f, f.mimo_z, h, r, c);
#pragma unroll
      for (int k = 0; k < 2; k++)
        dz[i].v[k] = kr_fma(v.d.v[k] == 0 ? 0.0f : v.d.v[k] * v.n.v[k] * v.slope.v[k], by.v[k], dz[i].v[k]);
      dn[i] = times(v.d, v.factor);
      if (c == f.P - 1) dn[i].v[1] = 0;
    }
    if (f.norm_weight.data) leave_norm(f, h, y, scale, dn);
#pragma unroll
    for (int i = 0; i < TWOS; i++)
      if (lane_channel(i) < f.row_P)
        put_row_two(f.y, row_of(f, b, h, at.block, r) * f.row_P + lane_channel(i), dn[i].v[0], dn[i].v[1]);
#pragma unroll 1
    for (int s = 0; s < f.R; s++) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < TWOS; i++) {
        if (lane_channel(i) >= f.P) continue;
        const kr_float2 xs = times(x[i], factor_at(f, f.mimo_x, h, s, lane_channel(i)));
        sum = kr_fma(dn[i].v[0], xs.v[0], sum);
        if (lane_channel(i) + 1 < f.P) sum = kr_fma(dn[i].v[1], xs.v[1], sum);
      }
      sum = add_warp(sum);
      if ((kr_thread() & 31) == 0) products[r * f.R + s] = sum;
    }
  }
  for (int r = f.R; r < f.ranks; r++)
    for (int c = 2 * (kr_thread() & 31); c < f.row_P; c += 64)
      put_row_two(f.y, row_of(f, b, h, at.block, r) * f.row_P + c, 0, 0);
#pragma unroll
  for (int i = 0; i < TWOS; i++) {
    const int c = lane_channel(i);
    if (p.dz.data && c < f.P) put_two(p.dz, at4(p.dz, b, at.t, h, c), p.dz.stride[3], f.P - c, dz[i]);
  }
}

/* Sums over a chunk's tokens for the factors of one rank and the norm's weight; y is still in the rows. */
template <int TWOS>
KR_DEV void sum_factors(const kr_mamba3_bwd_params &p, int b, int h, int64_t t0, int64_t end, int r, float *to,
                        float (*warps)[64 * TWOS]) {
  const kr_mamba3_params &f = p.f;
  const float D = f.Dvec.data ? get(f.Dvec, h * f.Dvec.stride[0]) : 0.0f;
  kr_float2 of_z[TWOS] = {}, of_o[TWOS] = {}, of_norm[TWOS] = {}, x[TWOS], y[TWOS];
  for (int64_t t = t0 + (kr_thread() >> 5); t < end; t += WARPS) {
    const token at = token_at(f, b, t);
    const steps now = steps_at(f, b, h, t);
    load_twos(f, f.x, at4(f.x, b, t, h, 0), f.x.stride[3], x);
    load_y(p, b, h, at, r, now.lambda * now.d, D, x, y);
    const float scale = f.norm_weight.data ? norm_scale(f, y) : 1.0f;
#pragma unroll
    for (int i = 0; i < TWOS; i++) {
      const int c = lane_channel(i);
      if (c >= f.P) continue;
      kr_float2 z = {{0, 0}};
      if (f.z.data) z = get_two(f.z, at4(f.z, b, t, h, c), f.z.stride[3], f.P - c);
      const gate v = gate_at(p, b, h, at, r, c, y[i], z, scale);
      const kr_float2 dout = load_dout(p, b, h, at, r, c);
#pragma unroll
      for (int k = 0; k < 2; k++) {
        of_z[i].v[k] = kr_fma(v.d.v[k] == 0 ? 0.0f : v.d.v[k] * v.n.v[k] * v.slope.v[k], z.v[k], of_z[i].v[k]);
        if (dout.v[k] != 0) of_o[i].v[k] = kr_fma(dout.v[k] * v.n.v[k], v.factor.v[k], of_o[i].v[k]);
        of_norm[i].v[k] = kr_fma(v.d.v[k] * v.factor.v[k], y[i].v[k] * scale, of_norm[i].v[k]);
      }
    }
  }
  if (f.mimo_z.data) add_warps(f, warps, of_z, to + place_z(f, r), 0);
  if (f.mimo_o.data) add_warps(f, warps, of_o, to + place_o(f, r), 0);
  if (f.norm_weight.data) add_warps(f, warps, of_norm, to + place_norm(f), r > 0);
}

template <int TWOS>
KR_DEV void leave(const kr_mamba3_bwd_params &p) {
  KR_SHARED float warps[WARPS][64 * TWOS];
  const kr_mamba3_params &f = p.f;
  const int chunk = kr_block_x() / f.H, h = kr_block_x() - chunk * f.H, b = kr_block_z();
  const int64_t t0 = (int64_t)chunk * CHUNK, end = t0 + CHUNK < f.L ? t0 + CHUNK : f.L;
  const int has_factors = f.mimo_z.data || f.mimo_o.data || f.norm_weight.data;
  for (int r = 0; has_factors && r < f.R; r++)
    sum_factors<TWOS>(p, b, h, t0, end, r, factors_at(p, (int64_t)b * f.n_chunks + chunk, h), warps);
  kr_sync();
  for (int64_t t = t0 + (kr_thread() >> 5); t < end; t += WARPS) leave_token<TWOS>(p, b, h, token_at(f, b, t));
}

KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_mamba3_leave_64(const kr_mamba3_bwd_params p) { leave<1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_mamba3_leave_256(const kr_mamba3_bwd_params p) { leave<4>(p); }

/* Rows of dy from block `first` on: none, or (of unit queries) the gradient of the final state. */
KR_DEV void put_far(const kr_mamba3_bwd_params &p, int b, int h, int row, int64_t first, int n_blocks, int is_final) {
  const kr_mamba3_params &f = p.f;
  for (int i = kr_thread(); i < n_blocks * f.ranks * f.row_P; i += THREADS) {
    const int n = i / f.row_P, c = i % f.row_P, there = is_final && n < f.N && c < f.P;
    put((element *)f.y, row_of(f, b, h, first, 0) * f.row_P + i,
        there ? get(p.dfinal_states, at4(p.dfinal_states, row, h, c, n)) : 0.0f);
  }
}

/* A sequence's blocks. */
typedef struct blocks {
  int64_t begin, first, n; /* token; block; tokens */
} blocks;
KR_DEV blocks blocks_of(const kr_mamba3_params &f, int row) {
  if (!f.cu_seqlens.data) return blocks{0, 0, f.L};
  const int64_t begin = offset_at(f, row), end = offset_at(f, row + 1);
  return blocks{begin, first_block(f, row, begin), end > begin ? end - begin : 0};
}

KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_far(const kr_mamba3_bwd_params p) {
  const kr_mamba3_params &f = p.f;
  const int row = kr_block_x() / f.H, h = kr_block_x() - row * f.H, b = f.cu_seqlens.data ? 0 : row;
  const blocks s = blocks_of(f, row);
  put_far(p, b, h, row, s.first - f.before, f.before, 0);
  put_far(p, b, h, row, s.first + s.n, f.has_ends, 0);
  put_far(p, b, h, row, s.first + s.n + 1, f.after, 1);
}

/* ---- dx ---------------------------------------------------------------------------------------------------------- */

/* Gradient of two channels of a rank's input. */
KR_DEV kr_float2 input_gradient(const kr_mamba3_bwd_params &p, int b, int h, const token &at, int s, int c,
                                float weight, float D) {
  const kr_mamba3_params &f = p.f;
  const float *const dots = dots_of(f.dots, f, b, h, at.t);
  kr_float2 d = {{0, 0}};
  if (has_next(f, at)) d = row_two(p.rows_dx, row_of(f, b, h, at.block + 1, s) * f.row_P + c);
#pragma unroll 1
  for (int r = 0; r < f.R; r++) {
    const float by = kr_fma(weight, dots[r * f.R + s], r == s ? D : 0.0f);
    const kr_float2 dy = row_two(f.y, row_of(f, b, h, at.block, r) * f.row_P + c);
    d.v[0] = kr_fma(by, dy.v[0], d.v[0]), d.v[1] = kr_fma(by, dy.v[1], d.v[1]);
  }
  return d;
}

KR_DEV void put_dx(const kr_mamba3_bwd_params &p, int b, int h, const token &at) {
  const kr_mamba3_params &f = p.f;
  const steps now = steps_at(f, b, h, at.t);
  const float D = f.Dvec.data ? get(f.Dvec, h * f.Dvec.stride[0]) : 0.0f;
#pragma unroll 1
  for (int c = 2 * (kr_thread() & 31); c < f.P; c += 64) {
    kr_float2 sum = {{0, 0}};
    if (at.ends && p.dfinal_x.data)
      sum = get_two(p.dfinal_x, at3(p.dfinal_x, at.row, h, c), p.dfinal_x.stride[2], f.P - c);
#pragma unroll 1
    for (int s = 0; s < f.R; s++) {
      const kr_float2 d = input_gradient(p, b, h, at, s, c, now.lambda * now.d, D),
                      by = factor_at(f, f.mimo_x, h, s, c);
      sum.v[0] = kr_fma(by.v[0], d.v[0], sum.v[0]), sum.v[1] = kr_fma(by.v[1], d.v[1], sum.v[1]);
    }
    put_two(p.dx, at4(p.dx, b, at.t, h, c), p.dx.stride[3], f.P - c, sum);
  }
}

template <int TWOS>
KR_DEV void inputs(const kr_mamba3_bwd_params &p) {
  KR_SHARED float warps[WARPS][64 * TWOS];
  const kr_mamba3_params &f = p.f;
  const int chunk = kr_block_x() / f.H, h = kr_block_x() - chunk * f.H, b = kr_block_z();
  const int64_t t0 = (int64_t)chunk * CHUNK, end = t0 + CHUNK < f.L ? t0 + CHUNK : f.L;
  float *const to = factors_at(p, (int64_t)b * f.n_chunks + chunk, h);
  const float D = f.Dvec.data ? get(f.Dvec, h * f.Dvec.stride[0]) : 0.0f;
  if (p.dx.data)
    for (int64_t t = t0 + (kr_thread() >> 5); t < end; t += WARPS) put_dx(p, b, h, token_at(f, b, t));
  for (int s = 0; p.dmimo_x.data && s < f.R; s++) {
    kr_float2 sums[TWOS] = {};
    for (int64_t t = t0 + (kr_thread() >> 5); t < end; t += WARPS) {
      const token at = token_at(f, b, t);
      const steps now = steps_at(f, b, h, t);
#pragma unroll
      for (int i = 0; i < TWOS; i++) {
        const int c = lane_channel(i);
        if (c >= f.P) continue;
        const kr_float2 d = input_gradient(p, b, h, at, s, c, now.lambda * now.d, D),
                        x = get_two(f.x, at4(f.x, b, t, h, c), f.x.stride[3], f.P - c);
        sums[i].v[0] = kr_fma(x.v[0], d.v[0], sums[i].v[0]), sums[i].v[1] = kr_fma(x.v[1], d.v[1], sums[i].v[1]);
      }
    }
    add_warps(f, warps, sums, to + place_x(f, s), 0);
  }
  if (!p.dDvec.data || kr_thread() >= 32) return;
  float sum = 0;
  for (int64_t t = t0 + kr_thread(); t < end; t += 32)
    for (int r = 0; r < f.R; r++) sum += dots_of(p.products, f, b, h, t)[r * (f.R + 1)];
  sum = add_warp(sum);
  if (kr_thread() == 0) to[place_D(f)] = sum;
}

KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_mamba3_inputs_64(const kr_mamba3_bwd_params p) { inputs<1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_inputs_256(const kr_mamba3_bwd_params p) { inputs<4>(p); }

/* ---- B and C ----------------------------------------------------------------------------------------------------- */

/* A rank's rows of dq and dk of a token, complete; and what turning the token changes, in which the products of a token
 * with itself have no part: of the rounded queries and keys that were multiplied, so that what two tokens give to
 * angles that turn both cancels exactly. */
typedef struct turning {
  pairs dq, dk;
  float shares[2];
} turning;

KR_DEV float rounded(float v) {
#if KR_DTYPE == 0
  return v;
#else
  return kr_unpack(kr_pack(v, 0, KR_DTYPE), 0, KR_DTYPE);
#endif
}

/* What turning pair i of a row changes. */
KR_DEV float share_of(const pairs &row, const pairs &d, int i) {
  return kr_fma(rounded(row.a.v[i]), d.b.v[i], -(rounded(row.b.v[i]) * d.a.v[i]));
}

KR_DEV kr_view float_view(void *rows) {
  kr_view v = {};
  v.data = rows, v.dtype = KRAIT_F32;
  return v;
}

KR_DEV turning turning_at(const kr_mamba3_bwd_params &p, int b, int h, const token &at, int r, const runs &two,
                          const rotation (&by)[2], int n) {
  const kr_mamba3_params &f = p.f;
  const float trap = get(f.trap, at3(f.trap, b, at.t, h)), weight = kr_sigmoid(trap) * get(f.dt, at3(f.dt, b, at.t, h));
  const float *const products = dots_of(p.products, f, b, h, at.t);
  const pairs q = read_rank(f, two, f.Cmat, f.C_bias, b, h, at.t, r, by, n),
              k = read_rank(f, two, f.Bmat, f.B_bias, b, h, at.t, r, by, n);
  turning v = {load_pairs(two, float_view(p.dq), row_of(f, b, h, at.block, r) * f.row_N, 1), {}, {}};
  if (has_next(f, at)) v.dk = load_pairs(two, float_view(p.dk), row_of(f, b, h, at.block + 1, r) * f.row_N, 1);
  if (at.ends && p.dfinal_B.data)
    v.dk = plus(v.dk, load_pairs(two, p.dfinal_B, at4(p.dfinal_B, at.row, r, h, 0), p.dfinal_B.stride[3]));
#pragma unroll
  for (int i = 0; i < 2; i++) v.shares[i] = share_of(q, v.dq, i) + share_of(k, v.dk, i);
  v.dq = plus_times(weight * products[r * (f.R + 1)], k, v.dq);
  v.dk = plus_times(weight * products[r * (f.R + 1)], q, v.dk);
#pragma unroll 1
  for (int s = 0; s < f.R; s++) {
    if (s == r) continue;
    v.dq = plus_times(weight * products[r * f.R + s], read_rank(f, two, f.Bmat, f.B_bias, b, h, at.t, s, by, n), v.dq);
    v.dk = plus_times(weight * products[s * f.R + r], read_rank(f, two, f.Cmat, f.C_bias, b, h, at.t, s, by, n), v.dk);
  }
  return v;
}

/* The warps' sums over a tile of a head's dq and dk, turned back, to biases of (2,R,N). */
KR_DEV void leave_biases(const kr_mamba3_bwd_params &p, int h, int64_t tile, int r, int first, const pairs (&own)[2],
                         pairs (*warps)[2][32]) {
  const kr_mamba3_params &f = p.f;
  const int lane = kr_thread() & 31, which = kr_thread() >> 5;
  warps[which][0][lane] = own[0], warps[which][1][lane] = own[1];
  kr_sync();
  if (which < 2 && first < f.N / 2) {
    kr_view to = {};
    pairs sum = warps[0][which][lane];
    for (int w = 1; w < WARPS; w++) sum = plus(sum, warps[w][which][lane]);
    to.data = p.biases, to.dtype = KRAIT_F32;
    store_pairs(runs_of(f, first), to, (((tile * f.H + h) * 2 + which) * f.R + r) * f.N, 1, sum);
  }
  kr_sync();
}

/* A block per tile, group and 64 pairs; each warp has four tokens, a lane two pairs of each. */
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_matrices(const kr_mamba3_bwd_params p) {
  KR_SHARED pairs warps[WARPS][2][32];
  const kr_mamba3_params &f = p.f;
  const int heads = f.H / f.G, width = (f.N / 2 + PAIRS - 1) / PAIRS, part = kr_block_x() % width,
            g = kr_block_x() / width % f.G, tile = kr_block_x() / width / f.G, b = kr_block_z(),
            first = part * PAIRS + 2 * (kr_thread() & 31);
  const int64_t t0 = (int64_t)tile * TILE + (kr_thread() >> 5) * EACH;
#pragma unroll 1
  for (int r = 0; r < f.R; r++) {
    pairs dC[EACH] = {}, dB[EACH] = {};
#pragma unroll 1
    for (int h = g * heads; h < (g + 1) * heads; h++) {
      pairs sums[2] = {};
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        if (t0 + i >= f.L || first >= f.N / 2) continue;
        const runs two = runs_of(f, first);
        const token at = token_at(f, b, t0 + i);
        float *const psi = p.psi + (unit_of(f, b, h) * f.L + at.t) * f.M + first;
        rotation by[2] = {};
#pragma unroll
        for (int k = 0; k < 2; k++)
          if (first + k < f.M) by[k] = rotation_of(angle_at(f, b, h, at, first + k));
        const turning v = turning_at(p, b, h, at, r, two, by, f.M - first);
#pragma unroll
        for (int k = 0; k < 2; k++)
          if (first + k < f.M) psi[k] = (r ? psi[k] : 0.0f) + v.shares[k];
        const pairs dq = turned(v.dq, by, f.M - first, -1.0f), dk = turned(v.dk, by, f.M - first, -1.0f);
        sums[0] = plus(sums[0], dq), sums[1] = plus(sums[1], dk);
        dC[i] = plus(dC[i], dq), dB[i] = plus(dB[i], dk);
      }
      leave_biases(p, h, (int64_t)b * f.n_tiles + tile, r, first, sums, warps);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      if (t0 + i >= f.L || first >= f.N / 2) continue;
      if (p.dC.data) store_pairs(runs_of(f, first), p.dC, at4(p.dC, b, t0 + i, r * f.G + g, 0), p.dC.stride[3], dC[i]);
      if (p.dB.data) store_pairs(runs_of(f, first), p.dB, at4(p.dB, b, t0 + i, r * f.G + g, 0), p.dB.stride[3], dB[i]);
    }
  }
}

/* ---- angles and steps -------------------------------------------------------------------------------------------- */

/* The gradient of angles behind a sequence's last token. */
KR_DEV float angles_behind(const kr_mamba3_bwd_params &p, int row, int h, int m) {
  return p.dfinal_angles.data ? get(p.dfinal_angles, at3(p.dfinal_angles, row, h, m)) : 0.0f;
}

/* One thread per head, span and pair: psi summed from the span's end, or the end of its first token's sequence, on. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_sums(const kr_mamba3_bwd_params p) {
  const kr_mamba3_params &f = p.f;
  const int64_t i = (int64_t)kr_block_x() * THREADS + kr_thread(), each = (int64_t)f.n_spans * f.M, unit = i / each,
                t0 = (i - unit * each) / f.M * SPAN;
  const int b = (int)(unit / f.H), h = (int)(unit - (int64_t)b * f.H), m = (int)(i % f.M);
  if (b >= f.B) return;
  const float *const from = p.psi + (unit * f.L + t0) * f.M + m;
  float own[SPAN], sum = 0;
#pragma unroll
  for (int k = 0; k < SPAN; k++) own[k] = t0 + k < f.L ? from[(int64_t)k * f.M] : 0.0f;
#pragma unroll
  for (int k = SPAN - 1; k >= 0; k--) {
    if ((f.cu_seqlens.data || t0 + k == f.L - 1) && t0 + k < f.L) {
      const token at = token_at(f, b, t0 + k);
      if (at.ends) sum = angles_behind(p, at.row, h, m);
    }
    sum += own[k];
  }
  p.later[i] = sum;
}

/* Whether a span's sum does not continue the one behind it. */
KR_DEV int stops(const kr_mamba3_params &f, int b, int64_t span) {
  const int64_t t0 = span * SPAN, end = t0 + SPAN < f.L ? t0 + SPAN : f.L;
  return end == f.L || (f.cu_seqlens.data && offset_at(f, token_at(f, b, t0).row + 1) <= end);
}

KR_DEV int64_t bound_mask(const kr_mamba3_bwd_params &p) { return (1 << p.bound_shift) - 1; }

/* The bound in a span that its first token's sequence goes on behind, or -1; t: the first token behind it. */
KR_DEV int64_t bound_in(const kr_mamba3_bwd_params &p, int b, int64_t span, int64_t &t) {
  const kr_mamba3_params &f = p.f;
  const token at = token_at(f, b, span * SPAN);
  const int64_t end = f.cu_seqlens.data ? offset_at(f, at.row + 1) : f.L, left = -at.block & bound_mask(p);
  t = at.t + left;
  return p.crossing && left < SPAN && t < end && t > at.start ? ((at.block + left) >> p.bound_shift) - 1 : -1;
}

KR_DEV float sum_psi(const kr_mamba3_bwd_params &p, int64_t unit, int m, int64_t begin, int64_t end, float sum) {
  for (int64_t t = begin; t < end; t++) sum += p.psi[(unit * p.f.L + t) * p.f.M + m];
  return sum;
}
KR_DEV float crossing_at(const kr_mamba3_bwd_params &p, int64_t unit, int m, int64_t bound) {
  return p.crossing[(unit * p.n_bounds + bound) * p.f.M + m];
}

/* What the gradients of a sequence's states behind its last token add to its sums of psi, whatever their first token:
 * of the last bound's sum what does not cross it. */
KR_DEV float sum_of_finals(const kr_mamba3_bwd_params &p, int64_t unit, int m, const token &at) {
  const kr_mamba3_params &f = p.f;
  const float angle = angles_behind(p, at.row, (int)(unit % f.H), m);
  const int64_t end = f.cu_seqlens.data ? offset_at(f, at.row + 1) : f.L, last = at.block + end - 1 - at.t,
                from = end - 1 - (last & bound_mask(p));
  if ((!p.dfinal_states.data && !p.dfinal_B.data) || last <= bound_mask(p)) return angle;
  return sum_psi(p, unit, m, from, end, angle) - crossing_at(p, unit, m, (last >> p.bound_shift) - 1);
}

/* The same of sequence `row`, kept. */
typedef struct finals {
  int row;
  float sum;
} finals;

/* The sum of psi from a span's first token on, as states have it; infinity if they do not. */
KR_DEV float sum_from(const kr_mamba3_bwd_params &p, int b, int64_t unit, int64_t span, int m, finals &kept) {
  int64_t t;
  const int64_t bound = bound_in(p, b, span, t);
  if (bound < 0) return kr_bits_to_float(0x7f800000u);
  const token at = token_at(p.f, b, t);
  if (at.row != kept.row) kept = finals{at.row, sum_of_finals(p, unit, m, at)};
  return sum_psi(p, unit, m, span * SPAN, t, crossing_at(p, unit, m, bound) + kept.sum);
}

/* The same of a call that is no pack; sum: of its sequence's finals. */
KR_DEV float whole_sum_from(const kr_mamba3_bwd_params &p, int64_t unit, int64_t span, int m, float sum) {
  const int64_t t = span * SPAN;
  if (!p.crossing || t == 0 || (t & bound_mask(p))) return kr_bits_to_float(0x7f800000u);
  return crossing_at(p, unit, m, (t >> p.bound_shift) - 1) + sum;
}

/* The sum over spans back from `end` to `begin`, onto `sum`; leaves (PUTS) what is behind each. Returns whether it
 * stops. */
template <int PUTS, int IS_PACK>
KR_DEV int sum_later(const kr_mamba3_bwd_params &p, int b, int64_t unit, int m, int64_t begin, int64_t end, finals kept,
                     float &sum) {
  enum { AHEAD = 8 };
  const kr_mamba3_params &f = p.f;
  float *const at = p.later + span_of(f, unit, 0) + m;
  int is_new = 0;
  for (int64_t last = end - 1; last >= begin; last -= AHEAD) {
    float own[AHEAD], known[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) own[i] = last - i >= begin ? at[(last - i) * f.M] : 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      known[i] = !IS_PACK && last - i >= begin ? whole_sum_from(p, unit, last - i, m, kept.sum) : 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      if (last - i < begin) continue;
      if (IS_PACK) known[i] = sum_from(p, b, unit, last - i, m, kept);
      const int is_last = stops(f, b, last - i), is_known = kr_fma(known[i], 0.0f, 0.0f) == 0;
      if (PUTS) at[(last - i) * f.M] = sum;
      sum = is_known ? known[i] : is_last ? own[i] : sum + own[i], is_new |= is_last || is_known;
    }
  }
  return is_new;
}

template <int IS_PACK>
KR_DEV void sum_behind(const kr_mamba3_bwd_params &p, float (*sums)[32], int (*are_new)[32]) {
  const kr_mamba3_params &f = p.f;
  const int64_t unit = kr_block_x(), each = (f.n_spans + WARPS - 1) / WARPS, warp = kr_thread() >> 5,
                begin = warp * each, end = begin + each < f.n_spans ? begin + each : f.n_spans;
  const int b = (int)(unit / f.H), lane = kr_thread() & 31;
  for (int m = lane; m - lane < f.M; m += 32) {
    float sum = 0;
    int is_new = 0;
    kr_sync();
    finals kept = {-1, 0};
    if (!IS_PACK && p.crossing && m < f.M) kept.sum = sum_of_finals(p, unit, m, token_at(f, b, 0));
    if (m < f.M) is_new = sum_later<0, IS_PACK>(p, b, unit, m, begin, end, kept, sum);
    sums[warp][lane] = sum, are_new[warp][lane] = is_new;
    kr_sync();
    sum = 0;
    for (int w = WARPS - 1; w > warp; w--) sum = are_new[w][lane] ? sums[w][lane] : sum + sums[w][lane];
    if (m < f.M) sum_later<1, IS_PACK>(p, b, unit, m, begin, end, kept, sum);
  }
}

/* A block per head of a sequence: each warp has a part of the spans, a lane a pair. */
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_later(const kr_mamba3_bwd_params p) {
  KR_SHARED float sums[WARPS][32];
  KR_SHARED int are_new[WARPS][32];
  if (p.f.cu_seqlens.data)
    sum_behind<1>(p, sums, are_new);
  else
    sum_behind<0>(p, sums, are_new);
}

/* Sums of 16 values a lane over a warp, that of value i to lanes i and i + 16. */
KR_DEV float add_sixteen(float (&v)[SPAN]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int half = SPAN / 2; half; half >>= 1) {
    const int is_high = (lane & half) != 0;
#pragma unroll
    for (int i = 0; i < half; i++) {
      const float kept = kr_select(is_high, v[i + half], v[i]), given = kr_select(is_high, v[i], v[i + half]);
      v[i] = kept + kr_shuffle_xor(given, half);
    }
  }
  return v[0] + kr_shuffle_xor(v[0], SPAN);
}

/* Tangents of n angles about a lane's pair, to its column: all by a warp, or some by each. */
KR_DEV void put_tangents(const kr_mamba3_params &f, int b, int h, int64_t t0, int m, int n, float (*to)[32]) {
  float angle[SPAN];
  get_column(f.angles, at4(f.angles, b, t0, h, m), f.angles.stride[1], n, angle);
#pragma unroll
  for (int i = 0; i < SPAN; i++) to[i][kr_thread() & 31] = tanh_close(angle[i]);
}
KR_DEV void put_common_tangents(const kr_mamba3_params &f, int b, int64_t t0, int m, int n, float (*to)[32]) {
#pragma unroll
  for (int i = kr_thread() >> 5; i < SPAN; i += WARPS)
    to[i][kr_thread() & 31] = i < n ? tanh_close(get_ahead(f.angles, at4(f.angles, b, t0 + i, 0, m))) : 0.0f;
}
/* The slope of an angle's turns per step, pi tanh(angle), in the angle. */
KR_DEV float slope_at(float tangent) { return 3.14159265f * kr_fma(-tangent, tangent, 1.0f); }

/* Of a span's tokens the sequences and whether they begin or end them; those beyond the last have none. */
enum { BEGINS = 1, ENDS = 2, IS_THERE = 4 };
typedef struct span_edges {
  int row[SPAN], flags[SPAN];
} span_edges;
KR_DEV void put_edges(const kr_mamba3_params &f, int b, int64_t t0, span_edges &to) {
  const int i = kr_thread();
  if (i >= SPAN) return;
  to.flags[i] = 0;
  if (t0 + i >= f.L) return;
  const token at = token_at(f, b, t0 + i);
  to.row[i] = at.row, to.flags[i] = IS_THERE | (at.begins ? BEGINS : 0) | (at.ends ? ENDS : 0);
}

/* Sums of a span's shares (which they replace) over the tokens behind. EDGES: sequences may begin or end in it. */
template <int EDGES>
KR_DEV void sum_shares(const kr_mamba3_bwd_params &p, int h, int m, const span_edges &edges, float sum,
                       float (&share)[SPAN]) {
#pragma unroll
  for (int i = SPAN - 1; i >= 0; i--) {
    if (EDGES && (!edges.flags[i] || m >= p.f.M)) continue;
    if (EDGES && edges.flags[i] & ENDS) sum = angles_behind(p, edges.row[i], h, m);
    share[i] = sum += share[i];
    if (EDGES && edges.flags[i] & BEGINS && p.dinitial_angles.data)
      kr_store(p.dinitial_angles.data, at3(p.dinitial_angles, edges.row[i], h, m), p.dinitial_angles.dtype, sum);
  }
}

/* The first n gradients of angles, which heads do not share. */
KR_DEV void put_angles(const kr_mamba3_bwd_params &p, int b, int h, int64_t t0, int m, int n, const float (&d)[SPAN]) {
  const int64_t at = at4(p.dangles, b, t0, h, m), stride = p.dangles.stride[1];
#pragma unroll
  for (int i = 0; i < SPAN; i++)
    if (i < n) kr_store(p.dangles.data, at + i * stride, p.dangles.dtype, d[i]);
}

/* A head's shares of a span's angles about a lane's pair, of which n are there, the sum of those behind, and (of lane
 * i) the step size of token i. */
typedef struct head_shares {
  float share[SPAN], behind, d;
} head_shares;

KR_DEV head_shares load_shares(const kr_mamba3_bwd_params &p, int b, int h, int64_t span, int m, int n) {
  const kr_mamba3_params &f = p.f;
  const int lane = kr_thread() & 31;
  const int64_t t0 = span * SPAN, unit = unit_of(f, b, h);
  const float *const psi = p.psi + (unit * f.L + t0) * f.M + m;
  head_shares v;
  v.d = lane < SPAN && t0 + lane < f.L ? get_ahead(f.dt, at3(f.dt, b, t0 + lane, h)) : 0.0f;
  v.behind = n ? p.later[span_of(f, unit, span) + m] : 0.0f;
#pragma unroll
  for (int i = 0; i < SPAN; i++) v.share[i] = i < n ? psi[i * f.M] : 0.0f;
  return v;
}

/* The gradients of these angles onto `sums`, if heads share them (of angles that are one for all heads but for
 * slope_at), or to where they go; and (by all lanes) their slopes about dt. steps: a warp's own. */
KR_DEV void leave_angles(const kr_mamba3_bwd_params &p, int b, int h, int64_t span, int m, int n, int is_one,
                         const span_edges &edges, const float (*tangents)[32], float *steps, head_shares v,
                         float (&sums)[SPAN]) {
  const kr_mamba3_params &f = p.f;
  const int lane = kr_thread() & 31;
  const int64_t t0 = span * SPAN, unit = unit_of(f, b, h);
  if (lane < SPAN) steps[lane] = v.d;
  if (f.cu_seqlens.data || t0 == 0 || t0 + SPAN >= f.L)
    sum_shares<1>(p, h, m, edges, v.behind, v.share);
  else
    sum_shares<0>(p, h, m, edges, v.behind, v.share);
  kr_sync_warp();
  if (p.shares_angles && is_one) {
#pragma unroll
    for (int i = 0; i < SPAN; i++) sums[i] = kr_fma(v.share[i], steps[i], sums[i]);
  } else if (p.shares_angles) {
#pragma unroll
    for (int i = 0; i < SPAN; i++) sums[i] = kr_fma(v.share[i] * steps[i], slope_at(tangents[i][lane]), sums[i]);
  } else if (p.dangles.data) {
#pragma unroll
    for (int i = 0; i < SPAN; i++) sums[i] = v.share[i] * steps[i] * slope_at(tangents[i][lane]);
    put_angles(p, b, h, t0, m, n, sums);
  }
#pragma unroll
  for (int i = 0; i < SPAN; i++) v.share[i] *= tangents[i][lane];
  const float total = 3.14159265f * add_sixteen(v.share);
  if (lane < SPAN && t0 + lane < f.L) {
    float *const to = p.slopes + unit * f.L + t0 + lane;
    *to = m == lane ? total : *to + total;
  }
  kr_sync_warp();
}

KR_DEV void put_token(const kr_view &v, int b, int64_t t, int h, float value) {
  if (v.data) kr_store(v.data, at3(v, b, t, h), v.dtype, value);
}

/* The sum of a block's gradients of weights. */
KR_DEV float weight_gradient(const kr_mamba3_bwd_params &p, int b, int h, int64_t block) {
  float sum = 0;
  for (int r = 0; r < p.f.R; r++) sum += p.dweight[row_of(p.f, b, h, block, r)];
  return sum;
}

/* Of a direct call, where the next token's share of a weight is not in the token's own output. */
KR_DEV void leave_direct_steps(const kr_mamba3_bwd_params &p, int b, int h, const token &at) {
  const kr_mamba3_params &f = p.f;
  const int64_t place = unit_of(f, b, h) * f.L + at.t, last = at.begins ? place : place - 1;
  const float trap = get_ahead(f.trap, at3(f.trap, b, at.t, h)), d = get_ahead(f.dt, at3(f.dt, b, at.t, h)),
              own = p.dweight[place], weight = p.dweight[last], product = p.products[last], dot = f.dots[last],
              decay = p.ddecay[place], slope = f.M ? p.slopes[place] : 0.0f;
  const float before = at.begins ? 0.0f : kr_fma(-product, dot, weight), lambda = kr_sigmoid(trap),
              rest = kr_sigmoid(-trap);
  put_token(p.ddt, b, at.t, h, kr_fma(lambda, own, kr_fma(rest, before, slope)));
  put_token(p.dtrap, b, at.t, h, lambda * rest * d * (own - before));
  put_token(p.dlog_decay, b, at.t, h, at.begins ? 0.0f : decay);
}

KR_DEV void leave_steps(const kr_mamba3_bwd_params &p, int b, int h, const token &at) {
  const kr_mamba3_params &f = p.f;
  if (f.is_direct) {
    leave_direct_steps(p, b, h, at);
    return;
  }
  const steps now = steps_at(f, b, h, at.t);
  const float slope = f.M ? p.slopes[unit_of(f, b, h) * f.L + at.t] : 0.0f;
  const int is_empty = at.begins && !f.initial_states.data; /* before the token */
  const float before = is_empty ? 0.0f : kr_exp(now.decay) * weight_gradient(p, b, h, at.block);
  float own = 0;
  for (int i = 0; i < f.R * f.R; i++)
    own = kr_fma(dots_of(f.dots, f, b, h, at.t)[i], dots_of(p.products, f, b, h, at.t)[i], own);
  if (!at.ends) {
    const float next = kr_exp(get(f.log_decay, at3(f.log_decay, b, at.t + 1, h)));
    own = kr_fma(next, weight_gradient(p, b, h, at.block + 1), own);
  } else if (f.has_ends) {
    own += weight_gradient(p, b, h, at.block + 1);
  }
  put_token(p.ddt, b, at.t, h, kr_fma(now.lambda, own, kr_fma(now.rest, before, slope)));
  put_token(p.dtrap, b, at.t, h, now.lambda * now.rest * now.d * (own - before));
  put_token(p.dlog_decay, b, at.t, h,
            is_empty ? 0.0f : kr_fma(weight_before(f, b, h, at, now), before, p.ddecay[row_of(f, b, h, at.block, 0)]));
}

/* The warps' sums over heads of gradients of a span's angles, of which n are there, to these. */
KR_DEV void add_angles(const kr_mamba3_bwd_params &p, int b, int64_t t0, int m, int n, int is_one,
                       const float (*tangents)[32], const float (*warps)[SPAN][32]) {
  const int lane = kr_thread() & 31;
  for (int i = kr_thread() >> 5; i < n && m < p.f.M; i += WARPS) {
    float sum = warps[0][i][lane];
    for (int w = 1; w < WARPS; w++) sum += warps[w][i][lane];
    if (is_one) sum *= slope_at(tangents[i][lane]);
    kr_store(p.dangles.data, at4(p.dangles, b, t0 + i, 0, m), p.dangles.dtype, sum);
  }
}

/* A block per span; each warp has every eighth head, a lane a pair. */
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_mamba3_steps(const kr_mamba3_bwd_params p) {
  KR_SHARED float warps[WARPS][SPAN][32], common[SPAN][32], steps[WARPS][SPAN];
  KR_SHARED span_edges edges;
  const kr_mamba3_params &f = p.f;
  const int b = kr_block_z(), warp = kr_thread() >> 5, lane = kr_thread() & 31, is_one = f.angles.stride[2] == 0;
  const int64_t span = kr_block_x(), t0 = span * SPAN;
  const int n = f.L - t0 < SPAN ? (int)(f.L - t0) : SPAN;
  put_edges(f, b, t0, edges);
  for (int m = lane; m - lane < f.M; m += 32) {
    const int own = m < f.M ? n : 0;
    float sums[SPAN] = {};
    kr_sync();
    if (is_one) put_common_tangents(f, b, t0, m, own, common);
    kr_sync();
#pragma unroll 1
    for (int h = warp; h < f.H; h += WARPS) {
      const head_shares now = load_shares(p, b, h, span, m, own);
      if (!is_one) put_tangents(f, b, h, t0, m, own, warps[warp]);
      leave_angles(p, b, h, span, m, own, is_one, edges, is_one ? common : warps[warp], steps[warp], now, sums);
    }
    if (!p.shares_angles) continue;
    kr_sync();
#pragma unroll
    for (int i = 0; i < SPAN; i++) warps[warp][i][lane] = sums[i];
    kr_sync();
    add_angles(p, b, t0, m, n, is_one, common, warps);
  }
  kr_sync();
  for (int i = kr_thread(); i < SPAN * f.H; i += THREADS)
    if (i % SPAN < n) leave_steps(p, b, i / SPAN, token_at(f, b, t0 + i % SPAN));
}

/* ---- initial states ---------------------------------------------------------------------------------------------- */

KR_DEV void leave_initial_x(const kr_mamba3_bwd_params &p, int b, int h, int row, const blocks &s) {
  const kr_mamba3_params &f = p.f;
  float *const to = factors_at(p, (int64_t)f.B * f.n_chunks + row, h);
  for (int i = kr_thread(); i < p.n_parts; i += THREADS) to[i] = 0;
  kr_sync();
  for (int c = kr_thread(); c < f.P; c += THREADS) {
    float sum = 0;
    if (s.n == 0 && p.dfinal_x.data) sum = get(p.dfinal_x, at3(p.dfinal_x, row, h, c));
    for (int r = 0; s.n && f.initial_x.data && r < f.R; r++) {
      const float d = value((const element *)p.rows_dx, row_of(f, b, h, s.first, r) * f.row_P + c);
      sum = kr_fma(f.mimo_x.data ? get(f.mimo_x, at3(f.mimo_x, h, r, c)) : 1.0f, d, sum);
      to[place_x(f, r) + c] = d * get(f.initial_x, at3(f.initial_x, row, h, c));
    }
    if (p.dinitial_x.data) kr_store(p.dinitial_x.data, at3(p.dinitial_x, row, h, c), p.dinitial_x.dtype, sum);
  }
}

/* A block per sequence and head. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_initial(const kr_mamba3_bwd_params p) {
  const kr_mamba3_params &f = p.f;
  const int row = kr_block_x() / f.H, h = kr_block_x() - row * f.H, b = f.cu_seqlens.data ? 0 : row;
  const blocks s = blocks_of(f, row);
  leave_initial_x(p, b, h, row, s);
  for (int i = kr_thread(); p.dinitial_B.data && i < f.R * f.N; i += THREADS) {
    const int r = i / f.N, n = i % f.N;
    float d = 0;
    if (s.n)
      d = ((const float *)p.dk)[row_of(f, b, h, s.first, r) * f.row_N + n];
    else if (p.dfinal_B.data)
      d = get(p.dfinal_B, at4(p.dfinal_B, row, r, h, n));
    kr_store(p.dinitial_B.data, at4(p.dinitial_B, row, r, h, n), p.dinitial_B.dtype, d);
  }
  for (int m = kr_thread(); p.dinitial_angles.data && s.n == 0 && m < f.M; m += THREADS)
    kr_store(p.dinitial_angles.data, at3(p.dinitial_angles, row, h, m), p.dinitial_angles.dtype,
             angles_behind(p, row, h, m));
  for (int i = kr_thread(); p.dinitial_states.data && f.before && i < f.P * f.N; i += THREADS) {
    const int c = i / f.N, n = i % f.N;
    kr_store(p.dinitial_states.data, at4(p.dinitial_states, row, h, c, n), p.dinitial_states.dtype,
             value((const element *)p.rows_dx, (row_of(f, b, h, s.first - f.before, 0) + n) * f.row_P + c));
  }
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* Place i of a head's sums: biases, then factors. Returns where it goes, or NULL. */
KR_DEV float *parameter_at(const kr_mamba3_bwd_params &p, int h, int i) {
  const kr_mamba3_params &f = p.f;
  const int RN = f.R * f.N, RP = f.R * f.P;
  const kr_view *v = i < RN ? &p.dC_bias : &p.dB_bias;
  if (i < 2 * RN) return v->data ? (float *)v->data + at3(*v, h, i % RN / f.N, i % f.N) : 0;
  i -= 2 * RN;
  v = i < RP ? &p.dmimo_z : i < 2 * RP ? &p.dmimo_o : &p.dmimo_x;
  if (i < 3 * RP) return v->data ? (float *)v->data + at3(*v, h, i % RP / f.P, i % f.P) : 0;
  i -= 3 * RP;
  if (i < f.P) return p.dnorm_weight.data ? (float *)p.dnorm_weight.data + at2(p.dnorm_weight, h, i) : 0;
  return p.dDvec.data ? (float *)p.dDvec.data + h * p.dDvec.stride[0] : 0;
}

/* A warp's lanes take 32 places of a head, its warps slices of the blocks. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_mamba3_add(const kr_mamba3_bwd_params p) {
  KR_SHARED float slices[SLICES][32];
  const kr_mamba3_params &f = p.f;
  const int n_biases = 2 * f.R * f.N, n_places = n_biases + p.n_parts, width = (n_places + 31) / 32,
            h = kr_block_x() / width, lane = kr_thread() & 31, slice = kr_thread() >> 5,
            i = (kr_block_x() - h * width) * 32 + lane;
  float *const to = i < n_places ? parameter_at(p, h, i) : 0;
  const int is_bias = i < n_biases, each = is_bias ? n_biases : p.n_parts, own_place = is_bias ? i : i - n_biases,
            is_x = own_place >= place_x(f, 0) && own_place < place_norm(f);
  const int64_t chunks = (int64_t)f.B * f.n_chunks, n = is_bias ? (int64_t)f.B * f.n_tiles
                                                        : is_x  ? (int64_t)p.n_factors
                                                                : chunks;
  const float *const from = (is_bias ? p.biases : p.factors) + (int64_t)h * each + own_place;
  float sum = 0;
  if (to) {
#pragma unroll 8
    for (int64_t k = slice; k < n; k += SLICES) sum += from[k * f.H * each];
  }
  slices[slice][lane] = sum;
  kr_sync();
  if (slice || !to) return;
  for (int k = 1; k < SLICES; k++) sum += slices[k][lane];
  *to = sum;
}
