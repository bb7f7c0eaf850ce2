/* ssd_tiles.cuh: the SSD in chunks by multiply-adds, for every GPU: products of 64 x 64 tiles, of which each of 64
 * threads has 8 x 8 results, and the kernels that the forward call and its gradient share. Factors have any type and
 * strides; they go through 16 KB of shared memory, 32 terms at a time. */
#ifndef KR_SSD_TILES_CUH
#define KR_SSD_TILES_CUH

#include "ssd_steps.cuh"

enum { TILE = Q, TERMS = 32, TILERS = KR_SSD_TILERS, STAGES = 2 * TERMS * TILE };
enum { FLOATS, HALVES, ANY }; /* a stage of a factor: whole and aligned, of float32 or of 16 bits; or anything */
enum { ALONG_ROWS, ALONG_TERMS }; /* which of a factor's elements are read side by side */

/* Elements outside of n_rows and n_terms are zeros. */
typedef struct factor {
  const void *data;
  int64_t at, row, term; /* in elements: of the first, strides */
  int32_t dtype, packs;
  int n_rows, n_terms;
} factor;

/* What an element becomes on its way into a product: weigh(). */
struct as_stored {};
struct by_row {
  const float *weights;
};
struct by_term {
  const float *weights;
};
KR_DEV float weigh(const as_stored &, float v, int, int) { return v; }
KR_DEV float weigh(const by_row &w, float v, int row, int) { return v * w.weights[row]; }
KR_DEV float weigh(const by_term &w, float v, int, int term) { return v * w.weights[term]; }

/* A thread's results: rows 4 y + {0..3} and those + 32, columns 4 x + {0..3} and those + 32. */
typedef struct tile_place {
  int y, x;
} tile_place;

KR_DEV tile_place own_place(void) {
  return tile_place{(kr_thread() & 1) + (kr_thread() >> 4) * 2, kr_thread() >> 1 & 7};
}
KR_DEV int result_at(int first, int i) { return 32 * (i / 4) + 4 * first + i % 4; }

KR_DEV void clear(float (&d)[8][8]) {
#pragma unroll
  for (int i = 0; i < 64; i++) d[i / 8][i % 8] = 0.0f;
}

/* `left`: elements that exist from the first on. */
template <int KIND>
KR_DEV void read_run(const factor &f, int64_t at, int64_t step, int left, float (&e)[8]) {
  if (KIND == FLOATS) {
    const kr_float4 *const from = (const kr_float4 *)((const float *)f.data + at);
    const kr_float4 low = from[0], high = from[1];
#pragma unroll
    for (int i = 0; i < 4; i++) e[i] = low.v[i], e[4 + i] = high.v[i];
  } else if (KIND == HALVES) {
    const kr_raw16 raw = *(const kr_raw16 *)((const uint16_t *)f.data + at);
#pragma unroll
    for (int i = 0; i < 8; i++) e[i] = kr_bits_to_float(raw.w[i / 2]); /* for element_of, once all are read */
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) e[i] = i < left ? kr_load(f.data, at + i * step, f.dtype) : 0.0f;
  }
}

template <int KIND>
KR_DEV float element_of(const float (&e)[8], int i, int32_t dtype) {
  return KIND == HALVES ? kr_unpack(kr_float_to_bits(e[i]), i % 2, dtype) : e[i];
}

/* 32 terms from `first` on, to stage[term][row]. */
template <int ALONG, int KIND, class WEIGHT>
KR_DEV void fill_as(float *stage, const factor &f, int first, const WEIGHT &weight) {
  const int fixed = ALONG == ALONG_TERMS ? kr_thread() : kr_thread() / 8, run = kr_thread() % 8 * 8;
  float e[4][8];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int row = ALONG == ALONG_TERMS ? fixed : run, term = first + (ALONG == ALONG_TERMS ? 8 * k : fixed + 8 * k);
    const int left = ALONG == ALONG_TERMS ? (row < f.n_rows ? f.n_terms - term : 0)
                                          : (term < f.n_terms ? f.n_rows - row : 0);
    read_run<KIND>(f, f.at + row * f.row + term * f.term, ALONG == ALONG_TERMS ? f.term : f.row, left, e[k]);
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (ALONG == ALONG_TERMS) {
#pragma unroll
      for (int i = 0; i < 8; i++)
        stage[(8 * k + i) * TILE + fixed] = weigh(weight, element_of<KIND>(e[k], i, f.dtype), fixed, first + 8 * k + i);
    } else {
      const int term = fixed + 8 * k;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        kr_float4 four;
#pragma unroll
        for (int i = 0; i < 4; i++)
          four.v[i] = weigh(weight, element_of<KIND>(e[k], 4 * h + i, f.dtype), run + 4 * h + i, first + term);
        *(kr_float4 *)(stage + term * TILE + run + 4 * h) = four;
      }
    }
  }
}

template <int ALONG, class WEIGHT>
KR_DEV void fill(float *stage, const factor &f, int first, const WEIGHT &weight) {
  const int whole = f.packs && f.n_rows >= TILE && f.n_terms >= first + TERMS;
  if (whole && f.dtype == KRAIT_F32) fill_as<ALONG, FLOATS>(stage, f, first, weight);
  else if (whole) fill_as<ALONG, HALVES>(stage, f, first, weight);
  else fill_as<ALONG, ANY>(stage, f, first, weight);
}

KR_DEV void multiply_terms(float (&d)[8][8], const float *a, const float *b, const tile_place &me) {
#pragma unroll 2
  for (int k = 0; k < TERMS; k++) {
    float va[8], vb[8];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const kr_float4 of_a = *(const kr_float4 *)(a + k * TILE + 32 * h + 4 * me.y),
                      of_b = *(const kr_float4 *)(b + k * TILE + 32 * h + 4 * me.x);
#pragma unroll
      for (int i = 0; i < 4; i++) va[4 * h + i] = of_a.v[i], vb[4 * h + i] = of_b.v[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int j = 0; j < 8; j++) d[i][j] = kr_fma(va[i], vb[j], d[i][j]);
  }
}

/* d += a b^T over n_terms; stages: of the whole block. */
template <int A_ALONG, int B_ALONG, class A_WEIGHT, class B_WEIGHT>
KR_DEV void multiply_tile(float (&d)[8][8], float *stages, const factor &a, const A_WEIGHT &weight_a, const factor &b,
                          const B_WEIGHT &weight_b, int n_terms) {
#pragma unroll 1
  for (int first = 0; first < n_terms; first += TERMS) {
    kr_sync();
    fill<A_ALONG>(stages, a, first, weight_a);
    fill<B_ALONG>(stages + TERMS * TILE, b, first, weight_b);
    kr_sync();
    multiply_terms(d, stages, stages + TERMS * TILE, own_place());
  }
}

/* ---- what a chunk's products are made of ------------------------------------------------------------------------- */

/* A block's chunk of a head, or of a group; its 64 channels and 64 states. */
typedef struct chunk_place {
  int b, h, g, chunk, p0, n0, n; /* n: tokens */
  int64_t t0;
} chunk_place;

KR_DEV chunk_place place_in(const kr_ssd_params &f, int chunk, int h, int p_block, int n_block) {
  chunk_place at = {kr_block_z(), h, h / f.heads, chunk, p_block * PB, n_block * TILE, 0, (int64_t)chunk * Q};
  at.n = f.L - at.t0 < Q ? (int)(f.L - at.t0) : Q;
  return at;
}

/* Tokens of a chunk by columns from `first` of `of` on, as rows (of columns or tokens) and terms. */
KR_DEV factor tokens_by_columns(const kr_ssd_tensor &v, const chunk_place &at, int head, int first, int n_columns) {
  return factor{v.data,  at.b * v.b + at.t0 * v.t + head * v.h + first * v.n, v.t, v.n, v.dtype, v.packs, at.n,
                n_columns - first};
}
KR_DEV factor columns_by_tokens(const kr_ssd_tensor &v, const chunk_place &at, int head, int first, int n_columns) {
  return factor{v.data,  at.b * v.b + at.t0 * v.t + head * v.h + first * v.n, v.n, v.t, v.dtype, v.packs,
                n_columns - first, at.n};
}

/* A chunk's states, (channel, state) from p0 and n0 on; and the same as states by channels. */
KR_DEV float *state_tile(const kr_ssd_params &f, const kr_ssd_slice &s, const chunk_place &at) {
  return s.states + (((int64_t)at.b * f.H + at.h) * s.n + at.chunk - s.first) * f.P * f.N;
}
KR_DEV factor channels_by_states(const kr_ssd_params &f, const kr_ssd_slice &s, const chunk_place &at) {
  return factor{state_tile(f, s, at), (int64_t)at.p0 * f.N + at.n0, f.N, 1, KRAIT_F32, f.N % 4 == 0, f.P - at.p0,
                f.N - at.n0};
}
KR_DEV factor states_by_channels(const kr_ssd_params &f, const kr_ssd_slice &s, const chunk_place &at) {
  return factor{state_tile(f, s, at), (int64_t)at.p0 * f.N + at.n0, 1, f.N, KRAIT_F32, f.N % 4 == 0, f.N - at.n0,
                f.P - at.p0};
}

KR_DEV float *products_at(const kr_ssd_params &p, const chunk_place &at) {
  return p.products + (((int64_t)at.b * ((p.L + Q - 1) / Q) + at.chunk) * (p.H / p.heads) + at.g) * Q * Q;
}

/* Of C B^T what passes from token `from` to token `to`; SIZES: with `from`'s step size. */
template <int SIZES>
KR_DEV float passes(const kr_ssd_params &f, const chunk_steps &s, float product, int to, int from) {
  const float left = decay(s.a[from], s.from[from], s.a[to], s.from[to]), all = SIZES ? left * s.d[from] : left;
  return from <= (to | f.last_rank) && (!f.seq_idx || s.segment[to] == s.segment[from]) ? product * all : 0.0f;
}

/* Elements of C B^T, whose rows are those that they pass to, or (by_earlier) from. */
template <int SIZES>
struct by_later {
  const kr_ssd_params &f;
  const chunk_steps &steps;
};
struct by_earlier {
  const kr_ssd_params &f;
  const chunk_steps &steps;
};
template <int SIZES>
KR_DEV float weigh(const by_later<SIZES> &w, float v, int to, int from) {
  return passes<SIZES>(w.f, w.steps, v, to, from);
}
KR_DEV float weigh(const by_earlier &w, float v, int from, int to) { return passes<0>(w.f, w.steps, v, to, from); }

KR_DEV void load_steps_of(chunk_steps &to, const kr_ssd_params &f, const chunk_place &at) {
  const chunk_steps &from = *steps_at(f, at.b, at.h, at.chunk);
  const int i = kr_thread();
  to.a[i] = from.a[i], to.from[i] = from.from[i], to.d[i] = from.d[i], to.segment[i] = from.segment[i];
  if (i == 0) to.total = from.total, to.last = from.last, to.pad[0] = from.pad[0];
  kr_sync();
}

/* Four neighbouring elements of which `left` exist. */
KR_DEV void read_four(const kr_ssd_tensor &v, int64_t at, int left, float (&e)[4]) {
  if (v.packs && left >= 4 && v.dtype == KRAIT_F32) {
    const kr_float4 four = *(const kr_float4 *)((const float *)v.data + at);
#pragma unroll
    for (int i = 0; i < 4; i++) e[i] = four.v[i];
    return;
  }
  const uint64_t halves = v.packs && left >= 4 ? *(const uint64_t *)((const uint16_t *)v.data + at) : 0;
#pragma unroll
  for (int i = 0; i < 4; i++)
    e[i] = v.packs && left >= 4 ? kr_unpack((uint32_t)(halves >> i / 2 * 32), i % 2, v.dtype)
           : i < left           ? kr_load(v.data, at + i * v.n, v.dtype)
                                : 0.0f;
}
KR_DEV void write_four(const kr_ssd_tensor &v, int64_t at, int left, const float (&e)[4]) {
  if (v.packs && left >= 4 && v.dtype == KRAIT_F32) {
    *(kr_float4 *)((float *)v.data + at) = kr_float4{{e[0], e[1], e[2], e[3]}};
  } else if (v.packs && left >= 4) {
    *(uint64_t *)((uint16_t *)v.data + at) =
        (uint64_t)kr_pack(e[2], e[3], v.dtype) << 32 | kr_pack(e[0], e[1], v.dtype);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < left) kr_store(v.data, at + i * v.n, v.dtype, e[i]);
  }
}

/* Whether a result is NaN or infinite. */
KR_DEV int is_spoilt(const float (&d)[8][8]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < 64; i++) zero = kr_fma(d[i / 8][i % 8], 0.0f, zero);
  return !(zero == 0);
}

/* Output of a chunk's tokens in 64 channels, before D and the gate: from the state before the chunk, from its own
 * tokens. */
KR_DEV void add_state_output(float (&y)[8][8], float *stages, const kr_ssd_params &f, const kr_ssd_slice &s,
                             const chunk_place &at, const chunk_steps &steps) {
  const tile_place me = own_place();
  multiply_tile<ALONG_TERMS, ALONG_TERMS>(y, stages, tokens_by_columns(f.Cmat, at, at.g, 0, f.N), as_stored{},
                                          channels_by_states(f, s, at), as_stored{}, f.N);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float reaches = state_reaches(steps, result_at(me.y, i));
#pragma unroll
    for (int j = 0; j < 8; j++) y[i][j] *= reaches;
  }
}
KR_DEV void add_own_output(float (&y)[8][8], float *stages, const kr_ssd_params &f, const chunk_place &at,
                           const chunk_steps &steps) {
  const factor products = {products_at(f, at), 0, Q, 1, KRAIT_F32, 1, Q, Q};
  multiply_tile<ALONG_TERMS, ALONG_ROWS>(y, stages, products, by_later<1>{f, steps},
                                         columns_by_tokens(f.x, at, at.h, at.p0, f.P), as_stored{}, at.n);
}

/* D of a thread's channels. */
KR_DEV void read_D(const kr_ssd_params &f, const chunk_place &at, float (&D)[8]) {
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const int c = at.p0 + result_at(own_place().x, j);
    D[j] = f.D.data && c < f.P ? kr_load(f.D.data, at.h * f.D.h + c * f.D.n, f.D.dtype) : 0.0f;
  }
}

KR_DEV int64_t element_at(const kr_ssd_tensor &v, const chunk_place &at, int row, int column) {
  return at.b * v.b + (at.t0 + row) * v.t + at.h * v.h + column * v.n;
}

/* ---- shared kernels ---------------------------------------------------------------------------------------------- */

/* C B^T of a chunk and group. */
KR_DEV void leave_products(const kr_ssd_params &f, float *stages) {
  const chunk_place at = place_in(f, kr_block_x(), kr_block_y() * f.heads, 0, 0);
  const tile_place me = own_place();
  float d[8][8];
  clear(d);
  multiply_tile<ALONG_TERMS, ALONG_TERMS>(d, stages, tokens_by_columns(f.Cmat, at, at.g, 0, f.N), as_stored{},
                                          tokens_by_columns(f.Bmat, at, at.g, 0, f.N), as_stored{}, f.N);
  float *const to = products_at(f, at);
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      *(kr_float4 *)(to + result_at(me.y, i) * Q + 32 * h + 4 * me.x) =
          kr_float4{{d[i][4 * h], d[i][4 * h + 1], d[i][4 * h + 2], d[i][4 * h + 3]}};
}

/* What a chunk's tokens add to the state after it or (BACK) to the gradient of the state before it. rows: x or dy. A
 * block per 64 channels by 64 states of a chunk (`block` of them), head (y) and sequence (z). */
template <int BACK>
KR_DEV void leave_additions(const kr_ssd_params &f, const kr_ssd_slice &s, int block, const kr_ssd_tensor &rows,
                            const kr_ssd_tensor &matrix, float *stages, float *weights) {
  const int n_blocks = (f.N + TILE - 1) / TILE, unit = block / n_blocks, chunk = unit / f.blocks_per_head;
  const chunk_place at =
      place_in(f, s.first + chunk, kr_block_y(), unit - chunk * f.blocks_per_head, block - unit * n_blocks);
  const tile_place me = own_place();
  const chunk_steps &steps = *steps_at(f, at.b, at.h, at.chunk);
  const int t = kr_thread();
  float d[8][8];
  weights[t] = BACK ? state_reaches(steps, t) : input_left(steps, f.seq_idx != 0, t);
  clear(d);
  multiply_tile<ALONG_ROWS, ALONG_ROWS>(d, stages, columns_by_tokens(rows, at, at.h, at.p0, f.P), by_term{weights},
                                        columns_by_tokens(matrix, at, at.g, at.n0, f.N), as_stored{}, at.n);
  float *const to = state_tile(f, s, at) + (int64_t)at.p0 * f.N + at.n0;
#pragma unroll
  for (int i = 0; i < 8; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int p = result_at(me.y, i), n = result_at(me.x, j);
      if (at.p0 + p < f.P && at.n0 + n < f.N) to[(int64_t)p * f.N + n] = d[i][j];
    }
}

/* Passes a head's state over the slice's chunks: what its tokens add becomes the state before each chunk or (BACK) the
 * gradient of the state after it. A thread has one element of the state. Returns whether one was not finite. */
template <int BACK>
KR_DEV int pass_states(const kr_ssd_params &f, const kr_ssd_slice &s, int block, const kr_ssd_tensor &begin,
                       const kr_ssd_tensor &end) {
  enum { AHEAD = 8 }; /* chunks whose additions are read at once */
  const int size = f.P * f.N, i = block * KR_SSD_THREADS + kr_thread(), h = kr_block_y(), b = kr_block_z(),
            p = i / f.N, n = i - p * f.N, n_chunks = (int)((f.L + Q - 1) / Q);
  if (i >= size) return 0;
  const int64_t head = (int64_t)b * f.H + h;
  float *const states = s.states + head * s.n * size + i;
  const int at_begin = BACK ? s.first + s.n >= n_chunks : s.first == 0,
            at_end = BACK ? s.first == 0 : s.first + s.n >= n_chunks,
            here = n_chunks - s.first < s.n ? n_chunks - s.first : s.n;
  int spoilt = 0;
  float v = 0.0f;
  if (!at_begin) v = s.carried[head * size + i];
  else if (begin.data) v = kr_load(begin.data, b * begin.b + h * begin.h + p * begin.t + n * begin.n, begin.dtype);
#pragma unroll 1
  for (int first = 0; first < here; first += AHEAD) {
    float added[AHEAD], keeps[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int chunk = BACK ? here - 1 - first - k : first + k, exists = first + k < here;
      added[k] = exists ? states[(int64_t)chunk * size] : 0.0f;
      keeps[k] = exists ? state_left(*steps_at(f, b, h, s.first + chunk)) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      if (first + k >= here) break;
      states[(int64_t)(BACK ? here - 1 - first - k : first + k) * size] = v;
      if (keeps[k] == 0) spoilt |= !(v * 0.0f == 0); /* not even NaN crosses sequences */
      v = keeps[k] == 0 ? added[k] : kr_fma(v, keeps[k], added[k]);
    }
  }
  if (!at_end) s.carried[head * size + i] = v;
  else if (end.data) kr_store(end.data, b * end.b + h * end.h + p * end.t + n * end.n, end.dtype, v);
  return spoilt || !(v * 0.0f == 0);
}

#endif
