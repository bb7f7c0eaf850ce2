/* ssd_ref.h: shared code of the reference implementations of the SSD and its gradient: step sizes, sequences, the scan
 * over time. */
#ifndef KR_SSD_REF_H
#define KR_SSD_REF_H

#include <math.h>

#include "ssd_inputs.h"
#include "view.h"

enum { KR_SSD_MAX_N = 512 };

static inline int64_t ssd_time(const kr_ssd_inputs *in, int reverse, int64_t i) { return reverse ? in->L - 1 - i : i; }

/* dt + dt_bias, before softplus and clamp. */
static inline double ssd_raw_step(const kr_ssd_inputs *in, int64_t b, int64_t t, int64_t h) {
  const double bias = kr_has(in->dt_bias) ? kr_get(in->dt_bias, kr_at1(in->dt_bias, h)) : 0;
  return kr_get(in->dt, kr_at3(in->dt, b, t, h)) + bias;
}

static inline double ssd_unclamped(const kr_ssd_inputs *in, double raw) {
  return in->flags & KRAIT_SSD_SOFTPLUS && raw <= 20 ? log1p(exp(raw)) : raw;
}

static inline double ssd_highest(const kr_ssd_inputs *in) { return in->dt_max == 0 ? INFINITY : in->dt_max; }

/* NaN stays NaN. */
static inline double ssd_step(const kr_ssd_inputs *in, int64_t b, int64_t t, int64_t h) {
  const double d = ssd_unclamped(in, ssd_raw_step(in, b, t, h)), high = ssd_highest(in);
  return d < in->dt_min ? in->dt_min : d > high ? high : d;
}

/* The i-th token of the scan according to seq_idx: whether it begins a sequence, and whether it is padding. */
typedef struct ssd_token {
  int begins, padding;
} ssd_token;

static inline ssd_token ssd_token_at(const kr_ssd_inputs *in, int64_t b, int reverse, int64_t i) {
  if (!kr_has(in->seq_idx)) return (ssd_token){0, 0};
  const int32_t now = kr_get_i32(in->seq_idx, kr_at2(in->seq_idx, b, ssd_time(in, reverse, i)));
  const int32_t before = i ? kr_get_i32(in->seq_idx, kr_at2(in->seq_idx, b, ssd_time(in, reverse, i - 1))) : 0;
  return (ssd_token){now != before, now < 0};
}

static inline double ssd_initial(const kr_ssd_inputs *in, int64_t b, int64_t h, int64_t p, int64_t n) {
  return kr_has(in->initial_states) ? kr_get(in->initial_states, kr_at4(in->initial_states, b, h, p, n)) : 0;
}

static inline double ssd_A(const kr_view *A, int64_t h) { return kr_has(A) ? kr_get(A, kr_at1(A, h)) : 0; }

/* What the state before token t, of step size d, is multiplied by. */
static inline double ssd_decay(const kr_ssd_inputs *in, int64_t b, int64_t t, int64_t h, double A, double d) {
  return exp(kr_has(in->log_decay) ? kr_get(in->log_decay, kr_at3(in->log_decay, b, t, h)) : d * A);
}

/* Advances one channel's state by the i-th token; returns sum_n C state. A is 0 with log_decay. */
static inline double ssd_advance(const kr_ssd_inputs *in, int64_t b, int64_t h, int64_t p, int reverse, double A,
                                 int64_t i, double *state) {
  const int64_t t = ssd_time(in, reverse, i), g = h / (in->H / in->G);
  const ssd_token token = ssd_token_at(in, b, reverse, i);
  const double d = ssd_step(in, b, t, h), decay = ssd_decay(in, b, t, h, A, d),
               dx = d * kr_get(in->x, kr_at4(in->x, b, t, h, p));
  double sum = 0;
  for (int64_t n = 0; n < in->N; n++) {
    const double carried = token.begins ? 0 : decay * state[n];
    state[n] = token.padding ? 0 : carried + dx * kr_get(in->Bmat, kr_at4(in->Bmat, b, t, g, n));
    sum += token.padding ? 0 : kr_get(in->Cmat, kr_at4(in->Cmat, b, t, g, n)) * state[n];
  }
  return sum;
}

#endif
