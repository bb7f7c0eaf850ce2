/* backward.c: gradients derived from a graph: against finite differences in float64 with values used twice, in part,
 * and broadcast; the same bits with recomputation; nothing for frozen parameters; unsupported gradients. Then rewrites:
 * on and off give the same, and a wrong one is found. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "graph_parts.h"
#include "graph_rewrite.h"
#include "graph_runner.h"
#include "op_list.h"

enum { B = 2, L = 6, D = 4, H = 10, MOST = 4096 };

static uint32_t random_state;
static double draw_backward(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return ((double)(random_state >> 8) * 0x1p-24 - 0.5) * 2;
}

static krait_ctx *open_backward_ctx(void) {
  krait_ctx *ctx = NULL;
  assert_int_equal(
      krait_ctx_open(
          &(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU, .n_threads = 1}, &ctx),
      KRAIT_OK);
  return ctx;
}

/* A small model with its parameters and memory for their gradients. */
enum { X, W_IN, B_IN, NORM, W_CONV, W_GATE, SCALE, N_INPUTS };
static const char *const names[N_INPUTS] = {"x", "w_in", "b_in", "norm", "w_conv", "w_gate", "scale"};
typedef struct model {
  kr_graph *g;
  int32_t dtype;
  kr_tensor in[N_INPUTS], y, dy;
  kr_gradient wanted[N_INPUTS];
  double values[N_INPUTS][256], seed[256];
  int64_t n[N_INPUTS];
} model;

static kr_view v(const model *m, kr_tensor t) { return kr_graph_view(m->g, t); }

static void record_inputs(model *m) {
  const kr_dims dims[N_INPUTS] = {KR_DIMS(B * L, D), KR_DIMS(D, H), KR_DIMS(H),   KR_DIMS(D),
                                  KR_DIMS(D, 3),     KR_DIMS(D, D), KR_DIMS(1, D)};
  for (int i = 0; i < N_INPUTS; i++) {
    m->in[i] = kr_graph_input(m->g, names[i], m->dtype, dims[i]);
    m->n[i] = kr_dims_elements(dims[i]);
  }
}

/* x goes into a norm and around it; h is read in overlapping parts; the convolution runs along time, channels-last. */
static void record_backward(model *m, int again) {
  kr_graph *g = m->g;
  record_inputs(m);
  const kr_tensor *in = m->in;
  const kr_tensor normed = kr_graph_call(g, "norm", &kr_op_add_norm,
                                         &(kr_add_norm_args){.call.flags = KRAIT_NORM_RMS,
                                                                .eps = 1e-2f,
                                                                .x = v(m, in[X]),
                                                                .weight = v(m, in[NORM]),
                                                                .out = kr_graph_auto()});
  const kr_tensor h = kr_graph_call(g, "lift", &kr_op_gemm,
                                    &(kr_gemm_args){.activation = KRAIT_ACT_SILU,
                                                       .A = v(m, normed),
                                                       .Bmat = v(m, in[W_IN]),
                                                       .bias = v(m, in[B_IN]),
                                                       .out = kr_graph_auto()});
  const kr_tensor left = kr_graph_slice(g, h, 1, 0, D), middle = kr_graph_slice(g, h, 1, 3, D),
                  right = kr_graph_slice(g, h, 1, H - D, D); /* left and middle overlap, as do middle and right */
  const kr_tensor channels = kr_graph_permute(g, kr_graph_reshape(g, left, KR_DIMS(B, L, D)), (int[]){0, 2, 1});
  const kr_tensor convolved = kr_graph_temp(g, m->dtype, KR_DIMS(B * L, D));
  kr_graph_call(
      g, "conv", &kr_op_causal_conv1d,
      &(kr_causal_conv1d_args){
          .activation = KRAIT_ACT_SILU,
          .x = v(m, channels),
          .weight = v(m, in[W_CONV]),
          .out = v(m, kr_graph_permute(g, kr_graph_reshape(g, convolved, KR_DIMS(B, L, D)), (int[]){0, 2, 1}))});
  const kr_tensor gated = kr_graph_temp(g, m->dtype, KR_DIMS(B * L, D)),
                  scaled = kr_graph_temp(g, m->dtype, KR_DIMS(B * L, D));
  kr_graph_pointwise(
      g, "gate",
      (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SILU, .x_scale = 0.5f},
      middle, convolved, gated);
  kr_graph_pointwise(g, "scale", (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, gated,
                     kr_graph_expand(g, in[SCALE], KR_DIMS(B * L, D)), scaled);
  const kr_tensor mixed = kr_graph_call(
      g, "mix", &kr_op_gemm, &(kr_gemm_args){.A = v(m, scaled), .Bmat = v(m, in[W_GATE]), .out = kr_graph_auto()});
  const kr_tensor sum = kr_graph_temp(g, m->dtype, KR_DIMS(B * L, D)),
                  twice = kr_graph_temp(g, m->dtype, KR_DIMS(B * L, D));
  kr_graph_pointwise(g, "around", (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, mixed, in[X], sum);
  kr_graph_pointwise(g, "right", (kr_pointwise_args){.x_scale = 1, .y_scale = -0.75f}, sum, right, twice);
  m->y = kr_graph_output(g, "y", m->dtype, KR_DIMS(B * L, D));
  kr_graph_pointwise(g, "last", (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, twice, scaled, m->y);
  if (again)
    for (int i = 0; i < 5; i++) kr_graph_recompute(g, (kr_tensor[]){normed, h, convolved, gated, scaled}[i]);
}

static void record_gradient(model *m, uint32_t frozen) {
  int n = 0;
  m->dy = kr_graph_input(m->g, "dy", m->dtype, KR_DIMS(B * L, D));
  for (int i = 0; i < N_INPUTS; i++)
    if (!(frozen >> i & 1))
      m->wanted[n++] =
          (kr_gradient){m->in[i], kr_graph_output(m->g, names[i], m->dtype, kr_graph_dims(m->g, m->in[i]))};
  assert_int_equal(kr_graph_backward(m->g, &(kr_gradient){m->y, m->dy}, 1, m->wanted, n), KRAIT_OK);
}

static void fill_backward(model *m) {
  random_state = 77;
  for (int i = 0; i < N_INPUTS; i++)
    for (int k = 0; k < 256; k++) m->values[i][k] = draw_backward();
  for (int k = 0; k < 256; k++) m->seed[k] = draw_backward();
}

/* Everything through float64 arrays, whatever the graph's type. */
typedef struct result {
  double y[256], gradients[N_INPUTS][256];
} result;

static void convert(int32_t dtype, const double *from, void *to, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (dtype == KRAIT_F64) ((double *)to)[i] = from[i];
    else ((float *)to)[i] = (float)from[i];
  }
}
static void convert_back(int32_t dtype, const void *from, double *to, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    to[i] = dtype == KRAIT_F64 ? ((const double *)from)[i] : (double)((const float *)from)[i];
}

static void run_backward(model *m, uint32_t frozen, result *out) {
  kr_runner *r = NULL;
  static double in[N_INPUTS][256], gradients[N_INPUTS][256], y[256], dy[256];
  assert_int_equal(kr_runner_open(m->g, &r), KRAIT_OK);
  memset(r->memory, 0xfb, kr_graph_bytes(m->g));
  memset(gradients, 0, sizeof gradients);
  for (int i = 0; i < N_INPUTS; i++)
    convert(m->dtype, m->values[i], in[i], m->n[i]), kr_runner_bind(r, m->in[i], in[i]);
  convert(m->dtype, m->seed, dy, B * L * D);
  kr_runner_bind(r, m->y, y);
  int n = 0;
  if (m->dy) kr_runner_bind(r, m->dy, dy);
  for (int i = 0; i < N_INPUTS && m->dy; i++)
    if (!(frozen >> i & 1)) kr_runner_bind(r, m->wanted[n++].at, gradients[i]);
  assert_int_equal(kr_runner_run(r, NULL), KRAIT_OK);
  convert_back(m->dtype, y, out->y, B * L * D);
  for (int i = 0; i < N_INPUTS; i++) convert_back(m->dtype, gradients[i], out->gradients[i], m->n[i]);
  kr_runner_close(&r);
}

static void make(model *m, int32_t dtype, int again, int with_gradient, uint32_t frozen) {
  memset(m, 0, sizeof *m);
  m->dtype = dtype;
  fill_backward(m);
  assert_int_equal(kr_graph_open(&m->g), KRAIT_OK);
  record_backward(m, again);
  if (kr_graph_status(m->g) < 0) fail_msg("%s", krait_error_detail());
  if (with_gradient) record_gradient(m, frozen);
}

static double loss(model *m) {
  result r;
  double sum = 0;
  run_backward(m, 0, &r);
  for (int i = 0; i < B * L * D; i++) sum += r.y[i] * m->seed[i];
  return sum;
}

static void agrees_with_finite_differences(void **state) {
  static model m, forward;
  static result r;
  (void)state;
  make(&m, KRAIT_F64, 0, 1, 0);
  make(&forward, KRAIT_F64, 0, 0, 0);
  assert_int_equal(kr_graph_plan(m.g, NULL, KR_PLAN_REFERENCE), KRAIT_OK);
  assert_int_equal(kr_graph_plan(forward.g, NULL, KR_PLAN_REFERENCE), KRAIT_OK);
  run_backward(&m, 0, &r);
  for (int i = 0; i < N_INPUTS; i++)
    for (int64_t k = 0; k < m.n[i]; k++) {
      const double step = 1e-3, at = forward.values[i][k];
      double f[4];
      for (int s = 0; s < 4; s++) forward.values[i][k] = at + step * (double[]){1, -1, 2, -2}[s], f[s] = loss(&forward);
      forward.values[i][k] = at;
      const double want = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * step), got = r.gradients[i][k];
      if (!(fabs(want - got) <= 1e-7 * (1 + fabs(want))))
        fail_msg("gradient of %s[%d] is %.12g, differences give %.12g", names[i], (int)k, got, want);
    }
  kr_graph_close(&m.g);
  kr_graph_close(&forward.g);
}

static int n_live(const kr_graph *g) {
  int n = 0;
  for (size_t i = 0; i < g->nodes.n; i++) n += !KR_NODE(g, i)->dead;
  return n;
}

static void recomputation_changes_no_bit(void **state) {
  static model m[2];
  static result r[2];
  krait_ctx *ctx = open_backward_ctx();
  (void)state;
  for (int i = 0; i < 2; i++) {
    make(&m[i], KRAIT_F32, i, 1, 0);
    assert_int_equal(kr_graph_plan(m[i].g, ctx, 0), KRAIT_OK);
    run_backward(&m[i], 0, &r[i]);
  }
  assert_true(n_live(m[1].g) > n_live(m[0].g));
  assert_memory_equal(&r[0], &r[1], sizeof r[0]);
  for (int i = 0; i < 2; i++) kr_graph_close(&m[i].g);
  krait_ctx_close(&ctx);
}

static void frozen_parameters_cost_nothing(void **state) {
  static model all, some;
  static result with, without;
  krait_ctx *ctx = open_backward_ctx();
  const uint32_t frozen = 1u << X | 1u << W_IN | 1u << B_IN | 1u << NORM;
  (void)state;
  make(&all, KRAIT_F32, 0, 1, 0);
  make(&some, KRAIT_F32, 0, 1, frozen);
  assert_int_equal(kr_graph_plan(all.g, ctx, 0), KRAIT_OK);
  assert_int_equal(kr_graph_plan(some.g, ctx, 0), KRAIT_OK);
  run_backward(&all, 0, &with);
  run_backward(&some, frozen, &without);
  for (size_t n = 0; n < some.g->nodes.n; n++) {
    const char *name = KR_NODE(some.g, n)->name;
    if (strncmp(name, "lift.", 5) == 0 || strncmp(name, "norm.", 5) == 0) fail_msg("%s is computed for nobody", name);
  }
  for (int i = W_CONV; i < N_INPUTS; i++)
    assert_memory_equal(with.gradients[i], without.gradients[i], sizeof with.gradients[i]);
  kr_graph_close(&all.g);
  kr_graph_close(&some.g);
  krait_ctx_close(&ctx);
}

/* ---- unsupported gradients ---- */

static void backward_expect(kr_graph **g, int32_t status, const char *sentence) {
  assert_int_equal(kr_graph_status(*g), status);
  assert_string_equal(krait_error_detail(), sentence);
  kr_graph_close(g);
}

static void faults_are_named(void **state) {
  kr_graph *g = NULL;
  (void)state;
  /* the convolution reads x, which is then overwritten */
  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  const kr_dims dims = KR_DIMS(1, 3, 5);
  kr_tensor x = kr_graph_input(g, "x", KRAIT_F32, dims), w = kr_graph_input(g, "w", KRAIT_F32, KR_DIMS(3, 2)),
            d = kr_graph_input(g, "d", KRAIT_F32, dims), h = kr_graph_temp(g, KRAIT_F32, dims);
  kr_graph_pointwise(g, "double", (kr_pointwise_args){.x_scale = 2}, x, 0, h);
  kr_tensor y = kr_graph_call(
      g, "conv", &kr_op_causal_conv1d,
      &(kr_causal_conv1d_args){.x = kr_graph_view(g, h), .weight = kr_graph_view(g, w), .out = kr_graph_auto()});
  kr_graph_pointwise(g, "over", (kr_pointwise_args){.x_scale = 0}, 0, 0, h);
  kr_gradient wanted = {w, 0};
  kr_graph_backward(g, &(kr_gradient){y, d}, 1, &wanted, 1);
  backward_expect(&g, KRAIT_ERR_ARGUMENT,
         "graph: node over (pointwise) overwrites double, which the gradient of node conv reads");

  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  x = kr_graph_input(g, "x", KRAIT_F32, dims), w = kr_graph_input(g, "w", KRAIT_F32, KR_DIMS(3, 2)),
  d = kr_graph_input(g, "d", KRAIT_F32, dims), h = kr_graph_temp(g, KRAIT_F32, dims);
  kr_graph_pointwise(g, "double", (kr_pointwise_args){.x_scale = 2}, x, 0, h);
  kr_graph_call(
      g, "conv", &kr_op_causal_conv1d,
      &(kr_causal_conv1d_args){.x = kr_graph_view(g, h), .weight = kr_graph_view(g, w), .out = kr_graph_view(g, h)});
  wanted = (kr_gradient){x, 0};
  kr_graph_backward(g, &(kr_gradient){h, d}, 1, &wanted, 1);
  backward_expect(&g, KRAIT_ERR_ARGUMENT,
         "graph: node conv (causal_conv1d) works in place on double, but its gradient needs the previous values");

  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  const kr_tensor past = kr_graph_state(g, "past", KRAIT_F32, KR_DIMS(1, 3, 2));
  x = kr_graph_input(g, "x", KRAIT_F32, dims), w = kr_graph_input(g, "w", KRAIT_F32, KR_DIMS(3, 2)),
  d = kr_graph_input(g, "d", KRAIT_F32, dims);
  y = kr_graph_call(g, "step", &kr_op_causal_conv1d_update,
                    &(kr_causal_conv1d_update_args){.x = kr_graph_view(g, x),
                                                       .conv_state = kr_graph_view(g, past),
                                                       .weight = kr_graph_view(g, w),
                                                       .out = kr_graph_auto()});
  wanted = (kr_gradient){w, 0};
  kr_graph_backward(g, &(kr_gradient){y, d}, 1, &wanted, 1);
  backward_expect(&g, KRAIT_ERR_UNSUPPORTED, "graph: node step: causal_conv1d_update has no gradient");

  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  x = kr_graph_input(g, "x", KRAIT_F32, dims), d = kr_graph_input(g, "d", KRAIT_F32, KR_DIMS(1, 5, 3));
  wanted = (kr_gradient){x, 0};
  kr_graph_backward(g, &(kr_gradient){x, d}, 1, &wanted, 1);
  backward_expect(&g, KRAIT_ERR_SHAPE, "graph: the gradient of x (1,3,5) cannot be d (1,5,3)");
}

/* ---- attention, whose gradient reads its output, and rotary embedding ---- */

enum { TOKENS = 7, HEADS = 2, HEAD = 4, ALL = TOKENS * HEADS * HEAD };

static kr_view heads_of(float *data) {
  return (kr_view){.data = data, .stride = {ALL, HEADS * HEAD, HEAD, 1}, .dtype = KRAIT_F32};
}
static kr_view angles_of(float *data) {
  return (kr_view){.data = data, .stride = {HEAD / 2, 1}, .dtype = KRAIT_F32};
}

static void run_directly(const kr_op *op, krait_ctx *ctx, void *args) {
  kr_call *call = args;
  call->size = op->args_bytes;
  assert_int_equal(kr_op_scratch_bytes(op, ctx, args, &call->scratch_bytes), KRAIT_OK);
  call->scratch = malloc(call->scratch_bytes + 1);
  assert_int_equal(kr_op_run(op, ctx, args), KRAIT_OK);
  free(call->scratch);
}

/* dx by separate calls: out = attention of the rotated x with itself and with x as values. */
static void expect_by_calls(krait_ctx *ctx, float *x, float *c, float *s, float *dout, float *dx) {
  float turned[ALL], out[ALL], lse[HEADS * TOKENS], dq[ALL], dk[ALL], dv[ALL];
  const kr_view lse_view = {.data = lse, .stride = {0, TOKENS, 1}, .dtype = KRAIT_F32};
  kr_rotary_args turn = {.B = 1,
                            .L = TOKENS,
                            .H = HEADS,
                            .D = HEAD,
                            .R = HEAD / 2,
                            .T = TOKENS,
                            .x = heads_of(x),
                            .cos = angles_of(c),
                            .sin = angles_of(s),
                            .out = heads_of(turned)};
  kr_attention_args a = {.call.flags = KRAIT_ATTENTION_CAUSAL,
                            .B = 1,
                            .Bk = 1,
                            .Lq = TOKENS,
                            .Lk = TOKENS,
                            .H = HEADS,
                            .Hk = HEADS,
                            .D = HEAD,
                            .Dv = HEAD,
                            .q = heads_of(turned),
                            .k = heads_of(turned),
                            .v = heads_of(x),
                            .out = heads_of(out),
                            .lse = lse_view};
  kr_attention_bwd_args b = {.call.flags = KRAIT_ATTENTION_CAUSAL,
                                .B = 1,
                                .Bk = 1,
                                .Lq = TOKENS,
                                .Lk = TOKENS,
                                .H = HEADS,
                                .Hk = HEADS,
                                .D = HEAD,
                                .Dv = HEAD,
                                .q = heads_of(turned),
                                .k = heads_of(turned),
                                .v = heads_of(x),
                                .out = heads_of(out),
                                .lse = lse_view,
                                .dout = heads_of(dout),
                                .dq = heads_of(dq),
                                .dk = heads_of(dk),
                                .dv = heads_of(dv)};
  run_directly(&kr_op_rotary, ctx, &turn);
  run_directly(&kr_op_attention, ctx, &a);
  run_directly(&kr_op_attention_bwd, ctx, &b);
  for (int i = 0; i < ALL; i++) dq[i] += dk[i];
  turn.x = heads_of(dq), turn.out = heads_of(dx), turn.call.flags = KRAIT_ROTARY_INVERSE;
  run_directly(&kr_op_rotary, ctx, &turn);
  for (int i = 0; i < ALL; i++) dx[i] += dv[i];
}

static kr_tensor record_attention(kr_graph *g, kr_tensor x, kr_tensor c, kr_tensor s, int with_lse) {
  const kr_tensor turned = kr_graph_call(
      g, "turn", &kr_op_rotary,
      &(kr_rotary_args){
          .x = kr_graph_view(g, x), .cos = kr_graph_view(g, c), .sin = kr_graph_view(g, s), .out = kr_graph_auto()});
  return kr_graph_call(g, "attend", &kr_op_attention,
                       &(kr_attention_args){.call.flags = KRAIT_ATTENTION_CAUSAL,
                                               .q = kr_graph_view(g, turned),
                                               .k = kr_graph_view(g, turned),
                                               .v = kr_graph_view(g, x),
                                               .out = kr_graph_auto(),
                                               .lse = with_lse ? kr_graph_auto() : (kr_view){0}});
}

static void attention_has_its_gradient(void **state) {
  float x[ALL], dout[ALL], c[TOKENS * HEAD / 2], s[TOKENS * HEAD / 2], want[ALL], got[ALL] = {0};
  kr_graph *g = NULL;
  kr_runner *r = NULL;
  krait_ctx *ctx = open_backward_ctx();
  (void)state;
  random_state = 3;
  for (int i = 0; i < ALL; i++) x[i] = (float)draw_backward(), dout[i] = (float)draw_backward();
  for (int i = 0; i < TOKENS * HEAD / 2; i++) c[i] = cosf((float)i), s[i] = sinf((float)i);
  expect_by_calls(ctx, x, c, s, dout, want);
  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  const kr_dims dims = KR_DIMS(1, TOKENS, HEADS, HEAD), angles = KR_DIMS(TOKENS, HEAD / 2);
  kr_tensor in = kr_graph_input(g, "x", KRAIT_F32, dims), d = kr_graph_input(g, "d", KRAIT_F32, dims),
            tc = kr_graph_input(g, "cos", KRAIT_F32, angles), ts = kr_graph_input(g, "sin", KRAIT_F32, angles);
  const kr_tensor y = record_attention(g, in, tc, ts, 1);
  kr_gradient wanted = {in, kr_graph_output(g, "dx", KRAIT_F32, dims)};
  if (kr_graph_backward(g, &(kr_gradient){y, d}, 1, &wanted, 1) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_graph_plan(g, ctx, 0), KRAIT_OK);
  assert_int_equal(kr_runner_open(g, &r), KRAIT_OK);
  kr_runner_bind(r, in, x), kr_runner_bind(r, d, dout), kr_runner_bind(r, tc, c), kr_runner_bind(r, ts, s),
      kr_runner_bind(r, wanted.at, got);
  assert_int_equal(kr_runner_run(r, NULL), KRAIT_OK);
  for (int i = 0; i < ALL; i++)
    if (!(fabsf(got[i] - want[i]) <= 1e-5f)) fail_msg("dx[%d] is %g, by calls %g", i, (double)got[i], (double)want[i]);
  kr_runner_close(&r);
  kr_graph_close(&g);
  krait_ctx_close(&ctx);

  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  in = kr_graph_input(g, "x", KRAIT_F32, dims), d = kr_graph_input(g, "d", KRAIT_F32, dims),
  tc = kr_graph_input(g, "cos", KRAIT_F32, angles), ts = kr_graph_input(g, "sin", KRAIT_F32, angles);
  wanted = (kr_gradient){in, 0};
  kr_graph_backward(g, &(kr_gradient){record_attention(g, in, tc, ts, 0), d}, 1, &wanted, 1);
  backward_expect(&g, KRAIT_ERR_ARGUMENT, "graph: node attend: the gradient of attention reads lse: request it");
}

/* ---- rewrites ---- */

static double distance(const result *a, const result *b, const model *m) {
  double worst = 0;
  for (int i = 0; i < B * L * D; i++) worst = fmax(worst, fabs(a->y[i] - b->y[i]));
  for (int i = 0; i < N_INPUTS; i++)
    for (int64_t k = 0; k < m->n[i]; k++) worst = fmax(worst, fabs(a->gradients[i][k] - b->gradients[i][k]));
  return worst;
}

/* A rewrite that drops the other summand. */
static int forget_a_summand(kr_graph *g, const krait_ctx *ctx, size_t n) {
  const kr_node *node = KR_NODE(g, n);
  const kr_pointwise_args *a = (const kr_pointwise_args *)node->args;
  (void)ctx;
  if (node->op != &kr_op_pointwise || strcmp(node->name, "around") != 0 || !a->y.data) return 0;
  kr_node_set(g, KR_NODE(g, n), offsetof(kr_pointwise_args, y), KR_IN, 0);
  return 1;
}

static void rewrites_change_nothing(void **state) {
  static model m[3];
  static result r[3];
  krait_ctx *ctx = open_backward_ctx();
  (void)state;
  for (int i = 0; i < 3; i++) {
    make(&m[i], KRAIT_F32, 0, 1, 0);
    if (i == 1) kr_graph_rewrite_off(m[i].g, "all");
    if (i == 2)
      assert_int_equal(kr_graph_rewrite(m[i].g, ctx, &(kr_rewrite){"planted", forget_a_summand}, 1), KRAIT_OK);
    assert_int_equal(kr_graph_plan(m[i].g, ctx, 0), KRAIT_OK);
    assert_int_equal(kr_graph_check_plan(m[i].g), KRAIT_OK);
    run_backward(&m[i], 0, &r[i]);
  }
  const double allowed = 1e-5, same = distance(&r[0], &r[1], &m[0]), planted = distance(&r[1], &r[2], &m[0]);
  print_message("  with and without rewrites: %d and %d calls, results differ by %.2g; a planted fault by %.2g\n",
                n_live(m[0].g), n_live(m[1].g), same, planted);
  assert_true(same <= allowed && planted > 100 * allowed);
  for (size_t n = 0; n < m[0].g->nodes.n; n++)
    assert_string_not_equal(KR_NODE(m[0].g, n)->name, "around"); /* the product before it adds */
  for (int i = 0; i < 3; i++) kr_graph_close(&m[i].g);

  kr_graph *g = NULL;
  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  kr_graph_rewrite_off(g, "add_to_product");
  backward_expect(&g, KRAIT_ERR_ARGUMENT, "graph: there is no rewrite 'add_to_product'");
  krait_ctx_close(&ctx);
}

/* x + y, then its norm, both read later: one call writes both. */
static void a_norm_adds(void **state) {
  krait_ctx *ctx = open_backward_ctx();
  float x[12], y[12], h[2][12], n[2][12];
  (void)state;
  for (int i = 0; i < 12; i++) x[i] = (float)draw_backward(), y[i] = (float)draw_backward();
  for (int off = 0; off < 2; off++) {
    kr_graph *g = NULL;
    kr_runner *r = NULL;
    assert_int_equal(kr_graph_open(&g), KRAIT_OK);
    const kr_dims dims = KR_DIMS(3, 4);
    const kr_tensor a = kr_graph_input(g, "a", KRAIT_F32, dims), b = kr_graph_input(g, "b", KRAIT_F32, dims),
                    sum = kr_graph_output(g, "sum", KRAIT_F32, dims),
                    normed = kr_graph_output(g, "normed", KRAIT_F32, dims);
    kr_graph_pointwise(g, "add", (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, a, b, sum);
    kr_graph_call(g, "norm", &kr_op_add_norm,
                  &(kr_add_norm_args){.eps = 1e-5f, .x = kr_graph_view(g, sum), .out = kr_graph_view(g, normed)});
    if (off) kr_graph_rewrite_off(g, "add_into_norm");
    assert_int_equal(kr_graph_plan(g, ctx, 0), KRAIT_OK);
    assert_int_equal(n_live(g), off ? 2 : 1);
    assert_int_equal(kr_runner_open(g, &r), KRAIT_OK);
    kr_runner_bind(r, a, x), kr_runner_bind(r, b, y), kr_runner_bind(r, sum, h[off]), kr_runner_bind(r, normed, n[off]);
    assert_int_equal(kr_runner_run(r, NULL), KRAIT_OK);
    kr_runner_close(&r);
    kr_graph_close(&g);
  }
  for (int i = 0; i < 12; i++) assert_float_equal(h[0][i], h[1][i], 1e-6f), assert_float_equal(n[0][i], n[1][i], 1e-5f);
  krait_ctx_close(&ctx);
}

/* ((x W' + b)'s halves multiplied) V times other, W' = W times a row of taps: two products, and nothing else with
 * constants. */
static void products_multiply(void **state) {
  enum { M = 21, K = 9, N = 32 };
  static float x[M * K], W[K * 2 * N], taps[2 * N], b[2 * N], V[N * N], other[M * N], out[4][M * N];
  krait_ctx *ctx = open_backward_ctx();
  float *const drawn[] = {x, W, taps, b, V, other};
  const int sizes[] = {M * K, K * 2 * N, 2 * N, 2 * N, N * N, M * N};
  (void)state;
  for (int i = 0; i < 6; i++)
    for (int k = 0; k < sizes[i]; k++) drawn[i][k] = (float)draw_backward();
  for (int way = 0; way < 4; way++) { /* rewrites off, on; constants folded when planning; both */
    const kr_pointwise_args times = {.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1};
    kr_graph *g = NULL;
    kr_runner *r = NULL;
    assert_int_equal(kr_graph_open(&g), KRAIT_OK);
    if (!(way & 1)) kr_graph_rewrite_off(g, "all");
#define WEIGHT(name, ...) kr_graph_weight(g, #name, KRAIT_F32, KR_DIMS(__VA_ARGS__), name)
    const kr_tensor tx = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(M, K)),
                    factor = kr_graph_input(g, "other", KRAIT_F32, KR_DIMS(M, N)),
                    to = kr_graph_output(g, "out", KRAIT_F32, KR_DIMS(M, N)),
                    folded = kr_graph_temp(g, KRAIT_F32, KR_DIMS(K, 2 * N)),
                    gated = kr_graph_temp(g, KRAIT_F32, KR_DIMS(M, N));
    kr_graph_pointwise(g, "fold", times, WEIGHT(W, K, 2 * N),
                       kr_graph_expand(g, WEIGHT(taps, 1, 2 * N), KR_DIMS(K, 2 * N)), folded);
    const kr_tensor wide = kr_graph_call(g, "wide", &kr_op_gemm,
                                         &(kr_gemm_args){.A = kr_graph_view(g, tx),
                                                            .Bmat = kr_graph_view(g, folded),
                                                            .bias = kr_graph_view(g, WEIGHT(b, 2 * N)),
                                                            .out = kr_graph_auto()});
    kr_graph_pointwise(g, "gate", times, kr_graph_slice(g, wide, 1, 0, N), kr_graph_slice(g, wide, 1, N, N), gated);
    const kr_tensor last = kr_graph_call(g, "last", &kr_op_gemm,
                                         &(kr_gemm_args){.A = kr_graph_view(g, gated),
                                                            .Bmat = kr_graph_view(g, WEIGHT(V, N, N)),
                                                            .out = kr_graph_auto()});
    kr_graph_pointwise(g, "times", times, factor, last, to);
#undef WEIGHT
    assert_int_equal(kr_graph_plan(g, ctx, way & 2 ? KR_PLAN_CONSTANT : 0), KRAIT_OK);
    assert_int_equal(n_live(g), 5 - (way & 1 ? 2 : 0) - (way & 2 ? 1 : 0));
    assert_int_equal(kr_runner_open(g, &r), KRAIT_OK);
    kr_runner_bind(r, tx, x), kr_runner_bind(r, factor, other), kr_runner_bind(r, to, out[way]);
    assert_int_equal(kr_runner_run(r, NULL), KRAIT_OK);
    kr_runner_close(&r), kr_graph_close(&g);
    for (int i = 0; i < M * N; i++) assert_float_equal(out[way][i], out[0][i], 1e-4f);
  }
  krait_ctx_close(&ctx);
}

/* The gradient of Mamba 3's angles, which are rows of `place` expanded to (B,L,H,M). */
enum { M3_L = 5, M3_H = 3, M3_N = 8, M3_M = 4, M3_P = 4, M3_ANGLES = B * M3_L * M3_H * M3_M };
static void run_angles(krait_ctx *ctx, kr_dims place, float *angles, float *dangles) {
  static float x[B * M3_L * M3_H * M3_N], steps[3][B * M3_L * M3_H];
  kr_graph *g = NULL;
  kr_runner *r = NULL;
  random_state = 5;
  for (int i = 0; i < B * M3_L * M3_H * M3_N; i++) x[i] = (float)draw_backward();
  for (int i = 0; i < B * M3_L * M3_H; i++)
    steps[0][i] = (float)draw_backward() / 2 - 0.6f, steps[1][i] = 0.5f - steps[0][i] / 3, steps[2][i] = x[i];
  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
#define GIVEN(name, from, ...) kr_graph_view(g, kr_graph_weight(g, name, KRAIT_F32, KR_DIMS(__VA_ARGS__), from))
  const kr_tensor given = kr_graph_input(g, "angles", KRAIT_F32, place),
                  to = kr_graph_output(g, "dangles", KRAIT_F32, place),
                  out = kr_graph_output(g, "out", KRAIT_F32, KR_DIMS(B, M3_L, M3_H, M3_P)),
                  dout = kr_graph_weight(g, "dout", KRAIT_F32, KR_DIMS(B, M3_L, M3_H, M3_P), x + 7);
  kr_graph_call(g, "scan", &kr_op_mamba3,
                &(kr_mamba3_args){.eps = 1e-5f,
                                  .x = GIVEN("x", x, B, M3_L, M3_H, M3_P),
                                  .log_decay = GIVEN("log_decay", steps[0], B, M3_L, M3_H),
                                  .dt = GIVEN("dt", steps[1], B, M3_L, M3_H),
                                  .trap = GIVEN("trap", steps[2], B, M3_L, M3_H),
                                  .Bmat = GIVEN("B", x + 3, B, M3_L, 1, M3_N),
                                  .Cmat = GIVEN("C", x + 40, B, M3_L, 1, M3_N),
                                  .B_bias = GIVEN("B_bias", x + 9, M3_H, 1, M3_N),
                                  .C_bias = GIVEN("C_bias", x + 30, M3_H, 1, M3_N),
                                  .angles = kr_graph_view(g, kr_graph_expand(g, given, KR_DIMS(B, M3_L, M3_H, M3_M))),
                                  .out = kr_graph_view(g, out)});
#undef GIVEN
  assert_int_equal(kr_graph_backward(g, &(kr_gradient){out, dout}, 1, &(kr_gradient){given, to}, 1), KRAIT_OK);
  assert_int_equal(kr_graph_plan(g, ctx, 0), KRAIT_OK);
  assert_int_equal(kr_runner_open(g, &r), KRAIT_OK);
  static float y[B * M3_L * M3_H * M3_P];
  kr_runner_bind(r, given, angles), kr_runner_bind(r, to, dangles), kr_runner_bind(r, out, y);
  assert_int_equal(kr_runner_run(r, NULL), KRAIT_OK);
  kr_runner_close(&r), kr_graph_close(&g);
}

/* Over heads the gradient adds up by itself; over tokens, or over both, what it writes is added up. */
static void expanded_angles_get_sums(void **state) {
  const kr_dims places[] = {KR_DIMS(B, M3_L, 1, M3_M), KR_DIMS(B, 1, M3_H, M3_M), KR_DIMS(B, 1, 1, M3_M)};
  static float few[M3_ANGLES], all[M3_ANGLES], got[M3_ANGLES], each[M3_ANGLES];
  krait_ctx *ctx = open_backward_ctx();
  (void)state;
  for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
    const int L1 = places[k].size[1] > 1, H1 = places[k].size[2] > 1, n = (int)kr_dims_elements(places[k]);
    double want[M3_ANGLES] = {0};
    random_state = 9;
    for (int i = 0; i < n; i++) few[i] = (float)draw_backward();
    for (int i = 0; i < 2 * M3_ANGLES; i++) {
      const int m = i % M3_M, h = i / M3_M % M3_H, t = i / M3_M / M3_H % M3_L, b = i / M3_M / M3_H / M3_L % B,
                at = ((b * (L1 ? M3_L : 1) + (L1 ? t : 0)) * (H1 ? M3_H : 1) + (H1 ? h : 0)) * M3_M + m;
      if (i < M3_ANGLES)
        all[i] = few[at];
      else
        want[at] += (double)each[i - M3_ANGLES];
      if (i == M3_ANGLES - 1) run_angles(ctx, KR_DIMS(B, M3_L, M3_H, M3_M), all, each);
    }
    run_angles(ctx, places[k], few, got);
    for (int i = 0; i < n; i++) assert_float_equal(got[i], want[i], 1e-4f);
  }
  krait_ctx_close(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(agrees_with_finite_differences), cmocka_unit_test(recomputation_changes_no_bit),
      cmocka_unit_test(frozen_parameters_cost_nothing), cmocka_unit_test(faults_are_named),
      cmocka_unit_test(rewrites_change_nothing),        cmocka_unit_test(a_norm_adds),
      cmocka_unit_test(attention_has_its_gradient),     cmocka_unit_test(products_multiply),
      cmocka_unit_test(expanded_angles_get_sums)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
