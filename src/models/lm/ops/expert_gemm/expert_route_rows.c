/* expert_route_rows.c: the choice of experts on a CPU: the reference's rows over threads. It is a small part of a
 * layer, and a choice should not depend on a vector's rounding. */
#include "expert_gemm/expert_route.h"

static void route_rows(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (int64_t t = begin; t < end; t++) kr_expert_route_row(user, t);
}

const char *kr_expert_route_rows_refuse(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, NULL; }

int32_t kr_expert_route_rows(const krait_ctx *ctx, const void *args) {
  const kr_expert_route_args *a = args;
  kr_parallel(ctx, a->T, 1 + 2048 / a->E, route_rows, (void *)a);
  return KRAIT_OK;
}
