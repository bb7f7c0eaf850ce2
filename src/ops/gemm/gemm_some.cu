/* gemm_some.cu: up to 64 rows of A (tokens) times weights whose k lie side by side, 16 bits, by a warpgroup (sm_90a):
 * bound by reading the weights once. A block has KR_TILE columns and a part of K: one warp copies boxes of rows and
 * weights into a ring of stages, four multiply. The blocks that share a K are a cluster; each finishes some of the
 * rows, whose sums the others put into its shared memory. Weights are asked for before the kernel before this one has
 * ended (overlap.cuh). */
#include "gemm_finish.cuh"
#include "gemm_some.h"
#include "overlap.cuh"
#include "wgmma.cuh"

#define KR_TO_39 KR_TO_9 ", " KR_TEN(1) ", " KR_TEN(2) ", " KR_TEN(3)
#define KR_INOUT_80 KR_INOUT32(0), KR_INOUT8(32)
KR_WGMMA_SHAPES(80, KR_TO_39)

#ifdef KR_HALF
typedef kr_f16 element;
#else
typedef kr_bf16 element;
#endif
enum {
  ROWS = KR_SOME_ROWS,
  TILE = KR_TILE,
  STAGE_BYTES = KR_SOME_STAGE_BYTES(TILE),
  SUMS_ROW = KR_SOME_SUMS_ROW(TILE),
  RUN = 8 /* columns that a thread finishes at a time */
};

typedef struct part {
  int rank, n, first, n_steps; /* in the cluster; first column; first stage of K and how many */
} part;

KR_DEV part part_of(const kr_gemm_some_plan &p) {
  const int tile = kr_block_x() / p.n_splits, rank = kr_block_x() - tile * p.n_splits;
  const int first = p.n_steps * rank / p.n_splits;
  return (part){rank, tile * TILE, first, p.n_steps * (rank + 1) / p.n_splits - first};
}

/* Where an address of this block's shared memory is in that of another block of the cluster. */
KR_DEV uint32_t there(uint32_t address, int rank) {
  uint32_t v;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(v) : "r"(address), "r"(rank));
  return v;
}
KR_DEV void put_two(uint32_t to, float a, float b) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" : : "r"(to), "f"(a), "f"(b) : "memory");
}

/* All threads of the cluster arrive, and wait, in turn. */
KR_DEV void arrive(void) { asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory"); }
KR_DEV void await(void) { asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory"); }

KR_DEV void load_weights(const part &at, uint32_t stage, uint32_t full, uint64_t maps, int s) {
  kr_barrier_expect(full, STAGE_BYTES);
  kr_load_box(stage + ROWS * 128, maps, full, (at.first + s) * 64, at.n, 0);
}

KR_DEV void copy_stages(const part &at, int n_stages, uint32_t stages, uint32_t full, uint32_t empty, uint64_t maps) {
  const int early = at.n_steps < n_stages ? at.n_steps : n_stages;
  for (int s = 0; s < early; s++) load_weights(at, stages + s * STAGE_BYTES, full + s * 8, maps, s);
  kr_others_done();
  int stage = 0;
  uint32_t round = 1;
  for (int s = 0; s < at.n_steps; s++) {
    if (s >= n_stages) {
      kr_barrier_await(empty + stage * 8, round);
      load_weights(at, stages + stage * STAGE_BYTES, full + stage * 8, maps, s);
    }
    kr_load_box(stages + stage * STAGE_BYTES, maps + sizeof(kr_gemm_map), full + stage * 8, (at.first + s) * 64, 0, 0);
    if (++stage == n_stages) stage = 0, round ^= 1;
  }
}

/* A stage's products are under way while the next one's are asked for; then it is given back. */
KR_DEV void multiply_stages(const part &at, int n_stages, uint32_t stages, uint32_t full, uint32_t empty,
                            float (&d)[TILE / 2]) {
  int stage = 0, before = 0;
  uint32_t round = 0;
  for (int s = 0; s < at.n_steps; s++) {
    const uint32_t from = stages + stage * STAGE_BYTES;
    kr_barrier_await(full + stage * 8, round);
    kr_wgmma<TILE, element, 0, 0, 1>(d, kr_k_major(from), kr_k_major(from + ROWS * 128), s > 0);
    if (kr_thread() == 0 && s > 0) kr_barrier_arrive(empty + before * 8);
    before = stage;
    if (++stage == n_stages) stage = 0, round ^= 1;
  }
  kr_wgmma_wait<TILE, 0>(d);
}

/* To the block that finishes a row, where the sums of this part stand behind those of the parts before. */
KR_DEV void hand_over(const kr_gemm_some_plan &p, const part &at, uint32_t sums, const float (&d)[TILE / 2]) {
  const int lane = kr_thread() & 31, rows = ROWS / p.n_splits;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int m = 16 * (kr_thread() / 32) + lane / 4 + 8 * h, owner = m / rows;
    const uint32_t to = there(sums + ((at.rank * rows + m - owner * rows) * SUMS_ROW + lane % 4 * 2) * 4, owner);
#pragma unroll
    for (int j = 0; j < TILE / 8; j++) put_two(to + j * 32, d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
  }
}

KR_DEV void finish_rows(const kr_gemm_some_plan &p, const part &at, const float *sums) {
  const int rows = ROWS / p.n_splits;
  for (int i = kr_thread(); i < rows * (TILE / RUN); i += 128) {
    const int row = i / (TILE / RUN), m = at.rank * rows + row, column = i % (TILE / RUN) * RUN;
    if (m >= p.plan.M || at.n + column >= p.plan.N) continue;
    const float *from = sums + row * SUMS_ROW + column;
    kr_column_terms<RUN> terms;
    float v[RUN] = {};
#pragma unroll
    for (int s = 0; s < KR_SOME_MOST_SPLITS; s++) {
      if (s >= p.n_splits) continue;
      const kr_float4 *one = (const kr_float4 *)(from + s * rows * SUMS_ROW);
#pragma unroll
      for (int k = 0; k < RUN; k++) v[k] += one[k / 4].v[k % 4];
    }
    kr_read_terms<RUN>(p.plan, at.n + column, terms);
    kr_finish_run<RUN, 0>(p.plan, terms, 0, m, at.n + column, v, v);
  }
}

KR_KERNEL void KR_BOUNDS(KR_SOME_THREADS, 1) kr_gemm_some(kr_gemm_some_plan plan) {
  KR_DYNAMIC_SHARED(shared);
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_gemm_some, maps);
  const int n_stages = plan.n_stages;
  const uint32_t base = kr_shared_at(shared), stages = (base + 1023) & ~1023u, sums = stages + n_stages * STAGE_BYTES,
                 full = sums + ROWS * SUMS_ROW * 4, empty = full + n_stages * 8;
  const part at = part_of(plan);
  kr_next_may_start();
  arrive();
  if (kr_thread() == 128) {
    for (int s = 0; s < n_stages; s++) kr_barrier_open(full + s * 8, 1), kr_barrier_open(empty + s * 8, 1);
    kr_barriers_opened();
    for (int i = 0; i < 2; i++) kr_fetch_map(maps + i * sizeof(kr_gemm_map));
  }
  kr_sync();
  if (kr_thread() >= 128) {
    if (kr_thread() == 128) copy_stages(at, n_stages, stages, full, empty, maps);
    kr_sync_warp();
    await(), arrive(), await();
    return;
  }
  float d[TILE / 2];
  multiply_stages(at, n_stages, stages, full, empty, d);
  kr_others_done();
  await(); /* the others have begun */
  hand_over(plan, at, sums, d);
  arrive(), await();
  finish_rows(plan, at, (const float *)(shared + (sums - base)));
}
