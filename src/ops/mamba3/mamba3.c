/* mamba3.c: contracts, costs and implementations of Mamba 3's scan, its gradient and its step; the equations are in
 * mamba3_ref.c and mamba3_bwd_ref.c. Error bounds: those of the SSD, which most implementations run; gradients of
 * angles are sums over all later tokens. */
#include "contract.h"
#include "mamba3_impls.h"
#include "mamba3_inputs.h"
#include "op_list.h"

/* Kernels load and turn entries of N in pairs. */
static int32_t check_mamba3_pairs(const char *op, int64_t N) {
  KR_CHECK(N % 2 == 0, KRAIT_ERR_SHAPE, "%s: N is %lld, must be even", op, (long long)N);
  return KRAIT_OK;
}

/* Initial states are given all or none. */
static int32_t check_mamba3_states(const char *op, const kr_view *const states[4]) {
  static const char *const names[] = {"initial_angles", "initial_states", "initial_B", "initial_x"};
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++)
      KR_CHECK(!kr_has(states[i]) || kr_has(states[j]), KRAIT_ERR_ARGUMENT, "%s: %s is given without %s", op, names[i],
               names[j]);
  return KRAIT_OK;
}

static int32_t check_mamba3_sequences(const char *op, const kr_view *cu_seqlens, int64_t B, int64_t S) {
  if (!kr_has(cu_seqlens)) return kr_need_size(op, "S without cu_seqlens", S, 0, 0);
  KR_CHECK(B == 1, KRAIT_ERR_SHAPE, "%s: B is %lld, must be 1 with cu_seqlens", op, (long long)B);
  return kr_need_size(op, "S", S, 1, INT32_MAX);
}

static int32_t check_mamba3_kept(const char *op, const kr_mamba3_inputs *in, int64_t n_kept, const kr_view *kept) {
  if (!kr_has(kept)) return kr_need_size(op, "n_kept without kept", n_kept, 0, 0);
  const int64_t wanted = kr_mamba3_n_kept(in->L, in->M);
  KR_TRY(kr_need_size(op, "n_kept", n_kept, wanted, wanted));
  KR_CHECK(kept->stride[2] == 1 && (in->H < 2 || kept->stride[1] == n_kept) &&
               (in->B < 2 || kept->stride[0] == in->H * n_kept) && (uintptr_t)kept->data % 16 == 0,
           KRAIT_ERR_ARGUMENT, "%s: kept must be dense, from a multiple of 16 bytes on", op);
  return KRAIT_OK;
}

static int32_t check_mamba3_rules(const void *args) {
  const kr_mamba3_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  KR_TRY(check_mamba3_kept("mamba3", &in, a->n_kept, &a->kept));
  KR_TRY(check_mamba3_sequences("mamba3", &a->cu_seqlens, a->B, a->S));
  KR_TRY(check_mamba3_pairs("mamba3", a->N));
  return check_mamba3_states("mamba3", (const kr_view *const[]){&a->initial_angles, &a->initial_states, &a->initial_B,
                                                                &a->initial_x});
}

static int32_t check_mamba3_bwd_rules(const void *args) {
  const kr_mamba3_bwd_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  KR_TRY(check_mamba3_kept("mamba3_bwd", &in, a->n_kept, &a->kept));
  KR_TRY(check_mamba3_sequences("mamba3_bwd", &a->cu_seqlens, a->B, a->S));
  KR_TRY(check_mamba3_pairs("mamba3_bwd", a->N));
  return check_mamba3_states("mamba3_bwd", (const kr_view *const[]){&a->initial_angles, &a->initial_states,
                                                                    &a->initial_B, &a->initial_x});
}

static int32_t check_mamba3_step_rules(const void *args) {
  return check_mamba3_pairs("mamba3_step", ((const kr_mamba3_step_args *)args)->N);
}

/* Of the chunked form with 64 rows per chunk, whose rows are the tokens' ranks. */
static void count_mamba3_cost(const void *args, kr_cost *cost) {
  const kr_mamba3_args *a = args;
  const double heads = (double)a->B * (double)a->L * (double)a->H, P = (double)a->P, N = (double)a->N, R = (double)a->R;
  const double element = (double)krait_dtype_bytes(a->x.dtype), Q = 64, gate = kr_has(&a->z) ? 1 : 0;
  cost->flops = heads * R * (4 * P * N + Q * (P + N) + 2 * R * (P + N));
  cost->bytes = heads * P * element * (2 + gate) + heads * (4 + 4 + 2) +
                (double)(a->B * a->L) * 2 * R * (double)a->G * N * (double)krait_dtype_bytes(a->Bmat.dtype);
  cost->exps = heads * (2 + 3 * (double)a->M + gate * R * P);
}

static void count_mamba3_bwd_cost(const void *args, kr_cost *cost) {
  const kr_mamba3_bwd_args *a = args;
  const double heads = (double)a->B * (double)a->L * (double)a->H, P = (double)a->P, N = (double)a->N, R = (double)a->R;
  const double element = (double)krait_dtype_bytes(a->x.dtype), Q = 64, gate = kr_has(&a->z) ? 2 : 0;
  cost->flops = 2 * heads * R * (P * (5 * N + Q) + N * Q + 4 * R * (P + N));
  cost->bytes = heads * P * element * (3 + gate) + heads * 2 * (4 + 4 + 2) +
                (double)(a->B * a->L) * 4 * R * (double)a->G * N * (double)krait_dtype_bytes(a->Bmat.dtype);
  cost->exps = heads * (2 + 3 * (double)a->M + gate * R * P);
}

static void count_mamba3_step_cost(const void *args, kr_cost *cost) {
  const kr_mamba3_step_args *a = args;
  const double heads = (double)a->B * (double)a->H, P = (double)a->P, N = (double)a->N, R = (double)a->R;
  cost->flops = heads * P * N * (1 + 6 * R);
  cost->bytes = heads * P * N * 2 * (double)krait_dtype_bytes(a->state.dtype) +
                heads * (R * N + 4 * P) * (double)krait_dtype_bytes(a->x.dtype);
  cost->exps = heads * (2 + 3 * (double)a->M + R * P);
}

#define GPU_IMPL(op, name, tier, row) \
  {name, KRAIT_CAP_CUDA_##tier, kr_##op##_##row##_refuse, kr_##op##_##row, kr_##op##_##row##_scratch}
#define OF_16_BITS(op) GPU_IMPL(op, "cuda_hopper", HOPPER, hopper), GPU_IMPL(op, "cuda_ampere_chunks", AMPERE, chunks)
#define OTHERS(op)                                                                                      \
  GPU_IMPL(op, "ampere_chunks_tf32", AMPERE, tf32), GPU_IMPL(op, "ampere_chunks_parts", AMPERE, parts), \
      GPU_IMPL(op, "base_chunks", BASE, tiles), GPU_IMPL(op, "cuda_base_tokens", BASE, tokens)

static const kr_impl impls[] = {
    OF_16_BITS(mamba3),
    GPU_IMPL(mamba3, "turing_chunks", TURING, turing),
    OTHERS(mamba3),
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_mamba3_##isa, kr_mamba3_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba3_ref, kr_mamba3_ref_scratch},
};
static const kr_impl bwd_impls[] = {
    OF_16_BITS(mamba3_bwd),
    OTHERS(mamba3_bwd),
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_mamba3_bwd_##isa, kr_mamba3_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba3_bwd_ref, kr_mamba3_bwd_ref_scratch},
};
static const kr_impl step_impls[] = {
    KR_CUDA_FAMILIES(KR_MAMBA3_STEP_FAMILIES, mamba3_step)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_mamba3_step_##isa, kr_mamba3_step_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba3_step_ref, kr_mamba3_step_ref_scratch},
};

KR_OP_DEFINE(mamba3, impls, check_mamba3_rules, count_mamba3_cost, kr_mamba3_case, 300)
KR_OP_DEFINE(mamba3_bwd, bwd_impls, check_mamba3_bwd_rules, count_mamba3_bwd_cost, kr_mamba3_bwd_case, 200)
KR_OP_DEFINE(mamba3_step, step_impls, check_mamba3_step_rules, count_mamba3_step_cost, kr_mamba3_step_case, 200)
