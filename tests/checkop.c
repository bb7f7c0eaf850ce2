/* checkop.c: checks every implementation of every op in ops.def against its reference, under every mask. One cmocka
 * test per op and mask. Usage: checkop [OP]. KR_CHECK_SEED fixes the seed, KR_CHECK_PERCENT scales the number of cases
 * (sanitizer runs). KR_CHECK_DEVICE=cuda: the first GPU's implementations instead, once per tier; KR_CHECK_IMPL: only
 * implementations with this name prefix. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "check.h"
#include "all_ops.h"

static uint64_t seed;
static int64_t percent = 100;

/* Without a mask every implementation of the machine runs every case. Under a mask the same ones run again, but for
 * those left out; what the mask shows, which of them is taken and what is composed of the others, a third of the cases
 * do. */
static int64_t case_count(const kr_op *op, int mask) {
  const int64_t n = op->n_cases * percent / 100 / (mask ? 3 : 1), least = mask ? 2 : 8;
  return n > least ? n : least;
}

static void print_checkop_line(void *user, const char *line) {
  (void)user;
  print_error("  %s\n", line);
}

/* Each mask removes the best remaining ISA, like `krait --caps`. */
static const char *const masks[] = {"all", "-avx512,-avx512_bf16,-avx512_fp16", "cpu"};

static const char *const gpu_masks[] = {"all", "-cuda_hopper", "-cuda_hopper,-cuda_ampere",
                                        "-cuda_hopper,-cuda_ampere,-cuda_turing"};
enum { N_MASKS = sizeof masks / sizeof *masks, N_GPU_MASKS = sizeof gpu_masks / sizeof *gpu_masks };

static void check_under_masks(void **state) {
  const kr_op *op = *state;
  const char *const device = getenv("KR_CHECK_DEVICE");
  const int on_gpu = device && strcmp(device, "cuda") == 0;
  int64_t n_failures = 0;
  for (int m = 0; m < (on_gpu ? N_GPU_MASKS : N_MASKS); m++) {
    krait_ctx_options options = {.size = sizeof options, .device = on_gpu ? KRAIT_DEVICE_CUDA(0) : KRAIT_DEVICE_CPU};
    krait_ctx *ctx;
    assert_int_equal(krait_caps_parse(on_gpu ? gpu_masks[m] : masks[m], &options.caps_mask), KRAIT_OK);
    assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
    kr_check_options check = {.seed = seed + (uint64_t)m,
                              .n_cases = case_count(op, on_gpu ? 0 : m),
                              .impl = getenv("KR_CHECK_IMPL"),
                              .report = print_checkop_line};
    kr_check_result result;
    assert_int_equal(kr_check_op(ctx, op, &check, &result), KRAIT_OK);
    print_message("  %-28s caps %-36s %6lld runs (%lld hard), %5lld refused, worst %.2f of the bound\n", op->name,
                  on_gpu ? gpu_masks[m] : masks[m], (long long)result.n_runs, (long long)result.n_hard,
                  (long long)result.n_refused, result.worst);
    n_failures += result.n_failures;
    krait_ctx_close(&ctx);
  }
  assert_int_equal(n_failures, 0);
}

int main(int argc, char **argv) {
  const char *given = getenv("KR_CHECK_SEED");
  seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
  const char *scale = getenv("KR_CHECK_PERCENT");
  if (scale) percent = strtoll(scale, NULL, 10);
  print_message("seed %llu\n", (unsigned long long)seed);
  struct CMUnitTest *tests = calloc((size_t)kr_n_ops, sizeof *tests);
  size_t n_tests = 0;
  for (int32_t i = 0; i < kr_n_ops; i++)
    if (argc < 2 || strcmp(argv[1], kr_ops[i]->name) == 0)
      tests[n_tests++] = (struct CMUnitTest){kr_ops[i]->name, check_under_masks, NULL, NULL, (void *)kr_ops[i]};
  if (!n_tests) {
    fprintf(stderr, "checkop: no such op: %s\n", argc > 1 ? argv[1] : "");
    return 2;
  }
  int failed = _cmocka_run_group_tests("checkop", tests, n_tests, NULL, NULL);
  free(tests);
  return failed;
}
