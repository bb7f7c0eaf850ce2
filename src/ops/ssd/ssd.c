/* ssd.c: contract, cost and implementations of the SSD (Mamba 2); the equation is in ssd_ref.c. Error bound: float32
 * 1e-5 of the output's scale, 2e-5 beyond 4000 tokens; 16-bit storage adds one rounding. Tensor-core implementations
 * round operands of 16-bit storage to that type; those of float32 are sums of two tf32 parts or, with KRAIT_SSD_TF32,
 * rounded to tf32: 8e-3. */
#include "contract.h"
#include "op_list.h"
#include "ssd_inputs.h"
#include "ssd_impls.h"

int32_t kr_ssd_check_limits(const char *op, float dt_min, float dt_max) {
  KR_CHECK(dt_max == 0 || dt_min <= dt_max, KRAIT_ERR_ARGUMENT, "%s: dt_min %g is above dt_max %g", op, (double)dt_min,
           (double)dt_max);
  return KRAIT_OK;
}

static int32_t check_ssd_rules(const void *args) {
  static const char op[] = "ssd";
  const kr_ssd_args *a = args;
  KR_TRY(kr_ssd_check_limits(op, a->dt_min, a->dt_max));
  if (!kr_has(&a->cu_seqlens)) return kr_need_size(op, "S without cu_seqlens", a->S, 0, 0);
  KR_TRY(kr_need(op, "varlen_states", &a->varlen_states, KR_TYPE_F32));
  KR_CHECK(a->B == 1, KRAIT_ERR_SHAPE, "%s: B is %lld, must be 1 with cu_seqlens", op, (long long)a->B);
  return kr_need_size(op, "S", a->S, 1, INT32_MAX);
}

/* Cost of the chunked form with 64 tokens per chunk, C B^T computed once per group. */
static void count_ssd_cost(const void *args, kr_cost *cost) {
  const kr_ssd_args *a = args;
  const double tokens = (double)a->B * (double)a->L, heads = tokens * (double)a->H, P = (double)a->P, N = (double)a->N,
               Q = 64;
  const double directions = a->call.flags & KRAIT_SSD_BOTH ? 2 : 1, element = (double)krait_dtype_bytes(a->x.dtype);
  cost->flops = directions * 2 * (heads * P * (2 * N + Q / 2) + tokens * (double)a->G * N * Q / 2);
  cost->bytes = heads * P * element * (kr_has(&a->z) ? 3 : 2) + heads * (double)krait_dtype_bytes(a->dt.dtype) +
                tokens * (double)a->G * N * 2 * (double)krait_dtype_bytes(a->Bmat.dtype);
  cost->exps = heads * (directions * Q / 2 + (kr_has(&a->z) ? P : 0));
}

static const kr_impl impls[] = {
    {"cuda_hopper", KRAIT_CAP_CUDA_HOPPER, kr_ssd_hopper_refuse, kr_ssd_hopper, kr_ssd_hopper_scratch},
    {"cuda_ampere_chunks", KRAIT_CAP_CUDA_AMPERE, kr_ssd_chunks_refuse, kr_ssd_chunks, kr_ssd_chunks_scratch},
    {"turing_chunks", KRAIT_CAP_CUDA_TURING, kr_ssd_turing_refuse, kr_ssd_turing, kr_ssd_chunks_scratch},
    {"ampere_chunks_tf32", KRAIT_CAP_CUDA_AMPERE, kr_ssd_tf32_refuse, kr_ssd_tf32, kr_ssd_parts_scratch},
    {"ampere_chunks_parts", KRAIT_CAP_CUDA_AMPERE, kr_ssd_parts_refuse, kr_ssd_parts, kr_ssd_parts_scratch},
    {"base_chunks", KRAIT_CAP_CUDA_BASE, kr_ssd_tiles_refuse, kr_ssd_tiles, kr_ssd_tiles_scratch},
    {"cuda_base_tokens", KRAIT_CAP_CUDA_BASE, kr_ssd_cuda_refuse, kr_ssd_cuda_base, kr_ssd_cuda_scratch},
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_ssd_##isa, kr_ssd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_ssd_ref, kr_ssd_ref_scratch},
};

KR_OP_DEFINE(ssd, impls, check_ssd_rules, count_ssd_cost, kr_ssd_case, 400)
