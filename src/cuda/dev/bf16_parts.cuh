/* bf16_parts.cuh: products of float32 on a warp's tensor cores, 16 terms at a time: factors as sums of three bfloat16
 * parts (PARTS: as accurate as multiply-adds; bfloat16 has float32's range, so nothing is scaled), or of two, no less
 * accurate than tf32. A factor that is infinite, or rounds to infinity, has parts that are not finite.
 *
 * A lane's numbers are those of two m16n8k8 (mma.cuh) one after the other: of A a[0], a[1] rows g and g + 8 of column
 * q, a[2] and a[3] of column q + 4, from a[4] on eight columns further; of B b[0] and b[1] rows q and q + 4 of column
 * g, b[2] and b[3] eight rows further. Products do not depend on how terms are numbered. */
#ifndef KR_BF16_PARTS_CUH
#define KR_BF16_PARTS_CUH

#include "mma.cuh"

/* A factor's registers: a[8] or b[4] in pairs of terms. */
template <int PARTS, int n>
struct kr_terms {
  uint32_t part[2 + PARTS][n];
};

template <int PARTS, int n>
KR_DEV void kr_split_pair(kr_terms<PARTS, n> &f, int i, float first, float second) {
#pragma unroll
  for (int part = 0; part < 2 + PARTS; part++) {
    const uint32_t pair = kr_pack_bf16(first, second);
    f.part[part][i] = pair;
    first -= kr_bits_to_float(pair << 16), second -= kr_bits_to_float(pair & 0xffff0000u);
  }
}

template <int PARTS>
KR_DEV kr_terms<PARTS, 4> kr_split_terms(const float (&a)[8]) {
  kr_terms<PARTS, 4> f;
#pragma unroll
  for (int i = 0; i < 4; i++) kr_split_pair(f, i, a[i / 2 * 4 + i % 2], a[i / 2 * 4 + i % 2 + 2]);
  return f;
}

/* d += a b without the products below float32's last place, the small terms first, and added outside of the tensor
 * core, which rounds sums towards zero. */
template <int PARTS>
KR_DEV void kr_multiply_terms(float (&d)[4], const kr_terms<PARTS, 4> &a, const float (&b_elements)[4]) {
  kr_terms<PARTS, 2> b;
  float sum[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 2; i++) kr_split_pair(b, i, b_elements[2 * i], b_elements[2 * i + 1]);
#pragma unroll
  for (int less = 1 + PARTS; less >= 0; less--)
#pragma unroll
    for (int i = less; i >= 0; i--) kr_mma_as(kr_bf16(), sum, a.part[i], b.part[less - i][0], b.part[less - i][1]);
#pragma unroll
  for (int r = 0; r < 4; r++) d[r] += sum[r];
}

#endif
