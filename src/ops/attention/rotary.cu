/* rotary.cu: the rotary embedding, alone and of keys being appended to a cache: one warp per token and head, any type
 * and strides; or 16-byte packs, with a token's angles reused for several heads; or whole heads of queries, keys and
 * values, a few lanes each, with their norms. Memory-bound. */
#include "overlap.cuh"

#include "rotary_params.h"

enum { WARPS = KR_ROTARY_THREADS / 32 };

KR_DEV int lane_of(void) { return kr_thread() & 31; }
KR_DEV int index_at(const kr_attention_index &v, int64_t i) { return v.data[i * v.step]; }

/* A position's cosine and sine of angle r. */
typedef struct angle {
  float c, s;
} angle;
KR_DEV angle angle_at(const kr_rotary_params &p, int64_t position, int r) {
  const int64_t last = p.T - 1, row = position < 0 ? 0 : position > last ? last : position;
  if (r >= p.R) return angle{1.0f, 0.0f};
  return angle{kr_load(p.cos.data, row * p.cos.t + r * p.cos.d, p.cos.dtype),
               p.sign * kr_load(p.sin.data, row * p.sin.t + r * p.sin.d, p.sin.dtype)};
}

/* Rotates the first 2 R features by the position's angles, the first of which the lane has already; the others are
 * copied; x and out may alias. */
KR_DEV void turn(const kr_rotary_params &p, const kr_attention_tensor &x, int64_t from, const kr_attention_tensor &out,
                 int64_t to, int64_t position, angle first) {
  const int64_t step = p.interleaved ? 1 : p.R;
  for (int r = lane_of(); r < p.R; r += 32) {
    const int64_t d = p.interleaved ? 2 * r : r;
    const angle a = r < 32 ? first : angle_at(p, position, r);
    const float c = a.c, s = a.s;
    const float x1 = kr_load(x.data, from + d * x.d, x.dtype), x2 = kr_load(x.data, from + (d + step) * x.d, x.dtype);
    kr_store(out.data, to + d * out.d, out.dtype, kr_fma(x1, c, -(x2 * s)));
    kr_store(out.data, to + (d + step) * out.d, out.dtype, kr_fma(x1, s, x2 * c));
  }
  for (int d = 2 * p.R + lane_of(); d < p.D; d += 32)
    kr_store(out.data, to + d * out.d, out.dtype, kr_load(x.data, from + d * x.d, x.dtype));
}

/* The packed sequence of a token: the last one that begins at or before it. */
KR_DEV int sequence_at(const kr_rotary_params &p, int token) {
  int low = 0, high = p.B - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (index_at(p.cu, middle) <= token) low = middle;
    else high = middle - 1;
  }
  return low;
}

/* Indices and angles are read before the previous kernel ends, if no one writes them. */
KR_DEV void wait_early(const kr_rotary_params &p) {
  kr_launch_dependents();
  if (!p.is_known) kr_griddep_wait();
}
KR_DEV void wait_late(const kr_rotary_params &p) {
  kr_keep_near(p.x.data), kr_keep_near(p.out.data);
  if (p.is_known) kr_griddep_wait();
}

KR_KERNEL void KR_BOUNDS(KR_ROTARY_THREADS, 8) kr_rotary(const kr_rotary_params p) {
  wait_early(p);
  const int64_t unit = (int64_t)kr_block_x() * WARPS + (kr_thread() >> 5), token = unit / p.H;
  const int h = (int)(unit - token * p.H);
  if (token >= (p.packed ? 1 : (int64_t)p.B) * p.L) return;
  const int row = (int)(token / p.L), t = (int)(token - (int64_t)row * p.L), b = p.packed ? sequence_at(p, t) : row;
  const int64_t place = p.still ? 0 : p.packed ? t - index_at(p.cu, b) : t;
  const int64_t position = place + (p.offsets.data ? index_at(p.offsets, b) : 0);
  const angle first = angle_at(p, position, lane_of());
  wait_late(p);
  turn(p, p.x, row * p.x.b + t * p.x.t + h * p.x.h, p.out, row * p.out.b + t * p.out.t + h * p.out.h, position, first);
}

/* Eight 16-bit channels, and the eight they are rotated with: adjacent ones, or those R further. */
KR_DEV void turn_pack(const kr_raw16 &raw, const kr_raw16 &other, kr_raw16 &to, kr_raw16 &to_other, const float (&c)[8],
                      const float (&s)[8], int interleaved, int32_t dtype) {
  if (interleaved) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float x1 = kr_unpack(raw.w[i], 0, dtype), x2 = kr_unpack(raw.w[i], 1, dtype);
      to.w[i] = kr_pack(kr_fma(x1, c[i], -(x2 * s[i])), kr_fma(x1, s[i], x2 * c[i]), dtype);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float low[2], high[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const float x1 = kr_unpack(raw.w[i], k, dtype), x2 = kr_unpack(other.w[i], k, dtype);
      low[k] = kr_fma(x1, c[2 * i + k], -(x2 * s[2 * i + k])), high[k] = kr_fma(x1, s[2 * i + k], x2 * c[2 * i + k]);
    }
    to.w[i] = kr_pack(low[0], low[1], dtype), to_other.w[i] = kr_pack(high[0], high[1], dtype);
  }
}

/* Cosines and sines of a pack's channels, d and on. */
KR_DEV void read_angles(const kr_rotary_params &p, int64_t position, int d, int turns, float (&c)[8], float (&s)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int r = p.interleaved ? d / 2 + (i & 3) : d + i, has = turns && r < p.R;
    c[i] = has ? kr_load(p.cos.data, position * p.cos.t + r * p.cos.d, p.cos.dtype) : 1.0f,
    s[i] = has ? p.sign * kr_load(p.sin.data, position * p.sin.t + r * p.sin.d, p.sin.dtype) : 0.0f;
  }
}

/* A pack of n heads, rotated with the one R further, or copied. */
KR_DEV void turn_heads(const kr_rotary_params &p, const uint16_t *from, uint16_t *to, int n, int turns,
                       const float (&c)[8], const float (&s)[8]) {
  const int other = turns && !p.interleaved ? p.R : 0;
  for (int h = 0; h < n; h++, from += p.x.h, to += p.out.h) {
    kr_raw16 raw = *(const kr_raw16 *)from, out = raw, out_other = raw;
    const kr_raw16 raw_other = *(const kr_raw16 *)(from + other);
    if (turns) turn_pack(raw, raw_other, out, out_other, c, s, p.interleaved, p.x.dtype);
    if (other) *(kr_raw16 *)(to + other) = out_other;
    *(kr_raw16 *)to = out;
  }
}

/* Packs of a token's head that are rotated: of halves, with the packs R further; and all that have a thread. */
KR_DEV uint32_t turned_packs(const kr_rotary_params &p) {
  return (uint32_t)(p.interleaved ? (2 * p.R + 7) / 8 : p.R / 8);
}
KR_DEV uint32_t packs_of_token(const kr_rotary_params &p) {
  return (uint32_t)(p.D / 8) - (p.interleaved ? 0 : turned_packs(p));
}

KR_KERNEL void KR_BOUNDS(KR_ROTARY_THREADS, 4) kr_rotary_packs(const kr_rotary_params p) {
  wait_early(p);
  const uint32_t thread = (uint32_t)kr_block_x() * KR_ROTARY_THREADS + (uint32_t)kr_thread(), turned = turned_packs(p),
                 per_token = packs_of_token(p);
  const uint32_t token = thread / per_token, pack = thread - token * per_token;
  if (token >= (uint32_t)(p.packed ? 1 : p.B) * (uint32_t)p.L) return;
  const int row = (int)(token / (uint32_t)p.L), t = (int)(token - (uint32_t)row * (uint32_t)p.L),
            b = p.packed ? sequence_at(p, t) : row, first = kr_block_y() * p.heads;
  const int end = p.H < first + p.heads ? p.H : first + p.heads, turns = pack < turned,
            d = (int)(turns || p.interleaved ? pack : pack + turned) * 8;
  const int64_t last = p.T - 1,
                place = (p.still    ? 0
                         : p.packed ? t - index_at(p.cu, b)
                                    : t) +
                        (p.offsets.data ? index_at(p.offsets, b) : 0),
                position = place < 0      ? 0
                           : place > last ? last
                                          : place;
  float c[8], s[8];
  read_angles(p, position, d, turns, c, s);
  wait_late(p);
  const uint16_t *from = (const uint16_t *)p.x.data + row * p.x.b + t * p.x.t + first * p.x.h + d;
  uint16_t *to = (uint16_t *)p.out.data + row * p.out.b + t * p.out.t + first * p.out.h + d;
  turn_heads(p, from, to, end - first, turns, c, s);
}

/* Where sequence b's token i goes in the cache. */
typedef struct spot {
  int64_t position, row, t;
  int is_inside;
} spot;
KR_DEV spot spot_of(const kr_rotary_params &p, int b, int i) {
  spot to;
  to.position = (p.offsets.data ? (int64_t)index_at(p.offsets, b) : 0) + i;
  const int64_t room = p.table.data ? (int64_t)p.Lk * p.n_pages : p.Lk;
  to.is_inside = i < p.L && to.position >= 0 && to.position < room;
  to.row = p.cache_row.data ? index_at(p.cache_row, b) : b, to.t = to.position;
  if (p.table.data && to.is_inside)
    to.row = p.table.data[b * p.table_b + to.position / p.Lk * p.table.step], to.t = to.position % p.Lk;
  return to;
}

/* One warp per token and head of queries or keys: p.n_queries, then p.H. */
KR_DEV void append(const kr_rotary_params &p) {
  wait_early(p);
  const int64_t unit = (int64_t)kr_block_x() * WARPS + (kr_thread() >> 5), token = unit / (p.n_queries + p.H);
  const int h = (int)(unit - token * (p.n_queries + p.H)) - p.n_queries, most = p.L > 0 ? p.L : 1,
            b = (int)(token / most), i = (int)(token - (int64_t)b * most);
  if (b >= p.B) return;
  const spot at = spot_of(p, b, i);
  const int64_t position = at.position, row = at.row, t = at.t;
  const int is_inside = at.is_inside;
  const angle first = angle_at(p, position, is_inside || h < 0 ? lane_of() : p.R);
  wait_late(p);
  if (h < 0) {
    const int query = h + p.n_queries;
    if (i < p.L)
      turn(p, p.q, b * p.q.b + i * p.q.t + query * p.q.h, p.q_out, b * p.q_out.b + i * p.q_out.t + query * p.q_out.h,
           position, first);
    return;
  }
  if (p.seqused.data && i == 0 && h == 0 && lane_of() == 0)
    ((int32_t *)p.seqused.data)[b * p.seqused.step] = (int32_t)(position + p.L);
  if (!is_inside || row < 0 || row >= p.Bk) return;
  turn(p, p.x, b * p.x.b + i * p.x.t + h * p.x.h, p.out, row * p.out.b + t * p.out.t + h * p.out.h, position, first);
  const int64_t from = b * p.v.b + i * p.v.t + h * p.v.h, to = row * p.v_cache.b + t * p.v_cache.t + h * p.v_cache.h;
  for (int d = lane_of(); d < p.Dv; d += 32)
    kr_store(p.v_cache.data, to + d * p.v_cache.d, p.v_cache.dtype, kr_load(p.v.data, from + d * p.v.d, p.v.dtype));
}

KR_KERNEL void KR_BOUNDS(KR_ROTARY_THREADS, 8) kr_attention_append(const kr_rotary_params p) { append(p); }

/* A thread takes a pack of keys or values of p.heads heads of a token: first those of keys. */
KR_KERNEL void KR_BOUNDS(KR_ROTARY_THREADS, 4) kr_attention_append_packs(const kr_rotary_params p) {
  wait_early(p);
  const uint32_t thread = (uint32_t)kr_block_x() * KR_ROTARY_THREADS + (uint32_t)kr_thread(),
                 of_keys = packs_of_token(p), per_token = of_keys + (uint32_t)(p.Dv / 8), token = thread / per_token,
                 pack = thread - token * per_token;
  const int b = (int)(token / (uint32_t)p.L), i = (int)(token - (uint32_t)b * (uint32_t)p.L),
            first = kr_block_y() * p.heads, n = p.H - first < p.heads ? p.H - first : p.heads;
  if (b >= p.B) return;
  const spot at = spot_of(p, b, i);
  const int turns = pack < turned_packs(p), d = (int)(turns || p.interleaved ? pack : pack + turned_packs(p)) * 8;
  float c[8], s[8];
  read_angles(p, at.position < p.T ? at.position : p.T - 1, d, turns && at.is_inside, c, s);
  wait_late(p);
  if (p.seqused.data && i == 0 && first == 0 && pack == 0)
    ((int32_t *)p.seqused.data)[b * p.seqused.step] = (int32_t)(at.position + p.L);
  if (!at.is_inside || at.row < 0 || at.row >= p.Bk) return;
  if (pack < of_keys) {
    turn_heads(p, (const uint16_t *)p.x.data + b * p.x.b + i * p.x.t + first * p.x.h + d,
               (uint16_t *)p.out.data + at.row * p.out.b + at.t * p.out.t + first * p.out.h + d, n, turns, c, s);
    return;
  }
  const int e = (int)(pack - of_keys) * 8;
  const uint16_t *from = (const uint16_t *)p.v.data + b * p.v.b + i * p.v.t + first * p.v.h + e;
  uint16_t *to = (uint16_t *)p.v_cache.data + at.row * p.v_cache.b + at.t * p.v_cache.t + first * p.v_cache.h + e;
  for (int h = 0; h < n; h++, from += p.v.h, to += p.v_cache.h) *(kr_raw16 *)to = *(const kr_raw16 *)from;
}

/* ---- whole heads: all channels rotated in halves ---- */

/* Where a head of token i of sequence b lies and goes: queries, then keys, then values; `to` NULL: nowhere. */
typedef struct head_at {
  const uint16_t *from;
  uint16_t *to;
  const float *weight; /* of its norm, or NULL */
  int turns;
} head_at;
KR_DEV head_at head_of(const kr_rotary_params &p, const spot &at, int b, int i, int h) {
  const int key = h - p.n_queries, value = key - p.H, is_kept = at.is_inside && at.row >= 0 && at.row < p.Bk;
  if (key < 0)
    return head_at{(const uint16_t *)p.q.data + b * p.q.b + i * p.q.t + h * p.q.h,
                   (uint16_t *)p.q_out.data + b * p.q_out.b + i * p.q_out.t + h * p.q_out.h,
                   p.q_norm ? p.q_norm + h * p.q_norm_row : nullptr, 1};
  if (value < 0)
    return head_at{(const uint16_t *)p.x.data + b * p.x.b + i * p.x.t + key * p.x.h,
                   is_kept ? (uint16_t *)p.out.data + at.row * p.out.b + at.t * p.out.t + key * p.out.h : nullptr,
                   p.k_norm ? p.k_norm + key * p.k_norm_row : nullptr, 1};
  return head_at{(const uint16_t *)p.v.data + b * p.v.b + i * p.v.t + value * p.v.h,
                 is_kept && value < p.H
                     ? (uint16_t *)p.v_cache.data + at.row * p.v_cache.b + at.t * p.v_cache.t + value * p.v_cache.h
                     : nullptr,
                 nullptr, 0};
}

/* The lane's eight of the D channels of a head, normed and rotated; by all LANES lanes of the head. */
template <int LANES>
KR_DEV kr_raw16 turn_head(const kr_rotary_params &p, const head_at &head, const kr_raw16 &raw, const float (&c)[8],
                          const float (&s)[8]) {
  const int lane = lane_of() % LANES;
  float x[8], square = 0.0f;
  kr_raw16 to = raw;
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = kr_unpack(raw.w[i / 2], i % 2, p.x.dtype), square = kr_fma(x[i], x[i], square);
#pragma unroll
  for (int d = 1; d < LANES; d <<= 1) square += kr_shuffle_xor(square, d);
  if (head.weight) {
    const float by = kr_rsqrt(kr_fma(square, 1.0f / (8 * LANES), p.eps));
    const kr_float4 *const w = (const kr_float4 *)(head.weight + 8 * lane);
    const kr_float4 low = w[0], high = w[1];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= by * (i < 4 ? low.v[i] : high.v[i % 4]);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float other = kr_shuffle_xor(x[i], LANES / 2);
    x[i] = kr_fma(x[i], c[i], lane < LANES / 2 ? -(other * s[i]) : other * s[i]);
  }
  if (head.turns) {
#pragma unroll
    for (int i = 0; i < 4; i++) to.w[i] = kr_pack(x[2 * i], x[2 * i + 1], p.x.dtype);
  }
  return to;
}

/* A warp takes HEADS groups of heads of a token. */
template <int D>
KR_DEV void append_heads(const kr_rotary_params &p) {
  enum { LANES = D / 8, GROUPS = 32 / LANES, HEADS = KR_ROTARY_WHOLE_HEADS };
  wait_early(p);
  const int all = p.n_queries + 2 * p.H, parts = (all + GROUPS * HEADS - 1) / (GROUPS * HEADS),
            unit = kr_block_x() * WARPS + (kr_thread() >> 5), token = unit / parts, lane = lane_of() % LANES,
            b = token / p.L, i = token - b * p.L, first = (unit - token * parts) * GROUPS * HEADS + lane_of() / LANES;
  if (b >= p.B) return;
  const spot at = spot_of(p, b, i);
  const int64_t row = at.position < 0 ? 0 : at.position < p.T ? at.position : p.T - 1;
  const int r = lane % (LANES / 2) * 8;
  float c[8], s[8];
#pragma unroll
  for (int k = 0; k < 8; k++)
    c[k] = ((const float *)p.cos.data)[row * p.cos.t + r + k],
    s[k] = ((const float *)p.sin.data)[row * p.sin.t + r + k];
  wait_late(p);
  if (p.seqused.data && i == 0 && first == 0 && lane == 0)
    ((int32_t *)p.seqused.data)[b * p.seqused.step] = (int32_t)(at.position + p.L);
  head_at heads[HEADS];
  kr_raw16 raw[HEADS];
#pragma unroll
  for (int k = 0; k < HEADS; k++) {
    const int h = first + k * GROUPS;
    heads[k] = head_of(p, at, b, i, h < all ? h : 0);
    if (h >= all) heads[k].to = nullptr;
    raw[k] = *(const kr_raw16 *)(heads[k].from + 8 * lane);
  }
#pragma unroll
  for (int k = 0; k < HEADS; k++) {
    const kr_raw16 turned = turn_head<LANES>(p, heads[k], raw[k], c, s);
    if (heads[k].to) *(kr_raw16 *)(heads[k].to + 8 * lane) = turned;
  }
}
KR_KERNEL void KR_BOUNDS(KR_ROTARY_THREADS, 4) kr_rotary_append_64(const kr_rotary_params p) { append_heads<64>(p); }
/* In 64 registers a thousand tokens of 32 heads are one turn of blocks. */
KR_KERNEL void KR_BOUNDS(KR_ROTARY_THREADS, 8) kr_rotary_append_128(const kr_rotary_params p) { append_heads<128>(p); }
