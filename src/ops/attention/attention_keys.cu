/* attention_keys.cu: attention of few rows with many keys, memory-bound and split over keys: the rows of all heads that
 * share a key head form one tile of 16. A block takes a part of a sequence's keys, a warp every fourth or eighth run of
 * 16 of them, copied asynchronously through a ring of its own. The warps' sums are merged in shared memory, the parts'
 * by a second kernel or, of a decode step, by the first block of their cluster, always in a fixed order. Compiled per
 * type (KR_HALF: float16). kr_attention_keys_D: heads of up to D channels; kr_attention_join; kr_attention_step_D,
 * with norms kr_attention_normed_step_D: a decode step, whose keys are on their way before the previous kernel has
 * ended. */
#include "attention_join.cuh"
#include "attention_keys.h"
#include "cluster.cuh"
#include "mma.cuh"
#include "overlap.cuh"
#include "row_lanes.cuh"

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif

enum { RUN = 16 };

/* A block's part of the keys, begin to end - 1, and its 16 rows: row r belongs to query r / heads; the first is
 * first_row. fresh: the position of a step's new key; the cache has those before `stored`. */
typedef struct part {
  sequence s;
  int b, kv, first_row, begin, end, number, fresh, stored;
} part;

KR_DEV int query_of(const kr_attention_params &p, const part &at, int r) { return (at.first_row + r) / p.heads; }
KR_DEV int head_of(const kr_attention_params &p, const part &at, int r) {
  return at.kv * p.heads + (at.first_row + r) % p.heads;
}

/* A step's sequence: its one row sees the new key and all before it. fresh: the new key's position, or -1 if there is
 * no room for it. */
KR_DEV sequence step_of(const kr_attention_params &p, const kr_attention_fresh &f, int b, int &fresh) {
  const int length = index_at(f.lengths, b);
  sequence s = {0, 0, b, b, 1, at_least(at_most(length, p.Lk - 1) + 1, 0), 0, 1, p.Lk, nullptr};
  if (p.cache_row.data) s.k_b = index_at(p.cache_row, b);
  if (s.k_b < 0 || s.k_b >= p.Bk) s.k_b = 0, s.n_k = 0;
  fresh = s.n_k && length < p.Lk ? length : -1, s.shift = s.n_k - 1;
  return s;
}

template <int WARPS, int STEP>
KR_DEV part part_of(const kr_attention_params &p, const kr_attention_fresh &f) {
  part at;
  const int tiles = p.n_q_tiles, H = p.H / p.heads, rest = kr_block_x() / p.n_splits, head = rest / tiles;
  at.number = kr_block_x() - rest * p.n_splits, at.first_row = (rest - head * tiles) * 16;
  at.b = head / H, at.kv = head - at.b * H, at.fresh = -1;
  at.s = STEP ? step_of(p, f, at.b, at.fresh) : sequence_of(p, at.b);
  const int rows = at.s.n_q * p.heads, last = at_most(at.first_row + 16, rows) - 1;
  const int first = STEP ? 0 : first_key(p, at.s, query_of(p, at, 0)) / RUN * RUN,
            end = STEP                  ? at.s.n_k
                  : at.first_row < rows ? end_key(p, at.s, last / p.heads)
                                        : 0;
  const int unit = p.n_splits * (STEP ? RUN : RUN * WARPS),
            each = (at_least(end - first, 0) + unit - 1) / unit * (unit / p.n_splits);
  at.begin = first + at.number * each, at.end = at_most(at.begin + each, end);
  at.stored = STEP && at.fresh >= 0 ? at_most(at.end, at.fresh) : at.end;
  return at;
}

/* The page that contains a run, where pages hold whole runs; looked up ahead of its copies. */
KR_DEV int64_t page_ahead(const kr_attention_params &p, const part &at, int first) {
  return at.s.pages && first < at.end ? page_of(p, at.s, first / p.Lk) : 0;
}

/* Copies a run's keys and values, one warp; zeros after the last one stored. */
template <int D>
KR_DEV void copy_run(const kr_attention_params &p, const part &at, uint32_t to, int first, int64_t page) {
  const int PER_ROW = D / 8, STEP = 32 / PER_ROW, lane = kr_thread() & 31, chunk = lane % PER_ROW, row = lane / PER_ROW;
  const int exists = chunk * 8 < p.D, whole = !at.s.pages || p.Lk % RUN == 0, n = exists ? at.stored - first : 0;
  if (whole) {
    const int64_t t = at.s.pages ? first % p.Lk : at.s.k_at + first, b = at.s.pages ? page : at.s.k_b;
    const uint16_t *k = (const uint16_t *)p.k.data + b * p.k.b + at.kv * p.k.h + (t + row) * p.k.t + chunk * 8,
                   *v = (const uint16_t *)p.v.data + b * p.v.b + at.kv * p.v.h + (t + row) * p.v.t + chunk * 8;
    const int64_t k_step = STEP * p.k.t, v_step = STEP * p.v.t;
#pragma unroll
    for (int i = 0; i < RUN / STEP; i++, k += k_step, v += v_step) {
      const int r = row + i * STEP, bytes = r < n ? 16 : 0;
      kr_copy_some_at(to + kr_swizzle<D * 2>(r, chunk), bytes ? k : (const uint16_t *)p.k.data, bytes);
      kr_copy_some_at(to + RUN * D * 2 + kr_swizzle<D * 2>(r, chunk), bytes ? v : (const uint16_t *)p.v.data, bytes);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < RUN / STEP; i++) {
    const int r = row + i * STEP, there = r < n;
    const int64_t from_k = there ? key_at(p, p.k, at.s, at.kv, first + r) + chunk * 8 : 0,
                  from_v = there ? key_at(p, p.v, at.s, at.kv, first + r) + chunk * 8 : 0;
    kr_copy_some_at(to + kr_swizzle<D * 2>(r, chunk), (const uint16_t *)p.k.data + from_k, there ? 16 : 0);
    kr_copy_some_at(to + RUN * D * 2 + kr_swizzle<D * 2>(r, chunk), (const uint16_t *)p.v.data + from_v,
                    there ? 16 : 0);
  }
}

/* A lane's rows, lane / 4 and that + 8; NULL beyond the last query. */
typedef struct rows_at {
  const uint16_t *from[2];
} rows_at;
KR_DEV rows_at rows_of(const kr_attention_params &p, const part &at) {
  rows_at rows;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int r = (kr_thread() & 31) / 4 + 8 * half, i = query_of(p, at, r);
    rows.from[half] =
        i < at.s.n_q ? (const uint16_t *)p.q.data + query_at(p.q, at.s, head_of(p, at, r), i) : nullptr;
    kr_keep_near(rows.from[half]);
  }
  return rows;
}

template <int D>
KR_DEV void load_rows(const kr_attention_params &p, const rows_at &rows, uint32_t (&q)[D / 16][4]) {
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int column = 16 * k + 8 * c + (kr_thread() & 3) * 2;
        q[k][2 * c + half] = rows.from[half] && column < p.D ? *(const uint32_t *)(rows.from[half] + column) : 0;
      }
}

/* Finishes a row of the call: o is the weighted mean of eight channels, lse in base 2. */
KR_DEV void finish_row(const kr_attention_params &p, const part &at, int r, int column, const float (&o)[8],
                       float lse) {
  const int i = query_of(p, at, r), h = head_of(p, at, r), none = lse == MINUS_INFINITY;
  if (i >= at.s.rows_q) return;
  float by = 1.0f, all = lse;
  if (p.sinks && !none) {
    const float sink = kr_load(p.sinks, h * p.sinks_h, p.sinks_dtype) * KR_LOG2E, most = higher(sink, lse);
    all = most + kr_log2(kr_exp2(lse - most) + kr_exp2(sink - most)), by = kr_exp2(lse - all);
  }
  if (column == 0 && p.lse.data)
    ((float *)p.lse.data)[query_at(p.lse, at.s, h, i)] = none ? -MINUS_INFINITY : KR_LN2 * all;
  kr_raw16 packed;
#pragma unroll
  for (int k = 0; k < 4; k++) packed.w[k] = none ? 0 : kr_pack(o[2 * k] * by, o[2 * k + 1] * by, DTYPE);
  if (column < p.D) *(kr_raw16 *)((uint16_t *)p.out.data + query_at(p.out, at.s, h, i) + column) = packed;
}

/* A part's row, for the second kernel. */
KR_DEV void keep_row(const kr_attention_params &p, const part &at, int r, int column, const float (&o)[8], float lse) {
  const int i = query_of(p, at, r), h = head_of(p, at, r);
  if (i >= at.s.rows_q) return;
  const int64_t row = ((int64_t)at.b * p.H + h) * p.rows_q + i, n_rows = (int64_t)p.B * p.H * p.rows_q;
  float *to = p.partial + (at.number * n_rows + row) * p.D + column;
  if (column < p.D) {
#pragma unroll
    for (int k = 0; k < 8; k += 4) *(kr_float4 *)(to + k) = (kr_float4){{o[k], o[k + 1], o[k + 2], o[k + 3]}};
  }
  if (column == 0) p.partial[p.n_splits * n_rows * p.D + at.number * n_rows + row] = lse;
}

/* Eight channels of a row merged from n parts (at most MOST) that are `step` floats apart; behind its D channels each
 * has its reference maximum, in base 2, and its sum. The mean; returns the log-sum-exp. */
template <int D, int MOST>
KR_DEV float merge(const float *from, int step, int n, int column, float (&o)[8]) {
  float most = MINUS_INFINITY, total = 0;
#pragma unroll
  for (int c = 0; c < 8; c++) o[c] = 0;
#pragma unroll
  for (int v = 0; v < MOST; v++)
    if (v < n) most = higher(most, from[v * step + D]);
#pragma unroll
  for (int v = 0; v < MOST; v++) {
    if (v >= n) break;
    const float *const part = from + v * step, by = part[D] == MINUS_INFINITY ? 0.0f : kr_exp2(part[D] - most);
    total = kr_fma(part[D + 1], by, total);
#pragma unroll
    for (int c = 0; c < 8; c += 4) {
      const kr_float4 four = *(const kr_float4 *)(part + column + c);
#pragma unroll
      for (int k = 0; k < 4; k++) o[c + k] = kr_fma(four.v[k], by, o[c + k]);
    }
  }
  const float by = total != 0 ? 1.0f / total : 0.0f; /* not a number stays */
#pragma unroll
  for (int c = 0; c < 8; c++) o[c] *= by;
  return total != 0 ? most + kr_log2(total) : MINUS_INFINITY;
}

/* A part's row, to the first block of the cluster. */
template <int D>
KR_DEV void send_row(float *to, int column, const float (&o)[8], float lse, int n_parts) {
#pragma unroll
  for (int k = 0; k < 8; k += 4)
    kr_send(to + column + k, (kr_float4){{o[k], o[k + 1], o[k + 2], o[k + 3]}}, n_parts);
  if (column == 0) kr_send(to + D, (kr_float4){{lse, 1, 0, 0}}, n_parts);
}

/* Cosine and sine of a step's position: of the columns that a lane has of its rows, and of the channels of the new key
 * that it appends. */
template <int D>
struct angles {
  float c[D / 32][2][2], s[D / 32][2][2], key_c[D / 64], key_s[D / 64];
};
template <int D>
KR_DEV void load_angles(const kr_attention_fresh &f, const part &at, angles<D> &a) {
  const int lane = kr_thread() & 31;
  const int64_t row = at_least(at_most(at.s.n_k - 1, f.T - 1), 0);
  const float *const c = (const float *)f.cos.data + row * f.cos.t,
              *const s = (const float *)f.sin.data + row * f.sin.t;
#pragma unroll
  for (int k = 0; k < D / 32; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int64_t r = 16 * k + i / 2 * 8 + lane % 4 * 2 + i % 2;
      a.c[k][i / 2][i % 2] = c[r * f.cos.d], a.s[k][i / 2][i % 2] = s[r * f.sin.d];
    }
#pragma unroll
  for (int i = 0; i < D / 64; i++)
    a.key_c[i] = c[(lane + 32 * i) * f.cos.d], a.key_s[i] = s[(lane + 32 * i) * f.sin.d];
}

/* Weights of the norms of a lane's rows, and of the channels of the new key that it appends; without norms ones, which
 * the compiler leaves out. */
template <int D>
struct norms {
  kr_float2 q[D / 16][4];
  float k[D / 64][2];
};
template <int D, int NORMED>
KR_DEV void load_norms(const kr_attention_params &p, const kr_attention_fresh &f, const part &at, norms<D> &w) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int r = lane / 4 + i % 2 * 8;
    const float *const from = f.q_norm + head_of(p, at, r) * f.q_norm_row + i / 2 * 8 + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
      w.q[k][i] = NORMED && r < p.heads ? *(const kr_float2 *)(from + 16 * k) : kr_float2{{1, 1}};
  }
  const float *const from = f.k_norm + at.kv * f.k_norm_row + lane;
#pragma unroll
  for (int i = 0; i < D / 64; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) w.k[i][h] = NORMED ? from[32 * i + h * (D / 2)] : 1.0f;
}

/* One over the root mean squares of a lane's rows; ones without norms. */
template <int D, int NORMED>
KR_DEV void root_rows(const kr_attention_fresh &f, const uint32_t (&q)[D / 16][4], float (&by)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float square = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
      for (int i = r; i < 4; i += 2)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float x = kr_unpack(q[k][i], e, DTYPE);
          square = kr_fma(x, x, square);
        }
    square += kr_shuffle_xor(square, 1);
    square += kr_shuffle_xor(square, 2);
    by[r] = NORMED ? kr_rsqrt(kr_fma(square, 1.0f / D, f.eps)) : 1.0f;
  }
}

/* Channels r and r + D/2, two at a time; x by[row] and its weight first. */
template <int D>
KR_DEV void turn_rows(const angles<D> &a, const norms<D> &w, const float (&by)[2], uint32_t (&q)[D / 16][4]) {
#pragma unroll
  for (int k = 0; k < D / 32; k++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t &low = q[k][i], &high = q[k + D / 32][i];
      float x[2], y[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float x1 = kr_unpack(low, e, DTYPE) * by[i % 2] * w.q[k][i].v[e],
                    x2 = kr_unpack(high, e, DTYPE) * by[i % 2] * w.q[k + D / 32][i].v[e], c = a.c[k][i / 2][e],
                    s = a.s[k][i / 2][e];
        x[e] = kr_fma(x1, c, -(x2 * s)), y[e] = kr_fma(x1, s, x2 * c);
      }
      low = kr_pack(x[0], x[1], DTYPE), high = kr_pack(y[0], y[1], DTYPE);
    }
}

/* The new key and value, of one warp. k: low and high channel; v: two adjacent ones. */
template <int D>
struct fresh_row {
  uint32_t k[D / 64], v[D / 64];
};
template <int D>
KR_DEV void load_fresh(const kr_attention_fresh &f, const part &at, fresh_row<D> &row) {
  const int lane = kr_thread() & 31;
  const uint16_t *const k = (const uint16_t *)f.k.data + at.b * f.k.b + at.kv * f.k.h + lane,
                 *const v = (const uint16_t *)f.v.data + at.b * f.v.b + at.kv * f.v.h + 2 * lane;
#pragma unroll
  for (int i = 0; i < D / 64; i++)
    row.k[i] = (uint32_t)k[32 * i + D / 2] << 16 | k[32 * i], row.v[i] = *(const uint32_t *)(v + 64 * i);
}
/* Norms and rotates it, and appends it to the cache. */
template <int D, int NORMED>
KR_DEV void append(const kr_attention_params &p, const kr_attention_fresh &f, const part &at, const angles<D> &a,
                   const norms<D> &w, fresh_row<D> &row) {
  const int lane = kr_thread() & 31;
  float by = 1.0f;
  if (NORMED) {
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 64; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) square = kr_fma(kr_unpack(row.k[i], h, DTYPE), kr_unpack(row.k[i], h, DTYPE), square);
    by = kr_rsqrt(kr_fma(kr_sum_lanes(square), 1.0f / D, f.eps));
  }
  uint16_t *const k = (uint16_t *)p.k.data + at.s.k_b * p.k.b + at.fresh * p.k.t + at.kv * p.k.h + lane,
                  *const v = (uint16_t *)p.v.data + at.s.k_b * p.v.b + at.fresh * p.v.t + at.kv * p.v.h + 2 * lane;
#pragma unroll
  for (int i = 0; i < D / 64; i++) {
    const float x1 = kr_unpack(row.k[i], 0, DTYPE) * by * w.k[i][0],
                x2 = kr_unpack(row.k[i], 1, DTYPE) * by * w.k[i][1], c = a.key_c[i], s = a.key_s[i];
    row.k[i] = kr_pack(kr_fma(x1, c, -(x2 * s)), kr_fma(x1, s, x2 * c), DTYPE);
    k[32 * i] = (uint16_t)row.k[i], k[32 * i + D / 2] = (uint16_t)(row.k[i] >> 16);
    *(uint32_t *)(v + 64 * i) = row.v[i];
  }
}
/* r: the row in the run's tiles. */
template <int D>
KR_DEV void put_fresh(unsigned char *run, int r, const fresh_row<D> &row) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int i = 0; i < D / 64; i++) {
    const int d = lane + 32 * i, high = d + D / 2;
    *(uint16_t *)(run + kr_swizzle<D * 2>(r, d / 8) + d % 8 * 2) = (uint16_t)row.k[i];
    *(uint16_t *)(run + kr_swizzle<D * 2>(r, high / 8) + high % 8 * 2) = (uint16_t)(row.k[i] >> 16);
    *(uint32_t *)(run + RUN * D * 2 + kr_swizzle<D * 2>(r, d / 4) + d % 4 * 4) = row.v[i];
  }
}

enum { PLAIN_STEP = 1, NORMED_STEP };
template <int D, int STEP>
KR_DEV void run(const kr_attention_params &p, const kr_attention_fresh &f) {
  const int NORMED = STEP == NORMED_STEP, WARPS = KR_KEYS_WARPS(D, STEP), STAGES = KR_KEYS_STAGES(STEP),
            STAGE = 2 * RUN * D * 2, ROW = KR_KEYS_ROW(D);
  KR_DYNAMIC_SHARED(shared);
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5, joined = STEP && p.n_splits > 1;
  const uint32_t ring = kr_shared_at(shared) + warp * STAGES * STAGE;
  kr_launch_dependents();
  if (!STEP || !f.is_known) kr_griddep_wait();
  if (joined) kr_cluster_starts();
  const part at = part_of<WARPS, STEP>(p, f);
  const int low = (lane & 7) + (lane >> 3 & 1) * 8;
  const uint32_t lane_k = kr_swizzle<D * 2>((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1),
                 lane_v = RUN * D * 2 + kr_swizzle<D * 2>(low, lane >> 4);
  const int any = !STEP && (p.softcap > 0 || p.slopes);
  const float scale = any ? 1.0f : p.scale * KR_LOG2E;
  float o[D / 8][4] = {}, most[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[2] = {0, 0};
  int first[2], end[2];
  uint32_t q[D / 16][4];
  angles<D> turns;
  norms<D> weights;
  fresh_row<D> row;
  int run_at = at.begin + warp * RUN;
#pragma unroll 1
  for (int k = 0; k < STAGES - 1; k++) {
    if (run_at + k * RUN * WARPS < at.end)
      copy_run<D>(p, at, ring + k * STAGE, run_at + k * RUN * WARPS, page_ahead(p, at, run_at + k * RUN * WARPS));
    kr_commit_copies();
  }
  int64_t page = page_ahead(p, at, run_at + (STAGES - 1) * RUN * WARPS);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = query_of(p, at, lane / 4 + 8 * r);
    first[r] = STEP ? 0 : first_key(p, at.s, i), end[r] = i < at.s.n_q ? end_key(p, at.s, i) : 0;
  }
  const rows_at rows = rows_of(p, at);
  const int appends =
      STEP && at.fresh >= at.begin && at.fresh < at.end && (at.fresh - at.begin) / RUN % WARPS == warp;
  if (STEP) {
    load_angles<D>(f, at, turns);
    load_norms<D, NORMED>(p, f, at, weights);
    if (f.is_known) kr_griddep_wait();
    if (appends) load_fresh<D>(f, at, row);
  }
  load_rows<D>(p, rows, q);
  if (STEP) {
    float by[2];
    root_rows<D, NORMED>(f, q, by);
    turn_rows<D>(turns, weights, by, q);
  }
  if (appends) append<D, NORMED>(p, f, at, turns, weights, row);
  for (int stage = 0; run_at < at.end; run_at += RUN * WARPS, stage = stage + 1 == STAGES ? 0 : stage + 1) {
    kr_copied<STAGES - 2>();
    kr_sync_warp();
    if (STEP && run_at <= at.fresh && at.fresh < run_at + RUN) {
      put_fresh<D>(shared + (warp * STAGES + stage) * STAGE, at.fresh - run_at, row);
      kr_sync_warp();
    }
    const int next = run_at + (STAGES - 1) * RUN * WARPS;
    if (next < at.end) copy_run<D>(p, at, ring + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE, next, page);
    kr_commit_copies();
    page = page_ahead(p, at, next + RUN * WARPS);
    const uint32_t here = ring + stage * STAGE;
    float s[2][4] = {}, shrink[2], high[2];
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
      uint32_t b[4];
      kr_load_matrices_at(b, here + (lane_k ^ k * 32));
      kr_mma_as(element(), s[0], q[k], b[0], b[1]), kr_mma_as(element(), s[1], q[k], b[2], b[3]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      high[r] = MINUS_INFINITY;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int key = run_at + 8 * (j / 2) + lane % 4 * 2 + j % 2;
        float &one = s[j / 2][2 * r + j % 2];
        if (any)
          one = KR_LOG2E * score_of(p, one, slope_of(p, at.b, head_of(p, at, lane / 4 + 8 * r)),
                                    query_of(p, at, lane / 4 + 8 * r), key, at.s.shift);
        if (key < first[r] || key >= end[r]) one = MINUS_INFINITY;
        high[r] = higher(high[r], one);
      }
      high[r] = higher(high[r], kr_shuffle_xor(high[r], 1));
      high[r] = higher(high[r], kr_shuffle_xor(high[r], 2));
    }
    if (kr_any_lane((high[0] - most[0]) * scale > SLACK || (high[1] - most[1]) * scale > SLACK)) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float now = higher(most[r], high[r]);
        shrink[r] = now == MINUS_INFINITY ? 1.0f : kr_exp2((most[r] - now) * scale);
        most[r] = now, sum[r] *= shrink[r];
#pragma unroll
        for (int j = 0; j < D / 8; j++) o[j][2 * r] *= shrink[r], o[j][2 * r + 1] *= shrink[r];
      }
    }
    uint32_t w[4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float offset = most[r] == MINUS_INFINITY ? 0.0f : most[r] * scale;
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const float a = kr_exp2(kr_fma(s[j][2 * r], scale, -offset)),
                    b = kr_exp2(kr_fma(s[j][2 * r + 1], scale, -offset));
        sum[r] += a + b;
        w[2 * j + r] = kr_pack(a, b, DTYPE);
      }
    }
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      uint32_t b[4];
      kr_load_matrices_turned_at(b, here + (lane_v ^ j * 32));
      kr_mma_as(element(), o[2 * j], w, b[0], b[1]), kr_mma_as(element(), o[2 * j + 1], w, b[2], b[3]);
    }
  }
  kr_copied<0>();
  kr_sync(); /* the rings are reused for the warps' sums */
  float *const sums = (float *)shared, *const mine = sums + (warp * 16 + lane / 4) * ROW;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float total = sum[r] + kr_shuffle_xor(sum[r], 1);
    total += kr_shuffle_xor(total, 2);
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      *(kr_float2 *)(mine + 8 * r * ROW + 8 * j + lane % 4 * 2) = (kr_float2){{o[j][2 * r], o[j][2 * r + 1]}};
    if (lane % 4 == 0) mine[8 * r * ROW + D] = most[r] * scale, mine[8 * r * ROW + D + 1] = total;
  }
  kr_sync();
  const int n_rows = STEP ? p.heads : 16;
  float *const gathered = (float *)(shared + KR_STEP_RINGS(D));
  if (joined) kr_cluster_started();
  const float *from = sums;
  int n = WARPS, is_last = !joined;
#pragma unroll 1
  for (;;) { /* the warps' sums, then the parts', by one text */
    for (int k = kr_thread(); k < n_rows * D / 8; k += 32 * WARPS) {
      const int r = k / (D / 8), column = k % (D / 8) * 8;
      float all[8];
      const float lse = merge<D, STEP ? KR_KEYS_CLUSTER : 4>(from + r * ROW, 16 * ROW, n, column, all);
      if (!is_last) send_row<D>(gathered + (at.number * 16 + r) * ROW, column, all, lse, p.n_splits);
      else if (!STEP && p.n_splits > 1) keep_row(p, at, r, column, all, lse);
      else finish_row(p, at, r, column, all, lse);
    }
    if (is_last || !kr_gathered(p.n_splits)) return;
    from = gathered, n = p.n_splits, is_last = 1;
  }
}

enum { THREADS = KR_ATTENTION_KEYS_THREADS };
KR_KERNEL void KR_BOUNDS(THREADS, 8) kr_attention_join(const kr_attention_params p) { join_parts(p); }

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_keys_64(const kr_attention_params p) {
  run<64, 0>(p, kr_attention_fresh{});
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_keys_128(const kr_attention_params p) {
  run<128, 0>(p, kr_attention_fresh{});
}
#if defined(KR_EMULATE) || KR_TIER >= 90
enum { STEP_THREADS_64 = 32 * KR_KEYS_WARPS(64, 1), STEP_THREADS_128 = 32 * KR_KEYS_WARPS(128, 1) };
KR_KERNEL void KR_BOUNDS(STEP_THREADS_64, 1) kr_attention_step_64(const kr_attention_step_params p) {
  kr_keep_all_near(p);
  run<64, PLAIN_STEP>(p.params, p.fresh);
}
KR_KERNEL void KR_BOUNDS(STEP_THREADS_64, 1) kr_attention_normed_step_64(const kr_attention_step_params p) {
  kr_keep_all_near(p);
  run<64, NORMED_STEP>(p.params, p.fresh);
}
KR_KERNEL void KR_BOUNDS(STEP_THREADS_128, 1) kr_attention_step_128(const kr_attention_step_params p) {
  kr_keep_all_near(p);
  run<128, PLAIN_STEP>(p.params, p.fresh);
}
KR_KERNEL void KR_BOUNDS(STEP_THREADS_128, 1) kr_attention_normed_step_128(const kr_attention_step_params p) {
  kr_keep_all_near(p);
  run<128, NORMED_STEP>(p.params, p.fresh);
}
#endif
