/* mamba3_raw_step_ref.c: in double, B' = B / rms(B) B_norm and C' alike, for each vector; dt and log_decay as of
 * mamba3_decay (mamba3_decay_ref.c); then mamba3_step's token of one rank, whose angles all heads share. */
#include <math.h>

#include "lm_ops.h"
#include "mamba3/mamba3_impls.h"
#include "mamba3_raw_step/mamba3_raw_step.h"
#include "status.h"
#include "view.h"

/* What the step reads, made of the columns. */
typedef struct made {
  double *B, *C, *dt, *log_decay; /* (B,G,N) twice, (B,H) twice */
} made;

static int64_t vectors_of(const kr_mamba3_raw_step_args *a) { return a->B * a->G * a->N; }
static uint64_t made_bytes(const kr_mamba3_raw_step_args *a) {
  return kr_scratch_round((uint64_t)(2 * vectors_of(a) + 2 * a->B * a->H) * sizeof(double));
}

static kr_view doubles_of(double *data, int64_t row, int64_t vector) {
  return (kr_view){.data = data, .dtype = KRAIT_F64, .stride = {row, vector, 1}};
}

static kr_mamba3_step_args step_of(const kr_mamba3_raw_step_args *a, const made *m) {
  kr_mamba3_step_args s = {.call = a->call, .B = a->B, .H = a->H, .P = a->P, .N = a->N, .G = a->G, .R = 1, .M = a->M};
  s.call.size = sizeof s, s.call.flags = 0, s.n_states = a->n_states, s.eps = a->eps;
  s.call.scratch = (char *)a->call.scratch + made_bytes(a);
  s.angle_state = a->angle_state, s.state = a->state, s.x_state = a->x_state;
  s.B_state = a->B_state, s.B_bias = a->B_bias, s.C_bias = a->C_bias, s.angles = a->angles;
  kr_view *const ranked[] = {&s.B_state, &s.B_bias, &s.C_bias, &s.angles};
  for (int i = 0; i < 4; i++) { /* of one rank, which is the second dimension; of all heads */
    const int is_bias = i == 1 || i == 2;
    ranked[i]->stride[3] = ranked[i]->stride[2], ranked[i]->stride[2] = ranked[i]->stride[1];
    ranked[i]->stride[1] = 0;
    if (is_bias) ranked[i]->stride[3] = 0;
  }
  s.x = a->x, s.z = a->z, s.trap = a->trap, s.Dvec = a->Dvec, s.out = a->out;
  s.state_batch_indices = a->state_batch_indices;
  s.Bmat = doubles_of(m->B, a->G * a->N, a->N), s.Cmat = doubles_of(m->C, a->G * a->N, a->N);
  s.dt = doubles_of(m->dt, a->H, 1), s.log_decay = doubles_of(m->log_decay, a->H, 1);
  return s;
}

uint64_t kr_mamba3_raw_step_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_raw_step_args *a = args;
  const kr_mamba3_step_args s = step_of(a, &(made){0});
  return made_bytes(a) + kr_mamba3_step_ref_scratch(ctx, &s);
}

static void norm_vectors(const kr_mamba3_raw_step_args *a, const kr_view *from, const kr_view *weight, double *to) {
  for (int64_t i = 0; i < a->B * a->G; i++) {
    const int64_t at = kr_at3(from, i / a->G, i % a->G, 0);
    double squares = 0;
    for (int64_t n = 0; n < a->N; n++) {
      const double v = kr_get(from, at + n * from->stride[2]);
      squares += v * v;
    }
    const double scale = 1 / sqrt(squares / (double)a->N + (double)a->eps);
    for (int64_t n = 0; n < a->N; n++)
      to[i * a->N + n] = kr_get(from, at + n * from->stride[2]) * scale * kr_get(weight, kr_at1(weight, n));
  }
}

int32_t kr_mamba3_raw_step_ref(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_raw_step_args *a = args;
  made m = {.B = a->call.scratch};
  m.C = m.B + vectors_of(a), m.dt = m.C + vectors_of(a), m.log_decay = m.dt + a->B * a->H;
  norm_vectors(a, &a->Bmat, &a->B_norm, m.B), norm_vectors(a, &a->Cmat, &a->C_norm, m.C);
  const kr_mamba3_decay_args decay = {.call.flags = a->call.flags,
                                      .R = a->B,
                                      .H = a->H,
                                      .A_floor = a->A_floor,
                                      .dt_raw = a->dt_raw,
                                      .A_raw = a->A_raw,
                                      .dt_bias = a->dt_bias,
                                      .dt = doubles_of(m.dt, a->H, 1),
                                      .log_decay = doubles_of(m.log_decay, a->H, 1)};
  KR_TRY(kr_mamba3_decay_ref(ctx, &decay));
  const kr_mamba3_step_args s = step_of(a, &m);
  return kr_mamba3_step_ref(ctx, &s);
}
