/* gather_rows_copies.c: the CPU implementation for tables with contiguous rows of the output's type: one memcpy per
 * row. */
#include <string.h>

#include "contract.h"
#include "ctx.h"
#include "gather_rows/gather_rows_impls.h"
#include "view.h"

enum { GRAIN_BYTES = 1 << 15 };

const char *kr_gather_rows_copies_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gather_rows_args *a = args;
  (void)ctx;
  if (a->table.dtype != a->out.dtype) return "table and out differ in type";
  return a->M > 1 && (a->table.stride[1] != 1 || a->out.stride[1] != 1) ? "non-contiguous rows" : NULL;
}

static void copy_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_gather_rows_args *a = user;
  const int64_t bytes = (int64_t)krait_dtype_bytes(a->table.dtype);
  (void)worker;
  for (int64_t r = begin; r < end; r++) {
    const int64_t row = kr_get_i32(&a->index, kr_at1(&a->index, r));
    char *to = (char *)a->out.data + r * a->out.stride[0] * bytes;
    if (row < 0) memset(to, 0, (size_t)(a->M * bytes));
    else memcpy(to, (const char *)a->table.data + row * a->table.stride[0] * bytes, (size_t)(a->M * bytes));
  }
}

int32_t kr_gather_rows_copies(const krait_ctx *ctx, const void *args) {
  const kr_gather_rows_args *a = args;
  KR_TRY(kr_need_rows("gather_rows", "index", &a->index, a->R, a->V));
  const int64_t row_bytes = a->M * (int64_t)krait_dtype_bytes(a->table.dtype);
  kr_pool_run(ctx->pool, a->R, 1 + GRAIN_BYTES / (row_bytes + 1), copy_rows, (void *)a);
  return KRAIT_OK;
}
