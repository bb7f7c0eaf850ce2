/* norm_short_cuda.c: plans and launches of norms of short rows. The split of rows depends on the shape alone. */
#include "norm_impls.h"
#include "norm_short_params.h"
#include "op_list.h"
#include "view.h"

/* By row type: float32, float16, bfloat16. */
#define TYPES(name) {{"norm_short_f32", name}, {"norm_short_f16", name}, {"norm_short_bf16", name}}
static const kr_kernel forward[] = TYPES("kr_norm_short"), back[] = TYPES("kr_norm_short_back"),
                       back_sum[] = TYPES("kr_norm_short_back_sum");
static const char *const other_rows =
                             "needs rows of one type and 16, 32, 64 or 128 features, aligned to 16 bytes, and float32 "
                             "parameters",
                         *const other_call = "takes one tensor, its weight and its bias alone";

static int are_rows_for_norm_short(const kr_view *v, int32_t dtype) {
  return v->dtype == dtype && v->stride[1] == 1 && v->stride[0] % 4 == 0 && (uintptr_t)v->data % 16 == 0;
}
static int is_vector_for_norm_short(const kr_view *v) {
  return !kr_has(v) || (v->dtype == KRAIT_F32 && v->stride[0] == 1);
}
static int is_short_for_norm_short(int64_t R, int64_t M) {
  return (M == 16 || M == 32 || M == 64 || M == KR_SHORT_MOST) && R < 1ll << 31;
}

static kr_norm_short_params norm_short_plan_of(int64_t R, int64_t M, float eps, uint32_t flags) {
  kr_norm_short_params p = {.R = R,
                          .M = (int32_t)M,
                          .lanes = (int32_t)(M / 4),
                          .eps = eps,
                          .inverse_M = (float)(1 / (double)M),
                          .rms = (flags & KRAIT_NORM_RMS) != 0};
  const int64_t turn = KR_SHORT_THREADS / p.lanes, turns = (R + turn - 1) / turn,
                per_part = (turns + KR_SHORT_PARTS - 1) / KR_SHORT_PARTS;
  p.rows = (per_part > KR_SHORT_ROWS ? per_part : KR_SHORT_ROWS) * turn;
  p.n_parts = (int32_t)((R + p.rows - 1) / p.rows);
  return p;
}

const char *kr_add_norm_short_refuse(const krait_ctx *ctx, const void *args) {
  const kr_add_norm_args *a = args;
  (void)ctx;
  if (kr_has(&a->x1) || kr_has(&a->residual) || kr_has(&a->rowscale) || kr_has(&a->weight1) || kr_has(&a->out1) ||
      kr_has(&a->residual_out))
    return other_call;
  return is_short_for_norm_short(a->R, a->M) && are_rows_for_norm_short(&a->x, a->x.dtype) &&
                 are_rows_for_norm_short(&a->out, a->x.dtype) && is_vector_for_norm_short(&a->weight) &&
                 is_vector_for_norm_short(&a->bias)
             ? NULL
             : other_rows;
}

int32_t kr_add_norm_short(const krait_ctx *ctx, const void *args) {
  const kr_add_norm_args *a = args;
  kr_norm_short_params p = norm_short_plan_of(a->R, a->M, a->eps, a->call.flags);
  const int64_t per_block = KR_SHORT_ROWS * (KR_SHORT_THREADS / p.lanes);
  p.x = a->x.data, p.weight = a->weight.data, p.bias = a->bias.data, p.out = a->out.data, p.x_row = a->x.stride[0],
  p.out_row = a->out.stride[0];
  return kr_cuda_launch(
      ctx->cuda, KRAIT_CAP_CUDA_BASE, &forward[a->x.dtype],
      &(kr_grid){
          .x = (uint32_t)((a->R + per_block - 1) / per_block), .block = KR_SHORT_THREADS, .stream = a->call.stream},
      &p, sizeof p);
}

const char *kr_add_norm_bwd_short_refuse(const krait_ctx *ctx, const void *args) {
  const kr_add_norm_bwd_args *a = args;
  (void)ctx;
  if (kr_has(&a->rowscale) || kr_has(&a->weight1) || kr_has(&a->dout1) || kr_has(&a->dx1) || kr_has(&a->dresidual) ||
      kr_has(&a->dweight1) || kr_has(&a->dbias1))
    return other_call;
  if (!kr_has(&a->dout)) return "no gradient of the output";
  const int32_t dtype = a->v.dtype;
  return is_short_for_norm_short(a->R, a->M) && are_rows_for_norm_short(&a->v, dtype) &&
                 are_rows_for_norm_short(&a->dout, dtype) &&
                 (!kr_has(&a->dx) || are_rows_for_norm_short(&a->dx, dtype)) &&
                 (!kr_has(&a->dresidual_out) || are_rows_for_norm_short(&a->dresidual_out, dtype)) &&
                 is_vector_for_norm_short(&a->weight) && (!kr_has(&a->dweight) || a->dweight.dtype == KRAIT_F32) &&
                 (!kr_has(&a->dbias) || a->dbias.dtype == KRAIT_F32)
             ? NULL
             : other_rows;
}

uint64_t kr_add_norm_bwd_short_scratch(const krait_ctx *ctx, const void *args) {
  const kr_add_norm_bwd_args *a = args;
  const kr_norm_short_params p = norm_short_plan_of(a->R, a->M, a->eps, a->call.flags);
  (void)ctx;
  return kr_scratch_round((uint64_t)p.n_parts * 2 * (uint64_t)a->M * sizeof(float));
}

int32_t kr_add_norm_bwd_short(const krait_ctx *ctx, const void *args) {
  const kr_add_norm_bwd_args *a = args;
  kr_norm_short_params p = norm_short_plan_of(a->R, a->M, a->eps, a->call.flags);
  kr_chain chain = {.n = 0};
  p.x = a->v.data, p.weight = a->weight.data, p.dout = a->dout.data, p.out = a->dx.data, p.x_row = a->v.stride[0],
  p.dout_row = a->dout.stride[0], p.out_row = a->dx.stride[0];
  p.second = a->dresidual_out.data, p.second_row = a->dresidual_out.stride[0];
  p.dweight = a->dweight, p.dbias = a->dbias, p.partial = a->call.scratch;
  const int32_t type = a->v.dtype;
  kr_chain_add(&chain, &back[type],
               &(kr_grid){.x = (uint32_t)p.n_parts, .block = KR_SHORT_THREADS, .stream = a->call.stream}, &p);
  if (kr_has(&a->dweight) || kr_has(&a->dbias))
    kr_chain_add(
        &chain, &back_sum[type],
        &(kr_grid){
            .x = (uint32_t)(2 * a->M / (KR_SHORT_THREADS / 32)), .block = KR_SHORT_THREADS, .stream = a->call.stream},
        &p);
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &chain);
}
