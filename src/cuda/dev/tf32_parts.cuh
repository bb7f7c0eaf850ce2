/* tf32_parts.cuh: products of float32 on a warp's tensor cores: factors as sums of two tf32 parts (PARTS: as accurate
 * as multiply-adds), or rounded to tf32. A factor that is infinite, or rounds to infinity, has a low part that is not
 * finite. */
#ifndef KR_TF32_PARTS_CUH
#define KR_TF32_PARTS_CUH

#include "mma.cuh"

/* A factor's registers. */
template <int PARTS, int n>
struct kr_factor {
  uint32_t high[n], low[n];
};

template <int PARTS, int n>
KR_DEV kr_factor<PARTS, n> kr_split(const float (&x)[n]) {
  kr_factor<PARTS, n> f;
#pragma unroll
  for (int r = 0; r < n; r++) {
    f.low[r] = 0;
    f.high[r] = PARTS ? (kr_float_to_bits(x[r]) + 0x1000u) & ~0x1fffu : kr_round_tf32(kr_float_to_bits(x[r]));
    if (PARTS) f.low[r] = kr_float_to_bits(x[r] - kr_bits_to_float(f.high[r]));
  }
  return f;
}

/* d += a b; in parts without the product of low ones, the small terms first, and added outside of the tensor core,
 * which rounds sums towards zero. */
template <int PARTS>
KR_DEV void kr_multiply(float (&d)[4], const kr_factor<PARTS, 4> &a, const float (&b_elements)[2]) {
  const kr_factor<PARTS, 2> b = kr_split<PARTS>(b_elements);
  if (PARTS) {
    float sum[4] = {0, 0, 0, 0};
    kr_mma_as(kr_tf32(), sum, a.low, b.high[0], b.high[1]);
    kr_mma_as(kr_tf32(), sum, a.high, b.low[0], b.low[1]);
    kr_mma_as(kr_tf32(), sum, a.high, b.high[0], b.high[1]);
#pragma unroll
    for (int r = 0; r < 4; r++) d[r] += sum[r];
  } else {
    kr_mma_as(kr_tf32(), d, a.high, b.high[0], b.high[1]);
  }
}

#endif
