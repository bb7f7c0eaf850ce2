/* plan.c: the planner on random graphs: sharing memory must not change a bit compared with no sharing, from poisoned
 * memory; and planted faults must be found by the plan's check and by the comparison. */
#include <stdlib.h>

#include "../test.h"
#include "graph_parts.h"
#include "graph_runner.h"
#include "op_list.h"
#include "overlap.h"

enum { MOST = 64, N_OUTPUTS = 3 };

static uint32_t random_state;
static int64_t draw_plan(int64_t low, int64_t high) {
  random_state = random_state * 1664525u + 1013904223u;
  return low + (int64_t)((random_state >> 8) % (uint32_t)(high - low + 1));
}
static float draw_value(void) { return (float)draw_plan(-1000, 1000) * 1e-3f; }

static krait_ctx *open_plan_ctx(void) {
  krait_ctx *ctx = NULL;
  assert_int_equal(
      krait_ctx_open(
          &(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU, .n_threads = 1}, &ctx),
      KRAIT_OK);
  return ctx;
}

typedef struct world {
  kr_graph *g;
  kr_tensor live[MOST], input, outputs[N_OUTPUTS];
  int n_live;
  float *weights; /* of all products */
  int64_t rows;
} world;

static const int64_t n_weights = 64 * 64;

static void product(world *w, kr_tensor x, kr_tensor residual, kr_tensor out) {
  const int64_t K = kr_graph_dims(w->g, x).size[1], N = kr_graph_dims(w->g, out).size[1];
  const kr_tensor weight = kr_graph_weight(w->g, "weight", KRAIT_F32, KR_DIMS(K, N), w->weights);
  kr_graph_call(w->g, "product", &kr_op_gemm,
                &(kr_gemm_args){.A = kr_graph_view(w->g, x),
                                   .Bmat = kr_graph_view(w->g, weight),
                                   .residual = kr_graph_view(w->g, residual),
                                   .out = kr_graph_view(w->g, out)});
}

static void norm(world *w, kr_tensor x, kr_tensor out) {
  kr_graph_call(
      w->g, "norm", &kr_op_add_norm,
      &(kr_add_norm_args){
          .call.flags = KRAIT_NORM_RMS, .eps = 1e-5f, .x = kr_graph_view(w->g, x), .out = kr_graph_view(w->g, out)});
}

/* Products, norms, residuals, slices, values used many times, values never used. */
static void grow(world *w, uint32_t seed, int n_nodes) {
  random_state = seed;
  assert_int_equal(kr_graph_open(&w->g), KRAIT_OK);
  w->rows = draw_plan(1, 40);
  w->input = kr_graph_input(w->g, "x", KRAIT_F32, KR_DIMS(w->rows, draw_plan(2, 60)));
  w->live[w->n_live++] = w->input;
  for (int i = 0; i < n_nodes; i++) {
    const kr_tensor x = w->live[draw_plan(0, w->n_live - 1)];
    const int64_t M = kr_graph_dims(w->g, x).size[1], N = draw_plan(1, 60), kind = draw_plan(0, 3);
    const kr_tensor out = kr_graph_temp(w->g, KRAIT_F32, KR_DIMS(w->rows, kind == 0 ? M : N));
    if (kind == 0) norm(w, x, out);
    else product(w, x, 0, out);
    if (kind == 2) product(w, x, out, out); /* in place */
    w->live[w->n_live++] = out;
    if (kind == 3 && N > 1) {
      const int64_t from = draw_plan(0, N - 1);
      w->live[w->n_live++] = kr_graph_slice(w->g, out, 1, from, draw_plan(1, N - from));
    }
  }
  for (int i = 0; i < N_OUTPUTS; i++) {
    w->outputs[i] = kr_graph_output(w->g, "y", KRAIT_F32, KR_DIMS(w->rows, 7));
    product(w, w->live[i ? draw_plan(0, w->n_live - 1) : w->n_live - 1], 0, w->outputs[i]);
  }
  assert_int_equal(kr_graph_status(w->g), KRAIT_OK);
}

static void run_in_parts(kr_runner *r) {
  for (double share = 0; share < 1; share += (double)draw_plan(0, 40) / 100)
    assert_int_equal(kr_runner_run_share(r, share, NULL), KRAIT_OK);
  assert_int_equal(kr_runner_run_share(r, 1, NULL), KRAIT_OK);
}

static void run_plan(world *w, const float *x, float *y) {
  kr_runner *r = NULL;
  assert_int_equal(kr_runner_open(w->g, &r), KRAIT_OK);
  memset(r->memory, 0xfb, kr_graph_bytes(w->g));
  assert_int_equal(kr_runner_bind(r, w->input, (void *)x), KRAIT_OK);
  for (int i = 0; i < N_OUTPUTS; i++) assert_int_equal(kr_runner_bind(r, w->outputs[i], y + i * w->rows * 7), KRAIT_OK);
  for (int again = 0; again < 2; again++) { /* the second time in random shares, of times as measured or without */
    if (again && draw_plan(0, 1)) assert_int_equal(kr_runner_weigh(r), KRAIT_OK);
    memset(y, 0, (size_t)(N_OUTPUTS * w->rows * 7) * sizeof *y);
    if (again) run_in_parts(r);
    else assert_int_equal(kr_runner_run(r, NULL), KRAIT_OK);
  }
  kr_runner_close(&r);
}

/* Two temps that live at the same time. */
static int share_two(kr_graph *g) {
  for (size_t i = 0; i < g->storages.n; i++)
    for (size_t k = i + 1; k < g->storages.n; k++) {
      kr_storage *a = KR_STORAGE(g, i), *b = KR_STORAGE(g, k);
      if (a->home != KR_HOME_TEMP || b->home != KR_HOME_TEMP || a->last < 0 || b->last < 0 || b->first >= a->last ||
          a->first >= b->last || b->first == a->first)
        continue;
      if (a->bytes < b->bytes) a->at = b->at;
      else b->at = a->at;
      return 1;
    }
  return 0;
}

static float *fill_plan(int64_t n) {
  float *x = malloc((size_t)n * sizeof *x);
  assert_non_null(x);
  for (int64_t i = 0; i < n; i++) x[i] = draw_value();
  return x;
}

static void sharing_changes_nothing(void **state) {
  krait_ctx *ctx = open_plan_ctx();
  int n_planted = 0, n_seen = 0;
  uint64_t shared_bytes = 0, apart_bytes = 0;
  (void)state;
  for (uint32_t seed = 1; seed <= 150; seed++) {
    random_state = seed;
    world w[3] = {0};
    const int n_nodes = (int)draw_plan(1, 20);
    float *weights = fill_plan(n_weights), *x = fill_plan(40 * 60), *y[3];
    for (int i = 0; i < 3; i++) {
      w[i].weights = weights;
      grow(&w[i], seed * 7919, n_nodes);
      y[i] = fill_plan(N_OUTPUTS * 40 * 7);
      assert_int_equal(kr_graph_plan(w[i].g, ctx, i == 1 ? KR_PLAN_NO_REUSE : 0), KRAIT_OK);
      assert_int_equal(kr_graph_check_plan(w[i].g), KRAIT_OK);
    }
    shared_bytes += kr_graph_bytes(w[0].g), apart_bytes += kr_graph_bytes(w[1].g);
    const int planted = share_two(w[2].g);
    if (planted) assert_int_equal(kr_graph_check_plan(w[2].g), KRAIT_ERR_ARGUMENT);
    for (int i = 0; i < 3; i++) run_plan(&w[i], x, y[i]);
    const size_t bytes = (size_t)(N_OUTPUTS * w[0].rows * 7) * sizeof(float);
    assert_memory_equal(y[0], y[1], bytes);
    n_planted += planted, n_seen += planted && memcmp(y[0], y[2], bytes) != 0;
    for (int i = 0; i < 3; i++) {
      kr_graph_close(&w[i].g);
      free(y[i]);
    }
    free(weights), free(x);
  }
  print_message("  arena %.2f of the tensors; %d plans with a planted fault, %d of them seen in the results\n",
                (double)shared_bytes / (double)apart_bytes, n_planted, n_seen);
  assert_true(n_planted > 50 && n_seen > n_planted * 9 / 10);
  assert_true(shared_bytes < apart_bytes * 3 / 4);
  krait_ctx_close(&ctx);
}

/* ---- states ---- */

static void states_live_from_run_to_run(void **state) {
  krait_ctx *ctx = open_plan_ctx();
  kr_graph *g = NULL;
  kr_runner *r[2] = {NULL, NULL};
  enum { B = 2, D = 5, W = 4, L = 12 };
  float x[B * D * L], weight[D * W], whole[B * D * L], step_in[B * D], step_out[B * D];
  (void)state;
  random_state = 5;
  for (int i = 0; i < B * D * L; i++) x[i] = draw_value();
  for (int i = 0; i < D * W; i++) weight[i] = draw_value();
  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  const kr_tensor in = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(B, D, 1)),
                  out = kr_graph_output(g, "y", KRAIT_F32, KR_DIMS(B, D, 1)),
                  w = kr_graph_weight(g, "w", KRAIT_F32, KR_DIMS(D, W), weight);
  const kr_tensor past = kr_graph_state(g, "past", KRAIT_F32, KR_DIMS(B, D, W));
  kr_graph_call(g, "conv", &kr_op_causal_conv1d_update, &(kr_causal_conv1d_update_args){.x = kr_graph_view(g, in),
                .conv_state = kr_graph_view(g, past), .weight = kr_graph_view(g, w), .out = kr_graph_view(g, out)});
  assert_int_equal(kr_graph_plan(g, ctx, 0), KRAIT_OK);
  kr_causal_conv1d_args all = {.call.size = sizeof all,
                                  .B = B,
                                  .D = D,
                                  .L = L,
                                  .W = W,
                                  .x = {x, {D * L, L, 1}, KRAIT_F32, 0},
                                  .weight = {weight, {W, 1}, KRAIT_F32, 0},
                                  .out = {whole, {D * L, L, 1}, KRAIT_F32, 0}};
  uint64_t bytes = 0;
  assert_int_equal(kr_op_scratch_bytes(&kr_op_causal_conv1d, ctx, &all, &bytes), KRAIT_OK);
  assert_int_equal(bytes, 0);
  assert_int_equal(kr_op_run(&kr_op_causal_conv1d, ctx, &all), KRAIT_OK);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(kr_runner_open(g, &r[i]), KRAIT_OK);
    assert_int_equal(kr_runner_bind(r[i], in, step_in), KRAIT_OK);
    assert_int_equal(kr_runner_bind(r[i], out, step_out), KRAIT_OK);
  }
  for (int round = 0; round < 2; round++) {
    for (int t = 0; t < L; t++) { /* the second timeline gets each input twice and must not affect the first */
      for (int i = 0; i < B * D; i++) step_in[i] = x[i * L + t];
      for (int k = 0; k < 2; k++) assert_int_equal(kr_runner_run(r[1], NULL), KRAIT_OK);
      assert_int_equal(kr_runner_run(r[0], NULL), KRAIT_OK);
      for (int i = 0; i < B * D; i++) assert_float_equal(step_out[i], whole[i * L + t], 1e-5f);
    }
    assert_int_equal(kr_runner_reset(r[0], NULL), KRAIT_OK);
  }
  for (int i = 0; i < 2; i++) kr_runner_close(&r[i]);
  kr_graph_close(&g);
  krait_ctx_close(&ctx);
}

/* ---- builder errors ---- */

static void plan_expect(kr_graph **g, int32_t status, const char *sentence) {
  assert_int_equal(kr_graph_status(*g), status);
  assert_string_equal(krait_error_detail(), sentence);
  kr_graph_close(g);
}

static void faults_name_the_node(void **state) {
  krait_ctx *ctx = open_plan_ctx();
  kr_graph *g = NULL;
  (void)state;
  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  kr_tensor x = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(4, 6)),
            w = kr_graph_weight(g, "w", KRAIT_F32, KR_DIMS(7, 3), NULL), y = kr_graph_temp(g, KRAIT_F32, KR_DIMS(4, 3));
  kr_graph_call(g, "lift", &kr_op_gemm,
                &(kr_gemm_args){.A = kr_graph_view(g, x), .Bmat = kr_graph_view(g, w), .out = kr_graph_view(g, y)});
  kr_graph_slice(g, y, 5, 0, 1); /* the first failure stays */
  plan_expect(&g, KRAIT_ERR_SHAPE,
              "graph: node lift: gemm: Bmat is (7,3), must be (K,N) = (6,3): its dimension K is 7, not 6");

  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  x = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(4, 6)), w = kr_graph_weight(g, "w", KRAIT_F16, KR_DIMS(6, 3), NULL),
  y = kr_graph_temp(g, KRAIT_F16, KR_DIMS(4, 3));
  kr_graph_call(g, "lift", &kr_op_gemm,
                &(kr_gemm_args){.A = kr_graph_view(g, x), .Bmat = kr_graph_view(g, w), .out = kr_graph_view(g, y)});
  plan_expect(&g, KRAIT_ERR_DTYPE, "graph: node lift: gemm: out is float16 but A is float32");

  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  x = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(4, 6));
  kr_graph_reshape(g, kr_graph_slice(g, x, 1, 1, 4), KR_DIMS(16));
  plan_expect(&g, KRAIT_ERR_SHAPE, "graph: x (4,4) cannot be reshaped to (16) without a copy");

  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  x = kr_graph_temp(g, KRAIT_F32, KR_DIMS(4, 6)), y = kr_graph_output(g, "y", KRAIT_F32, KR_DIMS(4, 6));
  kr_graph_call(g, "norm", &kr_op_add_norm,
                &(kr_add_norm_args){.eps = 1, .x = kr_graph_view(g, x), .out = kr_graph_view(g, y)});
  assert_int_equal(kr_graph_plan(g, ctx, 0), KRAIT_ERR_ARGUMENT);
  plan_expect(&g, KRAIT_ERR_ARGUMENT, "graph: node norm (add_norm) reads tensor ?, which no earlier node writes");

  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  x = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(4, 6)), y = kr_graph_output(g, "y", KRAIT_F32, KR_DIMS(4, 6));
  kr_graph_call(g, "norm", &kr_op_add_norm,
                &(kr_add_norm_args){.eps = 1, .x = kr_graph_view(g, x), .out = kr_graph_view(g, y)});
  assert_int_equal(kr_graph_plan(g, ctx, 0), KRAIT_OK);
  kr_runner *r = NULL;
  assert_int_equal(kr_runner_open(g, &r), KRAIT_OK);
  assert_int_equal(kr_runner_run(r, NULL), KRAIT_ERR_ARGUMENT);
  assert_string_equal(krait_error_detail(), "graph: node norm: x is not bound");
  kr_runner_close(&r);
  kr_graph_close(&g);
  krait_ctx_close(&ctx);
}

/* A norm with a gain, and a convolution step; gain or state may have been written by an earlier call. */
static void bits_of(int gain_is_written, int state_is_written, uint32_t *norm, uint32_t *step) {
  static float gain[8], taps[8 * 4];
  kr_graph *g;
  krait_ctx *ctx = open_plan_ctx();
  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  const kr_tensor x = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(2, 8)),
                  y = kr_graph_output(g, "y", KRAIT_F32, KR_DIMS(2, 8)),
                  out = kr_graph_output(g, "out", KRAIT_F32, KR_DIMS(2, 8, 1)),
                  state = kr_graph_output(g, "state", KRAIT_F32, KR_DIMS(2, 8, 3)),
                  w = kr_graph_weight(g, "taps", KRAIT_F32, KR_DIMS(8, 4), taps),
                  from = kr_graph_input(g, "from", KRAIT_F32, KR_DIMS(8)),
                  other = kr_graph_input(g, "other", KRAIT_F32, KR_DIMS(2, 8, 3));
  const kr_tensor by = gain_is_written ? kr_graph_temp(g, KRAIT_F32, KR_DIMS(8))
                                       : kr_graph_weight(g, "gain", KRAIT_F32, KR_DIMS(8), gain);
  if (gain_is_written) kr_graph_pointwise(g, "gain", (kr_pointwise_args){.x_scale = 2}, from, 0, by);
  if (state_is_written) kr_graph_pointwise(g, "state", (kr_pointwise_args){.x_scale = 1}, other, 0, state);
  const size_t first = g->nodes.n;
  kr_graph_call(g, "norm", &kr_op_add_norm,
                &(kr_add_norm_args){.call.flags = KRAIT_NORM_RMS,
                                       .eps = 1e-5f,
                                       .x = kr_graph_view(g, x),
                                       .weight = kr_graph_view(g, by),
                                       .out = kr_graph_view(g, y)});
  kr_graph_call(g, "step", &kr_op_causal_conv1d_update,
                &(kr_causal_conv1d_update_args){.x = kr_graph_view(g, kr_graph_reshape(g, x, KR_DIMS(2, 8, 1))),
                                                   .conv_state = kr_graph_view(g, state),
                                                   .weight = kr_graph_view(g, w),
                                                   .out = kr_graph_view(g, out)});
  if (kr_graph_plan(g, ctx, 0) < 0) fail_msg("%s", krait_error_detail());
  *norm = KR_NODE(g, first)->ahead, *step = KR_NODE(g, first + 1)->ahead;
  kr_graph_close(&g);
  krait_ctx_close(&ctx);
}

/* A kernel may read early, before the previous one ends, only what no call, or no earlier call, of the graph writes. */
static void what_calls_write_is_not_read_ahead(void **state) {
  const uint32_t all = KR_CALL_PDL | KR_CALL_STATE_PDL;
  uint32_t norm, step;
  (void)state;
  bits_of(0, 0, &norm, &step);
  assert_int_equal(norm, all), assert_int_equal(step, all);
  bits_of(1, 0, &norm, &step);
  assert_int_equal(norm, 0), assert_int_equal(step, all);
  bits_of(0, 1, &norm, &step);
  assert_int_equal(norm, all), assert_int_equal(step, KR_CALL_PDL);
}

/* A square product that is read transposed, multiplied or added to: no factor and no residual of the product. */
static void a_transpose_is_not_the_product(void **state) {
  enum { N = 6, K = 3 };
  float x[N * K], weight[K * N], other[N * N], y[N * N];
  (void)state;
  random_state = 6;
  for (int i = 0; i < N * K; i++) x[i] = draw_value(), weight[i] = draw_value();
  for (int i = 0; i < N * N; i++) other[i] = draw_value();
  for (int adds = 0; adds < 2; adds++) {
    krait_ctx *ctx = open_plan_ctx();
    kr_graph *g = NULL;
    kr_runner *r = NULL;
    assert_int_equal(kr_graph_open(&g), KRAIT_OK);
    const kr_tensor in = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(N, K)),
                    by = kr_graph_input(g, "other", KRAIT_F32, KR_DIMS(N, N)),
                    w = kr_graph_weight(g, "w", KRAIT_F32, KR_DIMS(K, N), weight),
                    product = kr_graph_temp(g, KRAIT_F32, KR_DIMS(N, N)),
                    out = kr_graph_output(g, "y", KRAIT_F32, KR_DIMS(N, N));
    kr_graph_call(
        g, "product", &kr_op_gemm,
        &(kr_gemm_args){.A = kr_graph_view(g, in), .Bmat = kr_graph_view(g, w), .out = kr_graph_view(g, product)});
    const kr_pointwise_args how = {
        .call.flags = adds ? 0 : KRAIT_POINTWISE_PRODUCT, .x_scale = 1, .y_scale = (float)adds};
    kr_graph_pointwise(g, "with", how, kr_graph_permute(g, product, (int[]){1, 0}), by, out);
    if (kr_graph_plan(g, ctx, 0) < 0 || kr_runner_open(g, &r) < 0) fail_msg("%s", krait_error_detail());
    kr_runner_bind(r, in, x), kr_runner_bind(r, by, other), kr_runner_bind(r, out, y);
    assert_int_equal(kr_runner_run(r, NULL), KRAIT_OK);
    for (int i = 0; i < N * N; i++) {
      float sum = 0;
      for (int k = 0; k < K; k++) sum += x[i % N * K + k] * weight[k * N + i / N];
      assert_float_equal(y[i], adds ? sum + other[i] : sum * other[i], 1e-5f);
    }
    kr_runner_close(&r), kr_graph_close(&g), krait_ctx_close(&ctx);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(sharing_changes_nothing),
                                     cmocka_unit_test(states_live_from_run_to_run),
                                     cmocka_unit_test(faults_name_the_node),
                                     cmocka_unit_test(a_transpose_is_not_the_product),
                                     cmocka_unit_test(what_calls_write_is_not_read_ahead)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
