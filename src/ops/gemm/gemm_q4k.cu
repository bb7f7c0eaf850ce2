/* gemm_q4k.cu: products with 4-bit weights, for every GPU, by float32 FMAs. Few rows: a warp takes two outputs, a lane
 * 16 bytes (32 weights) of every fourth super-block. Many rows: a block computes a tile of 64 rows by 64 outputs, 64
 * weights of each at a time widened into shared memory. */
#include "q4k.cuh"
#include "gemm_q4k_params.h"

enum { SUPER_WORDS = KR_Q4K_SUPER_WORDS, OUTPUTS = KR_Q4K_FEW_OUTPUTS, TILE = KR_Q4K_TILE, PITCH = TILE + 4 };

KR_DEV void read_head(const int32_t *super, int64_t stride, uint32_t (&head)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) head[i] = (uint32_t)super[i * stride];
}

/* Sixteen contiguous elements. */
template <int DTYPE>
KR_DEV void read_sixteen(const void *data, int64_t at, float (&v)[16]) {
  if (DTYPE == KRAIT_F32) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const kr_float4 four = *(const kr_float4 *)((const float *)data + at + 4 * k);
#pragma unroll
      for (int i = 0; i < 4; i++) v[4 * k + i] = four.v[i];
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const kr_raw16 eight = *(const kr_raw16 *)((const uint16_t *)data + at + 8 * k);
#pragma unroll
    for (int i = 0; i < 8; i++) v[8 * k + i] = kr_unpack(eight.w[i / 2], i & 1, DTYPE);
  }
}

/* A lane's share of a super-block: its head and 16 bytes, 32 weights. */
typedef struct piece {
  kr_raw16 head, q;
} piece;
KR_DEV piece read_piece(const int32_t *qweight, int64_t s, int64_t S, int eighth) {
  const kr_raw16 none = {{0, 0, 0, 0}};
  if (s >= S) return piece{none, none};
  qweight += s * SUPER_WORDS;
  return piece{*(const kr_raw16 *)qweight, *(const kr_raw16 *)(qweight + 4 + 4 * eighth)};
}

/* 16 + the four bits from bit `from`, without a conversion: placed at the top of the mantissa of a float from 16. */
KR_DEV float sixteen_and(uint32_t word, int from) {
  const uint32_t bits = from < 19 ? word << (19 - from) : word >> (from - 19);
  return kr_bits_to_float((bits & 0x00780000u) | 0x41800000u);
}

/* Words and rows of A are contiguous and aligned. A warp takes OUTPUTS of ROWS rows, eight lanes per super-block, four
 * super-blocks at a time; the next four are prefetched. */
template <int DTYPE, int ROWS>
KR_DEV void run_few(const kr_gemm_q4k_args &a) {
  const int lane = kr_thread() & 31, place = lane / 8, eighth = lane % 8, chunk = eighth / 2;
  const int64_t n = ((int64_t)kr_block_x() * (KR_Q4K_FEW_THREADS / 32) + kr_thread() / 32) * OUTPUTS,
                first = (int64_t)kr_block_y() * ROWS, row = a.A.stride[0];
  if (n >= a.N) return;
  const int rows = a.M - first < ROWS ? (int)(a.M - first) : ROWS;
  const int32_t *qweight[OUTPUTS];
  float sum[OUTPUTS][ROWS];
  piece now[OUTPUTS], next[OUTPUTS];
#pragma unroll
  for (int o = 0; o < OUTPUTS; o++) {
    qweight[o] = (const int32_t *)a.qweight.data + (n + o < a.N ? n + o : n) * a.qweight.stride[0];
    next[o] = read_piece(qweight[o], place, a.S, eighth);
#pragma unroll
    for (int m = 0; m < ROWS; m++) sum[o][m] = 0.0f;
  }
  for (int64_t s = place; s - place < a.S; s += 4) {
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) now[o] = next[o], next[o] = read_piece(qweight[o], s + 4, a.S, eighth);
    if (s >= a.S) break;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float scale[OUTPUTS], base[OUTPUTS], w[OUTPUTS][16];
#pragma unroll
      for (int o = 0; o < OUTPUTS; o++) {
        kr_q4k_part(now[o].head.w, 2 * chunk + h, scale[o], base[o]);
        base[o] = kr_fma(-16.0f, scale[o], base[o]);
#pragma unroll
        for (int i = 0; i < 16; i++) w[o][i] = sixteen_and(now[o].q.w[i / 4], i % 4 * 8 + 4 * h);
      }
#pragma unroll
      for (int m = 0; m < ROWS; m++) {
        if (m >= rows) continue;
        float x[16], all = 0.0f;
        read_sixteen<DTYPE>(a.A.data, (first + m) * row + 256 * s + 64 * chunk + 32 * h + 16 * (eighth % 2), x);
#pragma unroll
        for (int i = 0; i < 16; i++) all += x[i];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
          float dot = 0.0f;
#pragma unroll
          for (int i = 0; i < 16; i++) dot = kr_fma(x[i], w[o][i], dot);
          sum[o][m] = kr_fma(scale[o], dot, kr_fma(base[o], all, sum[o][m]));
        }
      }
    }
  }
#pragma unroll
  for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
    for (int m = 0; m < ROWS; m++)
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) sum[o][m] += kr_shuffle_xor(sum[o][m], mask);
#pragma unroll
  for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      if (lane != o * ROWS + m || m >= rows || n + o >= a.N) continue;
      const float bias = a.bias.data ? kr_load(a.bias.data, (n + o) * a.bias.stride[0], a.bias.dtype) : 0.0f;
      kr_store(a.out.data, (first + m) * a.out.stride[0] + (n + o) * a.out.stride[1], a.out.dtype, sum[o][m] + bias);
    }
}

template <int ROWS>
KR_DEV void run_typed(const kr_gemm_q4k_args &a) {
  if (a.A.dtype == KRAIT_F32) run_few<KRAIT_F32, ROWS>(a);
  else if (a.A.dtype == KRAIT_F16) run_few<KRAIT_F16, ROWS>(a);
  else run_few<KRAIT_BF16, ROWS>(a);
}
KR_KERNEL void KR_BOUNDS(KR_Q4K_FEW_THREADS, 5) kr_gemm_q4k_one(const kr_gemm_q4k_args a) { run_typed<1>(a); }
KR_KERNEL void KR_BOUNDS(KR_Q4K_FEW_THREADS, 3) kr_gemm_q4k_few(const kr_gemm_q4k_args a) {
  run_typed<KR_Q4K_FEW_ROWS>(a);
}

/* A thread's quarter of an output's 64 weights of a step: sixteen of them, from two words of bytes. */
KR_DEV void put_weights(const kr_gemm_q4k_args &a, float (&stage)[TILE][PITCH], int64_t first_n, int64_t s,
                        int chunk) {
  const int column = kr_thread() / 4, quarter = kr_thread() % 4;
  const int64_t n = first_n + column, step = a.qweight.stride[1];
  const int32_t *super =
      (const int32_t *)a.qweight.data + (n < a.N ? n : a.N - 1) * a.qweight.stride[0] + s * SUPER_WORDS * step;
  uint32_t head[4];
  float scale[2], base[2];
  read_head(super, step, head);
  kr_q4k_part(head, 2 * chunk, scale[0], base[0]), kr_q4k_part(head, 2 * chunk + 1, scale[1], base[1]);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const uint32_t q = (uint32_t)super[(4 + 8 * chunk + 2 * quarter + h) * step];
#pragma unroll
    for (int i = 0; i < 8; i++)
      stage[i / 4 * 32 + 8 * quarter + 4 * h + i % 4][column] =
          kr_fma((float)(q >> (i % 4 * 8 + i / 4 * 4) & 15), scale[i / 4], base[i / 4]);
  }
}

/* A thread's sixteen of the tile's 64 x 64 elements of A: neighboring threads take neighboring columns. */
KR_DEV void put_rows(const kr_gemm_q4k_args &a, float (&stage)[TILE][PITCH], int64_t first_m, int64_t k) {
  const int column = kr_thread() % TILE;
#pragma unroll
  for (int i = 0; i < TILE * TILE / KR_Q4K_TILE_THREADS; i++) {
    const int m = kr_thread() / TILE + i * (KR_Q4K_TILE_THREADS / TILE);
    stage[column][m] = first_m + m < a.M
                           ? kr_load(a.A.data, (first_m + m) * a.A.stride[0] + (k + column) * a.A.stride[1], a.A.dtype)
                           : 0.0f;
  }
}

KR_KERNEL void KR_BOUNDS(KR_Q4K_TILE_THREADS, 2) kr_gemm_q4k_tiles(const kr_gemm_q4k_args a) {
  KR_SHARED float __attribute__((aligned(16))) left[TILE][PITCH], right[TILE][PITCH]; /* by k, then by row or output */
  const int64_t first_n = (int64_t)kr_block_x() * TILE, first_m = (int64_t)kr_block_y() * TILE;
  const int x = kr_thread() % 16 * 4, y = kr_thread() / 16 * 4;
  float d[4][4];
#pragma unroll
  for (int i = 0; i < 16; i++) d[i / 4][i % 4] = 0.0f;
  for (int64_t c = 0; c < 4 * a.S; c++) {
    kr_sync();
    put_weights(a, right, first_n, c / 4, (int)(c % 4));
    put_rows(a, left, first_m, c * TILE);
    kr_sync();
#pragma unroll 4
    for (int k = 0; k < TILE; k++) {
      const kr_float4 l = *(const kr_float4 *)&left[k][y], r = *(const kr_float4 *)&right[k][x];
#pragma unroll
      for (int i = 0; i < 16; i++) d[i / 4][i % 4] = kr_fma(l.v[i / 4], r.v[i % 4], d[i / 4][i % 4]);
    }
  }
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int64_t m = first_m + y + i / 4, n = first_n + x + i % 4;
    if (m >= a.M || n >= a.N) continue;
    const float bias = a.bias.data ? kr_load(a.bias.data, n * a.bias.stride[0], a.bias.dtype) : 0.0f;
    kr_store(a.out.data, m * a.out.stride[0] + n * a.out.stride[1], a.out.dtype, d[i / 4][i % 4] + bias);
  }
}
