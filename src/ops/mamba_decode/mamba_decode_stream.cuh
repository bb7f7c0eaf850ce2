/* mamba_decode_stream.cuh: one token of one sequence through all layers in one launch, its weights an endless stream
 * (sm_90): what kernels of all kinds of layers share. Every block has some rows of each product, and one thread copies
 * them, in the order of their use, through all layers, into a ring in shared memory, as far ahead as the ring allows
 * but with few bytes under way: what blocks tell each other would otherwise queue behind weights in memory. Eight warps
 * multiply: teams of four take stages in turn, a warp a quarter of K. Results pass between blocks as words that carry
 * the layer as their tag (packets.cuh), so nobody waits for anything but the data itself. Rows whose results everybody
 * waits for come first. */
#ifndef KR_MAMBA_DECODE_STREAM_CUH
#define KR_MAMBA_DECODE_STREAM_CUH

#include "mamba_decode_products.cuh"
#include "overlap.cuh"
#include "packets.cuh"
#include "wgmma.cuh"

enum {
  WORKERS = KR_STREAM_WORKERS,
  WARPS = WORKERS / 32,
  QUARTERS = 4, /* of K: a team's warps */
  TEAMS = WARPS / QUARTERS,
  IN_UNITS = KR_STREAM_WIDTH / UNIT / QUARTERS,
  OUT_UNITS = 2 * IN_UNITS,
  COLUMN_UNITS = IN_UNITS, /* x_proj's inputs are shared by all warps */
  STREAM_PAIRS = KR_STREAM_STREAM_PAIRS,
  U_PAIRS = KR_STREAM_U_PAIRS,
  Y_PAIRS = KR_STREAM_Y_PAIRS,
  SCANS = KR_STREAM_MOST_CHANNELS / WARPS /* channels of heads whose states a warp updates */
};

/* Rows of a stage. */
#define IN_EACH (Q8 ? KR_STREAM_IN_ROWS_Q8 : KR_STREAM_IN_ROWS)
#define OUT_EACH (Q8 ? KR_STREAM_OUT_ROWS_Q8 : KR_STREAM_OUT_ROWS)

KR_DEV void sync_workers(void) { kr_sync_some<1, WORKERS>(); }
KR_DEV int own_warp(void) { return kr_thread() >> 5; }
KR_DEV int own_team(void) { return kr_thread() >> 7; }
KR_DEV int own_quarter(void) { return kr_thread() >> 5 & 3; }
KR_DEV int over(int n, int by) { return (n + by - 1) / by; }

/* The thread's number, read anew: addresses that depend on it are computed where they are used. The compiler would
 * compute those of all phases before the loop over layers and keep them in local memory, for which the ring leaves no
 * cache. */
#ifdef KR_EMULATE
KR_DEV int fresh_thread(void) { return kr_thread(); }
#else
KR_DEV int fresh_thread(void) {
  int v;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(v));
  return v;
}
#endif

/* ---- a block's rows ---------------------------------------------------------------------------------------------- */

/* Rows of one weight, as the block's stream has them: a stage is `each` of them. */
typedef struct segment {
  const unsigned char *rows;   /* of the first layer */
  const uint16_t *scales;      /* of weights of 8 bits */
  int64_t layer, scales_layer; /* bytes, scales from a layer to the next */
  int first, n, each;
} segment;
enum { X_ROWS, Z_ROWS, COLUMN_ROWS, OUT_ROWS };

typedef struct shares {
  range channels, columns, width;
} shares;
KR_DEV int first_of(const kr_stream_share &s, int block) { return s.least * block + (block < s.more ? block : s.more); }
KR_DEV int number_of(const kr_stream_share &s, int block) { return s.least + (block < s.more); }
KR_DEV range share_of(const kr_stream_share &s) { return range{first_of(s, kr_block_x()), number_of(s, kr_block_x())}; }

KR_DEV segment segment_of_rows(const kr_decode_matrix &m, int first, int n, int each) {
  return segment{m.data + first * m.row, m.scales + first * m.scales_row, m.layer, m.scales_layer, first, n, each};
}
template <int KIND, int Q8>
KR_DEV segment segment_of(const kr_stream_params &params, const shares &s, int kind) {
  const kr_decode_params &p = params.p;
  if (kind == OUT_ROWS) return segment_of_rows(p.out_proj, s.width.from, s.width.n, OUT_EACH);
  if (kind == COLUMN_ROWS && KIND == KR_DECODE_MAMBA)
    return segment_of_rows(p.x_proj, s.columns.from, s.columns.n, OUT_EACH);
  if (kind == COLUMN_ROWS) return segment_of_rows(p.in_proj, 2 * p.inner + s.columns.from, s.columns.n, IN_EACH);
  const int is_upper = (kind == Z_ROWS) != (KIND != KR_DECODE_MAMBA);
  return segment_of_rows(p.in_proj, is_upper * p.inner + s.channels.from, s.channels.n, IN_EACH);
}
KR_DEV int stages_of(const segment &s) { return over(s.n, s.each); }
/* Stages of z before those of x_proj, which need everybody's u; without x_proj: all. */
template <int KIND>
KR_DEV int stages_before(const segment &z) {
  return KIND == KR_DECODE_MAMBA ? stages_of(z) / 2 : stages_of(z);
}

/* ---- the stream -------------------------------------------------------------------------------------------------- */

/* A place in the ring, and the parity of its round. */
typedef struct place {
  int slot;
  uint32_t round;
} place;
KR_DEV void advance(place &at, int n, int n_stages) {
  at.slot += n;
  while (at.slot >= n_stages) at.slot -= n_stages, at.round ^= 1;
}

typedef struct stream {
  const kr_stream_params *params;
  unsigned char *ring;
  uint32_t full, empty; /* a barrier a stage */
  place at, oldest;     /* next to fill; the oldest that may still be under way */
  int n;
  uint64_t once;
} stream;

#ifdef KR_EMULATE
KR_DEV uint64_t kr_once(void) { return 0; }
#endif

/* kr_load_bytes with an L2 cache policy. */
KR_DEV void load_once(uint64_t once, void *to, const void *from, int bytes, uint32_t barrier) {
#ifdef KR_EMULATE
  (void)once, kr_load_bytes(kr_shared_at(to), from, bytes, barrier);
#else
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
      "%4;"
      :
      : "r"(kr_shared_at(to)), "l"(from), "r"(bytes), "r"(barrier), "l"(once)
      : "memory");
#endif
}

/* Asks for bytes, rounded to whole 16 outwards. */
KR_DEV void ask_for(const void *from, int64_t bytes) {
  const uintptr_t at = (uintptr_t)from & ~(uintptr_t)15;
  const uint32_t n = (uint32_t)(((uintptr_t)from + bytes + 15 - at) & ~(uintptr_t)15);
#ifdef KR_EMULATE
  (void)n;
#else
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(at), "r"(n) : "memory");
#endif
}
KR_DEV void ask_for_rows(const kr_decode_halves &of, int layer, const range &r, int row) {
  if (of.data && r.n > 0) ask_for(of.data + layer * of.layer + r.from * of.row, 2 * ((r.n - 1) * of.row + row));
}
KR_DEV void ask_for_taps(const kr_decode_params &p, int layer, int slot, const range &channels) {
  const kr_decode_state &s = p.conv_state;
  const int bytes = s.is_float ? 4 : 2;
  if (channels.n <= 0) return;
  ask_for_rows(p.conv, layer, channels, p.W), ask_for_rows(p.conv_bias, layer, channels, 1);
  ask_for((const char *)s.data + (layer * s.layer + slot * s.slot + channels.from * s.channel) * bytes,
          ((channels.n - 1) * s.channel + (p.W - 2) * s.last + 1) * bytes);
}

/* Into the L2 cache, what a layer waits for first beside the products' weights: the block's share of it; of norms'
 * weights, which all blocks read, a part. */
template <int KIND>
KR_DEV void ask_for_layer(const kr_decode_params &p, const shares &h, int layer, int slot) {
  const int columns = p.n_columns - p.H - h.columns.from; /* those that the convolution makes */
  ask_for_rows(p.norm, layer, h.width, 1);
  if (KIND == KR_DECODE_MAMBA3) return;
  ask_for_taps(p, layer, slot, h.channels);
  if (KIND == KR_DECODE_MAMBA) return;
  ask_for_rows(p.gate_norm, layer, h.channels, 1);
  ask_for_taps(p, layer, slot, range{p.inner + h.columns.from, columns < h.columns.n ? columns : h.columns.n});
}

template <int Q8>
KR_DEV void fill_stage(stream &s, const segment &of, int layer, int first, int inputs) {
  const kr_stream_params &params = *s.params;
  if (s.n >= params.n_stages) kr_barrier_await(s.empty + 8 * s.at.slot, s.at.round ^ 1);
  if (s.n++ >= params.window) {
    kr_barrier_await(s.full + 8 * s.oldest.slot, s.oldest.round);
    advance(s.oldest, 1, params.n_stages);
  }
  const int rows = of.n - first < of.each ? of.n - first : of.each, bytes = rows * inputs * (Q8 ? 1 : 2),
            scales = Q8 ? rows * (inputs / BLOCK) : 0;
  const uint32_t barrier = s.full + 8 * s.at.slot;
  unsigned char *to = s.ring + s.at.slot * params.stage_bytes;
  kr_barrier_expect(barrier, bytes + 2 * scales);
  load_once(s.once, to, of.rows + layer * of.layer + (int64_t)first * inputs * (Q8 ? 1 : 2), bytes, barrier);
  if (Q8)
    load_once(s.once, to + KR_STREAM_SCALES_AT, of.scales + layer * of.scales_layer + first * (inputs / BLOCK),
              2 * scales, barrier);
  advance(s.at, 1, params.n_stages);
}

template <int Q8>
KR_DEV void fill(stream &s, const segment &of, int layer, int from, int to, int inputs) {
  for (int i = from; i < to; i++) fill_stage<Q8>(s, of, layer, i * of.each, inputs);
}

template <int KIND, int Q8>
KR_DEV void fill_ring(stream &s, const shares &h, int slot) {
  const kr_stream_params &params = *s.params;
  const kr_decode_params &p = params.p;
  const segment x = segment_of<KIND, Q8>(params, h, X_ROWS), z = segment_of<KIND, Q8>(params, h, Z_ROWS),
                c = segment_of<KIND, Q8>(params, h, COLUMN_ROWS), out = segment_of<KIND, Q8>(params, h, OUT_ROWS);
  const int before = stages_before<KIND>(z);
  for (int layer = 0; layer < p.n_layers; layer++) {
    if (KIND != KR_DECODE_MAMBA) fill<Q8>(s, c, layer, 0, stages_of(c), p.width);
    fill<Q8>(s, x, layer, 0, stages_of(x), p.width);
    fill<Q8>(s, z, layer, 0, before, p.width);
    if (KIND == KR_DECODE_MAMBA) fill<Q8>(s, c, layer, 0, stages_of(c), p.inner);
    fill<Q8>(s, z, layer, before, stages_of(z), p.width);
    if (layer + 1 < p.n_layers) ask_for_layer<KIND>(p, h, layer + 1, slot);
    fill<Q8>(s, out, layer, 0, stages_of(out), p.inner);
  }
}

/* ---- a block's memory -------------------------------------------------------------------------------------------- */

typedef struct worker {
  const kr_stream_params *params;
  unsigned char *memory; /* laid out by the host */
  shares s;
  place at; /* first stage of the next segment */
  int turn; /* its number, modulo TEAMS */
  int slot; /* row of the states */
} worker;

/* Of worker b, by their names in kr_stream_places. */
#define FLOATS(name) ((float *)(b.memory + b.params->at.name))
#define BARRIERS(name) (kr_shared_at(b.memory) + (uint32_t)b.params->at.name)

KR_DEV inputs inputs_of(const worker &b, int is_float) {
  return inputs{FLOATS(inputs), is_float, b.memory + b.params->at.bytes, FLOATS(steps)};
}

KR_DEV float sum_of(const float *quarters) {
  const kr_float4 v = *(const kr_float4 *)quarters;
  return (v.v[0] + v.v[1]) + (v.v[2] + v.v[3]);
}

/* 1 / rms of n values, from every warp's sum of squares. */
KR_DEV float scale_of(const float *squares, int n, float eps) {
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += squares[w];
  return kr_rsqrt(sum * kr_rcp((float)n) + eps);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Inputs that every worker has seen, as its part of them. */
template <int Q8, int PARTS, int UNITS>
KR_DEV void take_inputs(const worker &b, int is_float, int part, operands<Q8, UNITS> &x) {
  const inputs in = inputs_of(b, is_float);
  if (Q8) split_inputs<WORKERS>(in, PARTS * UNITS * UNIT, fresh_thread()), sync_workers();
  take<PARTS>(in, part, x);
}

/* The team's stages [from, to) of a segment; sums: [row][quarter]. */
template <int ROWS, int Q8, int UNITS>
KR_DEV void multiply(worker &b, const segment &s, int from, int to, const operands<Q8, UNITS> &x, float *sums) {
  const kr_stream_params &params = *b.params;
  const int mine = (own_team() - b.turn) & (TEAMS - 1);
  place at = b.at;
  advance(at, mine, params.n_stages);
  for (int i = from + mine; i < to; i += TEAMS, advance(at, TEAMS, params.n_stages)) {
    kr_barrier_await(BARRIERS(full) + 8 * at.slot, at.round);
    const float sum = sum_rows<ROWS, QUARTERS>(b.memory + at.slot * params.stage_bytes, own_quarter(), x);
    const int row = own_row<ROWS, Q8>();
    if (row >= 0 && i * ROWS + row < s.n) sums[4 * (i * ROWS + row) + own_quarter()] = sum;
    kr_sync_warp();
    if (own_lane() == 0) kr_barrier_arrive(BARRIERS(empty) + 8 * at.slot);
  }
  b.turn = (b.turn + to - from) & (TEAMS - 1);
  advance(b.at, to - from, params.n_stages);
}

/* ---- between blocks ---------------------------------------------------------------------------------------------- */

/* Words of one kind, `pairs` pairs a block: a pair has `each` values of the block's share. */
typedef struct mail {
  uint64_t *words;
  kr_stream_share share;
  int pairs, each, over_pairs; /* over_pairs: 2^16 / pairs, and more: multiplies instead of a division */
} mail;
KR_DEV mail mail_of_stream(const kr_stream_params &p) {
  return mail{p.stream_words, p.width, p.stream_pairs, 4, p.over_stream_pairs};
}
KR_DEV mail mail_of_u(const kr_stream_params &p) {
  return mail{p.u_words, p.channels, p.channel_pairs, 6, p.over_channel_pairs};
}
template <int KIND>
KR_DEV mail mail_of_y(const kr_stream_params &p) {
  return mail{p.y_words, p.channels, p.channel_pairs, KIND == KR_DECODE_MAMBA2 ? 4 : 6, p.over_channel_pairs};
}

/* Which values this thread gathers from a mail, by pair: the first one's number, and how many; -1: no pair. */
template <int PAIRS>
struct received {
  int thread, from[PAIRS], n[PAIRS];
};
template <int PAIRS>
KR_DEV received<PAIRS> find_received(const mail &m) {
  const int blocks = kr_grid_x();
  received<PAIRS> r;
  r.thread = fresh_thread();
#pragma unroll
  for (int k = 0; k < PAIRS; k++) {
    const int i = r.thread + WORKERS * k, block = (int)((uint32_t)(i * m.over_pairs) >> 16);
    const int at = m.each * (i - block * m.pairs), left = number_of(m.share, block) - at;
    r.from[k] = first_of(m.share, block) + at;
    r.n[k] = block >= blocks ? -1 : left < 0 ? 0 : left < m.each ? left : m.each;
  }
  return r;
}

/* Waits for the words of a layer (tag: its number from 1). */
template <int PAIRS>
KR_DEV void receive(const mail &m, const received<PAIRS> &r, uint32_t tag, uint64_t (&low)[PAIRS],
                    uint64_t (&high)[PAIRS]) {
  int waits;
  do {
    waits = 0;
#pragma unroll
    for (int k = 0; k < PAIRS; k++)
      if (r.n[k] >= 0) kr_get_words(m.words + 2 * (r.thread + WORKERS * k), low[k], high[k]);
#pragma unroll
    for (int k = 0; k < PAIRS; k++)
      if (r.n[k] >= 0) waits |= (uint32_t)(low[k] >> 48) != tag || (uint32_t)(high[k] >> 48) != tag;
    if (waits) kr_poll_again();
  } while (waits);
}

/* A float of 24 bits, 15 of them behind the point (rounding would carry a NaN into the sign); three 16-bit elements;
 * each as a word's part without its tag. */
KR_DEV uint64_t bits24(float v) { return v == v ? (kr_float_to_bits(v) + 0x80u) >> 8 : 0x7fc000u; }
KR_DEV float from24(uint64_t word, int i) { return kr_bits_to_float((uint32_t)(word >> 24 * i) << 8); }
KR_DEV uint64_t two_floats(const float *v, uint32_t tag) {
  return bits24(v[0]) | bits24(v[1]) << 24 | (uint64_t)tag << 48;
}
KR_DEV uint64_t three_halves(const float *v, uint32_t tag) {
  return (uint64_t)to_half(v[0]) | (uint64_t)to_half(v[1]) << 16 | (uint64_t)to_half(v[2]) << 32 | (uint64_t)tag << 48;
}

/* Sends the block's share of values, which lie in shared memory, padded to whole pairs. */
KR_DEV void send(const mail &m, const float *values, uint32_t tag) {
  const int i = fresh_thread();
  const float *v = values + m.each * i;
  if (i >= m.pairs) return;
  uint64_t *to = m.words + 2 * (kr_block_x() * m.pairs + i);
  if (m.each == 4)
    kr_put_words(to, two_floats(v, tag), two_floats(v + 2, tag));
  else
    kr_put_words(to, three_halves(v, tag), three_halves(v + 3, tag));
}

/* 16-bit elements of all blocks as the next product's inputs. */
template <int PAIRS>
KR_DEV void gather_halves(const worker &b, const mail &m, uint32_t tag) {
  uint64_t low[PAIRS], high[PAIRS];
  const received<PAIRS> r = find_received<PAIRS>(m);
  receive(m, r, tag, low, high);
#pragma unroll
  for (int k = 0; k < PAIRS; k++)
#pragma unroll
    for (int i = 0; i < 6; i++)
      if (i < r.n[k])
        ((uint16_t *)FLOATS(inputs))[r.from[k] + i] = (uint16_t)((i < 3 ? low[k] : high[k]) >> 16 * (i % 3));
  sync_workers();
}

/* As they lie: converted where they are used, so that nobody waits for them before. */
template <int PAIRS>
struct factors {
  uint16_t v[PAIRS][4];
};
template <int PAIRS>
KR_DEV void read_factors(const kr_decode_halves &w, int layer, const received<PAIRS> &r, factors<PAIRS> &f) {
  const uint16_t *const from = w.data + layer * w.layer;
#pragma unroll
  for (int k = 0; k < PAIRS; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) f.v[k][i] = i < r.n[k] ? from[r.from[k] + i] : 0;
}

/* Values times a norm's weight as inputs, and their squares: the norm's scale is for the product's results. */
template <int PAIRS>
KR_DEV void place_normed(const worker &b, const received<PAIRS> &r, const factors<PAIRS> &f, const float (&v)[PAIRS][4],
                         float *squares) {
  float square = 0.0f;
#pragma unroll
  for (int k = 0; k < PAIRS; k++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < r.n[k])
        square = kr_fma(v[k][i], v[k][i], square), FLOATS(inputs)[r.from[k] + i] = v[k][i] * from_half(f.v[k][i]);
#pragma unroll
  for (int by = 16; by; by /= 2) square += kr_shuffle_xor(square, by);
  if (own_lane() == 0) squares[own_warp()] = square;
  sync_workers();
}

template <int PAIRS>
KR_DEV void gather_normed(const worker &b, const mail &m, const received<PAIRS> &r, const factors<PAIRS> &f,
                          uint32_t tag, float *squares) {
  uint64_t low[PAIRS], high[PAIRS];
  float v[PAIRS][4];
  receive(m, r, tag, low, high);
#pragma unroll
  for (int k = 0; k < PAIRS; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) v[k][i] = from24(i < 2 ? low[k] : high[k], i % 2);
  place_normed(b, r, f, v, squares);
}

/* The first layer's inputs: the embedding. */
template <int PAIRS>
KR_DEV void start_normed(const worker &b, const received<PAIRS> &r, const factors<PAIRS> &f) {
  float v[PAIRS][4];
#pragma unroll
  for (int k = 0; k < PAIRS; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) v[k][i] = i < r.n[k] ? from_half(b.params->p.x[r.from[k] + i]) : 0.0f;
  place_normed(b, r, f, v, FLOATS(squares));
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

KR_DEV int64_t own_states(const worker &b, int layer, int i, int lane) {
  const kr_decode_state &s = b.params->p.ssm_state;
  return layer * s.layer + (int64_t)b.slot * s.slot + (b.s.channels.from + i) * s.channel + 4 * lane;
}
KR_DEV void read_states(const kr_decode_state &from, int64_t at, float (&s)[4]) {
  if (from.is_float) {
    const kr_float4 v = *(const kr_float4 *)((const float *)from.data + at);
#pragma unroll
    for (int j = 0; j < 4; j++) s[j] = v.v[j];
  } else
    unpack_four(*(const four_halves *)((const uint16_t *)from.data + at), s);
}
KR_DEV void write_states(const kr_decode_state &to, int64_t at, const float (&s)[4]) {
  if (to.is_float)
    *(kr_float4 *)((float *)to.data + at) = kr_float4{{s[0], s[1], s[2], s[3]}};
  else
    *(four_halves *)((uint16_t *)to.data + at) = four_halves{{kr_pack(s[0], s[1], DTYPE), kr_pack(s[2], s[3], DTYPE)}};
}

/* Of heads: a warp a channel, four states a lane; a warp's channels in two groups, whose chains run beside each
 * other. */
enum { FIRST_SCANS = 4, OTHER_SCANS = SCANS - FIRST_SCANS };
KR_DEV int head_of(const worker &b, int i) {
  return (int)((uint64_t)(uint32_t)(b.s.channels.from + i) * b.params->over_head_width >> 32);
}
KR_DEV int own_channel(int k) { return (fresh_thread() >> 5) + WARPS * k; }
/* The lanes of a warp as over_lanes leaves N sums: the channel of the group from FROM on that this lane has. */
template <int FROM, int N>
KR_DEV int summed_channel(void) {
  return own_channel(FROM + own_lane() / (32 / N));
}
KR_DEV int has_states(const worker &b) { return 4 * own_lane() < b.params->p.N; }

/* The group's N states from FROM on. */
template <int FROM, int N>
KR_DEV void write_group(const worker &b, int layer, const float (&s)[SCANS][4]) {
#pragma unroll
  for (int k = 0; k < N; k++) {
    const int i = own_channel(FROM + k);
    if (i < b.s.channels.n && has_states(b))
      write_states(b.params->p.ssm_state, own_states(b, layer, i, own_lane()), s[FROM + k]);
  }
}

/* ---- a launch ---------------------------------------------------------------------------------------------------- */

/* Adds to the stream of layers, and sends it; after the last layer, stores it. */
KR_DEV void finish_out(const worker &b, float scale, int is_last, uint32_t tag) {
  const kr_decode_params &p = b.params->p;
  const mail m = mail_of_stream(*b.params);
  const int i = fresh_thread();
  if (i >= m.pairs) return;
  float v[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int row = 4 * i + k;
    v[k] = 0.0f;
    if (row >= b.s.width.n) continue;
    v[k] = kr_fma(sum_of(FLOATS(out_sums) + 4 * row), scale, FLOATS(residual)[row]);
    FLOATS(residual)[row] = v[k];
    if (is_last) p.out[b.s.width.from + row] = v[k];
  }
  kr_put_words(m.words + 2 * (kr_block_x() * m.pairs + i), two_floats(v, tag), two_floats(v + 2, tag));
}

KR_DEV void open_barriers(const worker &b) {
  for (int i = 0; i < b.params->n_stages; i++)
    kr_barrier_open(BARRIERS(full) + 8 * i, 1), kr_barrier_open(BARRIERS(empty) + 8 * i, QUARTERS);
  kr_barrier_open(BARRIERS(dt_full), 1);
  kr_barriers_opened();
}

/* Whether the token has states; without, every layer passes its input on, which is then done. */
KR_DEV int begin(const kr_stream_params &params, unsigned char *memory, worker &b) {
  const kr_decode_params &p = params.p;
  const int slot = p.slots ? p.slots[0] : 0, is_live = slot >= 0 && slot < p.n_slots;
  b.params = &params, b.memory = memory,
  b.s = shares{share_of(params.channels), share_of(params.columns), share_of(params.width)};
  b.at = place{0, 0}, b.turn = 0, b.slot = slot;
  for (int i = kr_thread(); i < b.s.width.n; i += WORKERS) {
    FLOATS(residual)[i] = from_half(p.x[b.s.width.from + i]);
    if (!is_live && kr_thread() < WORKERS) p.out[b.s.width.from + i] = FLOATS(residual)[i];
  }
  if (!is_live) return 0;
  if (kr_thread() == WORKERS) open_barriers(b);
  kr_sync();
  return 1;
}

/* The thread that copies weights. */
template <int KIND, int Q8>
KR_DEV void copy_weights(const worker &b) {
  stream s{b.params, b.memory, BARRIERS(full), BARRIERS(empty), {0, 0}, {0, 0}, 0, kr_once()};
  if (kr_thread() == WORKERS) fill_ring<KIND, Q8>(s, b.s, b.slot);
}

#endif
