/* emulated_limits.c: the loops with which krait bench measures a GPU's limits, on the emulator. Usage: emulated_limits
 * LIBCUDA. */
#define _GNU_SOURCE
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "limits_params.h"
#include "status.h"

static void fake_device(int takes_together) { /* launches whose blocks wait for each other */
  char fake[80];
  snprintf(fake, sizeof fake, "capability=80,shared=232448,multiprocessors=16,together=%d", takes_together);
  setenv("KR_FAKE_CUDA", fake, 1);
}

static void limit_loops_do_what_is_counted(void **state) {
  static const kr_kernel kernels[] = {{"limits", "kr_limit_fmas"}, {"limits", "kr_limit_exps"}};
  static float out[2 * KR_LIMIT_THREADS];
  kr_limit_params plan = {.out = out, .factor = 0.999f, .summand = 0.001f, .rounds = 3};
  kr_cuda *cuda;
  (void)state;
  fake_device(1); /* with the exponentials */
  assert_int_equal(kr_cuda_open(0, KRAIT_CAPS_ALL, &cuda), KRAIT_OK);
  assert_true(kr_cuda_has_cooperative(cuda));
  for (int with_exps = 0; with_exps < 2; with_exps++) {
    const kr_grid grid = {.x = 2, .block = KR_LIMIT_THREADS, .is_cooperative = with_exps};
    memset(out, 0xff, sizeof out);
    assert_int_equal(kr_cuda_launch(cuda, KRAIT_CAP_CUDA_BASE, &kernels[with_exps], &grid, &plan, sizeof plan),
                     KRAIT_OK);
    for (int i = 0; i < 2 * KR_LIMIT_THREADS; i++) {
      double sum = 0;
      for (int k = 0; k < KR_LIMIT_CHAINS; k++) {
        double x = 0.001 * (i % KR_LIMIT_THREADS + k);
        for (int n = 0; n < plan.rounds * KR_LIMIT_STEPS; n++) x = with_exps ? exp(-x) : x * 0.999 + 0.001;
        sum += x;
      }
      assert_true(fabs(out[i] - sum) < 1e-4);
    }
  }
  const kr_grid too_many = {.x = 4096, .block = KR_LIMIT_THREADS, .is_cooperative = 1};
  assert_int_equal(kr_cuda_launch(cuda, KRAIT_CAP_CUDA_BASE, kernels, &too_many, &plan, sizeof plan),
                   KRAIT_ERR_DRIVER);
  kr_cuda_close(&cuda);
  fake_device(0);
  assert_int_equal(kr_cuda_open(0, KRAIT_CAPS_ALL, &cuda), KRAIT_OK);
  assert_false(kr_cuda_has_cooperative(cuda));
  kr_cuda_close(&cuda);
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  setenv("KRAIT_LIBCUDA", argv[1], 1);
  if (!kr_cuda_built_tiers()) return 77;
  const struct CMUnitTest tests[] = {cmocka_unit_test(limit_loops_do_what_is_counted)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
