/* mamba3_bwd_ref.c: the gradient of Mamba 3's scan, written for readability. With G_t and dU_t the gradients of the
 * state and of u_t = sum_r x_{t,r} (outer) k_{t,r}, a = alpha, b = (1 - lambda) dt alpha, c = lambda dt,
 *   G_t = sum_r dy_{t,r} (outer) q_{t,r} + a_{t+1} G_{t+1}         after the last token: dfinal_states
 *   dU_t = c_t G_t + b_{t+1} G_{t+1};  dq_r = h_t^T dy_r;  dk_r = dU_t^T x_r;  dx_r = D dy_r + dU_t k_r
 *   dlog_decay = a <G, h_{t-1}> + b <G, u_{t-1}>;  dtrap = lambda (1 - lambda) dt (<G, u_t> - a <G, u_{t-1}>)
 *   phi_t = phi_{t+1} + sum_r (q_i dq_j - q_j dq_i + k_i dk_j - k_j dk_i)   per pair; after the last: dfinal_angles
 *   ddt = lambda <G, u_t> + (1 - lambda) a <G, u_{t-1}> + sum_m phi pi tanh(angles)
 *   dangles = phi dt pi (1 - tanh(angles)^2)
 * dC and dB are dq and dk turned back, summed over the heads of a group. Double accumulation. */
#include <string.h>

#include "contract.h"
#include "mamba3_impls.h"
#include "mamba3_ref.h"
#include "op_list.h"

static const double pi = 3.14159265358979323846;

typedef struct work {
  const kr_mamba3_bwd_args *a;
  kr_mamba3_head c;
  kr_view dout, dx, dlog_decay, ddt, dtrap, dB, dC, dangles, dz; /* in scan order */
  double *dy;                               /* [n+1][R][P] */
  double *G, *dU, *carry, *of_input;        /* [P][N]; carry: alpha G of the next token; of_input: its b G */
  double *dq, *dk;                          /* [R][N] of a token */
  double *dx_r;                             /* [R][P] of a token */
  double *phi;                              /* [M] */
  double *sum_B, *sum_C, *sum_angles;       /* [n][R G][N], [n][M]: over heads */
  double *B_bias, *C_bias, *D, *mimo_x, *mimo_z, *mimo_o, *norm; /* over sequences */
} work;

static int64_t sums_doubles(const kr_mamba3_bwd_args *a) {
  return 2 * a->H * a->R * a->N + a->H + 3 * a->H * a->R * a->P + a->H * a->P;
}

static int64_t work_doubles(const kr_mamba3_bwd_args *a) {
  return (a->L + 1) * a->R * a->P + 4 * a->P * a->N + 2 * a->R * a->N + a->R * a->P + a->M +
         2 * a->L * a->R * a->G * a->N + a->L * a->M + sums_doubles(a);
}

static work begin_work(const kr_mamba3_bwd_args *a, const kr_mamba3_inputs *in) {
  double *at = a->call.scratch;
  work w = {.a = a, .c = kr_mamba3_begin_head(in, a->L, 1, at)};
  const int64_t PN = a->P * a->N, RN = a->R * a->N, RP = a->R * a->P;
  at += kr_mamba3_head_doubles(in, a->L, 1);
  w.dy = at, at += (a->L + 1) * RP;
  w.G = at, w.dU = at + PN, w.carry = at + 2 * PN, w.of_input = at + 3 * PN, at += 4 * PN;
  w.dq = at, w.dk = at + RN, at += 2 * RN;
  w.dx_r = at, at += RP;
  w.phi = at, at += a->M;
  w.sum_B = at, at += a->L * a->G * RN;
  w.sum_C = at, at += a->L * a->G * RN;
  w.sum_angles = at, at += a->L * a->M;
  w.B_bias = at, w.C_bias = at + a->H * RN, at += 2 * a->H * RN;
  memset(w.B_bias, 0, (size_t)sums_doubles(a) * sizeof(double));
  w.D = at, at += a->H;
  w.mimo_x = at, w.mimo_z = at + a->H * RP, w.mimo_o = at + 2 * a->H * RP, w.norm = at + 3 * a->H * RP;
  w.dout = KR_MAMBA3_TIME(a, dout), w.dx = KR_MAMBA3_TIME(a, dx), w.dlog_decay = KR_MAMBA3_TIME(a, dlog_decay);
  w.ddt = KR_MAMBA3_TIME(a, ddt), w.dtrap = KR_MAMBA3_TIME(a, dtrap), w.dB = KR_MAMBA3_TIME(a, dB);
  w.dC = KR_MAMBA3_TIME(a, dC), w.dangles = KR_MAMBA3_TIME(a, dangles), w.dz = KR_MAMBA3_TIME(a, dz);
  return w;
}

static double dout_at(const work *w, int64_t t, int64_t r, int64_t p) {
  const int64_t row = kr_has(&w->a->mimo_o) ? w->c.h : r * w->a->H + w->c.h;
  return kr_has(&w->dout) ? kr_get(&w->dout, kr_at4(&w->dout, w->c.at.b, w->c.at.begin + t - 1, row, p)) : 0;
}

/* dy of a rank from the gradient of n: through the norm, if there is one. */
static void leave_mamba3_norm(work *w, const double *y, double *dy) {
  const kr_mamba3_bwd_args *a = w->a;
  double squares = 0, mean = 0;
  if (!kr_has(&a->norm_weight)) return;
  for (int64_t p = 0; p < a->P; p++) squares += y[p] * y[p];
  const double scale = 1 / sqrt(squares / (double)a->P + a->eps);
  for (int64_t p = 0; p < a->P; p++) {
    const double weight = kr_get(&a->norm_weight, kr_at2(&a->norm_weight, w->c.h, p));
    w->norm[w->c.h * a->P + p] += dy[p] * y[p] * scale;
    dy[p] *= weight;
    mean += dy[p] * y[p] * scale / (double)a->P;
  }
  for (int64_t p = 0; p < a->P; p++) dy[p] = scale * (dy[p] - y[p] * scale * mean);
}

/* One rank of a token: dy from dout; the gradients of z and of the ranks' factors. */
static void leave_mamba3_gate(work *w, int64_t t, int64_t r, double *dz) {
  const kr_mamba3_bwd_args *a = w->a;
  const kr_mamba3_head *c = &w->c;
  const double *const y = c->y + (t * a->R + r) * a->P;
  double *const dy = w->dy + (t * a->R + r) * a->P, squares = 0;
  for (int64_t p = 0; p < a->P; p++) squares += y[p] * y[p];
  for (int64_t p = 0; p < a->P; p++) {
    const int64_t at = (c->h * a->R + r) * a->P + p;
    const double dout = dout_at(w, t, r, p), n = kr_has(&a->norm_weight)
                                                     ? y[p] / sqrt(squares / (double)a->P + a->eps) *
                                                           kr_get(&a->norm_weight, kr_at2(&a->norm_weight, c->h, p))
                                                     : y[p];
    double gate = 1, do_r = dout * kr_mamba3_factor(c, &a->mimo_o, r, p);
    if (kr_has(&a->z)) {
      const double z = kr_get(&c->in->z, kr_at4(&c->in->z, c->at.b, c->at.begin + t - 1, c->h, p)),
                   factor = kr_mamba3_factor(c, &a->mimo_z, r, p), zr = z * factor, s = 1 / (1 + exp(-zr)),
                   dzr = do_r == 0 ? 0 : do_r * n * s * (1 + zr * (1 - s));
      gate = zr * s;
      dz[p] += dzr * factor;
      w->mimo_z[at] += dzr * z;
    }
    w->mimo_o[at] += dout == 0 ? 0 : dout * n * gate;
    dy[p] = do_r * gate;
  }
  leave_mamba3_norm(w, y, dy);
}

static void leave_mamba3_gates(work *w) {
  const kr_mamba3_bwd_args *a = w->a;
  double dz[256];
  for (int64_t t = 1; t <= w->c.at.n; t++) {
    memset(dz, 0, sizeof dz);
    for (int64_t r = 0; r < a->R; r++) leave_mamba3_gate(w, t, r, dz);
    for (int64_t p = 0; kr_has(&w->dz) && p < a->P; p++)
      kr_put(&w->dz, kr_at4(&w->dz, w->c.at.b, w->c.at.begin + t - 1, w->c.h, p), dz[p]);
  }
}

/* <of, u_t> over P and N. */
static double with_input(const work *w, const double *of, int64_t t) {
  const int64_t P = w->a->P, N = w->a->N, R = w->a->R;
  double sum = 0;
  for (int64_t r = 0; r < R; r++)
    for (int64_t p = 0; p < P; p++)
      for (int64_t n = 0; n < N; n++)
        sum += of[p * N + n] * kr_mamba3_x(&w->c, t, r, p) * w->c.k[(t * R + r) * N + n];
  return sum;
}

/* dk of the token's ranks, and dU k of each; of the input before an empty sequence nothing was computed. */
static void pass_input(work *w, int64_t t) {
  const int64_t P = w->a->P, N = w->a->N, R = w->a->R;
  memset(w->dk, 0, (size_t)(R * N) * sizeof(double));
  for (int64_t r = 0; w->c.at.n && r < R; r++) {
    for (int64_t n = 0; n < N; n++) {
      double sum = 0;
      for (int64_t p = 0; p < P; p++) sum += w->dU[p * N + n] * kr_mamba3_x(&w->c, t, r, p);
      w->dk[r * N + n] = sum;
    }
    for (int64_t p = 0; p < P; p++) {
      double sum = 0;
      for (int64_t n = 0; n < N; n++) sum += w->dU[p * N + n] * w->c.k[(t * R + r) * N + n];
      w->dx_r[r * P + p] = sum;
    }
  }
  for (int64_t i = 0; t == w->c.at.n && kr_has(&w->a->dfinal_B) && i < R * N; i++)
    w->dk[i] += kr_get(&w->a->dfinal_B, kr_at4(&w->a->dfinal_B, w->c.at.row, i / N, w->c.h, i % N));
}

/* dx of the token from dx_r of its ranks. */
static double pass_ranks(work *w, int64_t t, int64_t p) {
  const int64_t P = w->a->P, R = w->a->R, n = w->c.at.n;
  double dx = t == n && kr_has(&w->a->dfinal_x)
                  ? kr_get(&w->a->dfinal_x, kr_at3(&w->a->dfinal_x, w->c.at.row, w->c.h, p))
                  : 0;
  for (int64_t r = 0; n && r < R; r++) {
    dx += kr_mamba3_factor(&w->c, &w->a->mimo_x, r, p) * w->dx_r[r * P + p];
    w->mimo_x[(w->c.h * R + r) * P + p] += w->c.v[t * P + p] * w->dx_r[r * P + p];
  }
  return dx;
}

/* Adds to phi, turns dq or dk of rank r back, and adds it to the sums. */
static void turn_back(work *w, int64_t t, int64_t r, const double *rotated, double *d, double *sum, double *bias) {
  const kr_mamba3_bwd_args *a = w->a;
  for (int64_t m = 0; m < a->M; m++) {
    const int64_t i = kr_mamba3_first(a->call.flags, m), j = kr_mamba3_second(a->call.flags, a->N, m);
    const double u = d[i], v = d[j], theta = w->c.theta[t * a->M + m];
    w->phi[m] += rotated[i] * v - rotated[j] * u;
    d[i] = cos(theta) * u + sin(theta) * v, d[j] = cos(theta) * v - sin(theta) * u;
  }
  for (int64_t n = 0; n < a->N; n++) {
    sum[(((t - 1) * a->R + r) * a->G + w->c.g) * a->N + n] += d[n];
    bias[(w->c.h * a->R + r) * a->N + n] += d[n];
  }
}

static double leave_angles(work *w, int64_t t, double d) {
  const kr_mamba3_bwd_args *a = w->a;
  const kr_view *const angles = &w->c.in->angles;
  const int64_t token = w->c.at.begin + t - 1;
  double ddt = 0;
  for (int64_t m = 0; m < a->M; m++) {
    const double tanh_m = tanh(kr_get(angles, kr_at4(angles, w->c.at.b, token, w->c.h, m))),
                 dangle = w->phi[m] * d * pi * (1 - tanh_m * tanh_m);
    ddt += w->phi[m] * pi * tanh_m;
    w->sum_angles[(t - 1) * a->M + m] += dangle;
    if (kr_has(&w->dangles) && w->dangles.stride[2])
      kr_put(&w->dangles, kr_at4(&w->dangles, w->c.at.b, token, w->c.h, m), dangle);
  }
  return ddt;
}

static void step_mamba3_back(work *w, int64_t t) {
  const kr_mamba3_bwd_args *a = w->a;
  const kr_mamba3_head *c = &w->c;
  const int64_t P = a->P, N = a->N, R = a->R, token = c->at.begin + t - 1;
  const double d = kr_mamba3_token(c, &c->in->dt, t), alpha = exp(kr_mamba3_token(c, &c->in->log_decay, t)),
               lambda = kr_mamba3_lambda(c, t), D = kr_mamba3_D(c);
  const double *const state = kr_mamba3_state(c, t), *const before = kr_mamba3_state(c, t - 1);
  const int is_empty = t == 1 && !kr_has(&c->in->initial_states); /* before the token */
  double with_before = 0;
  memset(w->dq, 0, (size_t)(R * N) * sizeof(double));
  for (int64_t p = 0; p < P; p++)
    for (int64_t n = 0; n < N; n++) {
      const int64_t i = p * N + n;
      w->G[i] = w->carry[i];
      for (int64_t r = 0; r < R; r++) {
        const double dy = w->dy[(t * R + r) * P + p];
        w->G[i] += dy * c->q[(t * R + r) * N + n];
        w->dq[r * N + n] += state[i] * dy;
      }
      w->dU[i] = lambda * d * w->G[i] + w->of_input[i];
      with_before += is_empty ? 0 : w->G[i] * before[i];
      w->carry[i] = alpha * w->G[i], w->of_input[i] = (1 - lambda) * d * alpha * w->G[i];
    }
  const double own = with_input(w, w->G, t), last = is_empty ? 0 : alpha * with_input(w, w->G, t - 1);
  pass_input(w, t);
  for (int64_t i = 0; i < R * P; i++) {
    const double dy = w->dy[t * R * P + i];
    w->dx_r[i] += D * dy;
    w->D[c->h] += dy * kr_mamba3_x(c, t, i / P, i % P);
  }
  for (int64_t p = 0; p < P; p++) {
    const double dx = pass_ranks(w, t, p);
    if (kr_has(&w->dx)) kr_put(&w->dx, kr_at4(&w->dx, c->at.b, token, c->h, p), dx);
  }
  for (int64_t r = 0; r < R; r++) {
    turn_back(w, t, r, c->q + (t * R + r) * N, w->dq + r * N, w->sum_C, w->C_bias);
    turn_back(w, t, r, c->k + (t * R + r) * N, w->dk + r * N, w->sum_B, w->B_bias);
  }
  const double ddt = leave_angles(w, t, d) + lambda * own + (1 - lambda) * last;
  const int64_t b = c->at.b, h = c->h;
  if (kr_has(&w->ddt)) kr_put(&w->ddt, kr_at3(&w->ddt, b, token, h), ddt);
  if (kr_has(&w->dtrap)) kr_put(&w->dtrap, kr_at3(&w->dtrap, b, token, h), lambda * (1 - lambda) * d * (own - last));
  if (kr_has(&w->dlog_decay))
    kr_put(&w->dlog_decay, kr_at3(&w->dlog_decay, b, token, h),
           is_empty ? 0 : alpha * with_before + (1 - lambda) * d * last);
}

static void begin_back(work *w) {
  const kr_mamba3_bwd_args *a = w->a;
  const int64_t row = w->c.at.row, h = w->c.h;
  const kr_view *const states = &a->dfinal_states, *const angles = &a->dfinal_angles;
  for (int64_t i = 0; i < a->P * a->N; i++)
    w->carry[i] = kr_has(states) ? kr_get(states, kr_at4(states, row, h, i / a->N, i % a->N)) : 0;
  memset(w->of_input, 0, (size_t)(a->P * a->N) * sizeof(double));
  for (int64_t m = 0; m < a->M; m++) w->phi[m] = kr_has(angles) ? kr_get(angles, kr_at3(angles, row, h, m)) : 0;
}

static void write_initial(work *w) {
  const kr_mamba3_bwd_args *a = w->a;
  const int64_t row = w->c.at.row, h = w->c.h, P = a->P, N = a->N;
  memcpy(w->dU, w->of_input, (size_t)(P * N) * sizeof(double));
  pass_input(w, 0);
  for (int64_t m = 0; kr_has(&a->dinitial_angles) && m < a->M; m++)
    kr_put(&a->dinitial_angles, kr_at3(&a->dinitial_angles, row, h, m), w->phi[m]);
  for (int64_t i = 0; kr_has(&a->dinitial_states) && i < P * N; i++)
    kr_put(&a->dinitial_states, kr_at4(&a->dinitial_states, row, h, i / N, i % N), w->carry[i]);
  for (int64_t i = 0; kr_has(&a->dinitial_B) && i < a->R * N; i++)
    kr_put(&a->dinitial_B, kr_at4(&a->dinitial_B, row, i / N, h, i % N), w->dk[i]);
  for (int64_t p = 0; p < P; p++) {
    const double dx = pass_ranks(w, 0, p);
    if (kr_has(&a->dinitial_x)) kr_put(&a->dinitial_x, kr_at3(&a->dinitial_x, row, h, p), dx);
  }
}

/* What a sequence's heads share. */
static void write_shared(const work *w, kr_mamba3_sequence s) {
  const kr_mamba3_bwd_args *a = w->a;
  const int64_t rows = a->R * a->G, each = rows * a->N;
  for (int64_t i = 0; i < s.n * each; i++) {
    const int64_t t = s.begin + i / each, row = i / a->N % rows, n = i % a->N;
    if (kr_has(&w->dB)) kr_put(&w->dB, kr_at4(&w->dB, s.b, t, row, n), w->sum_B[i]);
    if (kr_has(&w->dC)) kr_put(&w->dC, kr_at4(&w->dC, s.b, t, row, n), w->sum_C[i]);
  }
  for (int64_t i = 0; kr_has(&w->dangles) && !w->dangles.stride[2] && i < s.n * a->M; i++)
    kr_put(&w->dangles, kr_at4(&w->dangles, s.b, s.begin + i / a->M, 0, i % a->M), w->sum_angles[i]);
}

static void write_ranks(const kr_view *v, const double *sums, int64_t R, int64_t n, int64_t total) {
  for (int64_t i = 0; kr_has(v) && i < total; i++) kr_put(v, kr_at3(v, i / n / R, i / n % R, i % n), sums[i]);
}

static void write_mamba3_sums(const work *w) {
  const kr_mamba3_bwd_args *a = w->a;
  const int64_t R = a->R, HRN = a->H * R * a->N, HRP = a->H * R * a->P;
  write_ranks(&a->dB_bias, w->B_bias, R, a->N, HRN);
  write_ranks(&a->dC_bias, w->C_bias, R, a->N, HRN);
  write_ranks(&a->dmimo_x, w->mimo_x, R, a->P, HRP);
  write_ranks(&a->dmimo_z, w->mimo_z, R, a->P, HRP);
  write_ranks(&a->dmimo_o, w->mimo_o, R, a->P, HRP);
  for (int64_t h = 0; kr_has(&a->dDvec) && h < a->H; h++) kr_put(&a->dDvec, kr_at1(&a->dDvec, h), w->D[h]);
  for (int64_t i = 0; kr_has(&a->dnorm_weight) && i < a->H * a->P; i++)
    kr_put(&a->dnorm_weight, kr_at2(&a->dnorm_weight, i / a->P, i % a->P), w->norm[i]);
}

uint64_t kr_mamba3_bwd_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_bwd_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  (void)ctx;
  return (uint64_t)(kr_mamba3_head_doubles(&in, a->L, 1) + work_doubles(a)) * sizeof(double);
}

int32_t kr_mamba3_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_bwd_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  work w = begin_work(a, &in);
  (void)ctx;
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("mamba3_bwd", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  for (int64_t i = 0; i < kr_mamba3_n_sequences(&in); i++) {
    const kr_mamba3_sequence s = kr_mamba3_sequence_at(&in, i);
    memset(w.sum_B, 0, (size_t)(2 * a->L * a->R * a->G * a->N + a->L * a->M) * sizeof(double));
    for (int64_t h = 0; h < a->H; h++) {
      kr_mamba3_run_head(&w.c, s, h);
      leave_mamba3_gates(&w);
      begin_back(&w);
      for (int64_t t = s.n; t > 0; t--) step_mamba3_back(&w, t);
      write_initial(&w);
    }
    write_shared(&w, s);
  }
  write_mamba3_sums(&w);
  return KRAIT_OK;
}
