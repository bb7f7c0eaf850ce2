/* gated_delta_rule_cuda.c: the launches: a block for some columns of a head's state. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "gated_delta_rule/gated_delta_rule.h"
#include "gated_delta_rule/gated_delta_rule_params.h"
#include "lm_ops.h"

static const kr_kernel of_128 = {"gated_delta_rule", "kr_gated_delta_128"},
                       of_256 = {"gated_delta_rule", "kr_gated_delta_256"};

static int32_t launch_delta(const krait_ctx *ctx, kr_delta_params *p, uint64_t tier) {
  const kr_gated_delta_rule_args *a = &p->a;
  p->parts = (int32_t)kr_blocks_of(a->Dv, KR_DELTA_COLUMNS);
  const kr_grid grid = {.x = (uint32_t)(a->B * a->H * p->parts), .block = KR_DELTA_THREADS, .stream = a->call.stream};
  return grid.x ? kr_cuda_launch(ctx->cuda, tier, a->Dk > 128 ? &of_256 : &of_128, &grid, p, sizeof *p) : KRAIT_OK;
}

static int32_t run_delta_rule(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_gated_delta_rule_args *a = args;
  return launch_delta(ctx, &(kr_delta_params){.a = *a, .before = a->initial_states, .after = a->final_states}, tier);
}

static int32_t run_delta_update(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_gated_delta_update_args *a = args;
  return launch_delta(ctx,
                      &(kr_delta_params){.a = kr_delta_sequence_of(a),
                                         .before = a->state,
                                         .after = a->state,
                                         .rows = a->state_batch_indices},
                      tier);
}

static const char *refuse_blocks(double blocks) { return blocks >= 2147483648.0 ? "2^31 blocks or more" : NULL; }

const char *kr_gated_delta_rule_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gated_delta_rule_args *a = args;
  (void)ctx;
  return refuse_blocks((double)a->B * (double)a->H * kr_blocks_of(a->Dv, KR_DELTA_COLUMNS));
}

const char *kr_gated_delta_update_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gated_delta_update_args *a = args;
  (void)ctx;
  return refuse_blocks((double)a->B * (double)a->H * kr_blocks_of(a->Dv, KR_DELTA_COLUMNS));
}

uint64_t kr_gated_delta_rule_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }
uint64_t kr_gated_delta_update_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

KR_CUDA_TIERS(gated_delta_rule, run_delta_rule)
KR_CUDA_TIERS(gated_delta_update, run_delta_update)
