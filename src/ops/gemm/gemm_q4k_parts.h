/* gemm_q4k_parts.h: how the vector implementations decode the bytes of 4-bit weights. */
#ifndef KR_GEMM_Q4K_PARTS_H
#define KR_GEMM_Q4K_PARTS_H

#include <string.h>

#include "op_args.h"
#include "vec.h"

/* Weights and bytes per super-block, weights per scale and minimum. */
enum { SUPER = 256, SUPER_BYTES = 144, PART = 32 };

static inline const uint8_t *bytes_of(const kr_gemm_q4k_args *a, int64_t n) {
  return (const uint8_t *)((const int32_t *)a->qweight.data + n * a->qweight.stride[0]);
}

/* Scales and minima of a super-block: w = scale q + base. */
typedef struct parts {
  float scale[16], base[16];
} parts;

/* For OUTPUTS outputs at once, in two steps: vector loads of what was stored as bytes wait for all earlier stores, once
 * for many super-blocks instead of once for each. */
typedef struct raw_parts {
  int8_t scale[16], minimum[16];
  float d, e;
} raw_parts;

KR_INLINE void read_raw(const uint8_t *super, raw_parts *p) {
  uint32_t w[3];
  float halves[KR_VL];
  memcpy(w, super + 4, sizeof w);
  kr_v_store(halves, kr_v_load_h((const uint16_t *)super)); /* the first two are d and e */
  const uint32_t s[2] = {w[0] & 0x3f3f3f3f, (w[2] & 0x0f0f0f0f) | (w[0] >> 2 & 0x30303030)};
  const uint32_t t[2] = {w[1] & 0x3f3f3f3f, (w[2] >> 4 & 0x0f0f0f0f) | (w[1] >> 2 & 0x30303030)};
  memcpy(p->scale, s, sizeof s);
  memcpy(p->minimum, t, sizeof t);
  p->d = halves[0], p->e = -halves[1];
}

KR_INLINE void make_parts(const raw_parts *from, parts *p) {
  const kr_v d = kr_v_set1(from->d), e = kr_v_set1(from->e);
  for (int k = 0; k < 8; k += KR_VL) {
    kr_v_store(p->scale + k, kr_v_mul(kr_v_load_i8(from->scale + k), d));
    kr_v_store(p->base + k, kr_v_mul(kr_v_load_i8(from->minimum + k), e));
  }
}

#endif
