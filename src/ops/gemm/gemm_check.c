/* gemm_check.c: random products around the edges of tiles and panels, with every option. */
#include "check.h"
#include "op_list.h"

int32_t kr_gemm_case(kr_case *c, int64_t index) {
  krait_gemm_args *a = (krait_gemm_args *)c->args;
  int32_t dtype = kr_case_chance(c, 0.8) ? KRAIT_F32 : kr_case_activation_dtype(c);
  a->M = kr_case_edge(c, index % 8 == 0 ? 300 : 40);
  a->N = kr_case_edge(c, 130);
  a->K = kr_case_edge(c, index % 8 == 1 ? 600 : 130);
  a->activation = kr_case_chance(c, 0.3) ? KRAIT_ACT_SILU : KRAIT_ACT_NONE;
  kr_case_view(c, &a->A, "A", KR_IN, dtype, KR_SHAPE(a->M, a->K));
  kr_case_view(c, &a->Bmat, "Bmat", KR_IN, dtype, KR_SHAPE(a->K, a->N));
  if (kr_case_chance(c, 0.6)) {
    kr_case_view(c, &a->bias, "bias", KR_IN, KRAIT_F32, KR_SHAPE(a->N));
    kr_case_fill_normal(c, &a->bias, 0, 1);
  }
  if (kr_case_chance(c, 0.5)) {
    kr_case_view(c, &a->residual, "residual", KR_IN, dtype, KR_SHAPE(a->M, a->N));
    kr_case_fill_normal(c, &a->residual, 0, 1);
  }
  kr_case_view(c, &a->out, "out", KR_OUT, dtype, KR_SHAPE(a->M, a->N));
  kr_case_fill_normal(c, &a->A, 0, 1);
  kr_case_fill_normal(c, &a->Bmat, 0, 1);
  return KRAIT_OK;
}
