/* dt_state_update.c: cost and implementations of Mamba's scan step fused with the product that computes its time steps;
 * a rewrite (dt_state_update_rewrite.c) forms it from a product and a state_update where a GPU implementation accepts
 * it. */
#include "state_update/dt_state_update_impls.h"
#include "op_list.h"
#include "view.h"

static void count_dt_state_update_cost(const void *args, kr_cost *cost) {
  const kr_dt_state_update_args *a = args;
  const double rows = (double)a->B * (double)a->D, N = (double)a->N, R = (double)a->R;
  cost->exps = rows * N;
  cost->flops = rows * (6 * N + 2 * R);
  cost->bytes = rows * N * 2 * (double)krait_dtype_bytes(a->state.dtype) +
                rows * (double)krait_dtype_bytes(a->x.dtype) * (kr_has(&a->z) ? 3 : 2) +
                (double)a->D * (N * 4 + R * (double)krait_dtype_bytes(a->dt_weight.dtype));
}

static const kr_impl impls[] = {
    {"cuda_ampere_whole_channels", KRAIT_CAP_CUDA_AMPERE, kr_dt_state_update_whole_refuse, kr_dt_state_update_whole,
     NULL},
    KR_CUDA_FAMILIES(KR_DT_UPDATE_FAMILIES, dt_state_update)
    {"ref", KRAIT_CAP_CPU, NULL, kr_dt_state_update_ref, kr_dt_state_update_ref_scratch},
};

KR_OP_DEFINE(dt_state_update, impls, NULL, count_dt_state_update_cost,
             kr_dt_state_update_case, 300, .takes_pdl = 1, .rewrites = kr_dt_state_update_rewrites)
