/* mamba3_ref.c: Mamba 3's recurrence (Lahoti et al. 2026, arXiv 2603.15569) for ranks r of multiple inputs and outputs,
 * written for readability. Per head, with t = 0 the initial states:
 *   theta_t = theta_{t-1} + pi tanh(angles_t) dt_t                        modulo 2 pi
 *   q_{t,r} = Rot(theta_t) (C_{t,r} + C_bias_r);  k_{t,r} = Rot(theta_t) (B_{t,r} + B_bias_r)
 *   lambda = sigmoid(trap_t), alpha = exp(log_decay_t);  x_{t,r} = x_t mimo_x_r
 *   h_t = alpha h_{t-1} + (1 - lambda) dt alpha sum_r x_{t-1,r} (outer) k_{t-1,r}
 *                       + lambda dt sum_r x_{t,r} (outer) k_{t,r}
 *   y_{t,r} = h_t q_{t,r} + D x_{t,r}
 *   n_{t,r} = y_{t,r} / rms(y_{t,r}) norm_weight, or y_{t,r};  o_{t,r} = n_{t,r} silu(z_t mimo_z_r), or n_{t,r}
 *   out_t = sum_r mimo_o_r o_{t,r}, or o_{t,r} as row r H + h
 * Rot turns pair m, entries (2m, 2m+1) or with KRAIT_MAMBA3_HALVES (m, m + N/2), by theta_m. Double accumulation. */
#include "mamba3_ref.h"

#include <string.h>

#include "contract.h"
#include "mamba3_impls.h"
#include "op_list.h"

static const double pi = 3.14159265358979323846;

int64_t kr_mamba3_head_doubles(const kr_mamba3_inputs *in, int64_t n, int keep_states) {
  const int64_t states = keep_states ? n + 1 : 2;
  return (n + 1) * (in->M + 2 * in->R * in->N + in->P + in->R * in->P) + (states + 2) * in->P * in->N;
}

kr_mamba3_head kr_mamba3_begin_head(const kr_mamba3_inputs *in, int64_t n, int keep_states, double *at) {
  kr_mamba3_head c = {.in = in, .kept = keep_states ? n + 1 : 2};
  c.theta = at, at += (n + 1) * in->M;
  c.q = at, at += (n + 1) * in->R * in->N;
  c.k = at, at += (n + 1) * in->R * in->N;
  c.v = at, at += (n + 1) * in->P;
  c.y = at, at += (n + 1) * in->R * in->P;
  c.states = at, at += c.kept * in->P * in->N;
  c.input = at;
  return c;
}

/* to = Rot(theta) (from + bias), of one rank. */
static void rotate(const kr_mamba3_head *c, const kr_view *from, const kr_view *bias, int64_t t, int64_t r,
                   const double *theta, double *to) {
  const kr_mamba3_inputs *in = c->in;
  for (int64_t n = 0; n < in->N; n++)
    to[n] = kr_get(from, kr_at4(from, c->at.b, c->at.begin + t - 1, r * in->G + c->g, n)) +
            kr_get(bias, kr_at3(bias, c->h, r, n));
  for (int64_t m = 0; m < in->M; m++) {
    double *const i = to + kr_mamba3_first(in->flags, m), *const j = to + kr_mamba3_second(in->flags, in->N, m);
    const double u = *i, v = *j;
    *i = cos(theta[m]) * u - sin(theta[m]) * v, *j = sin(theta[m]) * u + cos(theta[m]) * v;
  }
}

static void add_inputs(const kr_mamba3_head *c, int64_t t, double *sum) {
  const kr_mamba3_inputs *in = c->in;
  memset(sum, 0, (size_t)(in->P * in->N) * sizeof *sum);
  for (int64_t r = 0; r < in->R; r++)
    for (int64_t p = 0; p < in->P; p++)
      for (int64_t n = 0; n < in->N; n++)
        sum[p * in->N + n] += kr_mamba3_x(c, t, r, p) * c->k[(t * in->R + r) * in->N + n];
}

static void begin_states(const kr_mamba3_head *c) {
  const kr_mamba3_inputs *in = c->in;
  const int64_t row = c->at.row, h = c->h;
  const int given = kr_has(&in->initial_states);
  for (int64_t m = 0; m < in->M; m++)
    c->theta[m] = given ? kr_get(&in->initial_angles, kr_at3(&in->initial_angles, row, h, m)) : 0;
  for (int64_t i = 0; i < in->R * in->N; i++)
    c->k[i] = given ? kr_get(&in->initial_B, kr_at4(&in->initial_B, row, i / in->N, h, i % in->N)) : 0;
  for (int64_t p = 0; p < in->P; p++) {
    c->v[p] = given ? kr_get(&in->initial_x, kr_at3(&in->initial_x, row, h, p)) : 0;
    for (int64_t n = 0; n < in->N; n++)
      kr_mamba3_state(c, 0)[p * in->N + n] =
          given ? kr_get(&in->initial_states, kr_at4(&in->initial_states, row, h, p, n)) : 0;
  }
  add_inputs(c, 0, c->input);
}

static void run_token(const kr_mamba3_head *c, int64_t t) {
  const kr_mamba3_inputs *in = c->in;
  const double d = kr_mamba3_token(c, &in->dt, t), alpha = exp(kr_mamba3_token(c, &in->log_decay, t)),
               lambda = kr_mamba3_lambda(c, t), D = kr_mamba3_D(c);
  double *const theta = c->theta + t * in->M, *const state = kr_mamba3_state(c, t),
                *const input = c->input + t % 2 * in->P * in->N;
  const double *const before = kr_mamba3_state(c, t - 1), *const last = c->input + (t - 1) % 2 * in->P * in->N;
  for (int64_t m = 0; m < in->M; m++)
    theta[m] = theta[m - in->M] +
               pi * tanh(kr_get(&in->angles, kr_at4(&in->angles, c->at.b, c->at.begin + t - 1, c->h, m))) * d;
  for (int64_t r = 0; r < in->R; r++) {
    rotate(c, &in->Cmat, &in->C_bias, t, r, theta, c->q + (t * in->R + r) * in->N);
    rotate(c, &in->Bmat, &in->B_bias, t, r, theta, c->k + (t * in->R + r) * in->N);
  }
  for (int64_t p = 0; p < in->P; p++)
    c->v[t * in->P + p] = kr_get(&in->x, kr_at4(&in->x, c->at.b, c->at.begin + t - 1, c->h, p));
  add_inputs(c, t, input);
  for (int64_t i = 0; i < in->P * in->N; i++)
    state[i] = alpha * before[i] + (1 - lambda) * d * alpha * last[i] + lambda * d * input[i];
  for (int64_t r = 0; r < in->R; r++)
    for (int64_t p = 0; p < in->P; p++) {
      double sum = D == 0 ? 0 : D * kr_mamba3_x(c, t, r, p);
      for (int64_t n = 0; n < in->N; n++) sum += state[p * in->N + n] * c->q[(t * in->R + r) * in->N + n];
      c->y[(t * in->R + r) * in->P + p] = sum;
    }
}

void kr_mamba3_run_head(kr_mamba3_head *c, kr_mamba3_sequence sequence, int64_t h) {
  c->at = sequence, c->h = h, c->g = h / (c->in->H / c->in->G);
  begin_states(c);
  for (int64_t t = 1; t <= sequence.n; t++) run_token(c, t);
}

static double norm_scale(const kr_mamba3_head *c, const double *y) {
  double sum = 0;
  for (int64_t p = 0; p < c->in->P; p++) sum += y[p] * y[p];
  return kr_has(&c->in->norm_weight) ? 1 / sqrt(sum / (double)c->in->P + c->in->eps) : 1;
}

static void write_mamba3_token(const kr_mamba3_head *c, const kr_view *out, int64_t t) {
  const kr_mamba3_inputs *in = c->in;
  const int64_t token = c->at.begin + t - 1;
  for (int64_t p = 0; p < in->P; p++) {
    double total = 0;
    for (int64_t r = 0; r < in->R; r++) {
      const double *const y = c->y + (t * in->R + r) * in->P;
      double o = y[p] * norm_scale(c, y);
      if (kr_has(&in->norm_weight)) o *= kr_get(&in->norm_weight, kr_at2(&in->norm_weight, c->h, p));
      if (kr_has(&in->z)) {
        const double z =
            kr_get(&in->z, kr_at4(&in->z, c->at.b, token, c->h, p)) * kr_mamba3_factor(c, &in->mimo_z, r, p);
        o *= z / (1 + exp(-z));
      }
      if (kr_has(&in->mimo_o)) total += kr_mamba3_factor(c, &in->mimo_o, r, p) * o;
      else kr_put(out, kr_at4(out, c->at.b, token, r * in->H + c->h, p), o);
    }
    if (kr_has(&in->mimo_o)) kr_put(out, kr_at4(out, c->at.b, token, c->h, p), total);
  }
}

/* Into [0, 2 pi). */
static double wrapped(double theta) {
  const double turn = fmod(theta, 2 * pi);
  return turn < 0 ? turn + 2 * pi : turn;
}

static void write_mamba3_states(const kr_mamba3_head *c, const kr_mamba3_args *a) {
  const kr_mamba3_inputs *in = c->in;
  const int64_t n = c->at.n, row = c->at.row, h = c->h;
  for (int64_t m = 0; kr_has(&a->final_angles) && m < in->M; m++)
    kr_put(&a->final_angles, kr_at3(&a->final_angles, row, h, m), wrapped(c->theta[n * in->M + m]));
  for (int64_t i = 0; kr_has(&a->final_states) && i < in->P * in->N; i++)
    kr_put(&a->final_states, kr_at4(&a->final_states, row, h, i / in->N, i % in->N), kr_mamba3_state(c, n)[i]);
  for (int64_t i = 0; kr_has(&a->final_B) && i < in->R * in->N; i++)
    kr_put(&a->final_B, kr_at4(&a->final_B, row, i / in->N, h, i % in->N), c->k[n * in->R * in->N + i]);
  for (int64_t p = 0; kr_has(&a->final_x) && p < in->P; p++)
    kr_put(&a->final_x, kr_at3(&a->final_x, row, h, p), c->v[n * in->P + p]);
}

uint64_t kr_mamba3_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  (void)ctx;
  return (uint64_t)kr_mamba3_head_doubles(&in, a->L, 0) * sizeof(double);
}

int32_t kr_mamba3_ref(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  const kr_view out = KR_MAMBA3_TIME(a, out);
  kr_mamba3_head c = kr_mamba3_begin_head(&in, a->L, 0, a->call.scratch);
  (void)ctx;
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("mamba3", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  for (int64_t i = 0; i < kr_mamba3_n_sequences(&in); i++)
    for (int64_t h = 0; h < a->H; h++) {
      kr_mamba3_run_head(&c, kr_mamba3_sequence_at(&in, i), h);
      for (int64_t t = 1; t <= c.at.n; t++) write_mamba3_token(&c, &out, t);
      write_mamba3_states(&c, a);
    }
  return KRAIT_OK;
}
