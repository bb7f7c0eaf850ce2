/* example.c: docs/GRAPH.md's code, compiled and run: its gradients against finite differences. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "graph.h"
#include "mamba_block.h"
#include "op_list.h"
#include "status.h"

#include "graph_example.inc"

enum { B = 2, L = 9, M = 6, D = 12, N = 4, R = 2, N_WEIGHTS = 7 };

static uint32_t random_state = 3;
static float draw_example(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return ((float)(random_state >> 8) * 0x1p-24f - 0.5f) * 2;
}

static double loss_of(const layer *m, const float *x, const float *dy, float *y, float *dx, float *dw) {
  double sum = 0;
  assert_int_equal(run_layer(m, x, dy, y, dx, dw), KRAIT_OK);
  for (int i = 0; i < B * L * M; i++) sum += (double)y[i] * (double)dy[i];
  return sum;
}

static void says_what_it_does(void **state) {
  static float storage[N_WEIGHTS][512], x[B * L * M], dy[B * L * M], y[B * L * M], dx[B * L * M], dw[2 * D * M],
      other[2 * D * M];
  const float *weights[N_WEIGHTS];
  krait_ctx *ctx = NULL;
  layer m = {0};
  (void)state;
  for (int i = 0; i < N_WEIGHTS; i++) {
    weights[i] = storage[i];
    for (int k = 0; k < 512; k++) storage[i][k] = i == 5 ? -0.5f + 0.4f * draw_example() : 0.5f * draw_example();
  }
  for (int i = 0; i < B * L * M; i++) x[i] = draw_example(), dy[i] = draw_example();
  assert_int_equal(
      krait_ctx_open(
          &(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU, .n_threads = 2}, &ctx),
      KRAIT_OK);
  if (record_layer(&m, ctx, B, L, M, D, N, R, weights) < 0) fail_msg("%s", krait_error_detail());
  loss_of(&m, x, dy, y, dx, dw);
  for (int k = 0; k < 6; k++) {
    float *at[2] = {&x[k * 17], &storage[1][k * 23]};
    const float got[2] = {dx[k * 17], dw[k * 23]};
    for (int i = 0; i < 2; i++) {
      static float ignored[B * L * M];
      const float was = *at[i], step = 0.02f;
      double f[4];
      for (int s = 0; s < 4; s++)
        *at[i] = was + step * (float[]){1, -1, 2, -2}[s], f[s] = loss_of(&m, x, dy, y, ignored, other);
      *at[i] = was;
      const double want = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * (double)step);
      if (fabs(want - (double)got[i]) > 2e-3 * (1 + fabs(want)))
        fail_msg("gradient %d of %s is %g, differences give %g", k, i ? "in_proj" : "x", (double)got[i], want);
    }
  }
  kr_graph_close(&m.g);
  krait_ctx_close(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(says_what_it_does)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
