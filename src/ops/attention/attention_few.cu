/* attention_few.cu: attention of few rows with many keys by multiply-adds, for every GPU and type: memory-bound and
 * split over keys. A block takes a part of a sequence's keys and a few of the rows that share their head; neighbouring
 * lanes share a key, eight channels each; a warp's groups of lanes, then the warps, then the parts are joined, always
 * in a fixed order. Compiled once per type of q, k and v (KR_DTYPE). kr_attention_few_D: heads of up to D channels;
 * kr_attention_few_join. */
#include "attention_base.h"
#include "attention_join.cuh"
#include "row_lanes.cuh"

enum { ROWS = KR_ATTENTION_FEW_ROWS, WARPS = KR_ATTENTION_KEYS_THREADS / 32, AHEAD = KR_DTYPE == KRAIT_F32 ? 2 : 4 };

typedef kr_eight<KR_DTYPE> eight;
enum { ELEMENT_BYTES = sizeof(eight) / 8 };
KR_DEV eight read_eight(const void *data, int64_t at, int exists) {
  eight v = {};
  if (exists) v = *(const eight *)((const char *)data + ELEMENT_BYTES * at);
  return v;
}

/* A block's part of the keys, begin to end - 1, and its rows: row r belongs to query r / heads. */
typedef struct part {
  sequence s;
  int b, kv, first_row, begin, end, number;
} part;

KR_DEV int query_of(const kr_attention_params &p, const part &at, int r) { return (at.first_row + r) / p.heads; }
KR_DEV int head_of(const kr_attention_params &p, const part &at, int r) {
  return at.kv * p.heads + (at.first_row + r) % p.heads;
}

/* Blocks of the same keys are neighbours: they find them in the L2 cache. */
KR_DEV part part_of(const kr_attention_params &p) {
  part at;
  const int tiles = p.n_q_tiles, H = p.H / p.heads, rest = kr_block_x() / tiles, head = rest / p.n_splits;
  at.first_row = (kr_block_x() - rest * tiles) * ROWS, at.number = rest - head * p.n_splits;
  at.b = head / H, at.kv = head - at.b * H, at.s = sequence_of(p, at.b);
  const int rows = at.s.n_q * p.heads, last = at_most(at.first_row + ROWS, rows) - 1;
  const int first = first_key(p, at.s, query_of(p, at, 0)),
            end = at.first_row < rows ? end_key(p, at.s, last / p.heads) : 0,
            each = (at_least(end - first, 0) + p.n_splits - 1) / p.n_splits;
  at.begin = first + at.number * each, at.end = at_most(at.begin + each, end);
  return at;
}

/* What a group of lanes has of a row: of its keys' weights, and eight channels of their mean before the division. */
typedef struct sums {
  float most, sum, o[8];
} sums;

/* The weights of the keys that a group has read, at distances of `step` from j; NaN stays. */
KR_DEV void weigh(sums &row, float (&score)[AHEAD], const float (&v)[AHEAD][8]) {
  float high = row.most;
#pragma unroll
  for (int u = 0; u < AHEAD; u++) high = higher(high, score[u]);
  const float shrink = high == MINUS_INFINITY ? 1.0f : kr_exp(row.most - high);
  row.most = high, row.sum *= shrink;
#pragma unroll
  for (int c = 0; c < 8; c++) row.o[c] *= shrink;
#pragma unroll
  for (int u = 0; u < AHEAD; u++) {
    const float weight = score[u] == MINUS_INFINITY ? 0.0f : kr_exp(score[u] - high);
    row.sum += weight;
#pragma unroll
    for (int c = 0; c < 8; c++) row.o[c] = kr_fma(weight, v[u][c], row.o[c]);
  }
}

template <int LANES>
KR_DEV void add_keys(const kr_attention_params &p, const part &at, sums (&row)[ROWS]) {
  const int GROUPS = 32 / LANES, lane = kr_thread() & 31, channel = lane % LANES * 8, exists = channel < p.D,
            stride = GROUPS * AHEAD * WARPS;
  float q[ROWS][8], slope[ROWS];
  int first[ROWS], end[ROWS], query[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    query[r] = query_of(p, at, r);
    const int there = query[r] < at.s.n_q, h = head_of(p, at, r);
    const eight raw = read_eight(p.q.data, there ? query_at(p.q, at.s, h, query[r]) + channel : 0, there && exists);
#pragma unroll
    for (int c = 0; c < 8; c++) q[r][c] = kr_eight_at<KR_DTYPE>(raw, c), row[r].o[c] = 0.0f;
    row[r].most = MINUS_INFINITY, row[r].sum = 0.0f;
    slope[r] = slope_of(p, at.b, h), first[r] = first_key(p, at.s, query[r]),
    end[r] = there ? at_most(end_key(p, at.s, query[r]), at.end) : 0;
  }
#pragma unroll 1
  for (int j0 = at.begin + kr_thread() / 32 * GROUPS * AHEAD; j0 < at.end; j0 += stride) {
    const int j = j0 + lane / LANES;
    eight k[AHEAD], v[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      const int one = j + u * GROUPS, there = one < at.end && exists;
      k[u] = read_eight(p.k.data, there ? key_at(p, p.k, at.s, at.kv, one) + channel : 0, there);
      v[u] = read_eight(p.v.data, there ? key_at(p, p.v, at.s, at.kv, one) + channel : 0, there);
    }
    float score[ROWS][AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      float wide[8];
#pragma unroll
      for (int c = 0; c < 8; c++) wide[c] = kr_eight_at<KR_DTYPE>(k[u], c);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float dot = 0.0f;
#pragma unroll
        for (int c = 0; c < 8; c++) dot = kr_fma(q[r][c], wide[c], dot);
#pragma unroll
        for (int d = 1; d < LANES; d <<= 1) dot += kr_shuffle_xor(dot, d);
        const int one = j + u * GROUPS, seen = one >= first[r] && one < end[r];
        score[r][u] = seen ? score_of(p, dot, slope[r], query[r], one, at.s.shift) : MINUS_INFINITY;
      }
    }
    float values[AHEAD][8];
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
#pragma unroll
      for (int c = 0; c < 8; c++) values[u][c] = kr_eight_at<KR_DTYPE>(v[u], c);
#pragma unroll
    for (int r = 0; r < ROWS; r++) weigh(row[r], score[r], values);
  }
}

/* Finishes, or keeps for the second kernel, channel d of a row: its mean, and the logarithm of its sum in base 2. */
KR_DEV void put(const kr_attention_params &p, const part &at, int r, int d, float mean, float lse) {
  const int i = query_of(p, at, r), h = head_of(p, at, r), none = lse == MINUS_INFINITY;
  if (i >= at.s.rows_q) return;
  if (p.n_splits > 1) {
    const int64_t row = ((int64_t)at.b * p.H + h) * p.rows_q + i, n_rows = (int64_t)p.B * p.H * p.rows_q;
    p.partial[(at.number * n_rows + row) * p.D + d] = mean;
    if (d == 0) p.partial[p.n_splits * n_rows * p.D + at.number * n_rows + row] = lse;
    return;
  }
  float by = 1.0f;
  if (p.sinks && !none) {
    const float sink = kr_load(p.sinks, h * p.sinks_h, p.sinks_dtype) * KR_LOG2E, most = higher(sink, lse),
                all = most + kr_log2(kr_exp2(lse - most) + kr_exp2(sink - most));
    by = kr_exp2(lse - all), lse = all;
  }
  if (d == 0 && p.lse.data) ((float *)p.lse.data)[query_at(p.lse, at.s, h, i)] = none ? -MINUS_INFINITY : KR_LN2 * lse;
  kr_store(p.out.data, query_at(p.out, at.s, h, i) + d, p.out.dtype, none ? 0.0f : mean * by);
}

template <int LANES>
KR_DEV void run(const kr_attention_params &p) {
  const int GROUPS = 32 / LANES, PARTS = GROUPS * WARPS, lane = kr_thread() & 31;
  KR_SHARED float most[ROWS][PARTS], sum[ROWS][PARTS], o[ROWS][PARTS][8 * LANES];
  kr_launch_dependents(), kr_griddep_wait();
  const part at = part_of(p);
  sums row[ROWS];
  add_keys<LANES>(p, at, row);
  const int part = kr_thread() / 32 * GROUPS + lane / LANES;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    kr_float4 *const to = (kr_float4 *)(o[r][part] + lane % LANES * 8);
#pragma unroll
    for (int h = 0; h < 2; h++)
      to[h] = kr_float4{{row[r].o[4 * h], row[r].o[4 * h + 1], row[r].o[4 * h + 2], row[r].o[4 * h + 3]}};
    if (lane % LANES == 0) most[r][part] = row[r].most, sum[r][part] = row[r].sum;
  }
  kr_sync();
  for (int at_d = kr_thread(); at_d < ROWS * 8 * LANES; at_d += 32 * WARPS) {
    const int r = at_d / (8 * LANES), d = at_d % (8 * LANES);
    float high = MINUS_INFINITY, total = 0.0f, mean = 0.0f;
    if (d >= p.D) continue;
#pragma unroll 4
    for (int i = 0; i < PARTS; i++) high = higher(high, most[r][i]);
#pragma unroll 4
    for (int i = 0; i < PARTS; i++) {
      const float by = most[r][i] == MINUS_INFINITY ? 0.0f : kr_exp(most[r][i] - high);
      total = kr_fma(sum[r][i], by, total), mean = kr_fma(o[r][i][d], by, mean);
    }
    const int none = total == 0.0f;
    put(p, at, r, d, none ? 0.0f : mean / total, none ? MINUS_INFINITY : kr_fma(high, KR_LOG2E, kr_log2(total)));
  }
}

enum { THREADS = KR_ATTENTION_KEYS_THREADS };
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_attention_few_64(const kr_attention_params p) { run<8>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_attention_few_128(const kr_attention_params p) { run<16>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_few_256(const kr_attention_params p) { run<32>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 8) kr_attention_few_join(const kr_attention_params p) { join_parts(p); }
