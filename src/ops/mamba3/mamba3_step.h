/* mamba3_step.h: a step as a scan over sequences of one token. */
#ifndef KR_MAMBA3_STEP_H
#define KR_MAMBA3_STEP_H

#include "op_args.h"
#include "view.h"

/* Of a tensor (B,..): entry b, as a batch and a length of one. */
static inline kr_view kr_mamba3_entry(const kr_view *v, int64_t b) {
  kr_view one = {.data = v->data, .dtype = v->dtype};
  if (!v->data) return one;
  one.data = (char *)v->data + b * v->stride[0] * (int64_t)krait_dtype_bytes(v->dtype);
  one.stride[2] = v->stride[1], one.stride[3] = v->stride[2];
  return one;
}

/* Of states: row `row`, as the states of a batch of one. */
static inline kr_view kr_mamba3_row(const kr_view *v, int64_t row) {
  kr_view one = *v;
  one.data = (char *)v->data + row * v->stride[0] * (int64_t)krait_dtype_bytes(v->dtype);
  return one;
}

/* Entry b, of state row `row`, as a scan of one token. */
static inline kr_mamba3_args kr_mamba3_of_step(const kr_mamba3_step_args *a, int64_t b, int64_t row) {
  kr_mamba3_args m = {
      .call = a->call, .B = 1, .L = 1, .H = a->H, .P = a->P, .N = a->N, .G = a->G, .R = a->R, .M = a->M};
  m.eps = a->eps;
  m.x = kr_mamba3_entry(&a->x, b), m.log_decay = kr_mamba3_entry(&a->log_decay, b), m.dt = kr_mamba3_entry(&a->dt, b),
  m.trap = kr_mamba3_entry(&a->trap, b);
  m.Bmat = kr_mamba3_entry(&a->Bmat, b), m.Cmat = kr_mamba3_entry(&a->Cmat, b),
  m.angles = kr_mamba3_entry(&a->angles, b), m.z = kr_mamba3_entry(&a->z, b);
  m.B_bias = a->B_bias, m.C_bias = a->C_bias, m.Dvec = a->Dvec, m.norm_weight = a->norm_weight;
  m.mimo_x = a->mimo_x, m.mimo_z = a->mimo_z, m.mimo_o = a->mimo_o;
  m.initial_angles = m.final_angles = kr_mamba3_row(&a->angle_state, row);
  m.initial_states = m.final_states = kr_mamba3_row(&a->state, row);
  m.initial_B = m.final_B = kr_mamba3_row(&a->B_state, row), m.initial_x = m.final_x = kr_mamba3_row(&a->x_state, row);
  m.out = kr_mamba3_entry(&a->out, b);
  return m;
}

#endif
