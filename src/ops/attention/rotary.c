/* rotary.c: contract, cost and implementations of the rotary embedding; rotary_ref.c has the equation. Error bound:
 * float32 1e-5, 16-bit storage: one rounding. */
#include "attention_impls.h"
#include "op_list.h"
#include "rotary_impls.h"

static void count_rotary_cost(const void *args, kr_cost *cost) {
  const kr_rotary_args *a = args;
  const double n = (double)a->L * (double)a->H * (double)a->D * (a->cu_seqlens.data ? 1 : (double)a->B);
  cost->flops = 3 * n;
  cost->bytes = 2 * n * (double)krait_dtype_bytes(a->x.dtype);
  cost->exps = 0;
}

static const kr_impl impls[] = {
    {"cuda_base_packs", KRAIT_CAP_CUDA_BASE, kr_rotary_packs_refuse, kr_rotary_packs, NULL},
    {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_rotary_cuda_refuse, kr_rotary_cuda, NULL},
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, kr_rotary_refuse_##isa, kr_rotary_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_rotary_ref, NULL},
};

KR_OP_DEFINE(rotary, impls, NULL, count_rotary_cost, kr_rotary_case, 200, .takes_pdl = 1)
