/* rnn_ref.c: GRU and LSTM layers after their input product, and their gradient, written to be read; all arithmetic in
 * double.
 *   U = weight h + bias
 *   GRU   r, z = sigmoid(x + U), n = tanh(x + r U), h' = (1 - z) n + z h
 *   LSTM  i, f, o = sigmoid(x + U), g = tanh(x + U), c' = f c + i g, h' = o tanh(c')
 * Backward through time: the gates' derivatives give dx; dU equals dx, except r dx for GRU's n;
 * dh = weight^T dU + z dh', dweight = sum dU h, dbias = sum dU. */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "op_list.h"
#include "rnn/rnn_impls.h"
#include "status.h"
#include "view.h"

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double rnn_value(const kr_view *v, int64_t b, int64_t t, int64_t k) { return kr_get(v, kr_at3(v, b, t, k)); }

/* U of one step: gates of h(b, t - 1), which is 0 before the first step, where non-finite weights still count. */
static void hidden_part(const kr_view *weight, const kr_view *bias, const kr_view *out, int64_t b, int64_t t,
                        int64_t H, int64_t gates, double *U) {
  for (int64_t g = 0; g < gates; g++) {
    U[g] = kr_has(bias) ? kr_get(bias, kr_at1(bias, g)) : 0;
    for (int64_t k = 0; k < H; k++)
      U[g] += kr_get(weight, kr_at2(weight, g, k)) * (t > 0 ? rnn_value(out, b, t - 1, k) : 0);
  }
}

int32_t kr_rnn_ref(const krait_ctx *ctx, const void *args) {
  const kr_rnn_args *a = args;
  const int64_t H = a->H;
  const int is_lstm = (a->call.flags & KRAIT_RNN_LSTM) != 0;
  double *U = kr_alloc_array((size_t)H, 5 * sizeof *U), *c = U + 4 * H;
  (void)ctx;
  KR_CHECK(U, KRAIT_ERR_NO_MEMORY, "no memory for a step of rnn");
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t t = 0; t < a->L; t++) {
      hidden_part(&a->weight, &a->bias, &a->out, b, t, H, is_lstm ? 4 * H : 3 * H, U);
      for (int64_t k = 0; k < H; k++) {
        double h = t > 0 ? rnn_value(&a->out, b, t - 1, k) : 0;
        if (is_lstm) {
          const double i = sigmoid(rnn_value(&a->x, b, t, k) + U[k]),
                       f = sigmoid(rnn_value(&a->x, b, t, H + k) + U[H + k]);
          const double g = tanh(rnn_value(&a->x, b, t, 2 * H + k) + U[2 * H + k]),
                       o = sigmoid(rnn_value(&a->x, b, t, 3 * H + k) + U[3 * H + k]);
          c[k] = f * (t > 0 ? c[k] : 0) + i * g;
          if (kr_has(&a->cells)) kr_put(&a->cells, kr_at3(&a->cells, b, t, k), c[k]);
          h = o * tanh(c[k]);
        } else {
          const double r = sigmoid(rnn_value(&a->x, b, t, k) + U[k]),
                       z = sigmoid(rnn_value(&a->x, b, t, H + k) + U[H + k]);
          h = (1 - z) * tanh(rnn_value(&a->x, b, t, 2 * H + k) + r * U[2 * H + k]) + z * h;
        }
        kr_put(&a->out, kr_at3(&a->out, b, t, k), h);
      }
    }
  kr_free(U);
  return KRAIT_OK;
}

typedef struct back {
  const kr_rnn_bwd_args *a;
  int64_t H, gates;
  double *U, *dx, *dU, *dh, *dc, *dweight, *dbias; /* per step; sums over all */
} back;

/* Derivatives of one unit at one step; dh[k] and dc[k] become what goes directly to the previous step. */
static void unit_back(const back *w, int64_t b, int64_t t, int64_t k) {
  const kr_rnn_bwd_args *a = w->a;
  const int64_t H = w->H;
  const double *U = w->U, d = w->dh[k];
#define X(gate) rnn_value(&a->x, b, t, (gate) * H + k)
  if (a->call.flags & KRAIT_RNN_LSTM) {
    const double i = sigmoid(X(0) + U[k]), f = sigmoid(X(1) + U[H + k]), g = tanh(X(2) + U[2 * H + k]),
                 o = sigmoid(X(3) + U[3 * H + k]);
    const double before = t > 0 ? rnn_value(&a->cells, b, t - 1, k) : 0, squashed = tanh(rnn_value(&a->cells, b, t, k)),
                 dc = w->dc[k] + d * o * (1 - squashed * squashed);
    w->dx[k] = dc * g * i * (1 - i), w->dx[H + k] = dc * before * f * (1 - f), w->dx[2 * H + k] = dc * i * (1 - g * g),
    w->dx[3 * H + k] = d * squashed * o * (1 - o);
    for (int gate = 0; gate < 4; gate++) w->dU[gate * H + k] = w->dx[gate * H + k];
    w->dc[k] = dc * f, w->dh[k] = 0;
  } else {
    const double r = sigmoid(X(0) + U[k]), z = sigmoid(X(1) + U[H + k]), n = tanh(X(2) + r * U[2 * H + k]),
                 before = t > 0 ? rnn_value(&a->out, b, t - 1, k) : 0;
    const double dn = d * (1 - z) * (1 - n * n);
    w->dx[k] = dn * U[2 * H + k] * r * (1 - r), w->dx[H + k] = d * (before - n) * z * (1 - z), w->dx[2 * H + k] = dn;
    w->dU[k] = w->dx[k], w->dU[H + k] = w->dx[H + k], w->dU[2 * H + k] = dn * r;
    w->dh[k] = d * z;
  }
#undef X
}

static void sequence_back(const back *w, int64_t b) {
  const kr_rnn_bwd_args *a = w->a;
  memset(w->dh, 0, (size_t)(2 * w->H) * sizeof *w->dh); /* dc follows it */
  for (int64_t t = a->L - 1; t >= 0; t--) {
    hidden_part(&a->weight, &a->bias, &a->out, b, t, w->H, w->gates, w->U);
    for (int64_t k = 0; k < w->H; k++) {
      w->dh[k] += rnn_value(&a->dout, b, t, k);
      unit_back(w, b, t, k);
    }
    for (int64_t g = 0; g < w->gates; g++) {
      if (kr_has(&a->dx)) kr_put(&a->dx, kr_at3(&a->dx, b, t, g), w->dx[g]);
      w->dbias[g] += w->dU[g];
      for (int64_t k = 0; k < w->H; k++) {
        w->dh[k] += kr_get(&a->weight, kr_at2(&a->weight, g, k)) * w->dU[g];
        if (t > 0) w->dweight[g * w->H + k] += w->dU[g] * rnn_value(&a->out, b, t - 1, k);
      }
    }
  }
}

uint64_t kr_rnn_bwd_ref_scratch(const krait_ctx *ctx, const void *args) {
  const int64_t H = ((const kr_rnn_bwd_args *)args)->H;
  (void)ctx;
  return (uint64_t)(18 * H + 4 * H * H) * sizeof(double);
}

int32_t kr_rnn_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_rnn_bwd_args *a = args;
  const int64_t H = a->H, gates = a->call.flags & KRAIT_RNN_LSTM ? 4 * H : 3 * H;
  double *s = a->call.scratch;
  const back w = {a, H, gates, s, s + 4 * H, s + 8 * H, s + 12 * H, s + 13 * H, s + 18 * H, s + 14 * H};
  (void)ctx;
  memset(s, 0, (size_t)(18 * H + gates * H) * sizeof *s);
  for (int64_t b = 0; b < a->B; b++) sequence_back(&w, b);
  for (int64_t g = 0; g < gates; g++) {
    if (kr_has(&a->dbias)) kr_put(&a->dbias, kr_at1(&a->dbias, g), w.dbias[g]);
    for (int64_t k = 0; k < H && kr_has(&a->dweight); k++)
      kr_put(&a->dweight, kr_at2(&a->dweight, g, k), w.dweight[g * H + k]);
  }
  return KRAIT_OK;
}
