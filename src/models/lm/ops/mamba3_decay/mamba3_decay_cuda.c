/* mamba3_decay_cuda.c: the launch of Mamba 3's time steps and decays. */
#include "cuda_impl.h"
#include "lm_ops.h"
#include "mamba3_decay/mamba3_decay_params.h"

static const kr_kernel elements = {"mamba3_decay", "kr_mamba3_decay"};

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
