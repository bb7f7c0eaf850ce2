/* selective_scan_ref.c: the scan, written to be read (Gu & Dao 2023; specs: selective_scan_fn).
 *   dt = delta + delta_bias, optionally softplus
 *   x_t = exp(dt A) x_{t-1} + dt B_t u_t         x before the first step: initial_state, else 0
 *   y_t = sum_n C_t x_t (complex: 2 Re) + D u_t;  out = y silu(z)
 * seq_idx: x restarts from 0 wherever the index changes; out is 0 at a negative index. cu_seqlens: S sequences in one
 * row. states: x before each 8th step. Reverse runs backward in time; both directions add their sums before D u and the
 * gate. Double accumulation. */
#include "contract.h"
#include "op_list.h"
#include "scan_ref.h"
#include "scan_impls.h"

enum { MAX_N = 512 };

static double scan_step_size(const kr_selective_scan_args *a, int64_t b, int64_t d, int64_t t) {
  double dt = kr_get(&a->delta, kr_at3(&a->delta, b, d, t));
  if (kr_has(&a->delta_bias)) dt += kr_get(&a->delta_bias, kr_at1(&a->delta_bias, d));
  return a->call.flags & KRAIT_SCAN_SOFTPLUS ? softplus(dt) : dt;
}

static int sequence_changes(const kr_selective_scan_args *a, const walk *w, int64_t i) {
  if (!kr_has(&a->seq_idx) || i == 0) return 0;
  return kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, w->b, time_of(w, i))) !=
         kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, w->b, time_of(w, i - 1)));
}

/* Adds sum_n C x of every step to y[time - sequence start]. */
static void run_scan_direction(const kr_selective_scan_args *a, const walk *w, int64_t d, const kr_view *A,
                          double *y) {
  const int is_complex = A->dtype == KRAIT_C64;
  const int64_t g = d / (a->D / a->G), begin = w->step > 0 ? w->first : w->first - (w->n - 1);
  number x[MAX_N];
  for (int64_t n = 0; n < a->N; n++)
    x[n] = kr_has(&a->initial_state) ? get_number(&a->initial_state, kr_at3(&a->initial_state, w->state_row, d, n))
                                     : number_of(0);
  for (int64_t i = 0; i < w->n; i++) {
    int64_t t = time_of(w, i);
    double dt = scan_step_size(a, w->b, d, t), u = kr_get(&a->u, kr_at3(&a->u, w->b, d, t)), sum = 0;
    int restart = sequence_changes(a, w, i);
    for (int64_t n = 0; kr_has(&a->states) && i % 8 == 0 && n < a->N; n++)
      put_number(&a->states, kr_at4(&a->states, w->b, d, n, i / 8), x[n]);
    for (int64_t n = 0; n < a->N; n++) {
      number B = get_parameter(&a->Bmat, (a->call.flags & KRAIT_SCAN_B_CONSTANT) != 0, is_complex, w->b, g, d, n, t);
      number C = get_parameter(&a->Cmat, (a->call.flags & KRAIT_SCAN_C_CONSTANT) != 0, is_complex, w->b, g, d, n, t);
      number decay = exponential(scale(dt, get_number(A, kr_at2(A, d, n))));
      x[n] = add(times(decay, restart ? number_of(0) : x[n]), scale(dt * u, B));
      sum += (is_complex ? 2 : 1) * times(C, x[n]).re;
    }
    y[t - begin] += sum;
  }
  for (int64_t n = 0; kr_has(&a->last_state) && n < a->N; n++)
    put_number(&a->last_state, kr_at3(&a->last_state, w->state_row, d, n), x[n]);
}

static void run_scan_channel(const kr_selective_scan_args *a, int64_t row, int64_t d, double *y) {
  const uint32_t flags = a->call.flags;
  walk w = walk_of(row, a->L, &a->cu_seqlens, (flags & KRAIT_SCAN_REVERSE) != 0);
  int64_t begin = w.step > 0 ? w.first : w.first - (w.n - 1);
  for (int64_t i = 0; i < w.n; i++) y[i] = 0;
  run_scan_direction(a, &w, d, &a->A, y);
  if (flags & KRAIT_SCAN_BOTH) {
    walk back = walk_of(row, a->L, &a->cu_seqlens, 1);
    run_scan_direction(a, &back, d, &a->A_reverse, y);
  }
  for (int64_t i = 0; i < w.n; i++) {
    int64_t t = begin + i;
    double value = y[i];
    if (kr_has(&a->Dvec)) value += kr_get(&a->Dvec, kr_at1(&a->Dvec, d)) * kr_get(&a->u, kr_at3(&a->u, w.b, d, t));
    if (kr_has(&a->z)) {
      double z = kr_get(&a->z, kr_at3(&a->z, w.b, d, t));
      value *= z * sigmoid(z);
    }
    if (kr_has(&a->seq_idx) && kr_get_i32(&a->seq_idx, kr_at2(&a->seq_idx, w.b, t)) < 0) value = 0;
    kr_put(&a->out, kr_at3(&a->out, w.b, d, t), value);
  }
}

uint64_t kr_selective_scan_ref_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return (uint64_t)((const kr_selective_scan_args *)args)->L * sizeof(double);
}

int32_t kr_selective_scan_ref(const krait_ctx *ctx, const void *args) {
  const kr_selective_scan_args *a = args;
  (void)ctx;
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("selective_scan", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  int64_t n_rows = kr_has(&a->cu_seqlens) ? a->S : a->B;
  for (int64_t row = 0; row < n_rows; row++)
    for (int64_t d = 0; d < a->D; d++) run_scan_channel(a, row, d, a->call.scratch);
  return KRAIT_OK;
}
