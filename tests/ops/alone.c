/* alone.c: operators without graphs, blocks or models: a few random calls of each, in a program linked with the object
 * files of src/ops and the rooms below it alone (tests/api/rooms.py). */
#include <stdio.h>

#include "check.h"
#include "op_list.h"

int main(void) {
  krait_ctx *ctx = NULL;
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU};
  int64_t n_runs = 0;
  if (krait_ctx_open(&options, &ctx) < 0) return 2;
  for (int32_t i = 0; i < kr_n_op_list; i++) {
    const kr_check_options check = {.seed = 3, .n_cases = 3};
    kr_check_result result = {0};
    if (!kr_op_list[i]->make_case) continue;
    if (kr_check_op(ctx, kr_op_list[i], &check, &result) < 0 || result.n_failures) {
      fprintf(stderr, "%s: %s\n", kr_op_list[i]->name, result.n_failures ? "wrong" : krait_error_detail());
      return 1;
    }
    n_runs += result.n_runs;
  }
  krait_ctx_close(&ctx);
  printf("%d operators, %lld runs\n", (int)kr_n_op_list, (long long)n_runs);
  return n_runs < 3 * kr_n_op_list;
}
