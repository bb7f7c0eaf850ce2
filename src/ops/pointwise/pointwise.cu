/* pointwise.cu: elementwise operations, and sums over rows (pointwise_ref.c has the equations). Memory-bound.
 *   kr_pointwise_packs  eight adjacent elements along out's innermost dimension per thread
 *   kr_pointwise_gates  the same for the gradients of a gated product
 *   kr_pointwise_any    one element per thread: any strides
 *   kr_sum_parts        a block sums some columns of a part of the rows: adjacent threads take adjacent columns
 *   kr_sum_packs        the same for 16-bit rows, eight adjacent columns per thread
 *   kr_sum_all          a warp reduces the parts of one column in a fixed order */
#include "../gemm/gemm_finish.cuh"
#include "overlap.cuh"
#include "pointwise_params.h"

/* The derivative of x P(x), P the normal distribution, which has a series at 0. */
KR_DEV float gelu_slope(float x) {
  const float normal = 0.39894228f * kr_exp(-0.5f * x * x);
  return kr_fma(x, normal, x > -0.01f && x < 0.01f ? kr_fma(0.39894228f, x, 0.5f) : kr_gelu_exact(x) / x);
}

KR_DEV float f(const kr_pointwise_params &p, float x, int slope) {
  if (p.activation == KRAIT_ACT_NONE) return slope ? 1.0f : x;
  if (p.activation == KRAIT_ACT_SILU) {
    const float s = kr_sigmoid(x);
    return slope ? s * kr_fma(x, 1.0f - s, 1.0f) : x * s;
  }
  if (p.activation == KRAIT_ACT_RELU) return slope ? (x > 0.0f ? 1.0f : 0.0f) : x < 0.0f ? 0.0f : x;
  if (p.activation == KRAIT_ACT_EXP) return kr_exp(x);
  if (p.activation == KRAIT_ACT_GELU) return slope ? gelu_slope(x) : kr_gelu_exact(x);
  const float s = kr_sigmoid(x);
  return slope ? s * (1.0f - s) : s;
}

KR_DEV float result(const kr_pointwise_params &p, float x, float y) {
  const float v = (p.x.data ? f(p, x, p.slope) : 1.0f) * p.x_scale;
  if (!p.y.data) return v;
  return p.product ? v * y : kr_fma(y, p.y_scale, v);
}

typedef struct place {
  uint32_t i, j, k, n;
} place;

KR_DEV place place_of(const kr_pointwise_params &p, uint32_t thread) {
  const uint32_t row = kr_divide(thread, p.n[3]), plane = kr_divide(row, p.n[2]), i = kr_divide(plane, p.n[1]);
  return place{i, plane - i * p.n[1].by, row - plane * p.n[2].by, thread - row * p.n[3].by};
}

KR_DEV int64_t at(const kr_pointwise_view &v, const place &o, int64_t n) {
  return o.i * v.stride[0] + o.j * v.stride[1] + o.k * v.stride[2] + n * v.stride[3];
}

KR_DEV void load_eight(const kr_pointwise_view &v, const place &o, float (&x)[8]) {
  if (!v.data) return;
  const int64_t offset = at(v, o, (int64_t)o.n * 8);
  if (v.stride[3] == 0) {
    const float one = kr_load(v.data, offset, v.dtype);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] = one;
    return;
  }
  const int bytes = v.dtype == KRAIT_F32 ? 4 : 2;
  const kr_raw16 *from = (const kr_raw16 *)((const char *)v.data + offset * bytes);
  const kr_raw16 low = from[0], high = v.dtype == KRAIT_F32 ? from[1] : low;
#pragma unroll
  for (int k = 0; k < 8; k++)
    x[k] = v.dtype == KRAIT_F32 ? kr_bits_to_float(k < 4 ? low.w[k & 3] : high.w[k & 3])
                                : kr_unpack(low.w[k >> 1], k & 1, v.dtype);
}

KR_DEV void store_eight(const kr_pointwise_view &v, const place &o, const float (&x)[8]) {
  const int64_t offset = at(v, o, (int64_t)o.n * 8);
  kr_raw16 low, high;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    low.w[k] = v.dtype == KRAIT_F32 ? kr_float_to_bits(x[k]) : kr_pack(x[2 * k], x[2 * k + 1], v.dtype);
    high.w[k] = kr_float_to_bits(x[4 + k]);
  }
  kr_raw16 *to = (kr_raw16 *)((char *)v.data + offset * (v.dtype == KRAIT_F32 ? 4 : 2));
  to[0] = low;
  if (v.dtype == KRAIT_F32) to[1] = high;
}

KR_KERNEL void KR_BOUNDS(KR_POINTWISE_THREADS, 4) kr_pointwise_packs(const kr_pointwise_params p) {
  const uint32_t thread = (uint32_t)kr_block_x() * KR_POINTWISE_THREADS + (uint32_t)kr_thread();
  kr_launch_dependents();
  if (thread >= p.n_threads) return;
  const place o = place_of(p, thread);
  float x[8] = {}, y[8] = {};
  kr_keep_all_near(p);
  kr_griddep_wait();
  load_eight(p.x, o, x);
  load_eight(p.y, o, y);
#pragma unroll
  for (int k = 0; k < 8; k++) x[k] = result(p, x[k], y[k]);
  store_eight(p.out, o, x);
}

/* The view of a gate's factor, or of its gradient. */
KR_DEV kr_pointwise_view factor_of(kr_pointwise_view v, int64_t other) {
  v.data = (char *)v.data + other * (v.dtype == KRAIT_F32 ? 4 : 2);
  return v;
}

KR_DEV void gate_eight(const kr_pointwise_params &p, const place &o, float (&g)[8], const float (&y)[8]) {
  float u[8];
  load_eight(factor_of(p.x, p.x_other), o, u);
  if (p.activation == KRAIT_ACT_SILU) { /* one sigmoid for both */
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const float s = kr_sigmoid(g[k]), gate = g[k] * s;
      g[k] = s * kr_fma(g[k], 1.0f - s, 1.0f) * u[k] * y[k], u[k] = gate * y[k];
    }
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const float gate = f(p, g[k], 0);
      g[k] = f(p, g[k], 1) * u[k] * y[k], u[k] = gate * y[k];
    }
  }
  store_eight(factor_of(p.out, p.out_other), o, u);
}

KR_KERNEL void KR_BOUNDS(KR_POINTWISE_THREADS, 5) kr_pointwise_gates(const kr_pointwise_params p) {
  const uint32_t thread = (uint32_t)kr_block_x() * KR_POINTWISE_THREADS + (uint32_t)kr_thread();
  kr_launch_dependents();
  if (thread >= p.n_threads) return;
  const place o = place_of(p, thread);
  float g[8] = {}, y[8] = {};
  kr_keep_all_near(p);
  kr_griddep_wait();
  load_eight(p.x, o, g);
  load_eight(p.y, o, y);
  gate_eight(p, o, g, y);
  store_eight(p.out, o, g);
}

KR_KERNEL void KR_BOUNDS(KR_POINTWISE_THREADS, 4) kr_pointwise_any(const kr_pointwise_params p) {
  const uint32_t thread = (uint32_t)kr_block_x() * KR_POINTWISE_THREADS + (uint32_t)kr_thread();
  kr_launch_dependents();
  if (thread >= p.n_threads) return;
  const place o = place_of(p, thread);
  kr_keep_all_near(p);
  kr_griddep_wait();
  const float x = p.x.data ? kr_load(p.x.data, at(p.x, o, o.n), p.x.dtype) : 0.0f,
              y = p.y.data ? kr_load(p.y.data, at(p.y, o, o.n), p.y.dtype) : 0.0f;
  if (!p.gate) {
    kr_store(p.out.data, at(p.out, o, o.n), p.out.dtype, result(p, x, y));
    return;
  }
  const float u = kr_load(p.x.data, at(p.x, o, o.n) + p.x_other, p.x.dtype);
  kr_store(p.out.data, at(p.out, o, o.n), p.out.dtype, f(p, x, 1) * u * y);
  kr_store(p.out.data, at(p.out, o, o.n) + p.out_other, p.out.dtype, f(p, x, 0) * y);
}

KR_KERNEL void KR_BOUNDS(KR_SUM_BLOCK, 8) kr_sum_parts(const kr_sum_params p) {
  KR_SHARED float shared[KR_SUM_BLOCK];
  const uint32_t part = (uint32_t)kr_block_x() / p.n_groups, group = (uint32_t)kr_block_x() - part * p.n_groups;
  const int lane = kr_thread() & (int)(p.lanes - 1), row = kr_thread() / (int)p.lanes,
            rows = KR_SUM_BLOCK / (int)p.lanes;
  const int64_t m = (int64_t)group * p.lanes + lane, end = min64((part + 1) * p.rows, p.R), step = rows * p.x.stride[0];
  int64_t r = part * p.rows + row, offset = r * p.x.stride[0] + m * p.x.stride[1];
  float sum = 0.0f;
  for (; m < p.M && r + 7 * rows < end; r += 8 * rows, offset += 8 * step) {
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = kr_load(p.x.data, offset + k * step, p.x.dtype);
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[k];
  }
  for (; m < p.M && r < end; r += rows, offset += step) sum += kr_load(p.x.data, offset, p.x.dtype);
  shared[kr_thread()] = sum;
  for (int half = rows / 2; half > 0; half /= 2) {
    kr_sync();
    if (row < half) shared[kr_thread()] = sum += shared[kr_thread() + half * (int)p.lanes];
  }
  if (row == 0 && m < p.M) p.partial[(int64_t)part * p.M + m] = sum;
}

KR_DEV void add_pack(const kr_raw16 &raw, int32_t dtype, float (&sum)[8]) {
#pragma unroll
  for (int k = 0; k < 8; k++) sum[k] += kr_unpack(raw.w[k >> 1], k & 1, dtype);
}

KR_KERNEL void KR_BOUNDS(KR_SUM_BLOCK, 8) kr_sum_packs(const kr_sum_params p) {
  KR_SHARED float shared[KR_SUM_BLOCK * 8];
  enum { AHEAD = 4 };
  const uint32_t part = (uint32_t)kr_block_x() / p.n_groups, group = (uint32_t)kr_block_x() - part * p.n_groups;
  const int lane = kr_thread() & (int)(p.lanes - 1), row = kr_thread() / (int)p.lanes,
            rows = KR_SUM_BLOCK / (int)p.lanes;
  const int64_t m = ((int64_t)group * p.lanes + lane) * 8, end = min64((part + 1) * p.rows, p.R),
                step = rows * p.x.stride[0];
  const uint16_t *from = (const uint16_t *)p.x.data + (part * p.rows + row) * p.x.stride[0] + m;
  int64_t r = part * p.rows + row;
  float sum[8] = {};
  for (; m < p.M && r + (AHEAD - 1) * rows < end; r += AHEAD * rows, from += AHEAD * step) {
    kr_raw16 raw[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) raw[k] = *(const kr_raw16 *)(from + k * step);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) add_pack(raw[k], p.x.dtype, sum);
  }
#pragma unroll 1
  for (; m < p.M && r < end; r += rows, from += step) add_pack(*(const kr_raw16 *)from, p.x.dtype, sum);
#pragma unroll
  for (int k = 0; k < 8; k++) shared[k * KR_SUM_BLOCK + kr_thread()] = sum[k];
  for (int half = rows / 2; half > 0; half /= 2) {
    kr_sync();
    if (row < half) {
#pragma unroll
      for (int k = 0; k < 8; k++)
        shared[k * KR_SUM_BLOCK + kr_thread()] = sum[k] +=
            shared[k * KR_SUM_BLOCK + kr_thread() + half * (int)p.lanes];
    }
  }
  if (row || m >= p.M) return;
#pragma unroll
  for (int k = 0; k < 8; k++) p.partial[(int64_t)part * p.M + m + k] = sum[k];
}

KR_KERNEL void KR_BOUNDS(KR_SUM_BLOCK, 8) kr_sum_all(const kr_sum_params p) {
  const int lane = kr_thread() & 31;
  const int64_t m = (int64_t)kr_block_x() * (KR_SUM_BLOCK / 32) + kr_thread() / 32;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t part = lane; part < (m < p.M ? p.n_parts : 0); part += 32) sum += p.partial[part * p.M + m];
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) sum += kr_shuffle_xor(sum, d);
  if (m < p.M && lane == 0) kr_store(p.out.data, m * p.out.stride[0], p.out.dtype, sum);
}
