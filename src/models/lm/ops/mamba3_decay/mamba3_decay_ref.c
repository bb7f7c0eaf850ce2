/* mamba3_decay_ref.c: s = dt_raw + dt_bias, dt = log(1 + e^s); rate = max(act(A_raw), A_floor), log_decay = -rate dt.
 * act(v) is 1 + v from 0 on and 1 / (1 - v) below ("heavy tail"), or with KR_MAMBA3_SOFTPLUS_A log(1 + e^v). */
#include <math.h>

#include "lm_ops.h"
#include "view.h"

static double softplus_of(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

static double rate_of(const kr_mamba3_decay_args *a, double v) {
  const double rate = a->call.flags & KR_MAMBA3_SOFTPLUS_A ? softplus_of(v) : v >= 0 ? 1 + v : 1 / (1 - v);
  return rate < (double)a->A_floor ? (double)a->A_floor : rate;
}

int32_t kr_mamba3_decay_ref(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_args *a = args;
  (void)ctx;
  for (int64_t r = 0; r < a->R; r++)
    for (int64_t h = 0; h < a->H; h++) {
      const double bias = kr_has(&a->dt_bias) ? kr_get(&a->dt_bias, kr_at1(&a->dt_bias, h)) : 0,
                   dt = softplus_of(kr_get(&a->dt_raw, kr_at2(&a->dt_raw, r, h)) + bias);
      kr_put(&a->dt, kr_at2(&a->dt, r, h), dt);
      kr_put(&a->log_decay, kr_at2(&a->log_decay, r, h), -rate_of(a, kr_get(&a->A_raw, kr_at2(&a->A_raw, r, h))) * dt);
    }
  return KRAIT_OK;
}
