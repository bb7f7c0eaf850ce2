/* expert_gemm_cuda.c: the launches: a block for some outputs of a row (of all its experts where they are summed), and a
 * warp for a row's choice. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "expert_gemm/expert_gemm_params.h"
#include "lm_ops.h"
#include "view.h"

static const kr_kernel experts = {"expert_gemm", "kr_expert_gemm"}, route = {"expert_gemm", "kr_expert_route"};

/* ---- products ---- */

static int64_t rows_of_experts(const kr_expert_gemm_args *a) { return kr_has(&a->weights) ? a->T : a->T * a->J; }

static int has_packs(const kr_view *v, int64_t per_pack) {
  return v->stride[2] == 1 && v->stride[0] % per_pack == 0 && v->stride[1] % per_pack == 0 && kr_is_aligned(v);
}

static int32_t run_experts(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_expert_gemm_args *a = args;
  const int64_t per_pack = a->A.dtype == KRAIT_F32 ? 4 : 8;
  kr_experts_params p = {.a = *a, .tiles = kr_blocks_of(a->N, KR_EXPERTS_WARPS * KR_EXPERTS_EACH)};
  p.packs = a->A.dtype == a->Bmat.dtype && a->K % per_pack == 0 && has_packs(&a->A, per_pack) &&
            has_packs(&a->Bmat, per_pack) && (!kr_has(&a->B2) || has_packs(&a->B2, per_pack));
  const kr_grid grid = {.x = (uint32_t)rows_of_experts(a) * p.tiles,
                        .block = 32 * KR_EXPERTS_WARPS,
                        .stream = a->call.stream};
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, &experts, &grid, &p, sizeof p) : KRAIT_OK;
}

const char *kr_expert_gemm_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_expert_gemm_args *a = args;
  (void)ctx;
  if (kr_has(&a->qweight)) return "8- or 4-bit words";
  return (double)rows_of_experts(a) * kr_blocks_of(a->N, KR_EXPERTS_WARPS * KR_EXPERTS_EACH) >= 2147483648.0
             ? "2^31 blocks or more"
             : NULL;
}

uint64_t kr_expert_gemm_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

KR_CUDA_TIERS(expert_gemm, run_experts)

/* ---- choices ---- */

static int32_t run_route(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_expert_route_args *a = args;
  const kr_route_params p = {.a = *a};
  const kr_grid grid = {.x = kr_blocks_of(a->T, KR_EXPERTS_WARPS),
                        .block = 32 * KR_EXPERTS_WARPS,
                        .stream = a->call.stream};
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, &route, &grid, &p, sizeof p) : KRAIT_OK;
}

const char *kr_expert_route_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_expert_route_args *a = args;
  (void)ctx;
  if (a->x.dtype == KRAIT_F64) return "float64 tensors";
  return a->E > KR_ROUTE_CUDA_EXPERTS ? "more than 512 experts" : NULL;
}

uint64_t kr_expert_route_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

KR_CUDA_TIERS(expert_route, run_route)
