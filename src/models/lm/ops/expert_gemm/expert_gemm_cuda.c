/* expert_gemm_cuda.c: the launches. Few rows: a warp for some outputs of a row's choice. Many: the pairs of rows and
 * choices sorted by expert, tiles of them, and sums. A warp for a row's choice of experts. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "expert_gemm/expert_gemm.h"
#include "expert_gemm/expert_gemm_params.h"
#include "expert_gemm/expert_tiles_params.h"
#include "lm_ops.h"
#include "overlap.h"
#include "status.h"
#include "view.h"

enum { ROWS, TILES };

static int has_packs(const kr_view *v, int64_t per_pack) {
  return v->stride[2] == 1 && v->stride[0] % per_pack == 0 && v->stride[1] % per_pack == 0 && kr_is_aligned(v);
}

/* ---- few rows ---- */

/* Blocks along N, and rows of blocks. */
static uint32_t rows_across(const kr_expert_gemm_args *a) {
  return kr_blocks_of(a->N, kr_has(&a->weights) ? KR_EXPERTS_EACH : KR_EXPERTS_WARPS * KR_EXPERTS_EACH);
}
static int64_t rows_of_experts(const kr_expert_gemm_args *a) { return kr_has(&a->weights) ? a->T : a->T * a->J; }

static int32_t run_rows(const krait_ctx *ctx, const kr_expert_gemm_args *a, uint64_t tier) {
  static const kr_kernel rows = {"expert_gemm", "kr_expert_rows"}, gated = {"expert_gemm", "kr_expert_rows_gated"},
                         words = {"expert_gemm", "kr_expert_words"};
  const kr_kernel *kernel = kr_has(&a->qweight) ? &words : kr_has(&a->B2) ? &gated : &rows;
  const int64_t per_pack = a->A.dtype == KRAIT_F32 ? 4 : 8;
  kr_experts_params p = {.a = *a, .tiles = rows_across(a)};
  p.packs = kr_has(&a->Bmat) && a->A.dtype == a->Bmat.dtype && a->K % per_pack == 0 && has_packs(&a->A, per_pack) &&
            has_packs(&a->Bmat, per_pack) && (!kr_has(&a->B2) || has_packs(&a->B2, per_pack));
  const kr_grid grid = {.x = (uint32_t)rows_of_experts(a) * p.tiles,
                        .block = 32 * (kr_has(&a->weights) ? KR_EXPERTS_SUM_WARPS : KR_EXPERTS_WARPS),
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, kernel, &grid, &p, sizeof p) : KRAIT_OK;
}

static const char *refuse_rows(const kr_expert_gemm_args *a) {
  return (double)rows_of_experts(a) * rows_across(a) >= 2147483648.0 ? "2^31 blocks or more" : NULL;
}

/* ---- many rows ---- */

static int64_t most_tiles(const kr_expert_gemm_args *a) {
  const int64_t pairs = a->T * a->J;
  return pairs / KR_EXPERT_TILE_ROWS + (a->E + 1 < pairs ? a->E + 1 : pairs);
}

static uint64_t tiles_scratch(const kr_expert_gemm_args *a) {
  const uint64_t pairs = (uint64_t)(a->T * a->J);
  return kr_scratch_round(pairs * sizeof(int32_t)) + kr_scratch_round(sizeof(int32_t)) +
         kr_scratch_round((uint64_t)most_tiles(a) * sizeof(kr_expert_tile)) +
         (kr_has(&a->weights) ? kr_scratch_round(pairs * (uint64_t)a->N * sizeof(float)) : 0);
}

static kr_expert_tiles_params lay_out_tiles(const kr_expert_gemm_args *a) {
  const uint64_t pairs = (uint64_t)(a->T * a->J);
  char *at = a->call.scratch;
  kr_expert_tiles_params p = {.a = *a};
  p.across = kr_blocks_of(a->N, kr_has(&a->B2) ? KR_EXPERT_TILE_COLUMNS / 2 : KR_EXPERT_TILE_COLUMNS);
  p.pairs = (int32_t *)at, at += kr_scratch_round(pairs * sizeof(int32_t));
  p.n_tiles = (int32_t *)at, at += kr_scratch_round(sizeof(int32_t));
  p.tiles = (kr_expert_tile *)at, at += kr_scratch_round((uint64_t)most_tiles(a) * sizeof(kr_expert_tile));
  if (kr_has(&a->weights)) p.y = (float *)at;
  return p;
}

static const kr_kernel *tile_kernel(const kr_expert_gemm_args *a) {
  static const kr_kernel f16[] = {{"expert_tiles", "kr_expert_tile_f16"},
                                  {"expert_tiles", "kr_expert_tile_f16_gated"},
                                  {"expert_tiles", "kr_expert_tile_f16_q4k"}},
                         bf16[] = {{"expert_tiles", "kr_expert_tile_bf16"},
                                   {"expert_tiles", "kr_expert_tile_bf16_gated"}};
  const int which = kr_has(&a->qweight) ? 2 : kr_has(&a->B2);
  return a->A.dtype == KRAIT_F16 ? &f16[which] : &bf16[which];
}

static int32_t run_expert_tiles(const krait_ctx *ctx, const kr_expert_gemm_args *a, uint64_t tier) {
  static const kr_kernel sort = {"expert_tiles", "kr_expert_sort"}, sum = {"expert_tiles", "kr_expert_sum"};
  const kr_expert_tiles_params p = lay_out_tiles(a);
  const kr_grid sorts = {.x = 1, .block = KR_EXPERT_SORT_THREADS, .stream = a->call.stream},
                tiles = {.x = (uint32_t)most_tiles(a) * p.across,
                         .block = KR_EXPERT_TILE_THREADS,
                         .shared_bytes = KR_EXPERT_TILE_STAGES * KR_EXPERT_STAGE_BYTES,
                         .stream = a->call.stream},
                sums = {.x = kr_blocks_of(a->T * a->N, KR_EXPERT_SUM_THREADS * KR_EXPERT_SUM_EACH),
                        .block = KR_EXPERT_SUM_THREADS,
                        .stream = a->call.stream};
  if (!tiles.x) return KRAIT_OK;
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &sort, &sorts, &p, sizeof p));
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, tile_kernel(a), &tiles, &p, sizeof p));
  return p.y ? kr_cuda_launch(ctx->cuda, tier, &sum, &sums, &p, sizeof p) : KRAIT_OK;
}

/* Two neighbours in one store. */
static int stores_pairs(const kr_expert_gemm_args *a) {
  const kr_view *o = &a->out;
  return kr_has(&a->weights) || (o->stride[2] == 1 && o->stride[0] % 2 == 0 && o->stride[1] % 2 == 0 &&
                                 o->dtype != KRAIT_F64 && (uintptr_t)o->data % 8 == 0);
}

static const char *refuse_tiles(const krait_ctx *ctx, const kr_expert_gemm_args *a) {
  if (a->T < 8) return "fewer than 8 rows";
  if (a->A.dtype == KRAIT_F32 || (kr_has(&a->Bmat) && a->Bmat.dtype != a->A.dtype)) return "factors of other types";
  if (kr_has(&a->qweight) && (kr_has(&a->scales) || a->A.dtype != KRAIT_F16 || !has_packs(&a->qweight, 4)))
    return "8-bit words, 4-bit words with another type than float16, or with gaps";
  if (a->K % 8 || a->N % 8 || !has_packs(&a->A, 8) || (kr_has(&a->Bmat) && !has_packs(&a->Bmat, 8)) ||
      (kr_has(&a->B2) && !has_packs(&a->B2, 8)))
    return "rows with gaps, not aligned to 16 bytes, or not of a multiple of 8";
  if (!stores_pairs(a)) return "rows of out with gaps, or not aligned";
  if (a->E > KR_EXPERT_SORT_MOST || a->K >= 1 << 30 || (double)a->T * (double)a->J >= 1 << 30)
    return "more than 1023 experts, or 2^30 pairs or inputs";
  if (kr_cuda_info(ctx->cuda)->shared_bytes < KR_EXPERT_TILE_STAGES * KR_EXPERT_STAGE_BYTES)
    return "too little shared memory";
  return (double)most_tiles(a) * (double)a->N >= 2147483648.0 ? "2^31 blocks or more" : NULL;
}

/* ---- both ---- */

static int32_t run_experts(const krait_ctx *ctx, const void *args, uint64_t tier, int which) {
  return (which == TILES ? run_expert_tiles : run_rows)(ctx, args, tier);
}
static const char *refuse_experts(const krait_ctx *ctx, const void *args, int which) {
  return which == TILES ? refuse_tiles(ctx, args) : refuse_rows(args);
}
static uint64_t experts_scratch(const krait_ctx *ctx, const void *args, int which) {
  (void)ctx;
  return which == TILES ? tiles_scratch(args) : 0;
}

KR_CUDA_FAMILY(expert_gemm, tiles, TILES, run_experts, refuse_experts, experts_scratch)
KR_CUDA_FAMILY(expert_gemm, rows, ROWS, run_experts, refuse_experts, experts_scratch)

/* ---- choices ---- */

static int32_t run_route(const krait_ctx *ctx, const void *args, uint64_t tier) {
  static const kr_kernel few = {"expert_gemm", "kr_expert_route_few"}, many = {"expert_gemm", "kr_expert_route"};
  const kr_expert_route_args *a = args;
  const kr_route_params p = {.a = *a};
  const kr_grid grid = {.x = kr_blocks_of(a->T, KR_EXPERTS_WARPS),
                        .block = 32 * KR_EXPERTS_WARPS,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  const kr_kernel *kernel = a->E > KR_ROUTE_CUDA_FEW ? &many : &few;
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, kernel, &grid, &p, sizeof p) : KRAIT_OK;
}

const char *kr_expert_route_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_expert_route_args *a = args;
  (void)ctx;
  if (a->x.dtype == KRAIT_F64) return "float64 tensors";
  return a->E > KR_ROUTE_CUDA_EXPERTS ? "more than 512 experts" : NULL;
}

uint64_t kr_expert_route_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

KR_CUDA_TIERS(expert_route, run_route)
