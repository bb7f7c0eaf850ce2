/* pointwise_cuda.c: plans and launches of pointwise calls and sums over rows. */
#include "cuda_impl.h"
#include "op_list.h"
#include "overlap.h"
#include "pointwise/pointwise_params.h"
#include "pointwise/pointwise_walk.h"
#include "view.h"

static const kr_kernel packs = {"pointwise", "kr_pointwise_packs"}, gates = {"pointwise", "kr_pointwise_gates"},
                       any = {"pointwise", "kr_pointwise_any"}, sum_parts = {"pointwise", "kr_sum_parts"},
                       sum_packs = {"pointwise", "kr_sum_packs"}, sum_all = {"pointwise", "kr_sum_all"};

static kr_pointwise_view pointwise_view_of(const kr_view *v, const kr_walk *w, int which) {
  kr_pointwise_view to = {.data = v->data, .dtype = v->dtype};
  int64_t others = 0;
  for (int d = 0; d < 4; d++) {
    to.stride[d] = w->stride[which][d];
    if (d < 3) others |= to.stride[d];
  }
  to.packs = to.stride[3] == 1 && others % KR_POINTWISE_PACK == 0 && (uintptr_t)v->data % 16 == 0;
  return to;
}

static int takes_packs(const kr_pointwise_view *v) { return !v->data || v->packs || v->stride[3] == 0; }

/* Larger calls would let the next kernel's blocks take multiprocessors from their own. */
static int starts_ahead(const krait_ctx *ctx, const kr_pointwise_args *a, uint32_t n_blocks) {
  return (a->call.flags & KR_CALL_PDL) != 0 && n_blocks <= (uint32_t)kr_cuda_info(ctx->cuda)->n_multiprocessors;
}

static int32_t run_pointwise(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_pointwise_args *a = args;
  const kr_walk w = kr_walk_of(a);
  kr_pointwise_params p = {.out = pointwise_view_of(&a->out, &w, KR_WALK_OUT),
                         .x = pointwise_view_of(&a->x, &w, KR_WALK_X),
                         .y = pointwise_view_of(&a->y, &w, KR_WALK_Y),
                         .activation = a->activation,
                         .product = (a->call.flags & KRAIT_POINTWISE_PRODUCT) != 0,
                         .slope = (a->call.flags & KRAIT_POINTWISE_SLOPE) != 0,
                         .gate = kr_is_gate(a),
                         .x_other = a->x.stride[0],
                         .out_other = a->out.stride[0],
                         .x_scale = a->x_scale,
                         .y_scale = a->y_scale};
  const int64_t others = p.gate ? p.x_other | p.out_other : 0;
  const int packed = p.out.packs && takes_packs(&p.x) && takes_packs(&p.y) && w.n[3] % KR_POINTWISE_PACK == 0 &&
                     others % KR_POINTWISE_PACK == 0;
  const int64_t inner = packed ? w.n[3] / KR_POINTWISE_PACK : w.n[3], n = w.n[0] * w.n[1] * w.n[2] * inner;
  if (n == 0) return KRAIT_OK;
  for (int d = 0; d < 4; d++) p.n[d] = kr_divisor_of(d == 3 ? inner : w.n[d]);
  p.n_threads = (uint32_t)n;
  const uint32_t n_blocks = (uint32_t)((n + KR_POINTWISE_THREADS - 1) / KR_POINTWISE_THREADS);
  const kr_grid grid = {.x = n_blocks,
                        .block = KR_POINTWISE_THREADS,
                        .is_pdl = starts_ahead(ctx, a, n_blocks),
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, !packed ? &any : p.gate ? &gates : &packs, &grid, &p, sizeof p);
}

const char *kr_pointwise_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_pointwise_args *a = args;
  (void)ctx;
  if (a->x.dtype == KRAIT_F64 || a->y.dtype == KRAIT_F64 || a->out.dtype == KRAIT_F64) return "float64 tensors";
  if (kr_pointwise_refuse_gate(a)) return kr_pointwise_refuse_gate(a);
  return (double)a->I * (double)a->J * (double)a->K * (double)a->N >= 2147483648.0 - KR_POINTWISE_THREADS
             ? "2^31 elements or more"
             : NULL;
}

uint64_t kr_pointwise_cuda_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx, (void)args;
  return 0;
}

KR_CUDA_TIERS(pointwise, run_pointwise)

static kr_sum_params plan_sums(const kr_sum_rows_args *a) {
  kr_sum_params p = {.x = a->x, .out = a->out, .partial = a->call.scratch, .R = a->R, .M = a->M, .lanes = 1};
  while (p.lanes < KR_SUM_BLOCK && p.lanes < p.M) p.lanes *= 2;
  const int64_t least = KR_SUM_ROWS * (KR_SUM_BLOCK / p.lanes), even = (a->R + KR_SUM_PARTS - 1) / KR_SUM_PARTS;
  p.rows = even > least ? even : least, p.n_parts = (a->R + p.rows - 1) / p.rows,
  p.n_groups = (uint32_t)((a->M + p.lanes - 1) / p.lanes);
  return p;
}

/* The same parts, by packs. */
static int plan_packs(kr_sum_params *p) {
  const int fits = (p->x.dtype == KRAIT_F16 || p->x.dtype == KRAIT_BF16) && p->x.stride[1] == 1 &&
                    p->x.stride[0] % KR_POINTWISE_PACK == 0 && p->M % KR_POINTWISE_PACK == 0 &&
                    (uintptr_t)p->x.data % 16 == 0;
  const int64_t n = p->M / KR_POINTWISE_PACK;
  if (!fits) return 0;
  for (p->lanes = 1; p->lanes < KR_SUM_BLOCK && p->lanes < n;) p->lanes *= 2;
  p->n_groups = (uint32_t)((n + p->lanes - 1) / p->lanes);
  return 1;
}

static int32_t run_sum_rows(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_sum_rows_args *a = args;
  kr_sum_params p = plan_sums(a);
  const int in_packs = plan_packs(&p);
  kr_chain chain = {.n = 0};
  const uint32_t columns = KR_SUM_BLOCK / 32;
  kr_chain_add(&chain, in_packs ? &sum_packs : &sum_parts,
               &(kr_grid){.x = p.n_groups * (uint32_t)p.n_parts, .block = KR_SUM_BLOCK, .stream = a->call.stream},
               &p);
  kr_chain_add(
      &chain, &sum_all,
      &(kr_grid){.x = (uint32_t)((a->M + columns - 1) / columns), .block = KR_SUM_BLOCK, .stream = a->call.stream},
      &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

const char *kr_sum_rows_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_sum_rows_args *a = args;
  (void)ctx;
  if (a->x.dtype == KRAIT_F64 || a->out.dtype == KRAIT_F64) return "float64 tensors";
  return (double)a->R * (double)a->M >= 2147483648.0 ? "2^31 elements or more" : NULL;
}

uint64_t kr_sum_rows_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_sum_rows_args *a = args;
  (void)ctx;
  return kr_scratch_round((uint64_t)(plan_sums(a).n_parts * a->M) * sizeof(float));
}

KR_CUDA_TIERS(sum_rows, run_sum_rows)
