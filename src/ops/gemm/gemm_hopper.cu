/* gemm_hopper.cu: products of 16-bit factors by wgmma (sm_90a), persistent blocks looping over tiles of 128 x BN. One
 * producer warp, of the first warpgroup, copies boxes of A and B by TMA into a ring of stages; two consumer warpgroups
 * multiply and finish 64 rows each; the result's boxes are stored while the next tile is in progress. Compiled once per
 * type (KR_HALF: float16), memory order (KR_A_MN: A is contiguous in m, not k; KR_B_MN: B is contiguous in n), KR_BN
 * and KR_GATED. With KR_PARTS (and KR_HALF) the factors are float32: gemm_split.cu has made each the sum of two scaled
 * float16 matrices, one after the other as batches P apart; a stage holds 64 of k of both. Tiles of float16 that are
 * KR_HOPPER_TF32_BN wide also take the first of these matrices alone (unscale_n): float32 rounded to tf32's bits. */
#include "gemm_finish.cuh"
#include "gemm_hopper.h"
#include "overlap.cuh"
#include "products.cuh"
#ifdef KR_PARTS
#include "gemm_halves.cuh"
#endif

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif
#ifdef KR_PARTS
enum { PARTS = KR_N_HALVES, PART_STAGES = KR_HOPPER_HALVES_STAGES };
#else
enum { PARTS = 1, PART_STAGES = 0 };
#endif
enum { BM = KR_HOPPER_BM, BK = KR_HOPPER_BK, BLOCK_BYTES = 64 * 128 };
enum { IS_SCALED = PARTS == 1 && DTYPE == KRAIT_F16 && KR_BN == KR_HOPPER_TF32_BN && !KR_GATED }; /* or may be */

template <int BN>
KR_DEV constexpr int n_stages() {
  return PARTS > 1 ? PART_STAGES : KR_HOPPER_STAGES(BN);
}
template <int BN>
KR_DEV constexpr int stage_bytes() {
  return PARTS * (BM + BN) * 128;
}

typedef struct unit {
  int m, n, batch, k, n_steps, slab; /* first row and column; first k and number of stages; slab: in the partial sums */
} unit;

template <int WIDTH>
KR_DEV unit unit_at(const kr_gemm_params &p, int index) {
  const kr_gemm_unit at = kr_gemm_unit_at(p, index);
  const int k = at.split * p.k_split, left = p.K - k;
  return (unit){at.m * BM, at.n * WIDTH, at.batch, k, ((left < p.k_split ? left : p.k_split) + BK - 1) / BK, at.slab};
}

/* Stage in the ring and barrier phase. */
typedef struct place {
  int stage;
  uint32_t round;
} place;
template <int STAGES>
KR_DEV void advance(place &at) {
  if (++at.stage == STAGES) at.stage = 0, at.round ^= 1;
}

typedef struct layout {
  uint32_t stages, staged, bias, full, empty; /* shared memory */
} layout;

template <int BN>
KR_DEV layout lay_out(uint32_t base) {
  const int STAGES = n_stages<BN>();
  layout at;
  at.stages = (base + 1023) & ~1023u;
  at.staged = at.stages + STAGES * stage_bytes<BN>();
  at.bias = at.staged + (PARTS > 1 ? 0 : BM * BN * 2); /* float32 results are not staged */
  at.full = at.bias + 2 * 256 * 4;
  at.empty = at.full + STAGES * 8;
  return at;
}

/* ---- producer ---------------------------------------------------------------------------------------------------- */

/* `rows` rows or columns from `first`, by 64 of k. */
template <int MN_MAJOR>
KR_DEV void load_factor(uint32_t to, uint64_t map, uint32_t barrier, int first, int rows, int k, int batch) {
  if (!MN_MAJOR) {
    kr_load_box(to, map, barrier, k, first, batch);
    return;
  }
  for (int i = 0; i < rows; i += 64) kr_load_box(to + i / 64 * BLOCK_BYTES, map, barrier, first + i, k, batch);
}

/* B's part of a stage, and B2's. */
template <int BN, int GATED>
KR_DEV void load_weights(const unit &u, uint32_t stage, uint32_t full, uint64_t maps, int k, int P) {
  const uint64_t map_b = maps + sizeof(kr_gemm_map), map_b2 = maps + 2 * sizeof(kr_gemm_map);
  kr_barrier_expect(full, stage_bytes<BN>());
#pragma unroll
  for (int i = 0; i < PARTS; i++)
    load_factor<KR_B_MN>(stage + PARTS * BM * 128 + i * BN * 128, map_b, full, u.n, GATED ? BN / 2 : BN, k,
                         u.batch + i * P);
  if (GATED) load_factor<KR_B_MN>(stage + (BM + BN / 2) * 128, map_b2, full, u.n, BN / 2, k, u.batch);
}

/* The first stages' weight loads are issued before the preceding kernel has ended, unless it makes their parts. */
template <int BN, int GATED>
KR_DEV void copy_tiles(const kr_gemm_params &p, const layout &at, uint64_t maps, int n_units, int waits) {
  const int STAGES = n_stages<BN>();
  place to = {0, 1};
  int early = 0;
  if (!waits && kr_block_x() < n_units) {
    const unit u = unit_at<GATED ? BN / 2 : BN>(p, kr_block_x());
    for (; early < STAGES && early < u.n_steps; early++)
      load_weights<BN, GATED>(u, at.stages + early * stage_bytes<BN>(), at.full + early * 8, maps, u.k + early * BK,
                              p.P);
  }
  kr_griddep_wait();
  for (int index = kr_block_x(); index < n_units; index += kr_grid_x()) {
    const unit u = unit_at<GATED ? BN / 2 : BN>(p, index);
    for (int s = 0; s < u.n_steps; s++, advance<STAGES>(to)) {
      const uint32_t stage = at.stages + to.stage * stage_bytes<BN>(), full = at.full + to.stage * 8;
      const int k = u.k + s * BK;
      if (early) {
        early--;
      } else {
        kr_barrier_await(at.empty + to.stage * 8, to.round);
        load_weights<BN, GATED>(u, stage, full, maps, k, p.P);
      }
#pragma unroll
      for (int i = 0; i < PARTS; i++)
        load_factor<KR_A_MN>(stage + i * BM * 128, maps, full, u.m, BM, k, u.batch + i * p.P);
    }
  }
}

/* ---- consumer warpgroups ----------------------------------------------------------------------------------------- */

typedef struct lanes {
  int group, thread, row, column,
      first_row; /* warpgroup 0 or 1; thread of its 128; rows `row` and + 8 of its 64; columns 8 j + column */
} lanes;

KR_DEV void sync_group(int group) {
  if (group) kr_sync_some<2, 128>();
  else kr_sync_some<1, 128>();
}

/* Loads the biases of the tile's columns, zeros if absent. */
template <int BN, int GATED>
KR_DEV void fetch_bias(const kr_gemm_params &p, const unit &u, const lanes &me, float *bias) {
  const int width = GATED ? BN / 2 : BN;
  for (int c = me.thread; c < BN; c += 128) {
    const kr_gemm_matrix &from = GATED && c >= width ? p.bias2 : p.bias;
    const int n = u.n + (c >= width ? c - width : c);
    bias[c] = from.data && n < p.N ? kr_load(from.data, n * from.row, from.dtype) : 0.0f;
  }
}

template <int BN>
KR_DEV void store_partial(const kr_gemm_params &p, const unit &u, const lanes &me, const float (&d)[BN / 2]) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int m = u.m + me.first_row + 8 * h;
    float *to = p.partial + ((int64_t)u.slab * p.M + m) * p.partial_row + u.n + me.column;
    if (m >= p.M) continue;
#pragma unroll
    for (int j = 0; j < BN / 8; j++)
      if (u.n + 8 * j + me.column < p.partial_row)
        *(kr_float2 *)(to + 8 * j) = (kr_float2){{d[4 * j + 2 * h], d[4 * j + 2 * h + 1]}};
  }
}

/* Compiler barrier between loads: registers hold only a few at a time. */
KR_DEV void hold_loads(int j) {
  if (j % 8 == 7) asm volatile("" : : : "memory");
}

/* N is even: a pair of columns is in or out as a whole. */
template <int COLUMNS>
KR_DEV void add_residual(const kr_gemm_params &p, const unit &u, const lanes &me, float *v) {
  const kr_gemm_matrix &r = p.residual;
  const int left = p.N - u.n - me.column;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int m = u.m + me.first_row + 8 * h;
    const int64_t from = u.batch * r.batch + m * r.row + u.n + me.column;
    if (m >= p.M) continue;
    if (r.dtype == KRAIT_F32) {
#pragma unroll
      for (int j = 0; j < COLUMNS / 8; j++) {
        if (8 * j < left) {
          const kr_float2 pair = *(const kr_float2 *)((const float *)r.data + from + 8 * j);
          v[4 * j + 2 * h] += pair.v[0], v[4 * j + 2 * h + 1] += pair.v[1];
        }
        hold_loads(j);
      }
      continue;
    }
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
      if (8 * j < left) {
        const uint32_t pair = *(const uint32_t *)((const uint16_t *)r.data + from + 8 * j);
        v[4 * j + 2 * h] += kr_unpack(pair, 0, DTYPE), v[4 * j + 2 * h + 1] += kr_unpack(pair, 1, DTYPE);
      }
      hold_loads(j);
    }
  }
}

template <int COLUMNS>
KR_DEV void store_floats(const kr_gemm_params &p, const unit &u, const lanes &me, const float *v) {
  const int left = p.N - u.n - me.column;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int m = u.m + me.first_row + 8 * h;
    float *to = (float *)p.out.data + u.batch * p.out.batch + m * p.out.row + u.n + me.column;
    if (m >= p.M) continue;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++)
      if (8 * j < left) *(kr_float2 *)(to + 8 * j) = (kr_float2){{v[4 * j + 2 * h], v[4 * j + 2 * h + 1]}};
  }
}

/* Goes through shared memory in blocks of 64 or 32 columns by 64 rows, as the map has them. */
template <int COLUMNS>
KR_DEV void store_boxes(const unit &u, const lanes &me, uint32_t staged, uint64_t map, const float *v) {
  enum { WIDE = KR_HOPPER_BOX(COLUMNS), PACKS = WIDE / 8, BYTES = 64 * WIDE * 2 };
  const int lane = kr_thread() & 31, row = 16 * (me.thread / 32) + lane % 16, chunk = lane / 16,
            turn = (WIDE == 64 ? row : row / 2) & (PACKS - 1);
#pragma unroll
  for (int j = 0; j < COLUMNS / 8; j += 2) {
    const uint32_t to = staged + j / PACKS * BYTES + row * WIDE * 2 + (((j & (PACKS - 1)) + chunk) ^ turn) * 16;
    kr_store_matrices(to, kr_pack(v[4 * j], v[4 * j + 1], DTYPE), kr_pack(v[4 * j + 2], v[4 * j + 3], DTYPE),
                      kr_pack(v[4 * j + 4], v[4 * j + 5], DTYPE), kr_pack(v[4 * j + 6], v[4 * j + 7], DTYPE));
  }
  kr_show_to_copies();
  sync_group(me.group);
  if (me.thread) return;
  for (int i = 0; i < COLUMNS / WIDE; i++)
    kr_store_box(map, staged + i * BYTES, u.n + WIDE * i, u.m + 64 * me.group, u.batch);
  kr_commit_stores();
}

/* Whether the sums are scaled or biased. */
KR_DEV int has_terms(const kr_gemm_params &p) {
  return p.scale != 1.0f || p.bias.data || p.bias2.data || p.row_scale.data;
}

template <int BN>
KR_DEV void scale_and_bias(const kr_gemm_params &p, const unit &u, const lanes &me, const float *bias,
                           float (&d)[BN / 2]) {
  const int m = u.m + me.first_row;
  float s[2] = {p.scale, p.scale};
  if (p.row_scale.data) {
    const int64_t from = u.batch * p.row_scale.batch;
    if (m < p.M) s[0] *= kr_load(p.row_scale.data, from + m * p.row_scale.row, p.row_scale.dtype);
    if (m + 8 < p.M) s[1] *= kr_load(p.row_scale.data, from + (m + 8) * p.row_scale.row, p.row_scale.dtype);
  }
#pragma unroll
  for (int j = 0; j < BN / 8; j++) {
    const kr_float2 b = *(const kr_float2 *)(bias + 8 * j + me.column);
#pragma unroll
    for (int i = 0; i < 4; i++) d[4 * j + i] = kr_fma(d[4 * j + i], s[i / 2], b.v[i % 2]);
  }
}

/* The exact GELU, 16 columns at a time with a branch in between: all at once would spill registers. */
template <int COLUMNS>
KR_DEV void activate(const kr_gemm_params &p, const unit &u, float *d) {
  if (p.activation != KRAIT_ACT_GELU) {
    kr_activate<COLUMNS / 2>(d, p.activation == KRAIT_ACT_GELU ? KRAIT_ACT_NONE : p.activation);
    return;
  }
#pragma unroll
  for (int j = 0; j < COLUMNS / 8; j += 2)
    if (u.n + 8 * j < p.N) kr_activate<8>(d + 4 * j, KRAIT_ACT_GELU);
}

template <int BN, int GATED, int ACTIVE>
KR_DEV void finish(const kr_gemm_params &p, const unit &u, const lanes &me, const float *bias, uint32_t staged,
                   uint64_t map_out, float (&d)[BN / 2]) {
  const int COLUMNS = GATED ? BN / 2 : BN;
  if (has_terms(p)) scale_and_bias<BN>(p, u, me, bias, d);
  if (ACTIVE) activate<COLUMNS>(p, u, d);
  if (GATED) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) d[i] *= d[(COLUMNS / 2 + i) % (BN / 2)];
  }
  if (p.residual.data) add_residual<COLUMNS>(p, u, me, d);
  if (p.out.dtype == KRAIT_F32) store_floats<COLUMNS>(p, u, me, d);
  else store_boxes<COLUMNS>(u, me, staged, map_out, d);
}

/* The group's 64 rows by BN of one stage: descriptors of part i of A and of B. */
KR_DEV uint64_t rows_of_stage(uint32_t stage, int group, int i) {
  const uint32_t a = stage + i * BM * 128 + group * BLOCK_BYTES;
  return KR_A_MN ? kr_mn_major(a, BLOCK_BYTES) : kr_k_major(a);
}
template <int BN>
KR_DEV uint64_t columns_of_stage(uint32_t stage, int i) {
  const uint32_t b = stage + PARTS * BM * 128 + i * BN * 128;
  return KR_B_MN ? kr_mn_major(b, BLOCK_BYTES) : kr_k_major(b);
}

/* Takes back the scales of rows and columns. */
template <int BN>
KR_DEV void unscale(const kr_gemm_hopper_params &h, const unit &u, const lanes &me, float (&sum)[BN / 2]) {
  const kr_gemm_params &p = h.params;
  const float *const of_n = h.unscale_n + (int64_t)u.batch * p.N + u.n + me.column;
  float of_m[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int m = u.m + me.first_row + 8 * i;
    of_m[i] = m < p.M ? h.unscale_m[(int64_t)u.batch * p.M + m] : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < BN / 8; j++) {
    kr_float2 by = {};
    if (u.n + 8 * j + me.column < p.N) by = *(const kr_float2 *)(of_n + 8 * j); /* N is even */
#pragma unroll
    for (int i = 0; i < 4; i++) { /* the smaller first: a sum times the larger alone may be infinite */
      const float a = by.v[i % 2], b = of_m[i / 2];
      sum[4 * j + i] = sum[4 * j + i] * (a < b ? a : b) * (a < b ? b : a);
    }
  }
}

#ifdef KR_PARTS
/* An infinite factor's parts are not a number where the other's low part is 0: sums that are not finite are computed
 * again by multiply-adds, in a loop over them: a copy of it for each sum takes the driver four times as long to
 * translate as all the rest. */
template <int BN>
KR_DEV void mend(const kr_gemm_params &p, const unit &u, const lanes &me, float (&sum)[BN / 2]) {
  float any = 0;
#pragma unroll
  for (int i = 0; i < BN / 2; i++) any += sum[i] * 0.0f;
  if (any == 0.0f) return;
  const int64_t k_end = min64(p.K, (int64_t)u.k + (int64_t)u.n_steps * BK);
#pragma unroll 1
  for (int i = 0; i < BN / 2; i++) {
    const int m = u.m + me.first_row + i / 2 % 2 * 8, n = u.n + 8 * (i / 4) + me.column + i % 2;
    float s = 0.0f;
#pragma unroll
    for (int j = 0; j < BN / 2; j++) s = j == i ? sum[j] : s;
    if (s - s == 0.0f || m >= p.M || n >= p.N) continue;
    const float *a = (const float *)p.A.data + u.batch * p.A.batch + m * p.A.row,
                *b = (const float *)p.B.data + u.batch * p.B.batch + n * p.B.column;
    s = 0.0f;
#pragma unroll 1
    for (int64_t k = u.k; k < k_end; k++) s = kr_fma(a[k * p.A.column], b[k * p.B.row], s);
#pragma unroll
    for (int j = 0; j < BN / 2; j++) sum[j] = j == i ? s : sum[j];
  }
}
#endif

template <int BN, int GATED, int ACTIVE>
KR_DEV void multiply_tiles(const kr_gemm_hopper_params &h, const layout &at, float *shared_bias, uint64_t maps,
                           int n_units) {
  const kr_gemm_params &p = h.params;
  const int STAGES = n_stages<BN>();
  const int thread = kr_thread() - 128, group = thread >= 128, lane = thread & 31;
  const lanes me = {group, thread & 127, 16 * (thread / 32 & 3) + lane / 4, lane % 4 * 2,
                    64 * group + 16 * (thread / 32 & 3) + lane / 4};
  float d[BN / 2], *bias = shared_bias + 256 * group;
  const uint32_t staged = at.staged + group * 64 * BN * 2;
  place from = {0, 0};
  const int terms = p.n_splits == 1 && has_terms(p);
  kr_griddep_wait();
  for (int index = kr_block_x(); index < n_units; index += kr_grid_x()) {
    const unit u = unit_at<GATED ? BN / 2 : BN>(p, index);
    if (terms) fetch_bias<BN, GATED>(p, u, me, bias);
#ifdef KR_PARTS
    float low[BN / 2]; /* sums of the products with low parts, KR_HALVES_APART times too large */
#pragma unroll
    for (int i = 0; i < BN / 2; i++) d[i] = low[i] = 0.0f;
#endif
    for (int s = 0; s < u.n_steps; s++, advance<STAGES>(from)) {
      const uint32_t stage = at.stages + from.stage * stage_bytes<BN>();
      kr_barrier_await(at.full + from.stage * 8, from.round);
#ifdef KR_PARTS
      kr_wgmma_halves<KR_A_MN, KR_B_MN>(d, low, rows_of_stage(stage, group, 0), rows_of_stage(stage, group, 1),
                                        columns_of_stage<BN>(stage, 0), columns_of_stage<BN>(stage, 1));
#else
      kr_wgmma<BN, element, KR_A_MN, KR_B_MN, 0>(d, rows_of_stage(stage, group, 0), columns_of_stage<BN>(stage, 0),
                                                 s > 0);
#endif
      if (me.thread == 0) kr_barrier_arrive(at.empty + from.stage * 8);
    }
#ifdef KR_PARTS
#pragma unroll
    for (int i = 0; i < BN / 2; i++) d[i] = kr_fma(low[i], 1.0f / KR_HALVES_APART, d[i]);
#endif
    if (PARTS > 1 || (IS_SCALED && h.unscale_n)) unscale<BN>(h, u, me, d);
#ifdef KR_PARTS
    mend<BN>(p, u, me, d);
#endif
    if (p.n_splits > 1) {
      store_partial<BN>(p, u, me, d);
      continue;
    }
    if (me.thread == 0) kr_stores_read<0>();
    sync_group(group); /* biases loaded; the previous tile has left the staging buffer */
    finish<BN, GATED, ACTIVE>(p, u, me, bias, staged, maps + 3 * sizeof(kr_gemm_map), d);
    if (terms) sync_group(group); /* all threads have read the biases */
  }
  if (me.thread == 0) kr_stores_read<0>();
}

template <int BN, int GATED, int ACTIVE>
KR_DEV void run(const kr_gemm_hopper_params &h, uint64_t maps) {
  const kr_gemm_params &p = h.params;
  KR_DYNAMIC_SHARED(shared);
  const uint32_t base = kr_shared_at(shared);
  const layout at = lay_out<BN>(base);
  const int n_units = p.n_m * p.n_n * p.P * p.n_splits;
  kr_launch_dependents();
  if (kr_thread() == 0) {
    for (int s = 0; s < n_stages<BN>(); s++)
      kr_barrier_open(at.full + s * 8, 1), kr_barrier_open(at.empty + s * 8, 2);
    kr_barriers_opened();
    for (int i = 0; i < 2; i++) kr_fetch_map(maps + i * sizeof(kr_gemm_map));
  }
  kr_sync();
  if (kr_thread() < 128) {
    kr_give_registers<40>();
    const int waits = PARTS > 1 || (IS_SCALED && h.unscale_n);
    if (kr_thread() == 0) copy_tiles<BN, GATED>(p, at, maps, n_units, waits);
  } else {
    kr_take_registers<232>();
    multiply_tiles<BN, GATED, ACTIVE>(h, at, (float *)(shared + (at.bias - base)), maps, n_units);
  }
}

#if !KR_GATED || defined(KR_EMULATE) /* the emulator has a file's kernels all or not at all */
KR_KERNEL void KR_BOUNDS(KR_HOPPER_THREADS, 1) kr_gemm_hopper(kr_gemm_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_gemm_hopper, maps);
  run<KR_BN, 0, 0>(params, maps);
}
#endif
/* With an activation, which most products have not, and which is half of the code that the driver translates. */
KR_KERNEL void KR_BOUNDS(KR_HOPPER_THREADS, 1) kr_gemm_hopper_active(kr_gemm_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_gemm_hopper_active, maps);
  run<KR_BN, KR_GATED, 1>(params, maps);
}
