/* ssd_hopper_tiles.cuh: shared code of the SSD's warpgroup kernels: a warpgroup's lanes, tiles of 64 rows of 128 bytes
 * between registers and shared memory, and tile products. */
#ifndef KR_SSD_HOPPER_TILES_CUH
#define KR_SSD_HOPPER_TILES_CUH

#include "overlap.cuh"
#include "ssd_mma.cuh"
#include "wgmma.cuh"

#include "ssd_hopper_params.h"

enum { N = KR_N, BLOCKS = KR_N / 64, TILE = KR_SSD_HOPPER_TILE, OWN_BARRIER = 1 };

/* Byte offset into the gradient's S or M. */
KR_DEV int64_t kept_at(const kr_ssd_params &p, int b, int h, int block, int chunk, int n_chunks) {
  return ((((int64_t)b * n_chunks + chunk) * p.H + h) * p.blocks_per_head + block) * (BLOCKS * TILE);
}

#ifdef KR_EMULATE
KR_DEV uint32_t uniform(uint32_t v) { return v; }
#else
/* Tells the compiler that a value is warp-uniform: descriptors are then built once per warp. */
KR_DEV uint32_t uniform(uint32_t v) {
  uint32_t u;
  asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(u) : "r"(v));
  return u;
}
#endif

/* Whether the registers that a block can be launched with suffice for one warpgroup with `given` per thread and the
 * others with `taken`. */
KR_DEV constexpr int enough_registers(int threads, int given, int taken) {
  return 128 * given + (threads - 128) * taken <= 65536 / threads / 8 * 8 * threads;
}

/* w: index among the consumer warpgroups, which follow the first. */
typedef struct lanes {
  int w, thread, warp, lane, g, q, row;
} lanes;

KR_DEV lanes lanes_of(int thread) {
  const int t = thread & 127;
  return lanes{(int)uniform(thread / 128) - 1, t, t >> 5, t & 31, (t & 31) >> 2, t & 3,
               16 * (t >> 5) + ((t & 31) >> 2)};
}

/* Barrier phase parity of a ring's use-th use. */
KR_DEV uint32_t parity_of(int use, int n_stages) { return (uint32_t)(use / n_stages) & 1; }

KR_DEV void sync_group(const lanes &me) { kr_sync_at<128>(OWN_BARRIER + me.w); }

/* Releases a stage: one arrival per warp. */
KR_DEV void release(uint32_t barrier, const lanes &me) {
  kr_sync_warp();
  if (me.lane == 0) kr_barrier_arrive(barrier);
}

/* Stores four 8 x 8 matrices of pairs to rows row and row + 8, 16-byte pieces `chunk` and the next, of a tile. */
KR_DEV void put_matrices(unsigned char *tile, const lanes &me, int chunk, uint32_t a, uint32_t b, uint32_t c,
                         uint32_t d) {
#ifdef KR_EMULATE
  *(uint32_t *)(tile + kr_swizzle<128>(me.row, chunk) + 4 * me.q) = a;
  *(uint32_t *)(tile + kr_swizzle<128>(me.row + 8, chunk) + 4 * me.q) = b;
  *(uint32_t *)(tile + kr_swizzle<128>(me.row, chunk + 1) + 4 * me.q) = c;
  *(uint32_t *)(tile + kr_swizzle<128>(me.row + 8, chunk + 1) + 4 * me.q) = d;
#else
  kr_store_matrices(kr_shared_at(tile + kr_swizzle<128>(16 * me.warp + (me.lane & 15), chunk + (me.lane >> 4))), a, b,
                    c, d);
#endif
}

/* Loads the same four matrices of a warp's rows. */
KR_DEV void take_matrices(uint32_t (&d)[4], const unsigned char *tile, const lanes &me, int chunk) {
  kr_load_matrices(d, tile + kr_swizzle<128>(16 * me.warp + (me.lane & 15), chunk + (me.lane >> 4)));
}

/* Stores 64 columns of a warp's rows, from accumulators, to a tile, where its lanes may read them. */
KR_DEV void put_product(unsigned char *tile, const lanes &me, const float *d) {
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const float *const e = d + 4 * j;
    put_matrices(tile, me, j, pack(e[0], e[1]), pack(e[2], e[3]), pack(e[4], e[5]), pack(e[6], e[7]));
  }
  kr_sync_warp();
}

/* Of a value for each of 64 columns, those of a lane's in 32 of them. */
template <int HALF>
KR_DEV void values_of_columns(const float *values, const lanes &me, kr_float2 (&to)[4]) {
#pragma unroll
  for (int j = 0; j < 4; j++) to[j] = *(const kr_float2 *)&values[32 * HALF + 8 * j + 2 * me.q];
}

/* Adds eight storage elements to eight others. */
KR_DEV void add_halves(kr_raw16 &to, const kr_raw16 &v) {
#pragma unroll
  for (int k = 0; k < 4; k++)
    to.w[k] = pack(kr_unpack(to.w[k], 0, KR_DTYPE) + kr_unpack(v.w[k], 0, KR_DTYPE),
                   kr_unpack(to.w[k], 1, KR_DTYPE) + kr_unpack(v.w[k], 1, KR_DTYPE));
}

/* Of float16: whether one of eight elements is infinite or NaN. */
KR_DEV int has_infinity(const kr_raw16 &v) {
  uint32_t all = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) all |= (v.w[k] & 0x7c007c00u) + 0x04000400u;
  return KR_DTYPE == KRAIT_F16 && (all & 0x80008000u) != 0;
}

/* An operand's descriptor advanced by some bytes: one addition per step instead of a new descriptor. */
KR_DEV uint64_t further(uint64_t factor, int bytes) {
  return (factor & 0xffffffff00000000ull) | (uint32_t)((uint32_t)factor + (uint32_t)bytes / 16);
}

/* Starts d = A F^T, A and F of 64 rows and N columns; in flight on return. */
KR_DEV void start_product(uint32_t A, uint32_t F, float (&d)[32]) {
  const uint64_t a = kr_k_major(A), f = kr_k_major(F);
  kr_wgmma_begin();
#pragma unroll
  for (int i = 0; i < BLOCKS; i++)
#pragma unroll
    for (int k = 0; k < 4; k++)
      kr_wgmma_step<64, half_type, 0, 0>(d, further(a, i * TILE + k * KR_K_STEP_BYTES),
                                         further(f, i * TILE + k * KR_K_STEP_BYTES), i + k > 0);
  kr_wgmma_commit();
}

/* Starts d += w F, w in registers, F of 64 rows and WIDTH columns; in flight on return. first: 0: d = w F. */
template <int WIDTH>
KR_DEV void start_sum(uint32_t F, const uint32_t (&w)[16], float (&d)[WIDTH / 2], int first) {
  const uint64_t f = kr_mn_major(F, TILE);
  kr_wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; k++)
    kr_wgmma_step_registers<WIDTH, half_type, 1>(d, w[4 * k], w[4 * k + 1], w[4 * k + 2], w[4 * k + 3],
                                                 further(f, k * KR_MN_STEP_BYTES), k > 0 || first);
  kr_wgmma_commit();
}

/* ---- a state in a warpgroup's accumulators ----------------------------------------------------------------------- */

/* Stores the state as the next chunk's operand: [channel][state]. */
KR_DEV void share_state(unsigned char *tiles, const lanes &me, const float (&s)[N / 2]) {
#pragma unroll
  for (int j = 0; j < N / 8; j += 2)
    put_matrices(tiles + j / 8 * TILE, me, j & 7, pack(s[4 * j], s[4 * j + 1]), pack(s[4 * j + 2], s[4 * j + 3]),
                 pack(s[4 * j + 4], s[4 * j + 5]), pack(s[4 * j + 6], s[4 * j + 7]));
  kr_show_to_copies();
}

/* In fragment order: four floats per thread at a time. */
KR_DEV void read_fragments(const kr_float4 *from, const lanes &me, float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 8; i++) {
    const kr_float4 v = from[i * 128 + me.thread];
    s[4 * i] = v.v[0], s[4 * i + 1] = v.v[1], s[4 * i + 2] = v.v[2], s[4 * i + 3] = v.v[3];
  }
}
KR_DEV void write_fragments(kr_float4 *to, const lanes &me, const float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 8; i++)
    to[i * 128 + me.thread] = kr_float4{{s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]}};
}

KR_DEV void clear_state(float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) s[i] = 0;
}
KR_DEV int nonfinite_state(const float (&s)[N / 2]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < N / 2; i++) zero = kr_fma(s[i], 0.0f, zero);
  return !(zero == 0);
}

/* Decays the state; not even NaN crosses sequences (start_sum then drops the state), but it is flagged. */
KR_DEV int decay_state(float keeps, float (&s)[N / 2]) {
  const int spoilt = keeps == 0 && nonfinite_state(s);
#pragma unroll
  for (int i = 0; i < N / 2; i++) s[i] *= keeps;
  return spoilt;
}

/* (left X)^T as an operand: a warp's 16 channels, tokens by what is left of them at the chunk's end. */
KR_DEV void weigh_inputs(const unsigned char *x, uint32_t (&w)[Q / 4], const float *left,
                         const lanes &me) {
#pragma unroll
  for (int k = 0; k < Q / 16; k++) {
    uint32_t a[4];
    kr_load_matrices_turned(
        a, x + kr_swizzle<128>(16 * k + (me.lane & 7) + (me.lane >> 4) * 8, 2 * me.warp + (me.lane >> 3 & 1)));
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const kr_float2 by = *(const kr_float2 *)&left[16 * k + 8 * i + 2 * me.q];
#pragma unroll
      for (int r = 0; r < 2; r++)
        w[4 * k + 2 * i + r] =
            pack(kr_unpack(a[2 * i + r], 0, KR_DTYPE) * by.v[0], kr_unpack(a[2 * i + r], 1, KR_DTYPE) * by.v[1]);
    }
  }
}

#endif
