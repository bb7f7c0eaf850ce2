/* map_slices.c: a map processed slice by slice equals the whole, along either dimension, with a remainder after the
 * last slice, in place, on any number of threads and by reference implementations; overlapping windows; invalid calls.
 */
#include <math.h>

#include "../test.h"
#include "graph.h"
#include "op_list.h"

enum { H = 11, W = 7, C = 6, N = 5 };

static float x[H * W * C], weight[N * 3 * C], bias[N];

static krait_ctx *open_map_slices_ctx(int32_t n_threads) {
  krait_ctx *ctx = NULL;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = n_threads};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  return ctx;
}

static void fill_map_slices(void) {
  uint32_t state = 5;
  float *const all[] = {x, weight, bias};
  const int n[] = {H * W * C, N * 3 * C, N};
  for (int k = 0; k < 3; k++)
    for (int i = 0; i < n[k]; i++) {
      state = state * 1664525u + 1013904223u;
      all[k][i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
}

/* Every other position along H with its two neighbours, times a weight: (H,n,C) to ((H-1)/2,n,N). */
static void record_windows(void *user, kr_graph *g, kr_tensor from, kr_tensor out) {
  const int64_t n = kr_graph_dims(g, from).size[1];
  (void)user;
  for (int64_t k = 0; k < n; k++) {
    const kr_tensor rows = kr_graph_reshape(g, kr_graph_slice(g, from, 1, k, 1), KR_DIMS(H, C)),
                    windows = kr_graph_reshape(g, kr_graph_windows(g, rows, 0, 3, 2), KR_DIMS((H - 1) / 2, 3 * C)),
                    to = kr_graph_reshape(g, kr_graph_slice(g, out, 1, k, 1), KR_DIMS((H - 1) / 2, N)),
                    w = kr_graph_weight(g, "weight", KRAIT_F32, KR_DIMS(N, 3 * C), weight),
                    b = kr_graph_weight(g, "bias", KRAIT_F32, KR_DIMS(N), bias);
    kr_graph_call(g, "windows", &kr_op_gemm,
                  &(kr_gemm_args){.A = kr_graph_view(g, windows),
                                     .Bmat = kr_graph_view(g, kr_graph_permute(g, w, (int[]){1, 0})),
                                     .bias = kr_graph_view(g, b),
                                     .out = kr_graph_view(g, to)});
  }
}

static void products_of_windows(void **state) {
  static const int32_t threads[] = {1, 3, 1};
  static const uint32_t flags[] = {0, KR_PLAN_CONSTANT, KR_PLAN_REFERENCE};
  (void)state;
  fill_map_slices();
  for (int64_t n = 1; n <= W + 1; n++)
    for (int k = 0; k < 3; k++) {
      float out[(H - 1) / 2 * W * N];
      krait_ctx *ctx = open_map_slices_ctx(threads[k]);
      kr_graph *g;
      kr_runner *r;
      assert_int_equal(kr_graph_open(&g), KRAIT_OK);
      const kr_tensor in = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(W, H, C)),
                      to = kr_graph_output(g, "out", KRAIT_F32, KR_DIMS((H - 1) / 2, W, N));
      kr_graph_map_slices(g, "down", 1, n, record_windows, NULL, kr_graph_permute(g, in, (int[]){1, 0, 2}), to);
      if (kr_graph_plan(g, flags[k] & KR_PLAN_REFERENCE ? NULL : ctx, flags[k]) < 0)
        fail_msg("%s", krait_error_detail());
      assert_true(kr_graph_cost(g).flops > 0);
      assert_int_equal(kr_runner_open(g, &r), KRAIT_OK);
      kr_runner_bind(r, in, x), kr_runner_bind(r, to, out);
      for (int again = 0; again < 2; again++)
        if (kr_runner_run(r, NULL) < 0) fail_msg("%s", krait_error_detail());
      for (int h = 0; h < (H - 1) / 2; h++)
        for (int w = 0; w < W; w++)
          for (int o = 0; o < N; o++) {
            double want = (double)bias[o];
            for (int i = 0; i < 3 * C; i++)
              want += (double)weight[o * 3 * C + i] * (double)x[(w * H + 2 * h + i / C) * C + i % C];
            assert_true(fabs(want - (double)out[(h * W + w) * N + o]) < 1e-5);
          }
      kr_runner_close(&r), kr_graph_close(&g), krait_ctx_close(&ctx);
    }
}

/* x + 3 in place, through a copy. */
static void record_sum(void *user, kr_graph *g, kr_tensor from, kr_tensor out) {
  const kr_tensor own = kr_graph_temp(g, KRAIT_F32, kr_graph_dims(g, from));
  ++*(int *)user;
  kr_graph_pointwise(g, "copy", (kr_pointwise_args){.x_scale = 3}, from, 0, own);
  kr_graph_pointwise(g, "sum", (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, own, from, out);
}

static void in_place(void **state) {
  (void)state;
  fill_map_slices();
  for (int dim = 0; dim < 3; dim++)
    for (int64_t n = 1; n <= 8; n += 3) {
      float out[H * W * C];
      int n_recorded = 0;
      const int64_t all = (int64_t[]){H, W, C}[dim];
      krait_ctx *ctx = open_map_slices_ctx(2);
      kr_graph *g;
      kr_runner *r;
      assert_int_equal(kr_graph_open(&g), KRAIT_OK);
      const kr_tensor in = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(H, W, C)),
                      own = kr_graph_temp(g, KRAIT_F32, KR_DIMS(H, W, C)),
                      to = kr_graph_output(g, "out", KRAIT_F32, KR_DIMS(H, W, C));
      kr_graph_pointwise(g, "x", (kr_pointwise_args){.x_scale = 1}, in, 0, own);
      kr_graph_map_slices(g, "sum", dim, n, record_sum, &n_recorded, own, own);
      kr_graph_pointwise(g, "out", (kr_pointwise_args){.x_scale = 1}, own, 0, to);
      assert_int_equal(n_recorded, (all >= n) + (all % n > 0));
      if (kr_graph_plan(g, ctx, 0) < 0) fail_msg("%s", krait_error_detail());
      assert_int_equal(kr_runner_open(g, &r), KRAIT_OK);
      kr_runner_bind(r, in, x), kr_runner_bind(r, to, out);
      if (kr_runner_run(r, NULL) < 0) fail_msg("%s", krait_error_detail());
      for (int i = 0; i < H * W * C; i++) assert_true(fabsf(out[i] - 4 * x[i]) < 1e-6f);
      kr_runner_close(&r), kr_graph_close(&g), krait_ctx_close(&ctx);
    }
}

static void record_nonsense(void *user, kr_graph *g, kr_tensor from, kr_tensor out) {
  (void)user;
  kr_graph_call(g, "odd", &kr_op_gemm,
                &(kr_gemm_args){
                    .A = kr_graph_view(g, from), .Bmat = kr_graph_view(g, from), .out = kr_graph_view(g, out)});
}

static void expect_failure(int dim, int64_t n, int64_t out_w, kr_slice_fn *fn, const char *words) {
  int n_recorded = 0;
  kr_graph *g;
  assert_int_equal(kr_graph_open(&g), KRAIT_OK);
  kr_graph_map_slices(g, "part", dim, n, fn, &n_recorded, kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(4, 3)),
                kr_graph_output(g, "out", KRAIT_F32, KR_DIMS(4, out_w)));
  assert_int_equal(kr_graph_status(g), KRAIT_ERR_SHAPE);
  if (!strstr(krait_error_detail(), words)) fail_msg("'%s' does not say '%s'", krait_error_detail(), words);
  kr_graph_close(&g);
}

static void mismatches(void **state) {
  (void)state;
  expect_failure(1, 1, 2, record_sum, "slices of 1 along dimension 1 of (4,3) and (4,2)");
  expect_failure(2, 1, 3, record_sum, "dimension 2");
  expect_failure(0, 0, 3, record_sum, "slices of 0");
  expect_failure(0, 2, 3, record_nonsense, "node part: graph: node odd");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(products_of_windows), cmocka_unit_test(in_place),
                                     cmocka_unit_test(mismatches)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
