/* rnn.c: contract, costs, rows and random cases of GRU and LSTM layers. The equations are in rnn_ref.c. */
#include "check.h"
#include "op_list.h"
#include "rnn/rnn_impls.h"
#include "status.h"
#include "view.h"

static int n_gates(const kr_call *call) { return call->flags & KRAIT_RNN_LSTM ? 4 : 3; }

static void count_rnn(const void *args, kr_cost *cost) {
  const kr_rnn_args *a = args;
  const double steps = (double)a->B * (double)a->L, H = (double)a->H, G = n_gates(&a->call);
  *cost = (kr_cost){.flops = steps * 2 * G * H * H, .bytes = steps * H * (G + 1) * 4, .exps = steps * H * (G + 1)};
}
static void count_bwd(const void *args, kr_cost *cost) {
  const kr_rnn_bwd_args *a = args;
  const double steps = (double)a->B * (double)a->L, H = (double)a->H, G = n_gates(&a->call);
  *cost = (kr_cost){.flops = steps * 6 * G * H * H, .bytes = steps * H * (2 * G + 2) * 4, .exps = steps * H * (G + 1)};
}

static int32_t check_bwd(const void *args) {
  const kr_rnn_bwd_args *a = args;
  KR_CHECK(!(a->call.flags & KRAIT_RNN_LSTM) || kr_has(&a->cells), KRAIT_ERR_ARGUMENT,
           "rnn_bwd: cells must be given with KRAIT_RNN_LSTM");
  return KRAIT_OK;
}

static const kr_impl impls[] = {
    {"ampere_64_units", KRAIT_CAP_CUDA_AMPERE, kr_rnn_64_tensor_refuse, kr_rnn_64_tensor, NULL},
    {"base_64_units", KRAIT_CAP_CUDA_BASE, kr_rnn_64_refuse, kr_rnn_64, NULL},
    {"base_many_units", KRAIT_CAP_CUDA_BASE, kr_rnn_wide_refuse, kr_rnn_wide, NULL},
    KR_CUDA_IMPLS(rnn)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_rnn_##isa, kr_rnn_scratch},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_rnn_ref, NULL},
};
static const kr_impl bwd_impls[] = {
    {"ampere_64_units", KRAIT_CAP_CUDA_AMPERE, kr_rnn_bwd_64_refuse, kr_rnn_bwd_64, kr_rnn_bwd_cuda_scratch},
    KR_CUDA_IMPLS(rnn_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_rnn_bwd_##isa, kr_rnn_bwd_scratch},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_rnn_bwd_ref, kr_rnn_bwd_ref_scratch},
};

/* Floats: weight, bias (gates, padded H); and per thread U, h, c of a tile. */
uint64_t kr_rnn_scratch(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  const int64_t H = kr_rnn_whole(a->H), G = n_gates(&a->call);
  return (uint64_t)(G * H * (a->H + 1) + krait_ctx_n_threads(ctx) * KR_RNN_TILE * H * (G + 2)) * sizeof(float);
}
/* Weight in both layouts, bias; per thread U, dU, dh, dc, h of a tile; per chunk dweight, dbias. */
uint64_t kr_rnn_bwd_scratch(const krait_ctx *ctx, const void *args) {
  const kr_rnn_bwd_args *a = args;
  const int64_t H = kr_rnn_whole(a->H), G = n_gates(&a->call);
  return (uint64_t)(G * H * (a->H + 1) + G * a->H * H + krait_ctx_n_threads(ctx) * KR_RNN_TILE * H * (2 * G + 3) +
                    KR_RNN_CHUNKS * (G * H * a->H + G * H)) *
         sizeof(float);
}

int32_t kr_rnn_case(kr_case *c, int64_t index) {
  c->contiguous = index % 2;
  *kr_case_size(c, "B") = kr_case_int(c, 1, index % 4 == 0 || index % 16 == 5 ? 40 : 3);
  *kr_case_size(c, "L") = kr_case_int(c, 1, 6);
  *kr_case_size(c, "H") = c->is_exact        ? kr_case_int(c, 1, 3)
                          : index % 4 == 1   ? 64 /* has rows of its own */
                          : index % 32 == 31 ? kr_case_int(c, 155, 170)
                                             : kr_case_edge(c, 70) + 1;
  return KRAIT_OK;
}
int32_t kr_rnn_bwd_case(kr_case *c, int64_t index) {
  const int32_t status = kr_rnn_case(c, index);
  if (status >= 0 && ((const kr_call *)c->args)->flags & KRAIT_RNN_LSTM) kr_case_give(c, "cells");
  return status;
}

KR_OP_DEFINE(rnn, impls, NULL, count_rnn, kr_rnn_case, 200)
KR_OP_DEFINE(rnn_bwd, bwd_impls, check_bwd, count_bwd, kr_rnn_bwd_case, 200)
