/* mamba_decode.cu: one token through all layers in a single launch of one persistent block per multiprocessor. Between
 * products a block waits for the others' results; weights are independent of them, so every lane keeps DEPTH loads in
 * flight into its own part of shared memory, across products, waits and layers. A block computes some rows of each
 * product; its warps split K (64 bytes of 16 rows at a time), and partial sums are reduced through shared memory in
 * warp order. The same kernel runs a range of phases: where not all blocks can be co-resident, each phase is a
 * launch. */
#include "mamba_decode.cuh"

enum { WARPS = KR_DECODE_WARPS, THREADS = KR_DECODE_THREADS, STEP_BYTES = 64 /* of a row */, TILE = 16 };
enum { MESSENGER = THREADS - 32 /* the thread that signals other blocks and polls for them */ };
#define UNIT_BYTES(q8) (KR_DECODE_UNIT_BYTES + (q8) * KR_DECODE_SCALE_BYTES)

#ifdef KR_EMULATE
KR_DEV void fetch_line(const void *from) { (void)from; }
KR_DEV void arrive(int32_t *at) { ++*at; }
#else
/* Release: whoever observes the count sees the block's earlier writes. */
KR_DEV void arrive(int32_t *at) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" : : "l"(at) : "memory");
}
KR_DEV void fetch_line(const void *from) { asm volatile("prefetch.global.L2 [%0];" : : "l"(from)); }
#endif

/* ---- a block's share of the work --------------------------------------------------------------------------------- */

KR_DEV range part_of(int n) {
  const int blocks = kr_grid_x(), from = n * kr_block_x() / blocks;
  return range{from, n * (kr_block_x() + 1) / blocks - from};
}

typedef struct tile tile;
typedef struct shares {
  const tile *tiles; /* of a layer's products, in order */
  const int *firsts; /* first tile of each kind of phase, then the total */
  range channels, columns,
      width; /* of the inner width; of x_proj's rows, or of in_proj's rows behind z and x; of the model's width */
} shares;

KR_DEV int kind_of(const kr_decode_params &p, int phase) {
  const int k = p.is_second ? phase % 3 : phase % 4;
  return p.is_second && k ? k + 1 : k;
}
/* i / n_tokens; n_tokens is usually 1. */
KR_DEV int over_tokens(const kr_decode_params &p, int i) { return p.n_tokens == 1 ? i : i / p.n_tokens; }
KR_DEV int layer_of(const kr_decode_params &p, int phase) { return p.is_second ? phase / 3 : phase / 4; }

/* Rows of a phase's product that this block computes, and the product's number of inputs. */
KR_DEV int rows_of(const kr_decode_params &p, const shares &s, int kind) {
  if (kind == KR_DECODE_IN) return 2 * s.channels.n + (p.is_second ? s.columns.n : 0);
  if (kind == KR_DECODE_COLUMNS) return s.columns.n;
  if (kind == KR_DECODE_SCAN) return p.is_second ? 0 : s.channels.n;
  return s.width.n;
}
KR_DEV int inputs_of(const kr_decode_params &p, int kind) {
  return kind == KR_DECODE_IN ? p.width : kind == KR_DECODE_SCAN ? p.R : p.inner;
}
/* Row of the weight that is the block's row r: the channels' rows of x, then z (Mamba-2: z, then x). */
KR_DEV int row_at(const kr_decode_params &p, const shares &s, int kind, int r) {
  if (kind == KR_DECODE_COLUMNS) return s.columns.from + r;
  if (kind == KR_DECODE_SCAN) return s.channels.from + r;
  if (kind == KR_DECODE_OUT) return s.width.from + r;
  const int n = s.channels.n;
  return r < n       ? s.channels.from + r
         : r < 2 * n ? p.inner + s.channels.from + r - n
                     : 2 * p.inner + s.columns.from + r - 2 * n;
}

/* ---- weights in flight ------------------------------------------------------------------------------------------- */

typedef struct cursor {
  const unsigned char *low, *high; /* this lane's part of rows g and g + 8 of the tile; NULL: no such row */
  const uint16_t *low_scales, *high_scales;
  int layer, n_layers, at, step, n_steps, bytes; /* at: tile index; bytes: of a row's part */
} cursor;

/* The rows of a short tile are split along K into 2, 4 or 8 parts. Each part is a row of the left operand and, with the
 * matching part of the inputs, a column of the right one; only results where row part and column part match count.
 * Otherwise most loads in flight would be for missing rows. */
typedef struct cuts {
  int shift, bytes, n_steps; /* parts: 1 << shift; the others per part */
} cuts;
KR_DEV cuts cut_tile(const kr_decode_params &p, int n_rows, int bytes) {
  cuts c{0, bytes, 0};
  if ((p.n_tokens & (p.n_tokens - 1)) == 0)
    while (2 * n_rows << c.shift <= TILE && 2 * p.n_tokens << c.shift <= 8 && c.bytes % (2 * STEP_BYTES) == 0)
      c.shift++, c.bytes /= 2;
  c.n_steps = (c.bytes + STEP_BYTES - 1) / STEP_BYTES;
  return c;
}

/* Bytes per row of a phase's weight. */
template <int Q8>
KR_DEV int row_bytes(const kr_decode_params &p, int kind) {
  return inputs_of(p, kind) * (Q8 && kind != KR_DECODE_SCAN ? 1 : 2);
}

KR_DEV int least(int a, int b) { return a < b ? a : b; }

/* Tile descriptor, shared by all layers and precomputed: a chain of some hundred instructions at each change of tile
 * would dominate a phase's time. */
struct tile {
  const unsigned char *rows[TILE]; /* of the first layer; NULL: no such row */
  const uint16_t *scales[TILE];
  int64_t layer, scales_layer;
  cuts cut;
  int pad;
};
static_assert(sizeof(tile) == KR_DECODE_TILE_BYTES, "the host counts with other tiles");

/* Lane v of a warp writes row v of the descriptor. */
KR_DEV void write_tile(tile &t, const kr_decode_params &p, const shares &s, const kr_decode_matrix &m, int kind,
                       int first, int n, int bytes) {
  const int v = kr_thread() & 31;
  const cuts cut = cut_tile(p, least(n - first, TILE), bytes);
  if (v < TILE) {
    const int r = first + (v >> cut.shift), part = v & ((1 << cut.shift) - 1), row = row_at(p, s, kind, r),
              exists = r < n;
    t.rows[v] = exists ? m.data + row * m.row + part * cut.bytes : nullptr;
    t.scales[v] = exists && m.scales ? m.scales + row * m.scales_row + part * (cut.bytes / 32) : nullptr;
  }
  if (v == 0) t.layer = m.layer, t.scales_layer = m.scales_layer, t.cut = cut;
}

/* Descriptors for every kind of phase, or for the only phase launched; firsts: first tile of each kind. */
template <int Q8>
KR_DEV void write_tiles(tile *tiles, int *firsts, const kr_decode_params &p, const shares &s) {
  const int is_one = p.phase_to - p.phase_from == 1, warp = kr_thread() / 32;
  int at = 0;
#pragma unroll
  for (int kind = KR_DECODE_IN; kind <= KR_DECODE_OUT; kind++) {
    const int is_run = is_one ? kind == kind_of(p, p.phase_from) : !p.is_second || kind != KR_DECODE_COLUMNS,
              n = is_run ? rows_of(p, s, kind) : 0;
    const kr_decode_matrix m = kind == KR_DECODE_IN        ? p.in_proj
                               : kind == KR_DECODE_COLUMNS ? p.x_proj
                               : kind == KR_DECODE_SCAN    ? p.dt_proj
                                                           : p.out_proj;
    if (kr_thread() == 0) firsts[kind] = at;
    for (int first = 0; first < n; first += TILE, at++)
      if (at % WARPS == warp) write_tile(tiles[at], p, s, m, kind, first, n, row_bytes<Q8>(p, kind));
  }
  if (kr_thread() == 0) firsts[KR_DECODE_OUT + 1] = at;
}

/* Finds this warp's first unit at or after (c.layer, c.at). */
KR_DEV void find_unit(cursor &c, const shares &s) {
  const int n = s.firsts[KR_DECODE_OUT + 1], lane = kr_thread() & 31, g = lane / 4;
  c.step = kr_thread() / 32;
  for (; c.layer < c.n_layers; c.layer++, c.at = 0)
    for (; c.at < n; c.at++) {
      const tile &t = s.tiles[c.at];
      if (c.step >= t.cut.n_steps) continue;
      const int64_t data = c.layer * t.layer + 16 * (lane % 4), scales = c.layer * t.scales_layer;
      c.low = t.rows[g] ? t.rows[g] + data : nullptr;
      c.high = t.rows[g + 8] ? t.rows[g + 8] + data : nullptr;
      c.low_scales = t.scales[g] ? t.scales[g] + scales : nullptr;
      c.high_scales = t.scales[g + 8] ? t.scales[g + 8] + scales : nullptr;
      c.bytes = t.cut.bytes, c.n_steps = t.cut.n_steps;
      return;
    }
}

KR_DEV void advance(cursor &c, const shares &s) {
  c.step += WARPS;
  if (c.step < c.n_steps) return;
  c.at++;
  find_unit(c, s);
}

/* Fetches a unit: 64 bytes of 16 rows, per lane 16 bytes of an upper and of a lower row; for 8-bit weights also two
 * scales per row. */
template <int Q8>
KR_DEV void fetch(cursor &c, const shares &s, unsigned char *slot) {
  if (c.layer < c.n_layers) {
    const int k = c.step * STEP_BYTES, lane = kr_thread() & 31, inside = k + 16 * (lane & 3) < c.bytes;
    kr_copy_or_zero<16>(slot + 16 * lane, c.low + k, inside && c.low);
    kr_copy_or_zero<16>(slot + 512 + 16 * lane, c.high + k, inside && c.high);
    if (Q8 && c.low_scales) kr_copy4(slot + 1024 + 4 * lane, c.low_scales + 2 * c.step);
    if (Q8 && c.high_scales) kr_copy4(slot + 1152 + 4 * lane, c.high_scales + 2 * c.step);
    advance(c, s);
  }
  kr_commit_copies();
}

KR_DEV void ask_for(const void *from, int64_t bytes) {
  for (int64_t i = (int64_t)kr_thread() * 128; i < bytes; i += THREADS * 128)
    fetch_line((const unsigned char *)from + i);
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

typedef struct memory {
  unsigned char *ring; /* this warp's ring buffer */
  unsigned char *act;  /* [token][act_pitch]: a product's inputs */
  float *sums;         /* [2][warp][row of a tile][token] */
  float *results;      /* [row][token] */
  float *few;          /* [WARPS], then [token][n_columns] */
  kr_raw16 *kept;      /* [3][kept_units]: operands of a phase's first units other than results */
  int *slots;          /* state rows of the tokens; negative: none */
} memory;

typedef struct block {
  shares s;
  memory m;
  cursor c;
  int next; /* next unit to consume, modulo KR_DEPTH */
  unsigned char *owed; /* ring slot of a consumed unit not yet refilled, or NULL */
} block;

/* Refills the slot consumed last: before the next unit, or early in the next phase, before its wait. */
template <int Q8>
KR_DEV void refill(block &b) {
  if (b.owed) fetch<Q8>(b.c, b.s, b.owed);
  b.owed = nullptr;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* This lane's column of the right operand, from input k of its part of K inputs. */
KR_DEV kr_raw16 inputs_at(const kr_decode_params &p, const memory &m, int shift, int k, int K) {
  const int column = (kr_thread() & 31) / 4, token = column >> shift, part = column - (token << shift);
  if (token < p.n_tokens && k < K) return *(const kr_raw16 *)(m.act + token * p.act_pitch + 2 * (part * K + k));
  return kr_raw16{{0, 0, 0, 0}};
}

/* Bytes 2 half and 2 half + 1 of a word of signed bytes, scaled. */
KR_DEV uint32_t scaled_pair(uint32_t word, int half, uint16_t scale) {
#ifdef KR_EMULATE
  const float s = from_half(scale);
  return kr_pack((float)(int8_t)(word >> (16 * half)) * s, (float)(int8_t)(word >> (16 * half + 8)) * s, DTYPE);
#else
  uint32_t biased, pair, two; /* 1024 plus the byte biased by 128; then the byte */
  asm("prmt.b32 %0, %1, %2, %3;"
      : "=r"(biased)
      : "r"(word ^ 0x80808080u), "r"(0x64646464u), "r"(half ? 0x4342 : 0x4140));
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(biased), "r"(0x64806480u));
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(two) : "r"(pair), "r"((uint32_t)scale << 16 | scale));
  return two;
#endif
}

/* One unit of 8-bit weights: 16 inputs per lane. */
KR_DEV void multiply_bytes(const kr_decode_params &p, const memory &m, const unsigned char *slot, int step, int shift,
                           int K, float (&d)[4]) {
  const int lane = kr_thread() & 31, k = step * STEP_BYTES + 16 * (lane & 3), block = (lane & 3) / 2;
  const kr_raw16 low = *(const kr_raw16 *)(slot + 16 * lane), high = *(const kr_raw16 *)(slot + 512 + 16 * lane),
                 x[2] = {inputs_at(p, m, shift, k, K), inputs_at(p, m, shift, k + 8, K)};
  const uint16_t low_scale = (uint16_t)(*(const uint32_t *)(slot + 1024 + 4 * lane) >> (16 * block)),
                 high_scale = (uint16_t)(*(const uint32_t *)(slot + 1152 + 4 * lane) >> (16 * block));
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint32_t a[4] = {scaled_pair(low.w[i], 0, low_scale), scaled_pair(high.w[i], 0, high_scale),
                           scaled_pair(low.w[i], 1, low_scale), scaled_pair(high.w[i], 1, high_scale)};
    kr_mma_as(element(), d, a, x[i / 2].w[2 * (i % 2)], x[i / 2].w[2 * (i % 2) + 1]);
  }
}

KR_DEV void multiply_halves(const kr_decode_params &p, const memory &m, const unsigned char *slot, int step, int shift,
                            int K, float (&d)[4]) {
  const int lane = kr_thread() & 31;
  const kr_raw16 low = *(const kr_raw16 *)(slot + 16 * lane), high = *(const kr_raw16 *)(slot + 512 + 16 * lane),
                 x = inputs_at(p, m, shift, step * STEP_BYTES / 2 + 8 * (lane & 3), K);
#pragma unroll
  for (int pair = 0; pair < 4; pair += 2) {
    const uint32_t a[4] = {low.w[pair], high.w[pair], low.w[pair + 1], high.w[pair + 1]};
    kr_mma_as(element(), d, a, x.w[pair], x.w[pair + 1]);
  }
}

/* Reduces a tile's partial sums over warps and parts, in fixed order. */
KR_DEV void add_up(const block &b, const kr_decode_params &p, const float *sums, int tile, int shift) {
  const int B = p.n_tokens, i = kr_thread();
  if ((i & ~31) >= TILE * B) return;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += i < TILE * B ? sums[w * TILE * B + i] : 0.0f;
  for (int k = 0; k < shift; k++) sum += kr_shuffle_xor(sum, B << k);
  const int v = over_tokens(p, i), r = v >> shift;
  if (i < TILE * B && v == r << shift) b.m.results[(tile * TILE + r) * B + i - v * B] = sum;
}

/* results = the block's rows of the phase's weight times act. */
template <int DEPTH, int Q8>
KR_DEV void product(block &b, const kr_decode_params &p, int kind) {
  const int warp = kr_thread() / 32, g = (kr_thread() & 31) / 4, q = kr_thread() & 3, B = p.n_tokens,
            n = rows_of(p, b.s, kind), is_q8 = Q8 && kind != KR_DECODE_SCAN;
  for (int tile = 0; tile * TILE < n; tile++) {
    const cuts cut = b.s.tiles[b.s.firsts[kind] + tile].cut;
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float *sums = b.m.sums + (tile & 1) * WARPS * TILE * B;
    for (int step = warp; step < cut.n_steps; step += WARPS) {
      unsigned char *slot = b.m.ring + b.next * UNIT_BYTES(Q8);
      refill<Q8>(b);
      kr_copied<DEPTH - 1>();
      if (is_q8)
        multiply_bytes(p, b.m, slot, step, cut.shift, cut.bytes, d);
      else
        multiply_halves(p, b.m, slot, step, cut.shift, cut.bytes / 2, d);
      b.owed = slot;
      b.next = b.next + 1 == DEPTH ? 0 : b.next + 1;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int v = g + i / 2 * 8, column = 2 * q + i % 2, token = column >> cut.shift;
      if (token < B && ((v ^ column) & ((1 << cut.shift) - 1)) == 0) sums[(warp * TILE + v) * B + token] = d[i];
    }
    kr_sync();
    add_up(b, p, sums, tile, cut.shift);
  }
  kr_sync();
}

/* ---- loading inputs of products ---------------------------------------------------------------------------------- */

/* Four contiguous elements of a row of floats or of halves. */
KR_DEV void read_four(const float *floats, const uint16_t *halves, int at, float (&v)[4]) {
  if (!floats) return unpack_four(*(const four_halves *)(halves + at), v);
  const kr_float4 f = *(const kr_float4 *)(floats + at);
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = f.v[i];
}

enum { KEPT = 3 }; /* vectors of four features that a thread keeps in registers */

/* A thread's vectors of a normalised row: the block's warps are divided among the tokens. */
typedef struct dealt {
  int token, per_token, first, stride; /* per_token: warps per token */
} dealt;
KR_DEV dealt deal(const kr_decode_params &p) {
  int per_token = WARPS, tokens = 1;
  while (tokens < p.n_tokens) per_token /= 2, tokens *= 2;
  const int token = kr_thread() / 32 / per_token;
  return dealt{token, per_token, 4 * (kr_thread() - token * per_token * 32), 4 * per_token * 32};
}

typedef struct rows {
  const float *floats;
  const uint16_t *halves; /* used where floats is NULL */
  int64_t stride;
} rows;

KR_DEV void write_normed(unsigned char *act, int i, float scale, const float (&v)[4], const four_halves &w) {
  float times[4];
  unpack_four(w, times);
#pragma unroll
  for (int k = 0; k < 4; k++) times[k] *= scale * v[k];
  *(four_halves *)(act + 2 * i) = four_halves{{kr_pack(times[0], times[1], DTYPE), kr_pack(times[2], times[3], DTYPE)}};
}

/* act = norm(row) w for every token; sums of squares are reduced across a token's warps through shared memory. */
KR_DEV void load_normed(const kr_decode_params &p, const memory &m, const rows &from, int n, const uint16_t *w,
                        float eps) {
  const dealt at = deal(p);
  const int warp = kr_thread() / 32, exists = at.token < p.n_tokens;
  const int64_t row = (exists ? at.token : 0) * from.stride;
  const float *floats = from.floats ? from.floats + row : nullptr;
  const uint16_t *halves = from.floats ? nullptr : from.halves + row;
  float square = 0.0f, v[KEPT][4], more[4];
  four_halves kept[KEPT];
#pragma unroll
  for (int k = 0; k < KEPT; k++)
    if (at.first + k * at.stride < n)
      kept[k] = *(const four_halves *)(w + at.first + k * at.stride),
      read_four(floats, halves, at.first + k * at.stride, v[k]);
#pragma unroll
  for (int k = 0; k < KEPT; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) square = at.first + k * at.stride < n ? kr_fma(v[k][i], v[k][i], square) : square;
  for (int i = at.first + KEPT * at.stride; i < n; i += at.stride) {
    read_four(floats, halves, i, more);
#pragma unroll
    for (int k = 0; k < 4; k++) square = kr_fma(more[k], more[k], square);
  }
  for (int lane = 1; lane < 32; lane <<= 1) square += kr_shuffle_xor(square, lane);
  if ((kr_thread() & 31) == 0) m.few[warp] = square;
  kr_sync();
  if (!exists) return;
  square = 0.0f;
#pragma unroll
  for (int k = 0; k < WARPS; k++) square += k < at.per_token ? m.few[at.token * at.per_token + k] : 0.0f;
  const float scale = kr_rsqrt(square * kr_rcp((float)n) + eps);
  unsigned char *act = m.act + at.token * p.act_pitch;
#pragma unroll
  for (int k = 0; k < KEPT; k++)
    if (at.first + k * at.stride < n) write_normed(act, at.first + k * at.stride, scale, v[k], kept[k]);
  for (int i = at.first + KEPT * at.stride; i < n; i += at.stride) {
    read_four(floats, halves, i, more);
    write_normed(act, i, scale, more, *(const four_halves *)(w + i));
  }
}

/* act = the n inputs of every token, copied. */
KR_DEV void load_halves(const kr_decode_params &p, const memory &m, const uint16_t *from, int n) {
  for (int token = 0; token < p.n_tokens; token++)
    for (int i = 8 * kr_thread(); i < n; i += 16 * THREADS) {
      const int second = i + 8 * THREADS < n ? i + 8 * THREADS : i;
      const kr_raw16 raw[2] = {*(const kr_raw16 *)(from + token * n + i),
                               *(const kr_raw16 *)(from + token * n + second)};
      *(kr_raw16 *)(m.act + token * p.act_pitch + 2 * i) = raw[0];
      *(kr_raw16 *)(m.act + token * p.act_pitch + 2 * second) = raw[1];
    }
}

/* Columns for the scan; in Mamba the first R are the inputs of dt_proj. */
KR_DEV void load_columns(const kr_decode_params &p, const memory &m) {
  for (int token = 0; token < p.n_tokens; token++)
    for (int k = kr_thread(); k < p.n_columns; k += THREADS) {
      const float v = p.columns[token * p.n_columns + k];
      m.few[WARPS + token * p.n_columns + k] = v;
      if (!p.is_second && k < p.R) ((uint16_t *)(m.act + token * p.act_pitch))[k] = to_half(v);
    }
}

/* ---- epilogues --------------------------------------------------------------------------------------------------- */

/* A phase's first units have a thread each, which stages operands other than results in shared memory before waiting
 * for other blocks. */
KR_DEV void keep_floats(const kr_decode_params &p, const block &b, int k, int i, float x, float y, float z, float w) {
  *(kr_float4 *)(b.m.kept + k * p.kept_units + i) = kr_float4{{x, y, z, w}};
}
KR_DEV kr_float4 kept_floats(const kr_decode_params &p, const block &b, int k, int i) {
  return *(const kr_float4 *)(b.m.kept + k * p.kept_units + i);
}

/* Channel of IN's result r: one of the block's channels or columns; -1 for a dt column, which is not convolved. */
KR_DEV int channel_of(const kr_decode_params &p, const shares &s, int r) {
  if (r < s.channels.n) return s.channels.from + r;
  const int column = s.columns.from + r - s.channels.n;
  return column < p.n_columns - p.H ? p.inner + column : -1;
}
KR_DEV int units_of_in(const kr_decode_params &p, const shares &s) {
  return (s.channels.n + (p.is_second ? s.columns.n : 0)) * p.n_tokens;
}

KR_DEV void finish_unit(const kr_decode_params &p, const block &b, const taps &t, int i) {
  const int B = p.n_tokens, n = b.s.channels.n, of_x = p.is_second ? n : 0, r = over_tokens(p, i), token = i - r * B;
  if (r < n) {
    const int64_t at = (int64_t)token * p.inner + b.s.channels.from + r;
    p.z[at] = b.m.results[(n - of_x + r) * B + token];
    p.u[at] = to_half(convolve(p, t, b.m.results[(of_x + r) * B + token]));
  } else {
    const float v = b.m.results[(n + r) * B + token];
    p.columns[token * p.n_columns + b.s.columns.from + r - n] = channel_of(p, b.s, r) >= 0 ? convolve(p, t, v) : v;
  }
}

/* Unit i's taps, from global memory or as staged. */
KR_DEV void read_unit(const kr_decode_params &p, const block &b, int layer, int i, taps &t) {
  const int r = over_tokens(p, i), c = channel_of(p, b.s, r);
  if (c < 0) return;
  place_taps(p, layer, b.m.slots[i - r * p.n_tokens], c, t);
  read_taps(p, layer, c, t);
}
KR_DEV void recall_unit(const kr_decode_params &p, const block &b, int layer, int i, taps &t) {
  const int r = over_tokens(p, i), c = channel_of(p, b.s, r);
  if (c < 0) return;
  const kr_float4 window = kept_floats(p, b, 0, i), tap = kept_floats(p, b, 1, i);
  place_taps(p, layer, b.m.slots[i - r * p.n_tokens], c, t);
#pragma unroll
  for (int k = 0; k < MOST_TAPS - 1; k++) t.window[k] = window.v[k], t.tap[k] = tap.v[k];
  t.bias = window.v[3], t.last = tap.v[3];
}

KR_DEV void finish_in(const kr_decode_params &p, const block &b, int layer) {
  const int n = units_of_in(p, b.s);
#pragma unroll 1
  for (int i = kr_thread(); i < n; i += THREADS) {
    taps t;
    if (i < p.kept_units)
      recall_unit(p, b, layer, i, t);
    else
      read_unit(p, b, layer, i, t);
    finish_unit(p, b, t, i);
  }
}

KR_DEV void finish_columns(const kr_decode_params &p, const block &b) {
  const int B = p.n_tokens;
  for (int i = kr_thread(); i < b.s.columns.n * B; i += THREADS) {
    const int r = over_tokens(p, i), token = i - r * B;
    p.columns[token * p.n_columns + b.s.columns.from + r] = b.m.results[i];
  }
}

/* Four states of a channel of a token. */
typedef struct states {
  kr_raw16 raw; /* states as stored; halves in the first two words */
  float A[4], D, bias, z, x;
} states;

KR_DEV int scan_units(const kr_decode_params &p, const block &b) { return b.s.channels.n * p.n_tokens * (p.N / 4); }

typedef struct unit_place {
  int e, token, h, slot;
  int64_t state, at;
} unit_place;
KR_DEV unit_place unit_at(const kr_decode_params &p, const block &b, int layer, int i) {
  const int lanes = p.N / 4, unit = i >> p.lane_bits, r = over_tokens(p, unit);
  unit_place u;
  u.token = unit - r * p.n_tokens, u.e = b.s.channels.from + r, u.h = p.is_second ? u.e / p.head_width : u.e,
  u.slot = b.m.slots[u.token];
  u.state = layer * p.ssm_state.layer + (int64_t)u.slot * p.ssm_state.slot + u.e * p.ssm_state.channel +
            (i & (lanes - 1)) * 4;
  u.at = (int64_t)u.token * p.inner + u.e;
  return u;
}

KR_DEV void read_states(const kr_decode_params &p, const block &b, int layer, int i, states &s) {
  if (i >= scan_units(p, b)) return;
  const unit_place u = unit_at(p, b, layer, i);
  s.raw = kr_raw16{{0, 0, 0, 0}};
  if (u.slot >= 0 && p.ssm_state.is_float)
    s.raw = *(const kr_raw16 *)((const float *)p.ssm_state.data + u.state);
  else if (u.slot >= 0) {
    const four_halves h = *(const four_halves *)((const uint16_t *)p.ssm_state.data + u.state);
    s.raw.w[0] = h.w[0], s.raw.w[1] = h.w[1];
  }
  if (p.is_second)
    s.A[0] = s.A[1] = s.A[2] = s.A[3] = p.A.data[layer * p.A.layer + u.h];
  else
    read_four(p.A.data + layer * p.A.layer + u.e * p.A.row, nullptr, (i & (p.N / 4 - 1)) * 4, s.A);
  s.D = p.D.data[layer * p.D.layer + u.h * p.D.row],
  s.bias = p.dt_bias.data[layer * p.dt_bias.layer + u.h * p.dt_bias.row];
  s.z = p.z[u.at], s.x = from_half(p.u[u.at]);
}

/* A channel's lanes, a power of two up to a warp, reduce its output; all lanes of a warp must call it. */
KR_DEV void scan_unit(const kr_decode_params &p, const block &b, int layer, int i, states &v) {
  const int lanes = p.N / 4, exists = i < scan_units(p, b), quad = (i & (lanes - 1)) * 4;
  const unit_place u = unit_at(p, b, layer, exists ? i : 0);
  const float *columns = b.m.few + WARPS + u.token * p.n_columns, *states_B = columns + (p.is_second ? 0 : p.R) + quad,
              *states_C = states_B + p.N;
  float s[4], y = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; k++)
    s[k] = p.ssm_state.is_float ? kr_bits_to_float(v.raw.w[k]) : kr_unpack(v.raw.w[k / 2], k % 2, DTYPE);
  const float raw = p.is_second ? columns[p.n_columns - p.H + u.h] : b.m.results[exists ? i >> p.lane_bits : 0],
              dt = kr_softplus(raw + v.bias);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    s[k] = kr_fma(kr_exp(dt * v.A[k]), s[k], dt * v.x * states_B[k]);
    y = kr_fma(states_C[k], s[k], y);
  }
  if (exists && u.slot >= 0) {
    if (p.ssm_state.is_float)
      *(kr_float4 *)((float *)p.ssm_state.data + u.state) = kr_float4{{s[0], s[1], s[2], s[3]}};
    else
      *(four_halves *)((uint16_t *)p.ssm_state.data + u.state) =
          four_halves{{kr_pack(s[0], s[1], DTYPE), kr_pack(s[2], s[3], DTYPE)}};
  }
  for (int lane = 1; lane < lanes; lane <<= 1) y += kr_shuffle_xor(y, lane);
  y = kr_fma(v.D, v.x, y) * kr_silu(v.z);
  if (!exists || quad) return;
  if (p.is_second)
    p.y[u.at] = y;
  else
    ((uint16_t *)p.y)[u.at] = to_half(y);
}

KR_DEV void recall_states(const kr_decode_params &p, const block &b, int i, states &s) {
  const kr_float4 A = kept_floats(p, b, 1, i), rest = kept_floats(p, b, 2, i);
  s.raw = b.m.kept[i];
#pragma unroll
  for (int k = 0; k < 4; k++) s.A[k] = A.v[k];
  s.D = rest.v[0], s.bias = rest.v[1], s.z = rest.v[2], s.x = rest.v[3];
}

KR_DEV void scan(const kr_decode_params &p, const block &b, int layer) {
  const int n = scan_units(p, b);
#pragma unroll 1
  for (int i = kr_thread(); i - (kr_thread() & 31) < n; i += THREADS) {
    states v;
    if (i < p.kept_units)
      recall_states(p, b, i, v);
    else
      read_states(p, b, layer, i, v);
    scan_unit(p, b, layer, i, v);
  }
}

KR_DEV float stream_at(const kr_decode_params &p, const block &b, int layer, int i) {
  const int r = over_tokens(p, i), token = i - r * p.n_tokens, d = b.s.width.from + r;
  return layer ? p.out[token * p.out_row + d] : from_half(p.x[token * p.x_row + d]);
}

KR_DEV void finish_out(const kr_decode_params &p, const block &b, int layer) {
  for (int i = kr_thread(); i < b.s.width.n * p.n_tokens; i += THREADS) {
    const int r = over_tokens(p, i), token = i - r * p.n_tokens;
    const float h = i < p.kept_units ? kept_floats(p, b, 0, i).v[0] : stream_at(p, b, layer, i);
    p.out[token * p.out_row + b.s.width.from + r] = b.m.slots[token] < 0 ? h : h + b.m.results[i];
  }
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

/* Prefetches into L2, a phase or two ahead, what a layer reads of this block's channels besides product weights: norm
 * weight, taps and convolution state; then the scan's operands. */
KR_DEV void ask_for_state(const kr_decode_params &p, const block &b, const kr_decode_state &s, int layer) {
  const int64_t e = b.s.channels.from, bytes = s.is_float ? 4 : 2;
  for (int token = 0; token < p.n_tokens; token++)
    if (b.m.slots[token] >= 0)
      ask_for((const char *)s.data + bytes * (layer * s.layer + b.m.slots[token] * s.slot + e * s.channel),
              bytes * b.s.channels.n * s.channel);
}
KR_DEV void ask_for_taps(const kr_decode_params &p, const block &b, int layer) {
  const int64_t e = b.s.channels.from, n = b.s.channels.n;
  if (layer >= p.n_layers) return;
  ask_for(p.norm.data + layer * p.norm.layer, 2 * p.width);
  ask_for(p.conv.data + layer * p.conv.layer + e * p.conv.row, 2 * n * p.conv.row);
  if (p.conv_bias.data) ask_for(p.conv_bias.data + layer * p.conv_bias.layer + e * p.conv_bias.row, 2 * n);
  ask_for_state(p, b, p.conv_state, layer);
}
KR_DEV void ask_for_states(const kr_decode_params &p, const block &b, int layer) {
  const int64_t e = p.is_second ? 0 : b.s.channels.from, n = p.is_second ? p.H : b.s.channels.n;
  ask_for(p.A.data + layer * p.A.layer + e * p.A.row, 4 * n * p.A.row);
  ask_for(p.D.data + layer * p.D.layer + e, 4 * n);
  ask_for(p.dt_bias.data + layer * p.dt_bias.layer + e, 4 * n);
  if (p.is_second) ask_for(p.gate_norm.data + layer * p.gate_norm.layer, 2 * p.inner);
  ask_for_state(p, b, p.ssm_state, layer);
}

/* Stages the operands of this thread's first unit of the phase that do not depend on other blocks. */
KR_DEV void keep(const kr_decode_params &p, const block &b, int kind, int layer) {
  const int i = kr_thread();
  if (i >= p.kept_units) return;
  if (kind == KR_DECODE_IN && i < units_of_in(p, b.s)) {
    taps t;
    t.bias = t.last = 0.0f;
#pragma unroll
    for (int k = 0; k < MOST_TAPS - 1; k++) t.window[k] = t.tap[k] = 0.0f;
    read_unit(p, b, layer, i, t);
    keep_floats(p, b, 0, i, t.window[0], t.window[1], t.window[2], t.bias);
    keep_floats(p, b, 1, i, t.tap[0], t.tap[1], t.tap[2], t.last);
  } else if (kind == KR_DECODE_SCAN && i < scan_units(p, b)) {
    states s;
    read_states(p, b, layer, i, s);
    b.m.kept[i] = s.raw;
    keep_floats(p, b, 1, i, s.A[0], s.A[1], s.A[2], s.A[3]);
    keep_floats(p, b, 2, i, s.D, s.bias, s.z, s.x);
  } else if (kind == KR_DECODE_OUT && i < b.s.width.n * p.n_tokens)
    keep_floats(p, b, 0, i, stream_at(p, b, layer, i), 0.0f, 0.0f, 0.0f);
}

/* One counter, incremented and polled by one thread per block: a flag per block, polled by all, was slower. n_done:
 * phases that all blocks must have completed. */
KR_DEV void await_blocks(const kr_decode_params &p, int n_done) {
  if (n_done && kr_thread() == MESSENGER) kr_await(p.done, n_done * kr_grid_x());
  kr_sync();
}

/* Signals that this block has completed a phase. */
KR_DEV void tell_blocks(const kr_decode_params &p) {
  kr_sync();
  if (kr_thread() == MESSENGER) arrive(p.done);
}

/* A single call site of load_normed: inlining it twice runs out of registers. */
KR_DEV void load_inputs(const kr_decode_params &p, const memory &m, int kind, int layer) {
  const int is_in = kind == KR_DECODE_IN;
  if (is_in || (kind == KR_DECODE_OUT && p.is_second)) {
    const uint16_t *w = is_in ? p.norm.data + layer * p.norm.layer : p.gate_norm.data + layer * p.gate_norm.layer;
    const rows from = !is_in  ? rows{p.y, nullptr, p.inner}
                      : layer ? rows{p.out, nullptr, p.out_row}
                              : rows{nullptr, p.x, p.x_row};
    load_normed(p, m, from, is_in ? p.width : p.inner, w, is_in ? p.eps : 1e-5f);
  } else if (kind == KR_DECODE_SCAN)
    load_columns(p, m);
  else
    load_halves(p, m, kind == KR_DECODE_COLUMNS ? p.u : (const uint16_t *)p.y, p.inner);
}

/* One instance of the product for all kinds, with few registers live across it. */
template <int DEPTH, int Q8>
KR_DEV void run_phase(block &b, const kr_decode_params &p, int phase) {
  const int kind = kind_of(p, phase), layer = layer_of(p, phase), n_done = phase - p.phase_from;
  refill<Q8>(b);
  keep(p, b, kind, layer);
  if (kind == KR_DECODE_IN) ask_for_states(p, b, layer);
  if (kind == KR_DECODE_OUT) ask_for_taps(p, b, layer + 1);
  await_blocks(p, n_done);
  load_inputs(p, b.m, kind, layer);
  kr_sync();
  product<DEPTH, Q8>(b, p, kind);
  if (kind == KR_DECODE_IN)
    finish_in(p, b, layer);
  else if (kind == KR_DECODE_COLUMNS)
    finish_columns(p, b);
  else if (kind == KR_DECODE_SCAN)
    scan(p, b, layer);
  else
    finish_out(p, b, layer);
}

template <int DEPTH, int Q8>
KR_DEV void run(const kr_decode_params &p) {
  KR_DYNAMIC_SHARED(shared);
  KR_SHARED int firsts[KR_DECODE_OUT + 2];
  block b;
  tile *tiles = (tile *)(shared + p.tiles_at);
  b.s = shares{tiles, firsts, part_of(p.inner), part_of(p.n_columns), part_of(p.width)};
  write_tiles<Q8>(tiles, firsts, p, b.s);
  unsigned char *at = shared;
  b.m.ring = at + (kr_thread() / 32) * DEPTH * UNIT_BYTES(Q8), at += WARPS * DEPTH * UNIT_BYTES(Q8);
  b.m.act = at, at += p.act_bytes;
  b.m.sums = (float *)at, at += 2 * WARPS * TILE * p.n_tokens * 4;
  b.m.results = (float *)at, at += p.result_rows * p.n_tokens * 4;
  b.m.few = (float *)at, at += (WARPS + p.n_tokens * p.n_columns) * 4;
  b.m.kept = (kr_raw16 *)(shared + p.kept_at);
  b.m.slots = (int *)at;
  b.next = 0, b.owed = nullptr;
  b.c.layer = layer_of(p, p.phase_from), b.c.n_layers = layer_of(p, p.phase_to - 1) + 1, b.c.at = 0;
  kr_sync();
  if (kr_thread() < p.n_tokens) {
    const int slot = p.slots ? p.slots[kr_thread() * p.slots_stride] : kr_thread();
    b.m.slots[kr_thread()] = slot >= 0 && slot < p.n_slots ? slot : -1;
  }
  kr_sync();
  find_unit(b.c, b.s);
  for (int i = 0; i < DEPTH; i++) fetch<Q8>(b.c, b.s, b.m.ring + i * UNIT_BYTES(Q8));
  for (int phase = p.phase_from; phase < p.phase_to; phase++) {
    run_phase<DEPTH, Q8>(b, p, phase);
    if (phase + 1 < p.phase_to) tell_blocks(p);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_mamba_decode_12(const kr_decode_params params) { run<12, 0>(params); }
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_mamba_decode_6(const kr_decode_params params) { run<6, 0>(params); }
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_mamba_decode_3(const kr_decode_params params) { run<3, 0>(params); }
#ifdef KR_HALF
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_mamba_decode_q8_9(const kr_decode_params params) { run<9, 1>(params); }
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_mamba_decode_q8_5(const kr_decode_params params) { run<5, 1>(params); }
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_mamba_decode_q8_3(const kr_decode_params params) { run<3, 1>(params); }
#endif
