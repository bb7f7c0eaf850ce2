/* mamba_decode_products.cuh: how a warp of the streaming kernel multiplies rows that lie in shared memory by its part
 * of the inputs, which it keeps in registers: 16-bit rows by multiply-adds; rows of signed bytes with a scale per 32 on
 * tensor cores, as they are, with inputs of two bytes and a step per 32, so that sums of 32 products are exact. */
#ifndef KR_MAMBA_DECODE_PRODUCTS_CUH
#define KR_MAMBA_DECODE_PRODUCTS_CUH

#include "mamba_decode.cuh"
#include "mamba_decode_stream.h"

enum {
  UNIT = 128,            /* inputs that a warp takes at a time: four a lane, or four blocks */
  BLOCK = 32,            /* inputs that share a step, weights that share a scale */
  MOST_STEPS = 127 * 256 /* of an input: its upper byte is at most 127 */
};

KR_DEV int own_lane(void) { return kr_thread() & 31; }

/* Eight and sixteen bytes of shared memory by one load each, which the compiler would take apart. */
KR_DEV void load_four(const void *halves, float (&v)[4]) {
  uint16_t h[4];
#ifdef KR_EMULATE
  __builtin_memcpy(h, halves, 8);
#else
  asm volatile("ld.shared.v4.u16 {%0, %1, %2, %3}, [%4];"
               : "=h"(h[0]), "=h"(h[1]), "=h"(h[2]), "=h"(h[3])
               : "r"(kr_shared_at(halves)));
#endif
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = from_half(h[i]);
}
KR_DEV void load_floats(const float *from, float (&v)[4]) {
#ifdef KR_EMULATE
  __builtin_memcpy(v, from, 16);
#else
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(kr_shared_at(from)));
#endif
}
KR_DEV void load_words(const void *from, uint32_t &a, uint32_t &b) {
#ifdef KR_EMULATE
  __builtin_memcpy(&a, from, 4), __builtin_memcpy(&b, (const char *)from + 4, 4);
#else
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(kr_shared_at(from)));
#endif
}

/* d += a b on tensor cores, m16n8k32: signed bytes, exact sums; a register holds four where one of kr_mma's (mma.cuh)
 * holds two. */
KR_DEV void multiply_bytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef KR_EMULATE
  kr_emulated_mma_bytes(d, a, b0, b1);
#else
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* Sums of N values over groups of 2 TOP lanes: lane 2 TOP / N i of a group has value i's. */
template <int TOP, int N>
KR_DEV float over_lanes(const float (&v)[N]) {
  const int lane = own_lane();
  float two[2] = {v[0], v[N > 2 ? 2 : 1]}, sum;
  if (N == 4) {
    const int high = lane & TOP; /* values 0 and 1 below, 2 and 3 above */
    two[0] = kr_select(high, v[2 % N], v[0]) + kr_shuffle_xor(kr_select(high, v[0], v[2 % N]), TOP);
    two[1] = kr_select(high, v[3 % N], v[1]) + kr_shuffle_xor(kr_select(high, v[1], v[3 % N]), TOP);
  }
  const int bit = N == 4 ? TOP / 2 : TOP, high = lane & bit;
  sum = kr_select(high, two[1], two[0]) + kr_shuffle_xor(kr_select(high, two[0], two[1]), bit);
#pragma unroll
  for (int by = bit / 2; by; by /= 2) sum += kr_shuffle_xor(sum, by);
  return sum;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

/* Where a product's inputs lie: values, and those as bytes: all upper ones, then all lower ones, and a step a block. */
typedef struct inputs {
  const void *values;
  int is_float;
  unsigned char *bytes;
  float *steps;
} inputs;

KR_DEV void load_eight(const inputs &in, int at, float (&v)[8]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float four[4];
    if (in.is_float)
      load_floats((const float *)in.values + at + 4 * half, four);
    else
      load_four((const uint16_t *)in.values + at + 4 * half, four);
#pragma unroll
    for (int i = 0; i < 4; i++) v[4 * half + i] = four[i];
  }
}

/* Byte `which` of each of four words, the first one's lowest. */
KR_DEV uint32_t bytes_of(const uint32_t *words, int which) {
#ifdef KR_EMULATE
  uint32_t all = 0;
  for (int i = 0; i < 4; i++) all |= (words[i] >> 8 * which & 255) << 8 * i;
  return all;
#else
  uint32_t low, high, all;
  const uint32_t two = which ? 0x51u : 0x40u;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(low) : "r"(words[0]), "r"(words[1]), "r"(two));
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(words[2]), "r"(words[3]), "r"(two));
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(low), "r"(high), "r"(0x5410u));
  return all;
#endif
}

/* The largest magnitude of a block, which four lanes have: as bits, by which NaN is above all. */
KR_DEV uint32_t largest_bits(const float (&v)[8]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint32_t bits = kr_float_to_bits(v[i]) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
#pragma unroll
  for (int by = 1; by <= 2; by *= 2) {
    const uint32_t other = kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float(most), by));
    most = other > most ? other : most;
  }
  return most;
}

/* K inputs as bytes, eight a thread at a time; WORKERS is a multiple of 32, as is K / 8. A value is 256 upper + lower
 * steps, within half a step: 1.6e-5 of the block's largest; a block with infinity or NaN has such a step. */
template <int WORKERS>
KR_DEV void split_inputs(const inputs &in, int K, int thread) {
  for (int at = 8 * thread; at < K; at += 8 * WORKERS) {
    float v[8];
    uint32_t n[8], up[8];
    load_eight(in, at, v);
    const float most = kr_bits_to_float(largest_bits(v)),
                of_one = most > 0.0f ? (float)MOST_STEPS * kr_rcp(most) : 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) /* rounded, in the lower bits of 1.5 * 2^23 and more */
      n[i] = kr_float_to_bits(kr_fma(v[i], of_one, 12582912.0f)), up[i] = n[i] + 128u;
    uint32_t *const upper = (uint32_t *)(in.bytes + at), *const lower = (uint32_t *)(in.bytes + K + at);
    upper[0] = bytes_of(up, 1), upper[1] = bytes_of(up + 4, 1);
    lower[0] = bytes_of(n, 0), lower[1] = bytes_of(n + 4, 0);
    if (at % BLOCK == 0) in.steps[at / BLOCK] = most * (1.0f / (float)MOST_STEPS);
  }
}

/* A warp's part of the inputs, UNITS units, as a lane has them. */
template <int Q8, int UNITS>
struct operands;
template <int UNITS>
struct operands<0, UNITS> {
  float x[UNITS][4];
};
/* Columns 2 p and 2 p + 1 of the right operand are the upper and lower bytes of block p of a unit. */
template <int UNITS>
struct operands<1, UNITS> {
  uint32_t x[UNITS][2];
  float step[UNITS]; /* of the block whose sums this lane has; 0: none */
};

template <int PARTS, int UNITS>
KR_DEV void take(const inputs &in, int part, operands<0, UNITS> &o) {
#pragma unroll
  for (int j = 0; j < UNITS; j++) {
    const int at = (part * UNITS + j) * UNIT + 4 * own_lane();
    if (in.is_float)
      load_floats((const float *)in.values + at, o.x[j]);
    else
      load_four((const uint16_t *)in.values + at, o.x[j]);
  }
}
template <int PARTS, int UNITS>
KR_DEV void take(const inputs &in, int part, operands<1, UNITS> &o) {
  const int lane = own_lane(), g = lane / 4, q = lane % 4;
  const unsigned char *const from =
      in.bytes + g % 2 * (PARTS * UNITS * UNIT) + part * UNITS * UNIT + BLOCK * (g / 2) + 8 * q;
#pragma unroll
  for (int j = 0; j < UNITS; j++) {
    load_words(from + j * UNIT, o.x[j][0], o.x[j][1]);
    const float step = in.steps[(part * UNITS + j) * (UNIT / BLOCK) + q];
    o.step[j] = g % 4 == q ? step : 0.0f;
  }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Sums of a stage's ROWS rows over the warp's part of K = PARTS UNITS UNIT inputs; of which row this lane has it:
 * own_row, or -1. */
template <int ROWS, int PARTS, int UNITS>
KR_DEV float sum_rows(const unsigned char *stage, int part, const operands<0, UNITS> &o) {
  const unsigned char *const rows = stage + part * UNITS * 2 * UNIT + 8 * own_lane();
  float sums[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    sums[r] = 0.0f;
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
      float v[4];
      load_four(rows + 2 * (r * PARTS * UNITS + j) * UNIT, v);
#pragma unroll
      for (int i = 0; i < 4; i++) sums[r] = kr_fma(v[i], o.x[j][i], sums[r]);
    }
  }
  return over_lanes<16>(sums);
}

/* Four rows make a left operand of 16: row 4 r + p is block p of row r, so that half a warp reads 128 bytes of a row.
 * Results count where both operands are of one block, in lanes with lane / 4 % 4 == lane % 4; others' step is 0. */
template <int ROWS, int PARTS, int UNITS>
KR_DEV float sum_rows(const unsigned char *stage, int part, const operands<1, UNITS> &o) {
  enum { K = PARTS * UNITS * UNIT };
  const int lane = own_lane(), row = lane / 16;
  const unsigned char *const rows = stage + row * K + part * UNITS * UNIT + 8 * (lane % 16);
  const uint16_t *const scales = (const uint16_t *)(stage + KR_STREAM_SCALES_AT) + row * (K / BLOCK) +
                                 part * UNITS * (UNIT / BLOCK) + lane / 4 % 4;
  float sums[ROWS / 2];
#pragma unroll
  for (int r = 0; r < ROWS; r += 4) {
    sums[r / 2] = sums[r / 2 + 1] = 0.0f;
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
      uint32_t a[4];
      int32_t d[4] = {0, 0, 0, 0};
      load_words(rows + r * K + j * UNIT, a[0], a[2]);
      load_words(rows + (r + 2) * K + j * UNIT, a[1], a[3]);
      multiply_bytes(d, a, o.x[j][0], o.x[j][1]);
#pragma unroll
      for (int k = 0; k < 2; k++)
        sums[r / 2 + k] =
            kr_fma((float)(256 * d[2 * k] + d[2 * k + 1]),
                   from_half(scales[(r + 2 * k) * (K / BLOCK) + j * (UNIT / BLOCK)]) * o.step[j], sums[r / 2 + k]);
    }
  }
  return over_lanes<8>(sums);
}

template <int ROWS, int Q8>
KR_DEV int own_row(void) {
  const int lane = own_lane(), each = 32 / ROWS; /* lanes with the same sum */
  if (lane % each) return -1;
  return Q8 ? 2 * (lane % 16 / each) + lane / 16 : lane / each;
}

#endif
