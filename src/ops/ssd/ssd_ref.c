/* ssd_ref.c: Mamba 2's state-space duality as the recurrence that it computes (Dao & Gu 2024), written for readability.
 *   d = clamp(softplus(dt + dt_bias))
 *   S_t = exp(d A) S_{t-1} + d x_t (outer) B_t        S before the first token: initial_states, else 0;
 *                                                     with log_decay, exp(log_decay_t) S_{t-1}
 *   y_t = S_t C_t + D x_t;  out = y silu(z)
 * Reverse runs time backwards; both directions are summed before D x and the gate. Double-precision accumulation. */
#include "ssd_ref.h"
#include "ssd_impls.h"

#include "contract.h"
#include "op_list.h"

static void keep_ssd_ref_varlen(const kr_ssd_args *a, int64_t h, int64_t p, int64_t t, const double *state) {
  for (int64_t s = 0; s < a->S; s++) {
    const int32_t begin = kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, s)),
                  end = kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, s + 1));
    if (end - 1 != t || begin == end) continue;
    for (int64_t n = 0; n < a->N; n++) kr_put(&a->varlen_states, kr_at4(&a->varlen_states, s, h, p, n), state[n]);
  }
}

/* Adds sum_n C S of every token to y. */
static void run_ssd_direction(const kr_ssd_args *a, const kr_ssd_inputs *in, int64_t b, int64_t h, int64_t p,
                          int reverse, const kr_view *A, double *y) {
  double state[KR_SSD_MAX_N];
  for (int64_t n = 0; n < a->N; n++) state[n] = ssd_initial(in, b, h, p, n);
  for (int64_t i = 0; i < a->L; i++) {
    y[ssd_time(in, reverse, i)] += ssd_advance(in, b, h, p, reverse, ssd_A(A, h), i, state);
    if (kr_has(&a->varlen_states)) keep_ssd_ref_varlen(a, h, p, i, state);
  }
  for (int64_t n = 0; kr_has(&a->final_states) && n < a->N; n++)
    kr_put(&a->final_states, kr_at4(&a->final_states, b, h, p, n), state[n]);
}

static void run_ssd_channel(const kr_ssd_args *a, const kr_ssd_inputs *in, int64_t b, int64_t h, int64_t p,
                            double *y) {
  for (int64_t t = 0; t < a->L; t++) y[t] = 0;
  run_ssd_direction(a, in, b, h, p, (in->flags & KRAIT_SSD_REVERSE) != 0, &a->A, y);
  if (in->flags & KRAIT_SSD_BOTH) run_ssd_direction(a, in, b, h, p, 1, &a->A_reverse, y);
  for (int64_t t = 0; t < a->L; t++) {
    double value = y[t];
    if (kr_has(&a->Dvec)) value += kr_get(&a->Dvec, kr_at2(&a->Dvec, h, p)) * kr_get(&a->x, kr_at4(&a->x, b, t, h, p));
    if (kr_has(&a->z)) {
      const double z = kr_get(&a->z, kr_at4(&a->z, b, t, h, p));
      value *= z / (1 + exp(-z));
    }
    if (ssd_token_at(in, b, 0, t).padding) value = 0;
    kr_put(&a->out, kr_at4(&a->out, b, t, h, p), value);
  }
}

uint64_t kr_ssd_ref_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return (uint64_t)((const kr_ssd_args *)args)->L * sizeof(double);
}

int32_t kr_ssd_ref(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  (void)ctx;
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets_within("ssd", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  for (int64_t s = 0; kr_has(&a->varlen_states) && s < a->S; s++)
    for (int64_t i = 0; i < a->H * a->P * a->N; i++)
      kr_put(&a->varlen_states, kr_at4(&a->varlen_states, s, i / a->N / a->P, i / a->N % a->P, i % a->N), 0);
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t i = 0; i < a->H * a->P; i++) run_ssd_channel(a, &in, b, i / a->P, i % a->P, a->call.scratch);
  return KRAIT_OK;
}
