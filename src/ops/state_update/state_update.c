/* state_update.c: contract, cost and rows of the single-token scan step (selective_state_update). The equation is in
 * state_update_ref.c. Bound: float32 2e-6 of the state's scale, 16-bit storage one rounding. */
#include "op_list.h"
#include "status.h"
#include "view.h"

static int32_t check_dtypes(const krait_state_update_args *a) {
  KR_CHECK(kr_is_activation_dtype(a->x.dtype), KRAIT_ERR_DTYPE, "state_update: x is %s, must be a float type", krait_dtype_name(a->x.dtype));
  KR_CHECK(a->out.dtype == a->x.dtype, KRAIT_ERR_DTYPE, "state_update: out is %s but x is %s", krait_dtype_name(a->out.dtype), krait_dtype_name(a->x.dtype));
  KR_CHECK(a->A.dtype == KRAIT_F32, KRAIT_ERR_DTYPE, "state_update: A is %s, must be float32", krait_dtype_name(a->A.dtype));
  KR_CHECK(kr_is_activation_dtype(a->state.dtype), KRAIT_ERR_DTYPE, "state_update: state is %s, must be a float type", krait_dtype_name(a->state.dtype));
  KR_CHECK(!kr_has(&a->state_batch_indices) || a->state_batch_indices.dtype == KRAIT_I32, KRAIT_ERR_DTYPE, "state_update: state_batch_indices must be int32");
  return KRAIT_OK;
}

static int32_t check_args(const void *args) {
  const krait_state_update_args *a = args;
  KR_CHECK(a->B >= 0 && a->H >= 1 && a->P >= 1 && a->N >= 1 && a->G >= 1, KRAIT_ERR_SHAPE, "state_update: B, H, P, N, G must be positive");
  KR_CHECK(a->H % a->G == 0, KRAIT_ERR_SHAPE, "state_update: H %lld is not a multiple of G %lld", (long long)a->H, (long long)a->G);
  KR_CHECK(kr_has(&a->state) && kr_has(&a->x) && kr_has(&a->dt) && kr_has(&a->A) && kr_has(&a->Bmat) && kr_has(&a->Cmat) && kr_has(&a->out), KRAIT_ERR_ARGUMENT, "state_update: state, x, dt, A, Bmat, Cmat and out must be given");
  KR_CHECK(kr_has(&a->state_batch_indices) || a->n_states >= a->B, KRAIT_ERR_SHAPE, "state_update: n_states %lld is less than B %lld", (long long)a->n_states, (long long)a->B);
  return check_dtypes(a);
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_state_update_args *a = args;
  double rows = (double)a->B * (double)a->H * (double)a->P;
  double element = (double)krait_dtype_bytes(a->x.dtype);
  cost->exps = rows * (double)a->N;
  cost->flops = rows * (double)a->N * 6;
  cost->bytes = rows * (double)a->N * 2 * (double)krait_dtype_bytes(a->state.dtype) + rows * element * (kr_has(&a->z) ? 4 : 3) + (double)(a->H * a->P * a->N) * 4;
}

static const kr_row rows[] = {
    KR_CUDA_ROWS(state_update)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_state_update_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_state_update_ref, NULL},
};

const kr_op kr_op_state_update = {"state_update", sizeof(krait_state_update_args), KR_ROWS(rows), check_args, count_cost, kr_state_update_case, 300};

KR_OP_FUNCTIONS(state_update)
