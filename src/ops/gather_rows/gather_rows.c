/* gather_rows.c: cost and implementations of gathering rows of a table; gather_rows_ref.c has the equation. Error
 * bound: one rounding if the types differ. */
#include "gather_rows/gather_rows_impls.h"
#include "op_list.h"
#include "view.h"

static void count_gather_cost(const void *args, kr_cost *cost) {
  const kr_gather_rows_args *a = args;
  cost->bytes =
      (double)a->R * (double)a->M * (double)(krait_dtype_bytes(a->table.dtype) + krait_dtype_bytes(a->out.dtype));
}

static const kr_impl impls[] = {
    KR_CUDA_IMPLS(gather_rows)
    {"copies", KRAIT_CAP_CPU, kr_gather_rows_copies_refuse, kr_gather_rows_copies, NULL},
    {"ref", KRAIT_CAP_CPU, NULL, kr_gather_rows_ref, NULL},
};

KR_OP_DEFINE(gather_rows, impls, NULL, count_gather_cost, kr_gather_rows_case, 300)
