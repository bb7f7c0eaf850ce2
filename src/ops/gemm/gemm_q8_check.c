/* gemm_q8_check.c: random calls, few and many rows; a third as vector implementations take them, a third as the GPU
 * implementation does. */
#include "check.h"
#include "gemm/gemm_q8_impls.h"
#include "op_list.h"

static void fill_gemm_q8_qweight(kr_case *c, const kr_view *qweight, int64_t N, int64_t n_qweight) {
  for (int64_t n = 0; n < N; n++)
    for (int64_t k = 0; k < n_qweight; k++)
      ((int32_t *)qweight->data)[n * qweight->stride[0] + k * qweight->stride[1]] =
          (int32_t)((uint32_t)kr_case_int(c, 0, 65535) << 16 | (uint32_t)kr_case_int(c, 0, 65535));
}

int32_t kr_gemm_q8_case(kr_case *c, int64_t index) {
  kr_gemm_q8_args *a = (kr_gemm_q8_args *)c->args;
  a->M = index % 4 == 0 ? kr_case_edge(c, 70) : kr_case_int(c, 1, 17);
  a->N = kr_case_edge(c, 130), a->S = kr_case_int(c, 1, 5);
  if (index % 24 == 4) /* as the matrix unit takes them */
    a->M = kr_case_int(c, 20, 50), a->N = kr_case_int(c, 64, 130), a->S = kr_case_int(c, 10, 20);
  c->contiguous = index % 3 != 2;
  if (c->contiguous) c->dtype = KRAIT_F32, c->other = kr_case_activation_dtype(c);
  if (c->contiguous && index % 2) { /* as a GPU takes them */
    a->M = kr_case_int(c, 1, 2), a->S = kr_case_int(c, 1, 50);
    if (kr_case_chance(c, 0.15)) a->M = 1, a->N = 1024 + kr_case_int(c, 0, 20), a->S = kr_case_int(c, 1, 34);
    c->dtype = kr_case_int(c, 0, 1) ? KRAIT_F16 : KRAIT_BF16, c->other = KRAIT_F16;
  }
  const kr_view *qweight = kr_case_give(c, "qweight");
  if (qweight && qweight->data) fill_gemm_q8_qweight(c, qweight, a->N, 8 * a->S);
  kr_case_give_rest(c);
  if (a->M > KR_GEMM_Q8_MOST_FEW && a->out.dtype == KRAIT_F32) kr_case_bound(c, &a->out, 3e-4, 0);
  return KRAIT_OK;
}
