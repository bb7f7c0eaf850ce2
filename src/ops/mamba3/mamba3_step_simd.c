/* mamba3_step_simd.c: one token, a head at a time: a row of states takes its decay, the last token's and this token's
 * input of every rank, and gives every rank's output, in one pass over its memory. */
#include "contract.h"
#include "mamba3_impls.h"
#include "mamba3_lanes.h"
#include "mamba3_step.h"
#include "op_list.h"

/* A worker's memory. */
typedef struct step {
  kr_mamba3_inputs in;
  m3_head head;
  m3_rows rows;
  float *y, *row;         /* [R][row_P]; [row_N] of states */
  float *heads;
} step;

static int64_t step_floats(const kr_mamba3_inputs *in) {
  return m3_whole(
      3 * in->R * m3_row_N(in) + 3 * in->R * m3_row_P(in) + m3_row_N(in) + m3_head_floats(in) + 2 * in->R + 4, 16);
}

static step begin_step(const kr_mamba3_step_args *a, int worker) {
  const kr_mamba3_args m = kr_mamba3_of_step(a, 0, 0);
  step c = {.in = KR_MAMBA3_INPUTS(&m)};
  const int64_t RN = a->R * m3_row_N(&c.in), RP = a->R * m3_row_P(&c.in);
  float *at = (float *)a->call.scratch + worker * step_floats(&c.in);
  c.rows.q = at, c.rows.k = at + 2 * RN, at += 3 * RN; /* behind the keys and inputs of the token before */
  c.rows.x = at + RP, c.y = at + 2 * RP, at += 3 * RP;
  c.row = at, at += m3_row_N(&c.in);
  c.heads = at, at += m3_head_floats(&c.in);
  c.rows.weight = at, c.rows.decay = at + a->R, at += 2 * a->R;
  c.rows.dt = at, c.rows.lambda = at + 1, c.rows.rest = at + 2, c.rows.alpha = at + 3;
  return c;
}

/* One channel's row of states, and y of every rank but its D x. */
static void advance_row(step *c, float *row, int64_t p, float alpha, float beta, float gamma) {
  const kr_mamba3_inputs *in = &c->in;
  const int64_t N = m3_row_N(in), P = m3_row_P(in), R = in->R;
  const kr_v decay = kr_v_set1(alpha);
  for (int64_t n = 0; n < N; n += KR_VL) {
    kr_v v = kr_v_mul(decay, kr_v_load(row + n));
    for (int64_t r = 0; r < R; r++) {
      v = kr_v_fma(kr_v_set1(beta * c->rows.x[(r - R) * P + p]), kr_v_load(c->rows.k + (r - R) * N + n), v);
      v = kr_v_fma(kr_v_set1(gamma * c->rows.x[r * P + p]), kr_v_load(c->rows.k + r * N + n), v);
    }
    kr_v_store(row + n, v);
  }
  for (int64_t r = 0; r < R; r++)
    c->y[r * P + p] = m3_dot(row, c->rows.q + r * N, N) + c->head.D * c->rows.x[r * P + p];
}

static void store_step_states(step *c, int64_t h, const double *phases) {
  const kr_mamba3_inputs *in = &c->in;
  const kr_view *const angles = &in->initial_angles, *const k = &in->initial_B, *const x = &in->initial_x;
  for (int64_t m = 0; m < in->M; m++)
    ((float *)angles->data)[kr_at3(angles, 0, h, m)] =
        (float)((phases[m] < 0 ? phases[m] + 1 : phases[m]) * 6.283185307179586);
  for (int64_t r = 0; r < in->R; r++)
    kr_row_store(c->rows.k + r * m3_row_N(in), k->data, k->dtype, kr_at4(k, 0, r, h, 0), k->stride[3], in->N);
  for (int64_t p = 0; p < in->P; p++)
    kr_scalar_store(x->data, kr_at3(x, 0, h, p), x->dtype,
                    kr_scalar_load(in->x.data, kr_at4(&in->x, 0, 0, h, p), in->x.dtype));
}

static void step_head(step *c, const kr_view *out, int64_t h) {
  const kr_mamba3_inputs *in = &c->in;
  const kr_mamba3_sequence s = {0, 0, 0, 1};
  const kr_view *const states = &in->initial_states;
  double phases[M3_MOST_M];
  c->head = m3_load_head(in, h, c->heads);
  m3_begin_phases(in, s, h, phases);
  m3_read_rows(in, &c->head, s, h, 0, 1, phases, NULL, &c->rows);
  m3_read_before(in, &c->head, s, h, &c->rows);
  const float alpha = c->rows.alpha[0], d = c->rows.dt[0], lambda = c->rows.lambda[0];
  memset(c->y, 0, (size_t)(in->R * m3_row_P(in)) * sizeof(float));
  for (int64_t p = 0; p < in->P; p++) {
    const int64_t at = kr_at4(states, 0, h, p, 0);
    m3_load_row(c->row, states, at, states->stride[3], in->N, m3_row_N(in));
    advance_row(c, c->row, p, alpha, c->rows.rest[0] * d * alpha, lambda * d);
    kr_row_store(c->row, states->data, states->dtype, at, states->stride[3], in->N);
  }
  store_step_states(c, h, phases);
  m3_write_token(in, &c->head, out, s, h, 0, c->y);
}

static void skip_head(const kr_mamba3_step_args *a, int64_t b, int64_t h) {
  for (int64_t r = 0; r < (kr_has(&a->mimo_o) ? 1 : a->R); r++)
    for (int64_t p = 0; p < a->P; p++)
      kr_scalar_store(a->out.data, kr_at3(&a->out, b, r * a->H + h, p), a->out.dtype, 0);
}

static void step_heads(void *user, int64_t begin, int64_t end, int worker) {
  const kr_mamba3_step_args *a = user;
  const kr_view *const rows = &a->state_batch_indices;
  step c = begin_step(a, worker);
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / a->H, h = i % a->H, row = kr_has(rows) ? kr_get_i32(rows, kr_at1(rows, b)) : b;
    if (row < 0) {
      skip_head(a, b, h);
      continue;
    }
    const kr_mamba3_args m = kr_mamba3_of_step(a, b, row);
    c.in = (kr_mamba3_inputs)KR_MAMBA3_INPUTS(&m);
    step_head(&c, &m.out, h);
  }
}

uint64_t KR_FN(kr_mamba3_step_scratch)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_args m = kr_mamba3_of_step(args, 0, 0);
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(&m);
  return (uint64_t)(krait_ctx_n_threads(ctx) * step_floats(&in)) * sizeof(float);
}

int32_t KR_FN(kr_mamba3_step)(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_step_args *a = args;
  KR_TRY(kr_need_rows("mamba3_step", "state_batch_indices", &a->state_batch_indices, a->B, a->n_states));
  kr_parallel_long(ctx, a->B * a->H, 1 + 1024 / (a->P * a->N), step_heads, (void *)args);
  return KRAIT_OK;
}
