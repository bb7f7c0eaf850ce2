/* norm_gemm.c: cost and rows of the RMS norm within the product that reads it. The equation is in norm_gemm_ref.c; a
 * rewrite (graph_rewrite.c) makes it of a norm and a product where a row other than the reference takes it. */
#include "norm_gemm/norm_gemm_rows.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static int32_t check_rules(const void *args) {
  const krait_norm_gemm_args *a = args;
  KR_CHECK(a->eps >= 0 && a->eps - a->eps == 0, KRAIT_ERR_ARGUMENT, "norm_gemm: eps is not finite, or below 0");
  return KRAIT_OK;
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_norm_gemm_args *a = args;
  const double M = (double)a->M, N = (double)a->N, K = (double)a->K, factors = kr_has(&a->B2) ? 2 : 1;
  cost->flops = M * K * (2 * N * factors + 5);
  cost->bytes = factors * K * N * (double)krait_dtype_bytes(a->Bmat.dtype) +
                M * (N * (double)krait_dtype_bytes(a->out.dtype) + K * (double)krait_dtype_bytes(a->x.dtype));
  if (kr_has(&a->residual)) cost->bytes += M * K * (double)krait_dtype_bytes(a->residual.dtype);
  if (kr_has(&a->residual_out)) cost->bytes += M * K * (double)krait_dtype_bytes(a->residual_out.dtype);
  cost->exps = (kr_has(&a->z) ? M * K : 0) + (a->activation != KRAIT_ACT_NONE ? M * N : 0);
}

static const kr_row rows[] = {
    {"few_rows", KRAIT_CAP_CUDA_AMPERE, kr_norm_gemm_few_refuse, kr_norm_gemm_few, NULL},
    {"ref", KRAIT_CAP_CPU, NULL, kr_norm_gemm_ref, NULL},
};

KR_OP_DEFINE(norm_gemm, rows, check_rules, count_cost, kr_norm_gemm_case, 300)
