/* expert_gemm.c: contract, cost and implementations of products with experts' matrices; expert_gemm_ref.c has the
 * equation. */
#include "expert_gemm/expert_gemm.h"

#include "lm_ops.h"
#include "status.h"
#include "view.h"

static int32_t check_experts_rules(const void *args) {
  const kr_expert_gemm_args *a = args;
  KR_CHECK(a->S == 1 || a->S == a->J, KRAIT_ERR_SHAPE, "expert_gemm: A has %lld rows for each of T, not 1 or J (%lld)",
           (long long)a->S, (long long)a->J);
  KR_CHECK(kr_has(&a->Bmat) || kr_has(&a->qweight), KRAIT_ERR_ARGUMENT, "expert_gemm: neither Bmat nor qweight given");
  if (kr_has(&a->Bmat)) return KRAIT_OK;
  KR_CHECK(a->activation == KRAIT_ACT_NONE, KRAIT_ERR_ARGUMENT, "expert_gemm: no activation with qweight");
  if (kr_has(&a->scales))
    KR_CHECK(a->K % 32 == 0 && a->Q == a->K / 4 && a->U == a->K / 32, KRAIT_ERR_SHAPE,
             "expert_gemm: qweight of %lld words and %lld scales do not match K %lld", (long long)a->Q, (long long)a->U,
             (long long)a->K);
  else
    KR_CHECK(a->K % 256 == 0 && a->Q == a->K / 256 * 36, KRAIT_ERR_SHAPE,
             "expert_gemm: qweight of %lld words does not match K %lld", (long long)a->Q, (long long)a->K);
  return KRAIT_OK;
}

static void count_experts_cost(const void *args, kr_cost *cost) {
  const kr_expert_gemm_args *a = args;
  const double pairs = (double)a->T * (double)a->J, both = kr_has(&a->B2) ? 2 : 1,
               used = pairs < (double)a->E ? pairs : (double)a->E, matrix = (double)a->N * (double)a->K,
               bytes = kr_has(&a->Bmat)     ? (double)krait_dtype_bytes(a->Bmat.dtype)
                       : kr_has(&a->scales) ? 1.0625
                                            : 0.5625;
  cost->flops = 2 * both * pairs * matrix;
  cost->bytes = both * used * matrix * bytes +
                (double)a->T * ((double)a->S * (double)a->K + (double)a->N) * (double)krait_dtype_bytes(a->A.dtype);
}

int32_t kr_expert_gemm_check_index(const kr_expert_gemm_args *a) {
  for (int64_t t = 0; t < a->T; t++)
    for (int64_t j = 0; j < a->J; j++) {
      const int64_t e = kr_get_i32(&a->index, kr_at2(&a->index, t, j));
      KR_CHECK(e < a->E, KRAIT_ERR_ARGUMENT,
               "expert_gemm: index[%lld,%lld] is %lld, must be below %lld (or negative: skipped)", (long long)t,
               (long long)j, (long long)e, (long long)a->E);
    }
  return KRAIT_OK;
}

static const kr_impl impls[] = {
    KR_CUDA_FAMILY_AMPERE(expert_gemm, tiles) KR_CUDA_FAMILY_AMPERE(expert_gemm, rows)
        KR_CUDA_FAMILY_BASE(expert_gemm, rows)
    {"by_expert", KRAIT_CAP_CPU, kr_expert_gemm_by_expert_refuse, kr_expert_gemm_by_expert,
     kr_expert_gemm_by_expert_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_expert_gemm_ref, NULL},
};

KR_OP_DEFINE(expert_gemm, impls, check_experts_rules, count_experts_cost, kr_expert_gemm_case, 300,
             .takes_pdl = 1)
