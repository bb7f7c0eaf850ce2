/* gemm_m64.cu: up to 64 rows of A (tokens) times k-contiguous 16-bit weights, by wgmma (sm_90a): bound by reading the
 * weights once. A block takes 64, 80 or 96 columns and one K split: a producer warp copies boxes of rows and weights
 * into a ring of stages, four consumer warps multiply. If there are more columns than multiprocessors take at once, a
 * block takes one tile of 96 after another, and its copies go on across them. Blocks sharing K form a cluster; each
 * finishes some of the rows, whose partial sums the others store into its shared memory. Weight loads are issued before
 * the preceding kernel has ended (overlap.cuh). */
#include "gemm_finish.cuh"
#include "gemm_m64.h"
#include "overlap.cuh"
#include "wgmma.cuh"

#define KR_TO_39 KR_TO_9 ", " KR_TEN(1) ", " KR_TEN(2) ", " KR_TEN(3)
#define KR_INOUT_80 KR_INOUT32(0), KR_INOUT8(32)
KR_WGMMA_SHAPES(80, KR_TO_39)

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif
enum {
  ROWS = KR_SOME_ROWS,
  MOST = KR_SOME_MOST_TILE,
  RUN = 8 /* columns a thread finishes at a time */
};

typedef struct part {
  int rank, n, first, n_steps; /* in the cluster; first column; first stage of K and number of stages */
  int next;                    /* columns from a tile of this block to its next */
} part;

KR_DEV part part_of(const kr_gemm_m64_params &p) {
  const int tile = kr_block_x() / p.n_splits, rank = kr_block_x() - tile * p.n_splits;
  const int first = p.n_steps * rank / p.n_splits;
  return (part){rank, tile * p.tile, first, p.n_steps * (rank + 1) / p.n_splits - first, kr_grid_x() * p.tile};
}
KR_DEV int tiles_of(const kr_gemm_m64_params &p, const part &at) {
  return p.is_whole ? (p.params.N - at.n + at.next - 1) / at.next : 1;
}

/* A step through the stages of all tiles of the block. */
typedef struct step {
  int s, n, stage;
  uint32_t round;
} step;
KR_DEV void advance(step &to, const kr_gemm_m64_params &p, const part &at) {
  if (++to.stage == p.n_stages) to.stage = 0, to.round ^= 1;
  if (++to.s == at.n_steps) to.s = 0, to.n += at.next;
}

/* Layout of shared memory. */
typedef struct places {
  uint32_t stages, stage_bytes, sums, sums_row, full, empty;
} places;

KR_DEV places places_of(const kr_gemm_m64_params &p, uint32_t base) {
  places at;
  at.stages = (base + 1023) & ~1023u, at.stage_bytes = (uint32_t)KR_SOME_STAGE_BYTES(p.tile);
  at.sums = at.stages + p.n_stages * at.stage_bytes, at.sums_row = (uint32_t)KR_SOME_SUMS_ROW(p.tile);
  at.full = at.sums + ROWS * at.sums_row * 4, at.empty = at.full + p.n_stages * 8;
  return at;
}

/* Maps an address of this block's shared memory to that of another block of the cluster. */
KR_DEV uint32_t there(uint32_t address, int rank) {
  uint32_t v;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(v) : "r"(address), "r"(rank));
  return v;
}
KR_DEV void put_two(uint32_t to, float a, float b) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" : : "r"(to), "f"(a), "f"(b) : "memory");
}

/* kr_load_box with an L2 cache policy. */
KR_DEV void load_box_by(uint64_t policy, uint32_t to, uint64_t map, uint32_t barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, "
      "0}], [%4], %5;"
      :
      : "r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier), "l"(policy)
      : "memory");
}

/* Split cluster barrier: all threads arrive, then wait. */
KR_DEV void arrive(void) { asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory"); }
KR_DEV void await(void) { asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory"); }

KR_DEV void load_weights(const part &at, const places &in, uint64_t once, const kr_gemm_m64_params &p, uint64_t maps,
                         const step &of) {
  const uint32_t to = in.stages + of.stage * in.stage_bytes, full = in.full + of.stage * 8;
  kr_barrier_expect(full, KR_SOME_STAGE_BYTES(p.tile));
#pragma unroll
  for (int i = 0; i < KR_SOME_BOXES; i++)
    load_box_by(once, to + i * KR_SOME_BOX_BYTES(p.tile) + ROWS * 128, maps, full,
                (at.first + of.s) * KR_SOME_K + 64 * i, of.n);
}

KR_DEV void copy_stages(const kr_gemm_m64_params &p, const part &at, const places &in, uint64_t maps) {
  const int n = at.n_steps * tiles_of(p, at), early = n < p.n_stages ? n : p.n_stages;
  const uint64_t once = kr_once();
  step of = {0, at.n, 0, 1};
  for (int i = 0; i < early; i++, advance(of, p, at)) load_weights(at, in, once, p, maps, of);
  kr_griddep_wait();
  of = step{0, at.n, 0, 1};
  for (int i = 0; i < n; i++, advance(of, p, at)) {
    const uint32_t to = in.stages + of.stage * in.stage_bytes, full = in.full + of.stage * 8;
    if (i >= p.n_stages) {
      kr_barrier_await(in.empty + of.stage * 8, of.round);
      load_weights(at, in, once, p, maps, of);
    }
#pragma unroll
    for (int k = 0; k < KR_SOME_BOXES; k++)
      kr_load_box(to + k * KR_SOME_BOX_BYTES(p.tile), maps + sizeof(kr_gemm_map), full,
                  (at.first + of.s) * KR_SOME_K + 64 * k, 0, 0);
  }
}

/* A tile's stages. A box's wgmma is in flight while the next one's is issued; the stage before is released then. */
template <int TILE>
KR_DEV void multiply_stages(const kr_gemm_m64_params &p, const part &at, const places &in, step &of,
                            float (&sums)[MOST / 2]) {
  float d[TILE / 2];
  int before = 0;
  for (int s = 0; s < at.n_steps; s++, advance(of, p, at)) {
    const uint32_t from = in.stages + of.stage * KR_SOME_STAGE_BYTES(TILE);
    kr_barrier_await(in.full + of.stage * 8, of.round);
#pragma unroll
    for (int i = 0; i < KR_SOME_BOXES; i++) {
      const uint32_t box = from + i * KR_SOME_BOX_BYTES(TILE);
      kr_wgmma<TILE, element, 0, 0, 1>(d, kr_k_major(box), kr_k_major(box + ROWS * 128), s + i > 0);
      if (i == 0 && kr_thread() == 0 && s > 0) kr_barrier_arrive(in.empty + before * 8);
    }
    before = of.stage;
  }
  kr_wgmma_wait<TILE, 0>(d);
  if (kr_thread() == 0) kr_barrier_arrive(in.empty + before * 8);
#pragma unroll
  for (int i = 0; i < TILE / 2; i++) sums[i] = d[i];
}

/* Stores a tile's results from registers, without the detour by shared memory that sums of several blocks take. */
KR_DEV void store_whole(const kr_gemm_m64_params &p, int n, const float (&d)[MOST / 2]) {
  const int lane = kr_thread() & 31, m = 16 * (kr_thread() / 32) + lane / 4;
  const int left = p.params.N - n < p.tile ? p.params.N - n : p.tile, at = n + lane % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int64_t row = (m + 8 * h) * p.out_row;
    if (m + 8 * h >= p.params.M) continue;
    uint32_t *const halves = (uint32_t *)((uint16_t *)p.out + row + at);
    kr_float2 *const floats = (kr_float2 *)((float *)p.out + row + at);
#pragma unroll
    for (int j = 0; j < MOST / 8; j++) {
      const float a = d[4 * j + 2 * h], b = d[4 * j + 2 * h + 1];
      if (8 * j >= left) continue;
      if (p.params.out.dtype == DTYPE)
        halves[4 * j] = kr_pack(a, b, DTYPE);
      else
        floats[4 * j] = kr_float2{{a, b}};
    }
  }
}

/* All tiles of the block, each but the last one stored; returns the last one's first column. The host gives several
 * only to blocks of MOST columns: the other shapes need no loop. */
template <int TILE>
KR_DEV int multiply_tiles(const kr_gemm_m64_params &p, const part &at, const places &in, float (&d)[MOST / 2]) {
  step of = {0, at.n, 0, 0};
  int n = at.n;
  multiply_stages<TILE>(p, at, in, of, d);
  if (TILE < MOST || !p.is_whole || n + at.next >= p.params.N) return n;
  kr_griddep_wait();
#pragma unroll 1
  for (; n + at.next < p.params.N; n += at.next) {
    store_whole(p, n, d);
    multiply_stages<TILE>(p, at, in, of, d);
  }
  return n;
}

/* Stores the partial sums to the block that finishes the row, after those of lower ranks. */
KR_DEV void hand_over(const kr_gemm_m64_params &p, const part &at, const places &in, const float (&d)[MOST / 2]) {
  const int lane = kr_thread() & 31, rows = ROWS / p.n_splits;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int m = 16 * (kr_thread() / 32) + lane / 4 + 8 * h, owner = m / rows;
    const uint32_t to = there(in.sums + ((at.rank * rows + m - owner * rows) * in.sums_row + lane % 4 * 2) * 4, owner);
#pragma unroll
    for (int j = 0; j < MOST / 8; j++)
      if (8 * j < p.tile) put_two(to + j * 32, d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
  }
}

KR_DEV void add_sums(const float *from, int n_splits, int64_t step, float (&v)[RUN]) {
#pragma unroll 1
  for (int s = 0; s < n_splits; s++, from += step) {
    const kr_float4 low = *(const kr_float4 *)from, high = *((const kr_float4 *)from + 1);
#pragma unroll
    for (int k = 0; k < RUN; k++) v[k] += k < 4 ? low.v[k % 4] : high.v[k % 4];
  }
}

/* Code that runs once per launch is slow: a layer's weights have evicted it from the caches, so it is fetched from
 * memory. Hence the common epilogue is a short loop, and the general one follows it. */
KR_DEV void finish_rows(const kr_gemm_m64_params &p, const part &at, const places &in, const float *sums) {
  const int rows = ROWS / p.n_splits, runs = p.tile / RUN, row_step = 128 / runs, run_step = 128 - row_step * runs;
  int row = kr_thread() / runs, run = kr_thread() - row * runs;
#pragma unroll 1
  for (; row < rows; row += row_step, run += run_step) {
    if (run >= runs) run -= runs, row++;
    const int m = at.rank * rows + row, n = at.n + RUN * run;
    if (row >= rows || m >= p.params.M || n >= p.params.N) continue;
    float v[RUN] = {};
    add_sums(sums + row * in.sums_row + RUN * run, p.n_splits, (int64_t)rows * in.sums_row, v);
    if (p.is_plain) {
      kr_raw16 raw;
#pragma unroll
      for (int i = 0; i < 4; i++) raw.w[i] = kr_pack(v[2 * i], v[2 * i + 1], DTYPE);
      *(kr_raw16 *)((uint16_t *)p.out + m * p.out_row + n) = raw;
      continue;
    }
    kr_column_terms<RUN> terms;
    kr_read_terms<RUN>(p.params, n, terms);
    kr_finish_run<RUN, 0>(p.params, terms, 0, m, n, v, v);
  }
}

KR_KERNEL void KR_BOUNDS(KR_SOME_THREADS, 1) kr_gemm_m64(kr_gemm_m64_params params) {
  KR_DYNAMIC_SHARED(shared);
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_gemm_m64, maps);
  const uint32_t base = kr_shared_at(shared);
  const places in = places_of(params, base);
  const part at = part_of(params);
  kr_launch_dependents();
  arrive();
  if (kr_thread() == 128) {
    for (int s = 0; s < params.n_stages; s++) kr_barrier_open(in.full + s * 8, 1), kr_barrier_open(in.empty + s * 8, 1);
    kr_barriers_opened();
    for (int i = 0; i < 2; i++) kr_fetch_map(maps + i * sizeof(kr_gemm_map));
  }
  kr_sync();
  if (kr_thread() >= 128) {
    if (kr_thread() == 128) copy_stages(params, at, in, maps);
    kr_sync_warp();
    await();
    if (!params.is_whole) arrive(), await();
    return;
  }
  float d[MOST / 2] = {};
  const int n = params.tile == 64   ? multiply_tiles<64>(params, at, in, d)
                : params.tile == 80 ? multiply_tiles<80>(params, at, in, d)
                                  : multiply_tiles<96>(params, at, in, d);
  kr_griddep_wait();
  await(); /* the other blocks have started */
  if (params.is_whole) return store_whole(params, n, d);
  hand_over(params, at, in, d);
  arrive(), await();
  finish_rows(params, at, in, (const float *)(shared + (in.sums - base)));
}
