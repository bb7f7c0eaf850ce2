/* gather_rows_cuda.c: the launch. */
#include "cuda_impl.h"
#include "gather_rows/gather_rows_params.h"
#include "op_list.h"

static const kr_kernel gather = {"gather_rows", "kr_gather_rows"}, packs = {"gather_rows", "kr_gather_rows_packs"};

static int is_packed_for_gather(const kr_view *v, int64_t M, int64_t E) {
  return (v->stride[1] == 1 || M == 1) && v->stride[0] % E == 0 && (uintptr_t)v->data % 16 == 0;
}

static int32_t run_gather(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_gather_rows_args *a = args;
  const int64_t E = a->out.dtype == KRAIT_F32 ? 4 : 8;
  const int packed = a->table.dtype == a->out.dtype && a->M % E == 0 && is_packed_for_gather(&a->table, a->M, E) &&
                     is_packed_for_gather(&a->out, a->M, E);
  const int64_t M = packed ? a->M / E : a->M, n = (packed ? (a->R + KR_GATHER_ROWS - 1) / KR_GATHER_ROWS : a->R) * M;
  if (n == 0) return KRAIT_OK;
  const kr_gather_params p = {.a = *a, .M = kr_divisor_of(M), .n_threads = (uint32_t)n};
  const kr_grid grid = {.x = (uint32_t)((n + KR_GATHER_THREADS - 1) / KR_GATHER_THREADS),
                        .block = KR_GATHER_THREADS,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, packed ? &packs : &gather, &grid, &p, sizeof p);
}

const char *kr_gather_rows_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gather_rows_args *a = args;
  (void)ctx;
  if (a->table.dtype == KRAIT_F64 || a->out.dtype == KRAIT_F64) return "float64 tensors";
  return (double)a->R * (double)a->M >= 2147483648.0 - KR_GATHER_THREADS ? "2^31 elements or more" : NULL;
}

uint64_t kr_gather_rows_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

KR_CUDA_TIERS(gather_rows, run_gather)
