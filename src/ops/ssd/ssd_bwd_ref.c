/* ssd_bwd_ref.c: the SSD's gradient, written for readability. With e = exp(d A), dy = dout silu(z) and M the gradient
 * of the state,
 *   M_t = dy_t (outer) C_t + e_{t+1} M_{t+1}           after the last token: dfinal_states
 *   dx_t = D dy_t + d_t M_t B_t;  dC_t = sum over the group of S_t^T dy_t;  dB_t = sum of d_t M_t^T x_t
 *   dd_t = <M_t, x_t (outer) B_t> + A e_t <M_t, S_{t-1}>;  dA = sum_t d_t e_t <M_t, S_{t-1}>,
 *   or with log_decay dd_t = <M_t, x_t (outer) B_t>;  dlog_decay_t = e_t <M_t, S_{t-1}>
 *   ddt = dd sigmoid(dt + dt_bias) with softplus (up to 20), 0 where d is clamped;  dz = dout y silu'(z);
 *   dinitial_states = e_0 M_0. Double-precision accumulation. */
#include <string.h>

#include "op_list.h"
#include "ssd_ref.h"
#include "ssd_impls.h"
#include "status.h"

typedef struct sums {
  double *dB, *dC;      /* (L,N) of one group */
  double *dd, *dlog, *y, *dy, *dx; /* (L) */
  double *states;       /* (L,N): one channel's state after each token, in scan order */
  double *dD, *dA, *dA_reverse, *dbias; /* (H,P), (H) */
} sums;

static int64_t ssd_bwd_sums_floats(const kr_ssd_bwd_args *a) {
  return 3 * a->L * a->N + 5 * a->L + a->H * (a->P + 3);
}

static sums place_sums(const kr_ssd_bwd_args *a, double *at) {
  const int64_t LN = a->L * a->N, L = a->L;
  sums s = {.dB = at, .dC = at + LN, .states = at + 2 * LN};
  s.dd = at + 3 * LN, s.y = s.dd + L, s.dy = s.y + L, s.dx = s.dy + L;
  s.dlog = s.dx + L;
  s.dD = s.dlog + L, s.dA = s.dD + a->H * a->P, s.dA_reverse = s.dA + a->H, s.dbias = s.dA_reverse + a->H;
  return s;
}

typedef struct channel {
  const kr_ssd_bwd_args *a;
  const kr_ssd_inputs *in;
  sums s;
  int64_t b, h, p;
} channel;

static double x_at(const channel *c, int64_t t) { return kr_get(c->in->x, kr_at4(c->in->x, c->b, t, c->h, c->p)); }

static void walk_forward(const channel *c, int reverse, const kr_view *A) {
  const int64_t N = c->a->N;
  double state[KR_SSD_MAX_N];
  for (int64_t n = 0; n < N; n++) state[n] = ssd_initial(c->in, c->b, c->h, c->p, n);
  for (int64_t i = 0; i < c->a->L; i++) {
    c->s.y[ssd_time(c->in, reverse, i)] +=
        ssd_advance(c->in, c->b, c->h, c->p, reverse, ssd_A(A, c->h), i, state);
    memcpy(c->s.states + i * N, state, (size_t)N * sizeof *state);
  }
}

/* One token of the backward scan; M holds the state's gradient before the token's own output, then that before the
 * token. */
static void ssd_bwd_step_back(const channel *c, int reverse, double A, int64_t i, double *M, double *dA) {
  const kr_ssd_bwd_args *a = c->a;
  const int64_t N = a->N, t = ssd_time(c->in, reverse, i), g = c->h / (a->H / a->G);
  const ssd_token token = ssd_token_at(c->in, c->b, reverse, i);
  const double d = ssd_step(c->in, c->b, t, c->h), e = ssd_decay(c->in, c->b, t, c->h, A, d), x = x_at(c, t),
               dy = c->s.dy[t];
  double inputs = 0, before = 0;
  if (token.padding) {
    memset(M, 0, (size_t)N * sizeof *M);
    return;
  }
  for (int64_t n = 0; n < N; n++) {
    M[n] += dy * kr_get(&a->Cmat, kr_at4(&a->Cmat, c->b, t, g, n));
    const double previous = token.begins ? 0
                            : i          ? c->s.states[(i - 1) * N + n]
                                         : ssd_initial(c->in, c->b, c->h, c->p, n);
    inputs += M[n] * kr_get(&a->Bmat, kr_at4(&a->Bmat, c->b, t, g, n));
    before += M[n] * previous;
    c->s.dC[t * N + n] += c->s.states[i * N + n] * dy;
    c->s.dB[t * N + n] += d * M[n] * x;
    M[n] = token.begins ? 0 : e * M[n];
  }
  c->s.dx[t] += d * inputs;
  c->s.dd[t] += x * inputs + A * e * before;
  c->s.dlog[t] += e * before;
  *dA += d * e * before;
}

static void ssd_bwd_walk_back(const channel *c, int reverse, const kr_view *A, double *dA) {
  const kr_ssd_bwd_args *a = c->a;
  double M[KR_SSD_MAX_N];
  for (int64_t n = 0; n < a->N; n++)
    M[n] = kr_has(&a->dfinal_states) ? kr_get(&a->dfinal_states, kr_at4(&a->dfinal_states, c->b, c->h, c->p, n)) : 0;
  for (int64_t i = a->L - 1; i >= 0; i--) ssd_bwd_step_back(c, reverse, ssd_A(A, c->h), i, M, dA);
  for (int64_t n = 0; kr_has(&a->dinitial_states) && n < a->N; n++)
    kr_put(&a->dinitial_states, kr_at4(&a->dinitial_states, c->b, c->h, c->p, n), M[n]);
}

/* dy of every token, and the gradients of the D x term and the gate. */
static void leave_gate(const channel *c) {
  const kr_ssd_bwd_args *a = c->a;
  const double D = kr_has(&a->Dvec) ? kr_get(&a->Dvec, kr_at2(&a->Dvec, c->h, c->p)) : 0;
  for (int64_t t = 0; t < a->L; t++) {
    const int padding = ssd_token_at(c->in, c->b, 0, t).padding;
    const double x = padding ? 0 : x_at(c, t);
    double dy = padding ? 0 : kr_get(&a->dout, kr_at4(&a->dout, c->b, t, c->h, c->p));
    if (kr_has(&a->z)) {
      const double z = padding ? 0 : kr_get(&a->z, kr_at4(&a->z, c->b, t, c->h, c->p)), s = 1 / (1 + exp(-z));
      const double y = kr_has(&a->Dvec) ? c->s.y[t] + D * x : c->s.y[t];
      if (kr_has(&a->dz))
        kr_put(&a->dz, kr_at4(&a->dz, c->b, t, c->h, c->p), dy == 0 ? 0 : dy * y * s * (1 + z * (1 - s)));
      dy *= z * s;
    }
    c->s.dy[t] = dy;
    c->s.dx[t] = kr_has(&a->Dvec) && !padding ? D * dy : 0;
    c->s.dD[c->h * a->P + c->p] += dy * x;
  }
}

static void run_ssd_bwd_channel(const channel *c) {
  const kr_ssd_bwd_args *a = c->a;
  const int reverse = (a->call.flags & KRAIT_SSD_REVERSE) != 0;
  memset(c->s.y, 0, (size_t)a->L * sizeof(double));
  if (a->call.flags & KRAIT_SSD_BOTH) walk_forward(c, 1, &a->A_reverse);
  walk_forward(c, reverse, &a->A);
  leave_gate(c);
  ssd_bwd_walk_back(c, reverse, &a->A, &c->s.dA[c->h]);
  if (a->call.flags & KRAIT_SSD_BOTH) {
    walk_forward(c, 1, &a->A_reverse);
    ssd_bwd_walk_back(c, 1, &a->A_reverse, &c->s.dA_reverse[c->h]);
  }
  for (int64_t t = 0; kr_has(&a->dx) && t < a->L; t++) kr_put(&a->dx, kr_at4(&a->dx, c->b, t, c->h, c->p), c->s.dx[t]);
}

/* From the gradient of d to that of dt. */
static void finish_head(const channel *c) {
  const kr_ssd_bwd_args *a = c->a;
  for (int64_t t = 0; t < a->L; t++) {
    const double raw = ssd_raw_step(c->in, c->b, t, c->h), d = ssd_unclamped(c->in, raw);
    double ddt = d < a->dt_min || d > ssd_highest(c->in) ? 0 : c->s.dd[t];
    if (a->call.flags & KRAIT_SSD_SOFTPLUS && raw <= 20) ddt /= 1 + exp(-raw);
    if (kr_has(&a->ddt)) kr_put(&a->ddt, kr_at3(&a->ddt, c->b, t, c->h), ddt);
    if (kr_has(&a->dlog_decay)) kr_put(&a->dlog_decay, kr_at3(&a->dlog_decay, c->b, t, c->h), c->s.dlog[t]);
    c->s.dbias[c->h] += ddt;
  }
}

static void run_ssd_bwd_group(channel *c, int64_t g) {
  const kr_ssd_bwd_args *a = c->a;
  const int64_t heads = a->H / a->G;
  memset(c->s.dB, 0, (size_t)(2 * a->L * a->N) * sizeof(double));
  for (c->h = g * heads; c->h < (g + 1) * heads; c->h++) {
    memset(c->s.dd, 0, (size_t)a->L * sizeof(double));
    memset(c->s.dlog, 0, (size_t)a->L * sizeof(double));
    for (c->p = 0; c->p < a->P; c->p++) run_ssd_bwd_channel(c);
    finish_head(c);
  }
  for (int64_t i = 0; i < a->L * a->N; i++) {
    if (kr_has(&a->dB)) kr_put(&a->dB, kr_at4(&a->dB, c->b, i / a->N, g, i % a->N), c->s.dB[i]);
    if (kr_has(&a->dC)) kr_put(&a->dC, kr_at4(&a->dC, c->b, i / a->N, g, i % a->N), c->s.dC[i]);
  }
}

uint64_t kr_ssd_bwd_ref_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return (uint64_t)ssd_bwd_sums_floats(args) * sizeof(double);
}

int32_t kr_ssd_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_ssd_bwd_args *a = args;
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  (void)ctx;
  channel c = {.a = a, .in = &in, .s = place_sums(a, a->call.scratch)};
  memset(c.s.dD, 0, (size_t)(a->H * (a->P + 3)) * sizeof(double));
  for (c.b = 0; c.b < a->B; c.b++)
    for (int64_t g = 0; g < a->G; g++) run_ssd_bwd_group(&c, g);
  for (int64_t h = 0; h < a->H; h++) {
    if (kr_has(&a->dA)) kr_put(&a->dA, kr_at1(&a->dA, h), c.s.dA[h]);
    if (kr_has(&a->dA_reverse)) kr_put(&a->dA_reverse, kr_at1(&a->dA_reverse, h), c.s.dA_reverse[h]);
    if (kr_has(&a->ddt_bias)) kr_put(&a->ddt_bias, kr_at1(&a->ddt_bias, h), c.s.dbias[h]);
    double own_D = 0;
    for (int64_t p = 0; kr_has(&a->dDvec) && p < a->P; p++) {
      own_D += c.s.dD[h * a->P + p];
      kr_put(&a->dDvec, kr_at2(&a->dDvec, h, p), a->dDvec.stride[1] ? c.s.dD[h * a->P + p] : own_D);
    }
  }
  return KRAIT_OK;
}
