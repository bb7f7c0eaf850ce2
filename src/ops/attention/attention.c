/* attention.c: contract, cost and implementations of softmax attention; attention_ref.c has the equation. Error bound:
 * float32 1e-5 of the output's scale; 16-bit storage: one rounding more. Tensor-core implementations round P to the
 * storage type; those of float32 take it, as all factors, as a sum of two float16 or tf32 parts. */
#include "attention_cuda.h"
#include "attention_inputs.h"
#include "attention_impls.h"
#include "op_list.h"
#include "status.h"

static int32_t check_attention_rules(const void *args) {
  const kr_attention_inputs in = kr_attention_inputs_of(args);
  return kr_attention_check_rules(&in);
}

/* Query-key pairs that a dense call's masks leave. */
double kr_attention_pairs(const kr_attention_inputs *in) {
  const double nq = (double)in->Lq, nk = (double)kr_attention_most_keys(in),
               packed = kr_has(in->cu_seqlens_q) && in->B > 0 ? (double)in->B : 1;
  double pairs = nq * nk / packed;
  if (in->right == 0) pairs = nk > nq ? nq * (nk - nq / 2) : nk * nk / 2;
  const double width = (double)in->left + (double)in->right + 1;
  if (pairs > nq * width) pairs = nq * width;
  return pairs * (kr_has(in->cu_seqlens_q) ? 1 : (double)in->B) * (double)in->H;
}

static void count_attention_cost(const void *args, kr_cost *cost) {
  const kr_attention_args *a = args;
  const kr_attention_inputs in = kr_attention_inputs_of(a);
  const double pairs = kr_attention_pairs(&in), D = (double)a->D + (double)a->Dv,
               queries = (double)a->Lq * (kr_has(&a->cu_seqlens_q) ? 1 : (double)a->B);
  const double keys = kr_has(&a->cu_seqlens_k) ? (double)a->Lk : (double)a->B * (double)kr_attention_most_keys(&in);
  cost->flops = 2 * pairs * D;
  cost->bytes = (queries * (double)a->H + keys * (double)a->Hk) * D * (double)krait_dtype_bytes(a->q.dtype);
  cost->exps = pairs;
}

static const kr_impl impls[] = {
    {"cuda_ampere_keys", KRAIT_CAP_CUDA_AMPERE, kr_attention_keys_refuse, kr_attention_keys, kr_attention_keys_scratch},
    {"base_few_rows", KRAIT_CAP_CUDA_BASE, kr_attention_few_base_refuse, kr_attention_few_base,
     kr_attention_few_base_scratch},
    {"cuda_hopper", KRAIT_CAP_CUDA_HOPPER, kr_attention_hopper_refuse, kr_attention_hopper,
     kr_attention_hopper_scratch},
    {"cuda_ampere_tiles", KRAIT_CAP_CUDA_AMPERE, kr_attention_ampere_refuse, kr_attention_ampere,
     kr_attention_ampere_scratch},
    {"turing_tiles", KRAIT_CAP_CUDA_TURING, kr_attention_turing_refuse, kr_attention_turing,
     kr_attention_turing_scratch},
    {"turing_tiles_scaled", KRAIT_CAP_CUDA_TURING, kr_attention_turing_scaled_refuse, kr_attention_turing_scaled,
     kr_attention_turing_scaled_scratch},
    {"ampere_tiles_halves", KRAIT_CAP_CUDA_AMPERE, kr_attention_halves_refuse, kr_attention_halves,
     kr_attention_halves_scratch},
    {"turing_tiles_halves", KRAIT_CAP_CUDA_TURING, kr_attention_turing_halves_refuse, kr_attention_turing_halves,
     kr_attention_turing_halves_scratch},
    {"ampere_tiles_parts", KRAIT_CAP_CUDA_AMPERE, kr_attention_parts_refuse, kr_attention_parts,
     kr_attention_parts_scratch},
    {"base_tiles", KRAIT_CAP_CUDA_BASE, kr_attention_base_tiles_refuse, kr_attention_base_tiles,
     kr_attention_base_tiles_scratch},
    {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_attention_base_refuse, kr_attention_base, kr_attention_base_scratch},
#define KR_ISA(isa, cap)                                                                            \
  {"simd_" #isa "_few", KRAIT_CAP_CPU | cap, kr_attention_few_refuse_##isa, kr_attention_few_##isa, \
   kr_attention_few_scratch_##isa},                                                                 \
      {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_attention_##isa, kr_attention_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_attention_ref, kr_attention_ref_scratch},
};

KR_OP_DEFINE(attention, impls, check_attention_rules, count_attention_cost, kr_attention_case, 400, .takes_pdl = 1)
