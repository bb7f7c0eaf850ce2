/* mamba3_raw_step.c: cost and implementations of Mamba 3's step from in_proj's columns; mamba3_raw_step_ref.c has the
 * equations. A language model's step on a GPU takes it; elsewhere the norms, decays and step that it is made of. */
#include "lm_ops.h"
#include "mamba3_raw_step/mamba3_raw_step.h"
#include "view.h"

static void count_mamba3_raw_step(const void *args, kr_cost *cost) {
  const kr_mamba3_raw_step_args *a = args;
  const double heads = (double)a->B * (double)a->H, P = (double)a->P, N = (double)a->N;
  cost->flops = heads * (7 * P * N + 12 * N);
  cost->bytes = heads * (P * N * 2 * (double)krait_dtype_bytes(a->state.dtype) + 4 * (2 * N + 2 * P)) +
                heads * 3 * P * (double)krait_dtype_bytes(a->x.dtype);
  cost->exps = heads * (5 + 3 * (double)a->M + P);
}

static const kr_impl impls[] = {
    {"cuda_hopper", KRAIT_CAP_CUDA_HOPPER, kr_mamba3_raw_step_cuda_refuse, kr_mamba3_raw_step_cuda_hopper,
     kr_mamba3_raw_step_cuda_scratch},
    KR_CUDA_IMPLS(mamba3_raw_step)
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba3_raw_step_ref, kr_mamba3_raw_step_ref_scratch},
};
KR_OP_DEFINE(mamba3_raw_step, impls, NULL, count_mamba3_raw_step, kr_mamba3_raw_step_case, 200, .takes_pdl = 1)
