/* argmax_rows.c: cost and implementations of the argmax of each row; argmax_rows_ref.c has the equation. Exact. */
#include "op_list.h"
#include "status.h"
#include "view.h"

static int32_t check_argmax_rules(const void *args) {
  const kr_argmax_rows_args *a = args;
  KR_CHECK(a->M <= INT32_MAX, KRAIT_ERR_SHAPE, "argmax_rows: M is %lld, more than an int32 counts", (long long)a->M);
  return KRAIT_OK;
}

static void count_argmax_cost(const void *args, kr_cost *cost) {
  const kr_argmax_rows_args *a = args;
  cost->bytes = (double)a->R * ((double)a->M * (double)krait_dtype_bytes(a->x.dtype) + 4);
}

static const char *refuse_argmax_simd(const krait_ctx *ctx, const void *args) {
  const kr_argmax_rows_args *a = args;
  (void)ctx;
  return a->x.dtype == KRAIT_F32 && (a->x.stride[1] == 1 || a->M == 1) ? NULL : "rows that are not contiguous float32";
}

static const kr_impl impls[] = {
    KR_CUDA_IMPLS(argmax_rows)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_argmax_simd, kr_argmax_rows_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_argmax_rows_ref, NULL},
};

KR_OP_DEFINE(argmax_rows, impls, check_argmax_rules, count_argmax_cost, kr_argmax_rows_case, 300, .takes_pdl = 1)
