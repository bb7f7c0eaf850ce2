/* mamba3_decode_ref.c: one token through Mamba-3's layers, written to be read; the equation is in lm_op_args.h. In
 * double between mamba3_raw_step's states, which are rounded once, when stored. */
#include <math.h>

#include "contract.h"
#include "lm_ops.h"
#include "mamba3_decode/mamba3_decode.h"
#include "mamba3_raw_step/mamba3_raw_step.h"
#include "status.h"
#include "view.h"

/* Of a token: (D), (D), rows of in_proj, (HP); what the step itself needs. */
typedef struct token3 {
  double *h, *n, *columns, *y;
  void *scratch;
} token3;

static double product3_of(const kr_view *w, int64_t layer, int64_t row, const double *v, int64_t K) {
  double sum = 0;
  for (int64_t k = 0; k < K; k++) sum += kr_get(w, kr_at3(w, layer, row, k)) * v[k];
  return sum;
}

/* From element `at` on. */
static kr_view from_element(const kr_view *v, int64_t at, int64_t s0, int64_t s1, int64_t s2, int64_t s3) {
  return (kr_view){.data = (char *)v->data + at * (int64_t)krait_dtype_bytes(v->dtype),
                   .dtype = v->dtype,
                   .stride = {s0, s1, s2, s3}};
}
static kr_view parameter_of(const kr_view *v, int64_t layer) {
  return from_element(v, layer * v->stride[0], v->stride[1], v->stride[2], 0, 0);
}
static kr_view state_of_row(const kr_view *v, int64_t layer, int64_t row) {
  return from_element(v, layer * v->stride[0] + row * v->stride[1], v->stride[1], v->stride[2], v->stride[3], 0);
}
static kr_view columns_of_token(const token3 *t, int64_t at, int64_t head) {
  return (kr_view){.data = t->columns + at, .dtype = KRAIT_F64, .stride = {0, head, 1}};
}

/* The step of a layer for the states of one row. */
static kr_mamba3_raw_step_args step_of_layer(const kr_mamba3_decode_args *a, const token3 *t, int64_t layer,
                                             int64_t row) {
  const int64_t E = a->H * a->P, dt = 2 * E + 2 * a->N;
  const kr_view *s = &a->ssm_state;
  kr_mamba3_raw_step_args of = {.call = a->call, .B = 1, .H = a->H, .P = a->P, .N = a->N, .G = 1, .M = a->M};
  of.call.size = sizeof of, of.call.scratch = t->scratch, of.n_states = 1, of.eps = 1e-5f, of.A_floor = a->A_floor;
  of.angle_state = state_of_row(&a->angle_state, layer, row);
  of.state = from_element(s, layer * s->stride[0] + row * s->stride[1], s->stride[1], a->P * s->stride[2], s->stride[2],
                          s->stride[3]);
  of.B_state = state_of_row(&a->B_state, layer, row), of.x_state = state_of_row(&a->x_state, layer, row);
  of.z = columns_of_token(t, 0, a->P), of.x = columns_of_token(t, E, a->P);
  of.Bmat = columns_of_token(t, 2 * E, a->N), of.Cmat = columns_of_token(t, 2 * E + a->N, a->N);
  of.dt_raw = columns_of_token(t, dt, 1), of.A_raw = columns_of_token(t, dt + a->H, 1);
  of.trap = columns_of_token(t, dt + 2 * a->H, 1), of.angles = columns_of_token(t, dt + 3 * a->H, 1);
  of.B_norm = parameter_of(&a->BC_norm, layer), of.C_norm = of.B_norm;
  of.C_norm.data = (char *)of.B_norm.data + a->N * of.B_norm.stride[0] * (int64_t)krait_dtype_bytes(of.B_norm.dtype);
  of.B_bias = parameter_of(&a->B_bias, layer), of.C_bias = parameter_of(&a->C_bias, layer);
  of.dt_bias = parameter_of(&a->dt_bias, layer), of.Dvec = parameter_of(&a->Dvec, layer);
  of.out = (kr_view){.data = t->y, .dtype = KRAIT_F64, .stride = {0, a->P, 1}};
  return of;
}

static int32_t run_mamba3_layer(const krait_ctx *ctx, const kr_mamba3_decode_args *a, const token3 *t, int64_t layer,
                                int64_t row) {
  double square = 0;
  for (int64_t d = 0; d < a->D; d++) square += t->h[d] * t->h[d];
  const double scale = 1 / sqrt(square / (double)a->D + (double)a->eps);
  for (int64_t d = 0; d < a->D; d++)
    t->n[d] = t->h[d] * scale * kr_get(&a->norm_weight, kr_at2(&a->norm_weight, layer, d));
  for (int64_t r = 0; r < kr_mamba3_decode_rows(a); r++) t->columns[r] = product3_of(&a->in_proj, layer, r, t->n, a->D);
  const kr_mamba3_raw_step_args of = step_of_layer(a, t, layer, row);
  KR_TRY(kr_mamba3_raw_step_ref(ctx, &of));
  for (int64_t d = 0; d < a->D; d++) t->h[d] += product3_of(&a->out_proj, layer, d, t->y, a->H * a->P);
  return KRAIT_OK;
}

static uint64_t doubles_of_token(const kr_mamba3_decode_args *a) {
  return kr_scratch_round((uint64_t)(2 * a->D + kr_mamba3_decode_rows(a) + a->H * a->P) * sizeof(double));
}

uint64_t kr_mamba3_decode_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decode_args *a = args;
  const kr_mamba3_raw_step_args of = step_of_layer(a, &(token3){0}, 0, 0);
  return doubles_of_token(a) + kr_mamba3_raw_step_ref_scratch(ctx, &of);
}

int32_t kr_mamba3_decode_ref(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decode_args *a = args;
  const kr_view *rows = &a->state_batch_indices;
  token3 t = {.h = a->call.scratch, .scratch = (char *)a->call.scratch + doubles_of_token(a)};
  t.n = t.h + a->D, t.columns = t.n + a->D, t.y = t.columns + kr_mamba3_decode_rows(a);
  KR_TRY(kr_need_rows("mamba3_decode", "state_batch_indices", rows, a->B, a->n_states));
  for (int64_t b = 0; b < a->B; b++) {
    const int64_t row = kr_has(rows) ? kr_get_i32(rows, kr_at1(rows, b)) : b;
    for (int64_t d = 0; d < a->D; d++) t.h[d] = kr_get(&a->x, kr_at2(&a->x, b, d));
    for (int64_t layer = 0; layer < a->Y && row >= 0; layer++) KR_TRY(run_mamba3_layer(ctx, a, &t, layer, row));
    for (int64_t d = 0; d < a->D; d++) kr_put(&a->out, kr_at2(&a->out, b, d), t.h[d]);
  }
  return KRAIT_OK;
}
