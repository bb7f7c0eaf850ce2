/* state_update.c: contract, cost and rows of the single-token scan step (selective_state_update). The equation is in
 * state_update_ref.c. Bound: float32 1e-5 of the output's scale, 16-bit storage one rounding. */
#include "contract.h"
#include "op_list.h"

static int32_t check_args(const void *args) {
  static const char op[] = "state_update";
  const krait_state_update_args *a = args;
  const int optional = KR_TYPE_ACTIVATION | KR_OPTIONAL;
  KR_TRY(kr_need_flags(op, &a->call, KRAIT_UPDATE_SOFTPLUS));
  KR_TRY(kr_need_size(op, "B", a->B, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "H", a->H, 1, INT64_MAX));
  KR_TRY(kr_need_size(op, "P", a->P, 1, INT64_MAX));
  KR_TRY(kr_need_size(op, "N", a->N, 1, INT64_MAX));
  KR_TRY(kr_need_size(op, "G", a->G, 1, a->H));
  KR_CHECK(a->H % a->G == 0, KRAIT_ERR_SHAPE, "%s: H %lld is not a multiple of G %lld", op, (long long)a->H, (long long)a->G);
  KR_TRY(kr_need(op, "state", &a->state, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "x", &a->x, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "dt", &a->dt, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "A", &a->A, KR_TYPE_F32));
  KR_TRY(kr_need(op, "Bmat", &a->Bmat, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "Cmat", &a->Cmat, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "Dvec", &a->Dvec, optional));
  KR_TRY(kr_need(op, "dt_bias", &a->dt_bias, optional));
  KR_TRY(kr_need(op, "z", &a->z, optional));
  KR_TRY(kr_need(op, "state_batch_indices", &a->state_batch_indices, KR_TYPE_I32 | KR_OPTIONAL));
  KR_TRY(kr_need(op, "out", &a->out, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need_same_type(op, "out", &a->out, "x", &a->x));
  return kr_has(&a->state_batch_indices) ? KRAIT_OK : kr_need_size(op, "n_states", a->n_states, a->B, INT64_MAX);
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_state_update_args *a = args;
  double rows = (double)a->B * (double)a->H * (double)a->P;
  double element = (double)krait_dtype_bytes(a->x.dtype);
  cost->exps = rows * (double)a->N;
  cost->flops = rows * (double)a->N * 6;
  cost->bytes = rows * (double)a->N * 2 * (double)krait_dtype_bytes(a->state.dtype) + rows * element * (kr_has(&a->z) ? 4 : 3) + (double)(a->H * a->P * a->N) * 4;
}

static const char *refuse_simd(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return ((const krait_state_update_args *)args)->N > 512 ? "N is more than 512" : NULL;
}

static const kr_row rows[] = {
    KR_CUDA_ROWS(state_update)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_simd, kr_state_update_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_state_update_ref, NULL},
};

const kr_op kr_op_state_update = {"state_update", sizeof(krait_state_update_args), KR_ROWS(rows), check_args, count_cost, kr_state_update_case, 300, kr_state_update_views};

KR_OP_FUNCTIONS(state_update)
