/* gemm_finish.cuh: the epilogue, from sum to stored result. */
#ifndef KR_GEMM_FINISH_CUH
#define KR_GEMM_FINISH_CUH

#include "gemm_params.h"
#include "pack.cuh"

/* One tile of one split of a product; m and n count tiles. */
typedef struct kr_gemm_unit {
  int m, n, batch, split, slab; /* slab: in the partial sums */
} kr_gemm_unit;

KR_DEV kr_gemm_unit kr_gemm_unit_at(const kr_gemm_params &p, int index) {
  kr_gemm_unit u;
  u.slab = (int)kr_divide((uint32_t)index, p.by_tiles);
  u.split = (int)kr_divide((uint32_t)u.slab, p.by_P);
  u.batch = u.slab - u.split * p.P;
  const int tile = index - u.slab * p.n_m * p.n_n, group = (int)kr_divide((uint32_t)tile, p.by_group),
            within = tile - group * p.group * p.n_n;
  const int last = (group + 1) * p.group > p.n_m, rows = last ? (int)p.by_last_rows.by : p.group;
  u.n = (int)(last ? kr_divide((uint32_t)within, p.by_last_rows) : kr_divide((uint32_t)within, p.by_rows));
  u.m = group * p.group + within - u.n * rows;
  return u;
}

/* erf to 1.5e-7 (Abramowitz and Stegun 7.1.26). */
KR_DEV float kr_gelu_exact(float x) {
  const float z = kr_bits_to_float(kr_float_to_bits(x) & 0x7fffffffu) * 0.70710678f,
              t = kr_rcp(kr_fma(0.3275911f, z, 1.0f));
  const float poly =
      t * kr_fma(t, kr_fma(t, kr_fma(t, kr_fma(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f),
                 0.254829592f);
  const float tail = poly * kr_exp2(-KR_LOG2E * z * z); /* 1 - erf(z) */
  return 0.5f * x * kr_select(x < 0.0f, tail, 2.0f - tail);
}
/* 0.5 (1 + tanh y) is the sigmoid of 2 y. */
KR_DEV float kr_gelu_tanh(float x) { return x * kr_sigmoid(1.5957691216f * x * kr_fma(0.044715f * x, x, 1.0f)); }

template <int N>
KR_DEV void kr_activate(float *v, int32_t activation) {
  if (activation == KRAIT_ACT_SILU) {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = kr_silu(v[i]);
  } else if (activation == KRAIT_ACT_GELU) {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = kr_gelu_exact(v[i]);
  } else if (activation == KRAIT_ACT_GELU_TANH) {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = kr_gelu_tanh(v[i]);
  }
}

/* N (4 or 8) elements of a row from `at`, `left` of them in bounds: whole packs where aligned. */
template <int N>
KR_DEV void kr_read_run(const kr_gemm_matrix &from, int64_t at, int64_t stride, int left, float (&v)[N]) {
  if (from.packs && stride == 1 && left >= N) {
    if (from.dtype == KRAIT_F32) {
      const kr_float4 *p = (const kr_float4 *)((const float *)from.data + at);
#pragma unroll
      for (int i = 0; i < N; i++) v[i] = p[i / 4].v[i % 4];
      return;
    }
    struct __attribute__((aligned(2 * N))) { uint32_t w[N / 2]; } raw;
    raw = *(const decltype(raw) *)((const uint16_t *)from.data + at);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = kr_unpack(raw.w[i / 2], i % 2, from.dtype);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; i++) v[i] = i < left ? kr_load(from.data, at + i * stride, from.dtype) : 0.0f;
}

template <int N>
KR_DEV void kr_write_run(const kr_gemm_matrix &to, int64_t at, int left, const float (&v)[N]) {
  if (to.packs && left >= N) {
    if (to.dtype == KRAIT_F32) {
      kr_float4 *p = (kr_float4 *)((float *)to.data + at);
#pragma unroll
      for (int i = 0; i < N / 4; i++) p[i] = (kr_float4){{v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]}};
      return;
    }
    struct __attribute__((aligned(2 * N))) { uint32_t w[N / 2]; } raw;
#pragma unroll
    for (int i = 0; i < N / 2; i++) raw.w[i] = kr_pack(v[2 * i], v[2 * i + 1], to.dtype);
    *(decltype(raw) *)((uint16_t *)to.data + at) = raw;
    return;
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    if (i < left) kr_store(to.data, at + i * to.column, to.dtype, v[i]);
}

/* Per-column operands: the same for every row that a thread finishes. */
template <int N>
struct kr_column_terms {
  float bias[N], bias2[N];
};
template <int N>
KR_DEV void kr_read_bias(const kr_gemm_matrix &bias, int n, int left, float (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) v[i] = bias.data && i < left ? kr_load(bias.data, (n + i) * bias.row, bias.dtype) : 0.0f;
}
template <int N>
KR_DEV void kr_read_terms(const kr_gemm_params &p, int n, kr_column_terms<N> &terms) {
  kr_read_bias<N>(p.bias, n, p.N - n, terms.bias);
  kr_read_bias<N>(p.bias2, n, p.N - n, terms.bias2);
}

/* Finishes and stores N columns from n of row m: their sums, and those with B2 if there is one. */
template <int N, int GATED>
KR_DEV void kr_finish_run(const kr_gemm_params &p, const kr_column_terms<N> &terms, int batch, int m, int n,
                          float (&v)[N], const float (&gated)[N]) {
  const int left = p.N - n;
  if (m >= p.M || left <= 0) return;
  float scale = p.scale;
  if (p.row_scale.data)
    scale *= kr_load(p.row_scale.data, batch * p.row_scale.batch + m * p.row_scale.row, p.row_scale.dtype);
#pragma unroll
  for (int i = 0; i < N; i++) v[i] = kr_fma(v[i], scale, terms.bias[i]);
  kr_activate<N>(v, p.activation);
  if (GATED) {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] *= kr_fma(gated[i], scale, terms.bias2[i]);
  }
  if (p.residual.data) {
    float added[N];
    kr_read_run<N>(p.residual, batch * p.residual.batch + m * p.residual.row + n * p.residual.column, p.residual.column,
                   left, added);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] += added[i];
  }
  kr_write_run<N>(p.out, batch * p.out.batch + m * p.out.row + n * p.out.column, left, v);
}

/* Stores split-K partial sums; rows of `partial` are padded to a multiple of eight. */
template <int N>
KR_DEV void kr_keep_run(const kr_gemm_params &p, int slab, int m, int n, const float (&v)[N]) {
  if (m >= p.M || n >= p.partial_row) return;
  kr_float4 *to = (kr_float4 *)(p.partial + ((int64_t)slab * p.M + m) * p.partial_row + n);
#pragma unroll
  for (int i = 0; i < N / 4; i++) to[i] = (kr_float4){{v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]}};
}

#endif
