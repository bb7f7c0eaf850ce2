/* gradients.c: the reference gradients against finite differences of the reference forward calls, in float64, to 1e-6. Fourth
 * order central differences; every option that changes the gradient appears in some case. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "op_list.h"
#include "view.h"

enum { MAX_TENSORS = 24, MAX_SAMPLES = 24 };
static const double step = 0x1p-10; /* exact on the grid that complex parameters, stored in float32, lie on */

typedef struct tensor {
  const char *name;
  krait_view *view, *grad; /* grad NULL: an output whose weights are in view's twin */
  int64_t n;               /* real numbers */
} tensor;

typedef struct problem {
  tensor inputs[MAX_TENSORS];
  int n_inputs;
  krait_view *outputs[4], *weights[4];
  int64_t n_output[4];
  int n_outputs;
  int32_t (*forward)(const krait_ctx *, const void *), (*backward)(const krait_ctx *, const void *);
  void *forward_args, *backward_args;
  void *blocks[64];
  int n_blocks;
  uint32_t random;
} problem;

static double draw(problem *p) {
  p->random = p->random * 1664525u + 1013904223u;
  return round(((double)(p->random >> 8) * 0x1p-24 - 0.5) * 1024) / 512; /* -1..1 on a grid of 2^-9 */
}

static void *take(problem *p, size_t bytes) {
  assert_true(p->n_blocks < 64);
  return p->blocks[p->n_blocks++] = calloc(1, bytes ? bytes : 1);
}

/* A contiguous view of random numbers: shift + scale * (-1..1). */
static int64_t make(problem *p, krait_view *v, int32_t dtype, double shift, double scale, int n_dims, const int64_t *shape) {
  int64_t n = dtype == KRAIT_C64 ? 2 : 1, stride = 1;
  *v = (krait_view){.dtype = dtype};
  for (int i = n_dims - 1; i >= 0; i--) {
    v->stride[i] = stride;
    stride *= shape[i];
    n *= shape[i];
  }
  v->data = take(p, (size_t)n * 8);
  for (int64_t i = 0; i < n; i++) {
    double value = shift + scale * draw(p);
    if (dtype == KRAIT_F64) ((double *)v->data)[i] = value;
    else ((float *)v->data)[i] = (float)(round(value * 1024) / 1024);
  }
  return n;
}
#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__}

static void input(problem *p, const char *name, krait_view *view, krait_view *grad, int32_t dtype, double shift, double scale, int n_dims, const int64_t *shape) {
  int64_t n = make(p, view, dtype, shift, scale, n_dims, shape);
  make(p, grad, dtype, 0, 0, n_dims, shape);
  p->inputs[p->n_inputs++] = (tensor){name, view, grad, n};
}

static void output(problem *p, krait_view *view, krait_view *weight, int32_t dtype, int n_dims, const int64_t *shape) {
  make(p, view, dtype, 0, 0, n_dims, shape);
  p->n_output[p->n_outputs] = make(p, weight, dtype, 0, 1, n_dims, shape);
  p->outputs[p->n_outputs] = view;
  p->weights[p->n_outputs++] = weight;
}

static double part(const krait_view *v, int64_t i) { return v->dtype == KRAIT_F64 ? ((double *)v->data)[i] : ((float *)v->data)[i]; }
static void move(const krait_view *v, int64_t i, double by) {
  if (v->dtype == KRAIT_F64) ((double *)v->data)[i] += by;
  else ((float *)v->data)[i] += (float)by;
}

static double loss(problem *p) {
  double sum = 0;
  assert_int_equal(p->forward(NULL, p->forward_args), KRAIT_OK);
  for (int k = 0; k < p->n_outputs; k++)
    for (int64_t i = 0; i < p->n_output[k]; i++) sum += part(p->outputs[k], i) * part(p->weights[k], i);
  return sum;
}

static double slope(problem *p, const krait_view *v, int64_t i) {
  double at[4];
  const double moves[] = {step, -2 * step, 3 * step, -4 * step}; /* to h, -h, 2h, -2h */
  for (int k = 0; k < 4; k++) {
    move(v, i, moves[k]);
    at[k] = loss(p);
  }
  move(v, i, 2 * step);
  return (8 * (at[0] - at[1]) - (at[2] - at[3])) / (12 * step);
}

static void compare_gradients(problem *p, const char *label) {
  assert_int_equal(p->backward(NULL, p->backward_args), KRAIT_OK);
  for (int k = 0; k < p->n_inputs; k++) {
    const tensor *t = &p->inputs[k];
    double square = 0;
    for (int64_t i = 0; i < t->n; i++) square += part(t->grad, i) * part(t->grad, i);
    double rms = sqrt(square / (double)t->n);
    for (int64_t s = 0; s < t->n && s < MAX_SAMPLES; s++) {
      int64_t i = t->n <= MAX_SAMPLES ? s : s * (t->n / MAX_SAMPLES);
      double want = slope(p, t->view, i), got = part(t->grad, i);
      if (!(fabs(got - want) <= 1e-6 * (fabs(want) + rms) + 1e-12)) fail_msg("%s: gradient of %s[%d] is %.12g, differences give %.12g", label, t->name, (int)i, got, want);
    }
  }
  for (int i = 0; i < p->n_blocks; i++) free(p->blocks[i]);
}

/* ---- scan ---- */

typedef struct scan_options {
  const char *label;
  uint32_t flags;
  int is_complex, packed, indexed, plain; /* plain: none of D, z, delta_bias and states */
} scan_options;

static void scan_inputs(problem *p, krait_selective_scan_args *a, krait_selective_scan_bwd_args *g, const scan_options *o) {
  const int64_t B = a->B, D = a->D, L = a->L, N = a->N, G = a->G, wide = o->is_complex ? 2 : 1;
  const int32_t state = o->is_complex ? KRAIT_C64 : KRAIT_F64;
  input(p, "u", &a->u, &g->du, KRAIT_F64, 0, 1, SHAPE(B, D, L));
  input(p, "delta", &a->delta, &g->ddelta, KRAIT_F64, 0.4, 0.3, SHAPE(B, D, L));
  input(p, "A", &a->A, &g->dA, state, -0.6, 0.5, SHAPE(D, N));
  if (o->flags & KRAIT_SCAN_BOTH) input(p, "A_reverse", &a->A_reverse, &g->dA_reverse, state, -0.6, 0.5, SHAPE(D, N));
  if (o->flags & KRAIT_SCAN_B_CONSTANT) input(p, "B", &a->Bmat, &g->dB, state, 0, 1, SHAPE(D, N));
  else input(p, "B", &a->Bmat, &g->dB, KRAIT_F64, 0, 1, SHAPE(B, G, N, L * wide));
  if (o->flags & KRAIT_SCAN_C_CONSTANT) input(p, "C", &a->Cmat, &g->dC, state, 0, 1, SHAPE(D, N));
  else input(p, "C", &a->Cmat, &g->dC, KRAIT_F64, 0, 1, SHAPE(B, G, N, L * wide));
  output(p, &a->out, &g->dout, KRAIT_F64, SHAPE(B, D, L));
  if (o->plain) return;
  input(p, "D", &a->Dvec, &g->dDvec, KRAIT_F64, 0, 1, SHAPE(D));
  input(p, "z", &a->z, &g->dz, KRAIT_F64, 0, 2, SHAPE(B, D, L));
  input(p, "delta_bias", &a->delta_bias, &g->ddelta_bias, KRAIT_F64, 0.1, 0.1, SHAPE(D));
  int64_t rows = a->S ? a->S : B;
  if (o->flags & KRAIT_SCAN_BOTH || o->is_complex) return; /* float32 states would blur the differences */
  input(p, "initial_state", &a->initial_state, &g->dinitial_state, KRAIT_F64, 0, 1, SHAPE(rows, D, N));
  output(p, &a->last_state, &g->dlast_state, KRAIT_F64, SHAPE(rows, D, N));
}

static void copy_inputs(krait_selective_scan_bwd_args *g, const krait_selective_scan_args *a) {
  g->call.flags = a->call.flags;
  g->B = a->B, g->D = a->D, g->L = a->L, g->N = a->N, g->G = a->G, g->S = a->S;
  g->u = a->u, g->delta = a->delta, g->A = a->A, g->Bmat = a->Bmat, g->Cmat = a->Cmat, g->Dvec = a->Dvec, g->z = a->z;
  g->delta_bias = a->delta_bias, g->initial_state = a->initial_state, g->seq_idx = a->seq_idx, g->cu_seqlens = a->cu_seqlens, g->A_reverse = a->A_reverse;
}

static void index_steps(problem *p, krait_selective_scan_args *a) {
  static const int32_t indices[] = {0, 0, 0, 1, -1, -1, 2, 2, 2};
  a->seq_idx = (krait_view){.data = take(p, (size_t)(a->B * a->L) * 4), .stride = {a->L, 1}, .dtype = KRAIT_I32};
  for (int64_t i = 0; i < a->B * a->L; i++) ((int32_t *)a->seq_idx.data)[i] = indices[i % a->L];
}

static void check_scan(const scan_options *o) {
  static const int32_t offsets[] = {0, 4, 4, 9};
  problem p = {.random = 7, .forward = kr_selective_scan_ref, .backward = kr_selective_scan_bwd_ref};
  krait_selective_scan_args a = {.call.flags = o->flags, .B = o->packed ? 1 : 2, .D = 4, .L = 9, .N = 3, .G = 2, .S = o->packed ? 3 : 0};
  krait_selective_scan_bwd_args g = {0};
  if (o->packed) a.cu_seqlens = (krait_view){.data = (void *)offsets, .stride = {1}, .dtype = KRAIT_I32};
  if (o->indexed) index_steps(&p, &a);
  scan_inputs(&p, &a, &g, o);
  copy_inputs(&g, &a);
  a.call.scratch = take(&p, 1 << 16);
  g.call.scratch = take(&p, 1 << 16);
  p.forward_args = &a;
  p.backward_args = &g;
  compare_gradients(&p, o->label);
}

static void scan_gradients(void **state) {
  (void)state;
  static const scan_options cases[] = {
      {.label = "plain", .plain = 1},
      {.label = "all options", .flags = KRAIT_SCAN_SOFTPLUS},
      {.label = "constant B", .flags = KRAIT_SCAN_SOFTPLUS | KRAIT_SCAN_B_CONSTANT},
      {.label = "constant C", .flags = KRAIT_SCAN_C_CONSTANT},
      {.label = "reverse", .flags = KRAIT_SCAN_REVERSE | KRAIT_SCAN_SOFTPLUS},
      {.label = "both", .flags = KRAIT_SCAN_BOTH | KRAIT_SCAN_SOFTPLUS},
      {.label = "cu_seqlens", .flags = KRAIT_SCAN_SOFTPLUS, .packed = 1},
      {.label = "cu_seqlens reverse", .flags = KRAIT_SCAN_REVERSE, .packed = 1},
      {.label = "seq_idx", .indexed = 1},
      {.label = "seq_idx reverse", .flags = KRAIT_SCAN_REVERSE, .indexed = 1},
      {.label = "complex", .flags = KRAIT_SCAN_SOFTPLUS, .is_complex = 1},
      {.label = "complex constant B, C", .flags = KRAIT_SCAN_B_CONSTANT | KRAIT_SCAN_C_CONSTANT, .is_complex = 1},
      {.label = "complex both", .flags = KRAIT_SCAN_BOTH, .is_complex = 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_scan(&cases[i]);
}

/* ---- convolution ---- */

static void check_conv(int64_t W, int64_t L, uint32_t flags, int silu, int indexed) {
  static const int32_t indices[] = {0, 0, 1, 1, 1, -1, -1, 2, 0};
  problem p = {.random = 11, .forward = kr_causal_conv1d_ref, .backward = kr_causal_conv1d_bwd_ref};
  krait_causal_conv1d_args a = {.call.flags = flags, .B = 2, .D = 3, .L = L, .W = W, .activation = silu};
  krait_causal_conv1d_bwd_args g = {.call.flags = flags, .B = 2, .D = 3, .L = L, .W = W, .activation = silu};
  input(&p, "x", &a.x, &g.dx, KRAIT_F64, 0, 1, SHAPE(a.B, a.D, L));
  input(&p, "weight", &a.weight, &g.dweight, KRAIT_F64, 0, 1, SHAPE(a.D, W));
  input(&p, "bias", &a.bias, &g.dbias, KRAIT_F64, 0, 1, SHAPE(a.D));
  output(&p, &a.out, &g.dout, KRAIT_F64, SHAPE(a.B, a.D, L));
  if (indexed) {
    a.seq_idx = (krait_view){.data = (void *)indices, .stride = {0, 1}, .dtype = KRAIT_I32};
  } else if (W > 1) {
    input(&p, "initial_states", &a.initial_states, &g.dinitial_states, KRAIT_F64, 0, 1, SHAPE(a.B, a.D, W - 1));
    output(&p, &a.final_states, &g.dfinal_states, KRAIT_F64, SHAPE(a.B, a.D, W - 1));
  }
  g.x = a.x, g.weight = a.weight, g.bias = a.bias, g.seq_idx = a.seq_idx, g.initial_states = a.initial_states;
  g.call.scratch = take(&p, 1 << 12);
  p.forward_args = &a;
  p.backward_args = &g;
  compare_gradients(&p, "causal_conv1d");
}

static void conv_gradients(void **state) {
  (void)state;
  check_conv(4, 9, 0, KRAIT_ACT_SILU, 0);
  check_conv(4, 2, 0, KRAIT_ACT_SILU, 0); /* shorter than the taps */
  check_conv(3, 9, KRAIT_CONV1D_REVERSE, KRAIT_ACT_SILU, 0);
  check_conv(1, 5, 0, KRAIT_ACT_NONE, 0);
  check_conv(4, 9, 0, KRAIT_ACT_SILU, 1);
  check_conv(3, 9, KRAIT_CONV1D_REVERSE, KRAIT_ACT_NONE, 1);
}

/* ---- norms ---- */

static void check_add_norm(uint32_t flags) {
  problem p = {.random = 13, .forward = kr_add_norm_ref, .backward = kr_add_norm_bwd_ref};
  krait_add_norm_args a = {.call.flags = flags, .R = 3, .M = 7, .eps = 1e-3f};
  krait_add_norm_bwd_args g = {.call.flags = flags, .R = 3, .M = 7, .eps = 1e-3f};
  input(&p, "x", &a.x, &g.dx, KRAIT_F64, 0, 1, SHAPE(3, 7));
  input(&p, "x1", &a.x1, &g.dx1, KRAIT_F64, 0, 1, SHAPE(3, 7));
  input(&p, "residual", &a.residual, &g.dresidual, KRAIT_F64, 0, 1, SHAPE(3, 7));
  input(&p, "weight", &a.weight, &g.dweight, KRAIT_F64, 1, 0.5, SHAPE(7));
  input(&p, "bias", &a.bias, &g.dbias, KRAIT_F64, 0, 1, SHAPE(7));
  input(&p, "weight1", &a.weight1, &g.dweight1, KRAIT_F64, 1, 0.5, SHAPE(7));
  input(&p, "bias1", &a.bias1, &g.dbias1, KRAIT_F64, 0, 1, SHAPE(7));
  make(&p, &a.rowscale, KRAIT_F64, 1, 0.5, SHAPE(3));
  output(&p, &a.out, &g.dout, KRAIT_F64, SHAPE(3, 7));
  output(&p, &a.out1, &g.dout1, KRAIT_F64, SHAPE(3, 7));
  output(&p, &a.residual_out, &g.dresidual_out, KRAIT_F64, SHAPE(3, 7));
  g.rowscale = a.rowscale, g.weight = a.weight, g.weight1 = a.weight1, g.v = a.residual_out;
  g.call.scratch = take(&p, 1 << 12);
  p.forward_args = &a;
  p.backward_args = &g;
  assert_int_equal(kr_add_norm_ref(NULL, &a), KRAIT_OK);
  compare_gradients(&p, "add_norm");
}

static void check_gated_norm(uint32_t flags) {
  problem p = {.random = 17, .forward = kr_gated_norm_ref, .backward = kr_gated_norm_bwd_ref};
  krait_gated_norm_args a = {.call.flags = flags, .R = 3, .M = 8, .group_size = 4, .eps = 1e-2f};
  krait_gated_norm_bwd_args g = {.call.flags = flags, .R = 3, .M = 8, .group_size = 4, .eps = 1e-2f};
  input(&p, "x", &a.x, &g.dx, KRAIT_F64, 0, 1, SHAPE(3, 8));
  input(&p, "z", &a.z, &g.dz, KRAIT_F64, 0.5, 1, SHAPE(3, 8));
  input(&p, "weight", &a.weight, &g.dweight, KRAIT_F64, 1, 0.5, SHAPE(8));
  input(&p, "bias", &a.bias, &g.dbias, KRAIT_F64, 0, 1, SHAPE(8));
  output(&p, &a.out, &g.dout, KRAIT_F64, SHAPE(3, 8));
  g.x = a.x, g.z = a.z, g.weight = a.weight, g.bias = a.bias;
  g.call.scratch = take(&p, 1 << 12);
  p.forward_args = &a;
  p.backward_args = &g;
  compare_gradients(&p, "gated_norm");
}

static void norm_gradients(void **state) {
  (void)state;
  check_add_norm(0);
  check_add_norm(KRAIT_NORM_RMS);
  for (uint32_t flags = 0; flags < 4; flags++) check_gated_norm(flags);
}

/* ---- mamba_inner ---- */

typedef struct inner_options {
  const char *label;
  uint32_t flags;
  int64_t M;
  int is_complex, norms, given_B, given_C;
} inner_options;

static void inner_parameter(problem *p, const krait_mamba_inner_args *a, krait_view *v, krait_view *dv, const char *name, uint32_t constant, int is_complex) {
  if (a->call.flags & constant) input(p, name, v, dv, is_complex ? KRAIT_C64 : KRAIT_F64, 0, 1, SHAPE(a->D, a->N));
  else input(p, name, v, dv, KRAIT_F64, 0, 1, SHAPE(a->B, 1, a->N, a->L * (is_complex ? 2 : 1)));
}

static void inner_inputs(problem *p, krait_mamba_inner_args *a, krait_mamba_inner_bwd_args *g, const inner_options *o) {
  const int64_t D = a->D, L = a->L, wide = o->is_complex ? 2 * a->N : a->N;
  const int64_t B_columns = o->given_B ? 0 : wide, C_columns = o->given_C ? 0 : wide;
  const int32_t state = o->is_complex ? KRAIT_C64 : KRAIT_F64;
  input(p, "xz", &a->xz, &g->dxz, KRAIT_F64, 0, 1, SHAPE(a->B, 2 * D, L));
  input(p, "conv_weight", &a->conv_weight, &g->dconv_weight, KRAIT_F64, 0, 0.7, SHAPE(D, a->W));
  input(p, "conv_bias", &a->conv_bias, &g->dconv_bias, KRAIT_F64, 0, 0.5, SHAPE(D));
  input(p, "x_proj_weight", &a->x_proj_weight, &g->dx_proj_weight, KRAIT_F64, 0, 0.7, SHAPE(a->R + B_columns + C_columns, D));
  input(p, "dt_proj_weight", &a->dt_proj_weight, &g->ddt_proj_weight, KRAIT_F64, 0, 0.7, SHAPE(D, a->R));
  input(p, "A", &a->A, &g->dA, state, -0.6, 0.5, SHAPE(D, a->N));
  if (o->flags & KRAIT_SCAN_BOTH) input(p, "A_reverse", &a->A_reverse, &g->dA_reverse, state, -0.6, 0.5, SHAPE(D, a->N));
  if (o->given_B) inner_parameter(p, a, &a->Bmat, &g->dB, "B", KRAIT_SCAN_B_CONSTANT, o->is_complex);
  else input(p, "B_proj_bias", &a->B_proj_bias, &g->dB_proj_bias, KRAIT_F64, 0, 1, SHAPE(B_columns));
  if (o->given_C) inner_parameter(p, a, &a->Cmat, &g->dC, "C", KRAIT_SCAN_C_CONSTANT, o->is_complex);
  else input(p, "C_proj_bias", &a->C_proj_bias, &g->dC_proj_bias, KRAIT_F64, 0, 1, SHAPE(C_columns));
  input(p, "D", &a->Dvec, &g->dDvec, KRAIT_F64, 0, 1, SHAPE(D));
  input(p, "delta_bias", &a->delta_bias, &g->ddelta_bias, KRAIT_F64, 0.2, 0.1, SHAPE(D));
  if (o->norms) input(p, "dt_norm_weight", &a->dt_norm_weight, &g->ddt_norm_weight, KRAIT_F64, 0.5, 0.3, SHAPE(D));
  if (o->norms && B_columns) input(p, "B_norm_weight", &a->B_norm_weight, &g->dB_norm_weight, KRAIT_F64, 1, 0.5, SHAPE(B_columns));
  if (o->norms && C_columns) input(p, "C_norm_weight", &a->C_norm_weight, &g->dC_norm_weight, KRAIT_F64, 1, 0.5, SHAPE(C_columns));
  if (!a->M) {
    output(p, &a->out, &g->dout, KRAIT_F64, SHAPE(a->B, D, L));
    return;
  }
  input(p, "out_proj_weight", &a->out_proj_weight, &g->dout_proj_weight, KRAIT_F64, 0, 0.7, SHAPE(a->M, D));
  input(p, "out_proj_bias", &a->out_proj_bias, &g->dout_proj_bias, KRAIT_F64, 0, 1, SHAPE(a->M));
  output(p, &a->out, &g->dout, KRAIT_F64, SHAPE(a->B, L, a->M));
}

static void check_inner(const inner_options *o) {
  problem p = {.random = 19, .forward = kr_mamba_inner_ref, .backward = kr_mamba_inner_bwd_ref};
  krait_mamba_inner_args a = {.call.flags = o->flags, .B = 2, .D = 4, .L = 6, .N = 3, .W = 3, .R = 2, .M = o->M, .eps = 1e-2f};
  krait_mamba_inner_bwd_args g = {0};
  inner_inputs(&p, &a, &g, o);
  memcpy(&g, &a, offsetof(krait_mamba_inner_args, out));
  a.call.scratch = take(&p, 1 << 16);
  g.call.scratch = take(&p, 1 << 18);
  p.forward_args = &a;
  p.backward_args = &g;
  compare_gradients(&p, o->label);
}

static void inner_gradients(void **state) {
  (void)state;
  static const inner_options cases[] = {
      {.label = "mamba_inner", .flags = KRAIT_SCAN_SOFTPLUS, .M = 5},
      {.label = "mamba_inner without out_proj", .flags = KRAIT_SCAN_SOFTPLUS},
      {.label = "mamba_inner with norms", .flags = KRAIT_SCAN_SOFTPLUS, .M = 5, .norms = 1},
      {.label = "mamba_inner, both directions", .flags = KRAIT_SCAN_SOFTPLUS | KRAIT_SCAN_BOTH, .norms = 1},
      {.label = "mamba_inner, complex", .flags = KRAIT_SCAN_SOFTPLUS, .M = 3, .is_complex = 1},
      {.label = "mamba_inner, B given", .flags = KRAIT_SCAN_SOFTPLUS, .M = 3, .given_B = 1, .norms = 1},
      {.label = "mamba_inner, C constant", .flags = KRAIT_SCAN_SOFTPLUS | KRAIT_SCAN_C_CONSTANT, .M = 3, .given_C = 1},
      {.label = "mamba_inner, complex, B constant, C given", .flags = KRAIT_SCAN_SOFTPLUS | KRAIT_SCAN_B_CONSTANT, .is_complex = 1, .given_B = 1, .given_C = 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_inner(&cases[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(inner_gradients), cmocka_unit_test(scan_gradients), cmocka_unit_test(conv_gradients), cmocka_unit_test(norm_gradients)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
