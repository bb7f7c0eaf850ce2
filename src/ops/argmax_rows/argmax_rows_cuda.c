/* argmax_rows_cuda.c: the split of rows into parts, and the launches, in a recording with clusters one for both steps:
 * decoding has few rows, each a whole vocabulary. */
#include "argmax_rows/argmax_rows_params.h"
#include "cuda_impl.h"
#include "op_list.h"
#include "overlap.h"
#include "status.h"

static const kr_kernel rows = {"argmax_rows", "kr_argmax_rows"}, parts = {"argmax_rows", "kr_argmax_parts"};

/* Calls of a recording that start ahead run Hopper's text, which has clusters. */
static kr_argmax_params argmax_plan_of(const krait_ctx *ctx, const kr_argmax_rows_args *a) {
  const int has_clusters = a->call.flags & KR_CALL_PDL && kr_cuda_has_pdl(ctx->cuda);
  kr_argmax_params p = {.a = *a, .values = a->call.scratch};
  const int64_t worth = (a->M + KR_ARGMAX_PART - 1) / KR_ARGMAX_PART, blocks = KR_ARGMAX_BLOCKS / (a->R > 0 ? a->R : 1),
                most = has_clusters && blocks > KR_ARGMAX_CLUSTER ? KR_ARGMAX_CLUSTER
                       : blocks > KR_ARGMAX_PARTS                 ? KR_ARGMAX_PARTS
                                                                  : blocks,
                n = worth < most ? worth : most;
  p.n_parts = (int32_t)(n < 1 ? 1 : n);
  p.in_cluster = has_clusters && p.n_parts > 1;
  p.part = ((a->M + p.n_parts - 1) / p.n_parts + 3) / 4 * 4;
  return p;
}

static int32_t run_argmax(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_argmax_rows_args *a = args;
  kr_argmax_params p = argmax_plan_of(ctx, a);
  p.places = (int32_t *)(p.values + a->R * p.n_parts);
  const int ahead = (a->call.flags & KR_CALL_PDL) != 0;
  const kr_grid of_rows = {.x = (uint32_t)(a->R * p.n_parts),
                           .block = KR_ARGMAX_THREADS,
                           .shared_bytes = p.in_cluster ? KR_ARGMAX_SENT_BYTES : 0,
                           .cluster = p.in_cluster ? (uint32_t)p.n_parts : 0,
                           .is_pdl = ahead,
                           .stream = a->call.stream},
                of_parts = {.x = (uint32_t)a->R, .block = 32, .is_pdl = ahead, .stream = a->call.stream};
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &rows, &of_rows, &p, sizeof p));
  return p.n_parts > 1 && !p.in_cluster ? kr_cuda_launch(ctx->cuda, tier, &parts, &of_parts, &p, sizeof p) : KRAIT_OK;
}

const char *kr_argmax_rows_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_argmax_rows_args *a = args;
  (void)ctx;
  return a->x.dtype == KRAIT_F64 ? "float64 tensors" : a->R >= 2147483648ll ? "2^31 rows or more" : NULL;
}

uint64_t kr_argmax_rows_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_argmax_rows_args *a = args;
  const kr_argmax_params p = argmax_plan_of(ctx, a);
  return p.n_parts > 1 && !p.in_cluster
             ? kr_scratch_round((uint64_t)(a->R * p.n_parts) * (sizeof *p.values + sizeof *p.places))
             : 0;
}

KR_CUDA_TIERS(argmax_rows, run_argmax)
