/* mamba3_decay_cuda.c: launches of Mamba 3's time steps and decays and of their gradient. */
#include "cuda_impl.h"
#include "mamba3_decay/mamba3_decay_params.h"
#include "op_list.h"
#include "view.h"

static const kr_kernel elements = {"mamba3_decay", "kr_mamba3_decay"}, back = {"mamba3_decay", "kr_mamba3_decay_bwd"},
                       back_sum = {"mamba3_decay", "kr_mamba3_decay_bwd_sum"};

static int32_t run_decay(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_mamba3_decay_args *a = args;
  const int64_t n = a->R * a->H;
  const kr_mamba3_decay_params p = {.a = *a, .heads = kr_divisor_of(a->H), .n_threads = (uint32_t)n};
  const kr_grid grid = {.x = (uint32_t)((n + KR_DECAY_THREADS - 1) / KR_DECAY_THREADS),
                        .block = KR_DECAY_THREADS,
                        .stream = a->call.stream};
  return n ? kr_cuda_launch(ctx->cuda, tier, &elements, &grid, &p, sizeof p) : KRAIT_OK;
}

const char *kr_mamba3_decay_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_args *a = args;
  (void)ctx;
  if (a->dt_raw.dtype == KRAIT_F64) return "float64 tensors";
  return (double)a->R * (double)a->H >= 2147483648.0 - KR_DECAY_THREADS ? "2^31 elements or more" : NULL;
}

uint64_t kr_mamba3_decay_cuda_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx, (void)args;
  return 0;
}

KR_CUDA_TIERS(mamba3_decay, run_decay)

/* The split of rows depends on the shape alone. */
static kr_mamba3_decay_bwd_params bwd_params_of(const kr_mamba3_decay_bwd_args *a) {
  const int64_t turn = KR_DECAY_THREADS / 32, turns = (a->R + turn - 1) / turn,
                per_part = (turns + KR_DECAY_MOST_PARTS - 1) / KR_DECAY_MOST_PARTS,
                rows = (per_part > 4 ? per_part : 4) * turn;
  return (kr_mamba3_decay_bwd_params){.a = *a,
                                      .partial = kr_has(&a->ddt_bias) ? a->call.scratch : NULL,
                                      .rows = rows,
                                      .n_parts = (int32_t)((a->R + rows - 1) / rows)};
}

static int32_t run_decay_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_mamba3_decay_bwd_args *a = args;
  const kr_mamba3_decay_bwd_params p = bwd_params_of(a);
  kr_chain chain = {.n = 0};
  if (p.n_parts)
    kr_chain_add(&chain, &back,
                 &(kr_grid){.x = (uint32_t)p.n_parts,
                            .y = (uint32_t)((a->H + KR_DECAY_HEADS - 1) / KR_DECAY_HEADS),
                            .block = KR_DECAY_THREADS,
                            .stream = a->call.stream},
                 &p);
  const int64_t per_block = KR_DECAY_THREADS / 32;
  if (kr_has(&a->ddt_bias)) /* without rows, too: zeros */
    kr_chain_add(
        &chain, &back_sum,
        &(kr_grid){
            .x = (uint32_t)((a->H + per_block - 1) / per_block), .block = KR_DECAY_THREADS, .stream = a->call.stream},
        &p);
  return chain.n ? kr_cuda_launch_chain(ctx->cuda, tier, &chain) : KRAIT_OK;
}

const char *kr_mamba3_decay_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_bwd_args *a = args;
  (void)ctx;
  if (a->dt_raw.dtype == KRAIT_F64) return "float64 tensors";
  return a->H > 65535 * (int64_t)KR_DECAY_HEADS ? "more than 2^21 heads" : NULL;
}

uint64_t kr_mamba3_decay_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_mamba3_decay_bwd_args *a = args;
  (void)ctx;
  return kr_has(&a->ddt_bias) ? kr_scratch_round((uint64_t)bwd_params_of(a).n_parts * (uint64_t)a->H * sizeof(float))
                              : 0;
}

KR_CUDA_TIERS(mamba3_decay_bwd, run_decay_bwd)
