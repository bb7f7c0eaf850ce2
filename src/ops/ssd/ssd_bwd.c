/* ssd_bwd.c: contract, cost and implementations of the SSD's gradient; the equations are in ssd_bwd_ref.c. Error bound:
 * float32 2e-5 of the gradient's scale, 1e-4 for sums over time and beyond 4000 tokens; 16-bit storage adds one
 * rounding. */
#include "contract.h"
#include "op_list.h"
#include "ssd_inputs.h"
#include "ssd_impls.h"

static int32_t check_ssd_bwd_rules(const void *args) {
  const kr_ssd_bwd_args *a = args;
  KR_TRY(kr_ssd_check_limits("ssd_bwd", a->dt_min, a->dt_max));
  return kr_need_size("ssd_bwd", "S", a->S, 0, 0);
}

static void count_ssd_bwd_cost(const void *args, kr_cost *cost) {
  const kr_ssd_bwd_args *a = args;
  const double tokens = (double)a->B * (double)a->L, heads = tokens * (double)a->H, P = (double)a->P, N = (double)a->N,
               Q = 64;
  const double directions = a->call.flags & KRAIT_SSD_BOTH ? 2 : 1, element = (double)krait_dtype_bytes(a->x.dtype);
  cost->flops = directions * 2 * heads * (P * (5 * N + Q) + N * Q);
  cost->bytes = heads * P * element * (kr_has(&a->z) ? 5 : 3) + heads * 2 * (double)krait_dtype_bytes(a->dt.dtype) +
                tokens * (double)a->G * N * 4 * (double)krait_dtype_bytes(a->Bmat.dtype);
  cost->exps = heads * (directions * Q / 2 + (kr_has(&a->z) ? P : 0));
}

static const kr_impl impls[] = {
    {"cuda_hopper", KRAIT_CAP_CUDA_HOPPER, kr_ssd_bwd_hopper_refuse, kr_ssd_bwd_hopper, kr_ssd_bwd_hopper_scratch},
    {"cuda_ampere_chunks", KRAIT_CAP_CUDA_AMPERE, kr_ssd_bwd_chunks_refuse, kr_ssd_bwd_chunks,
     kr_ssd_bwd_chunks_scratch},
    {"ampere_chunks_tf32", KRAIT_CAP_CUDA_AMPERE, kr_ssd_bwd_tf32_refuse, kr_ssd_bwd_tf32, kr_ssd_bwd_chunks_scratch},
    {"ampere_chunks_parts", KRAIT_CAP_CUDA_AMPERE, kr_ssd_bwd_parts_refuse, kr_ssd_bwd_parts,
     kr_ssd_bwd_chunks_scratch},
    {"base_chunks", KRAIT_CAP_CUDA_BASE, kr_ssd_bwd_tiles_refuse, kr_ssd_bwd_tiles, kr_ssd_bwd_tiles_scratch},
    {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_ssd_bwd_cuda_refuse, kr_ssd_bwd_cuda_base, kr_ssd_bwd_cuda_scratch},
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_ssd_bwd_##isa, kr_ssd_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_ssd_bwd_ref, kr_ssd_bwd_ref_scratch},
};

KR_OP_DEFINE(ssd_bwd, impls, check_ssd_bwd_rules, count_ssd_bwd_cost, kr_ssd_bwd_case, 300)
