/* state_update_ref.c: one step of the selective scan, written to be read (specs: selective_state_update).
 *   dt = dt + dt_bias, softplus if asked;  state = exp(dt A) state + dt B x;  out = (sum_n C state + D x) silu(z)
 * Double accumulation; the state is rounded once, when stored. */
#include <math.h>

#include "contract.h"
#include "op_list.h"
#include "view.h"

static double state_update_step_size(const kr_state_update_args *a, int64_t b, int64_t h, int64_t p) {
  double dt = kr_get(&a->dt, kr_at3(&a->dt, b, h, p));
  if (kr_has(&a->dt_bias)) dt += kr_get(&a->dt_bias, kr_at2(&a->dt_bias, h, p));
  if ((a->call.flags & KRAIT_UPDATE_SOFTPLUS) && dt <= 20) dt = log1p(exp(dt));
  return dt;
}

static double channel_output(const kr_state_update_args *a, int64_t b, int64_t row, int64_t h, int64_t p) {
  int64_t g = h / (a->H / a->G);
  double dt = state_update_step_size(a, b, h, p), x = kr_get(&a->x, kr_at3(&a->x, b, h, p)), y = 0;
  for (int64_t n = 0; n < a->N; n++) {
    int64_t at = kr_at4(&a->state, row, h, p, n);
    double decay = exp(dt * kr_get(&a->A, kr_at3(&a->A, h, p, n)));
    double state = decay * kr_get(&a->state, at) + dt * kr_get(&a->Bmat, kr_at3(&a->Bmat, b, g, n)) * x;
    kr_put(&a->state, at, state);
    y += kr_get(&a->Cmat, kr_at3(&a->Cmat, b, g, n)) * state;
  }
  if (kr_has(&a->Dvec)) y += kr_get(&a->Dvec, kr_at2(&a->Dvec, h, p)) * x;
  if (!kr_has(&a->z)) return y;
  double z = kr_get(&a->z, kr_at3(&a->z, b, h, p));
  return y * z / (1 + exp(-z));
}

int32_t kr_state_update_ref(const krait_ctx *ctx, const void *args) {
  const kr_state_update_args *a = args;
  (void)ctx;
  KR_TRY(kr_need_rows("state_update", "state_batch_indices", &a->state_batch_indices, a->B, a->n_states));
  for (int64_t b = 0; b < a->B; b++) {
    int64_t row =
        kr_has(&a->state_batch_indices) ? kr_get_i32(&a->state_batch_indices, kr_at1(&a->state_batch_indices, b)) : b;
    for (int64_t h = 0; h < a->H; h++)
      for (int64_t p = 0; p < a->P; p++)
        kr_put(&a->out, kr_at3(&a->out, b, h, p), row < 0 ? 0 : channel_output(a, b, row, h, p));
  }
  return KRAIT_OK;
}
