/* checkop_bare.c: every op's implementations against the reference, without cmocka: for machines without packages, such
 * as emulated ones. Usage: checkop [CASES per op [PART PARTS]] (0 2: every other op); exit status 1 if an
 * implementation differs. */
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "all_ops.h"

static void print_checkop_bare_line(void *user, const char *line) {
  (void)user;
  printf("  %s\n", line);
}

int main(int argc, char **argv) {
  krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 2};
  krait_ctx *ctx;
  char caps[256];
  int64_t n_failures = 0;
  if (krait_ctx_open(&options, &ctx) < 0) return 2;
  krait_caps_format(krait_ctx_caps(ctx), caps, sizeof caps);
  for (int32_t i = argc > 3 ? atoi(argv[2]) : 0; i < kr_n_ops; i += argc > 3 ? atoi(argv[3]) : 1) {
    kr_check_options check = {.seed = 1, .n_cases = argc > 1 ? atol(argv[1]) : 40, .report = print_checkop_bare_line};
    kr_check_result result;
    if (!kr_ops[i]->make_case) continue;
    if (kr_check_op(ctx, kr_ops[i], &check, &result) < 0) return 2;
    printf("%-28s caps %s: %lld runs, %lld failures, worst %.2f of the bound\n", kr_ops[i]->name, caps,
           (long long)result.n_runs, (long long)result.n_failures, result.worst);
    n_failures += result.n_failures;
  }
  krait_ctx_close(&ctx);
  return n_failures > 0;
}
