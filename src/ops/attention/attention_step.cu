/* attention_step.cu: a decode step: the norm of heads, the rotary embedding of queries and the new key, its append, and
 * attention of one row per sequence and head. Up to eight query heads of a key head form one tile. A block takes every
 * n-th run of 16 of a sequence's stored keys, a warp every eighth of those; keys and values are on their way before the
 * previous kernel has ended, each lane's to its own places of a ring in shared memory, in the order in which the tensor
 * cores take them. Meanwhile a warp norms and rotates a head, and the last one the new key, whose score it makes. The
 * warps' sums are merged in shared memory, then those of the blocks of a cluster by its first, in a fixed order.
 * Compiled per type (KR_HALF: float16). */
#include "attention_fragments.cuh"
#include "attention_step.h"
#include "cluster.cuh"
#include "mma.cuh"
#include "overlap.cuh"
#include "row_lanes.cuh"

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16, ONES = 0x3c003c00 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16, ONES = 0x3f803f80 };
#endif

enum { KEYS = KR_STEP_KEYS, WARPS = KR_STEP_WARPS, NEW_ROW = KR_STEP_HEADS /* of the rotated ones */ };

/* A block's part of the keys: every n_parts-th run from `part` on of the n_stored in row `slot` of the cache. position:
 * the new key's; fresh: the same, or -1 if there is no room for it. */
typedef struct share {
  int b, kv, first_head, n_heads, part, slot, n_stored, position, fresh, appends;
} share;

KR_DEV share share_of(const kr_attention_step_params &p) {
  share at;
  const int rest = kr_block_x() / p.n_parts, of_key = rest / p.n_groups, group = rest - of_key * p.n_groups;
  at.part = kr_block_x() - rest * p.n_parts, at.b = of_key / p.Hk, at.kv = of_key - at.b * p.Hk;
  at.first_head = at.kv * p.heads + group * p.group;
  at.n_heads = at_most(p.group, p.heads - group * p.group), at.appends = group == 0;
  const int length = p.lengths.data[at.b * p.lengths.step];
  int n = at_least(at_most(length, p.Lk - 1) + 1, 0);
  at.slot = p.cache_row.data ? p.cache_row.data[at.b * p.cache_row.step] : at.b;
  if (at.slot < 0 || at.slot >= p.Bk) at.slot = 0, n = 0;
  at.fresh = n && length < p.Lk ? length : -1, at.n_stored = at.fresh < 0 ? n : at.fresh;
  at.position = at_least(at_most(n - 1, p.T - 1), 0);
  return at;
}

/* ---- keys and values --------------------------------------------------------------------------------------------- */

/* A lane's pieces of a run, with g = lane / 4 and q = lane % 4: of keys g and g + 8 channels 8 (q + 4 j) and the next
 * seven; of values 2 q, 2 q + 1, 2 q + 8, 2 q + 9 channels 64 j + 8 g and the next seven. */
template <int D>
struct pieces {
  kr_raw16 k[2][D / 32], v[4][D / 64];
};
KR_DEV int key_of(int i) { return (kr_thread() & 31) / 4 + 8 * i; }
KR_DEV int value_of(int i) { return (kr_thread() & 3) * 2 + i % 2 + i / 2 * 8; }

/* Copies a run; zeros after the last key stored. ring: the lane's first place. */
template <int D>
KR_DEV void copy_run(const kr_attention_step_params &p, const share &at, uint32_t to, int run) {
  const int lane = kr_thread() & 31, g = lane / 4, q = lane % 4, first = run * KEYS;
  const uint16_t *const keys = (const uint16_t *)p.k_cache.data + at.slot * p.k_cache.b + at.kv * p.k_cache.h + 8 * q,
                        *const values =
                            (const uint16_t *)p.v_cache.data + at.slot * p.v_cache.b + at.kv * p.v_cache.h + 8 * g;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int key = first + key_of(i), exists = key < at.n_stored;
    const uint16_t *const from = keys + (exists ? key : 0) * p.k_cache.t;
#pragma unroll
    for (int j = 0; j < D / 32; j++, to += 512) kr_copy_some_at(to, from + 32 * j, exists ? 16 : 0);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int key = first + value_of(i), exists = key < at.n_stored;
    const uint16_t *const from = values + (exists ? key : 0) * p.v_cache.t;
#pragma unroll
    for (int j = 0; j < D / 64; j++, to += 512) kr_copy_some_at(to, from + 64 * j, exists ? 16 : 0);
  }
}
template <int D>
KR_DEV void read_keys(const unsigned char *from, pieces<D> &run) {
#pragma unroll
  for (int i = 0; i < 2 * (D / 32); i++) run.k[i / (D / 32)][i % (D / 32)] = *(const kr_raw16 *)(from + i * 512);
}
template <int D>
KR_DEV void read_values(const unsigned char *from, pieces<D> &run) {
#pragma unroll
  for (int i = 0; i < 4 * (D / 64); i++)
    run.v[i / (D / 64)][i % (D / 64)] = *(const kr_raw16 *)(from + (2 * (D / 32) + i) * 512);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A row of a head by a warp: channels lane + 32 i and those D / 2 on; cosine and sine, and the norm's weights. */
template <int D>
struct head_row {
  uint16_t x[D / 64][2];
  float c[D / 64], s[D / 64], w[D / 64][2];
};
template <int D, int NORMED>
KR_DEV void load_turn(const kr_attention_step_params &p, const share &at, int is_key, head_row<D> &row) {
  const int lane = kr_thread() & 31, head = at.first_head + kr_thread() / 32;
  const float *const c = p.cos.data + at.position * p.cos.t, *const s = p.sin.data + at.position * p.sin.t,
                     *const w = is_key ? p.k_norm + at.kv * p.k_norm_row : p.q_norm + head * p.q_norm_row;
#pragma unroll
  for (int i = 0; i < D / 64; i++) {
    row.c[i] = c[(lane + 32 * i) * p.cos.d], row.s[i] = s[(lane + 32 * i) * p.sin.d];
#pragma unroll
    for (int h = 0; h < 2; h++) row.w[i][h] = NORMED ? w[lane + 32 * i + h * (D / 2)] : 1.0f;
  }
}
template <int D>
KR_DEV void load_head(const kr_attention_step_params &p, const share &at, int is_key, head_row<D> &row) {
  const int head = at.first_head + kr_thread() / 32;
  const uint16_t *const x = (is_key ? (const uint16_t *)p.k.data + at.b * p.k.b + at.kv * p.k.h
                                    : (const uint16_t *)p.q.data + at.b * p.q.b + head * p.q.h) +
                            (kr_thread() & 31);
#pragma unroll
  for (int i = 0; i < D / 64; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) row.x[i][h] = x[32 * i + h * (D / 2)];
}
/* Norms and rotates it, and leaves it in shared memory. */
template <int D, int NORMED>
KR_DEV void turn_head(const kr_attention_step_params &p, head_row<D> &row, uint16_t *to) {
  const int lane = kr_thread() & 31;
  float x[D / 64][2], square = 0.0f, by = 1.0f;
#pragma unroll
  for (int i = 0; i < D / 64; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      x[i][h] = kr_unpack(row.x[i][h], 0, DTYPE);
      square = kr_fma(x[i][h], x[i][h], square);
    }
  if (NORMED) by = kr_rsqrt(kr_fma(kr_sum_lanes(square), 1.0f / D, p.eps));
#pragma unroll
  for (int i = 0; i < D / 64; i++) {
    const float x1 = x[i][0] * by * row.w[i][0], x2 = x[i][1] * by * row.w[i][1];
    const uint32_t turned = kr_pack(kr_fma(x1, row.c[i], -(x2 * row.s[i])), kr_fma(x1, row.s[i], x2 * row.c[i]), DTYPE);
    row.x[i][0] = (uint16_t)turned, row.x[i][1] = (uint16_t)(turned >> 16);
    to[lane + 32 * i] = row.x[i][0], to[lane + 32 * i + D / 2] = row.x[i][1];
  }
}

/* The new value, channels lane + 32 i. */
template <int D>
struct value_row {
  uint16_t v[D / 32];
};
template <int D>
KR_DEV void load_value(const kr_attention_step_params &p, const share &at, value_row<D> &value) {
  const uint16_t *const v = (const uint16_t *)p.v.data + at.b * p.v.b + at.kv * p.v.h + (kr_thread() & 31);
#pragma unroll
  for (int i = 0; i < D / 32; i++) value.v[i] = v[32 * i];
}
template <int D>
KR_DEV void append_new(const kr_attention_step_params &p, const share &at, const head_row<D> &key,
                       const value_row<D> &value) {
  const int lane = kr_thread() & 31;
  uint16_t *const k = (uint16_t *)p.k_cache.data + at.slot * p.k_cache.b + at.fresh * p.k_cache.t +
                      at.kv * p.k_cache.h + lane,
                  *const v = (uint16_t *)p.v_cache.data + at.slot * p.v_cache.b + at.fresh * p.v_cache.t +
                             at.kv * p.v_cache.h + lane;
#pragma unroll
  for (int i = 0; i < D / 64; i++) k[32 * i] = key.x[i][0], k[32 * i + D / 2] = key.x[i][1];
#pragma unroll
  for (int i = 0; i < D / 32; i++) v[32 * i] = value.v[i];
}

/* Row r of the rotated ones, as the right operand of scores: a lane's channels 8 (q + 4 j) and the next seven. */
template <int D>
KR_DEV void read_turned(const unsigned char *rows, int r, kr_raw16 (&to)[D / 32]) {
#pragma unroll
  for (int j = 0; j < D / 32; j++)
    to[j] = *(const kr_raw16 *)(rows + r * KR_STEP_TURNED(D) + ((kr_thread() & 3) + 4 * j) * 16);
}

/* The new key's sums: its score of each head is the reference maximum. */
template <int D>
KR_DEV void attend_new(const kr_attention_step_params &p, const share &at, const unsigned char *rows,
                       const value_row<D> &value, float *sums) {
  const int lane = kr_thread() & 31, ROW = KR_STEP_ROW(D);
  kr_raw16 q[D / 32], k[D / 32];
  read_turned<D>(rows, lane / 4, q), read_turned<D>(rows, NEW_ROW, k);
  float score[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < D / 32; j++)
#pragma unroll
    for (int i = 0; i < 8; i++)
      score[i % 2] =
          kr_fma(kr_unpack(q[j].w[i / 2], i % 2, DTYPE), kr_unpack(k[j].w[i / 2], i % 2, DTYPE), score[i % 2]);
  score[0] += score[1];
  score[0] += kr_shuffle_xor(score[0], 1);
  score[0] += kr_shuffle_xor(score[0], 2);
  if (lane % 4 == 0 && lane / 4 < at.n_heads)
    sums[lane / 4 * ROW + D] = score[0] * (p.scale * KR_LOG2E), sums[lane / 4 * ROW + D + 1] = 1;
#pragma unroll 1
  for (int h = 0; h < at.n_heads; h++)
#pragma unroll
    for (int i = 0; i < D / 32; i++) sums[h * ROW + lane + 32 * i] = kr_unpack(value.v[i], 0, DTYPE);
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

/* A lane's sums of heads 2 q and 2 q + 1, [r]: o[4 j + i][r], [2 + r]: channels 64 j + 8 g + 2 i and the next. */
template <int D>
struct lane_sums {
  float o[D / 16][4], total[4], most[2];
};

/* Scores of keys g, g + 8 (s[0], s[1]; s[2], s[3]) and heads 2 q, 2 q + 1. */
template <int D>
KR_DEV void score_run(const pieces<D> &run, const kr_raw16 (&q)[D / 32], float (&s)[4]) {
  float odd[4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] = 0;
#pragma unroll
  for (int j = 0; j < D / 32; j++) {
    const kr_raw16 &low = run.k[0][j], &high = run.k[1][j];
    const uint32_t a[2][4] = {{low.w[0], high.w[0], low.w[1], high.w[1]}, {low.w[2], high.w[2], low.w[3], high.w[3]}};
    kr_mma_as(element(), s, a[0], q[j].w[0], q[j].w[1]), kr_mma_as(element(), odd, a[1], q[j].w[2], q[j].w[3]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] += odd[i];
}

/* Takes the reference maximum up where it has grown by more than SLACK. */
template <int D>
KR_DEV void raise_most(const float (&s)[4], float scale, lane_sums<D> &of) {
  float high[2];
#pragma unroll
  for (int r = 0; r < 2; r++) high[r] = higher(s[r], s[2 + r]);
#pragma unroll
  for (int d = 4; d < 32; d *= 2)
#pragma unroll
    for (int r = 0; r < 2; r++) high[r] = higher(high[r], kr_shuffle_xor(high[r], d));
  if (!kr_any_lane((high[0] - of.most[0]) * scale > SLACK || (high[1] - of.most[1]) * scale > SLACK)) return;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float now = higher(of.most[r], high[r]),
                by = now == MINUS_INFINITY ? 1.0f : kr_exp2((of.most[r] - now) * scale);
    of.most[r] = now, of.total[r] *= by;
#pragma unroll
    for (int j = 0; j < D / 16; j++) of.o[j][r] *= by, of.o[j][2 + r] *= by;
  }
}

/* Weights of four words, a key's two heads each, as the right operand: head g, keys 2 q and 2 q + 1. */
KR_DEV uint32_t turn_weights(uint32_t two_heads) {
  const int lane = kr_thread() & 31, from = lane % 4 * 8 + lane / 8, by = lane / 4 % 2 * 16;
  const uint32_t low = kr_float_to_bits(kr_shuffle_from(kr_bits_to_float(two_heads), from)),
                 high = kr_float_to_bits(kr_shuffle_from(kr_bits_to_float(two_heads), from + 4));
  return (low >> by & 0xffffu) | high >> by << 16;
}

template <int D>
KR_DEV void add_run(const pieces<D> &run, const float (&w)[4], lane_sums<D> &of) {
  const uint32_t b0 = turn_weights(kr_pack(w[0], w[1], DTYPE)), b1 = turn_weights(kr_pack(w[2], w[3], DTYPE)),
                 ones[4] = {ONES, ONES, ONES, ONES};
  kr_mma_as(element(), of.total, ones, b0, b1);
#pragma unroll
  for (int j = 0; j < D / 64; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t v[4] = {run.v[0][j].w[i], run.v[1][j].w[i], run.v[2][j].w[i], run.v[3][j].w[i]},
                     a[4] = {(v[0] & 0xffffu) | v[1] << 16, v[0] >> 16 | (v[1] & 0xffff0000u),
                             (v[2] & 0xffffu) | v[3] << 16, v[2] >> 16 | (v[3] & 0xffff0000u)};
      kr_mma_as(element(), of.o[4 * j + i], a, b0, b1);
    }
}

template <int D>
KR_DEV void leave_sums(const share &at, float scale, const lane_sums<D> &of, float *sums) {
  const int lane = kr_thread() & 31, g = lane / 4;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int head = lane % 4 * 2 + r;
    if (head >= at.n_heads) continue;
    float *const row = sums + head * KR_STEP_ROW(D);
#pragma unroll
    for (int j = 0; j < D / 16; j += 2)
      *(kr_float4 *)(row + j / 4 * 64 + 8 * g + j % 4 * 2) =
          kr_float4{{of.o[j][r], of.o[j][2 + r], of.o[j + 1][r], of.o[j + 1][2 + r]}};
    if (g == 0) row[D] = of.most[r] == MINUS_INFINITY ? of.most[r] : of.most[r] * scale, row[D + 1] = of.total[r];
  }
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* Four channels of a row merged from n contributors (at most MOST) that are `step` floats apart; returns the reference
 * maximum. */
template <int D, int MOST>
KR_DEV float merge_rows(const float *from, int step, int n, int column, kr_float4 &o, float &total) {
  float most = MINUS_INFINITY;
  o = kr_float4{}, total = 0;
#pragma unroll
  for (int v = 0; v < MOST; v++) most = higher(most, from[(v < n ? v : 0) * step + D]);
#pragma unroll
  for (int v = 0; v < MOST; v++) { /* no branches, so that all loads are in flight at once */
    const float *const part = from + (v < n ? v : 0) * step,
                       by = v >= n || part[D] == MINUS_INFINITY ? 0.0f : kr_exp2(part[D] - most);
    const kr_float4 four = *(const kr_float4 *)(part + column);
    total = kr_fma(part[D + 1], by, total);
#pragma unroll
    for (int c = 0; c < 4; c++) o.v[c] = kr_fma(four.v[c], by, o.v[c]);
  }
  return most;
}

/* The warps' sums, then the parts', by one text. */
template <int D>
KR_DEV void finish_rows(const kr_attention_step_params &p, const share &at, const float *sums, int n, int step,
                        float *gathered) {
  const int ROW = KR_STEP_ROW(D), r = kr_thread() / (D / 4), column = kr_thread() % (D / 4) * 4,
            is_row = r < at.n_heads;
  int is_last = p.n_parts == 1;
  if (!is_last) kr_cluster_started();
#pragma unroll 1
  for (;;) {
    if (is_row) {
      kr_float4 o;
      float total;
      const float most = merge_rows<D, WARPS + 1>(sums + r * ROW, step, n, column, o, total);
      float *const to = gathered + (at.part * p.group + r) * ROW;
      if (is_last) {
        const float by = total != 0 ? kr_rcp(total) : 0.0f; /* not a number stays */
#pragma unroll
        for (int c = 0; c < 4; c++) o.v[c] *= by;
        kr_store_four<DTYPE>(p.out.data, at.b * p.out.b + (at.first_head + r) * p.out.h + column, 0, o.v);
      } else {
        kr_send(to + column, o, p.n_parts);
        if (column == 0) kr_send(to + D, kr_float4{{most, total, 0, 0}}, p.n_parts);
      }
    }
    if (is_last || !kr_gathered(p.n_parts)) return;
    sums = gathered, step = p.group * ROW, n = p.n_parts, is_last = 1;
  }
}

/* The oldest of the runs on their way is there. */
template <int D>
KR_DEV void await_run(int n_stages) {
  if (n_stages == 1)
    kr_copied<0>();
  else
    kr_copied<KR_STEP_STAGES(D) - 1>();
}

template <int D, int NORMED>
KR_DEV void run_step(const kr_attention_step_params &p) {
  const int STAGE = KR_STEP_STAGE(D), n_stages = p.n_stages;
  KR_DYNAMIC_SHARED(shared);
  const int lane = kr_thread() & 31, warp = kr_thread() / 32, n_warps = WARPS * p.n_parts;
  unsigned char *const ring = shared + warp * n_stages * STAGE + lane * 16;
  unsigned char *const rows = shared + KR_STEP_ROWS_AT(D, n_stages, p.group);
  kr_keep_all_near(p);
  if (!p.is_known) kr_griddep_wait();
  if (p.n_parts > 1) kr_cluster_starts();
  const share at = share_of(p);
  const int n_runs = (at.n_stored + KEYS - 1) / KEYS, has_new = at.fresh >= 0 && at.part == p.n_parts - 1,
            is_new = has_new && warp == WARPS - 1, has_row = warp < at.n_heads;
  int run = warp * p.n_parts + at.part;
#pragma unroll 1
  for (int s = 0; s < n_stages; s++) {
    if (run + s * n_warps < n_runs) copy_run<D>(p, at, kr_shared_at(ring + s * STAGE), run + s * n_warps);
    kr_commit_copies();
  }
  kr_launch_dependents(); /* not before: the next kernels' weights would stand before the keys in memory's queue */
  head_row<D> row, key;
  value_row<D> value;
  pieces<D> here;
  if (has_row) load_turn<D, NORMED>(p, at, 0, row);
  if (is_new) load_turn<D, NORMED>(p, at, 1, key);
  if (p.is_known) kr_griddep_wait();
  if (has_row) load_head<D>(p, at, 0, row);
  if (is_new) load_head<D>(p, at, 1, key), load_value<D>(p, at, value);
  await_run<D>(n_stages);
  if (run < n_runs) read_keys<D>(ring, here);
  if (has_row) turn_head<D, NORMED>(p, row, (uint16_t *)(rows + warp * KR_STEP_TURNED(D)));
  if (is_new) {
    turn_head<D, NORMED>(p, key, (uint16_t *)(rows + NEW_ROW * KR_STEP_TURNED(D)));
    if (at.appends) append_new<D>(p, at, key, value);
  }
  kr_sync();
  if (is_new) attend_new<D>(p, at, rows, value, (float *)(shared + WARPS * n_stages * STAGE));
  const float scale = p.scale * KR_LOG2E;
  lane_sums<D> of = {};
  kr_raw16 q[D / 32];
  read_turned<D>(rows, lane / 4 < at.n_heads ? lane / 4 : 0, q);
  of.most[0] = of.most[1] = MINUS_INFINITY;
  for (int stage = 0; run < n_runs;) {
    float s[4];
    score_run<D>(here, q, s);
    read_values<D>(ring + stage * STAGE, here);
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (run * KEYS + key_of(i / 2) >= at.n_stored) s[i] = MINUS_INFINITY;
    raise_most<D>(s, scale, of);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float most = of.most[i % 2];
      s[i] = kr_exp2(kr_fma(s[i], scale, most == MINUS_INFINITY ? 0.0f : -most * scale));
    }
    add_run<D>(here, s, of);
    if (run + n_stages * n_warps < n_runs)
      copy_run<D>(p, at, kr_shared_at(ring + stage * STAGE), run + n_stages * n_warps);
    kr_commit_copies();
    run += n_warps, stage = stage + 1 == n_stages ? 0 : stage + 1;
    await_run<D>(n_stages);
    if (run < n_runs) read_keys<D>(ring + stage * STAGE, here);
  }
  kr_sync_warp(); /* the ring is reused */
  leave_sums<D>(at, scale, of, (float *)(shared + warp * n_stages * STAGE));
  kr_sync();
  finish_rows<D>(p, at, (const float *)shared, WARPS + has_new, n_stages * STAGE / 4,
                 (float *)(shared + KR_STEP_PARTS_AT(D, n_stages, p.group)));
}

KR_KERNEL void KR_BOUNDS(KR_STEP_THREADS, 2) kr_attention_step_64(const kr_attention_step_params p) {
  run_step<64, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_STEP_THREADS, 2) kr_attention_normed_step_64(const kr_attention_step_params p) {
  run_step<64, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_STEP_THREADS, 2) kr_attention_step_128(const kr_attention_step_params p) {
  run_step<128, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_STEP_THREADS, 2) kr_attention_normed_step_128(const kr_attention_step_params p) {
  run_step<128, 1>(p);
}
