/* mamba_decode_ref.c: one token through Mamba or Mamba-2 layers, written to be read; the equation is in krait/ops.h.
 * Double accumulation; states are rounded once, when stored. */
#include <math.h>
#include <string.h>

#include "contract.h"
#include "mamba_decode_impls.h"
#include "op_list.h"
#include "view.h"

typedef struct token {
  const kr_mamba_decode_args *a;
  int64_t y, row; /* layer; row of the states */
  double *h, *n, *all, *taken, *columns,
      *out; /* (D), (D), rows of in_proj, what the convolution made, rows of x_proj, (E) */
} token;

static double mamba_decode_silu(double v) { return v / (1 + exp(-v)); }
static double softplus(double v) { return v > 20 ? v : log1p(exp(v)); }
static double of_layer(const kr_view *v, int64_t y, int64_t i) { return kr_get(v, kr_at2(v, y, i)); }

/* Row r of a layer's matrix times v; the matrix is dequantised from words and scales where it is absent. */
static double mamba_decode_product_of(const kr_view *w, const kr_view *words, const kr_view *scales, int64_t y,
                                      int64_t r, const double *v, int64_t K) {
  double sum = 0;
  for (int64_t k = 0; k < K; k++) {
    if (kr_has(w))
      sum += kr_get(w, kr_at3(w, y, r, k)) * v[k];
    else
      sum += kr_get(scales, kr_at3(scales, y, r, k / 32)) *
             (double)(int8_t)((uint32_t)kr_get_i32(words, kr_at3(words, y, r, k / 4)) >> (k % 4 * 8) & 255) * v[k];
  }
  return sum;
}
#define PRODUCT(name, r, v, K) mamba_decode_product_of(&a->name, &a->name##_qweight, &a->name##_scales, t->y, r, v, K)

static double root_mean(const double *v, int64_t n, double eps) {
  double square = 0;
  for (int64_t i = 0; i < n; i++) square += v[i] * v[i];
  return sqrt(square / (double)n + eps);
}

static double convolve_mamba_decode(const token *t, int64_t c, double newest) {
  const kr_mamba_decode_args *a = t->a;
  const int64_t S = a->W - 1;
  double sum = newest * kr_get(&a->conv_weight, kr_at3(&a->conv_weight, t->y, c, S));
  if (kr_has(&a->conv_bias)) sum += of_layer(&a->conv_bias, t->y, c);
  for (int64_t s = 0; s < S; s++) {
    const int64_t at = kr_at4(&a->conv_state, t->y, t->row, c, s);
    sum += kr_get(&a->conv_state, at) * kr_get(&a->conv_weight, kr_at3(&a->conv_weight, t->y, c, s));
    kr_put(&a->conv_state, at,
           s + 1 < S ? kr_get(&a->conv_state, kr_at4(&a->conv_state, t->y, t->row, c, s + 1)) : newest);
  }
  return mamba_decode_silu(sum);
}

/* Advances the states of channel e and returns their output. A: offset of state 0; A_stride: between states. */
static double update(const token *t, int64_t e, double dt, int64_t A, int64_t A_stride, const double *B,
                     const double *C) {
  const kr_mamba_decode_args *a = t->a;
  double y = 0;
  for (int64_t n = 0; n < a->N; n++) {
    const int64_t at = kr_at4(&a->ssm_state, t->y, t->row, e, n);
    const double state =
        exp(dt * kr_get(&a->A, A + n * A_stride)) * kr_get(&a->ssm_state, at) + dt * B[n] * t->taken[e];
    kr_put(&a->ssm_state, at, state);
    y += C[n] * state;
  }
  return y;
}

static void mix_mamba(const token *t) {
  const kr_mamba_decode_args *a = t->a;
  const double *B = t->columns + a->R, *C = B + a->N;
  for (int64_t e = 0; e < a->E; e++) t->taken[e] = convolve_mamba_decode(t, e, t->all[e]);
  for (int64_t r = 0; r < a->R + 2 * a->N; r++) t->columns[r] = PRODUCT(x_proj, r, t->taken, a->E);
  for (int64_t e = 0; e < a->E; e++) {
    const double dt = softplus(mamba_decode_product_of(&a->dt_proj, NULL, NULL, t->y, e, t->columns, a->R) +
                               of_layer(&a->dt_bias, t->y, e));
    const double y =
        update(t, e, dt, kr_at3(&a->A, t->y, e, 0), a->A.stride[2], B, C) + of_layer(&a->Dvec, t->y, e) * t->taken[e];
    t->out[e] = y * mamba_decode_silu(t->all[a->E + e]);
  }
}

static void mix_mamba2(const token *t) {
  const kr_mamba_decode_args *a = t->a;
  const int64_t GN = a->G * a->N, C = a->E + 2 * GN, of_group = a->E / a->G;
  for (int64_t c = 0; c < C; c++) t->taken[c] = convolve_mamba_decode(t, c, t->all[a->E + c]);
  for (int64_t e = 0; e < a->E; e++) {
    const int64_t h = e / (a->E / a->H), g = h / (a->H / a->G);
    const double *B = t->taken + a->E + g * a->N, dt = softplus(t->all[a->E + C + h] + of_layer(&a->dt_bias, t->y, h));
    const double y = update(t, e, dt, kr_at2(&a->A, t->y, h), 0, B, B + GN) + of_layer(&a->Dvec, t->y, h) * t->taken[e];
    t->out[e] = y * mamba_decode_silu(t->all[e]);
  }
  for (int64_t g = 0; g < a->G; g++) {
    const double scale = 1 / root_mean(t->out + g * of_group, of_group, 1e-5);
    for (int64_t e = g * of_group; e < (g + 1) * of_group; e++) t->out[e] *= scale * of_layer(&a->gate_norm, t->y, e);
  }
}

static void run_mamba_decode_layer(const token *t) {
  const kr_mamba_decode_args *a = t->a;
  const double scale = 1 / root_mean(t->h, a->D, (double)a->eps);
  for (int64_t d = 0; d < a->D; d++) t->n[d] = t->h[d] * scale * of_layer(&a->norm_weight, t->y, d);
  for (int64_t r = 0; r < kr_decode_rows(a); r++) t->all[r] = PRODUCT(in_proj, r, t->n, a->D);
  if (kr_has(&a->dt_proj))
    mix_mamba(t);
  else
    mix_mamba2(t);
  for (int64_t d = 0; d < a->D; d++) t->h[d] += PRODUCT(out_proj, d, t->out, a->E);
}

uint64_t kr_mamba_decode_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_mamba_decode_args *a = args;
  (void)ctx;
  return (uint64_t)(2 * a->D + kr_decode_rows(a) + kr_decode_channels(a) + a->R + 2 * a->N + a->E) * sizeof(double);
}

int32_t kr_mamba_decode_ref(const krait_ctx *ctx, const void *args) {
  const kr_mamba_decode_args *a = args;
  token t = {.a = a, .h = a->call.scratch};
  (void)ctx;
  t.n = t.h + a->D, t.all = t.n + a->D, t.taken = t.all + kr_decode_rows(a),
  t.columns = t.taken + kr_decode_channels(a), t.out = t.columns + a->R + 2 * a->N;
  KR_TRY(kr_need_rows("mamba_decode", "state_batch_indices", &a->state_batch_indices, a->B, a->n_states));
  for (int64_t b = 0; b < a->B; b++) {
    t.row =
        kr_has(&a->state_batch_indices) ? kr_get_i32(&a->state_batch_indices, kr_at1(&a->state_batch_indices, b)) : b;
    for (int64_t d = 0; d < a->D; d++) t.h[d] = kr_get(&a->x, kr_at2(&a->x, b, d));
    for (t.y = 0; t.y < a->Y && t.row >= 0; t.y++) run_mamba_decode_layer(&t);
    for (int64_t d = 0; d < a->D; d++) kr_put(&a->out, kr_at2(&a->out, b, d), t.h[d]);
  }
  return KRAIT_OK;
}
