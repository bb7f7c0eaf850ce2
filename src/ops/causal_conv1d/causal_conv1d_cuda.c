/* causal_conv1d_cuda.c: which kernel takes a convolution, forward and backward, and its launch. */
#include "conv_host.h"

static const kr_kernel rows_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_rows"), last_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_last");
static const kr_kernel whole_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_whole");
static const kr_kernel walk_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_walk"), final_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_final");

enum { RUN_STEPS = 16 }; /* channels innermost: of a thread */

static uint32_t blocks_of(int64_t n, int64_t threads) { return (uint32_t)((n + threads - 1) / threads); }

/* Four channels at a time: the channel-last layout, W up to 4, no states and no packed sequences. */
static int channels_innermost(const kr_conv_plan *p) {
  return p->W <= KR_CONV_TAPS && !p->seq_idx && !p->initial.data && p->D % 4 == 0 && kr_conv_quads(&p->x) && kr_conv_quads(&p->out);
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_causal_conv1d_args *a = args;
  const int reverse = (a->call.flags & KRAIT_CONV1D_REVERSE) != 0;
  const int64_t per_pack = a->x.dtype == KRAIT_F32 ? 4 : 8;
  kr_conv_plan p = KR_CONV_PLAN(a, reverse);
  p.out = kr_rows_of(&a->out, reverse, a->L);
  p.final = kr_rows_of(&a->final_states, 0, 0);
  kr_grid grid = {.block = KR_CONV_THREADS, .stream = a->call.stream};
  if (p.final.data && p.W > 1) { /* first: out may be x */
    const kr_grid few = {.x = blocks_of(p.B * p.D * (p.W - 1), 128), .block = 128, .stream = a->call.stream};
    KR_TRY(kr_cuda_launch(ctx->cuda, tier, &final_kernel[p.x.dtype], &few, &p, sizeof p));
  }
  if (a->out.data == a->x.data || p.W > KR_CONV_TAPS || p.seq_idx || p.B * p.D * (p.L / per_pack + 1) >= 1ll << 31) {
    grid.x = (uint32_t)(p.B * p.D), grid.block = KR_CONV_WALK;
    return kr_cuda_launch(ctx->cuda, tier, &walk_kernel[p.x.dtype], &grid, &p, sizeof p);
  }
  if (channels_innermost(&p)) {
    p.packs_per_row = kr_divisor_of(p.D / 4);
    p.run_steps = RUN_STEPS, p.x_step = kr_conv_step(&p.x), p.out_step = kr_conv_step(&p.out);
    p.runs = kr_divisor_of((p.L + RUN_STEPS - 1) / RUN_STEPS);
    grid.x = blocks_of(p.B * p.runs.by * p.packs_per_row.by, KR_CONV_THREADS);
    return kr_cuda_launch(ctx->cuda, tier, &last_kernel[p.x.dtype], &grid, &p, sizeof p);
  }
  p.packs_per_row = kr_divisor_of((p.L + per_pack - 1) / per_pack);
  p.rows = kr_divisor_of(p.D);
  if (p.x.packs && p.out.packs && p.L % per_pack == 0 && !p.initial.data) {
    grid.x = blocks_of(p.B * p.D * p.packs_per_row.by, KR_CONV_BYTES / 16 * KR_CONV_THREADS);
    return kr_cuda_launch(ctx->cuda, tier, &whole_kernel[p.x.dtype], &grid, &p, sizeof p);
  }
  grid.x = blocks_of(p.B * p.D * p.packs_per_row.by, KR_CONV_THREADS);
  return kr_cuda_launch(ctx->cuda, tier, &rows_kernel[p.x.dtype], &grid, &p, sizeof p);
}

const char *kr_causal_conv1d_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_causal_conv1d_args *a = args;
  (void)ctx;
  if (a->W > KR_CONV_MOST_TAPS) return "W above 128";
  if (a->B * a->D > (1ll << 31) - 1) return "more than 2^31 rows";
  return NULL;
}

uint64_t kr_causal_conv1d_cuda_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  (void)args;
  return 0;
}

KR_CUDA_TIERS(causal_conv1d, run)
