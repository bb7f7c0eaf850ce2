/* causal_conv1d_bwd_cuda.c: kernel families of the convolution's gradient: which calls each takes, how many blocks
 * share a channel, and the launches. */
#include "conv_host.h"
#include "conv_impls.h"
#include "cuda_views.h"

enum { CHANNELS_LAST, LONG_PACKED_ROWS, PACKED_ROWS, ROWS_BY_FOURS, ANY_ROWS, STEP_BY_STEP };

static const kr_kernel rows_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_rows"),
                       any_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_any");
static const kr_kernel whole_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_whole"),
                       last_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_last");
static const kr_kernel long_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_long"),
                       far_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_far");
static const kr_kernel block_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_block"),
                       fours_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_fours");
static const kr_kernel last_far_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_last_far");
static const kr_kernel sum_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_sum"),
                       initial_kernel[] = KR_BY_TYPE("causal_conv1d_bwd", "kr_conv_bwd_initial");

/* In packs or steps: per run; FAR_PACKS: per warp; FEW_WARPS, FEW_RUNS: per multiprocessor. */
enum {
  FEWEST_PACKS = 64,
  FEWEST_STEPS = 8,
  FEW_STEPS = 32,
  MOST_STEPS = 256,
  FEW_RUNS = 8,
  ENOUGH_RUNS = 4096,
  FAR_PACKS = 128,
  BLOCK_WARPS = KR_CONV_THREADS / 32,
  FEW_WARPS = 96
};

/* Enough blocks to fill the device, at least two packs per thread. */
static int32_t conv1d_bwd_parts_of(const krait_ctx *ctx, const kr_causal_conv1d_bwd_args *a) {
  const int64_t packs = a->B * ((a->L + 7) / 8), wanted = 16ll * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  int64_t parts = a->D > 0 ? (wanted + a->D - 1) / a->D : 1,
          most = (packs + 2 * KR_CONV_THREADS - 1) / (2 * KR_CONV_THREADS);
  if (parts > most) parts = most;
  return parts < 1 ? 1 : (int32_t)parts;
}

/* Number of runs of so many steps of 128 channels each. */
static int64_t conv1d_bwd_runs_of(const kr_causal_conv1d_bwd_args *a, int64_t steps) {
  return a->B * (a->L / steps) * ((a->D + 127) / 128);
}

/* Steps per run, channels-last: many if there are plenty, since each run recomputes three steps of the next. */
static int32_t run_steps_of(const krait_ctx *ctx, const kr_causal_conv1d_bwd_args *a) {
  int32_t steps = FEW_STEPS;
  while (steps < MOST_STEPS && conv1d_bwd_runs_of(a, 2 * steps) >= ENOUGH_RUNS) steps *= 2;
  while (steps > FEWEST_STEPS &&
         conv1d_bwd_runs_of(a, steps) < (int64_t)FEW_RUNS * kr_cuda_info(ctx->cuda)->n_multiprocessors)
    steps /= 2;
  return steps;
}

/* Blocks of 128 channels, two runs per warp. */
static int32_t last_parts_of(const krait_ctx *ctx, const kr_causal_conv1d_bwd_args *a) {
  const int64_t run_steps = run_steps_of(ctx, a), blocks = (a->D + 127) / 128,
                runs = a->B * ((a->L + run_steps - 1) / run_steps), warps = KR_CONV_THREADS / 32,
                wanted = 8ll * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  int64_t parts = blocks > 0 ? (wanted + blocks - 1) / blocks : 1, most = (runs + 2 * warps - 1) / (2 * warps);
  if (blocks * most < wanted / 2) most = (runs + warps - 1) / warps;
  if (parts > most) parts = most;
  return parts < 1 ? 1 : (int32_t)parts;
}

/* The same with asynchronous copies: at most one wave of blocks, and run lengths that balance the warps; a run's
 * overhead is three steps of the next run and the latency of its first load. */
enum { RESIDENT = 2, RUN_COST = 11, MOST_ROUNDS = 8, FAR_BYTES = (KR_CONV_AHEAD + 1) * 2 * 2 * 8 * KR_CONV_THREADS };
_Static_assert(FAR_BYTES >= KR_CONV_THREADS / 32 * 32 * 20 * 4, "the sums of a block fit");

typedef struct far_cut {
  int32_t run_steps, n_parts;
} far_cut;

static far_cut cut_far(const krait_ctx *ctx, const kr_causal_conv1d_bwd_args *a) {
  const int64_t blocks = (a->D + 127) / 128 > 0 ? (a->D + 127) / 128 : 1,
                resident = (int64_t)RESIDENT * kr_cuda_info(ctx->cuda)->n_multiprocessors,
                most = resident > blocks ? resident / blocks : 1;
  int64_t best = INT64_MAX;
  far_cut cut = {FEWEST_STEPS, 1};
  for (int64_t rounds = 1; rounds <= MOST_ROUNDS && a->B > 0 && a->L > 0; rounds++) {
    const int64_t warps = most * (KR_CONV_THREADS / 32), runs = warps * rounds / a->B > 0 ? warps * rounds / a->B : 1;
    int64_t steps = ((a->L + runs - 1) / runs + 3) / 4 * 4;
    if (steps < FEWEST_STEPS) steps = FEWEST_STEPS;
    const int64_t tasks = a->B * ((a->L + steps - 1) / steps), cost = (tasks + warps - 1) / warps * (steps + RUN_COST);
    if (cost >= best || steps > INT32_MAX / 2) continue;
    best = cost, cut.run_steps = (int32_t)steps;
    cut.n_parts = (int32_t)((tasks + KR_CONV_THREADS / 32 - 1) / (KR_CONV_THREADS / 32) < most
                                ? (tasks + KR_CONV_THREADS / 32 - 1) / (KR_CONV_THREADS / 32)
                                : most);
  }
  return cut;
}

/* Packed rows long enough for a warp each, with few idle lanes at 32 packs a step. */
static int is_long(int64_t n_packs) { return n_packs >= 256 || (n_packs >= 64 && n_packs % 32 == 0); }

/* 16-bit rows in aligned groups of four steps. */
static int conv1d_bwd_by_fours(const kr_rows *v, int64_t L) {
  return L % 4 == 0 && v->t == 1 && v->b % 4 == 0 && v->row % 4 == 0 && (uintptr_t)v->data % 8 == 0;
}

/* Splits long rows into runs, a few for each of the device's warps; returns the warps per channel. */
static int32_t cut_long(const krait_ctx *ctx, kr_conv_params *p, int64_t B, int64_t D, int64_t n_packs) {
  const int64_t rows = B * D > 0 ? B * D : 1, wanted = 96ll * kr_cuda_info(ctx->cuda)->n_multiprocessors,
                most_runs = n_packs / FEWEST_PACKS;
  int64_t runs = (wanted + rows - 1) / rows, most_warps = (2 * wanted + D - 1) / (D > 0 ? D : 1);
  if (runs > most_runs) runs = most_runs;
  if (runs < 1) runs = 1;
  if (most_warps < 8) most_warps = 8;
  p->run_packs = ((n_packs + runs - 1) / runs + 31) / 32 * 32;
  p->runs = kr_divisor_of((n_packs + p->run_packs - 1) / p->run_packs);
  const int64_t tasks = B * p->runs.by;
  return (int32_t)(tasks > most_warps ? most_warps : tasks < 1 ? 1 : tasks);
}

static int64_t conv1d_bwd_per_pack_of(const kr_conv_params *p) { return p->x.dtype == KRAIT_F32 ? 4 : 8; }

static kr_conv_params conv1d_bwd_plan_of(const kr_causal_conv1d_bwd_args *a) {
  const int reverse = (a->call.flags & KRAIT_CONV1D_REVERSE) != 0;
  kr_conv_params p = KR_CONV_PARAMS(a, reverse);
  p.dout = kr_rows_of(&a->dout, reverse, a->L);
  p.dx = kr_rows_of(&a->dx, reverse, a->L);
  p.dfinal = kr_rows_of(&a->dfinal_states, 0, 0);
  p.dinitial = kr_rows_of(&a->dinitial_states, 0, 0);
  p.dweight = a->dweight.data, p.dweight_d = a->dweight.stride[0], p.dweight_w = a->dweight.stride[1],
  p.dweight_dtype = a->dweight.dtype;
  p.dbias = a->dbias.data, p.dbias_d = a->dbias.stride[0], p.dbias_dtype = a->dbias.dtype;
  p.part = a->call.scratch;
  return p;
}

static const char *refuse_conv1d_bwd(const krait_ctx *ctx, const void *args, int family) {
  const kr_causal_conv1d_bwd_args *a = args;
  (void)ctx;
  if (a->W > KR_CONV_MOST_TAPS) return "W above 128";
  if (family == STEP_BY_STEP) return NULL;
  if (a->W > KR_CONV_TAPS) return "W above 4";
  if (kr_has(&a->seq_idx)) return "seq_idx";
  if (!kr_has(&a->dout)) return "no dout";
  if (a->dout.dtype != a->x.dtype || (kr_has(&a->dx) && a->dx.dtype != a->x.dtype))
    return "dout or dx differ in type from x";
  if (a->B * ((a->L + 3) / 4) >= 1ll << 31) return "2^31 groups of four steps or more";
  if (family == ANY_ROWS) return NULL;
  if (kr_has(&a->initial_states) || kr_has(&a->dfinal_states)) return "states"; /* rare: left to the general kernels */
  const kr_conv_params p = conv1d_bwd_plan_of(a);
  if (family == CHANNELS_LAST)
    return p.D % 4 == 0 && kr_conv_quads(&p.x) && kr_conv_quads(&p.dout) && (!p.dx.data || kr_conv_quads(&p.dx))
               ? NULL
               : "not channels-last in aligned groups of four";
  if (family == ROWS_BY_FOURS)
    return conv1d_bwd_per_pack_of(&p) == 8 && conv1d_bwd_by_fours(&p.x, p.L) && conv1d_bwd_by_fours(&p.dout, p.L) &&
                   (!p.dx.data || conv1d_bwd_by_fours(&p.dx, p.L))
               ? NULL
               : "rows are not in aligned groups of four 16-bit steps";
  if (p.L % conv1d_bwd_per_pack_of(&p) || !p.x.packs || !p.dout.packs || (p.dx.data && !p.dx.packs))
    return "rows are not in aligned packs of 16 bytes";
  return family == LONG_PACKED_ROWS && !is_long(p.L / conv1d_bwd_per_pack_of(&p)) ? "rows are short" : NULL;
}

/* How many blocks share a channel's sums; splits long rows. */
static int32_t share_channels(const krait_ctx *ctx, const kr_causal_conv1d_bwd_args *a, kr_conv_params *p,
                              int family) {
  if (family == CHANNELS_LAST) return last_parts_of(ctx, a);
  return family == LONG_PACKED_ROWS ? cut_long(ctx, p, p->B, p->D, p->L / conv1d_bwd_per_pack_of(p))
                                    : conv1d_bwd_parts_of(ctx, a);
}

static uint64_t conv1d_bwd_scratch_of(const krait_ctx *ctx, const void *args, int family) {
  const kr_causal_conv1d_bwd_args *a = args;
  kr_conv_params p = conv1d_bwd_plan_of(a);
  int32_t n_parts = share_channels(ctx, a, &p, family);
  if (family == CHANNELS_LAST && cut_far(ctx, a).n_parts > n_parts) n_parts = cut_far(ctx, a).n_parts;
  return kr_scratch_round((uint64_t)(a->D * n_parts * (a->W + 1)) * 4);
}

/* Long rows: one warp per part, or a channel's warps in one block, or deep prefetch. */
static const kr_kernel *long_rows(const krait_ctx *ctx, uint64_t tier, kr_conv_params *p, kr_grid *grid) {
  const int far = tier == KRAIT_CAP_CUDA_AMPERE && p->x.dtype != KRAIT_F32 &&
                  p->B * p->runs.by * p->run_packs >= (int64_t)FAR_PACKS * p->n_parts;
  grid->block = 32;
  if (far || p->n_parts > BLOCK_WARPS ||
      p->D * p->n_parts > (int64_t)FEW_WARPS * kr_cuda_info(ctx->cuda)->n_multiprocessors)
    return far ? far_kernel : long_kernel;
  grid->x = (uint32_t)p->D, grid->block = 32 * (uint32_t)p->n_parts, p->n_parts = 1;
  return block_kernel;
}

/* Channels-last tensors. */
static const kr_kernel *conv1d_bwd_channels_last(const krait_ctx *ctx, const kr_causal_conv1d_bwd_args *a,
                                                 uint64_t tier, kr_conv_params *p, kr_grid *grid) {
  if (tier != KRAIT_CAP_CUDA_AMPERE || p->x.dtype == KRAIT_F32 || kr_cuda_info(ctx->cuda)->shared_bytes < FAR_BYTES)
    return last_kernel;
  const far_cut cut = cut_far(ctx, a);
  p->n_parts = cut.n_parts, p->run_steps = cut.run_steps;
  p->runs = kr_divisor_of((p->L + p->run_steps - 1) / p->run_steps);
  grid->x = (uint32_t)((p->D + 127) / 128 * p->n_parts), grid->shared_bytes = FAR_BYTES;
  return last_far_kernel;
}

static const kr_kernel *conv1d_bwd_kernel_of(const krait_ctx *ctx, const kr_causal_conv1d_bwd_args *a, uint64_t tier,
                                  kr_conv_params *p, kr_grid *grid, int family) {
  switch (family) {
    case CHANNELS_LAST: return conv1d_bwd_channels_last(ctx, a, tier, p, grid);
    case LONG_PACKED_ROWS: return long_rows(ctx, tier, p, grid);
    case PACKED_ROWS: return whole_kernel;
    case ROWS_BY_FOURS: return fours_kernel;
    default: return family == ANY_ROWS ? rows_kernel : any_kernel;
  }
}

static int32_t run_conv1d_bwd(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {
  const kr_causal_conv1d_bwd_args *a = args;
  kr_conv_params p = conv1d_bwd_plan_of(a);
  const int64_t packs = (p.L + conv1d_bwd_per_pack_of(&p) - 1) / conv1d_bwd_per_pack_of(&p);
  p.packs_per_row = kr_divisor_of(family == ROWS_BY_FOURS ? (p.L + 15) / 16
                                  : family == PACKED_ROWS ? (packs + 1) / 2
                                                          : packs);
  p.run_steps = run_steps_of(ctx, a), p.x_step = kr_conv_step(&p.x), p.dout_step = kr_conv_step(&p.dout),
  p.dx_step = kr_conv_step(&p.dx);
  p.runs = kr_divisor_of((p.L + p.run_steps - 1) / p.run_steps);
  p.n_parts = share_channels(ctx, a, &p, family);
  kr_grid grid = {.x = (uint32_t)((family == CHANNELS_LAST ? (p.D + 127) / 128 : p.D) * p.n_parts),
                  .block = KR_CONV_THREADS,
                  .stream = a->call.stream};
  const kr_kernel *kernel = conv1d_bwd_kernel_of(ctx, a, tier, &p, &grid, family);
  const kr_grid sum = {.x = kr_blocks_of(p.D * (p.W + 1) * (p.n_parts > KR_CONV_FEW_PARTS ? 32 : 1), 128),
                       .block = 128,
                       .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &kernel[p.x.dtype], &grid, &p);
  if (p.dinitial.data && p.W > 1) {
    const kr_grid few = {.x = kr_blocks_of(p.B * p.D * (p.W - 1), 128), .block = 128, .stream = a->call.stream};
    kr_chain_add(&chain, &initial_kernel[p.x.dtype], &few, &p);
  }
  if (p.n_parts > 1 && (p.dweight || p.dbias)) kr_chain_add(&chain, &sum_kernel[p.x.dtype], &sum, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

KR_CUDA_FAMILY(causal_conv1d_bwd, channels_last, CHANNELS_LAST, run_conv1d_bwd, refuse_conv1d_bwd,
               conv1d_bwd_scratch_of)
KR_CUDA_FAMILY(causal_conv1d_bwd, long_packed_rows, LONG_PACKED_ROWS, run_conv1d_bwd, refuse_conv1d_bwd,
               conv1d_bwd_scratch_of)
KR_CUDA_FAMILY(causal_conv1d_bwd, packed_rows, PACKED_ROWS, run_conv1d_bwd, refuse_conv1d_bwd, conv1d_bwd_scratch_of)
KR_CUDA_FAMILY(causal_conv1d_bwd, rows_by_fours, ROWS_BY_FOURS, run_conv1d_bwd, refuse_conv1d_bwd,
               conv1d_bwd_scratch_of)
KR_CUDA_FAMILY(causal_conv1d_bwd, any_rows, ANY_ROWS, run_conv1d_bwd, refuse_conv1d_bwd, conv1d_bwd_scratch_of)
KR_CUDA_FAMILY(causal_conv1d_bwd, step_by_step, STEP_BY_STEP, run_conv1d_bwd, refuse_conv1d_bwd, conv1d_bwd_scratch_of)
