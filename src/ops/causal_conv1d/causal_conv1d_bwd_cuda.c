/* causal_conv1d_bwd_cuda.c: how many blocks share a channel, and the launches of the convolution's gradient. */
#include "conv_host.h"

static const kr_kernel rows_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_rows"), any_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_any");
static const kr_kernel whole_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_whole"), last_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_last");
static const kr_kernel long_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_long"), far_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_far");
static const kr_kernel block_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_block"), fours_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_fours");
static const kr_kernel sum_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_sum"), initial_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_initial");

enum { FEWEST_PACKS = 64, FEWEST_STEPS = 8, FEW_STEPS = 32, MOST_STEPS = 256, FEW_RUNS = 8, ENOUGH_RUNS = 4096, FAR_PACKS = 128, BLOCK_WARPS = KR_CONV_THREADS / 32, FEW_WARPS = 96 }; /* packs and steps: of a run; FAR_PACKS: of a warp; FEW_WARPS, FEW_RUNS: for a multiprocessor */

static uint32_t blocks_of(int64_t n, int64_t threads) { return (uint32_t)((n + threads - 1) / threads); }

/* Enough blocks for the device, and two packs for each thread or more. */
static int32_t parts_of(const krait_ctx *ctx, const krait_causal_conv1d_bwd_args *a) {
  const int64_t packs = a->B * ((a->L + 7) / 8), wanted = 16ll * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  int64_t parts = a->D > 0 ? (wanted + a->D - 1) / a->D : 1, most = (packs + 2 * KR_CONV_THREADS - 1) / (2 * KR_CONV_THREADS);
  if (parts > most) parts = most;
  return parts < 1 ? 1 : (int32_t)parts;
}

/* Runs of so many steps of 128 channels each. */
static int64_t runs_of(const krait_causal_conv1d_bwd_args *a, int64_t steps) { return a->B * (a->L / steps) * ((a->D + 127) / 128); }

/* Steps of a run where channels are innermost: many where there are plenty, since each run computes three steps of the next one too. */
static int32_t run_steps_of(const krait_ctx *ctx, const krait_causal_conv1d_bwd_args *a) {
  int32_t steps = FEW_STEPS;
  while (steps < MOST_STEPS && runs_of(a, 2 * steps) >= ENOUGH_RUNS) steps *= 2;
  while (steps > FEWEST_STEPS && runs_of(a, steps) < (int64_t)FEW_RUNS * kr_cuda_info(ctx->cuda)->n_multiprocessors) steps /= 2;
  return steps;
}

/* Blocks of 128 channels, and two runs for each warp. */
static int32_t last_parts_of(const krait_ctx *ctx, const krait_causal_conv1d_bwd_args *a) {
  const int64_t run_steps = run_steps_of(ctx, a), blocks = (a->D + 127) / 128, runs = a->B * ((a->L + run_steps - 1) / run_steps), warps = KR_CONV_THREADS / 32, wanted = 8ll * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  int64_t parts = blocks > 0 ? (wanted + blocks - 1) / blocks : 1, most = (runs + 2 * warps - 1) / (2 * warps);
  if (blocks * most < wanted / 2) most = (runs + warps - 1) / warps;
  if (parts > most) parts = most;
  return parts < 1 ? 1 : (int32_t)parts;
}

/* Rows of whole packs along which warps walk: long enough, and 32 packs at a time leave few lanes idle. */
static int is_long(int64_t n_packs) { return n_packs >= 256 || (n_packs >= 64 && n_packs % 32 == 0); }

/* Rows of whole groups of four steps, of a type of 16 bits. */
static int by_fours(const kr_rows *v, int64_t L) { return L % 4 == 0 && v->t == 1 && v->b % 4 == 0 && v->row % 4 == 0 && (uintptr_t)v->data % 8 == 0; }

/* Long rows are cut into runs so that the device's warps have work, a few for each; returns the warps of a channel. */
static int32_t cut_long(const krait_ctx *ctx, kr_conv_plan *p, int64_t B, int64_t D, int64_t n_packs) {
  const int64_t rows = B * D > 0 ? B * D : 1, wanted = 96ll * kr_cuda_info(ctx->cuda)->n_multiprocessors, most_runs = n_packs / FEWEST_PACKS;
  int64_t runs = (wanted + rows - 1) / rows, most_warps = (2 * wanted + D - 1) / (D > 0 ? D : 1);
  if (runs > most_runs) runs = most_runs;
  if (runs < 1) runs = 1;
  if (most_warps < 8) most_warps = 8;
  p->run_packs = ((n_packs + runs - 1) / runs + 31) / 32 * 32;
  p->runs = kr_divisor_of((n_packs + p->run_packs - 1) / p->run_packs);
  const int64_t tasks = B * p->runs.by;
  return (int32_t)(tasks > most_warps ? most_warps : tasks < 1 ? 1 : tasks);
}

uint64_t kr_causal_conv1d_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const krait_causal_conv1d_bwd_args *a = args;
  kr_conv_plan cut = {0};
  const int64_t n_packs = a->L / (a->x.dtype == KRAIT_F32 ? 4 : 8), walk = is_long(n_packs) ? cut_long(ctx, &cut, a->B, a->D, n_packs) : 0;
  int64_t parts = parts_of(ctx, a), last = last_parts_of(ctx, a);
  if (parts < last) parts = last;
  if (parts < walk) parts = walk;
  return kr_scratch_round((uint64_t)(a->D * parts * (a->W + 1)) * 4);
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_causal_conv1d_bwd_args *a = args;
  const int reverse = (a->call.flags & KRAIT_CONV1D_REVERSE) != 0;
  kr_conv_plan p = KR_CONV_PLAN(a, reverse);
  p.dout = kr_rows_of(&a->dout, reverse, a->L);
  p.dx = kr_rows_of(&a->dx, reverse, a->L);
  p.dfinal = kr_rows_of(&a->dfinal_states, 0, 0);
  p.dinitial = kr_rows_of(&a->dinitial_states, 0, 0);
  p.dweight = a->dweight.data, p.dweight_d = a->dweight.stride[0], p.dweight_w = a->dweight.stride[1], p.dweight_dtype = a->dweight.dtype;
  p.dbias = a->dbias.data, p.dbias_d = a->dbias.stride[0], p.dbias_dtype = a->dbias.dtype;
  p.part = a->call.scratch;
  const int same = a->dout.data && a->dout.dtype == a->x.dtype && (!p.dx.data || a->dx.dtype == a->x.dtype);
  const int64_t per_pack = a->x.dtype == KRAIT_F32 ? 4 : 8;
  const int few_taps = p.W <= KR_CONV_TAPS && !p.seq_idx && same && p.B * ((p.L + 3) / 4) < 1ll << 31;
  const int plain = few_taps && !p.initial.data && !p.dfinal.data; /* those two are rare: the general kernels do them */
  const int last = plain && p.D % 4 == 0 && kr_conv_quads(&p.x) && kr_conv_quads(&p.dout) && (!p.dx.data || kr_conv_quads(&p.dx));
  const int whole = plain && !last && p.L % per_pack == 0 && p.x.packs && p.dout.packs && (!p.dx.data || p.dx.packs);
  const int walk = whole && is_long(p.L / per_pack);
  const int fours = plain && !last && !whole && per_pack == 8 && by_fours(&p.x, p.L) && by_fours(&p.dout, p.L) && (!p.dx.data || by_fours(&p.dx, p.L));
  p.packs_per_row = kr_divisor_of(fours ? (p.L + 15) / 16 : whole && !walk ? (p.L / per_pack + 1) / 2 : (p.L + per_pack - 1) / per_pack);
  p.run_steps = run_steps_of(ctx, a), p.x_step = kr_conv_step(&p.x), p.dout_step = kr_conv_step(&p.dout), p.dx_step = kr_conv_step(&p.dx);
  p.runs = kr_divisor_of((p.L + p.run_steps - 1) / p.run_steps);
  p.n_parts = last ? last_parts_of(ctx, a) : walk ? cut_long(ctx, &p, p.B, p.D, p.L / per_pack) : parts_of(ctx, a);
  const int far = walk && tier == KRAIT_CAP_CUDA_AMPERE && p.x.dtype != KRAIT_F32 && p.B * p.runs.by * p.run_packs >= (int64_t)FAR_PACKS * p.n_parts;
  const int block = walk && !far && p.n_parts <= BLOCK_WARPS && p.D * p.n_parts <= (int64_t)FEW_WARPS * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  const kr_kernel *kernel = last ? last_kernel : far ? far_kernel : block ? block_kernel : walk ? long_kernel : whole ? whole_kernel : fours ? fours_kernel : few_taps ? rows_kernel : any_kernel;
  kr_grid grid = {.x = (uint32_t)((last ? (p.D + 127) / 128 : p.D) * p.n_parts), .block = KR_CONV_THREADS, .stream = a->call.stream};
  if (walk) grid.block = 32;
  if (block) grid.x = (uint32_t)p.D, grid.block = 32 * (uint32_t)p.n_parts, p.n_parts = 1;
  const kr_grid sum = {.x = blocks_of(p.D * (p.W + 1) * (p.n_parts > KR_CONV_FEW_PARTS ? 32 : 1), 128), .block = 128, .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &kernel[p.x.dtype], &grid, &p);
  if (p.dinitial.data && p.W > 1) {
    const kr_grid few = {.x = blocks_of(p.B * p.D * (p.W - 1), 128), .block = 128, .stream = a->call.stream};
    kr_chain_add(&chain, &initial_kernel[p.x.dtype], &few, &p);
  }
  if (p.n_parts > 1 && (p.dweight || p.dbias)) kr_chain_add(&chain, &sum_kernel[p.x.dtype], &sum, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

const char *kr_causal_conv1d_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_causal_conv1d_bwd_args *a = args;
  (void)ctx;
  if (a->W > KR_CONV_MOST_TAPS) return "W above 128";
  return NULL;
}

KR_CUDA_TIERS(causal_conv1d_bwd, run)
