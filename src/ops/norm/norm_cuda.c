/* norm_cuda.c: how many threads take a row, how rows are dealt to parts, and the launches of the norms. */
#include "cuda_row.h"
#include "norm_plan.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static const kr_kernel fwd_1 = {"norm", "kr_norm_1"}, fwd_2 = {"norm", "kr_norm_2"}, fwd_any = {"norm", "kr_norm_any"};
static const kr_kernel bwd_1 = {"norm_bwd", "kr_norm_bwd_1"}, bwd_2 = {"norm_bwd", "kr_norm_bwd_2"}, bwd_any = {"norm_bwd", "kr_norm_bwd_any"}, sum_kernel = {"norm_bwd", "kr_norm_sum"};

enum { SHARED_BLOCK_WARPS = 4, MOST_GROUPS = 65535, FEWEST_ROWS_PER_PART = 4, THREADS_PER_MULTIPROCESSOR = 1024 };

/* A tensor (R, M), or (M) where by_row is 0. plan->packs becomes 0 when runs of 8 features are not aligned in it. */
static kr_norm_view view_of(kr_norm_plan *plan, const krait_view *v, int by_row) {
  const kr_norm_view to = {v->data, by_row ? v->stride[0] : 0, v->stride[by_row], v->dtype, 0};
  if (to.data && (to.col != 1 || to.row % 8 != 0 || (uintptr_t)to.data % 16 != 0)) plan->packs = 0;
  return to;
}

/* A vector that is read or written one by one. */
static kr_norm_view vector_of(const krait_view *v) { return (kr_norm_view){v->data, v->stride[0], v->stride[0], v->dtype, 0}; }

static kr_norm_plan plan_rows(int64_t R, int64_t M, int64_t group_size, float eps, int rms) {
  const int packs = group_size % 8 == 0 && group_size <= (int64_t)KR_NORM_THREADS * KR_NORM_UNITS * 8;
  return (kr_norm_plan){.R = R, .M = M, .n = group_size, .eps = eps, .inverse_n = (float)(1.0 / (double)group_size), .rms = rms, .n_sums = 2, .packs = packs};
}

/* Threads of a row, and rows of a block; once every view is known. */
static void share_threads(kr_norm_plan *p) {
  const int64_t units = p->packs ? p->n / 8 : p->n, per_thread = p->packs && units > KR_NORM_SMALL_THREADS ? KR_NORM_UNITS : 1;
  const int64_t warps = (units + 32 * per_thread - 1) / (32 * per_thread);
  p->warps = (int32_t)(warps > KR_NORM_THREADS / 32 ? KR_NORM_THREADS / 32 : warps);
  p->rows_per_block = p->warps < SHARED_BLOCK_WARPS ? SHARED_BLOCK_WARPS / p->warps : 1;
}

static int is_small(const kr_norm_plan *p) { return p->n <= (int64_t)KR_NORM_SMALL_THREADS * 8; }
static uint32_t groups_of(const kr_norm_plan *p) { return (uint32_t)(p->M / p->n); }

static int32_t run_forward(const krait_ctx *ctx, kr_norm_plan *p, void *stream, uint64_t tier) {
  share_threads(p);
  const kr_grid grid = {.x = (uint32_t)((p->R + p->rows_per_block - 1) / p->rows_per_block), .y = groups_of(p), .block = (uint32_t)(p->warps * p->rows_per_block * 32), .stream = stream};
  return kr_cuda_launch(ctx->cuda, tier, !p->packs ? &fwd_any : is_small(p) ? &fwd_1 : &fwd_2, &grid, p, sizeof *p);
}

/* Parts: enough blocks to fill the device, and a few rows for each part. */
static void deal_rows(const krait_ctx *ctx, kr_norm_plan *p) {
  if (p->n_sums > 2) p->packs = 0;
  share_threads(p);
  const int64_t threads = 32ll * p->warps * p->rows_per_block, per_part = (int64_t)FEWEST_ROWS_PER_PART * p->rows_per_block;
  int64_t blocks = (p->R + per_part - 1) / per_part, most = kr_cuda_info(ctx->cuda)->n_multiprocessors * (THREADS_PER_MULTIPROCESSOR / threads) / groups_of(p);
  if (most < 1) most = 1;
  if (blocks > most) blocks = most;
  p->n_parts = (int32_t)(blocks * p->rows_per_block);
}

static uint64_t part_bytes(const kr_norm_plan *p) { return kr_scratch_round((uint64_t)p->n_parts * (uint64_t)p->n_sums * (uint64_t)p->M * 4); }

static int32_t run_backward(const krait_ctx *ctx, kr_norm_plan *p, const krait_call *call, uint64_t tier) {
  const kr_kernel *kernel = !p->packs ? &bwd_any : is_small(p) ? &bwd_1 : &bwd_2;
  const kr_grid grid = {.x = (uint32_t)(p->n_parts / p->rows_per_block), .y = groups_of(p), .block = (uint32_t)(p->warps * p->rows_per_block * 32), .stream = call->stream};
  const kr_grid sum = {.x = (uint32_t)((p->M + 31) / 32), .y = (uint32_t)p->n_sums, .block = KR_NORM_SUM_THREADS, .stream = call->stream};
  p->part = call->scratch;
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, kernel, &grid, p, sizeof *p));
  for (int i = 0; i < p->n_sums; i++)
    if (p->sums[i].data) return kr_cuda_launch(ctx->cuda, tier, &sum_kernel, &sum, p, sizeof *p);
  return KRAIT_OK;
}

static const char *refuse_sizes(int64_t R, int64_t M, int64_t group_size) {
  if (R >= 1ll << 31) return "2^31 rows or more";
  if (M >= 1ll << 31) return "2^31 features or more";
  return M / group_size > MOST_GROUPS ? "more than 65535 groups" : NULL;
}

static uint64_t no_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx, (void)args;
  return 0;
}

/* ---- add + norm ---------------------------------------------------------------------------------------------------- */

static int32_t run_add(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_add_norm_args *a = args;
  kr_norm_plan p = plan_rows(a->R, a->M, a->M, a->eps, (a->call.flags & KRAIT_NORM_RMS) != 0);
  p.x = view_of(&p, &a->x, 1), p.x1 = view_of(&p, &a->x1, 1), p.residual = view_of(&p, &a->residual, 1), p.rowscale = vector_of(&a->rowscale);
  p.weight = view_of(&p, &a->weight, 0), p.bias = view_of(&p, &a->bias, 0), p.weight1 = view_of(&p, &a->weight1, 0), p.bias1 = view_of(&p, &a->bias1, 0);
  p.out = view_of(&p, &a->out, 1), p.out1 = view_of(&p, &a->out1, 1), p.residual_out = view_of(&p, &a->residual_out, 1);
  return run_forward(ctx, &p, a->call.stream, tier);
}

static kr_norm_plan plan_add_bwd(const krait_ctx *ctx, const krait_add_norm_bwd_args *a) {
  kr_norm_plan p = plan_rows(a->R, a->M, a->M, a->eps, (a->call.flags & KRAIT_NORM_RMS) != 0);
  const krait_view *const sums[] = {&a->dweight, &a->dbias, &a->dweight1, &a->dbias1};
  p.n_sums = kr_has(&a->weight1) ? 4 : 2;
  p.x = view_of(&p, &a->v, 1), p.rowscale = vector_of(&a->rowscale), p.weight = view_of(&p, &a->weight, 0), p.weight1 = view_of(&p, &a->weight1, 0);
  p.dout = view_of(&p, &a->dout, 1), p.dout1 = view_of(&p, &a->dout1, 1), p.dresidual_out = view_of(&p, &a->dresidual_out, 1);
  p.dx = view_of(&p, &a->dx, 1), p.dx1 = view_of(&p, &a->dx1, 1), p.dresidual = view_of(&p, &a->dresidual, 1);
  for (int i = 0; i < 4; i++) p.sums[i] = vector_of(sums[i]);
  deal_rows(ctx, &p);
  return p;
}

static int32_t run_add_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  kr_norm_plan p = plan_add_bwd(ctx, args);
  return run_backward(ctx, &p, args, tier);
}

const char *kr_add_norm_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_add_norm_args *a = args;
  (void)ctx;
  return refuse_sizes(a->R, a->M, a->M);
}
const char *kr_add_norm_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_add_norm_bwd_args *a = args;
  (void)ctx;
  return refuse_sizes(a->R, a->M, a->M);
}
uint64_t kr_add_norm_cuda_scratch(const krait_ctx *ctx, const void *args) { return no_scratch(ctx, args); }
uint64_t kr_add_norm_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_norm_plan p = plan_add_bwd(ctx, args);
  return part_bytes(&p);
}

KR_CUDA_TIERS(add_norm, run_add)
KR_CUDA_TIERS(add_norm_bwd, run_add_bwd)

/* ---- gated norm ---------------------------------------------------------------------------------------------------- */

static int gate_of(uint32_t flags, const krait_view *z) { return !kr_has(z) ? KR_NORM_NO_GATE : flags & KRAIT_GATED_NORM_GATE_FIRST ? KR_NORM_GATE_FIRST : KR_NORM_GATE_LAST; }

static int32_t run_gated(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_gated_norm_args *a = args;
  kr_norm_plan p = plan_rows(a->R, a->M, a->group_size, a->eps, (a->call.flags & KRAIT_GATED_NORM_RMS) != 0);
  p.gate = gate_of(a->call.flags, &a->z);
  p.x = view_of(&p, &a->x, 1), p.z = view_of(&p, &a->z, 1), p.out = view_of(&p, &a->out, 1), p.weight = view_of(&p, &a->weight, 0), p.bias = view_of(&p, &a->bias, 0);
  return run_forward(ctx, &p, a->call.stream, tier);
}

static kr_norm_plan plan_gated_bwd(const krait_ctx *ctx, const krait_gated_norm_bwd_args *a) {
  kr_norm_plan p = plan_rows(a->R, a->M, a->group_size, a->eps, (a->call.flags & KRAIT_GATED_NORM_RMS) != 0);
  p.gate = gate_of(a->call.flags, &a->z);
  p.x = view_of(&p, &a->x, 1), p.z = view_of(&p, &a->z, 1), p.weight = view_of(&p, &a->weight, 0), p.bias = view_of(&p, &a->bias, 0);
  p.dout = view_of(&p, &a->dout, 1), p.dx = view_of(&p, &a->dx, 1), p.dz = view_of(&p, &a->dz, 1);
  p.sums[0] = vector_of(&a->dweight), p.sums[1] = vector_of(&a->dbias);
  deal_rows(ctx, &p);
  return p;
}

static int32_t run_gated_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  kr_norm_plan p = plan_gated_bwd(ctx, args);
  return run_backward(ctx, &p, args, tier);
}

const char *kr_gated_norm_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_gated_norm_args *a = args;
  (void)ctx;
  return refuse_sizes(a->R, a->M, a->group_size);
}
const char *kr_gated_norm_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_gated_norm_bwd_args *a = args;
  (void)ctx;
  return refuse_sizes(a->R, a->M, a->group_size);
}
uint64_t kr_gated_norm_cuda_scratch(const krait_ctx *ctx, const void *args) { return no_scratch(ctx, args); }
uint64_t kr_gated_norm_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_norm_plan p = plan_gated_bwd(ctx, args);
  return part_bytes(&p);
}

KR_CUDA_TIERS(gated_norm, run_gated)
KR_CUDA_TIERS(gated_norm_bwd, run_gated_bwd)
