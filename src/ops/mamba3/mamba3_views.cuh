/* mamba3_views.cuh: shared by Mamba 3's kernels: elements of views; and their angles (turns.cuh). */
#ifndef KR_MAMBA3_VIEWS_CUH
#define KR_MAMBA3_VIEWS_CUH

#include "kernel.cuh"
#include "turns.cuh"

KR_DEV int64_t at2(const kr_view &v, int64_t i, int64_t j) { return i * v.stride[0] + j * v.stride[1]; }
KR_DEV int64_t at3(const kr_view &v, int64_t i, int64_t j, int64_t k) { return at2(v, i, j) + k * v.stride[2]; }
KR_DEV int64_t at4(const kr_view &v, int64_t i, int64_t j, int64_t k, int64_t n) {
  return at3(v, i, j, k) + n * v.stride[3];
}
KR_DEV float get(const kr_view &v, int64_t at) { return kr_load(v.data, at, v.dtype); }

/* The same without a branch for its type, so that several loads are on their way at once. */
KR_DEV float get_ahead(const kr_view &v, int64_t at) {
  const int is_wide = v.dtype == KRAIT_F32;
  const uint16_t *const from = (const uint16_t *)v.data + (is_wide ? 2 * at : at);
  const uint32_t low = from[0], high = from[is_wide];
  return is_wide ? kr_bits_to_float(high << 16 | low) : v.dtype == KRAIT_BF16 ? kr_from_bf16(low) : kr_from_f16(low);
}

/* Two neighbours of a row, in one access where that is aligned; zeros beyond `left`. */
KR_DEV kr_float2 get_two(const kr_view &v, int64_t at, int64_t stride, int left) {
  if (v.dtype != KRAIT_F32 && stride == 1 && left >= 2 &&
      (((uint64_t)(uintptr_t)v.data >> 1) + (uint64_t)at) % 2 == 0) {
    const uint32_t two = *(const uint32_t *)((const uint16_t *)v.data + at);
    return kr_float2{{kr_unpack(two, 0, v.dtype), kr_unpack(two, 1, v.dtype)}};
  }
  return kr_float2{{left > 0 ? get(v, at) : 0.0f, left > 1 ? get(v, at + stride) : 0.0f}};
}
KR_DEV void put_two(const kr_view &v, int64_t at, int64_t stride, int left, const kr_float2 &two) {
  if (v.dtype != KRAIT_F32 && stride == 1 && left >= 2 &&
      (((uint64_t)(uintptr_t)v.data >> 1) + (uint64_t)at) % 2 == 0) {
    *(uint32_t *)((uint16_t *)v.data + at) = kr_pack(two.v[0], two.v[1], v.dtype);
    return;
  }
  if (left > 0) kr_store(v.data, at, v.dtype, two.v[0]);
  if (left > 1) kr_store(v.data, at + stride, v.dtype, two.v[1]);
}

/* The first n of N elements a stride apart. */
template <int N>
KR_DEV void get_column(const kr_view &v, int64_t at, int64_t stride, int n, float (&to)[N]) {
  const float *const wide = (const float *)v.data + at;
  const uint16_t *const narrow = (const uint16_t *)v.data + at;
  if (v.dtype == KRAIT_F32) {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = i < n ? wide[i * stride] : 0.0f;
  } else {
    uint16_t e[N];
#pragma unroll
    for (int i = 0; i < N; i++) e[i] = i < n ? narrow[i * stride] : (uint16_t)0;
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = v.dtype == KRAIT_BF16 ? kr_from_bf16(e[i]) : kr_from_f16(e[i]);
  }
}

KR_DEV float add_warp(float v) {
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) v += kr_shuffle_xor(v, d);
  return v;
}

#endif
