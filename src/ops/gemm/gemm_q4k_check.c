/* gemm_q4k_check.c: random calls with few and many rows; two in three as the vector implementations take them. Scales
 * and minima fit weights of about 0.1. */
#include "check.h"
#include "half.h"
#include "op_list.h"

static uint32_t random_word(kr_case *c) {
  return (uint32_t)kr_case_int(c, 0, 65535) << 16 | (uint32_t)kr_case_int(c, 0, 65535);
}

static uint32_t random_half(kr_case *c) { return kr_float_to_f16((float)kr_case_int(c, 0, 1000) * 5e-7f); }

static void fill_gemm_q4k_qweight(kr_case *c, const kr_view *qweight, int64_t N, int64_t n_qweight) {
  for (int64_t n = 0; n < N; n++)
    for (int64_t k = 0; k < n_qweight; k++)
      ((int32_t *)qweight->data)[n * qweight->stride[0] + k * qweight->stride[1]] =
          (int32_t)(k % 36 ? random_word(c) : random_half(c) | random_half(c) << 16);
}

int32_t kr_gemm_q4k_case(kr_case *c, int64_t index) {
  kr_gemm_q4k_args *a = (kr_gemm_q4k_args *)c->args;
  a->M = index % 4 == 0 ? kr_case_edge(c, 70) : index % 4 == 1 ? 1 : kr_case_int(c, 1, 9);
  a->N = kr_case_edge(c, index % 4 == 0 ? 70 : 130), a->S = kr_case_int(c, 1, 3);
  if (index % 24 == 4) /* as the matrix unit takes them */
    a->M = kr_case_int(c, 20, 50), a->N = kr_case_int(c, 64, 100), a->S = kr_case_int(c, 2, 3);
  if (index % 16 == 5) a->N = kr_case_int(c, 1, 20), a->S = kr_case_int(c, 15, 20); /* more than are read at once */
  c->contiguous = index % 3 != 2;
  if (c->contiguous) c->dtype = KRAIT_F32, c->other = kr_case_activation_dtype(c);
  const kr_view *qweight = kr_case_give(c, "qweight");
  if (qweight && qweight->data) fill_gemm_q4k_qweight(c, qweight, a->N, 36 * a->S);
  return KRAIT_OK;
}
