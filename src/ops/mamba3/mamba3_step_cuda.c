/* mamba3_step_cuda.c: Mamba 3's step on a GPU, a block per sequence and head. Two families: four states of a channel at
 * a time; any strides. */
#include "cuda_impl.h"
#include "mamba3_impls.h"
#include "mamba3_step_params.h"
#include "status.h"
#include "view.h"

enum { FOUR_STATES, ANY_STRIDES };

static const kr_kernel kernels[] = {{"mamba3_step", "kr_mamba3_step_4"}, {"mamba3_step", "kr_mamba3_step_any"}};

static kr_mamba3_step_params params_of(const kr_mamba3_step_args *a) {
  kr_mamba3_step_params p = {.a = *a, .lanes = 1};
  while (p.lanes < 32 && 4 * p.lanes < a->N) p.lanes *= 2;
  p.row_N = (int32_t)((a->N + 3) / 4 * 4), p.row_P = (int32_t)((a->P + 3) / 4 * 4);
  return p;
}

static uint32_t step_shared_bytes(const kr_mamba3_step_params *p) {
  return (uint32_t)(KR_MAMBA3_STEP_FLOATS(p->a.R, p->row_N, p->row_P) * sizeof(float));
}

static const char *refuse_mamba3_step(const krait_ctx *ctx, const void *args, int family) {
  const kr_mamba3_step_args *a = args;
  const kr_mamba3_step_params p = params_of(a);
  const int64_t strides = a->state.stride[0] | a->state.stride[1] | a->state.stride[2];
  (void)ctx;
  if (a->B * a->H > INT32_MAX / 2) return "more than 2^30 heads of all sequences";
  if (step_shared_bytes(&p) > 48 * 1024) return "rows of all ranks beyond 48 KB";
  if (family == ANY_STRIDES) return NULL;
  return a->N % 4 || a->state.stride[3] != 1 || strides % 4 || (uintptr_t)a->state.data % 16
             ? "states do not lie together in aligned groups of four"
             : NULL;
}

static int32_t run_mamba3_step(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {
  const kr_mamba3_step_params p = params_of(args);
  const kr_grid grid = {.x = (uint32_t)(p.a.B * p.a.H),
                        .block = KR_MAMBA3_STEP_THREADS,
                        .shared_bytes = step_shared_bytes(&p),
                        .stream = p.a.call.stream};
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, &kernels[family], &grid, &p, sizeof p) : KRAIT_OK;
}

static uint64_t step_scratch(const krait_ctx *ctx, const void *args, int family) {
  return (void)ctx, (void)args, (void)family, 0;
}

KR_CUDA_FAMILY(mamba3_step, four_states, FOUR_STATES, run_mamba3_step, refuse_mamba3_step, step_scratch)
KR_CUDA_FAMILY(mamba3_step, any_strides, ANY_STRIDES, run_mamba3_step, refuse_mamba3_step, step_scratch)
