/* mamba3_raw_step_cuda.c: Mamba 3's step from in_proj's columns on a GPU: a block or several per sequence and head.
 */
#include "lm_ops.h"
#include "mamba3_raw_step/mamba3_raw_step.h"
#include "mamba3_raw_step/mamba3_raw_step_params.h"
#include "overlap.h"
#include "view.h"

static const kr_kernel wide[] = KR_BY_TYPE("mamba3_raw_step", "kr_mamba3_raw_step"),
                       same[] = KR_BY_TYPE("mamba3_raw_step", "kr_mamba3_raw_step_same"),
                       part_wide[] = KR_BY_TYPE("mamba3_raw_step", "kr_mamba3_raw_step_part"),
                       part_same[] = KR_BY_TYPE("mamba3_raw_step", "kr_mamba3_raw_step_part_same");

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

/* Groups of lanes for four channels each: the threads of a head. */
static int64_t threads_of_head(const kr_mamba3_raw_step_args *a) { return (a->P / 4 * a->N / 4 + 31) / 32 * 32; }

/* Few heads: a thread has four channels, and as many blocks as that takes share a head. Many: a block a head, so that
 * fewer warps repeat its query and key. */
static int64_t parts_of_head(const krait_ctx *ctx, const kr_mamba3_raw_step_args *a) {
  enum { MOST_BLOCKS = 6 }; /* of a multiprocessor */
  const int64_t parts = (threads_of_head(a) + KR_RAW_STEP_THREADS - 1) / KR_RAW_STEP_THREADS;
  const int fits = a->B * a->H * parts <= (int64_t)MOST_BLOCKS * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  return kr_has(&a->arrivals) && fits ? parts : 1;
}

static kr_mamba3_raw_step_params raw_step_params_of(const krait_ctx *ctx, const kr_mamba3_raw_step_args *a) {
  const int64_t parts = parts_of_head(ctx, a), threads = threads_of_head(a);
  kr_mamba3_raw_step_params p = {.a = *a,
                                 .H = kr_divisor_of(a->H),
                                 .heads = kr_divisor_of(a->H / a->G),
                                 .parts = kr_divisor_of(parts),
                                 .P = (int32_t)a->P,
                                 .N = (int32_t)a->N,
                                 .M = (int32_t)a->M,
                                 .threads = (int32_t)(threads < KR_RAW_STEP_THREADS ? threads : KR_RAW_STEP_THREADS),
                                 .lanes = (int32_t)(a->N / 4),
                                 .inverse_N = 1.0f / (float)a->N,
                                 .one = 1};
  while (1 << p.lanes_shift < p.lanes) p.lanes_shift++;
  p.n_warps = (int32_t)parts * (p.threads / 32);
  return p;
}

static int32_t run_raw_step(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_mamba3_raw_step_args *a = args;
  const kr_mamba3_raw_step_params p = raw_step_params_of(ctx, a);
  const kr_grid grid = {.x = (uint32_t)(a->B * a->H * (int64_t)p.parts.by),
                        .block = (uint32_t)p.threads,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  const int is_wide = a->state.dtype == KRAIT_F32;
  const kr_kernel *const kernels = p.parts.by > 1 ? (is_wide ? part_wide : part_same) : is_wide ? wide : same;
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, &kernels[a->x.dtype], &grid, &p, sizeof p) : KRAIT_OK;
}

uint64_t kr_mamba3_raw_step_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

KR_CUDA_TIERS(mamba3_raw_step, run_raw_step)
int32_t kr_mamba3_raw_step_cuda_hopper(const krait_ctx *ctx, const void *args) {
  return run_raw_step(ctx, args, KRAIT_CAP_CUDA_HOPPER);
}
