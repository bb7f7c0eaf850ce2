/* mamba3_decay_ref.c: s = dt_raw + dt_bias, dt = log(1 + e^s); rate = max(act(A_raw), A_floor), log_decay = -rate dt.
 * act(v) is 1 + v from 0 on and 1 / (1 - v) below ("heavy tail"), or with KRAIT_MAMBA3_SOFTPLUS_A log(1 + e^v).
 * Gradient: ds = (ddt - rate dlog_decay) / (1 + e^-s), dA_raw = -dt dlog_decay act'(A_raw), 0 below the floor. */
#include <math.h>

#include "op_list.h"
#include "view.h"

static double softplus_of(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

static double rate_of(const kr_mamba3_decay_args *a, double v) {
  const double rate = a->call.flags & KRAIT_MAMBA3_SOFTPLUS_A ? softplus_of(v) : v >= 0 ? 1 + v : 1 / (1 - v);
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

static double sigmoid_of(double x) { return x > 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }

/* Of max(act(v), floor). */
static double slope_of(const kr_mamba3_decay_args *a, double v) {
  const int is_softplus = (a->call.flags & KRAIT_MAMBA3_SOFTPLUS_A) != 0;
  const double act = is_softplus ? softplus_of(v) : v >= 0 ? 1 + v : 1 / (1 - v);
  if (act < (double)a->A_floor) return 0;
  return is_softplus ? sigmoid_of(v) : v >= 0 ? 1 : 1 / ((1 - v) * (1 - v));
}

int32_t kr_mamba3_decay_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_bwd_args *a = args;
  const kr_mamba3_decay_args *forward = args; /* the same prefix */
  (void)ctx;
  for (int64_t h = 0; h < a->H; h++) {
    const double bias = kr_has(&a->dt_bias) ? kr_get(&a->dt_bias, kr_at1(&a->dt_bias, h)) : 0;
    double sum = 0;
    for (int64_t r = 0; r < a->R; r++) {
      const double s = kr_get(&a->dt_raw, kr_at2(&a->dt_raw, r, h)) + bias,
                   v = kr_get(&a->A_raw, kr_at2(&a->A_raw, r, h)),
                   d = kr_get(&a->dlog_decay, kr_at2(&a->dlog_decay, r, h)),
                   ds = (kr_get(&a->ddt, kr_at2(&a->ddt, r, h)) - rate_of(forward, v) * d) * sigmoid_of(s);
      sum += ds;
      if (kr_has(&a->ddt_raw)) kr_put(&a->ddt_raw, kr_at2(&a->ddt_raw, r, h), ds);
      if (kr_has(&a->dA_raw)) kr_put(&a->dA_raw, kr_at2(&a->dA_raw, r, h), -softplus_of(s) * d * slope_of(forward, v));
    }
    if (kr_has(&a->ddt_bias)) kr_put(&a->ddt_bias, kr_at1(&a->ddt_bias, h), sum);
  }
  return KRAIT_OK;
}
