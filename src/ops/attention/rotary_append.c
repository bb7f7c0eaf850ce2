/* rotary_append.c: contract, cost and implementations of rotating queries and appending keys and values in one call; a
 * rewrite (attention_step_rewrite.c) fuses the two calls into it where a GPU supports it. */
#include "attention/rotary_append_impls.h"
#include "contract.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static int32_t check_rotary_append_rules(const void *args) {
  const kr_rotary_append_args *a = args;
  KR_CHECK(kr_has(&a->q_norm) == kr_has(&a->k_norm), KRAIT_ERR_ARGUMENT,
           "rotary_append: q_norm and k_norm must be given together");
  KR_CHECK(a->eps >= 0 && a->eps - a->eps == 0, KRAIT_ERR_ARGUMENT, "rotary_append: eps is not finite, or below 0");
  return kr_has(&a->cache_batch_idx)
             ? KRAIT_OK
             : kr_need_size("rotary_append", "Bk without cache_batch_idx", a->Bk, a->B, a->B);
}

static void count_rotary_append_cost(const void *args, kr_cost *cost) {
  const kr_rotary_append_args *a = args;
  const double tokens = (double)a->B * (double)a->L,
               n = tokens * ((double)(a->H + a->Hk) * (double)a->D + (double)a->Hk * (double)a->Dv);
  cost->flops = 2 * n;
  cost->bytes = 2 * n * (double)krait_dtype_bytes(a->k.dtype);
}

static const kr_impl impls[] = {
    {"cuda_base_heads", KRAIT_CAP_CUDA_BASE, kr_rotary_append_heads_refuse, kr_rotary_append_heads, NULL},
    {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_rotary_append_cuda_refuse, kr_rotary_append_cuda, NULL},
    {"ref", KRAIT_CAP_CPU, NULL, kr_rotary_append_ref, kr_rotary_append_ref_scratch},
};

KR_OP_DEFINE(rotary_append, impls, check_rotary_append_rules, count_rotary_append_cost,
             kr_rotary_append_case, 200, .takes_pdl = 1, .rewrites = kr_rotary_append_rewrites)
