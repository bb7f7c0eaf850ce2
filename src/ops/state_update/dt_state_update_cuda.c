/* dt_state_update_cuda.c: launches of the state_update kernels that also compute the time steps: four states per lane,
 * with a channel's dot product split across its lanes; and, for many sequences, all states of a channel in two threads,
 * with the products on tensor cores. */
#include "state_update/dt_state_update_impls.h"
#include "overlap.h"
#include "state_update/state_update_params.h"
#include "state_update/state_update_impls.h"
#include "view.h"

enum { FOUR_STATES, MOST_ROWS = 16 };

static const kr_kernel fours[] = KR_BY_TYPE("state_update", "kr_dt_update_4"),
                       same_fours[] = KR_BY_TYPE("state_update", "kr_dt_update_same_4");

static const kr_kernel whole[] = KR_BY_TYPE("state_update", "kr_dt_update_rows"),
                       same_whole[] = KR_BY_TYPE("state_update", "kr_dt_update_same_rows"),
                       same_whole_4[] = KR_BY_TYPE("state_update", "kr_dt_update_same_rows_4");

static kr_state_update_args with_any_dt(const kr_dt_state_update_args *a) {
  kr_state_update_args update = kr_update_of(a);
  update.dt = update.x;
  return update;
}

static int is_packed_for_dt_state_update(const kr_view *v, int64_t rows) {
  return v->stride[1] == 1 && (rows == 1 || v->stride[0] % 8 == 0) && (uintptr_t)v->data % 16 == 0;
}

static const char *refuse_product(const kr_dt_state_update_args *a, int64_t most_packs) {
  if (a->r.dtype != a->x.dtype || a->dt_weight.dtype != a->x.dtype) return "r or dt_weight of another type than x";
  return a->R % 8 || a->R > 8 * most_packs || !is_packed_for_dt_state_update(&a->r, a->B) ||
                 !is_packed_for_dt_state_update(&a->dt_weight, a->D)
             ? "R is no multiple of eight or too large, or rows of r or dt_weight have gaps or are not aligned to 16 "
               "bytes"
             : NULL;
}

static const char *refuse_dt_state_update(const krait_ctx *ctx, const void *args, int family) {
  const kr_dt_state_update_args *a = args;
  const kr_state_update_args update = with_any_dt(a);
  (void)family;
  if (a->B > MOST_ROWS) return "more than 16 rows";
  const char *why = refuse_product(a, KR_DT_PACKS * kr_update_lanes(a->N / 4));
  return why ? why : kr_state_update_four_states_refuse(ctx, &update);
}

const char *kr_dt_state_update_whole_refuse(const krait_ctx *ctx, const void *args) {
  const kr_dt_state_update_args *a = args;
  const kr_state_update_args update = with_any_dt(a);
  const char *why = refuse_product(a, KR_UPDATE_STEP_PACKS);
  return why ? why : kr_state_update_whole_channels_refuse(ctx, &update);
}

static kr_update_params dt_state_update_plan_of(const kr_dt_state_update_args *a) {
  kr_update_params p = kr_update_params_of(with_any_dt(a), 1, a->N / 4);
  p.r = a->r.data, p.dt_weight = a->dt_weight.data, p.r_row = a->r.stride[0], p.dt_row = a->dt_weight.stride[0],
  p.packs = (int32_t)(a->R / 8);
  return p;
}

static int32_t run_dt_state_update(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {
  const kr_dt_state_update_args *a = args;
  const kr_update_params p = dt_state_update_plan_of(a);
  const int64_t threads = a->B * a->D * p.lanes;
  (void)family;
  const kr_grid grid = {.x = (uint32_t)((threads + 127) / 128),
                        .block = 128,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &(a->state.dtype == KRAIT_F32 ? fours : same_fours)[a->x.dtype], &grid, &p,
                        sizeof p);
}

int32_t kr_dt_state_update_whole(const krait_ctx *ctx, const void *args) {
  const kr_dt_state_update_args *a = args;
  const kr_update_params p = dt_state_update_plan_of(a);
  const int64_t n_channels = (a->D + KR_UPDATE_ROWS_CHANNELS - 1) / KR_UPDATE_ROWS_CHANNELS,
                n_blocks = n_channels * ((a->B + KR_UPDATE_ROWS_SAME - 1) / KR_UPDATE_ROWS_SAME);
  /* H200: with two blocks a multiprocessor or fewer the chain of a block's sequences is what takes the time */
  const int is_float = a->state.dtype == KRAIT_F32, is_few = n_blocks <= 2 * kr_cuda_info(ctx->cuda)->n_multiprocessors,
            sequences = is_float ? KR_UPDATE_ROWS_WIDE : is_few ? KR_UPDATE_ROWS_FEW : KR_UPDATE_ROWS_SAME;
  const kr_grid grid = {.x = (uint32_t)n_channels,
                        .y = (uint32_t)((a->B + sequences - 1) / sequences),
                        .block = 128,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  const kr_kernel *kernels = is_float ? whole : is_few ? same_whole_4 : same_whole;
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &kernels[a->x.dtype], &grid, &p, sizeof p);
}

static uint64_t dt_state_update_no_scratch(const krait_ctx *ctx, const void *args, int family) {
  return (void)ctx, (void)args, (void)family, 0;
}

KR_CUDA_FAMILY(dt_state_update, four_states, FOUR_STATES, run_dt_state_update, refuse_dt_state_update,
               dt_state_update_no_scratch)
