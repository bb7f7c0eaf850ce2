/* pack.cuh: runs of 16 bytes along one dimension of a tensor: 8 elements of 16 bits or 4 of 32. */
#ifndef KR_PACK_CUH
#define KR_PACK_CUH

#include "kernel.cuh"
#include "rows.h"

KR_DEV uint32_t kr_divide(uint32_t n, kr_divisor d) { return (kr_mul_high(n, d.multiplier) + n) >> d.shift; }

KR_DEV int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* Raw elements t, t+1, ... of a row: 8 of 16 bits or 4 of 32; zeros from `left` on. */
KR_DEV kr_raw16 load_pack(const void *data, int64_t offset, int64_t stride, int32_t dtype, int packs, int64_t left) {
  kr_raw16 raw = {{0, 0, 0, 0}};
  if (dtype == KRAIT_F32) {
    if (packs && left >= 4) return *(const kr_raw16 *)((const float *)data + offset);
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (k < left) raw.w[k] = ((const uint32_t *)data)[offset + k * stride];
    return raw;
  }
  if (packs && left >= 8) return *(const kr_raw16 *)((const uint16_t *)data + offset);
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (k < left) raw.w[k >> 1] |= (uint32_t)((const uint16_t *)data)[offset + k * stride] << ((k & 1) * 16);
  return raw;
}

KR_DEV float pack_at(kr_raw16 raw, int k, int32_t dtype) {
  return dtype == KRAIT_F32 ? kr_bits_to_float(raw.w[k & 3]) : kr_unpack(raw.w[k >> 1], k & 1, dtype);
}

/* The same as floats; v[k] is 0 from `left` on and, for 32-bit types, from 4 on. dtype is r.dtype, preferably a
 * constant. */
KR_DEV void read_pack(const kr_rows &r, const int32_t dtype, int64_t offset, int64_t left, float (&v)[8]) {
  kr_raw16 raw = load_pack(r.data, offset, r.t, dtype, r.packs, left);
#pragma unroll
  for (int k = 0; k < 8; k++) v[k] = dtype == KRAIT_F32 && k >= 4 ? 0.0f : pack_at(raw, k, dtype);
}

KR_DEV void write_pack(const kr_rows &r, const int32_t dtype, int64_t offset, int64_t left, const float (&v)[8]) {
  const int E = dtype == KRAIT_F32 ? 4 : 8;
  if (r.packs && left >= E) {
    kr_raw16 raw;
#pragma unroll
    for (int k = 0; k < 4; k++) raw.w[k] = E == 4 ? kr_float_to_bits(v[k]) : kr_pack(v[2 * k], v[2 * k + 1], dtype);
    *(kr_raw16 *)((char *)r.data + offset * (E == 4 ? 4 : 2)) = raw;
    return;
  }
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (k < E && k < left) kr_store(r.data, offset + k * r.t, dtype, v[k]);
}

#endif
