/* gemm_q4k_ref.c: out[m,n] = bias[n] + sum over k of A[m,k] w[n,k]. A super-block of 256 w is 36 words, little-endian,
 * i.e. 144 bytes: float16 d and e, 12 bytes of eight 6-bit scales s and minima t, and 128 bytes of 4-bit q; w = d s[i /
 * 32] q[i] - e t[i / 32]. */
#include "half.h"
#include "op_list.h"
#include "view.h"

/* Byte `at` of super-block s of row n. */
static uint32_t byte_of(const kr_view *qweight, int64_t n, int64_t s, int64_t at) {
  return (uint32_t)kr_get_i32(qweight, kr_at2(qweight, n, 36 * s + at / 4)) >> (at % 4 * 8) & 255;
}

static double half_of(const kr_view *qweight, int64_t n, int64_t s, int64_t at) {
  return kr_f16_to_float((uint16_t)(byte_of(qweight, n, s, at) | byte_of(qweight, n, s, at + 1) << 8));
}

/* Scale j, or minimum j with from = 4: the first four of each are six bits of one byte; the others have four bits in a
 * half byte and two at the top of an earlier byte. */
static uint32_t six_bits(const kr_view *qweight, int64_t n, int64_t s, int64_t j, int64_t from) {
  if (j < 4) return byte_of(qweight, n, s, 4 + from + j) & 63;
  const uint32_t low = byte_of(qweight, n, s, 4 + 4 + j) >> from & 15;
  return low | byte_of(qweight, n, s, 4 + from + j - 4) >> 6 << 4;
}

static double gemm_q4k_weight(const kr_gemm_q4k_args *a, int64_t n, int64_t k) {
  const int64_t s = k / 256, i = k % 256, j = i / 32;
  const uint32_t q = byte_of(&a->qweight, n, s, 16 + i / 64 * 32 + i % 32) >> (j % 2 * 4) & 15;
  return half_of(&a->qweight, n, s, 0) * six_bits(&a->qweight, n, s, j, 0) * q -
         half_of(&a->qweight, n, s, 2) * six_bits(&a->qweight, n, s, j, 4);
}

int32_t kr_gemm_q4k_ref(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q4k_args *a = args;
  (void)ctx;
  for (int64_t m = 0; m < a->M; m++)
    for (int64_t n = 0; n < a->N; n++) {
      double sum = kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, n)) : 0;
      for (int64_t k = 0; k < 256 * a->S; k++) sum += gemm_q4k_weight(a, n, k) * kr_get(&a->A, kr_at2(&a->A, m, k));
      kr_put(&a->out, kr_at2(&a->out, m, n), sum);
    }
  return KRAIT_OK;
}
