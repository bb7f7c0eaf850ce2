/* causal_conv1d_cuda.c: which kernel takes a convolution, forward and backward, and its launch. */
#include "conv_host.h"

static const kr_kernel rows_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_rows"), last_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_last"), last_far_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_last_far");
static const kr_kernel whole_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_whole"), whole_1_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_whole_1");
static const kr_kernel walk_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_walk"), final_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_final");

enum { SHORT_BLOCKS = 16 }; /* of a multiprocessor, up to which threads rather make one pack than two */


static uint32_t blocks_of(int64_t n, int64_t threads) { return (uint32_t)((n + threads - 1) / threads); }

/* Four channels at a time: the channel-last layout, W up to 4, no states and no packed sequences. */
static int channels_innermost(const kr_conv_plan *p) {
  return p->W <= KR_CONV_TAPS && !p->seq_idx && !p->initial.data && p->D % 4 == 0 && kr_conv_quads(&p->x) && kr_conv_quads(&p->out);
}

/* Four steps are one aligned access. */
static int steps_by_fours(const kr_rows *v) {
  const uintptr_t bytes = v->dtype == KRAIT_F32 ? 16 : 8;
  return v->t == 1 && v->b % 4 == 0 && v->row % 4 == 0 && (uintptr_t)v->data % bytes == 0;
}

/* The kernel of out, and its grid. */
static const kr_kernel *out_kernel(const krait_ctx *ctx, const krait_causal_conv1d_args *a, kr_conv_plan *p, uint64_t tier, kr_grid *grid) {
  const int64_t per_pack = a->x.dtype == KRAIT_F32 ? 4 : 8;
  if (a->out.data == a->x.data || p->W > KR_CONV_TAPS || p->seq_idx || p->B * p->D * (p->L / 4 + 1) >= 1ll << 31) {
    grid->x = (uint32_t)(p->B * p->D), grid->block = KR_CONV_WALK;
    return walk_kernel;
  }
  if (channels_innermost(p)) {
    p->packs_per_row = kr_divisor_of(p->D / 4);
    p->run_steps = KR_CONV_RUN, p->x_step = kr_conv_step(&p->x), p->out_step = kr_conv_step(&p->out);
    p->runs = kr_divisor_of((p->L + KR_CONV_RUN - 1) / KR_CONV_RUN);
    grid->x = blocks_of(p->B * p->runs.by * p->packs_per_row.by, KR_CONV_THREADS);
    return tier == KRAIT_CAP_CUDA_AMPERE && p->x.dtype != KRAIT_F32 ? last_far_kernel : last_kernel;
  }
  p->rows = kr_divisor_of(p->D);
  if (p->x.packs && p->out.packs && p->L % per_pack == 0 && !p->initial.data) {
    p->packs_per_row = kr_divisor_of(p->L / per_pack);
    grid->x = blocks_of(p->B * p->D * p->packs_per_row.by, KR_CONV_THREADS);
    if (grid->x <= SHORT_BLOCKS * (uint32_t)kr_cuda_info(ctx->cuda)->n_multiprocessors) return whole_1_kernel;
    grid->x = blocks_of(p->B * p->D * p->packs_per_row.by, 2 * KR_CONV_THREADS);
    return whole_kernel;
  }
  p->packs_per_row = kr_divisor_of((p->L + 3) / 4);
  p->quads = p->L % 4 == 0 && steps_by_fours(&p->x) && steps_by_fours(&p->out);
  grid->x = blocks_of(p->B * p->D * p->packs_per_row.by, KR_CONV_THREADS);
  return rows_kernel;
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_causal_conv1d_args *a = args;
  const int reverse = (a->call.flags & KRAIT_CONV1D_REVERSE) != 0;
  kr_conv_plan p = KR_CONV_PLAN(a, reverse);
  p.out = kr_rows_of(&a->out, reverse, a->L);
  p.final = kr_rows_of(&a->final_states, 0, 0);
  kr_grid grid = {.block = KR_CONV_THREADS, .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  if (p.final.data && p.W > 1) { /* first: out may be x */
    const kr_grid few = {.x = blocks_of(p.B * p.D * (p.W - 1), 128), .block = 128, .stream = a->call.stream};
    kr_chain_add(&chain, &final_kernel[p.x.dtype], &few, &p);
  }
  const kr_kernel *const kernel = out_kernel(ctx, a, &p, tier, &grid);
  kr_chain_add(&chain, &kernel[p.x.dtype], &grid, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
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
