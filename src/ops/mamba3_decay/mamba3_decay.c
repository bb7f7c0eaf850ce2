/* mamba3_decay.c: costs and implementations of Mamba 3's time steps and decays and of their gradient;
 * mamba3_decay_ref.c has the equations. Error bound: float32 1e-5 of the result's scale, 1e-4 for sums over rows. */
#include "mamba3_decay_impls.h"
#include "op_list.h"
#include "view.h"

static void count_mamba3_decay(const void *args, kr_cost *cost) {
  const kr_mamba3_decay_args *a = args;
  const double n = (double)a->R * (double)a->H;
  cost->flops = 8 * n, cost->exps = 2 * n;
  cost->bytes = n * (8 + 2 * (double)krait_dtype_bytes(a->dt_raw.dtype));
}

static void count_mamba3_decay_bwd(const void *args, kr_cost *cost) {
  const kr_mamba3_decay_bwd_args *a = args;
  const double n = (double)a->R * (double)a->H;
  cost->flops = 16 * n, cost->exps = 3 * n;
  cost->bytes = n * (8 + 4 * (double)krait_dtype_bytes(a->dt_raw.dtype));
}

static const char *refuse_mamba3_decay(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_args *a = args; /* the gradient's args have the same prefix */
  (void)ctx;
  return a->dt_raw.dtype == KRAIT_F64 ? "float64 tensors" : NULL;
}

static const kr_impl decay_impls[] = {
    KR_CUDA_IMPLS(mamba3_decay)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_mamba3_decay, kr_mamba3_decay_##isa, NULL},
#include "isa.def"
#undef KR_ISA
        {"ref", KRAIT_CAP_CPU, NULL, kr_mamba3_decay_ref, NULL},
};

static const kr_impl decay_bwd_impls[] = {
    KR_CUDA_IMPLS(mamba3_decay_bwd)
#define KR_ISA(isa, cap)                                                              \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_mamba3_decay, kr_mamba3_decay_bwd_##isa, \
   kr_mamba3_decay_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
        {"ref", KRAIT_CAP_CPU, NULL, kr_mamba3_decay_bwd_ref, NULL},
};

KR_OP_DEFINE(mamba3_decay, decay_impls, NULL, count_mamba3_decay, kr_mamba3_decay_case, 300)
KR_OP_DEFINE(mamba3_decay_bwd, decay_bwd_impls, NULL, count_mamba3_decay_bwd, kr_mamba3_decay_case, 300)
