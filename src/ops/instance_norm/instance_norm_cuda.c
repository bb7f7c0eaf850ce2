/* instance_norm_cuda.c: plans and launches of instance norm and pooling on a GPU. The split over rows depends on the
 * shape alone. */
#include "cuda_impl.h"
#include "instance_norm/instance_norm_params.h"
#include "op_list.h"
#include "view.h"

/* By type of the activations: float32, float16, bfloat16. */
#define TYPES(name) {{"instance_norm_f32", name}, {"instance_norm_f16", name}, {"instance_norm_bf16", name}}
/* By activation type, then by one channel or two per thread. */
#define WIDTHS(name) {TYPES(name), TYPES(name "_two")}
static const kr_kernel parts[2][3] = WIDTHS("kr_instance_parts"), apply[2][3] = WIDTHS("kr_instance_apply"),
                       back_parts[2][3] = WIDTHS("kr_instance_back_parts"),
                       back_apply[2][3] = WIDTHS("kr_instance_back_apply"), stats[] = TYPES("kr_instance_stats"),
                       back_stats[] = TYPES("kr_instance_back_stats"),
                       back_sums[] = TYPES("kr_instance_back_sums"), pool[] = TYPES("kr_pool"),
                       pool_back[] = TYPES("kr_pool_back");
static const char *const too_many = "2^31 elements or more";

/* With channel pairs there are no more parts. */
static kr_middle_params inorm_plan_of(int64_t B, int64_t S, int64_t C, int64_t least_rows, int64_t most_parts,
                                      int in_pairs) {
  kr_middle_params p = {.B = B, .S = S, .C = C, .inverse_S = (float)(1 / (double)S), .lanes = 1};
  const int64_t width = in_pairs ? 2 : 1;
  while (p.lanes < 32 && p.lanes * width < C) p.lanes *= 2;
  const int64_t rows = least_rows * (KR_MIDDLE_THREADS / p.lanes), n = (S + rows - 1) / rows;
  p.n_parts = (uint32_t)(n < most_parts ? n : most_parts), p.rows = (S + p.n_parts - 1) / p.n_parts;
  p.n_parts = (uint32_t)((S + p.rows - 1) / p.rows); /* so that none is empty */
  p.n_channels = (uint32_t)((C + p.lanes * width - 1) / (p.lanes * width));
  return p;
}
static kr_middle_params plan_norm(int64_t B, int64_t S, int64_t C, int in_pairs) {
  return inorm_plan_of(B, S, C, 16, KR_MIDDLE_PARTS, in_pairs);
}
static int is_in_pairs_for_inorm(const kr_view *v) {
  return !kr_has(v) || (v->stride[2] == 1 && v->stride[0] % 2 == 0 && v->stride[1] % 2 == 0 &&
                        v->dtype != KRAIT_F32 && (uintptr_t)v->data % 16 == 0);
}

static uint64_t partial_floats(const kr_middle_params *p) {
  return (uint64_t)(p->B * p->n_parts * KR_MIDDLE_SUMS * p->C);
}
static uint64_t instance_norm_gpu_scratch(const kr_middle_params *p) {
  return kr_scratch_round((partial_floats(p) + (uint64_t)(4 * p->B * p->C)) * sizeof(float));
}
static int is_too_large(int64_t B, int64_t S, int64_t C) {
  return (double)B * (double)S * (double)(C + 32) >= 2147483648.0;
}

const char *kr_instance_norm_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_args *a = args;
  (void)ctx;
  return is_too_large(a->B, a->S, a->C) ? too_many : NULL;
}
const char *kr_instance_norm_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_bwd_args *a = args;
  (void)ctx;
  return is_too_large(a->B, a->S, a->C) ? too_many : NULL;
}
uint64_t kr_instance_norm_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_args *a = args;
  const kr_middle_params p = plan_norm(a->B, a->S, a->C, 0);
  (void)ctx;
  return instance_norm_gpu_scratch(&p);
}
uint64_t kr_instance_norm_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_bwd_args *a = args;
  const kr_middle_params p = plan_norm(a->B, a->S, a->C, 0);
  (void)ctx;
  return instance_norm_gpu_scratch(&p);
}

static kr_grid by_parts(const kr_middle_params *p, void *stream) {
  return (kr_grid){.x = (uint32_t)p->B * p->n_parts * p->n_channels, .block = KR_MIDDLE_THREADS, .stream = stream};
}
static kr_grid by_columns(int64_t n, uint32_t y, void *stream) {
  return (kr_grid){.x = (uint32_t)((n + KR_MIDDLE_THREADS - 1) / KR_MIDDLE_THREADS),
                   .y = y,
                   .block = KR_MIDDLE_THREADS,
                   .stream = stream};
}

static int32_t run_norm(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_instance_norm_args *a = args;
  const int two = a->C % 2 == 0 && is_in_pairs_for_inorm(&a->x) && is_in_pairs_for_inorm(&a->out);
  kr_middle_params p = plan_norm(a->B, a->S, a->C, two);
  p.x = a->x, p.weight = a->weight, p.bias = a->bias, p.slope = a->slope, p.out = a->out, p.eps = a->eps;
  p.partial = a->call.scratch, p.stats = p.partial + partial_floats(&p);
  const kr_grid all = by_parts(&p, a->call.stream), columns = by_columns(p.B * p.C, 1, a->call.stream);
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &parts[two][p.x.dtype], &all, &p);
  kr_chain_add(&chain, &stats[p.x.dtype], &columns, &p);
  kr_chain_add(&chain, &apply[two][p.x.dtype], &all, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

static int32_t run_norm_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_instance_norm_bwd_args *a = args;
  const int two =
      a->C % 2 == 0 && is_in_pairs_for_inorm(&a->x) && is_in_pairs_for_inorm(&a->dout) && is_in_pairs_for_inorm(&a->dx);
  kr_middle_params p = plan_norm(a->B, a->S, a->C, two);
  p.x = a->x, p.weight = a->weight, p.bias = a->bias, p.slope = a->slope, p.out = a->dx, p.eps = a->eps;
  p.dout = a->dout, p.dweight = a->dweight, p.dbias = a->dbias, p.dslope = a->dslope;
  p.partial = a->call.scratch, p.stats = p.partial + partial_floats(&p);
  const kr_grid all = by_parts(&p, a->call.stream), columns = by_columns(p.B * p.C, 1, a->call.stream),
                sums = by_columns(p.C, 3, a->call.stream);
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &parts[two][p.x.dtype], &all, &p);
  kr_chain_add(&chain, &stats[p.x.dtype], &columns, &p);
  kr_chain_add(&chain, &back_parts[two][p.x.dtype], &all, &p);
  kr_chain_add(&chain, &back_stats[p.x.dtype], &columns, &p);
  if (kr_has(&a->dx)) kr_chain_add(&chain, &back_apply[two][p.x.dtype], &all, &p);
  if (kr_has(&a->dweight) || kr_has(&a->dbias) || kr_has(&a->dslope))
    kr_chain_add(&chain, &back_sums[p.x.dtype], &sums, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

KR_CUDA_TIERS(instance_norm, run_norm)
KR_CUDA_TIERS(instance_norm_bwd, run_norm_bwd)

/* ---- pooling ---- */

const char *kr_pool_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_pool_args *a = args;
  (void)ctx;
  return is_too_large(a->B, a->S, a->C) ? too_many : NULL;
}
const char *kr_pool_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_pool_bwd_args *a = args;
  (void)ctx;
  return is_too_large(a->B, a->S, a->C) ? too_many : NULL;
}
uint64_t kr_pool_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }
uint64_t kr_pool_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

static int32_t run_pool(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_pool_args *a = args;
  kr_middle_params p = inorm_plan_of(a->B, a->S, a->C, 1, 1, 0);
  p.x = a->x, p.out = a->out, p.kind = (int32_t)(a->call.flags & (KRAIT_POOL_SUM | KRAIT_POOL_MAX));
  const kr_grid all = by_parts(&p, a->call.stream);
  return kr_cuda_launch(ctx->cuda, tier, &pool[p.x.dtype], &all, &p, sizeof p);
}

/* Every block searches for the maxima of its channels: rows are not split. */
static int32_t run_pool_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_pool_bwd_args *a = args;
  kr_middle_params p = inorm_plan_of(a->B, a->S, a->C, 8, a->call.flags & KRAIT_POOL_MAX ? 1 : KR_MIDDLE_PARTS, 0);
  if (!kr_has(&a->dx)) return KRAIT_OK;
  p.x = a->x, p.dout = a->dout, p.out = a->dx, p.kind = (int32_t)(a->call.flags & (KRAIT_POOL_SUM | KRAIT_POOL_MAX));
  const kr_grid all = by_parts(&p, a->call.stream);
  return kr_cuda_launch(ctx->cuda, tier, &pool_back[p.x.dtype], &all, &p, sizeof p);
}

KR_CUDA_TIERS(pool, run_pool)
KR_CUDA_TIERS(pool_bwd, run_pool_bwd)
