/* mamba_inner_ref.c: the inside of a Mamba-1 block, written to be read (specs: mamba_inner_fn). For one batch entry,
 * one t at a time:
 *   x_t = silu(sum_w conv_weight[w] xz_{t-W+1+w} + conv_bias)              first half of xz
 *   p_t = x_proj_weight x_t;  dt = p_t[first R],  B = p_t[next] + B_proj_bias,  C = p_t[last] + C_proj_bias, optionally
 *                             normalised
 *   delta_t = dt_proj_weight dt, optionally normalised, + delta_bias, optionally softplus
 *   s_t = exp(delta_t A) s_{t-1} + delta_t B x_t;  y_t = (sum_n C s_t + D x_t) silu(z_t);  out_t = out_proj_weight y_t
 *                                                  + out_proj_bias
 * KRAIT_SCAN_REVERSE: t - W + 1 + w becomes t + W - 1 - w, and t - 1 becomes t + 1. */
#include <math.h>

#include "mamba_inner_chain.h"
#include "block_ops.h"
#include "selective_scan/scan_ref.h"

typedef kr_mamba_inner_args inner_args;

enum { MAX_N = 512 };

typedef struct work {
  double *x, *p, *delta, *y; /* [L][D], [L][columns], [L][D], [L][D] */
  int64_t columns, B_columns, C_columns;
} work;

static work cut_mamba_inner_work(const inner_args *a) {
  work w = {.B_columns = kr_inner_columns(a, &a->Bmat), .C_columns = kr_inner_columns(a, &a->Cmat)};
  w.columns = a->R + w.B_columns + w.C_columns;
  w.x = a->call.scratch;
  w.p = w.x + a->L * a->D;
  w.delta = w.p + a->L * w.columns;
  w.y = w.delta + a->L * a->D;
  return w;
}

uint64_t kr_mamba_inner_ref_scratch(const krait_ctx *ctx, const void *args) {
  const inner_args *a = args;
  (void)ctx;
  int64_t columns = a->R + kr_inner_columns(a, &a->Bmat) + kr_inner_columns(a, &a->Cmat);
  return (uint64_t)(a->L * (3 * a->D + columns)) * sizeof(double);
}

static double mamba_inner_silu(double v) { return v / (1 + exp(-v)); }

static void convolve_mamba_inner(const inner_args *a, int64_t b, const work *w) {
  const int64_t back = a->call.flags & KRAIT_SCAN_REVERSE ? -1 : 1;
  for (int64_t t = 0; t < a->L; t++)
    for (int64_t d = 0; d < a->D; d++) {
      double sum = kr_has(&a->conv_bias) ? kr_get(&a->conv_bias, kr_at1(&a->conv_bias, d)) : 0;
      for (int64_t k = 0; k < a->W; k++) {
        int64_t from = t - back * (a->W - 1 - k);
        if (from >= 0 && from < a->L)
          sum += kr_get(&a->conv_weight, kr_at2(&a->conv_weight, d, k)) * kr_get(&a->xz, kr_at3(&a->xz, b, d, from));
      }
      w->x[t * a->D + d] = mamba_inner_silu(sum);
    }
}

static void normalize(double *v, int64_t n, double eps, const kr_view *weight) {
  double sum = 0;
  if (!kr_has(weight)) return;
  for (int64_t i = 0; i < n; i++) sum += v[i] * v[i];
  for (int64_t i = 0; i < n; i++) v[i] *= kr_get(weight, kr_at1(weight, i)) / sqrt(sum / (double)n + eps);
}

static void add_bias(double *v, int64_t n, const kr_view *bias) {
  for (int64_t i = 0; kr_has(bias) && i < n; i++) v[i] += kr_get(bias, kr_at1(bias, i));
}

static void project(const inner_args *a, const work *w) {
  for (int64_t t = 0; t < a->L; t++) {
    double *p = w->p + t * w->columns, *B = p + a->R, *C = p + w->columns - w->C_columns, *delta = w->delta + t * a->D;
    for (int64_t n = 0; n < w->columns; n++) {
      p[n] = 0;
      for (int64_t d = 0; d < a->D; d++)
        p[n] += kr_get(&a->x_proj_weight, kr_at2(&a->x_proj_weight, n, d)) * w->x[t * a->D + d];
    }
    add_bias(B, w->B_columns, &a->B_proj_bias);
    add_bias(C, w->C_columns, &a->C_proj_bias);
    normalize(B, w->B_columns, a->eps, &a->B_norm_weight);
    normalize(C, w->C_columns, a->eps, &a->C_norm_weight);
    for (int64_t d = 0; d < a->D; d++) {
      delta[d] = 0;
      for (int64_t r = 0; r < a->R; r++)
        delta[d] += kr_get(&a->dt_proj_weight, kr_at2(&a->dt_proj_weight, d, r)) * p[r];
    }
    normalize(delta, a->D, a->eps, &a->dt_norm_weight);
    add_bias(delta, a->D, &a->delta_bias);
    for (int64_t d = 0; d < a->D && a->call.flags & KRAIT_SCAN_SOFTPLUS; d++) delta[d] = softplus(delta[d]);
  }
}

static number mamba_inner_parameter(const inner_args *a, const kr_view *given, uint32_t constant,
                                    const double *columns, int64_t b, int64_t d, int64_t n, int64_t t) {
  int is_complex = a->A.dtype == KRAIT_C64;
  if (kr_has(given)) return get_parameter(given, (a->call.flags & constant) != 0, is_complex, b, 0, d, n, t);
  return is_complex ? (number){columns[2 * n], columns[2 * n + 1]} : number_of(columns[n]);
}

static void run_mamba_inner_direction(const inner_args *a, const work *w, int64_t b, int64_t d, const kr_view *A,
                                      int reverse) {
  number s[MAX_N] = {{0, 0}};
  for (int64_t i = 0; i < a->L; i++) {
    int64_t t = reverse ? a->L - 1 - i : i;
    const double *p = w->p + t * w->columns, delta = w->delta[t * a->D + d], x = w->x[t * a->D + d];
    for (int64_t n = 0; n < a->N; n++) {
      number B = mamba_inner_parameter(a, &a->Bmat, KRAIT_SCAN_B_CONSTANT, p + a->R, b, d, n, t);
      number C = mamba_inner_parameter(a, &a->Cmat, KRAIT_SCAN_C_CONSTANT, p + w->columns - w->C_columns, b, d, n, t);
      s[n] = add(times(exponential(scale(delta, get_number(A, kr_at2(A, d, n)))), s[n]), scale(delta * x, B));
      w->y[t * a->D + d] += (A->dtype == KRAIT_C64 ? 2 : 1) * times(C, s[n]).re;
    }
  }
}

static void scan_mamba_inner(const inner_args *a, int64_t b, const work *w) {
  for (int64_t d = 0; d < a->D; d++) {
    for (int64_t t = 0; t < a->L; t++) w->y[t * a->D + d] = 0;
    run_mamba_inner_direction(a, w, b, d, &a->A, (a->call.flags & KRAIT_SCAN_REVERSE) != 0);
    if (a->call.flags & KRAIT_SCAN_BOTH) run_mamba_inner_direction(a, w, b, d, &a->A_reverse, 1);
    for (int64_t t = 0; t < a->L; t++) {
      double skip = kr_has(&a->Dvec) ? kr_get(&a->Dvec, kr_at1(&a->Dvec, d)) : 0;
      w->y[t * a->D + d] = (w->y[t * a->D + d] + skip * w->x[t * a->D + d]) *
                           mamba_inner_silu(kr_get(&a->xz, kr_at3(&a->xz, b, a->D + d, t)));
    }
  }
}

static void finish_mamba_inner(const inner_args *a, int64_t b, const work *w) {
  for (int64_t t = 0; t < a->L; t++) {
    const double *y = w->y + t * a->D;
    for (int64_t d = 0; d < a->D && !a->M; d++) kr_put(&a->out, kr_at3(&a->out, b, d, t), y[d]);
    for (int64_t m = 0; m < a->M; m++) {
      double sum = kr_has(&a->out_proj_bias) ? kr_get(&a->out_proj_bias, kr_at1(&a->out_proj_bias, m)) : 0;
      for (int64_t d = 0; d < a->D; d++) sum += kr_get(&a->out_proj_weight, kr_at2(&a->out_proj_weight, m, d)) * y[d];
      kr_put(&a->out, kr_at3(&a->out, b, t, m), sum);
    }
  }
}

int32_t kr_mamba_inner_ref(const krait_ctx *ctx, const void *args) {
  const inner_args *a = args;
  (void)ctx;
  const work w = cut_mamba_inner_work(a);
  for (int64_t b = 0; b < a->B; b++) {
    convolve_mamba_inner(a, b, &w);
    project(a, &w);
    scan_mamba_inner(a, b, &w);
    finish_mamba_inner(a, b, &w);
  }
  return KRAIT_OK;
}
