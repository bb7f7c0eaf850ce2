/* mamba_decode.cu: a token's way through all layers as one launch of as many blocks as there are multiprocessors. Between two products all blocks wait for each other; weights do
 * not depend on what is computed, so every lane keeps KR_DEPTH runs of them on their way into its own part of shared memory, across products, waits and layers:
 * memory is never idle. A block makes some rows of each product, its warps share the inputs (32 at a time, 16 rows), sums go through shared memory in the order of warps.
 * The same kernel runs a range of phases: where a device cannot hold all blocks at once, each phase is a launch. */
#include "mamba_decode_plan.h"
#include "mma.cuh"

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif
enum { WARPS = KR_DECODE_WARPS, THREADS = KR_DECODE_THREADS, TOKENS = KR_DECODE_MOST_TOKENS, STEP = 32, TILE = 16, MOST_TAPS = 4 };

#ifdef KR_EMULATE
KR_DEV void fetch_line(const void *from) { (void)from; }
KR_DEV void arrive(int32_t *at) { ++*at; }
#else
KR_DEV void fetch_line(const void *from) { asm volatile("prefetch.global.L2 [%0];" : : "l"(from)); }
/* What the block wrote before it is seen by who waits for the count. */
KR_DEV void arrive(int32_t *at) { asm volatile("red.release.gpu.global.add.s32 [%0], 1;" : : "l"(at) : "memory"); }
#endif

KR_DEV float from_half(uint16_t h) { return DTYPE == KRAIT_F16 ? kr_from_f16(h) : kr_from_bf16(h); }
KR_DEV uint16_t to_half(float v) { return DTYPE == KRAIT_F16 ? kr_to_f16(v) : kr_to_bf16(v); }

/* ---- what belongs to a block ---------------------------------------------------------------------------------------------- */

typedef struct range {
  int from, n;
} range;
KR_DEV range part_of(int n) {
  const int blocks = kr_grid_x(), from = n * kr_block_x() / blocks;
  return range{from, n * (kr_block_x() + 1) / blocks - from};
}

typedef struct shares {
  const kr_decode_matrix *matrices; /* by kinds of phases */
  range channels, columns, width;   /* of the inner width; of x_proj's rows, or of in_proj's rows behind z and x; of the model's width */
} shares;

KR_DEV int kind_of(const kr_decode_plan &p, int phase) {
  const int k = p.is_second ? phase % 3 : phase % 4;
  return p.is_second && k ? k + 1 : k;
}
KR_DEV int layer_of(const kr_decode_plan &p, int phase) { return p.is_second ? phase / 3 : phase / 4; }

/* Of a phase's product: rows of this block, inputs. */
KR_DEV int rows_of(const kr_decode_plan &p, const shares &s, int kind) {
  if (kind == KR_DECODE_IN) return 2 * s.channels.n + (p.is_second ? s.columns.n : 0);
  if (kind == KR_DECODE_COLUMNS) return s.columns.n;
  if (kind == KR_DECODE_SCAN) return p.is_second ? 0 : s.channels.n;
  return s.width.n;
}
KR_DEV int inputs_of(const kr_decode_plan &p, int kind) {
  return kind == KR_DECODE_IN ? p.width : kind == KR_DECODE_SCAN ? p.R : p.inner;
}
/* Where row r of the block lies in the weight: the channels' x and z (of Mamba-2 z and x) follow each other. */
KR_DEV int row_at(const kr_decode_plan &p, const shares &s, int kind, int r) {
  if (kind == KR_DECODE_COLUMNS) return s.columns.from + r;
  if (kind == KR_DECODE_SCAN) return s.channels.from + r;
  if (kind == KR_DECODE_OUT) return s.width.from + r;
  const int n = s.channels.n;
  return r < n ? s.channels.from + r : r < 2 * n ? p.inner + s.channels.from + r - n : 2 * p.inner + s.columns.from + r - 2 * n;
}

/* ---- weights on their way -------------------------------------------------------------------------------------------------- */

typedef struct cursor {
  const uint16_t *low, *high; /* this lane's part of rows g and g + 8 of the tile; NULL: there is no such row */
  int phase, tile, step, n_tiles, n_steps, K;
} cursor;

KR_DEV void set_rows(cursor &c, const kr_decode_plan &p, const shares &s) {
  const int kind = kind_of(p, c.phase), lane = kr_thread() & 31, g = c.tile * TILE + lane / 4, n = rows_of(p, s, kind);
  const kr_decode_matrix m = s.matrices[kind];
  const uint16_t *base = m.data + layer_of(p, c.phase) * m.layer + 8 * (lane % 4);
  c.low = g < n ? base + row_at(p, s, kind, g) * m.row : nullptr;
  c.high = g + 8 < n ? base + row_at(p, s, kind, g + 8) * m.row : nullptr;
}

/* The first unit from c.phase on, of its first tile. */
KR_DEV void find_product(cursor &c, const kr_decode_plan &p, const shares &s) {
  const int warp = kr_thread() / 32;
  for (; c.phase < p.phase_to; c.phase++) {
    const int kind = kind_of(p, c.phase);
    c.K = inputs_of(p, kind), c.n_steps = (c.K + STEP - 1) / STEP, c.n_tiles = (rows_of(p, s, kind) + TILE - 1) / TILE;
    c.tile = 0, c.step = warp;
    if (c.n_tiles > 0 && warp < c.n_steps) return set_rows(c, p, s);
  }
}

KR_DEV void advance(cursor &c, const kr_decode_plan &p, const shares &s) {
  c.step += WARPS;
  if (c.step < c.n_steps) return;
  c.step = kr_thread() / 32;
  if (++c.tile < c.n_tiles) return set_rows(c, p, s);
  c.phase++;
  find_product(c, p, s);
}

/* A unit: 32 inputs of 16 rows, 16 bytes a lane of the upper and of the lower eight. */
KR_DEV void fetch(cursor &c, const kr_decode_plan &p, const shares &s, unsigned char *slot) {
  if (c.phase < p.phase_to) {
    const int k = c.step * STEP, inside = k + 8 * (kr_thread() & 3) < c.K;
    kr_copy_or_zero<16>(slot, c.low + k, inside && c.low);
    kr_copy_or_zero<16>(slot + 512, c.high + k, inside && c.high);
    advance(c, p, s);
  }
  kr_commit_copies();
}

KR_DEV void ask_for(const void *from, int64_t bytes) {
  for (int64_t i = (int64_t)kr_thread() * 128; i < bytes; i += THREADS * 128) fetch_line((const unsigned char *)from + i);
}

/* ---- the block's memory ---------------------------------------------------------------------------------------------------- */

typedef struct memory {
  unsigned char *ring; /* of this lane */
  unsigned char *act;  /* [token][act_pitch]: a product's inputs */
  float *sums;         /* [2][warp][row of a tile][token] */
  float *results;      /* [row][token] */
  float *few;          /* [WARPS], then [token][n_columns] */
} memory;

typedef struct block {
  shares s;
  memory m;
  cursor c;
  int next; /* the unit to be used, modulo KR_DEPTH */
} block;

/* ---- products -------------------------------------------------------------------------------------------------------------- */

KR_DEV kr_raw16 inputs_at(const kr_decode_plan &p, const memory &m, int k, int K) {
  const int token = (kr_thread() & 31) / 4;
  if (token < p.n_tokens && k < K) return *(const kr_raw16 *)(m.act + token * p.act_pitch + 2 * k);
  return kr_raw16{{0, 0, 0, 0}};
}

template <int DEPTH>
KR_DEV void multiply(block &b, const kr_decode_plan &p, int step, int K, float (&d)[4]) {
  unsigned char *slot = b.m.ring + b.next * KR_DECODE_UNIT_BYTES;
  kr_copied<DEPTH - 1>();
  const kr_raw16 low = *(const kr_raw16 *)slot, high = *(const kr_raw16 *)(slot + 512), x = inputs_at(p, b.m, step * STEP + 8 * (kr_thread() & 3), K);
#pragma unroll
  for (int pair = 0; pair < 4; pair += 2) {
    const uint32_t a[4] = {low.w[pair], high.w[pair], low.w[pair + 1], high.w[pair + 1]};
    kr_mma_as(element(), d, a, x.w[pair], x.w[pair + 1]);
  }
  fetch(b.c, p, b.s, slot);
  b.next = b.next + 1 == DEPTH ? 0 : b.next + 1;
}

/* results = the block's rows of the phase's weight times act. */
template <int DEPTH>
KR_DEV void product(block &b, const kr_decode_plan &p, int kind) {
  const int warp = kr_thread() / 32, g = (kr_thread() & 31) / 4, q = kr_thread() & 3, B = p.n_tokens, K = inputs_of(p, kind), n_steps = (K + STEP - 1) / STEP;
  const int n_tiles = (rows_of(p, b.s, kind) + TILE - 1) / TILE, n_warps = n_steps < WARPS ? n_steps : WARPS;
  for (int tile = 0; tile < n_tiles; tile++) {
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float *sums = b.m.sums + (tile & 1) * WARPS * TILE * B;
    for (int step = warp; step < n_steps; step += WARPS) multiply<DEPTH>(b, p, step, K, d);
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (warp < n_warps && 2 * q + i % 2 < B) sums[(warp * TILE + g + i / 2 * 8) * B + 2 * q + i % 2] = d[i];
    kr_sync();
    if (kr_thread() < TILE * B) {
      float sum = 0.0f;
      for (int w = 0; w < n_warps; w++) sum += sums[w * TILE * B + kr_thread()];
      b.m.results[tile * TILE * B + kr_thread()] = sum;
    }
  }
  kr_sync();
}

/* ---- inputs of products ---------------------------------------------------------------------------------------------------- */

typedef struct __attribute__((aligned(8))) four_halves {
  uint32_t w[2];
} four_halves;

KR_DEV void unpack_four(const uint16_t *from, float (&v)[4]) {
  const four_halves h = *(const four_halves *)from;
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = kr_unpack(h.w[i / 2], i % 2, DTYPE);
}

/* Four elements of a row of floats, or of halves. */
KR_DEV void read_four(const float *floats, const uint16_t *halves, int at, float (&v)[4]) {
  if (floats) {
    const kr_float4 f = *(const kr_float4 *)(floats + at);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = f.v[i];
    return;
  }
  unpack_four(halves + at, v);
}

typedef struct rows {
  const float *floats;
  const uint16_t *halves; /* where floats are NULL */
  int64_t stride;
} rows;

/* act = norm(row) w for every token: the block's warps are dealt to the tokens, the sums of squares of a token's warps go through shared memory. */
KR_DEV void load_normed(const kr_decode_plan &p, const memory &m, const rows &from, int n, const uint16_t *w, float eps) {
  int per_token = WARPS, tokens = 1;
  while (tokens < p.n_tokens) per_token /= 2, tokens *= 2;
  const int warp = kr_thread() / 32, token = warp / per_token, first = 4 * (kr_thread() - token * per_token * 32), stride = 4 * per_token * 32;
  const int64_t row = (token < p.n_tokens ? token : 0) * from.stride;
  const float *floats = from.floats ? from.floats + row : nullptr;
  const uint16_t *halves = from.halves + (from.floats ? 0 : row);
  float square = 0.0f, v[4];
  for (int i = first; i < n; i += stride) {
    read_four(floats, halves, i, v);
#pragma unroll
    for (int k = 0; k < 4; k++) square = kr_fma(v[k], v[k], square);
  }
  for (int lane = 1; lane < 32; lane <<= 1) square += kr_shuffle_xor(square, lane);
  if ((kr_thread() & 31) == 0) m.few[warp] = square;
  kr_sync();
  if (token >= p.n_tokens) return;
  square = 0.0f;
  for (int k = 0; k < per_token; k++) square += m.few[token * per_token + k];
  const float scale = kr_rsqrt(square / (float)n + eps);
  for (int i = first; i < n; i += stride) {
    float times[4];
    read_four(floats, halves, i, v);
    unpack_four(w + i, times);
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] *= scale * times[k];
    *(four_halves *)(m.act + token * p.act_pitch + 2 * i) = four_halves{{kr_pack(v[0], v[1], DTYPE), kr_pack(v[2], v[3], DTYPE)}};
  }
}

/* act = the n inputs of every token as they are. */
KR_DEV void load_halves(const kr_decode_plan &p, const memory &m, const uint16_t *from, int n) {
  for (int token = 0; token < p.n_tokens; token++)
    for (int i = 8 * kr_thread(); i < n; i += 8 * THREADS) *(kr_raw16 *)(m.act + token * p.act_pitch + 2 * i) = *(const kr_raw16 *)(from + token * n + i);
}
/* The first R columns of Mamba's x_proj. */
KR_DEV void load_ranks(const kr_decode_plan &p, const memory &m) {
  for (int i = kr_thread(); i < p.n_tokens * p.R; i += THREADS) {
    const int token = i / p.R, k = i - token * p.R;
    ((uint16_t *)(m.act + token * p.act_pitch))[k] = to_half(p.columns[token * p.n_columns + k]);
  }
}

KR_DEV void load_inputs(const kr_decode_plan &p, const memory &m, int kind, int layer) {
  if (kind == KR_DECODE_IN) {
    const rows from = layer ? rows{p.out, nullptr, p.out_row} : rows{nullptr, p.x, p.x_row};
    load_normed(p, m, from, p.width, p.norm.data + layer * p.norm.layer, p.eps);
  } else if (kind == KR_DECODE_COLUMNS) {
    load_halves(p, m, p.u, p.inner);
  } else if (kind == KR_DECODE_SCAN) {
    float *to = m.few + WARPS;
    for (int i = kr_thread(); i < p.n_tokens * p.n_columns; i += THREADS) to[i] = p.columns[i];
    if (!p.is_second) load_ranks(p, m);
  } else if (p.is_second) {
    load_normed(p, m, rows{p.y, nullptr, p.inner}, p.inner, p.gate_norm.data + layer * p.gate_norm.layer, 1e-5f);
  } else {
    load_halves(p, m, (const uint16_t *)p.y, p.inner);
  }
  kr_sync();
}

/* ---- what is done with results --------------------------------------------------------------------------------------------- */

/* Place of a token's states; -1: it has none. */
KR_DEV int slot_of(const kr_decode_plan &p, int token) {
  const int slot = p.slots ? p.slots[token * p.slots_stride] : token;
  return slot < p.n_slots ? slot : -1;
}

KR_DEV float state_get(const kr_decode_state &s, int64_t at) { return s.is_float ? ((const float *)s.data)[at] : from_half(((const uint16_t *)s.data)[at]); }
KR_DEV void state_put(const kr_decode_state &s, int64_t at, float v) {
  if (s.is_float) ((float *)s.data)[at] = v;
  else ((uint16_t *)s.data)[at] = to_half(v);
}

/* silu(conv) of channel c, and its inputs moved on. */
KR_DEV float convolve(const kr_decode_plan &p, int layer, int slot, int c, float newest) {
  const uint16_t *taps = p.conv.data + layer * p.conv.layer + c * p.conv.row;
  const int64_t at = layer * p.conv_state.layer + slot * p.conv_state.slot + c * p.conv_state.channel;
  const int S = p.W - 1;
  float window[MOST_TAPS - 1], tap[MOST_TAPS - 1], sum = p.conv_bias.data ? from_half(p.conv_bias.data[layer * p.conv_bias.layer + c * p.conv_bias.row]) : 0.0f;
  if (slot < 0) return 0.0f;
#pragma unroll
  for (int k = 0; k < MOST_TAPS - 1; k++) window[k] = k < S ? state_get(p.conv_state, at + k) : 0.0f, tap[k] = k < S ? from_half(taps[k]) : 0.0f;
  const float last = from_half(taps[S]);
#pragma unroll
  for (int k = 0; k < MOST_TAPS - 1; k++) {
    sum = kr_fma(window[k], tap[k], sum);
    if (k > 0 && k < S) state_put(p.conv_state, at + k - 1, window[k]);
  }
  state_put(p.conv_state, at + S - 1, newest);
  return kr_silu(kr_fma(newest, last, sum));
}

KR_DEV void finish_in(const kr_decode_plan &p, const block &b, int layer) {
  const int B = p.n_tokens, n = b.s.channels.n, of_x = p.is_second ? n : 0, n_rest = p.is_second ? b.s.columns.n : 0, n_convolved = p.n_columns - p.H;
  for (int i = kr_thread(); i < (n + n_rest) * B; i += THREADS) {
    const int r = i / B, token = i - r * B, slot = slot_of(p, token);
    if (r < n) {
      const int64_t at = (int64_t)token * p.inner + b.s.channels.from + r;
      p.z[at] = b.m.results[(n - of_x + r) * B + token];
      p.u[at] = to_half(convolve(p, layer, slot, b.s.channels.from + r, b.m.results[(of_x + r) * B + token]));
    } else {
      const int column = b.s.columns.from + r - n;
      const float v = b.m.results[(n + r) * B + token];
      p.columns[token * p.n_columns + column] = column < n_convolved ? convolve(p, layer, slot, p.inner + column, v) : v;
    }
  }
}

KR_DEV void finish_columns(const kr_decode_plan &p, const block &b) {
  const int B = p.n_tokens;
  for (int i = kr_thread(); i < b.s.columns.n * B; i += THREADS) {
    const int r = i / B, token = i - r * B;
    p.columns[token * p.n_columns + b.s.columns.from + r] = b.m.results[i];
  }
}

KR_DEV void read_states(const kr_decode_state &s, int64_t at, float (&v)[4]) {
  if (s.is_float) {
    const kr_float4 f = *(const kr_float4 *)((const float *)s.data + at);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = f.v[i];
    return;
  }
  unpack_four((const uint16_t *)s.data + at, v);
}
KR_DEV void write_states(const kr_decode_state &s, int64_t at, const float (&v)[4]) {
  if (s.is_float) *(kr_float4 *)((float *)s.data + at) = kr_float4{{v[0], v[1], v[2], v[3]}};
  else *(four_halves *)((uint16_t *)s.data + at) = four_halves{{kr_pack(v[0], v[1], DTYPE), kr_pack(v[2], v[3], DTYPE)}};
}

/* Four states a lane; N / 4 lanes, a power of two up to a warp, share a channel. */
KR_DEV void scan(const kr_decode_plan &p, const block &b, int layer) {
  const int lanes = p.N / 4, B = p.n_tokens, n = b.s.channels.n * B * lanes, quad = (kr_thread() & (lanes - 1)) * 4, n_convolved = p.n_columns - p.H, P = p.inner / p.H;
  for (int i = kr_thread(); i - (kr_thread() & 31) < n; i += THREADS) {
    const int unit = i < n ? i / lanes : 0, r = unit / B, token = unit - r * B, e = b.s.channels.from + r, slot = slot_of(p, token), h = p.is_second ? e / P : e;
    const float *columns = b.m.few + WARPS + token * p.n_columns, *states_B = columns + (p.is_second ? 0 : p.R) + quad, *states_C = states_B + p.N;
    const int64_t at = layer * p.ssm_state.layer + slot * p.ssm_state.slot + e * p.ssm_state.channel + quad, place = (int64_t)token * p.inner + e;
    const int live = i < n && slot >= 0;
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f}, A[4], y = 0.0f;
    if (live) read_states(p.ssm_state, at, s);
    if (p.is_second) A[0] = A[1] = A[2] = A[3] = p.A.data[layer * p.A.layer + h];
    else read_four(p.A.data + layer * p.A.layer + e * p.A.row, nullptr, quad, A);
    const float raw = p.is_second ? columns[n_convolved + h] : b.m.results[unit], D = p.D.data[layer * p.D.layer + h * p.D.row], z = p.z[place], x = from_half(p.u[place]);
    const float dt = kr_softplus(raw + p.dt_bias.data[layer * p.dt_bias.layer + h * p.dt_bias.row]);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      s[k] = kr_fma(kr_exp(dt * A[k]), s[k], dt * x * states_B[k]);
      y = kr_fma(states_C[k], s[k], y);
    }
    if (live) write_states(p.ssm_state, at, s);
    for (int lane = 1; lane < lanes; lane <<= 1) y += kr_shuffle_xor(y, lane);
    y = kr_fma(D, x, y) * kr_silu(z);
    if (i >= n || quad) continue;
    if (p.is_second) p.y[place] = y;
    else ((uint16_t *)p.y)[place] = to_half(y);
  }
}

KR_DEV void finish_out(const kr_decode_plan &p, const block &b, int layer) {
  const int B = p.n_tokens;
  for (int i = kr_thread(); i < b.s.width.n * B; i += THREADS) {
    const int r = i / B, token = i - r * B, d = b.s.width.from + r;
    float *to = p.out + token * p.out_row + d;
    const float h = layer ? *to : from_half(p.x[token * p.x_row + d]);
    *to = slot_of(p, token) < 0 ? h : h + b.m.results[i];
  }
}

/* ---- phases ---------------------------------------------------------------------------------------------------------------- */

/* What the layer reads of this block's channels beside weights of products: into the L2 cache, while it waits. */
KR_DEV void ask_for_layer(const kr_decode_plan &p, const shares &s, int layer) {
  const int64_t e = s.channels.from, n = s.channels.n, state = p.ssm_state.is_float ? 4 : 2, conv_state = p.conv_state.is_float ? 4 : 2;
  ask_for(p.norm.data + layer * p.norm.layer, 2 * p.width);
  ask_for(p.conv.data + layer * p.conv.layer + e * p.conv.row, 2 * n * p.conv.row);
  if (p.is_second) ask_for(p.gate_norm.data + layer * p.gate_norm.layer, 2 * p.inner);
  else ask_for(p.A.data + layer * p.A.layer + e * p.A.row, 4 * n * p.A.row);
  for (int token = 0; token < p.n_tokens; token++) {
    const int slot = slot_of(p, token);
    if (slot < 0) continue;
    ask_for((const char *)p.ssm_state.data + state * (layer * p.ssm_state.layer + slot * p.ssm_state.slot + e * p.ssm_state.channel), state * n * p.ssm_state.channel);
    ask_for((const char *)p.conv_state.data + conv_state * (layer * p.conv_state.layer + slot * p.conv_state.slot + e * p.conv_state.channel), conv_state * n * p.conv_state.channel);
  }
}

template <int DEPTH>
KR_DEV void run(const kr_decode_plan &p) {
  KR_DYNAMIC_SHARED(shared);
  KR_SHARED kr_decode_matrix every_matrix[WARPS][4]; /* a choice of parameters by number would be a copy of all in slow memory */
  kr_decode_matrix *matrices = every_matrix[kr_thread() / 32];
  block b;
  if ((kr_thread() & 31) == 0) matrices[KR_DECODE_IN] = p.in_proj, matrices[KR_DECODE_COLUMNS] = p.x_proj, matrices[KR_DECODE_SCAN] = p.dt_proj, matrices[KR_DECODE_OUT] = p.out_proj;
  kr_sync_warp();
  b.s = shares{matrices, part_of(p.inner), part_of(p.n_columns), part_of(p.width)};
  unsigned char *at = shared;
  b.m.ring = at + (kr_thread() / 32) * DEPTH * KR_DECODE_UNIT_BYTES + (kr_thread() & 31) * 16, at += WARPS * DEPTH * KR_DECODE_UNIT_BYTES;
  b.m.act = at, at += p.act_bytes;
  b.m.sums = (float *)at, at += 2 * WARPS * TILE * p.n_tokens * 4;
  b.m.results = (float *)at, at += p.result_rows * p.n_tokens * 4;
  b.m.few = (float *)at;
  b.c.phase = p.phase_from, b.next = 0;
  find_product(b.c, p, b.s);
  for (int i = 0; i < DEPTH; i++) fetch(b.c, p, b.s, b.m.ring + i * KR_DECODE_UNIT_BYTES);
  for (int phase = p.phase_from; phase < p.phase_to; phase++) {
    const int kind = kind_of(p, phase), layer = layer_of(p, phase);
    if (kind == KR_DECODE_IN || phase == p.phase_from) ask_for_layer(p, b.s, layer);
    if (phase > p.phase_from) {
      if (kr_thread() == 0) kr_await(p.arrived, (phase - p.phase_from) * kr_grid_x());
      kr_sync();
    }
    load_inputs(p, b.m, kind, layer);
    product<DEPTH>(b, p, kind);
    if (kind == KR_DECODE_IN) finish_in(p, b, layer);
    else if (kind == KR_DECODE_COLUMNS) finish_columns(p, b);
    else if (kind == KR_DECODE_SCAN) scan(p, b, layer);
    else finish_out(p, b, layer);
    kr_sync();
    if (kr_thread() == 0 && phase + 1 < p.phase_to) arrive(p.arrived);
  }
}

KR_KERNEL void KR_BOUNDS(KR_DECODE_THREADS, 1) kr_mamba_decode_12(const kr_decode_plan plan) { run<12>(plan); }
KR_KERNEL void KR_BOUNDS(KR_DECODE_THREADS, 1) kr_mamba_decode_6(const kr_decode_plan plan) { run<6>(plan); }
KR_KERNEL void KR_BOUNDS(KR_DECODE_THREADS, 1) kr_mamba_decode_3(const kr_decode_plan plan) { run<3>(plan); }
