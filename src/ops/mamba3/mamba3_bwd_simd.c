/* mamba3_bwd_simd.c: the gradient of the scan as that of the SSD of the tokens' ranks (mamba3_lanes.h), piece by piece:
 *   forwards   y by the SSD, if a gate or a norm needs it; dy from dout
 *   the SSD's gradient  of q, k, x, the input weights and the decays
 *   backwards  the terms of a token with itself, angles, and from weights to dt and trap
 * Sums over heads add units in order, and sums over sequences come last, so results do not depend on the number of
 * threads. */
#include "contract.h"
#include "mamba3_impls.h"
#include "mamba3_lanes.h"
#include "op_list.h"
#include "ssd/ssd_impls.h"

enum { MOST_UNITS = 16 }; /* of a piece */

/* Views of the call in scan order, and scratch: parts for all units of a piece, and sums for all of the call. k and x,
 * and their gradients, begin with the token before the first. */
typedef struct piece {
  const kr_mamba3_bwd_args *a;
  const kr_mamba3_inputs *in;
  kr_view dout, dx, dlog_decay, ddt, dtrap, dB, dC, dangles, dz;
  m3_units units;
  int64_t first_unit, n_units, most, n;
  float *q, *k, *dq, *dk;                       /* [unit][row][row_N] */
  float *x, *dx_r, *y;                          /* [unit][row][row_P]; y, then dy */
  float *weight, *decay, *dweight, *ddecay;     /* [unit][row] */
  float *dt, *lambda, *rest, *alpha, *slopes;   /* [unit][token]; slopes: dt's gradient by the angles */
  float *own;                                   /* [unit][token]: gradients of lambda dt */
  float *phases;                                 /* [unit][token][row_M] */
  float *state, *dstate, *dend;                 /* [unit][P][N] */
  float *heads;
  float *sum_B, *sum_C, *sum_angles;            /* [B L][R G][row_N], [B L][row_M] */
  float *parameters;                            /* [sequence][H][parameters_floats] */
  float *ssd;
} piece;

/* Of one unit: dC_bias, dB_bias, dmimo_x, dmimo_z, dmimo_o, dnorm_weight, dD. */
typedef struct unit_sums {
  float *C_bias, *B_bias, *mimo_x, *mimo_z, *mimo_o, *norm, *D;
} unit_sums;

static int64_t parameters_floats(const kr_mamba3_inputs *in) {
  return 2 * in->R * m3_row_N(in) + (3 * in->R + 1) * m3_row_P(in) + 16;
}

static unit_sums unit_sums_of(const piece *p, int64_t sequence, int64_t h) {
  const int64_t RN = p->in->R * m3_row_N(p->in), RP = p->in->R * m3_row_P(p->in);
  float *at = p->parameters + (sequence * p->in->H + h) * parameters_floats(p->in);
  unit_sums s = {.C_bias = at, .B_bias = at + RN, .mimo_x = at + 2 * RN};
  s.mimo_z = s.mimo_x + RP, s.mimo_o = s.mimo_z + RP, s.norm = s.mimo_o + RP, s.D = s.norm + m3_row_P(p->in);
  return s;
}

static kr_ssd_args ssd_of_bwd_piece(const piece *p) {
  const kr_mamba3_inputs *in = p->in;
  const int64_t rows = in->L * in->R, keys = rows + in->R, N = m3_row_N(in), P = m3_row_P(in);
  kr_ssd_args s = {.B = p->n_units, .L = p->n * in->R, .H = 1, .P = in->P, .N = in->N, .G = 1};
  s.call.size = sizeof s, s.call.scratch = p->ssd;
  s.x = m3_batch(p->x, keys * P, P), s.out = m3_batch(p->y, rows * P, P);
  s.Bmat = m3_batch(p->k, keys * N, N), s.Cmat = m3_batch(p->q, rows * N, N);
  s.dt = m3_batch(p->weight, rows, 1), s.log_decay = m3_batch(p->decay, rows, 1);
  s.initial_states = m3_batch(p->state, in->P * in->N, in->N);
  return s;
}

static kr_ssd_bwd_args gradient_of_piece(const piece *p) {
  const kr_mamba3_inputs *in = p->in;
  const kr_ssd_args f = ssd_of_bwd_piece(p);
  kr_ssd_bwd_args s = {.B = f.B, .L = f.L, .H = 1, .P = f.P, .N = f.N, .G = 1};
  s.call.size = sizeof s, s.call.scratch = p->ssd;
  s.x = f.x, s.dt = f.dt, s.log_decay = f.log_decay, s.Bmat = f.Bmat, s.Cmat = f.Cmat;
  s.initial_states = f.initial_states, s.dout = f.out;
  s.dx = f.x, s.dx.data = p->dx_r, s.ddt = f.dt, s.ddt.data = p->dweight;
  s.dlog_decay = f.dt, s.dlog_decay.data = p->ddecay;
  s.dB = f.Bmat, s.dB.data = p->dk, s.dC = f.Cmat, s.dC.data = p->dq;
  s.dinitial_states = m3_batch(p->dstate, in->P * in->N, in->N);
  s.dfinal_states = m3_batch(p->dend, in->P * in->N, in->N);
  return s;
}

static int64_t place_bwd_piece(const krait_ctx *ctx, piece *p, float *at) {
  const kr_mamba3_inputs *in = p->in;
  const int64_t N = m3_row_N(in), P = m3_row_P(in), M = m3_row_M(in), all = m3_units_of(in, 0).n,
                aim = 2 * krait_ctx_n_threads(ctx);
  p->most = all < aim ? all : aim < MOST_UNITS ? aim : MOST_UNITS;
  p->n_units = p->most, p->n = in->L;
  const int64_t tokens = p->most * in->L, rows = tokens * in->R, keys = rows + p->most * in->R,
                states = p->most * in->P * in->N;
  float *const begin = at;
  float **const of_N[] = {&p->q, &p->k, &p->dq, &p->dk}, **const of_P[] = {&p->x, &p->dx_r, &p->y};
  for (int i = 0; i < 4; i++) *of_N[i] = at, at += keys * N;
  for (int i = 0; i < 3; i++) *of_P[i] = at, at += keys * P;
  p->weight = at, p->decay = at + rows, p->dweight = at + 2 * rows, p->ddecay = at + 3 * rows, at += 4 * rows;
  p->dt = at, p->lambda = at + tokens, p->alpha = at + 2 * tokens, p->slopes = at + 3 * tokens,
  p->rest = at + 4 * tokens, p->own = at + 5 * tokens, at += 6 * tokens;
  p->phases = at, at += tokens * M;
  p->state = at, p->dstate = at + states, p->dend = at + 2 * states, at += 3 * states;
  p->heads = at, at += p->most * m3_head_floats(in);
  p->sum_B = at, at += in->B * in->L * in->R * in->G * N;
  p->sum_C = at, at += in->B * in->L * in->R * in->G * N;
  p->sum_angles = at, at += in->B * in->L * M;
  p->parameters = at, at += kr_mamba3_n_sequences(in) * in->H * parameters_floats(in);
  p->ssd = begin + m3_whole(at - begin, 16);
  const kr_ssd_args f = ssd_of_bwd_piece(p);
  const kr_ssd_bwd_args g = gradient_of_piece(p);
  const uint64_t forward = KR_FN(kr_ssd_scratch)(ctx, &f), back = KR_FN(kr_ssd_bwd_scratch)(ctx, &g);
  return p->ssd - begin + (int64_t)((forward > back ? forward : back) / sizeof(float));
}

/* What a worker knows of unit u. */
typedef struct unit {
  const piece *p;
  kr_mamba3_sequence s;
  int64_t h, g;
  m3_head head;
  m3_rows rows;
  unit_sums sums;
  float *dq, *dk, *dx, *y, *dweight, *ddecay, *slopes, *own, *phases, *state, *dstate, *dend;
} unit;

static unit unit_at(const piece *p, int64_t i) {
  const kr_mamba3_inputs *in = p->in;
  const int64_t tokens = i * in->L, rows = tokens * in->R, keys = rows + (i + 1) * in->R, N = m3_row_N(in),
                P = m3_row_P(in), states = i * in->P * in->N;
  unit u = {.p = p, .s = m3_sequence_of(&p->units, p->first_unit + i), .h = (p->first_unit + i) % in->H};
  u.g = u.h / (in->H / in->G);
  u.head = m3_load_head(in, u.h, p->heads + i * m3_head_floats(in));
  u.rows = (m3_rows){p->q + rows * N, p->k + keys * N,    p->x + keys * P,  p->weight + rows, p->decay + rows,
                     p->dt + tokens,  p->lambda + tokens, p->rest + tokens, p->alpha + tokens};
  u.sums = unit_sums_of(p, u.s.row, u.h);
  u.dq = p->dq + rows * N, u.dk = p->dk + keys * N, u.dx = p->dx_r + keys * P, u.y = p->y + rows * P;
  u.dweight = p->dweight + rows, u.ddecay = p->ddecay + rows, u.slopes = p->slopes + tokens, u.own = p->own + tokens;
  u.phases = p->phases + tokens * m3_row_M(in);
  u.state = p->state + states, u.dstate = p->dstate + states, u.dend = p->dend + states;
  return u;
}

static void read_bwd_units(void *user, int64_t begin, int64_t end, int worker) {
  const piece *p = user;
  const kr_mamba3_inputs *in = p->in;
  const kr_view *const dfinal = &p->a->dfinal_states;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const unit u = unit_at(p, i);
    double phases[M3_MOST_M];
    m3_begin_state(in, u.s, u.h, u.state);
    m3_read_before(in, &u.head, u.s, u.h, &u.rows);
    m3_begin_phases(in, u.s, u.h, phases);
    m3_read_rows(in, &u.head, u.s, u.h, 0, p->n, phases, u.phases, &u.rows);
    for (int64_t k = 0; k < in->P * in->N; k++)
      u.dend[k] = kr_has(dfinal) ? kr_scalar_load(dfinal->data, kr_at4(dfinal, u.s.row, u.h, k / in->N, k % in->N),
                                                  dfinal->dtype) : 0;
  }
}

/* ---- from dout to dy ---- */

static void load_dout(const unit *u, int64_t t, int64_t r, float *to) {
  const kr_mamba3_inputs *in = u->p->in;
  const kr_view *const v = &u->p->dout;
  const int64_t row = kr_has(&in->mimo_o) ? u->h : r * in->H + u->h;
  if (!kr_has(v)) memset(to, 0, (size_t)m3_row_P(in) * sizeof(float));
  else m3_load_row(to, v, kr_at4(v, u->s.b, u->s.begin + t, row, 0), v->stride[3], in->P, m3_row_P(in));
}

/* dy from dn, through the norm of y, which n was made of; dy may be n. */
static void leave_norm(const unit *u, const float *y, float scale, const float *dn, float *dy) {
  const kr_mamba3_inputs *in = u->p->in;
  const int64_t P = m3_row_P(in);
  kr_v mean = kr_v_zero();
  const kr_v by = kr_v_set1(scale);
  for (int64_t i = 0; i < P; i += KR_VL) {
    const kr_v unit_y = kr_v_mul(by, kr_v_load(y + i)), d = kr_v_load(dn + i);
    kr_v_store(u->sums.norm + i, kr_v_fma(d, unit_y, kr_v_load(u->sums.norm + i)));
    mean = kr_v_fma(kr_v_mul(d, kr_v_load(u->head.norm + i)), unit_y, mean);
  }
  const kr_v share = kr_v_set1(kr_v_sum(mean) / (float)in->P);
  for (int64_t i = 0; i < P; i += KR_VL) {
    const kr_v unit_y = kr_v_mul(by, kr_v_load(y + i)), d = kr_v_mul(kr_v_load(dn + i), kr_v_load(u->head.norm + i));
    kr_v_store(dy + i, kr_v_mul(by, kr_v_fnma(unit_y, share, d)));
  }
}

/* One rank of a token: y becomes dy; dz is added to. */
static void leave_rank(const unit *u, int64_t t, int64_t r, const float *z, float *dz) {
  const kr_mamba3_inputs *in = u->p->in;
  const int64_t P = m3_row_P(in), has_norm = kr_has(&in->norm_weight), has_z = kr_has(&in->z);
  float *const y = u->y + (t * in->R + r) * P, dout[M3_MOST_P], dn[M3_MOST_P];
  const float scale = has_norm ? 1.0f / sqrtf(m3_dot(y, y, P) / (float)in->P + in->eps) : 1;
  load_dout(u, t, r, dout);
  for (int64_t i = 0; i < P; i += KR_VL) {
    const int64_t at = r * P + i;
    const kr_v d = kr_v_load(dout + i), d_r = kr_has(&in->mimo_o) ? kr_v_mul(d, kr_v_load(u->head.mimo_o + at)) : d;
    kr_v n = kr_v_load(y + i), gate = kr_v_set1(1.0f), slope;
    if (has_norm) n = kr_v_mul(kr_v_mul(n, kr_v_set1(scale)), kr_v_load(u->head.norm + i));
    if (has_z) {
      const kr_v factor = kr_v_load(u->head.mimo_z + at), raw = kr_v_load(z + i);
      gate = kr_v_silu_and_slope(kr_v_mul(raw, factor), &slope);
      const kr_v dzr = kr_v_mul(d_r, kr_v_mul(n, slope));
      kr_v_store(dz + i, kr_v_fma(dzr, factor, kr_v_load(dz + i)));
      kr_v_store(u->sums.mimo_z + at, kr_v_fma(dzr, raw, kr_v_load(u->sums.mimo_z + at)));
    }
    kr_v_store(u->sums.mimo_o + at, kr_v_fma(kr_v_mul(d, n), gate, kr_v_load(u->sums.mimo_o + at)));
    kr_v_store(dn + i, kr_v_mul(d_r, gate));
  }
  if (has_norm) leave_norm(u, y, scale, dn, y);
  else memcpy(y, dn, (size_t)P * sizeof(float));
}

static int needs_y(const kr_mamba3_inputs *in) {
  return kr_has(&in->z) || kr_has(&in->norm_weight) || kr_has(&in->mimo_o);
}

static void leave_gates(void *user, int64_t begin, int64_t end, int worker) {
  const piece *p = user;
  const kr_mamba3_inputs *in = p->in;
  const int64_t P = m3_row_P(in), R = in->R;
  float z[M3_MOST_P], dz[M3_MOST_P];
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const unit u = unit_at(p, i);
    m3_clear_beyond(u.y, p->n * R, in->P, P);
    for (int64_t t = 0; t < p->n; t++) {
      if (!needs_y(in)) {
        for (int64_t r = 0; r < R; r++) load_dout(&u, t, r, u.y + (t * R + r) * P);
        continue;
      }
      m3_complete(in, &u.head, &u.rows, t, u.y + t * R * P);
      if (kr_has(&in->z))
        m3_load_row(z, &in->z, kr_at4(&in->z, u.s.b, u.s.begin + t, u.h, 0), in->z.stride[3], in->P, P);
      memset(dz, 0, sizeof dz);
      for (int64_t r = 0; r < R; r++) leave_rank(&u, t, r, z, dz);
      if (kr_has(&p->dz))
        kr_row_store(dz, p->dz.data, p->dz.dtype, kr_at4(&p->dz, u.s.b, u.s.begin + t, u.h, 0), p->dz.stride[3], in->P);
    }
  }
}

/* ---- backwards ---- */

/* The pair of row `to`'s output and row `from`'s input, by weight w: gradients of q, k and x, and (returned) of w. */
static float add_pair(const unit *u, int64_t to, int64_t from, float w, float D) {
  const int64_t N = m3_row_N(u->p->in), P = m3_row_P(u->p->in);
  const float qk = m3_dot(u->rows.q + to * N, u->rows.k + from * N, N),
              yx = m3_dot(u->y + to * P, u->rows.x + from * P, P);
  m3_add(u->dq + to * N, u->rows.k + from * N, w * yx, N);
  m3_add(u->dk + from * N, u->rows.q + to * N, w * yx, N);
  m3_add(u->dx + from * P, u->y + to * P, w * qk + D, P);
  return qk * yx;
}

/* A token with itself, and its ranks with the later ones of the token before. */
static void add_own_terms(const unit *u, int64_t t) {
  const int64_t R = u->p->in->R, P = m3_row_P(u->p->in);
  for (int64_t r = 0; r < R; r++) {
    for (int64_t s = 0; s < R; s++)
      u->own[t] += add_pair(u, t * R + r, t * R + s, u->rows.lambda[t] * u->rows.dt[t], r == s ? u->head.D : 0);
    for (int64_t s = r + 1; s < R; s++)
      u->dweight[t] += add_pair(u, t * R + r, (t - 1) * R + s, u->rows.weight[t * R], 0);
    u->sums.D[0] += m3_dot(u->y + (t * R + r) * P, u->rows.x + (t * R + r) * P, P);
  }
}

/* Two vectors of a row's pairs. */
static inline void load_pairs(const kr_mamba3_inputs *in, const float *row, int64_t m, kr_v v[2]) {
  const int n = in->M - m < KR_VL ? (int)(in->M - m) : KR_VL;
  const float *const j = row + in->N / 2 + m;
  if (!(in->flags & KRAIT_MAMBA3_HALVES)) kr_v_load_apart(v, row + 2 * m, 2);
  else if (n < KR_VL) v[0] = kr_v_loadn(row + m, n), v[1] = kr_v_loadn(j, n);
  else v[0] = kr_v_load(row + m), v[1] = kr_v_load(j);
}

static void add_turning(const kr_mamba3_inputs *in, const float *row, const float *drow, float *phi) {
  for (int64_t m = 0; m < in->M; m += KR_VL) {
    kr_v v[2], d[2];
    load_pairs(in, row, m, v), load_pairs(in, drow, m, d);
    kr_v_store(phi + m, kr_v_fma(v[0], d[1], kr_v_fnma(v[1], d[0], kr_v_load(phi + m))));
  }
  m3_clear_beyond(phi, 1, in->M, m3_row_M(in));
}

static void leave_mamba3_angles(const unit *u, int64_t t, const float *phi) {
  const kr_mamba3_inputs *in = u->p->in;
  const kr_view *const v = &in->angles, *const dv = &u->p->dangles;
  const int64_t M = m3_row_M(in);
  const kr_v pi = kr_v_set1(3.14159265f), dt = kr_v_set1(u->rows.dt[t]);
  float tanhs[M3_MOST_M];
  kr_v sum = kr_v_zero();
  m3_load_row(tanhs, v, kr_at4(v, u->s.b, u->s.begin + t, u->h, 0), v->stride[3], in->M, M);
  for (int64_t m = 0; m < M; m += KR_VL) {
    const kr_v w = kr_v_tanh(kr_v_load(tanhs + m)), f = kr_v_mul(pi, kr_v_load(phi + m));
    sum = kr_v_fma(f, w, sum);
    kr_v_store(u->phases + t * M + m, kr_v_mul(kr_v_mul(f, dt), kr_v_fnma(w, w, kr_v_set1(1.0f))));
  }
  u->slopes[t] = kr_v_sum(sum);
  if (kr_has(dv) && dv->stride[2])
    kr_row_store(u->phases + t * M, dv->data, dv->dtype, kr_at4(dv, u->s.b, u->s.begin + t, u->h, 0), dv->stride[3],
                 in->M);
}

static void write_dx(const unit *u, int64_t t) {
  const kr_mamba3_inputs *in = u->p->in;
  const int64_t P = m3_row_P(in);
  const kr_view *const dv = &u->p->dx, *const last = &u->p->a->dfinal_x;
  float x[M3_MOST_P], sum[M3_MOST_P] = {0};
  m3_load_row(x, &in->x, kr_at4(&in->x, u->s.b, u->s.begin + t, u->h, 0), in->x.stride[3], in->P, P);
  if (kr_has(last) && t + 1 == u->s.n)
    m3_load_row(sum, last, kr_at3(last, u->s.row, u->h, 0), last->stride[2], in->P, P);
  for (int64_t r = 0; r < in->R; r++)
    for (int64_t i = 0; i < P; i += KR_VL) {
      const kr_v d = kr_v_load(u->dx + (t * in->R + r) * P + i);
      float *const of_rank = u->sums.mimo_x + r * P + i;
      kr_v_store(of_rank, kr_v_fma(d, kr_v_load(x + i), kr_v_load(of_rank)));
      kr_v_store(sum + i, kr_v_fma(d, kr_v_load(u->head.mimo_x + r * P + i), kr_v_load(sum + i)));
    }
  if (kr_has(dv))
    kr_row_store(sum, dv->data, dv->dtype, kr_at4(dv, u->s.b, u->s.begin + t, u->h, 0), dv->stride[3], in->P);
}

/* Gradients of the last token's key and input by the final states, of which it is a part. */
static void add_final(const unit *u) {
  const kr_mamba3_inputs *in = u->p->in;
  const kr_view *const v = &u->p->a->dfinal_B;
  const int64_t N = m3_row_N(in), P = m3_row_P(in), t = u->s.n - 1, R = in->R;
  const float w = u->rows.lambda[t] * u->rows.dt[t];
  float row[512];
  for (int64_t r = t * R; r < (t + 1) * R; r++) {
    memset(u->dk + r * N, 0, (size_t)N * sizeof(float)), memset(u->dx + r * P, 0, (size_t)P * sizeof(float));
    for (int64_t c = 0; kr_has(&u->p->a->dfinal_states) && c < in->P; c++) {
      const float x = u->rows.x[r * P + c];
      float dot = 0;
      for (int64_t n = 0; n < in->N; n++) {
        const float d = u->dend[c * in->N + n];
        dot += d * u->rows.k[r * N + n];
        u->dk[r * N + n] += w * x * d;
      }
      u->dx[r * P + c] = w * dot, u->own[t] += x * dot;
    }
    if (!kr_has(v)) continue;
    m3_load_row(row, v, kr_at4(v, u->s.row, r - t * R, u->h, 0), v->stride[3], in->N, N);
    m3_add(u->dk + r * N, row, 1, N);
  }
}

static void write_token_scalar(const unit *u, const kr_view *v, int64_t t, float value) {
  if (kr_has(v)) kr_scalar_store(v->data, kr_at3(v, u->s.b, u->s.begin + t, u->h), v->dtype, value);
}

/* Gradients of dt, trap and the decay from those of lambda dt and of the weights. */
static void finish_mamba3_steps(const unit *u) {
  for (int64_t t = 0; t < u->s.n; t++) {
    const int is_empty = t == 0 && !kr_has(&u->p->in->initial_states); /* before the token */
    const float lambda = u->rows.lambda[t], rest = u->rows.rest[t],
                before = is_empty ? 0 : u->rows.alpha[t] * u->dweight[t],
                own = t + 1 < u->s.n ? u->own[t] + u->rows.alpha[t + 1] * u->dweight[t + 1] : u->own[t];
    write_token_scalar(u, &u->p->ddt, t, lambda * own + rest * before + u->slopes[t]);
    write_token_scalar(u, &u->p->dtrap, t, lambda * rest * u->rows.dt[t] * (own - before));
    write_token_scalar(u, &u->p->dlog_decay, t,
                       is_empty ? 0 : u->ddecay[t * u->p->in->R] + u->rows.weight[t * u->p->in->R] * u->dweight[t]);
  }
}

static void write_initial_rows(const unit *u) {
  const kr_mamba3_bwd_args *a = u->p->a;
  const kr_mamba3_inputs *in = u->p->in;
  const int64_t row = u->s.row, h = u->h, N = m3_row_N(in), P = m3_row_P(in), R = in->R;
  const int passes = u->s.n == 0; /* the final states are the initial ones */
  float dx[M3_MOST_P] = {0};
  for (int64_t i = 0; kr_has(&a->dinitial_B) && i < R * in->N; i++) {
    const int64_t r = i / in->N, n = i % in->N;
    const float d = !passes ? u->dk[(r - R) * N + n]
                    : kr_has(&a->dfinal_B)
                        ? kr_scalar_load(a->dfinal_B.data, kr_at4(&a->dfinal_B, row, r, h, n), a->dfinal_B.dtype)
                        : 0;
    kr_scalar_store(a->dinitial_B.data, kr_at4(&a->dinitial_B, row, r, h, n), a->dinitial_B.dtype, d);
  }
  for (int64_t i = 0; !passes && i < R * in->P; i++) {
    const int64_t r = i / in->P, c = i % in->P;
    const float d = u->dx[(r - R) * P + c];
    dx[c] += u->head.mimo_x[r * P + c] * d;
    u->sums.mimo_x[r * P + c] += m3_token(&in->initial_x, row, h, c) * d;
  }
  for (int64_t c = 0; kr_has(&a->dinitial_x) && c < in->P; c++) {
    if (passes && kr_has(&a->dfinal_x))
      dx[c] = kr_scalar_load(a->dfinal_x.data, kr_at3(&a->dfinal_x, row, h, c), a->dfinal_x.dtype);
    kr_scalar_store(a->dinitial_x.data, kr_at3(&a->dinitial_x, row, h, c), a->dinitial_x.dtype, dx[c]);
  }
}

/* Gradients of the states before the sequence. */
static void write_mamba3_initial(const unit *u, const float *phi) {
  const kr_mamba3_bwd_args *a = u->p->a;
  const kr_mamba3_inputs *in = u->p->in;
  const int64_t row = u->s.row, h = u->h;
  const float *const dS = u->s.n ? u->dstate : u->dend;
  if (!kr_has(&in->initial_states)) return;
  for (int64_t m = 0; kr_has(&a->dinitial_angles) && m < in->M; m++)
    kr_scalar_store(a->dinitial_angles.data, kr_at3(&a->dinitial_angles, row, h, m), a->dinitial_angles.dtype, phi[m]);
  for (int64_t i = 0; kr_has(&a->dinitial_states) && i < in->P * in->N; i++)
    kr_scalar_store(a->dinitial_states.data, kr_at4(&a->dinitial_states, row, h, i / in->N, i % in->N),
                    a->dinitial_states.dtype, dS[i]);
  write_initial_rows(u);
}

/* Tokens from the last one on. */
static void go_back(const unit *u) {
  const kr_mamba3_inputs *in = u->p->in;
  const int64_t N = m3_row_N(in), M = m3_row_M(in), R = in->R;
  float phi[M3_MOST_M] = {0}, cosines[M3_MOST_M], sines[M3_MOST_M];
  for (int64_t m = 0; kr_has(&u->p->a->dfinal_angles) && m < in->M; m++)
    phi[m] = m3_token(&u->p->a->dfinal_angles, u->s.row, u->h, m);
  m3_clear_beyond(u->dq, u->s.n * R, in->N, N), m3_clear_beyond(u->dk - R * N, u->s.n * R, in->N, N);
  m3_clear_beyond(u->dx - R * m3_row_P(in), u->s.n * R, in->P, m3_row_P(in));
  for (int64_t t = 0; t < u->s.n; t++) { /* a token's ranks share one weight: their sum, to [t] */
    float sum = 0;
    for (int64_t r = 0; r < R; r++) sum += u->dweight[t * R + r];
    u->dweight[t] = sum, u->own[t] = 0;
  }
  if (u->s.n) add_final(u);
  for (int64_t t = u->s.n - 1; t >= 0; t--) {
    add_own_terms(u, t);
    m3_cos_sin(u->phases + t * M, cosines, sines, M);
    for (int64_t r = 0; r < R; r++) {
      float *const dq = u->dq + (t * R + r) * N, *const dk = u->dk + (t * R + r) * N;
      add_turning(in, u->rows.q + (t * R + r) * N, dq, phi), add_turning(in, u->rows.k + (t * R + r) * N, dk, phi);
      m3_rotate(in, dq, cosines, sines, -1), m3_rotate(in, dk, cosines, sines, -1);
      m3_add(u->sums.C_bias + r * N, dq, 1, N), m3_add(u->sums.B_bias + r * N, dk, 1, N);
    }
    leave_mamba3_angles(u, t, phi);
    write_dx(u, t);
  }
  write_mamba3_initial(u, phi);
  finish_mamba3_steps(u);
}

static void go_back_units(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const unit u = unit_at(user, i);
    go_back(&u);
  }
}

/* ---- sums over heads, and over sequences ---- */

static void add_units(void *user, int64_t begin, int64_t end, int worker) {
  const piece *p = user;
  const kr_mamba3_inputs *in = p->in;
  const int64_t N = m3_row_N(in), M = m3_row_M(in), R = in->R;
  (void)worker;
  for (int64_t i = 0; i < p->n_units; i++) {
    const kr_mamba3_sequence s = m3_sequence_of(&p->units, p->first_unit + i);
    const int64_t g = (p->first_unit + i) % in->H / (in->H / in->G), keys = (i + 1) * R;
    for (int64_t t = begin; t < end; t++) {
      const int64_t token = s.b * in->L + s.begin + t, from = i * in->L + t;
      for (int64_t r = 0; r < R; r++) {
        m3_add(p->sum_B + ((token * R + r) * in->G + g) * N, p->dk + (keys + from * R + r) * N, 1, N);
        m3_add(p->sum_C + ((token * R + r) * in->G + g) * N, p->dq + (from * R + r) * N, 1, N);
      }
      m3_add(p->sum_angles + token * M, p->phases + from * M, 1, M);
    }
  }
}

static void write_sums(void *user, int64_t begin, int64_t end, int worker) {
  const piece *p = user;
  const kr_mamba3_inputs *in = p->in;
  const int64_t rows = in->R * in->G, N = m3_row_N(in);
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / in->L, t = i % in->L;
    const kr_view *const views[] = {&p->dB, &p->dC};
    for (int k = 0; k < 2; k++)
      for (int64_t row = 0; kr_has(views[k]) && row < rows; row++)
        kr_row_store((k ? p->sum_C : p->sum_B) + (i * rows + row) * N, views[k]->data, views[k]->dtype,
                     kr_at4(views[k], b, t, row, 0), views[k]->stride[3], in->N);
    if (kr_has(&p->dangles) && !p->dangles.stride[2])
      kr_row_store(p->sum_angles + i * m3_row_M(in), p->dangles.data, p->dangles.dtype, kr_at4(&p->dangles, b, t, 0, 0),
                   p->dangles.stride[3], in->M);
  }
}

/* The sum over sequences of what is at `first` in the first one's sums. */
static void write_parameter(const piece *p, const kr_view *v, int64_t place, const float *first) {
  const int64_t step = p->in->H * parameters_floats(p->in);
  double sum = 0;
  if (!kr_has(v)) return;
  for (int64_t i = 0; i < kr_mamba3_n_sequences(p->in); i++) sum += (double)first[i * step];
  ((float *)v->data)[place] = (float)sum;
}

static void write_parameters(const piece *p) {
  const kr_mamba3_bwd_args *a = p->a;
  const int64_t N = m3_row_N(p->in), P = m3_row_P(p->in);
  for (int64_t h = 0; h < a->H; h++) {
    const unit_sums s = unit_sums_of(p, 0, h);
    const kr_view *const of_N[] = {&a->dC_bias, &a->dB_bias}, *const of_P[] = {&a->dmimo_x, &a->dmimo_z, &a->dmimo_o};
    const float *const from_N[] = {s.C_bias, s.B_bias}, *const from_P[] = {s.mimo_x, s.mimo_z, s.mimo_o};
    for (int k = 0; k < 2; k++)
      for (int64_t i = 0; i < a->R * a->N; i++)
        write_parameter(p, of_N[k], kr_at3(of_N[k], h, i / a->N, i % a->N), from_N[k] + i / a->N * N + i % a->N);
    for (int k = 0; k < 3; k++)
      for (int64_t i = 0; i < a->R * a->P; i++)
        write_parameter(p, of_P[k], kr_at3(of_P[k], h, i / a->P, i % a->P), from_P[k] + i / a->P * P + i % a->P);
    for (int64_t i = 0; i < a->P; i++) write_parameter(p, &a->dnorm_weight, kr_at2(&a->dnorm_weight, h, i), s.norm + i);
    write_parameter(p, &a->dDvec, kr_at1(&a->dDvec, h), s.D);
  }
}

static int32_t run_bwd_piece(const krait_ctx *ctx, piece *p) {
  p->n = m3_sequence_of(&p->units, p->first_unit).n;
  const kr_ssd_args forward = ssd_of_bwd_piece(p);
  const kr_ssd_bwd_args back = gradient_of_piece(p);
  kr_parallel(ctx, p->n_units, 1, read_bwd_units, p);
  if (p->n && needs_y(p->in)) KR_TRY(KR_FN(kr_ssd)(ctx, &forward));
  kr_parallel(ctx, p->n_units, 1, leave_gates, p);
  if (p->n) KR_TRY(KR_FN(kr_ssd_bwd)(ctx, &back));
  kr_parallel(ctx, p->n_units, 1, go_back_units, p);
  kr_parallel(ctx, p->n, 16, add_units, p);
  return KRAIT_OK;
}

uint64_t KR_FN(kr_mamba3_bwd_scratch)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_bwd_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  piece p = {.a = a, .in = &in};
  return (uint64_t)place_bwd_piece(ctx, &p, m3_nowhere()) * sizeof(float);
}

int32_t KR_FN(kr_mamba3_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_bwd_args *a = args;
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  piece p = {.a = a, .in = &in};
  if (kr_has(&a->cu_seqlens)) KR_TRY(kr_need_offsets("mamba3_bwd", "cu_seqlens", &a->cu_seqlens, a->S, a->L));
  p.dout = KR_MAMBA3_TIME(a, dout), p.dx = KR_MAMBA3_TIME(a, dx), p.dlog_decay = KR_MAMBA3_TIME(a, dlog_decay);
  p.ddt = KR_MAMBA3_TIME(a, ddt), p.dtrap = KR_MAMBA3_TIME(a, dtrap), p.dB = KR_MAMBA3_TIME(a, dB);
  p.dC = KR_MAMBA3_TIME(a, dC), p.dangles = KR_MAMBA3_TIME(a, dangles), p.dz = KR_MAMBA3_TIME(a, dz);
  place_bwd_piece(ctx, &p, a->call.scratch);
  memset(p.sum_B, 0, (size_t)(p.ssd - p.sum_B) * sizeof(float));
  for (int64_t i = 0; i < m3_n_units(&in); i++) {
    p.units = m3_units_of(&in, i);
    for (p.first_unit = 0; p.first_unit < p.units.n; p.first_unit += p.most) {
      p.n_units = p.units.n - p.first_unit < p.most ? p.units.n - p.first_unit : p.most;
      KR_TRY(run_bwd_piece(ctx, &p));
    }
  }
  kr_parallel(ctx, a->B * a->L, 16, write_sums, &p);
  write_parameters(&p);
  return KRAIT_OK;
}
