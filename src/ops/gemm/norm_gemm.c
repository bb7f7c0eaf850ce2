/* norm_gemm.c: contract, cost and implementations of a product with the RMS norm of its input fused in, and optionally
 * a convolution of its output. The equation is in norm_gemm_ref.c; rewrites (norm_gemm_rewrite.c) form it from separate
 * calls where a GPU implementation accepts it. */
#include "gemm/norm_gemm_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static int32_t check_norm_gemm_rules(const void *args) {
  const kr_norm_gemm_args *a = args;
  KR_CHECK(a->eps >= 0 && a->eps - a->eps == 0, KRAIT_ERR_ARGUMENT, "norm_gemm: eps is not finite, or below 0");
  const int has_conv = kr_has(&a->conv_weight), has_qweight = kr_has(&a->qweight);
  KR_CHECK(kr_has(&a->scales) == has_qweight && (!has_qweight || a->K == 32 * a->S), KRAIT_ERR_SHAPE,
           "norm_gemm: qweight and scales must be given together, and K be 32 S; K is %lld, S %lld", (long long)a->K,
           (long long)a->S);
  KR_CHECK(!has_conv || !kr_has(&a->B2), KRAIT_ERR_ARGUMENT, "norm_gemm: conv_weight cannot be given with B2");
  KR_CHECK(kr_has(&a->conv_state) == has_conv && kr_has(&a->conv_out) == has_conv, KRAIT_ERR_ARGUMENT,
           "norm_gemm: conv_weight, conv_state and conv_out must be given together");
  KR_CHECK(
      !has_conv || (a->W >= 2 && a->C >= 1 && a->conv_from <= a->N - a->C), KRAIT_ERR_SHAPE,
      "norm_gemm: W is %lld and C channels from column %lld on are %lld; W must be 2 or more, and columns be there",
      (long long)a->W, (long long)a->conv_from, (long long)a->C);
  KR_CHECK(!has_conv || kr_has(&a->conv_state_indices) || a->n_states >= a->M, KRAIT_ERR_SHAPE,
           "norm_gemm: n_states is %lld, must be at least M %lld without conv_state_indices", (long long)a->n_states,
           (long long)a->M);
  return KRAIT_OK;
}

static void count_norm_gemm_cost(const void *args, kr_cost *cost) {
  const kr_norm_gemm_args *a = args;
  const double M = (double)a->M, K = (double)a->K, N = (double)a->N * (kr_has(&a->B2) ? 2 : 1);
  cost->flops = M * K * (2 * N + 5);
  const double weight_bytes = kr_has(&a->qweight) ? 1 + (double)krait_dtype_bytes(a->scales.dtype) / 32
                                                : (double)krait_dtype_bytes(a->Bmat.dtype);
  cost->bytes = K * N * weight_bytes + M * ((double)a->N * (double)krait_dtype_bytes(a->out.dtype) +
                                            K * (double)krait_dtype_bytes(a->x.dtype));
  if (kr_has(&a->residual)) cost->bytes += M * K * (double)krait_dtype_bytes(a->residual.dtype);
  if (kr_has(&a->residual_out)) cost->bytes += M * K * (double)krait_dtype_bytes(a->residual_out.dtype);
  if (kr_has(&a->conv_weight)) {
    const double taps = (double)a->C * (double)a->W;
    cost->flops += 2 * M * taps, cost->bytes += taps * (2 * M * 4 + (double)krait_dtype_bytes(a->conv_weight.dtype));
  }
  cost->exps = (kr_has(&a->z) ? M * K : 0) + (a->activation == KRAIT_ACT_SILU ? M * (double)a->N : 0);
}

static const kr_impl impls[] = {
    {"ampere_few_rows_q8", KRAIT_CAP_CUDA_AMPERE, kr_norm_gemm_q8_refuse, kr_norm_gemm_q8, NULL},
    {"ampere_few_rows", KRAIT_CAP_CUDA_AMPERE, kr_norm_gemm_few_refuse, kr_norm_gemm_few, NULL},
    {"turing_few_rows_q8", KRAIT_CAP_CUDA_TURING, kr_norm_gemm_q8_turing_refuse, kr_norm_gemm_q8_turing, NULL},
    {"turing_few_rows", KRAIT_CAP_CUDA_TURING, kr_norm_gemm_few_turing_refuse, kr_norm_gemm_few_turing, NULL},
    {"ref", KRAIT_CAP_CPU, NULL, kr_norm_gemm_ref, NULL},
};

KR_OP_DEFINE(norm_gemm, impls, check_norm_gemm_rules, count_norm_gemm_cost,
             kr_norm_gemm_case, 300, .takes_pdl = 1, .rewrites = kr_norm_gemm_rewrites)
