/* conv3d_hopper.cu: the causal convolution of 16-bit maps by wgmma (sm_90a), without unfolding: a tile is a rectangle
 * of positions of one frame, and what a tap reads of it is a box of the map, moved by the tap's place, whose outside a
 * tensor map reads as zeros. Persistent blocks loop over tiles of 128 BLOCKS positions by BN channels. One producer
 * warp copies boxes of 64 channels of the map and of the weights into a ring of stages; two consumer warpgroups
 * multiply and finish BLOCKS times 64 positions each; the result's boxes are stored while the next tile is in
 * progress. */
#include "conv3d.cuh"
#include "products.cuh"

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif
enum { BLOCKS = KR_BLOCKS, BN = KR_BN, BM = 128 * BLOCKS, BK = 64, BLOCK_BYTES = 64 * 128 };
enum { STAGES = KR_CONV3D_HOPPER_STAGES(BLOCKS, BN), STAGE_BYTES = (BM + BN) * 128 };

/* A tile's first position and channel. */
typedef struct unit {
  int t, h, w, n;
} unit;

KR_DEV unit unit_at(const kr_conv3d_params &p, int index) {
  const int tile = (int)kr_divide((uint32_t)index, p.by_n), line = (int)kr_divide((uint32_t)tile, p.by_across);
  unit u;
  u.n = (index - tile * p.n_n) * BN, u.w = (tile - line * p.n_w) * p.columns;
  u.t = (int)kr_divide((uint32_t)line, p.by_frame), u.h = (line - u.t * p.n_h) * p.lines;
  return u;
}

/* Stage in the ring and barrier phase. */
typedef struct place {
  int stage;
  uint32_t round;
} place;
KR_DEV void advance(place &at) {
  if (++at.stage == STAGES) at.stage = 0, at.round ^= 1;
}

typedef struct layout {
  uint32_t stages, staged, bias, full, empty; /* shared memory */
} layout;
KR_DEV layout lay_out(uint32_t base) {
  layout at;
  at.stages = (base + 1023) & ~1023u;
  at.staged = at.stages + STAGES * STAGE_BYTES;
  at.bias = at.staged + BM * BN * 2;
  at.full = at.bias + 2 * 256 * 4;
  at.empty = at.full + STAGES * 8;
  return at;
}

/* ---- producer ---- */

KR_DEV void copy_tiles(const kr_conv3d_params &p, const layout &at, uint64_t maps, int n_units) {
  const uint64_t map_w = maps + 2 * sizeof(kr_conv3d_tensor);
  place to = {0, 1};
  for (int index = kr_block_x(); index < n_units; index += kr_grid_x()) {
    const unit u = unit_at(p, index);
    for (int tap = 0, i = 0, j = 0, l = 0; tap < p.TAPS; tap++) {
      const int e = u.t * p.ST + i, is_state = e < p.front && p.states.data != NULL,
                frame = e >= p.front ? e - p.front : is_state ? e : 0, h = u.h * p.SH + j - p.PH,
                w = u.w * p.SW + l - p.PW;
      const uint64_t map = maps + (is_state ? sizeof(kr_conv3d_tensor) : 0);
      for (int c = 0; c < p.C; c += BK, advance(to)) {
        const uint32_t stage = at.stages + to.stage * STAGE_BYTES, full = at.full + to.stage * 8;
        kr_barrier_await(at.empty + to.stage * 8, to.round);
        kr_barrier_expect(full, STAGE_BYTES);
        ::kr_load_box(stage, map, full, c, w, h, frame);
        kr_load_box(stage + BM * 128, map_w, full, c, tap, u.n);
      }
      if (++l == p.KW) l = 0, j++;
      if (j == p.KH) j = 0, i++;
    }
  }
}

/* ---- consumer warpgroups ---- */

typedef struct lanes {
  int group, thread, column, first; /* warpgroup 0 or 1; thread of its 128; channels 8 j + column; of a block */
} lanes;

KR_DEV void sync_group(int group) {
  if (group) kr_sync_some<2, 128>();
  else kr_sync_some<1, 128>();
}

/* K is even: a pair of channels is in or out as a whole. position: of the tile. */
KR_DEV void add_residual(const kr_conv3d_params &p, const unit &u, const lanes &me, int block, float (&d)[BN / 2]) {
  const kr_conv3d_map &r = p.residual;
  const int left = p.K - u.n - me.column;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int position = 64 * block + me.first + 8 * half, line = (int)kr_divide((uint32_t)position, p.by_columns),
              h = u.h + line, w = u.w + position - line * p.columns;
    const uint16_t *from = (const uint16_t *)r.data + kr_spot_at(r, (kr_spot){u.t, h, w}) + u.n + me.column;
    if (h >= p.OH || w >= p.OW) continue;
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
      if (8 * j < left) {
        const uint32_t pair = *(const uint32_t *)(from + 8 * j);
        d[4 * j + 2 * half] += kr_unpack(pair, 0, DTYPE), d[4 * j + 2 * half + 1] += kr_unpack(pair, 1, DTYPE);
      }
      if (j % 8 == 7) asm volatile("" : : : "memory"); /* registers hold only a few at a time */
    }
  }
}

/* A block of 64 positions goes through shared memory, 64 channels after another. */
KR_DEV void stage_block(const lanes &me, uint32_t staged, const float (&v)[BN / 2]) {
  const int lane = kr_thread() & 31, row = 16 * (me.thread / 32) + lane % 16, chunk = lane / 16;
#pragma unroll
  for (int j = 0; j < BN / 8; j += 2) {
    const uint32_t to = staged + j / 8 * BLOCK_BYTES + row * 128 + (((j & 7) + chunk) ^ (row & 7)) * 16;
    kr_store_matrices(to, kr_pack(v[4 * j], v[4 * j + 1], DTYPE), kr_pack(v[4 * j + 2], v[4 * j + 3], DTYPE),
                      kr_pack(v[4 * j + 4], v[4 * j + 5], DTYPE), kr_pack(v[4 * j + 6], v[4 * j + 7], DTYPE));
  }
}

KR_DEV void finish_block(const kr_conv3d_params &p, const unit &u, const lanes &me, const float *bias, int block,
                         uint32_t staged, float (&d)[BN / 2]) {
  if (p.bias.data) {
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
      const kr_float2 b = *(const kr_float2 *)(bias + 8 * j + me.column);
#pragma unroll
      for (int i = 0; i < 4; i++) d[4 * j + i] += b.v[i % 2];
    }
  }
  if (p.residual.data) add_residual(p, u, me, block, d);
  stage_block(me, staged, d);
}

KR_DEV void store_tile(const kr_conv3d_params &p, const unit &u, const lanes &me, uint32_t staged, uint64_t map) {
  const int lines = p.lines / (2 * BLOCKS);
  for (int b = 0; b < BLOCKS; b++)
    for (int i = 0; i < BN / 64; i++)
      ::kr_store_box(map, staged + (b * (BN / 64) + i) * BLOCK_BYTES, u.n + 64 * i, u.w,
                   u.h + (me.group * BLOCKS + b) * lines, u.t);
  kr_commit_stores();
}

KR_DEV void multiply_tiles(const kr_conv3d_params &p, const layout &at, float *shared_bias, uint64_t maps,
                           int n_units) {
  const int thread = kr_thread() - 128, group = thread >= 128, lane = thread & 31;
  const lanes me = {group, thread & 127, lane % 4 * 2, 16 * (thread / 32 & 3) + lane / 4};
  const uint32_t staged = at.staged + group * (BM / 2) * BN * 2;
  const int n_steps = p.TAPS * ((p.C + BK - 1) / BK);
  float d[BLOCKS][BN / 2], *bias = shared_bias + 256 * group;
  place from = {0, 0};
  for (int index = kr_block_x(); index < n_units; index += kr_grid_x()) {
    const unit u = unit_at(p, index);
    for (int c = me.thread; c < BN && p.bias.data; c += 128) bias[c] = kr_bias_of(p, u.n + c);
    for (int s = 0; s < n_steps; s++, advance(from)) {
      const uint32_t stage = at.stages + from.stage * STAGE_BYTES;
      kr_barrier_await(at.full + from.stage * 8, from.round);
      const uint64_t b = kr_k_major(stage + BM * 128);
#if KR_BLOCKS == 2
      kr_wgmma<BN, element, 0, 0, 1>(d[0], kr_k_major(stage + 2 * group * BLOCK_BYTES), b, s > 0);
      kr_wgmma<BN, element, 0, 0, 0>(d[1], kr_k_major(stage + (2 * group + 1) * BLOCK_BYTES), b, s > 0);
      kr_wgmma_wait<BN, 0>(d[0]);
#else
      kr_wgmma<BN, element, 0, 0, 0>(d[0], kr_k_major(stage + group * BLOCK_BYTES), b, s > 0);
#endif
      if (me.thread == 0) kr_barrier_arrive(at.empty + from.stage * 8);
    }
    if (me.thread == 0) kr_stores_read<0>();
    sync_group(group); /* biases loaded; the previous tile has left the staging buffer */
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
      finish_block(p, u, me, bias, group * BLOCKS + b, staged + b * 64 * BN * 2, d[b]);
    kr_show_to_copies();
    sync_group(group);
    if (me.thread == 0) store_tile(p, u, me, staged, maps + 3 * sizeof(kr_conv3d_tensor));
  }
  if (me.thread == 0) kr_stores_read<0>();
}

KR_KERNEL void KR_BOUNDS(KR_CONV3D_HOPPER_THREADS, 1) kr_conv3d_hopper(kr_conv3d_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_conv3d_hopper, maps);
  const kr_conv3d_params &p = params.params;
  KR_DYNAMIC_SHARED(shared);
  const uint32_t base = kr_shared_at(shared);
  const layout at = lay_out(base);
  const int n_units = p.n_m * p.n_n;
  if (kr_thread() == 0) {
    for (int s = 0; s < STAGES; s++) kr_barrier_open(at.full + s * 8, 1), kr_barrier_open(at.empty + s * 8, 2);
    kr_barriers_opened();
    for (int i = 0; i < 4; i++) kr_fetch_map(maps + i * sizeof(kr_conv3d_tensor));
  }
  kr_sync();
  if (kr_thread() < 128) {
    kr_give_registers<40>();
    if (kr_thread() == 0) copy_tiles(p, at, maps, n_units);
  } else {
    kr_take_registers<232>();
    multiply_tiles(p, at, (float *)(shared + (at.bias - base)), maps, n_units);
  }
}
