/* mamba3_plain.cu: what surrounds the SSD in plain calls of Mamba 3's scan and its gradient: one rank without factors
 * or norm, rows in aligned vectors of eight (kr_mamba3_is_plain). Bound by memory: a lane has 16 bytes of a row, and a
 * thread asks for two tokens' before it uses one's. Compiled as mamba3.cu, whose kernels these replace.
 *   kr_mamba3_plain_rows, _halves      as kr_mamba3_rows
 *   kr_mamba3_plain_finish             as kr_mamba3_finish_P
 *   kr_mamba3_plain_leave              as kr_mamba3_leave_P
 *   kr_mamba3_plain_inputs             as kr_mamba3_inputs_P
 *   kr_mamba3_plain_matrices, _halves  as kr_mamba3_matrices, in tiles of 2048 / N tokens */
#include "mamba3_rows.cuh"

enum { MOST_N = KR_MAMBA3_PLAIN_N, AT_ONCE = 2 };

/* Eight elements as they are stored. */
typedef struct raw8 {
  kr_raw16 w[KR_DTYPE == 0 ? 2 : 1];
} raw8;
typedef struct eight {
  float v[8];
} eight;

KR_DEV raw8 load_eight(const void *data, int64_t at) {
  const kr_raw16 *const from = (const kr_raw16 *)((const element *)data + at);
  raw8 r;
#pragma unroll
  for (int i = 0; i < (int)(sizeof r / sizeof(kr_raw16)); i++) r.w[i] = from[i];
  return r;
}
KR_DEV eight unpacked(const raw8 &r) {
  eight e;
#pragma unroll
  for (int i = 0; i < 8; i++)
#if KR_DTYPE == 0
    e.v[i] = kr_bits_to_float(r.w[i / 4].w[i % 4]);
#else
    e.v[i] = kr_unpack(r.w[0].w[i / 2], i & 1, KR_DTYPE);
#endif
  return e;
}
KR_DEV raw8 packed(const eight &e) {
  raw8 r;
#if KR_DTYPE == 0
#pragma unroll
  for (int i = 0; i < 8; i++) r.w[i / 4].w[i % 4] = kr_float_to_bits(e.v[i]);
#else
#pragma unroll
  for (int i = 0; i < 4; i++) r.w[0].w[i] = kr_pack(e.v[2 * i], e.v[2 * i + 1], KR_DTYPE);
#endif
  return r;
}
KR_DEV void store_eight(void *data, int64_t at, const eight &e) {
  kr_raw16 *const to = (kr_raw16 *)((element *)data + at);
  const raw8 r = packed(e);
#pragma unroll
  for (int i = 0; i < (int)(sizeof r / sizeof(kr_raw16)); i++) to[i] = r.w[i];
}
KR_DEV eight plus(const eight &x, const eight &y) {
  eight e;
#pragma unroll
  for (int i = 0; i < 8; i++) e.v[i] = x.v[i] + y.v[i];
  return e;
}
KR_DEV eight plus_times(float by, const eight &x, const eight &y) {
  eight e;
#pragma unroll
  for (int i = 0; i < 8; i++) e.v[i] = kr_fma(by, x.v[i], y.v[i]);
  return e;
}
KR_DEV float dot(const eight &x, const eight &y) {
  float sum = x.v[0] * y.v[0];
#pragma unroll
  for (int i = 1; i < 8; i++) sum = kr_fma(x.v[i], y.v[i], sum);
  return sum;
}
/* Of a power of two. */
KR_DEV int log2_of(int n) { return 31 - __builtin_clz((unsigned)n); }

/* Where a block's row is, of 2^shift elements: there is one rank. */
KR_DEV int64_t place_of(const kr_mamba3_params &p, int64_t unit, int64_t block, int shift) {
  return (unit * p.n_rows << shift) + (block << shift);
}
/* Of values (B,H,L). */
KR_DEV int64_t value_of(const kr_mamba3_params &p, int64_t unit, int64_t t) { return unit * p.L + t; }

/* Over runs of n lanes, a power of two. */
KR_DEV float add_lanes(float v, int n) {
#pragma unroll 1
  for (int d = 1; d < n; d <<= 1) v += kr_shuffle_xor(v, d);
  return v;
}

/* ---- quads: four pairs of a row of N ----------------------------------------------------------------------------- */

/* Pair k of eight elements is a_of(k) and b_of(k). */
template <int HALVES>
KR_DEV int a_of(int k) { return HALVES ? k : 2 * k; }
template <int HALVES>
KR_DEV int b_of(int k) { return HALVES ? 4 + k : 2 * k + 1; }

/* From pair `first` on. */
template <int HALVES>
KR_DEV raw8 load_quad(const void *data, int64_t row, int first, int N) {
  if (!HALVES) return load_eight(data, row + 2 * first);
  const element *const a = (const element *)data + row + first, *const b = a + N / 2;
  raw8 r;
#if KR_DTYPE == 0
  r.w[0] = *(const kr_raw16 *)a, r.w[1] = *(const kr_raw16 *)b;
#else
  const kr_float2 x = *(const kr_float2 *)a, y = *(const kr_float2 *)b;
  r.w[0] = kr_raw16{{kr_float_to_bits(x.v[0]), kr_float_to_bits(x.v[1]), kr_float_to_bits(y.v[0]),
                     kr_float_to_bits(y.v[1])}};
#endif
  return r;
}
template <int HALVES>
KR_DEV void store_quad(void *data, int64_t row, int first, int N, const eight &e) {
  if (!HALVES) {
    store_eight(data, row + 2 * first, e);
    return;
  }
  const raw8 r = packed(e);
  element *const a = (element *)data + row + first, *const b = a + N / 2;
#if KR_DTYPE == 0
  *(kr_raw16 *)a = r.w[0], *(kr_raw16 *)b = r.w[1];
#else
  *(kr_float2 *)a = kr_float2{{kr_bits_to_float(r.w[0].w[0]), kr_bits_to_float(r.w[0].w[1])}};
  *(kr_float2 *)b = kr_float2{{kr_bits_to_float(r.w[0].w[2]), kr_bits_to_float(r.w[0].w[3])}};
#endif
}
/* Of a row of floats in shared memory. */
template <int HALVES>
KR_DEV eight quad_of(const float *row, int first, int N) {
  const kr_float4 x = *(const kr_float4 *)(row + (HALVES ? first : 2 * first)),
                  y = *(const kr_float4 *)(row + (HALVES ? N / 2 + first : 2 * first + 4));
  return eight{{x.v[0], x.v[1], x.v[2], x.v[3], y.v[0], y.v[1], y.v[2], y.v[3]}};
}

/* Where a lane's pairs of a token are, and (strides) how far apart those of two tokens or heads. */
typedef struct quad_place {
  int64_t q, k, row, within, before, value; /* of C, B, rows in scratch, angles, values (B,H,L) */
} quad_place;

KR_DEV quad_place quad_at(const kr_mamba3_params &p, int b, int h, const token &at) {
  const int64_t unit = unit_of(p, b, h);
  const int g = h / (p.H / p.G);
  return quad_place{at4(p.Cmat, b, at.t, g, 0),
                    at4(p.Bmat, b, at.t, g, 0),
                    place_of(p, unit, at.block, log2_of(p.N)),
                    (unit * p.L + at.t) * p.M,
                    (unit * p.n_spans + (int64_t)((uint64_t)at.t / SPAN)) * p.M,
                    value_of(p, unit, at.t)};
}
KR_DEV quad_place moved(const quad_place &x, const quad_place &by) {
  return quad_place{x.q + by.q,           x.k + by.k,           x.row + by.row,
                    x.within + by.within, x.before + by.before, x.value + by.value};
}
/* Between tokens of sequences that are no pack, n apart: a multiple of a span. */
KR_DEV quad_place apart(const kr_mamba3_params &p, int n) {
  return quad_place{n * p.Cmat.stride[1],    n * p.Bmat.stride[1],      (int64_t)n * p.N,
                    (int64_t)n * p.M, (int64_t)(n / SPAN) * p.M, n};
}
/* Between heads of a group. */
KR_DEV quad_place head_apart(const kr_mamba3_params &p) {
  return quad_place{0, 0, p.n_rows * p.N, p.L * p.M, (int64_t)p.n_spans * p.M, p.L};
}

typedef struct quad_angles {
  kr_raw16 within, before;
} quad_angles;

/* Of pairs that turn: scratch, in aligned fours. */
KR_DEV quad_angles load_angles(const kr_mamba3_params &p, const quad_place &of, const token &at, int first) {
  quad_angles a = {*(const kr_raw16 *)(p.angles_within + of.within + first), {{0, 0, 0, 0}}};
  if (at.start < (at.t & -(int64_t)SPAN)) a.before = *(const kr_raw16 *)(p.angles_before + of.before + first);
  return a;
}
KR_DEV void rotations_of(const quad_angles &a, rotation (&by)[4]) {
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const uint32_t turn = add_turns(a.before.w[k], a.within.w[k]);
    by[k] = KR_DTYPE == 0 ? rotation_of(turn) : near_rotation_of(turn);
  }
}

template <int HALVES>
KR_DEV void turn_quad(eight &u, const rotation (&by)[4], float sign) {
#pragma unroll
  for (int k = 0; k < 4; k++) {
    float &a = u.v[a_of<HALVES>(k)], &b = u.v[b_of<HALVES>(k)];
    const float c = by[k].cosine, s = sign * by[k].sine, x = a, y = b;
    a = kr_fma(c, x, -(s * y)), b = kr_fma(s, x, c * y);
  }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Biases of a head's queries and keys, to shared memory. */
KR_DEV void load_biases(const kr_mamba3_params &f, int h, float *to) {
  const int i = kr_thread();
  if (i >= 2 * f.N) return;
  to[i] = i < f.N ? get(f.C_bias, at3(f.C_bias, h, 0, i)) : get(f.B_bias, at3(f.B_bias, h, 0, i - f.N));
}

/* Inputs of a chunk's tokens in the rows of their keys, by all threads: eight channels each. */
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
#pragma unroll 1
      for (int j = 0; j < 8 && at.ends && p.final_x.data; j++)
        kr_store(p.final_x.data, at3(p.final_x, at.row, h, c + j), p.final_x.dtype,
                 get(p.x, at4(p.x, b, at.t, h, c + j)));
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
    rotations_of(angles, by);
    turn_quad<HALVES>(q, by, 1.0f), turn_quad<HALVES>(k, by, 1.0f);
  }
  store_quad<HALVES>(p.q, to.row, first, p.N, q);
  if (has_next(p, at)) store_quad<HALVES>(p.k, to.row + p.N, first, p.N, k);
  if (!at.ends || !p.final_B.data) return;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int64_t state = at4(p.final_B, at.row, 0, h, 0), a = HALVES ? first + i : 2 * (first + i),
                  gap = HALVES ? p.N / 2 : 1;
    kr_store(p.final_B.data, state + a * p.final_B.stride[3], p.final_B.dtype, k.v[a_of<HALVES>(i)]);
    kr_store(p.final_B.data, state + (a + gap) * p.final_B.stride[3], p.final_B.dtype, k.v[b_of<HALVES>(i)]);
  }
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
  if (first < p.M) v.angles = load_angles(p, from, at, first);
  return v;
}

template <int HALVES, int IS_PACK>
KR_DEV void plain_rows(const kr_mamba3_params &p, float *biases) {
  const int chunk = kr_block_x() / p.H, h = kr_block_x() - chunk * p.H, b = kr_block_z(), shift = log2_of(p.N / 8),
            first = 4 * (kr_thread() & (p.N / 8 - 1)), each = THREADS >> shift;
  const int64_t t0 = (int64_t)chunk * CHUNK, end = t0 + CHUNK < p.L ? t0 + CHUNK : p.L;
  const quad_place step = apart(p, each);
  int64_t t = t0 + (kr_thread() >> shift);
  token at = token_of<IS_PACK>(p, b, t < end ? t : end - 1);
  quad_place place = quad_at(p, b, h, at);
  quads next = load_quads<HALVES>(p, at, place, first);
  load_biases(p, h, biases);
  copy_inputs<IS_PACK>(p, b, h, t0, (int)(end - t0));
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
  if (kr_thread() < end - t0) put_weights(p, b, h, token_of<IS_PACK>(p, b, t0 + kr_thread()));
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
  for (int first = kr_thread(); p.dx.data && first < n; first += AT_ONCE * THREADS) {
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

/* What a token and head give to the gradients of B and C. */
typedef struct given {
  raw8 dq, dk;
  quad_angles angles;
  float own;
} given;

template <int HALVES>
KR_DEV given load_given(const kr_mamba3_bwd_params &p, const token &at, const quad_place &of, int is_there, int first) {
  const kr_mamba3_params &f = p.f;
  given v = {};
  if (!is_there) return v;
  v.dq = load_quad<HALVES>(p.dq, of.row, first, f.N);
  if (has_next(f, at)) v.dk = load_quad<HALVES>(p.dk, of.row + f.N, first, f.N);
  if (first < f.M) v.angles = load_angles(f, of, at, first);
  v.own = f.gamma[of.value] * p.products[of.value];
  return v;
}

/* dq and dk of a token, turned back, from its rotated query and key; leaves the share of the gradient of angles. */
template <int HALVES>
KR_DEV void turn_back(const kr_mamba3_bwd_params &p, int h, const token &at, const quad_place &of, int is_there,
                      int first, const given &v, eight q, eight k, eight &dq, eight &dk) {
  const kr_mamba3_params &f = p.f;
  rotation by[4];
  if (first < f.M) {
    rotations_of(v.angles, by);
    turn_quad<HALVES>(q, by, 1.0f), turn_quad<HALVES>(k, by, 1.0f);
  }
  dq = plus_times(v.own, k, unpacked(v.dq)), dk = plus_times(v.own, q, unpacked(v.dk));
  for (int i = 0; i < 4 && is_there && at.ends && p.dfinal_B.data; i++) {
    const int64_t from = at4(p.dfinal_B, at.row, 0, h, 0), a = HALVES ? first + i : 2 * (first + i),
                  gap = HALVES ? f.N / 2 : 1;
    const float x = get(p.dfinal_B, from + a * p.dfinal_B.stride[3]),
                y = get(p.dfinal_B, from + (a + gap) * p.dfinal_B.stride[3]);
#pragma unroll
    for (int j = 0; j < 4; j++) dk.v[a_of<HALVES>(j)] += j == i ? x : 0.0f, dk.v[b_of<HALVES>(j)] += j == i ? y : 0.0f;
  }
  if (first >= f.M) return;
  kr_float4 share;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int x = a_of<HALVES>(j), y = b_of<HALVES>(j);
    share.v[j] = kr_fma(q.v[x], dq.v[y], -(q.v[y] * dq.v[x])) + kr_fma(k.v[x], dk.v[y], -(k.v[y] * dk.v[x]));
  }
  if (is_there) *(kr_float4 *)(p.psi + of.within + first) = share;
  turn_quad<HALVES>(dq, by, -1.0f), turn_quad<HALVES>(dk, by, -1.0f);
}

/* A warp's sums over its tokens to its row: a lane's first four of dq at `first`, its others N / 2 behind; dk's N. */
KR_DEV void put_sums(float *row, int first, int N, eight dq, eight dk) {
#pragma unroll 1
  for (int d = N / 8; d < 32; d <<= 1)
#pragma unroll
    for (int i = 0; i < 8; i++) dq.v[i] += kr_shuffle_xor(dq.v[i], d), dk.v[i] += kr_shuffle_xor(dk.v[i], d);
  if ((kr_thread() & 31) >= N / 8) return;
  *(kr_float4 *)(row + first) = kr_float4{{dq.v[0], dq.v[1], dq.v[2], dq.v[3]}};
  *(kr_float4 *)(row + N / 2 + first) = kr_float4{{dq.v[4], dq.v[5], dq.v[6], dq.v[7]}};
  *(kr_float4 *)(row + N + first) = kr_float4{{dk.v[0], dk.v[1], dk.v[2], dk.v[3]}};
  *(kr_float4 *)(row + N + N / 2 + first) = kr_float4{{dk.v[4], dk.v[5], dk.v[6], dk.v[7]}};
}

/* Which of 2 N gradients of biases a thread's place in such a row is. */
template <int HALVES>
KR_DEV int bias_of(int i, int N) {
  const int within = i & (N - 1), second = within >= N / 2, place = within - second * N / 2;
  return i - within + (HALVES ? within : 8 * (place / 4) + 4 * second + (place & 3));
}

KR_DEV void put_biases(const float (*warps)[2 * MOST_N], float *to) {
  const int i = kr_thread();
  float sum = warps[0][i];
#pragma unroll
  for (int w = 1; w < WARPS; w++) sum += warps[w][i];
  *to = sum;
}

/* A block per tile and group; a lane has four pairs of a token, for all heads of the group. */
template <int HALVES, int IS_PACK>
KR_DEV void plain_matrices(const kr_mamba3_bwd_params &p, float (*sums)[WARPS][2 * MOST_N],
                           float (*biases)[2 * MOST_N]) {
  const kr_mamba3_params &f = p.f;
  const int heads = f.H / f.G, g = kr_block_x() % f.G, tile = kr_block_x() / f.G, b = kr_block_z(), N = f.N,
            shift = log2_of(N / 8), first = 4 * (kr_thread() & (N / 8 - 1)), warp = kr_thread() >> 5;
  const int64_t t = (int64_t)tile * (THREADS >> shift) + (kr_thread() >> shift), block = (int64_t)b * f.n_tiles + tile;
  const int is_there = t < f.L, has_bias = kr_thread() < 2 * N;
  const token at = token_of<IS_PACK>(f, b, is_there ? t : f.L - 1);
  const quad_place step = head_apart(f);
  quad_place place = quad_at(f, b, g * heads, at);
  const raw8 B = load_quad<HALVES>(f.Bmat.data, place.k, first, N),
             C = load_quad<HALVES>(f.Cmat.data, place.q, first, N);
  given next = load_given<HALVES>(p, at, place, is_there, first);
  float *to = p.biases + (block * f.H + g * heads) * 2 * N + bias_of<HALVES>(kr_thread(), N);
  eight dB = {}, dC = {};
  load_biases(f, g * heads, biases[0]);
#pragma unroll 1
  for (int i = 0; i < heads; i++) {
    const int h = g * heads + i, turn = i & 1;
    const given now = next;
    const quad_place of = place;
    kr_sync();
    if (i && has_bias) put_biases(sums[!turn], to), to += 2 * N;
    if (i + 1 < heads) {
      place = moved(place, step);
      next = load_given<HALVES>(p, at, place, is_there, first);
      load_biases(f, h + 1, biases[!turn]);
    }
    eight dq, dk;
    turn_back<HALVES>(p, h, at, of, is_there, first, now, plus(unpacked(C), quad_of<HALVES>(biases[turn], first, N)),
                      plus(unpacked(B), quad_of<HALVES>(biases[turn] + N, first, N)), dq, dk);
    dC = plus(dC, dq), dB = plus(dB, dk);
    put_sums(sums[turn][warp], first, N, dq, dk);
  }
  kr_sync();
  if (has_bias) put_biases(sums[(heads - 1) & 1], to);
  if (!is_there) return;
  if (p.dC.data) store_quad<HALVES>(p.dC.data, at4(p.dC, b, t, g, 0), first, N, dC);
  if (p.dB.data) store_quad<HALVES>(p.dB.data, at4(p.dB, b, t, g, 0), first, N, dB);
}
template <int HALVES>
KR_DEV void plain_matrices_of(const kr_mamba3_bwd_params &p) {
  KR_SHARED __attribute__((aligned(16))) float sums[2][WARPS][2 * MOST_N];
  KR_SHARED __attribute__((aligned(16))) float biases[2][2 * MOST_N];
  if (p.f.cu_seqlens.data)
    plain_matrices<HALVES, 1>(p, sums, biases);
  else
    plain_matrices<HALVES, 0>(p, sums, biases);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_plain_matrices(const kr_mamba3_bwd_params p) { plain_matrices_of<0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_plain_matrices_halves(const kr_mamba3_bwd_params p) {
  plain_matrices_of<1>(p);
}
