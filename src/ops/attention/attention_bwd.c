/* attention_bwd.c: contract, cost and implementations of attention's gradient; attention_bwd_ref.c has the equations.
 * Error bound: float32 2e-5 of the gradient's scale, 1e-4 for the sinks; 16-bit storage: one rounding more. */
#include "attention_cuda.h"
#include "attention_inputs.h"
#include "attention_impls.h"
#include "contract.h"
#include "op_list.h"

static int32_t check_attention_bwd_rules(const void *args) {
  const kr_attention_inputs in = kr_attention_bwd_inputs_of(args);
  const kr_attention_bwd_args *a = args;
  KR_TRY(kr_attention_check_rules(&in));
  return kr_need("attention_bwd", "lse", &a->lse, KR_TYPE_F32 | 1 << KRAIT_F64);
}

static void count_attention_bwd_cost(const void *args, kr_cost *cost) {
  const kr_attention_bwd_args *a = args;
  const kr_attention_inputs in = kr_attention_bwd_inputs_of(a);
  const double pairs = kr_attention_pairs(&in), D = (double)a->D, Dv = (double)a->Dv,
               packed_q = kr_has(&a->cu_seqlens_q) ? 1 : (double)a->B;
  cost->flops = 2 * pairs * (3 * D + 2 * Dv);
  cost->bytes = (packed_q * (double)a->Lq * (double)a->H * (2 * D + 2 * Dv) +
                 (double)a->Bk * (double)a->Lk * (double)a->Hk * 2 * (D + Dv)) *
                (double)krait_dtype_bytes(a->q.dtype);
  cost->exps = pairs;
}

static const kr_impl impls[] = {
    {"cuda_hopper_any_order", KRAIT_CAP_CUDA_HOPPER, kr_attention_bwd_hopper_sums_refuse, kr_attention_bwd_hopper_sums,
     kr_attention_bwd_hopper_sums_scratch},
    {"cuda_hopper", KRAIT_CAP_CUDA_HOPPER, kr_attention_bwd_hopper_refuse, kr_attention_bwd_hopper,
     kr_attention_bwd_hopper_scratch},
    {"cuda_ampere_any_order", KRAIT_CAP_CUDA_AMPERE, kr_attention_bwd_ampere_sums_refuse, kr_attention_bwd_ampere_sums,
     kr_attention_bwd_ampere_sums_scratch},
    {"cuda_ampere_tiles", KRAIT_CAP_CUDA_AMPERE, kr_attention_bwd_ampere_refuse, kr_attention_bwd_ampere,
     kr_attention_bwd_ampere_scratch},
    {"turing_tiles", KRAIT_CAP_CUDA_TURING, kr_attention_bwd_turing_refuse, kr_attention_bwd_turing,
     kr_attention_bwd_turing_scratch},
    {"ampere_tiles_halves", KRAIT_CAP_CUDA_AMPERE, kr_attention_bwd_halves_refuse, kr_attention_bwd_halves,
     kr_attention_bwd_halves_scratch},
    {"ampere_tiles_parts", KRAIT_CAP_CUDA_AMPERE, kr_attention_bwd_parts_refuse, kr_attention_bwd_parts,
     kr_attention_bwd_parts_scratch},
    {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_attention_bwd_base_refuse, kr_attention_bwd_base,
     kr_attention_bwd_base_scratch},
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_attention_bwd_##isa, kr_attention_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_attention_bwd_ref, kr_attention_bwd_ref_scratch},
};

KR_OP_DEFINE(attention_bwd, impls, check_attention_bwd_rules, count_attention_bwd_cost, kr_attention_bwd_case, 300)
