/* mamba3_raw_step_cuda.c: Mamba 3's step from in_proj's columns on a GPU, a block per sequence and head. */
#include "lm_ops.h"
#include "mamba3_raw_step/mamba3_raw_step.h"
#include "mamba3_raw_step/mamba3_raw_step_params.h"
#include "overlap.h"
#include "view.h"

static const kr_kernel wide[] = KR_BY_TYPE("mamba3_raw_step", "kr_mamba3_raw_step"),
                       same[] = KR_BY_TYPE("mamba3_raw_step", "kr_mamba3_raw_step_same");

/* Whether four elements along the last of n dimensions are one aligned access. */
static int lie_in_fours(const kr_view *v, int n) {
  int64_t strides = v->stride[n - 1] == 1 ? 0 : 1;
  for (int i = 0; i < n - 1; i++) strides |= v->stride[i];
  return strides % 4 == 0 && (uintptr_t)v->data % (4 * krait_dtype_bytes(v->dtype)) == 0;
}

const char *kr_mamba3_raw_step_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_raw_step_args *a = args;
  const kr_view *const inputs[] = {&a->Bmat, &a->Cmat, &a->dt_raw, &a->A_raw, &a->trap, &a->angles};
  (void)ctx;
  if (!kr_mamba3_raw_step_has(a->P, a->N)) return "P is no multiple of 4, or N not 16, 32, 64 or 128";
  if (a->B * a->H >= (1ll << 31) - 1) return "2^31 heads of all sequences or more";
  for (int i = 0; i < 6; i++)
    if (inputs[i]->dtype != a->x.dtype) return "inputs of several types";
  if (kr_has(&a->z) && a->z.dtype != a->x.dtype) return "inputs of several types";
  if (a->state.dtype != KRAIT_F32 && a->state.dtype != a->x.dtype) return "state of another 16-bit type than x";
  const int together = lie_in_fours(&a->state, 4) && lie_in_fours(&a->B_state, 3) && lie_in_fours(&a->x_state, 3) &&
                       lie_in_fours(&a->x, 3) && lie_in_fours(&a->Bmat, 3) && lie_in_fours(&a->Cmat, 3) &&
                       lie_in_fours(&a->B_norm, 1) && lie_in_fours(&a->C_norm, 1) && lie_in_fours(&a->B_bias, 2) &&
                       lie_in_fours(&a->C_bias, 2);
  return together ? NULL : "rows do not lie together in aligned groups of four";
}

/* Few heads: a block has a group of lanes for every four channels. Many: fewer warps repeat a head's query and key. */
static int32_t threads_of_head(const kr_mamba3_raw_step_args *a) {
  const int64_t groups = a->P / 4 * a->N / 4, most = a->B * a->H <= 264 ? KR_RAW_STEP_MOST_THREADS : 128;
  return (int32_t)(groups < most ? (groups + 31) / 32 * 32 : most);
}

static int32_t run_raw_step(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_mamba3_raw_step_args *a = args;
  const kr_mamba3_raw_step_params p = {.a = *a,
                                       .H = (int32_t)a->H,
                                       .P = (int32_t)a->P,
                                       .N = (int32_t)a->N,
                                       .M = (int32_t)a->M,
                                       .heads = (int32_t)(a->H / a->G),
                                       .threads = threads_of_head(a),
                                       .lanes = (int32_t)(a->N / 4)};
  const kr_grid grid = {.x = (uint32_t)(a->B * a->H),
                        .block = (uint32_t)p.threads,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  const kr_kernel *const kernel = &(a->state.dtype == KRAIT_F32 ? wide : same)[a->x.dtype];
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, kernel, &grid, &p, sizeof p) : KRAIT_OK;
}

uint64_t kr_mamba3_raw_step_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

KR_CUDA_TIERS(mamba3_raw_step, run_raw_step)
int32_t kr_mamba3_raw_step_cuda_hopper(const krait_ctx *ctx, const void *args) {
  return run_raw_step(ctx, args, KRAIT_CAP_CUDA_HOPPER);
}
