/* gemm_q4k_cuda.c: the launches. */
#include "gemm/gemm_q4k_params.h"
#include "gemm/gemm_q4k_impls.h"
#include "op_list.h"
#include "cuda_views.h"

enum { FEW, TILES };

static int32_t run_gemm_q4k(const krait_ctx *ctx, const void *args, uint64_t tier, int which) {
  static const kr_kernel one = {"gemm_q4k", "kr_gemm_q4k_one"}, few = {"gemm_q4k", "kr_gemm_q4k_few"},
                         tiles = {"gemm_q4k", "kr_gemm_q4k_tiles"};
  const kr_gemm_q4k_args *a = args;
  const kr_kernel *kernel = which == TILES ? &tiles : a->M == 1 ? &one : &few;
  const int64_t outputs = which == FEW ? KR_Q4K_FEW_THREADS / 32 * KR_Q4K_FEW_OUTPUTS : KR_Q4K_TILE,
                rows = which == FEW ? KR_Q4K_FEW_ROWS : KR_Q4K_TILE;
  if (a->M == 0 || a->N == 0) return KRAIT_OK;
  const kr_grid grid = {.x = kr_blocks_of(a->N, outputs),
                        .y = kr_blocks_of(a->M, rows),
                        .block = which == FEW ? KR_Q4K_FEW_THREADS : KR_Q4K_TILE_THREADS,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, kernel, &grid, a, sizeof *a);
}

/* Contiguous rows with aligned 16-byte packs. */
static int is_packed_for_gemm_q4k(const kr_view *v, int64_t per_pack) {
  return v->stride[1] == 1 && v->stride[0] % per_pack == 0 && (uintptr_t)v->data % 16 == 0;
}

static const char *refuse_gemm_q4k(const krait_ctx *ctx, const void *args, int which) {
  const kr_gemm_q4k_args *a = args;
  (void)ctx;
  if (a->bias.dtype == KRAIT_F64) return "no float64";
  if (which == FEW && a->M > 2 * KR_Q4K_FEW_ROWS) return "more than 16 rows";
  if (which == FEW && a->S > 0 &&
      !(is_packed_for_gemm_q4k(&a->qweight, 4) && is_packed_for_gemm_q4k(&a->A, a->A.dtype == KRAIT_F32 ? 4 : 8)))
    return "rows of A or of qweight with gaps, or not aligned to 16 bytes";
  return a->N >= 1ll << 31 || a->M > 65535ll * KR_Q4K_TILE ? "2^31 outputs or 4,194,240 rows and more" : NULL;
}

static uint64_t scratch(const krait_ctx *ctx, const void *args, int which) {
  return (void)ctx, (void)args, (void)which, 0;
}

KR_CUDA_FAMILY(gemm_q4k, few, FEW, run_gemm_q4k, refuse_gemm_q4k, scratch)
KR_CUDA_FAMILY(gemm_q4k, tiles, TILES, run_gemm_q4k, refuse_gemm_q4k, scratch)
