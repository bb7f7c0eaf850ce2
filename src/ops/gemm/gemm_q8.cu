/* gemm_q8.cu: one or two rows of A times 8-bit weights, by FMAs: p.n_splits warps share the K of four or eight outputs;
 * a lane loads 16 bytes of an output's weights, half a block of 32, at a time. Bound by reading the weights once; their
 * loads are issued before the preceding kernel has ended (overlap.cuh). */
#include "row_lanes.cuh"
#include "gemm_q8_params.h"

#ifdef KR_HALF
enum { DTYPE = KRAIT_F16 };
#else
enum { DTYPE = KRAIT_BF16 };
#endif
enum { GROUP = KR_Q8_GROUP, RUN = KR_Q8_RUN, THREADS = 32 * KR_Q8_MOST_WARPS };

/* The four bytes of a word, -128 to 127, without a conversion: placed in the low mantissa bits of a float from 2^23. */
KR_DEV void widen_bytes(uint32_t word, float *v) {
  const uint32_t shifted = word ^ 0x80808080u;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t bits;
#ifdef KR_EMULATE
    bits = 0x4b000000u | (shifted >> 8 * i & 255);
#else
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bits) : "r"(shifted), "r"(0x4b000000u), "n"(0x7540 + i));
#endif
    v[i] = kr_bits_to_float(bits) - 8388736.0f;
  }
}

KR_DEV void read_row(const uint16_t *from, int exists, float (&x)[16]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    kr_raw16 raw = {{0, 0, 0, 0}};
    if (exists) raw = *(const kr_raw16 *)(from + 8 * half);
#pragma unroll
    for (int i = 0; i < 8; i++) x[8 * half + i] = kr_unpack(raw.w[i / 2], i % 2, DTYPE);
  }
}

template <int ROWS>
KR_DEV void run(const kr_q8_params &p) {
  KR_SHARED kr_float4 sums[KR_Q8_MOST_WARPS][ROWS];
  const int lane = kr_thread() & 31, warp = kr_thread() / 32, splits = p.n_splits, group = warp / splits,
            part = warp - group * splits, n = (kr_block_x() * p.n_groups + group) * GROUP, K = p.K;
  kr_launch_dependents();
  const char *qweight = (const char *)p.qweight + n * p.qweight_row + 16 * lane;
  const uint16_t *scales = (const uint16_t *)p.scales + n * p.scales_row + lane / 2,
                 *A = (const uint16_t *)p.A + 16 * lane;
  float sum[ROWS][GROUP] = {};
  int waits = 1;
  for (int k = part * RUN; k < K || waits; k += splits * RUN) {
    kr_raw16 w[GROUP];
    uint32_t scale[GROUP];
#pragma unroll
    for (int o = 0; o < GROUP; o++) {
      const int exists = n + o < p.N && k + 16 * lane < K;
      w[o] = kr_raw16{{0, 0, 0, 0}}, scale[o] = 0;
      if (exists) w[o] = kr_read_once(qweight + o * p.qweight_row + k), scale[o] = scales[o * p.scales_row + k / 32];
    }
    if (waits) {
      kr_keep_near(p.out), kr_keep_near(p.out_row), kr_keep_near(p.bias), kr_keep_near(p.M);
      kr_griddep_wait();
    }
    waits = 0;
    float x[ROWS][16];
#pragma unroll
    for (int m = 0; m < ROWS; m++) read_row(A + (m < p.M ? m : 0) * p.A_row + k, k + 16 * lane < K, x[m]);
#pragma unroll
    for (int o = 0; o < GROUP; o++) {
      float v[16];
#pragma unroll
      for (int i = 0; i < 4; i++) widen_bytes(w[o].w[i], v + 4 * i);
#pragma unroll
      for (int m = 0; m < ROWS; m++) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++) dot = kr_fma(v[i], x[m][i], dot);
        sum[m][o] = kr_fma(kr_from_f16((uint16_t)scale[o]), dot, sum[m][o]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    const float one = kr_sum_lanes_of_four(sum[m]);
    if (lane < GROUP) sums[warp][m].v[lane] = one;
  }
  kr_sync();
  const int m = lane / GROUP, o = lane % GROUP;
  if (part || m >= ROWS || m >= p.M || n + o >= p.N) return;
  float v = p.bias ? kr_load(p.bias, (n + o) * p.bias_step, p.bias_dtype) : 0.0f;
#pragma unroll
  for (int s = 0; s < KR_Q8_MOST_WARPS; s++)
    if (s < splits) v += sums[warp + s][m].v[o];
  kr_store(p.out, m * p.out_row + (n + o) * p.out_column, p.out_dtype, v);
}

/* ---- one row, all of K in flight: eight outputs per warp double the bytes in flight ------------------------------ */

enum { WIDE = KR_Q8_WIDE, SCALES = RUN / 32 }; /* scales per output and run */

/* Copies the run's scales of the warp's outputs to shared memory, 16 bytes at a time; zeros out of bounds. */
KR_DEV void fetch_scales(const kr_q8_params &p, int n, int k, uint16_t (&to)[WIDE][SCALES]) {
  const int lane = kr_thread() & 31, o = lane / 2, at = lane % 2 * 8, left = (p.K - k) / 32 - at;
  if (o >= WIDE) return;
  const uint16_t *from = (const uint16_t *)p.scales + (n + o) * p.scales_row + k / 32 + at;
  if (n + o < p.N && left >= 8 && p.scale_packs) {
    kr_copy16(&to[o][at], from);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) to[o][at + i] = n + o < p.N && i < left ? from[i] : 0;
}

KR_DEV void run_wide(const kr_q8_params &p) {
  KR_SHARED float sums[KR_Q8_MOST_WARPS][WIDE];
  KR_SHARED __attribute__((aligned(16))) uint16_t scales[KR_Q8_MOST_WARPS][WIDE][SCALES];
  const int lane = kr_thread() & 31, warp = kr_thread() / 32, splits = p.n_splits, group = warp / splits,
            part = warp - group * splits, n = (kr_block_x() * p.n_groups + group) * WIDE, k = part * RUN;
  const int inside = k + 16 * lane < p.K;
  kr_launch_dependents();
  const char *qweight = (const char *)p.qweight + n * p.qweight_row + 16 * lane + k;
  kr_raw16 w[WIDE], x[2] = {};
#pragma unroll
  for (int o = 0; o < WIDE; o++) {
    w[o] = kr_raw16{{0, 0, 0, 0}};
    if (n + o < p.N && inside) w[o] = kr_read_once(qweight + o * p.qweight_row);
  }
  fetch_scales(p, n, k, scales[warp]);
  kr_commit_copies();
  kr_keep_near(p.out), kr_keep_near(p.bias);
  kr_griddep_wait();
#pragma unroll
  for (int half = 0; half < 2; half++)
    if (inside) x[half] = *((const kr_raw16 *)((const uint16_t *)p.A + 16 * lane + k) + half);
  float dot[WIDE] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float one[4];
#pragma unroll
    for (int j = 0; j < 4; j++) one[j] = kr_unpack(x[i / 2].w[i % 2 * 2 + j / 2], j % 2, DTYPE);
#pragma unroll
    for (int o = 0; o < WIDE; o++) {
      float v[4];
      widen_bytes(w[o].w[i], v);
#pragma unroll
      for (int j = 0; j < 4; j++) dot[o] = kr_fma(v[j], one[j], dot[o]);
    }
  }
  kr_copied<0>();
  kr_sync_warp();
#pragma unroll
  for (int o = 0; o < WIDE; o++) dot[o] *= kr_from_f16(scales[warp][o][lane / 2]);
#pragma unroll
  for (int o = 0; o < WIDE; o += 4) {
    const float one = kr_sum_lanes_of_four(dot + o);
    if (lane < 4) sums[warp][o + lane] = one;
  }
  kr_sync();
  if (part || lane >= WIDE || n + lane >= p.N) return;
  float v = p.bias ? kr_load(p.bias, (n + lane) * p.bias_step, p.bias_dtype) : 0.0f;
#pragma unroll
  for (int s = 0; s < KR_Q8_MOST_WARPS; s++)
    if (s < splits) v += sums[warp + s][lane];
  kr_store(p.out, (n + lane) * p.out_column, p.out_dtype, v);
}

/* ---- the same with a fused RMS norm before and a convolution step after (norm_gemm) ------------------------------ */

/* The row is float32 in shared memory. Each lane's 16 inputs start 80 bytes after the previous lane's, so that eight
 * lanes read without bank conflicts. */
enum { ROW_STEP = 20, ROW_FLOATS = KR_Q8_MOST_WARPS * RUN / 16 * ROW_STEP, CHUNKS = 2 };

/* The block norms the row once, each thread eight inputs at a time. Returns the sum of squares, which scales the
 * results at the end. */
KR_DEV float norm_row(const kr_q8_params &p, const kr_raw16 (&weights)[CHUNKS][THREADS], float *row) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) {
    const int k = 8 * (kr_thread() + i * kr_block_threads());
    if (k >= p.K) continue;
    float x[8] = {};
    if (p.A) {
      const kr_raw16 raw = *(const kr_raw16 *)((const uint16_t *)p.A + k);
#pragma unroll
      for (int j = 0; j < 8; j++) x[j] = kr_unpack(raw.w[j / 2], j % 2, DTYPE);
    }
    kr_norm_run<KR_ADD_NORM, DTYPE>(p.norm, kr_eight<DTYPE>{{weights[i][kr_thread()]}}, 0, k, 1, kr_block_x() == 0, x,
                                    squares);
    kr_float4 *to = (kr_float4 *)(row + k / 16 * ROW_STEP + k % 16);
    to[0] = kr_float4{{x[0], x[1], x[2], x[3]}}, to[1] = kr_float4{{x[4], x[5], x[6], x[7]}};
  }
  return kr_sum_lanes(squares);
}

KR_DEV void run_normed(const kr_q8_params &p) {
  KR_SHARED float sums[KR_Q8_MOST_WARPS][WIDE], squares[KR_Q8_MOST_WARPS];
  KR_SHARED __attribute__((aligned(16))) uint16_t scales[KR_Q8_MOST_WARPS][WIDE][SCALES];
  KR_SHARED __attribute__((aligned(16))) float row[ROW_FLOATS];
  KR_SHARED kr_raw16 weights[CHUNKS][THREADS]; /* private to each thread */
  KR_SHARED kr_conv_run<DTYPE> convs[KR_Q8_MOST_WARPS][WIDE / 4];
  const int lane = kr_thread() & 31, warp = kr_thread() / 32, splits = p.n_splits, group = warp / splits,
            part = warp - group * splits, n = (kr_block_x() * p.n_groups + group) * WIDE, k = part * RUN;
  const int inside = k + 16 * lane < p.K;
  kr_launch_dependents();
  const char *qweight = (const char *)p.qweight + n * p.qweight_row + 16 * lane + k;
  kr_raw16 w[WIDE];
#pragma unroll
  for (int o = 0; o < WIDE; o++) {
    w[o] = kr_raw16{{0, 0, 0, 0}};
    if (n + o < p.N && inside) w[o] = kr_read_once(qweight + o * p.qweight_row);
  }
#pragma unroll
  for (int i = 0; i < CHUNKS; i++) {
    const int at = 8 * (kr_thread() + i * kr_block_threads());
    if (at < p.K) kr_copy16(&weights[i][kr_thread()], (const uint16_t *)p.norm.weight + at);
  }
  fetch_scales(p, n, k, scales[warp]);
  kr_commit_copies();
  kr_keep_all_near(p);
  if (p.conv.state && !p.state_ahead) kr_griddep_wait();
  if (p.conv.state && part == 0) {
    const int four = lane / KR_CONV_PIECES, c = n + 4 * four - p.conv.from;
    if (four < WIDE / 4 && c >= 0 && c < p.conv.channels)
      kr_fetch_conv<DTYPE>(p.conv, 0, c, lane % KR_CONV_PIECES, convs[group][four]);
    kr_commit_copies();
  }
  kr_griddep_wait();
  kr_copied<0>();
  const float square = norm_row(p, weights, row);
  if (lane == 0) squares[warp] = square;
  kr_sync();
  float dot[WIDE] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    kr_float4 x = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (inside) x = *(const kr_float4 *)(row + (k / 16 + lane) * ROW_STEP + 4 * i);
#pragma unroll
    for (int o = 0; o < WIDE; o++) {
      float v[4];
      widen_bytes(w[o].w[i], v);
#pragma unroll
      for (int j = 0; j < 4; j++) dot[o] = kr_fma(v[j], x.v[j], dot[o]);
    }
  }
#pragma unroll
  for (int o = 0; o < WIDE; o++) dot[o] *= kr_from_f16(scales[warp][o][lane / 2]);
#pragma unroll
  for (int o = 0; o < WIDE; o += 4) {
    const float one = kr_sum_lanes_of_four(dot + o);
    if (lane < 4) sums[warp][o + lane] = one;
  }
  kr_sync();
  const int own = n + 4 * lane, channel = own - p.conv.from;
  if (part || lane >= WIDE / 4 || own >= p.N) return;
  float v[4] = {}, total = 0.0f;
#pragma unroll
  for (int s = 0; s < KR_Q8_MOST_WARPS; s++) {
    if (s < splits)
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] += sums[warp + s][4 * lane + i];
    if (s < splits * p.n_groups) total += squares[s];
  }
  const float scale = kr_rsqrt(kr_fma(total, p.norm.inverse_K, p.norm.eps));
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] *= scale;
  kr_store_four<DTYPE>(p.out, own, p.out_dtype == KRAIT_F32, v);
  if (p.conv.state && channel >= 0 && channel < p.conv.channels)
    kr_convolve<DTYPE>(p.conv, 0, channel, convs[group][lane], v);
}

KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_gemm_q8_wide(const kr_q8_params p) { run_wide(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_gemm_q8_one(const kr_q8_params p) { run<1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_gemm_q8_two(const kr_q8_params p) { run<2>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_norm_gemm_q8(const kr_q8_params p) { run_normed(p); }
