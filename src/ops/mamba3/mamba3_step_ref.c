/* mamba3_step_ref.c: one token of Mamba 3's scan for each of B sequences (equation: mamba3_ref.c): the scan's reference
 * over a sequence of one token from the states of its row, which become those after it. */
#include "contract.h"
#include "mamba3_impls.h"
#include "mamba3_step.h"
#include "op_list.h"

static void clear_mamba3_out(const kr_mamba3_step_args *a, int64_t b) {
  const int64_t rows = kr_has(&a->mimo_o) ? a->H : a->R * a->H;
  for (int64_t i = 0; i < rows * a->P; i++) kr_put(&a->out, kr_at3(&a->out, b, i / a->P, i % a->P), 0);
}

uint64_t kr_mamba3_step_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_args m = kr_mamba3_of_step(args, 0, 0);
  return kr_mamba3_ref_scratch(ctx, &m);
}

int32_t kr_mamba3_step_ref(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_step_args *a = args;
  const kr_view *const rows = &a->state_batch_indices;
  KR_TRY(kr_need_rows("mamba3_step", "state_batch_indices", rows, a->B, a->n_states));
  for (int64_t b = 0; b < a->B; b++) {
    const int64_t row = kr_has(rows) ? kr_get_i32(rows, kr_at1(rows, b)) : b;
    const kr_mamba3_args m = kr_mamba3_of_step(a, b, row < 0 ? 0 : row);
    if (row < 0) clear_mamba3_out(a, b);
    else KR_TRY(kr_mamba3_ref(ctx, &m));
  }
  return KRAIT_OK;
}
