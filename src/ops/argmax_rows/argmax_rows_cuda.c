/* argmax_rows_cuda.c: the launch. */
#include "argmax_rows/argmax_rows_plan.h"
#include "cuda_row.h"
#include "op_list.h"
#include "overlap.h"

static const kr_kernel kernel = {"argmax_rows", "kr_argmax_rows"};

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_argmax_rows_args *a = args;
  const kr_grid grid = {.x = (uint32_t)a->R,
                        .block = KR_ARGMAX_THREADS,
                        .is_ahead = (a->call.flags & KR_CALL_AHEAD) != 0,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernel, &grid, a, sizeof *a);
}

const char *kr_argmax_rows_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_argmax_rows_args *a = args;
  (void)ctx;
  return a->x.dtype == KRAIT_F64 ? "float64 tensors" : a->R >= 2147483648ll ? "2^31 rows or more" : NULL;
}

uint64_t kr_argmax_rows_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

KR_CUDA_TIERS(argmax_rows, run)
