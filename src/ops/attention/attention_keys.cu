/* attention_keys.cu: attention of few rows with many keys, memory-bound and split over keys: the rows of all heads that
 * share a key head form one tile of 16. A block takes a part of a sequence's keys, a warp every fourth run of 16 of
 * them, copied asynchronously through a ring of its own. The warps' sums are merged in shared memory, the parts' by a
 * second kernel, always in a fixed order. Compiled per type (KR_HALF: float16). kr_attention_keys_D: heads of up to D
 * channels; kr_attention_join. */
#include "attention_join.cuh"
#include "mma.cuh"
#include "overlap.cuh"

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif

enum { RUN = 16, WARPS = KR_ATTENTION_KEYS_THREADS / 32, STAGES = KR_ATTENTION_KEYS_STAGES };

/* A block's part of the keys, begin to end - 1, and its 16 rows: row r belongs to query r / heads; the first is
 * first_row. */
typedef struct part {
  sequence s;
  int b, kv, first_row, begin, end, number;
} part;

KR_DEV int query_of(const kr_attention_params &p, const part &at, int r) { return (at.first_row + r) / p.heads; }
KR_DEV int head_of(const kr_attention_params &p, const part &at, int r) {
  return at.kv * p.heads + (at.first_row + r) % p.heads;
}

KR_DEV part part_of(const kr_attention_params &p) {
  part at;
  const int tiles = p.n_q_tiles, H = p.H / p.heads, rest = kr_block_x() / p.n_splits, head = rest / tiles;
  at.number = kr_block_x() - rest * p.n_splits, at.first_row = (rest - head * tiles) * 16;
  at.b = head / H, at.kv = head - at.b * H;
  at.s = sequence_of(p, at.b);
  const int rows = at.s.n_q * p.heads, last = at_most(at.first_row + 16, rows) - 1;
  const int first = first_key(p, at.s, query_of(p, at, 0)) / RUN * RUN,
            end = at.first_row < rows ? end_key(p, at.s, last / p.heads) : 0;
  const int unit = p.n_splits * RUN * WARPS,
            each = (at_least(end - first, 0) + unit - 1) / unit * (unit / p.n_splits);
  at.begin = first + at.number * each, at.end = at_most(at.begin + each, end);
  return at;
}

/* The page that contains a run, where pages hold whole runs; looked up ahead of its copies. */
KR_DEV int64_t page_ahead(const kr_attention_params &p, const part &at, int first) {
  return at.s.pages && first < at.end ? page_of(p, at.s, first / p.Lk) : 0;
}

/* Copies a run's keys and values, one warp; zeros after the last one. */
template <int D>
KR_DEV void copy_run(const kr_attention_params &p, const part &at, uint32_t to, int first, int64_t page) {
  const int PER_ROW = D / 8, STEP = 32 / PER_ROW, lane = kr_thread() & 31, chunk = lane % PER_ROW, row = lane / PER_ROW;
  const int exists = chunk * 8 < p.D, whole = !at.s.pages || p.Lk % RUN == 0, n = exists ? at.end - first : 0;
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

/* Eight channels of a row merged from the warps' sums, `step` floats apart; behind its D channels each has its
 * reference maximum, in base 2, and its sum. The mean; returns the log-sum-exp. */
template <int D>
KR_DEV float merge(const float *from, int step, int column, float (&o)[8]) {
  float most = MINUS_INFINITY, total = 0;
#pragma unroll
  for (int c = 0; c < 8; c++) o[c] = 0;
#pragma unroll
  for (int v = 0; v < WARPS; v++) most = higher(most, from[v * step + D]);
#pragma unroll
  for (int v = 0; v < WARPS; v++) {
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

template <int D>
KR_DEV void run(const kr_attention_params &p) {
  const int STAGE = 2 * RUN * D * 2, ROW = D + 4; /* ROW: D channels, the reference maximum, the sum, padding */
  KR_DYNAMIC_SHARED(shared);
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5;
  const uint32_t ring = kr_shared_at(shared) + warp * STAGES * STAGE;
  kr_launch_dependents();
  kr_griddep_wait();
  const part at = part_of(p);
  const int low = (lane & 7) + (lane >> 3 & 1) * 8;
  const uint32_t lane_k = kr_swizzle<D * 2>((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1),
                 lane_v = RUN * D * 2 + kr_swizzle<D * 2>(low, lane >> 4);
  const int any = p.softcap > 0 || p.slopes;
  const float scale = any ? 1.0f : p.scale * KR_LOG2E;
  float o[D / 8][4] = {}, most[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[2] = {0, 0};
  int first[2], end[2];
  uint32_t q[D / 16][4];
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
    first[r] = first_key(p, at.s, i), end[r] = i < at.s.n_q ? end_key(p, at.s, i) : 0;
  }
  const rows_at rows = rows_of(p, at);
  load_rows<D>(p, rows, q);
  for (int stage = 0; run_at < at.end; run_at += RUN * WARPS, stage = stage + 1 == STAGES ? 0 : stage + 1) {
    kr_copied<STAGES - 2>();
    kr_sync_warp();
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
  for (int k = kr_thread(); k < 16 * D / 8; k += 32 * WARPS) {
    const int r = k / (D / 8), column = k % (D / 8) * 8;
    float all[8];
    const float lse = merge<D>(sums + r * ROW, 16 * ROW, column, all);
    if (p.n_splits > 1) keep_row(p, at, r, column, all, lse);
    else finish_row(p, at, r, column, all, lse);
  }
}

enum { THREADS = KR_ATTENTION_KEYS_THREADS };
KR_KERNEL void KR_BOUNDS(THREADS, 8) kr_attention_join(const kr_attention_params p) { join_parts(p); }

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_keys_64(const kr_attention_params p) {
  run<64>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_keys_128(const kr_attention_params p) {
  run<128>(p);
}
