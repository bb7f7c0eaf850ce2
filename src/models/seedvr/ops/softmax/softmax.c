/* softmax.c: cost and implementations of the softmax of rows; softmax_ref.c has the equation. On a CPU models call
 * attention, which takes heads of any width there. Bound: float32 1e-5, 16-bit storage one rounding. */
#include "cuda_impl.h"
#include "seedvr/ops/seedvr_ops.h"

static void count_softmax_cost(const void *args, kr_cost *cost) {
  const kr_softmax_args *a = args;
  const double n = (double)a->M * (double)a->N;
  *cost = (kr_cost){.flops = 3 * n, .bytes = n * (4 + (double)krait_dtype_bytes(a->out.dtype)), .exps = n};
}

KR_CUDA_DECLARE(softmax);

static const kr_impl impls[] = {
    KR_CUDA_IMPLS(softmax)
    {"ref", KRAIT_CAP_CPU, NULL, kr_softmax_ref, NULL},
};

KR_OP_DEFINE(softmax, impls, NULL, count_softmax_cost, kr_softmax_case, 100)
