/* dt_state_update_ref.c: dt[b,d] = sum over R of r[b,k] dt_weight[d,k], in double, then state_update's step (equation
 * in state_update_ref.c). */
#include "state_update/dt_state_update_impls.h"
#include "op_list.h"
#include "view.h"

uint64_t kr_dt_state_update_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_dt_state_update_args *a = args;
  (void)ctx;
  return (uint64_t)(a->B * a->D) * sizeof(double);
}

int32_t kr_dt_state_update_ref(const krait_ctx *ctx, const void *args) {
  const kr_dt_state_update_args *a = args;
  kr_state_update_args update = kr_update_of(a);
  double *dt = a->call.scratch;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t d = 0; d < a->D; d++) {
      double sum = 0;
      for (int64_t k = 0; k < a->R; k++)
        sum += kr_get(&a->r, kr_at2(&a->r, b, k)) * kr_get(&a->dt_weight, kr_at2(&a->dt_weight, d, k));
      dt[b * a->D + d] = sum;
    }
  update.dt = (kr_view){.data = dt, .dtype = KRAIT_F64, .stride = {a->D, 0, 1}};
  return a->B ? kr_state_update_ref(ctx, &update) : KRAIT_OK;
}
