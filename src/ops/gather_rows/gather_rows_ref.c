/* gather_rows_ref.c: out[r,m] = table[index[r],m]; rows with a negative index are 0. */
#include "contract.h"
#include "op_list.h"
#include "view.h"

int32_t kr_gather_rows_ref(const krait_ctx *ctx, const void *args) {
  const kr_gather_rows_args *a = args;
  (void)ctx;
  KR_TRY(kr_need_rows("gather_rows", "index", &a->index, a->R, a->V));
  for (int64_t r = 0; r < a->R; r++) {
    const int64_t row = kr_get_i32(&a->index, kr_at1(&a->index, r));
    for (int64_t m = 0; m < a->M; m++)
      kr_put(&a->out, kr_at2(&a->out, r, m), row < 0 ? 0 : kr_get(&a->table, kr_at2(&a->table, row, m)));
  }
  return KRAIT_OK;
}
