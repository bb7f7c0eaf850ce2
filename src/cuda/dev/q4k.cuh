/* q4k.cuh: the scales and bases of q4_k's super-blocks (quantize.h): 36 words for 256 weights, d and e, twelve bytes of
 * 6-bit scales and minima, 128 bytes of 4-bit weights. */
#ifndef KR_Q4K_CUH
#define KR_Q4K_CUH

#include "kernel.cuh"

enum { KR_Q4K_SUPER_WORDS = 36 };

/* w = scale q + base in the j-th 32 of a super-block starting with head: d and e, then the three words of scales and
 * minima. */
KR_DEV void kr_q4k_part(const uint32_t (&head)[4], int j, float &scale, float &base) {
  const int shift = j % 4 * 8;
  const uint32_t first_s = head[1] >> shift, first_t = head[2] >> shift, rest = head[3] >> shift;
  const uint32_t s = j < 4 ? first_s & 63 : (rest & 15) | (first_s >> 2 & 48),
                 t = j < 4 ? first_t & 63 : (rest >> 4 & 15) | (first_t >> 2 & 48);
  scale = kr_from_f16((uint16_t)head[0]) * (float)s;
  base = -kr_from_f16((uint16_t)(head[0] >> 16)) * (float)t;
}

#endif
