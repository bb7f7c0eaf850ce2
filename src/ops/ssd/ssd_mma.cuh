/* ssd_mma.cuh: shared code of the SSD's tensor-core kernels, Ampere and later; compiled for float16 and bfloat16
 * storage (KR_DTYPE): copies of a chunk's steps, a chunk's update of a state in accumulators. */
#ifndef KR_SSD_MMA_CUH
#define KR_SSD_MMA_CUH

#include "turing.cuh"

#include "ssd_steps.cuh"

#if KR_DTYPE == 1
typedef kr_f16 half_type;
#else
typedef kr_bf16 half_type;
#endif

enum { X_BYTES = Q * PB * 2 };

/* By the block's first threads. */
KR_DEV void copy_steps(chunk_steps *to, const chunk_steps *from) {
  if (kr_thread() < (int)sizeof(chunk_steps) / 16)
    kr_copy_some((char *)to + 16 * kr_thread(), (const char *)from + 16 * kr_thread(), 16);
}

/* Hides a number's or an address's origin from the compiler, which would otherwise keep every address in registers. */
#ifdef KR_EMULATE
KR_DEV int anew(int x) { return x; }
KR_DEV const uint16_t *anew(const uint16_t *x) { return x; }
#else
KR_DEV int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
KR_DEV const uint16_t *anew(const uint16_t *x) {
  asm volatile("" : "+l"(x));
  return x;
}
#endif

#ifdef KR_EMULATE
KR_DEV kr_raw16 read_shared(const unsigned char *from) { return *(const kr_raw16 *)from; }
KR_DEV void write_global(void *to, const kr_raw16 &v) { *(kr_raw16 *)to = v; }
#else
/* 16 bytes in one access, which the compiler would otherwise split. */
KR_DEV kr_raw16 read_shared(const unsigned char *from) {
  kr_raw16 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "r"(kr_shared_at(from))
               : "memory");
  return v;
}
KR_DEV void write_global(void *to, const kr_raw16 &v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
               : "memory");
}
#endif

KR_DEV uint32_t pack(float low, float high) { return kr_pack(low, high, KR_DTYPE); }

/* A warp's rows of a state in registers, WIDTH columns: rows c + g and + 8, columns n0 + 8 j + 2 q and + 1. */
template <int WIDTH>
KR_DEV void load_state(const kr_ssd_params &f, const kr_ssd_tensor &v, int64_t b, int64_t h, int c, int n0,
                       float (&s)[WIDTH / 8][4]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = c + (lane >> 2) + (k >> 1) * 8, n = anew(n0 + 8 * j + 2 * (lane & 3) + (k & 1));
      s[j][k] =
          v.data && row < f.P && n < f.N ? kr_load(v.data, b * v.b + h * v.h + row * v.t + n * v.n, v.dtype) : 0.0f;
    }
}
template <int WIDTH>
KR_DEV void store_state(const kr_ssd_params &f, const kr_ssd_tensor &v, int64_t b, int64_t h, int c, int n0,
                        const float (&s)[WIDTH / 8][4]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = c + (lane >> 2) + (k >> 1) * 8, n = anew(n0 + 8 * j + 2 * (lane & 3) + (k & 1));
      if (row < f.P && n < f.N) kr_store(v.data, b * v.b + h * v.h + row * v.t + n * v.n, v.dtype, s[j][k]);
    }
}

/* A warp's place: rows from 16 m on, column half n of the tile. */
typedef struct warp_place {
  int m, n, g, q, lane, row;
} warp_place;

KR_DEV warp_place place_of_thread(int thread) {
  const int w = thread >> 5, lane = thread & 31;
  return warp_place{w & 3, w >> 2, lane >> 2, lane & 3, lane, 16 * (w & 3) + (lane >> 2)};
}

/* 16 rows from 16 m on as an A operand, 16 k from 16 k on; rows of ROW_BYTES. */
template <int ROW_BYTES>
KR_DEV void load_a(uint32_t (&a)[4], const unsigned char *rows, const warp_place &me, int k) {
  kr_load_matrices(a, rows + kr_swizzle<ROW_BYTES>(16 * me.m + (me.lane & 15), 2 * k + (me.lane >> 4)));
}
/* The B operand for 16 columns, stored k-contiguous or (turned) column-contiguous; row0: first k, chunk: of 8
 * columns. */
template <int ROW_BYTES>
KR_DEV void load_b(uint32_t (&b)[4], const unsigned char *rows, const warp_place &me, int first, int k) {
  kr_load_matrices(
      b, rows + kr_swizzle<ROW_BYTES>(first + (me.lane & 7) + (me.lane >> 4) * 8, 2 * k + (me.lane >> 3 & 1)));
}
template <int ROW_BYTES>
KR_DEV void load_b_turned(uint32_t (&b)[4], const unsigned char *rows, const warp_place &me, int k, int chunk) {
  kr_load_matrices_turned(
      b, rows + kr_swizzle<ROW_BYTES>(16 * k + (me.lane & 7) + (me.lane >> 3 & 1) * 8, chunk + (me.lane >> 4)));
}

KR_DEV void clear(float (&d)[4]) { d[0] = d[1] = d[2] = d[3] = 0; }

/* Whether a state contains NaN or infinity. */
template <int n>
KR_DEV int is_spoilt(const float (&s)[n][4]) {
  float zero = 0;
#pragma unroll
  for (int j = 0; j < n; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) zero = kr_fma(s[j][k], 0.0f, zero);
  return !(zero == 0);
}

/* Decays a state; not even NaN crosses sequences, but it is flagged. */
template <int n>
KR_DEV int keep_of_state(float (&s)[n][4], float keeps) {
  if (keeps == 0) {
    const int spoilt = is_spoilt<n>(s);
#pragma unroll
    for (int j = 0; j < n; j++) clear(s[j]);
    return spoilt;
  }
#pragma unroll
  for (int j = 0; j < n; j++) s[j][0] *= keeps, s[j][1] *= keeps, s[j][2] *= keeps, s[j][3] *= keeps;
  return 0;
}

/* S = keeps S + (weights X)^T B for a warp's 16 channels from 16 m on and WIDTH / 8 blocks of 8 states from block n on.
 * OUT: the weights are decays of the incoming state to a token, else of its input to the chunk's end. Returns whether a
 * dropped state was not finite. */
template <int N, int WIDTH, int OUT>
KR_DEV int take_chunk(float (&s)[WIDTH / 8][4], int m, int n, const unsigned char *x, const unsigned char *B,
                      const chunk_steps &steps, int has_sequences) {
  const int lane = kr_thread() & 31, q = lane & 3;
  const int spoilt = keep_of_state<WIDTH / 8>(s, state_left(steps));
#pragma unroll
  for (int k = 0; k < Q / 16; k++) {
    uint32_t a[4], b[4];
    kr_load_matrices_turned(a, x + kr_swizzle<PB * 2>(16 * k + (lane & 7) + (lane >> 4) * 8, 2 * m + (lane >> 3 & 1)));
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int j = 16 * k + (i >> 1) * 8 + 2 * q;
      const kr_float2 w = OUT ? kr_float2{{state_reaches(steps, j), state_reaches(steps, j + 1)}}
                              : inputs_left(steps, has_sequences, j);
#pragma unroll
      for (int h = 0; h < 2; h++)
        a[i + h] = pack(kr_unpack(a[i + h], 0, KR_DTYPE) * w.v[0], kr_unpack(a[i + h], 1, KR_DTYPE) * w.v[1]);
    }
#pragma unroll
    for (int j = 0; j < WIDTH / 16; j++) {
      kr_load_matrices_turned(
          b, B + kr_swizzle<N * 2>(16 * k + (lane & 7) + (lane >> 3 & 1) * 8, n + 2 * j + (lane >> 4)));
      kr_mma_pair(half_type(), s[2 * j], s[2 * j + 1], a, b);
    }
  }
  return spoilt;
}

#endif
