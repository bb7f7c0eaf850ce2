/* norm_cuda.c: threads per row, the split of rows into parts, and the launches of the norms. Three families, by the
 * params's run: aligned_rows in registers in runs of eight features, unaligned_rows in registers feature by feature,
 * long_rows not in registers. */
#include "overlap.h"
#include "cuda_impl.h"
#include "norm_params.h"
#include "norm_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

enum { LONG_ROWS = 0, UNALIGNED_ROWS = 1, ALIGNED_ROWS = 8 };

/* Kernel variants for rows in registers; kernels are indexed by variant and storage type. */
enum { ANY, RUNS_1, RUNS_2, SINGLE_8, SINGLE_16, MIXED_1, MIXED_2, MIXED_SINGLE, STREAM };
static const kr_kernel forward[][3] = {
    KR_BY_TYPE("norm", "kr_norm_any"),       KR_BY_TYPE("norm", "kr_norm_1"),
    KR_BY_TYPE("norm", "kr_norm_2"),         KR_BY_TYPE("norm", "kr_norm_single_8"),
    KR_BY_TYPE("norm", "kr_norm_single_16"), KR_BY_TYPE("norm", "kr_norm_mixed_1"),
    KR_BY_TYPE("norm", "kr_norm_mixed_2"),   KR_BY_TYPE("norm", "kr_norm_mixed_single"),
    KR_BY_TYPE("norm", "kr_norm_stream")};
static const kr_kernel backward[][3] = {
    KR_BY_TYPE("norm_bwd", "kr_norm_bwd_any"),       KR_BY_TYPE("norm_bwd", "kr_norm_bwd_1"),
    KR_BY_TYPE("norm_bwd", "kr_norm_bwd_2"),         KR_BY_TYPE("norm_bwd", "kr_norm_bwd_single_8"),
    KR_BY_TYPE("norm_bwd", "kr_norm_bwd_single_16"), KR_BY_TYPE("norm_bwd", "kr_norm_bwd_mixed_1"),
    KR_BY_TYPE("norm_bwd", "kr_norm_bwd_mixed_2"),   KR_BY_TYPE("norm_bwd", "kr_norm_bwd_mixed_single")};
static const kr_kernel ahead_kernel[] = {
    {NULL, NULL}, {"norm_bwd_ahead_f16", "kr_norm_bwd_ahead"}, {"norm_bwd_ahead_bf16", "kr_norm_bwd_ahead"}};
static const kr_kernel sum_kernel[] = KR_BY_TYPE("norm_bwd", "kr_norm_sum");

enum {
  SHARED_BLOCK_WARPS = 4,
  MOST_GROUPS = 65535,
  FEWEST_ROWS_PER_PART = 4,
  THREADS_PER_MULTIPROCESSOR = 512,
  FEWEST_AHEAD_THREADS = 64,
  AHEAD_PER_MULTIPROCESSOR = 640
};

/* View of a tensor (R, M), or (M) where by_row is 0; records its type and alignment in the params. */
static kr_norm_view norm_view_of(kr_norm_params *params, const kr_view *v, int by_row) {
  const kr_norm_view to = {v->data, by_row ? v->stride[0] : 0, v->stride[by_row], v->dtype, 0};
  if (!to.data) return to;
  if (to.col != 1) params->run = 0;
  else if (params->run && (to.row % 8 != 0 || (uintptr_t)to.data % 16 != 0)) params->run = 1;
  params->types |= 1 << to.dtype;
  if (by_row) params->row_types |= 1 << to.dtype;
  return to;
}

/* A vector accessed one element at a time. */
static kr_norm_view norm_vector_of(const kr_view *v) {
  return (kr_norm_view){v->data, v->stride[0], v->stride[0], v->dtype, 0};
}

static kr_norm_params plan_rows(int64_t R, int64_t M, int64_t group_size, float eps, int rms, int family) {
  return (kr_norm_params){.R = R,
                        .M = M,
                        .n = group_size,
                        .eps = eps,
                        .inverse_n = (float)(1.0 / (double)group_size),
                        .rms = rms,
                        .n_sums = 2,
                        .run = family == ALIGNED_ROWS && group_size % 8 ? UNALIGNED_ROWS : family};
}

/* The 16-bit type among the views, or float32 if none. */
static int norm_dtype_of(const kr_norm_params *p) {
  return p->types & 1 << KRAIT_F16 ? KRAIT_F16 : p->types & 1 << KRAIT_BF16 ? KRAIT_BF16 : KRAIT_F32;
}

static int is_mixed(const kr_norm_params *p) {
  return norm_dtype_of(p) != KRAIT_F32 && (p->row_types & 1 << KRAIT_F32) != 0;
}

static int form_of(const kr_norm_params *p) {
  if (p->units == KR_NORM_FOURS && p->run == 8) return STREAM;
  if (p->run == 8) return (is_mixed(p) ? MIXED_1 : RUNS_1) + p->units - 1;
  if (p->run == 0) return ANY;
  return is_mixed(p) ? MIXED_SINGLE : p->units == KR_NORM_FEW_SINGLES ? SINGLE_8 : SINGLE_16;
}

static void set_warps(kr_norm_params *p, int64_t per_warp) {
  const int64_t warps = (p->n + per_warp - 1) / per_warp;
  p->warps = (int32_t)(warps > KR_NORM_THREADS / 32 ? KR_NORM_THREADS / 32 : warps);
  p->rows_per_block = p->warps < SHARED_BLOCK_WARPS ? SHARED_BLOCK_WARPS / p->warps : 1;
  p->row_shift = p->warps == 1 ? 5 : p->warps == 2 ? 6 : 31; /* rows of three or more warps have a block each */
}

/* After all views are set: runs per thread, threads per row, rows per block. most_threads: limit per row with the
 * smaller number of runs per thread. */
static void share_threads(kr_norm_params *p, int64_t most_threads) {
  const int64_t few = p->run == 8 ? 1 : KR_NORM_FEW_SINGLES, many = p->run == 8   ? 2
                                                                    : is_mixed(p) ? few
                                                                                  : KR_NORM_SINGLES;
  const int two_halves = p->types & 1 << KRAIT_F16 && p->types & 1 << KRAIT_BF16;
  if (p->n > KR_NORM_THREADS * many * p->run || two_halves || p->n_sums > 2) p->run = 0;
  if (is_mixed(p) && p->run == 1) most_threads = KR_NORM_THREADS;
  p->units = (int32_t)(!p->run ? 0 : p->n <= most_threads * few * p->run ? few : many);
  set_warps(p, 32 * (p->run ? p->run * p->units : 1));
}

/* Forward, rows the size of a head: half a warp each. */
static void halve_warps(kr_norm_params *p) {
  if (p->run == ALIGNED_ROWS && p->n <= 16 * 8) p->row_shift = 4, p->rows_per_block = 2 * SHARED_BLOCK_WARPS;
}

/* A language model's prompt: x, out and weight in one 16-bit type, added to a float32 stream, RMS; more rows than
 * multiprocessors. */
static int is_stream(const krait_ctx *ctx, const kr_norm_params *p) {
  const int32_t half = norm_dtype_of(p);
  const int has_more = p->gate != KR_NORM_NO_GATE || p->bias.data || p->x1.data || p->out1.data || p->rowscale.data,
            is_wide = (!p->second.data || p->second.dtype == KRAIT_F32) &&
                      (!p->residual_out.data || p->residual_out.dtype == KRAIT_F32);
  return is_mixed(p) && p->run == ALIGNED_ROWS && p->units == 2 && p->rms && !has_more && is_wide &&
         p->R > kr_cuda_info(ctx->cuda)->n_multiprocessors && p->n <= KR_NORM_SMALL_THREADS * 4 * KR_NORM_FOURS &&
         p->x.dtype == half && p->out.dtype == half && p->weight.data && p->weight.dtype == half;
}

static uint32_t groups_of(const kr_norm_params *p) { return (uint32_t)(p->M / p->n); }

static int32_t run_forward(const krait_ctx *ctx, kr_norm_params *p, const kr_call *call, uint64_t tier) {
  if (tier == KRAIT_CAP_CUDA_AMPERE && is_stream(ctx, p))
    p->units = KR_NORM_FOURS, set_warps(p, 32 * 4 * KR_NORM_FOURS);
  const kr_grid grid = {
      .x = (uint32_t)((p->R + p->rows_per_block - 1) / p->rows_per_block),
      .y = groups_of(p),
      .block = (uint32_t)(p->row_shift == 4 ? p->rows_per_block * 16 : p->warps * p->rows_per_block * 32),
      .is_pdl = p->run == ALIGNED_ROWS && (call->flags & KR_CALL_PDL),
      .stream = call->stream};
  return kr_cuda_launch(ctx->cuda, tier, &forward[form_of(p)][norm_dtype_of(p)], &grid, p, sizeof *p);
}

/* Number of parts: enough blocks to fill the device, with at least a few rows per part. */
static void deal_rows(const krait_ctx *ctx, kr_norm_params *p) {
  share_threads(p, KR_NORM_THREADS);
  const int64_t threads = 32ll * p->warps * p->rows_per_block,
                per_part = (int64_t)FEWEST_ROWS_PER_PART * p->rows_per_block;
  int64_t blocks = (p->R + per_part - 1) / per_part,
          most = kr_cuda_info(ctx->cuda)->n_multiprocessors * (THREADS_PER_MULTIPROCESSOR / threads) / (p->M / p->n);
  if (most < 1) most = 1;
  if (blocks > most) blocks = most;
  p->n_parts = (int32_t)(blocks * p->rows_per_block);
}

static uint32_t ahead_threads(const kr_norm_params *p) { return (uint32_t)((p->n + 255) / 256 * 32); }
static uint32_t ahead_bytes(const kr_norm_params *p) {
  return KR_NORM_AHEAD_STAGES * KR_NORM_AHEAD_TENSORS * 16 * ahead_threads(p);
}

/* Prefetching kernel: gated RMS norms in one 16-bit type, without a bias gradient. */
static int32_t ahead_parts_of(const krait_ctx *ctx, const kr_norm_params *p) {
  const int takes = p->run == ALIGNED_ROWS && p->rms && p->gate != KR_NORM_NO_GATE && !p->bias.data &&
                    !p->sums[1].data && p->row_types == 1 << norm_dtype_of(p) && norm_dtype_of(p) != KRAIT_F32;
  const int64_t threads = ahead_threads(p);
  if (!takes || threads < FEWEST_AHEAD_THREADS || threads > KR_NORM_AHEAD_THREADS || p->n_sums != 2 ||
      kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)ahead_bytes(p) + KR_NORM_AHEAD_BESIDE)
    return 0;
  int64_t parts = threads < AHEAD_PER_MULTIPROCESSOR
                      ? kr_cuda_info(ctx->cuda)->n_multiprocessors * (AHEAD_PER_MULTIPROCESSOR / threads)
                      : kr_cuda_info(ctx->cuda)->n_multiprocessors;
  parts /= p->M / p->n;
  if (parts > p->R / FEWEST_ROWS_PER_PART) parts = p->R / FEWEST_ROWS_PER_PART;
  return (int32_t)parts;
}

static uint64_t part_bytes(const kr_norm_params *p) {
  return kr_scratch_round((uint64_t)(p->n_parts > p->ahead_parts ? p->n_parts : p->ahead_parts) * (uint64_t)p->n_sums *
                          (uint64_t)p->M * 4);
}

static int32_t run_backward(const krait_ctx *ctx, kr_norm_params *p, const kr_call *call, uint64_t tier) {
  kr_grid grid = {.x = (uint32_t)(p->n_parts / p->rows_per_block),
                  .y = groups_of(p),
                  .block = (uint32_t)(p->warps * p->rows_per_block * 32),
                  .stream = call->stream};
  const int ahead = p->ahead_parts && tier == KRAIT_CAP_CUDA_AMPERE;
  if (ahead)
    p->n_parts = p->ahead_parts, grid.x = (uint32_t)p->n_parts, grid.block = ahead_threads(p),
    grid.shared_bytes = ahead_bytes(p);
  const kr_grid sum = {.x = (uint32_t)((p->M + 31) / 32),
                       .y = (uint32_t)p->n_sums,
                       .block = KR_NORM_SUM_THREADS,
                       .stream = call->stream};
  p->part = call->scratch;
  kr_chain chain = {.n = 0};
  int any = 0;
  for (int i = 0; i < p->n_sums; i++) any |= p->sums[i].data != NULL;
  kr_chain_add(&chain, ahead ? &ahead_kernel[norm_dtype_of(p)] : &backward[form_of(p)][norm_dtype_of(p)], &grid, p);
  if (any) kr_chain_add(&chain, &sum_kernel[norm_dtype_of(p)], &sum, p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

/* Refuses a params made for another family. */
static const char *refuse_plan(const kr_norm_params *p, int family) {
  if (p->R >= 1ll << 31) return "2^31 rows or more";
  if (p->M >= 1ll << 31) return "2^31 features or more";
  if (p->M / p->n > MOST_GROUPS) return "more than 65535 groups";
  if (p->run == family) return NULL;
  return family == ALIGNED_ROWS ? "needs rows of whole, aligned groups of eight features that fit registers"
                                : "needs contiguous rows of up to 8192 features and one 16-bit type";
}

#define FAMILIES(op, run, params, scratch_of)                                                                          \
  static const char *refuse_##op(const krait_ctx *ctx, const void *args, int family) {                                 \
    const kr_norm_params p = params(ctx, args, family);                                                                \
    return refuse_plan(&p, family);                                                                                    \
  }                                                                                                                    \
  static uint64_t scratch_##op(const krait_ctx *ctx, const void *args, int family) {                                   \
    const kr_norm_params p = params(ctx, args, family);                                                                \
    return scratch_of(&p);                                                                                             \
  }                                                                                                                    \
  static int32_t run_##op(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {                         \
    kr_norm_params p = params(ctx, args, family);                                                                      \
    return run(ctx, &p, args, tier);                                                                                   \
  }                                                                                                                    \
  KR_CUDA_FAMILY(op, aligned_rows, ALIGNED_ROWS, run_##op, refuse_##op, scratch_##op)                                  \
  KR_CUDA_FAMILY(op, unaligned_rows, UNALIGNED_ROWS, run_##op, refuse_##op, scratch_##op)                              \
  KR_CUDA_FAMILY(op, long_rows, LONG_ROWS, run_##op, refuse_##op, scratch_##op)

static uint64_t no_bytes(const kr_norm_params *p) { return (void)p, 0; }

/* ---- add + norm -------------------------------------------------------------------------------------------------- */

static kr_norm_params plan_add(const krait_ctx *ctx, const kr_add_norm_args *a, int family) {
  kr_norm_params p = plan_rows(a->R, a->M, a->M, a->eps, (a->call.flags & KRAIT_NORM_RMS) != 0, family);
  (void)ctx;
  p.x = norm_view_of(&p, &a->x, 1), p.x1 = norm_view_of(&p, &a->x1, 1), p.second = norm_view_of(&p, &a->residual, 1),
  p.rowscale = norm_vector_of(&a->rowscale);
  p.weight = norm_view_of(&p, &a->weight, 0), p.bias = norm_view_of(&p, &a->bias, 0),
  p.weight1 = norm_view_of(&p, &a->weight1, 0), p.bias1 = norm_view_of(&p, &a->bias1, 0);
  p.out = norm_view_of(&p, &a->out, 1), p.out1 = norm_view_of(&p, &a->out1, 1),
  p.residual_out = norm_view_of(&p, &a->residual_out, 1);
  share_threads(&p, KR_NORM_SMALL_THREADS);
  halve_warps(&p);
  return p;
}

static kr_norm_params plan_add_bwd(const krait_ctx *ctx, const kr_add_norm_bwd_args *a, int family) {
  kr_norm_params p = plan_rows(a->R, a->M, a->M, a->eps, (a->call.flags & KRAIT_NORM_RMS) != 0, family);
  const kr_view *const sums[] = {&a->dweight, &a->dbias, &a->dweight1, &a->dbias1};
  p.n_sums = kr_has(&a->weight1) ? 4 : 2;
  p.x = norm_view_of(&p, &a->v, 1), p.rowscale = norm_vector_of(&a->rowscale),
  p.weight = norm_view_of(&p, &a->weight, 0), p.weight1 = norm_view_of(&p, &a->weight1, 0);
  p.dout = norm_view_of(&p, &a->dout, 1), p.dout1 = norm_view_of(&p, &a->dout1, 1),
  p.second = norm_view_of(&p, &a->dresidual_out, 1);
  p.dx = norm_view_of(&p, &a->dx, 1), p.dx1 = norm_view_of(&p, &a->dx1, 1),
  p.dresidual = norm_view_of(&p, &a->dresidual, 1);
  for (int i = 0; i < 4; i++) p.sums[i] = norm_vector_of(sums[i]);
  deal_rows(ctx, &p);
  return p;
}

FAMILIES(add_norm, run_forward, plan_add, no_bytes)
FAMILIES(add_norm_bwd, run_backward, plan_add_bwd, part_bytes)

/* ---- gated norm -------------------------------------------------------------------------------------------------- */

static int gate_of(uint32_t flags, const kr_view *z) {
  return !kr_has(z) ? KR_NORM_NO_GATE : flags & KRAIT_GATED_NORM_GATE_FIRST ? KR_NORM_GATE_FIRST : KR_NORM_GATE_LAST;
}

static kr_norm_params plan_gated(const krait_ctx *ctx, const kr_gated_norm_args *a, int family) {
  kr_norm_params p = plan_rows(a->R, a->M, a->group_size, a->eps, (a->call.flags & KRAIT_GATED_NORM_RMS) != 0, family);
  (void)ctx;
  p.gate = gate_of(a->call.flags, &a->z);
  p.x = norm_view_of(&p, &a->x, 1), p.second = norm_view_of(&p, &a->z, 1), p.out = norm_view_of(&p, &a->out, 1),
  p.weight = norm_view_of(&p, &a->weight, 0), p.bias = norm_view_of(&p, &a->bias, 0);
  share_threads(&p, KR_NORM_SMALL_THREADS);
  halve_warps(&p);
  return p;
}

static kr_norm_params plan_gated_bwd(const krait_ctx *ctx, const kr_gated_norm_bwd_args *a, int family) {
  kr_norm_params p = plan_rows(a->R, a->M, a->group_size, a->eps, (a->call.flags & KRAIT_GATED_NORM_RMS) != 0, family);
  p.gate = gate_of(a->call.flags, &a->z);
  p.x = norm_view_of(&p, &a->x, 1), p.second = norm_view_of(&p, &a->z, 1), p.weight = norm_view_of(&p, &a->weight, 0),
  p.bias = norm_view_of(&p, &a->bias, 0);
  p.dout = norm_view_of(&p, &a->dout, 1), p.dx = norm_view_of(&p, &a->dx, 1), p.dz = norm_view_of(&p, &a->dz, 1);
  p.sums[0] = norm_vector_of(&a->dweight), p.sums[1] = norm_vector_of(&a->dbias);
  deal_rows(ctx, &p);
  p.ahead_parts = ahead_parts_of(ctx, &p);
  return p;
}

FAMILIES(gated_norm, run_forward, plan_gated, no_bytes)
FAMILIES(gated_norm_bwd, run_backward, plan_gated_bwd, part_bytes)
