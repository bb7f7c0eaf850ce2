/* mamba3_plain.cuh: shared by the kernels around the SSD whose rows are aligned vectors of eight (mamba3_plain.cu,
 * mamba3_ranks.cu): such vectors, and four pairs of a query or key; the gradients of B and C. */
#ifndef KR_MAMBA3_PLAIN_CUH
#define KR_MAMBA3_PLAIN_CUH

#include "mamba3_rows.cuh"
#include "mamba3_walk_params.h"

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

/* Where a block's first row is, of 2^shift elements. */
KR_DEV int64_t place_of(const kr_mamba3_params &p, int64_t unit, int64_t block, int shift) {
  return (unit * p.n_rows + block * p.ranks) << shift;
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
/* Of a row of floats. */
template <int HALVES>
KR_DEV eight quad_of(const float *row, int first, int N) {
  const kr_float4 x = *(const kr_float4 *)(row + (HALVES ? first : 2 * first)),
                  y = *(const kr_float4 *)(row + (HALVES ? N / 2 + first : 2 * first + 4));
  return eight{{x.v[0], x.v[1], x.v[2], x.v[3], y.v[0], y.v[1], y.v[2], y.v[3]}};
}

/* Where a lane's pairs of a token are, and (strides) how far apart those of two tokens or heads. */
typedef struct quad_place {
  int64_t q, k, row, within, before, value; /* of C, B, rows in scratch, angles, values (B,H,L); before: of a walked
                                               call its packet, in bytes */
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
  return quad_place{n * p.Cmat.stride[1],    n * p.Bmat.stride[1],      (int64_t)n * p.ranks * p.N,
                    (int64_t)n * p.M, (int64_t)(n / SPAN) * p.M, n};
}
/* Between heads of a group. */
KR_DEV quad_place head_apart(const kr_mamba3_params &p) {
  return quad_place{0, 0, p.n_rows * p.N, p.L * p.M, (int64_t)p.n_spans * p.M, p.L};
}

/* within: of a walked call rotations in float16. */
typedef struct quad_angles {
  kr_raw16 within, before;
} quad_angles;

/* Of pairs that turn: scratch, in aligned fours. CAN_WALK: whether such calls may be walked. */
template <int CAN_WALK>
KR_DEV quad_angles load_angles(const kr_mamba3_params &p, const quad_place &of, const token &at, int first) {
  if (CAN_WALK && p.packets) {
    const int j = (int)(at.t & (CHUNK - 1)), lane = 32 * (j >> 4) + 4 * (j & 7);
    const uint32_t *const turns = (const uint32_t *)(p.packets + of.before + KR_MAMBA3_STEPS_BYTES +
                                                     (first >> 3) * 2048 + lane * 16) +
                                  2 * (first >> 2 & 1) + (j >> 3 & 1);
    return quad_angles{{{turns[0], turns[4], turns[8], turns[12]}}, {{0, 0, 0, 0}}};
  }
  quad_angles a = {*(const kr_raw16 *)(p.angles_within + of.within + first), {{0, 0, 0, 0}}};
  if (at.start < (at.t & -(int64_t)SPAN)) a.before = *(const kr_raw16 *)(p.angles_before + of.before + first);
  return a;
}
template <int CAN_WALK>
KR_DEV void rotations_of(const kr_mamba3_params &p, const quad_angles &a, rotation (&by)[4]) {
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (CAN_WALK && p.packets) {
      by[k] = rotation{kr_unpack(a.within.w[k], 0, KRAIT_F16), kr_unpack(a.within.w[k], 1, KRAIT_F16)};
      continue;
    }
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

/* A thread's biases of a head's queries, then keys, of all ranks; then to shared memory. */
template <int RANKS>
struct own_biases {
  float v[2 * RANKS * MOST_N / THREADS];
};
template <int RANKS>
KR_DEV own_biases<RANKS> get_biases(const kr_mamba3_params &f, int h) {
  const int each = RANKS * f.N, shift = log2_of(f.N);
  own_biases<RANKS> to = {};
#pragma unroll
  for (int j = 0; j < 2 * RANKS * MOST_N / THREADS; j++) {
    const int i = j * THREADS + kr_thread(), own = i < each ? i : i - each, r = own >> shift, n = own & (f.N - 1);
    const kr_view &from = i < each ? f.C_bias : f.B_bias;
    if (i < 2 * each) to.v[j] = get(from, at3(from, h, r, n));
  }
  return to;
}
template <int RANKS>
KR_DEV void put_biases_of(const kr_mamba3_params &f, const own_biases<RANKS> &from, float *to) {
#pragma unroll
  for (int j = 0; j < 2 * RANKS * MOST_N / THREADS; j++)
    if (j * THREADS + kr_thread() < 2 * RANKS * f.N) to[j * THREADS + kr_thread()] = from.v[j];
}

/* Biases of a head's queries, then keys, of all ranks, to shared memory. */
KR_DEV void load_biases(const kr_mamba3_params &f, int h, float *to) {
  const int each = f.R * f.N, shift = log2_of(f.N);
  for (int i = kr_thread(); i < 2 * each; i += THREADS) {
    const int own = i < each ? i : i - each, r = own >> shift, n = own & (f.N - 1);
    to[i] = i < each ? get(f.C_bias, at3(f.C_bias, h, r, n)) : get(f.B_bias, at3(f.B_bias, h, r, n));
  }
}

/* A lane's pairs of a key, to the final state's. */
template <int HALVES>
KR_DEV void put_final_key(const kr_mamba3_params &p, int h, const token &at, int r, int first, const eight &k) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int64_t state = at4(p.final_B, at.row, r, h, 0), a = HALVES ? first + i : 2 * (first + i),
                  gap = HALVES ? p.N / 2 : 1;
    kr_store(p.final_B.data, state + a * p.final_B.stride[3], p.final_B.dtype, k.v[a_of<HALVES>(i)]);
    kr_store(p.final_B.data, state + (a + gap) * p.final_B.stride[3], p.final_B.dtype, k.v[b_of<HALVES>(i)]);
  }
}

/* Eight channels of a token's input, to the final state's. */
KR_DEV void put_final_inputs(const kr_mamba3_params &p, int b, int h, const token &at, int c) {
#pragma unroll 1
  for (int j = 0; j < 8 && at.ends && p.final_x.data; j++)
    kr_store(p.final_x.data, at3(p.final_x, at.row, h, c + j), p.final_x.dtype,
             get(p.x, at4(p.x, b, at.t, h, c + j)));
}

/* ---- gradients of B and C ---------------------------------------------------------------------------------------- */

/* What a token, head and rank give to the gradients of B and C, which is loaded a head ahead. */
typedef struct given {
  eight dq, dk;
  quad_angles angles;
} given;
/* The rest, which is near. by_k, by_q: lambda dt and the products of the rank's dy with every rank's input, and of
 * every rank's with its. share: psi of the ranks before. */
template <int RANKS>
struct factors_of_given {
  kr_float4 share;
  float by_k[RANKS], by_q[RANKS];
};

template <int HALVES, int RANKS, int CAN_WALK>
KR_DEV given load_given(const kr_mamba3_bwd_params &p, const token &at, const quad_place &of, int is_there,
                               int r, int first) {
  const kr_mamba3_params &f = p.f;
  given v = {};
  if (!is_there) return v;
  const int64_t row = of.row + r * f.N;
  v.dq = quad_of<HALVES>((const float *)p.dq + row, first, f.N);
  if (f.is_direct || has_next(f, at))
    v.dk = quad_of<HALVES>((const float *)p.dk + row + (f.is_direct ? 0 : RANKS * f.N), first, f.N);
  if (first < f.M) v.angles = load_angles<CAN_WALK>(f, of, at, first);
  return v;
}
template <int RANKS>
KR_DEV factors_of_given<RANKS> load_factors_of(const kr_mamba3_bwd_params &p, const quad_place &of, int is_there, int r,
                                               int first) {
  factors_of_given<RANKS> v = {};
  if (!is_there) return v;
  const float *const products = p.products + of.value * (RANKS * RANKS), gamma = p.f.gamma[of.value];
  if (RANKS > 1 && first < p.f.M && r > 0) v.share = *(const kr_float4 *)(p.psi + of.within + first);
#pragma unroll
  for (int s = 0; s < RANKS; s++)
    v.by_k[s] = gamma * products[r * RANKS + s], v.by_q[s] = gamma * products[s * RANKS + r];
  return v;
}

/* The gradient of a final key, onto a lane's pairs of it. */
template <int HALVES>
KR_DEV void add_final_key(const kr_mamba3_bwd_params &p, int h, const token &at, int r, int first, eight &dk) {
  const kr_mamba3_params &f = p.f;
#pragma unroll 1
  for (int i = 0; i < 4; i++) {
    const int64_t from = at4(p.dfinal_B, at.row, r, h, 0), a = HALVES ? first + i : 2 * (first + i),
                  gap = HALVES ? f.N / 2 : 1;
    const float x = get(p.dfinal_B, from + a * p.dfinal_B.stride[3]),
                y = get(p.dfinal_B, from + (a + gap) * p.dfinal_B.stride[3]);
#pragma unroll
    for (int j = 0; j < 4; j++) dk.v[a_of<HALVES>(j)] += j == i ? x : 0.0f, dk.v[b_of<HALVES>(j)] += j == i ? y : 0.0f;
  }
}

/* dq and dk of a rank of a token before they turned. Leaves the share of the gradient of angles, dq's part across q,
 * onto the ranks' before; the products of a token with itself have no part in it. q and k: of the rank, with their
 * biases. They are turned and rounded as the SSD multiplied them: what two tokens give to angles that turn both then
 * cancels exactly. */
template <int HALVES, int CAN_WALK>
KR_DEV void turn_back(const kr_mamba3_bwd_params &p, const quad_place &of, int is_there, int first,
                      const quad_angles &angles, kr_float4 share, eight q, eight k, eight &dq, eight &dk) {
  rotation by[4];
  rotations_of<CAN_WALK>(p.f, angles, by);
  turn_quad<HALVES>(q, by, 1.0f), turn_quad<HALVES>(k, by, 1.0f);
  q = unpacked(packed(q)), k = unpacked(packed(k));
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int x = a_of<HALVES>(j), y = b_of<HALVES>(j);
    share.v[j] += kr_fma(q.v[x], dq.v[y], -(q.v[y] * dq.v[x])) + kr_fma(k.v[x], dk.v[y], -(k.v[y] * dk.v[x]));
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

/* A rank's query and key for a lane's pairs, before biases and turns: of one rank kept for all heads, of several loaded
 * for each, since they stay near. */
typedef struct vectors {
  raw8 q, k;
} vectors;
template <int HALVES>
KR_DEV vectors load_vectors(const kr_mamba3_params &f, const quad_place &of, int r, int first) {
  return vectors{load_quad<HALVES>(f.Cmat.data, of.q + r * f.G * f.Cmat.stride[2], first, f.N),
                 load_quad<HALVES>(f.Bmat.data, of.k + r * f.G * f.Bmat.stride[2], first, f.N)};
}

/* A block per tile and group; a lane has four pairs of a token, for all heads of the group, a rank after the other. */
template <int HALVES, int IS_PACK, int RANKS>
KR_DEV void leave_matrices(const kr_mamba3_bwd_params &p, float (*sums)[WARPS][2 * MOST_N],
                           float (*biases)[2 * RANKS * MOST_N]) {
  enum { CAN_WALK = !HALVES && !IS_PACK && RANKS == 1 && KR_DTYPE != 0 };
  const kr_mamba3_params &f = p.f;
  const int heads = f.H / f.G, g = kr_block_x() % f.G, tile = kr_block_x() / f.G, b = kr_block_z(), N = f.N,
            shift = log2_of(N / 8), first = 4 * (kr_thread() & (N / 8 - 1)), warp = kr_thread() >> 5,
            bias = bias_of<HALVES>(kr_thread(), N), has_bias = kr_thread() < 2 * N;
  const int64_t t = (int64_t)tile * (THREADS >> shift) + (kr_thread() >> shift), block = (int64_t)b * f.n_tiles + tile;
  const int is_there = t < f.L;
  const token at = token_of<IS_PACK>(f, b, is_there ? t : f.L - 1);
  quad_place start = quad_at(f, b, g * heads, at), step = head_apart(f);
  if (CAN_WALK && f.packets)
    start.before = (unit_of(f, b, g * heads) * f.n_chunks + at.t / CHUNK) * f.packet_bytes,
    step.before = (int64_t)f.n_chunks * f.packet_bytes;
  vectors kept;
  if (RANKS == 1) kept = load_vectors<HALVES>(f, start, 0, first);
#pragma unroll 1
  for (int r = 0; r < RANKS; r++) {
    quad_place place = start;
    given next = load_given<HALVES, RANKS, CAN_WALK>(p, at, place, is_there, r, first);
    float *to = p.biases + (block * f.H + g * heads) * 2 * RANKS * N + (bias >= N ? RANKS - 1 : 0) * N + r * N + bias;
    eight dB = {}, dC = {};
    own_biases<RANKS> ahead = {};
    load_biases(f, g * heads, biases[0]);
#pragma unroll 1
    for (int i = 0; i < heads; i++) {
      const int h = g * heads + i, turn = i & 1;
      const given now = next;
      const quad_place of = place;
      const factors_of_given<RANKS> by = load_factors_of<RANKS>(p, of, is_there, r, first);
      kr_sync();
      if (i && has_bias) put_biases(sums[!turn], to), to += 2 * RANKS * N;
      if (i + 1 < heads) {
        place = moved(place, step);
        next = load_given<HALVES, RANKS, CAN_WALK>(p, at, place, is_there, r, first);
        ahead = get_biases<RANKS>(f, h + 1);
      }
      eight dq = now.dq, dk = now.dk;
      if (is_there && at.ends && p.dfinal_B.data) add_final_key<HALVES>(p, h, at, r, first, dk);
      if (first < f.M) {
        const vectors own = RANKS == 1 ? kept : load_vectors<HALVES>(f, start, r, first);
        const float *const row = biases[turn] + r * N;
        turn_back<HALVES, CAN_WALK>(p, of, is_there, first, now.angles, by.share,
                          plus(unpacked(own.q), quad_of<HALVES>(row, first, N)),
                          plus(unpacked(own.k), quad_of<HALVES>(row + RANKS * N, first, N)), dq, dk);
      }
#pragma unroll
      for (int s = 0; s < RANKS; s++) {
        const vectors from = RANKS == 1 ? kept : load_vectors<HALVES>(f, start, s, first);
        const float *const row = biases[turn] + s * N;
        dk = plus_times(by.by_q[s], plus(unpacked(from.q), quad_of<HALVES>(row, first, N)), dk);
        dq = plus_times(by.by_k[s], plus(unpacked(from.k), quad_of<HALVES>(row + RANKS * N, first, N)), dq);
      }
      dC = plus(dC, dq), dB = plus(dB, dk);
      put_sums(sums[turn][warp], first, N, dq, dk);
      if (i + 1 < heads) put_biases_of(f, ahead, biases[!turn]);
    }
    kr_sync();
    if (has_bias) put_biases(sums[(heads - 1) & 1], to);
    if (!is_there) continue;
    if (p.dC.data) store_quad<HALVES>(p.dC.data, at4(p.dC, b, t, r * f.G + g, 0), first, N, dC);
    if (p.dB.data) store_quad<HALVES>(p.dB.data, at4(p.dB, b, t, r * f.G + g, 0), first, N, dB);
  }
}

#endif
