/* mamba3_ranks.cu: what surrounds the SSD in calls of Mamba 3's scan and its gradient with two or four ranks, pairs of
 * halves, and rows in aligned vectors of eight (p.is_ranked; those of channels: p.is_ranked_output). The same lanes do
 * a token's ranks: they load its inputs, angles and steps once and multiply queries with keys, and channels with each
 * other, in registers; sums of several products over lanes are folded, so that a shuffle serves two. Compiled as
 * mamba3.cu, whose kernels these replace.
 *   kr_mamba3_rows_R      as kr_mamba3_rows, for R ranks
 *   kr_mamba3_finish_R    as kr_mamba3_finish_P
 *   kr_mamba3_leave_R     as kr_mamba3_leave_P
 *   kr_mamba3_inputs_R    as kr_mamba3_inputs_P
 *   kr_mamba3_matrices_R  as kr_mamba3_matrices, in tiles of 2048 / N tokens */
#include "mamba3_plain.cuh"

enum { MOST_P = KR_MAMBA3_RANKED_P };

/* Sums of N values over lanes that differ in bits `from` down to `to`: with each bit a lane keeps half of its values,
 * then sums of one. Returns the first that it has. */
template <int N>
KR_DEV int fold(float (&v)[N], int from, int to) {
  int first = 0, d = from;
#pragma unroll
  for (int n = N / 2; n; n /= 2) {
    if (d < to) continue;
    const int high = (kr_thread() & d) != 0;
#pragma unroll
    for (int i = 0; i < n; i++) {
      const float kept = kr_select(high, v[i + n], v[i]), given = kr_select(high, v[i], v[i + n]);
      v[i] = kept + kr_shuffle_xor(given, d);
    }
    first += high ? n : 0, d >>= 1;
  }
#pragma unroll 1
  for (; d >= to && d; d >>= 1) v[0] += kr_shuffle_xor(v[0], d);
  return first;
}
/* How many each lane has then. */
KR_DEV int left_of(int n, int from, int to) {
  const int left = n / (2 * from / to);
  return left > 1 ? left : 1;
}

/* A token's sums over its lanes, of which there are `lanes`, to `to`; called by all lanes. */
template <int N>
KR_DEV void put_products(float (&v)[N], int lanes, int is_there, float *to) {
  const int first = fold(v, lanes / 2, 1), left = left_of(N, lanes / 2, 1);
#pragma unroll
  for (int i = 0; i < N; i++)
    if (is_there && i < left) to[first + i] = v[i];
}

KR_DEV eight times(const eight &x, const eight &y) {
  eight e;
#pragma unroll
  for (int i = 0; i < 8; i++) e.v[i] = x.v[i] * y.v[i];
  return e;
}
KR_DEV eight floats_at(const float *row) {
  const kr_float4 x = *(const kr_float4 *)row, y = *(const kr_float4 *)(row + 4);
  return eight{{x.v[0], x.v[1], x.v[2], x.v[3], y.v[0], y.v[1], y.v[2], y.v[3]}};
}

/* A head's factors (R,P), to shared memory: ones if there are none. */
template <int RANKS>
KR_DEV void load_factors(const kr_mamba3_params &f, const kr_view &v, int h, float *to) {
  const int shift = log2_of(f.P);
  for (int i = kr_thread(); i < RANKS * f.P; i += THREADS)
    to[i] = v.data ? get(v, at3(v, h, i >> shift, i & (f.P - 1))) : 1.0f;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Every rank's inputs of a chunk's tokens, in the rows of their keys. */
template <int IS_PACK, int RANKS>
KR_DEV void put_ranks(const kr_mamba3_params &p, int b, int h, int64_t t0, int n, const float *factors) {
  const int shift = log2_of(p.P / 8), items = n << shift, c = 8 * (kr_thread() & (p.P / 8 - 1));
#pragma unroll 1
  for (int i = kr_thread(); i < items; i += THREADS) {
    const token at = token_of<IS_PACK>(p, b, t0 + (i >> shift));
    const eight x = unpacked(load_eight(p.x.data, at4(p.x, b, at.t, h, c)));
    const int64_t to = place_of(p, unit_of(p, b, h), at.block + 1, shift + 3) + c;
#pragma unroll
    for (int r = 0; r < RANKS; r++)
      if (has_next(p, at)) store_eight(p.rows_x, to + r * p.P, times(x, floats_at(factors + r * p.P + c)));
    put_final_inputs(p, b, h, at, c);
  }
}

/* A token's queries and keys for a lane's pairs, and their products; called by all lanes. */
template <int RANKS>
KR_DEV void put_vectors(const kr_mamba3_params &p, int h, const token &at, const quad_place &of, int is_there,
                        int first, const float *biases) {
  raw8 raw_q[RANKS], raw_k[RANKS];
#pragma unroll
  for (int r = 0; r < RANKS; r++)
    raw_q[r] = load_quad<1>(p.Cmat.data, of.q + r * p.G * p.Cmat.stride[2], first, p.N),
    raw_k[r] = load_quad<1>(p.Bmat.data, of.k + r * p.G * p.Bmat.stride[2], first, p.N);
  quad_angles angles = {};
  if (first < p.M) angles = load_angles<0>(p, of, at, first);
  eight k[RANKS];
  float products[RANKS * RANKS];
#pragma unroll
  for (int r = 0; r < RANKS; r++) k[r] = plus(unpacked(raw_k[r]), quad_of<1>(biases + (RANKS + r) * p.N, first, p.N));
  rotation by[4];
  rotations_of<0>(p, angles, by);
#pragma unroll
  for (int r = 0; r < RANKS; r++) {
    eight q = plus(unpacked(raw_q[r]), quad_of<1>(biases + r * p.N, first, p.N));
#pragma unroll
    for (int s = 0; s < RANKS; s++) products[r * RANKS + s] = dot(q, k[s]);
    if (first < p.M) turn_quad<1>(q, by, 1.0f);
    if (is_there) store_quad<1>(p.q, of.row + r * p.N, first, p.N, q);
  }
#pragma unroll
  for (int r = 0; r < RANKS; r++) {
    if (first < p.M) turn_quad<1>(k[r], by, 1.0f);
    if (!is_there) continue;
    if (has_next(p, at)) store_quad<1>(p.k, of.row + (RANKS + r) * p.N, first, p.N, k[r]);
    if (at.ends && p.final_B.data) put_final_key<1>(p, h, at, r, first, k[r]);
  }
  put_products(products, p.N / 8, is_there, p.dots + of.value * (RANKS * RANKS));
}

template <int IS_PACK, int RANKS>
KR_DEV void ranked_rows(const kr_mamba3_params &p, float *biases, float *factors) {
  const int chunk = kr_block_x() / p.H, h = kr_block_x() - chunk * p.H, b = kr_block_z(), shift = log2_of(p.N / 8),
            first = 4 * (kr_thread() & (p.N / 8 - 1)), each = THREADS >> shift;
  const int64_t t0 = (int64_t)chunk * CHUNK, end = t0 + CHUNK < p.L ? t0 + CHUNK : p.L;
  load_biases(p, h, biases);
  load_factors<RANKS>(p, p.mimo_x, h, factors);
  kr_sync();
  int64_t t = t0 + (kr_thread() >> shift);
#pragma unroll 1
  for (int64_t from = t0; from < end; from += each, t += each) {
    const token at = token_of<IS_PACK>(p, b, t < end ? t : end - 1);
    put_vectors<RANKS>(p, h, at, quad_at(p, b, h, at), t < end, first, biases);
  }
  put_ranks<IS_PACK, RANKS>(p, b, h, t0, (int)(end - t0), factors);
  if (kr_thread() < end - t0) put_weights(p, b, h, token_of<IS_PACK>(p, b, t0 + kr_thread()));
}
template <int RANKS>
KR_DEV void ranked_rows_of(const kr_mamba3_params &p) {
  KR_SHARED __attribute__((aligned(16))) float biases[2 * RANKS * MOST_N];
  KR_SHARED __attribute__((aligned(16))) float factors[RANKS * MOST_P];
  if (p.cu_seqlens.data)
    ranked_rows<1, RANKS>(p, biases, factors);
  else
    ranked_rows<0, RANKS>(p, biases, factors);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_rows_2(const kr_mamba3_params p) { ranked_rows_of<2>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_rows_4(const kr_mamba3_params p) { ranked_rows_of<4>(p); }

/* ---- channels ---------------------------------------------------------------------------------------------------- */

/* Eight channels of a token: a thread's item i of a chunk. */
typedef struct channels {
  token at;
  int c, is_there;
  int64_t row, value; /* of the first rank's y, at c; of values (B,H,L) */
  float gamma;
} channels;

KR_DEV channels channels_at(const kr_mamba3_params &p, int b, int h, int64_t t0, int i) {
  const int shift = log2_of(p.P / 8);
  const int64_t t = t0 + (i >> shift), unit = unit_of(p, b, h);
  channels v;
  v.is_there = t < p.L && (i >> shift) < CHUNK, v.c = 8 * (i & (p.P / 8 - 1));
  v.at = token_at(p, b, v.is_there ? t : p.L - 1);
  v.value = value_of(p, unit, v.at.t), v.gamma = p.gamma[v.value];
  v.row = place_of(p, unit, v.at.block, shift + 3) + v.c;
  return v;
}
/* Of a tensor (B,L,H,P), or with ranks (B,L,R H,P) rank r. */
KR_DEV int64_t channels_of(const kr_mamba3_params &p, const kr_view &v, int b, int h, const channels &of, int r) {
  return at4(v, b, of.at.t, r * p.H + h, of.c);
}
/* What rank s of the input gives to rank r of y, and of dy to dx. */
template <int RANKS>
KR_DEV float own_of(const kr_mamba3_params &p, const channels &of, float D, int r, int s) {
  return kr_fma(of.gamma, p.dots[of.value * (RANKS * RANKS) + r * RANKS + s], r == s ? D : 0.0f);
}
KR_DEV float D_of(const kr_mamba3_params &p, int h) { return p.Dvec.data ? get(p.Dvec, h * p.Dvec.stride[0]) : 0.0f; }

/* y of rank r, of its row. inputs: of every rank. */
template <int RANKS>
KR_DEV eight whole_y(const kr_mamba3_params &p, const channels &of, float D, int r, const eight (&inputs)[RANKS],
                     const raw8 &row) {
  eight y = unpacked(row);
#pragma unroll
  for (int s = 0; s < RANKS; s++) y = plus_times(own_of<RANKS>(p, of, D, r, s), inputs[s], y);
  return y;
}
template <int RANKS>
KR_DEV void inputs_of(const kr_mamba3_params &p, const eight &x, int c, const float *factors, eight (&to)[RANKS]) {
#pragma unroll
  for (int r = 0; r < RANKS; r++) to[r] = times(x, floats_at(factors + r * p.P + c));
}

template <int RANKS>
KR_DEV void ranked_finish(const kr_mamba3_params &p) {
  KR_SHARED __attribute__((aligned(16))) float by_x[RANKS * MOST_P], by_z[RANKS * MOST_P], by_o[RANKS * MOST_P];
  const int chunk = kr_block_x() / p.H, h = kr_block_x() - chunk * p.H, b = kr_block_z(), n = CHUNK * p.P / 8;
  const float D = D_of(p, h);
  load_factors<RANKS>(p, p.mimo_x, h, by_x), load_factors<RANKS>(p, p.mimo_z, h, by_z);
  load_factors<RANKS>(p, p.mimo_o, h, by_o);
  kr_sync();
#pragma unroll 1
  for (int i = kr_thread(); i < n; i += THREADS) {
    const channels of = channels_at(p, b, h, (int64_t)chunk * CHUNK, i);
    if (!of.is_there) break;
    eight inputs[RANKS], z = {}, sum = {};
    inputs_of<RANKS>(p, unpacked(load_eight(p.x.data, channels_of(p, p.x, b, h, of, 0))), of.c, by_x, inputs);
    if (p.z.data) z = unpacked(load_eight(p.z.data, channels_of(p, p.z, b, h, of, 0)));
#pragma unroll
    for (int r = 0; r < RANKS; r++) {
      eight o = whole_y<RANKS>(p, of, D, r, inputs, load_eight(p.y, of.row + r * p.P));
      if (p.z.data) {
        const eight gate = times(z, floats_at(by_z + r * p.P + of.c));
#pragma unroll
        for (int j = 0; j < 8; j++) o.v[j] *= kr_silu(gate.v[j]);
      }
      const eight by = floats_at(by_o + r * p.P + of.c);
      if (!p.mimo_o.data) store_eight(p.out.data, channels_of(p, p.out, b, h, of, r), o);
#pragma unroll
      for (int j = 0; j < 8; j++) sum.v[j] = kr_fma(by.v[j], o.v[j], sum.v[j]);
    }
    if (p.mimo_o.data) store_eight(p.out.data, channels_of(p, p.out, b, h, of, 0), sum);
  }
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_finish_2(const kr_mamba3_params p) { ranked_finish<2>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_finish_4(const kr_mamba3_params p) { ranked_finish<4>(p); }

/* ---- sums over a chunk's tokens ---------------------------------------------------------------------------------- */

/* A lane's eight channels of WIDTH rows, summed over its warp's tokens, onto its warp's rows of P; called by all
 * lanes. */
template <int WIDTH>
KR_DEV void add_to_warp(const kr_mamba3_params &f, float (&v)[8 * WIDTH], float *warp) {
  const int lanes = f.P / 8, c = 8 * (kr_thread() & (lanes - 1));
  const int first = fold(v, 16, lanes), left = left_of(8 * WIDTH, 16, lanes);
#pragma unroll
  for (int i = 0; i < 8 * WIDTH; i++)
    if (i < left) warp[((first + i) >> 3) * f.P + c + ((first + i) & 7)] += v[i];
}
KR_DEV void clear_warps(float *warps, int n) {
  for (int i = kr_thread(); i < WARPS * n; i += THREADS) warps[i] = 0;
}
/* The warps' n sums; called by all threads, behind a barrier. */
KR_DEV void put_warps(const float *warps, int n, float *to) {
  for (int i = kr_thread(); i < n; i += THREADS) {
    float sum = warps[i];
    for (int w = 1; w < WARPS; w++) sum += warps[w * n + i];
    to[i] = sum;
  }
}
/* A head's sums over a chunk: of mimo_z, mimo_o, mimo_x (R,P), norm_weight (P), D. */
KR_DEV float *factors_of(const kr_mamba3_bwd_params &p, int b, int chunk, int h) {
  return p.factors + (((int64_t)b * p.f.n_chunks + chunk) * p.f.H + h) * p.n_parts;
}

/* ---- dy ---------------------------------------------------------------------------------------------------------- */

/* A rank's rows of y and dout. */
typedef struct rank_rows {
  raw8 y, d;
} rank_rows;
KR_DEV rank_rows load_rank(const kr_mamba3_bwd_params &p, int b, int h, const channels &of, int r) {
  rank_rows v = {};
  if (!of.is_there) return v;
  if (p.needs_y) v.y = load_eight(p.f.y, of.row + r * p.f.P);
  if (p.dout.data) v.d = load_eight(p.dout.data, channels_of(p.f, p.dout, b, h, of, p.f.mimo_o.data ? 0 : r));
  return v;
}

/* Through rank r's gate: dy from dout (which it replaces); dz; what mimo_z and mimo_o get. */
KR_DEV void leave_rank(const kr_mamba3_params &f, const eight &y, const eight &z, const eight &by_z, const eight &by_o,
                       eight &d, eight &dz, float (&shares)[16]) {
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const float zr = z.v[j] * by_z.v[j], s = kr_sigmoid(zr), factor = f.z.data ? zr * s : 1.0f,
                slope = f.z.data ? s * kr_fma(zr, 1.0f - s, 1.0f) : 0.0f, dout = d.v[j], weighted = dout * by_o.v[j],
                through = weighted == 0 ? 0.0f : weighted * y.v[j] * slope;
    dz.v[j] = kr_fma(through, by_z.v[j], dz.v[j]);
    shares[j] = through * z.v[j], shares[8 + j] = dout == 0 ? 0.0f : dout * y.v[j] * factor;
    d.v[j] = weighted * factor;
  }
}

template <int RANKS>
KR_DEV void ranked_leave(const kr_mamba3_bwd_params &p) {
  KR_SHARED __attribute__((aligned(16))) float by_x[RANKS * MOST_P], by_z[RANKS * MOST_P], by_o[RANKS * MOST_P];
  KR_SHARED float warps[WARPS * 2 * RANKS * MOST_P];
  const kr_mamba3_params &f = p.f;
  const int chunk = kr_block_x() / f.H, h = kr_block_x() - chunk * f.H, b = kr_block_z(), n = CHUNK * f.P / 8,
            sums = 2 * RANKS * f.P;
  const float D = D_of(f, h);
  float *const own = warps + (kr_thread() >> 5) * sums;
  load_factors<RANKS>(f, f.mimo_x, h, by_x), load_factors<RANKS>(f, f.mimo_z, h, by_z);
  load_factors<RANKS>(f, f.mimo_o, h, by_o);
  clear_warps(warps, sums);
  kr_sync();
#pragma unroll 1
  for (int i = kr_thread(); i - (kr_thread() & 31) < n; i += THREADS) {
    const channels of = channels_at(f, b, h, (int64_t)chunk * CHUNK, i);
    eight inputs[RANKS], z = {}, dz = {};
    inputs_of<RANKS>(f, unpacked(load_eight(f.x.data, channels_of(f, f.x, b, h, of, 0))), of.c, by_x, inputs);
    if (f.z.data) z = unpacked(load_eight(f.z.data, channels_of(f, f.z, b, h, of, 0)));
    rank_rows next = load_rank(p, b, h, of, 0);
#pragma unroll 1
    for (int r = 0; r < RANKS; r++) {
      const rank_rows now = next;
      eight d = unpacked(now.d), y = {};
      float shares[16], products[RANKS];
      if (r + 1 < RANKS) next = load_rank(p, b, h, of, r + 1);
      if (p.needs_y && of.is_there) y = whole_y<RANKS>(f, of, D, r, inputs, now.y);
      leave_rank(f, y, z, floats_at(by_z + r * f.P + of.c), floats_at(by_o + r * f.P + of.c), d, dz, shares);
#pragma unroll
      for (int s = 0; s < RANKS; s++) products[s] = dot(d, inputs[s]);
      if (of.is_there) store_eight(f.y, of.row + r * f.P, d);
      put_products(products, f.P / 8, of.is_there, p.products + (of.value * RANKS + r) * RANKS);
      if (f.mimo_z.data || f.mimo_o.data) add_to_warp<2>(f, shares, own + 2 * r * f.P);
    }
    if (p.dz.data && of.is_there) store_eight(p.dz.data, channels_of(f, p.dz, b, h, of, 0), dz);
  }
  kr_sync();
  float *const to = factors_of(p, b, chunk, h);
  for (int i = kr_thread(); i < sums; i += THREADS) { /* of a rank mimo_z's, then mimo_o's */
    const int shift = log2_of(f.P), r = i >> (shift + 1), is_o = i >> shift & 1;
    float sum = warps[i];
    for (int w = 1; w < WARPS; w++) sum += warps[w * sums + i];
    to[((is_o ? RANKS : 0) + r) * f.P + (i & (f.P - 1))] = sum;
  }
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_leave_2(const kr_mamba3_bwd_params p) { ranked_leave<2>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_leave_4(const kr_mamba3_bwd_params p) { ranked_leave<4>(p); }

/* ---- dx ---------------------------------------------------------------------------------------------------------- */

template <int RANKS>
KR_DEV void ranked_inputs(const kr_mamba3_bwd_params &p) {
  KR_SHARED __attribute__((aligned(16))) float by_x[RANKS * MOST_P];
  KR_SHARED float warps[WARPS * RANKS * MOST_P];
  const kr_mamba3_params &f = p.f;
  const int chunk = kr_block_x() / f.H, h = kr_block_x() - chunk * f.H, b = kr_block_z(), n = CHUNK * f.P / 8,
            sums = RANKS * f.P;
  const int64_t t0 = (int64_t)chunk * CHUNK;
  const float D = D_of(f, h);
  float *const own = warps + (kr_thread() >> 5) * sums, *const to = factors_of(p, b, chunk, h);
  load_factors<RANKS>(f, f.mimo_x, h, by_x);
  clear_warps(warps, sums);
  kr_sync();
#pragma unroll 1
  for (int i = kr_thread(); i - (kr_thread() & 31) < n; i += THREADS) {
    const channels of = channels_at(f, b, h, t0, i);
    eight dy[RANKS], dx = {};
    const eight x = unpacked(load_eight(f.x.data, channels_of(f, f.x, b, h, of, 0)));
#pragma unroll
    for (int r = 0; r < RANKS; r++) dy[r] = unpacked(load_eight(f.y, of.row + r * f.P));
    raw8 next = {};
    if (has_next(f, of.at)) next = load_eight(p.rows_dx, of.row + RANKS * f.P);
#pragma unroll 1
    for (int s = 0; s < RANKS; s++) {
      eight d = unpacked(next);
      if (s + 1 < RANKS && has_next(f, of.at)) next = load_eight(p.rows_dx, of.row + (RANKS + s + 1) * f.P);
#pragma unroll
      for (int r = 0; r < RANKS; r++) d = plus_times(own_of<RANKS>(f, of, D, r, s), dy[r], d);
      const eight by = floats_at(by_x + s * f.P + of.c);
      float shares[8];
#pragma unroll
      for (int j = 0; j < 8; j++)
        dx.v[j] = kr_fma(by.v[j], d.v[j], dx.v[j]), shares[j] = of.is_there ? x.v[j] * d.v[j] : 0.0f;
      if (p.dmimo_x.data) add_to_warp<1>(f, shares, own + s * f.P);
    }
    if (!of.is_there || !p.dx.data) continue;
#pragma unroll 1
    for (int j = 0; j < 8 && of.at.ends && p.dfinal_x.data; j++) {
      const float last = get(p.dfinal_x, at3(p.dfinal_x, of.at.row, h, of.c + j));
#pragma unroll
      for (int k = 0; k < 8; k++) dx.v[k] += k == j ? last : 0.0f;
    }
    store_eight(p.dx.data, channels_of(f, p.dx, b, h, of, 0), dx);
  }
  kr_sync();
  put_warps(warps, sums, to + 2 * sums);
  if (!p.dDvec.data || kr_thread() >= 32) return;
  float sum = 0;
  for (int64_t t = t0 + kr_thread(); t < t0 + CHUNK && t < f.L; t += 32)
#pragma unroll
    for (int r = 0; r < RANKS; r++)
      sum += p.products[value_of(f, unit_of(f, b, h), t) * (RANKS * RANKS) + r * (RANKS + 1)];
  sum = add_warp(sum);
  if (kr_thread() == 0) to[p.n_parts - 1] = sum;
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_inputs_2(const kr_mamba3_bwd_params p) { ranked_inputs<2>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_inputs_4(const kr_mamba3_bwd_params p) { ranked_inputs<4>(p); }

/* ---- B and C ----------------------------------------------------------------------------------------------------- */

template <int RANKS>
KR_DEV void ranked_matrices(const kr_mamba3_bwd_params &p) {
  KR_SHARED __attribute__((aligned(16))) float sums[2][WARPS][2 * MOST_N];
  KR_SHARED __attribute__((aligned(16))) float biases[2][2 * RANKS * MOST_N];
  if (p.f.cu_seqlens.data)
    leave_matrices<1, 1, RANKS>(p, sums, biases);
  else
    leave_matrices<1, 0, RANKS>(p, sums, biases);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_matrices_2(const kr_mamba3_bwd_params p) { ranked_matrices<2>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_matrices_4(const kr_mamba3_bwd_params p) { ranked_matrices<4>(p); }
