/* causal_conv1d_cuda.c: kernel families of the forward convolution: which calls each takes, and their launches. */
#include "overlap.h"
#include "conv_host.h"
#include "conv_impls.h"
#include "cuda_views.h"

enum { CHANNELS_LAST, PACKED_ROWS, ANY_ROWS, STEP_BY_STEP };

static const kr_kernel rows_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_rows"),
                       last_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_last"),
                       last_far_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_last_far");
static const kr_kernel last_ring_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_last_ring");
static const kr_kernel whole_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_whole"),
                       whole_1_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_whole_1");
static const kr_kernel walk_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_walk"),
                       final_kernel[] = KR_BY_TYPE("causal_conv1d", "kr_conv_final");

enum {
  SHORT_BLOCKS = 16 /* per multiprocessor, up to which a thread takes one pack, not two */,
  RESIDENT = 4 /* per multiprocessor, channels-last */
};

/* Four steps in one aligned access. */
static int steps_by_fours(const kr_rows *v) {
  const uintptr_t bytes = v->dtype == KRAIT_F32 ? 16 : 8;
  return v->t == 1 && v->b % 4 == 0 && v->row % 4 == 0 && (uintptr_t)v->data % bytes == 0;
}

/* Four elements side by side in one aligned access, in float32 or x's type. */
static int conv1d_by_fours(const kr_view *v, int along, int32_t dtype) {
  return v->stride[along] == 1 && (v->dtype == KRAIT_F32 || v->dtype == dtype) &&
         (uintptr_t)v->data % (v->dtype == KRAIT_F32 ? 16 : 8) == 0;
}

static kr_conv_params conv1d_plan_of(const kr_causal_conv1d_args *a) {
  const int reverse = (a->call.flags & KRAIT_CONV1D_REVERSE) != 0;
  kr_conv_params p = KR_CONV_PARAMS(a, reverse);
  p.out = kr_rows_of(&a->out, reverse, a->L);
  p.final = kr_rows_of(&a->final_states, 0, 0);
  p.fours = a->W == 4 && a->weight.stride[0] == 4 && conv1d_by_fours(&a->weight, 1, a->x.dtype) &&
            (!a->bias.data || conv1d_by_fours(&a->bias, 0, a->x.dtype));
  return p;
}

static int64_t conv1d_per_pack_of(const kr_conv_params *p) { return p->x.dtype == KRAIT_F32 ? 4 : 8; }

static const char *refuse_conv1d(const krait_ctx *ctx, const void *args, int family) {
  const kr_causal_conv1d_args *a = args;
  (void)ctx;
  if (a->W > KR_CONV_MOST_TAPS) return "W above 128";
  if (a->B * a->D > (1ll << 31) - 1) return "more than 2^31 rows";
  if (family == STEP_BY_STEP) return NULL;
  if (a->out.data == a->x.data) return "out is x";
  if (a->W > KR_CONV_TAPS) return "W above 4";
  if (kr_has(&a->seq_idx)) return "seq_idx";
  if (a->B * a->D * (a->L / 4 + 1) >= 1ll << 31) return "2^31 groups of four steps or more";
  const kr_conv_params p = conv1d_plan_of(a);
  if (family == ANY_ROWS) return NULL;
  if (family == CHANNELS_LAST)
    return p.D % 4 == 0 && kr_conv_quads(&p.x) && kr_conv_quads(&p.out)
               ? NULL
               : "not channels-last in aligned groups of four";
  if (p.initial.data) return "initial_states";
  return p.x.packs && p.out.packs && p.L % conv1d_per_pack_of(&p) == 0 ? NULL
                                                                : "rows are not in aligned packs of 16 bytes";
}

/* Runs as long as a single wave of blocks allows. */
static const kr_kernel *long_runs(kr_conv_params *p, int64_t most_threads, kr_grid *grid) {
  const int64_t runs = most_threads / p->packs_per_row.by / p->B > 0 ? most_threads / p->packs_per_row.by / p->B : 1;
  p->run_steps = (int32_t)(((p->L + runs - 1) / runs + 3) / 4 * 4);
  p->runs = kr_divisor_of((p->L + p->run_steps - 1) / p->run_steps);
  grid->x = kr_blocks_of(p->B * p->runs.by * p->packs_per_row.by, KR_CONV_THREADS);
  return last_ring_kernel;
}

static const kr_kernel *conv1d_channels_last(const krait_ctx *ctx, kr_conv_params *p, uint64_t tier, kr_grid *grid) {
  const int64_t resident = (int64_t)RESIDENT * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  p->packs_per_row = kr_divisor_of(p->D / 4);
  p->run_steps = KR_CONV_RUN, p->x_step = kr_conv_step(&p->x), p->out_step = kr_conv_step(&p->out);
  p->runs = kr_divisor_of((p->L + KR_CONV_RUN - 1) / KR_CONV_RUN);
  grid->x = kr_blocks_of(p->B * p->runs.by * p->packs_per_row.by, KR_CONV_THREADS);
  if (tier != KRAIT_CAP_CUDA_AMPERE || p->x.dtype == KRAIT_F32) return last_kernel;
  if (grid->x > resident && p->L < INT32_MAX / 2) return long_runs(p, resident * KR_CONV_THREADS, grid);
  grid->block = KR_CONV_FAR_THREADS;
  grid->x = kr_blocks_of(p->B * p->runs.by * p->packs_per_row.by, KR_CONV_FAR_THREADS);
  return last_far_kernel;
}

static const kr_kernel *packed_rows(const krait_ctx *ctx, kr_conv_params *p, kr_grid *grid) {
  p->rows = kr_divisor_of(p->D);
  p->packs_per_row = kr_divisor_of(p->L / conv1d_per_pack_of(p));
  grid->x = kr_blocks_of(p->B * p->D * p->packs_per_row.by, KR_CONV_THREADS);
  if (grid->x <= SHORT_BLOCKS * (uint32_t)kr_cuda_info(ctx->cuda)->n_multiprocessors) return whole_1_kernel;
  grid->x = kr_blocks_of(p->B * p->D * p->packs_per_row.by, 2 * KR_CONV_THREADS);
  return whole_kernel;
}

static const kr_kernel *any_rows(kr_conv_params *p, kr_grid *grid) {
  p->rows = kr_divisor_of(p->D);
  p->packs_per_row = kr_divisor_of((p->L + 3) / 4);
  p->quads = p->L % 4 == 0 && steps_by_fours(&p->x) && steps_by_fours(&p->out);
  grid->x = kr_blocks_of(p->B * p->D * p->packs_per_row.by, KR_CONV_THREADS);
  return rows_kernel;
}

static const kr_kernel *step_by_step(const kr_conv_params *p, kr_grid *grid) {
  grid->x = (uint32_t)(p->B * p->D), grid->block = KR_CONV_WALK;
  return walk_kernel;
}

static void start_ahead(const krait_ctx *ctx, const kr_call *call, kr_grid *grid) {
  const uint32_t fixed = (KR_CONV_RUN + 3) * KR_CONV_FAR_THREADS * 8, even = kr_cuda_even_bytes(ctx->cuda, grid->x);
  grid->is_pdl = (call->flags & KR_CALL_PDL) != 0;
  if (grid->is_pdl && even > fixed) grid->shared_bytes = even - fixed;
}

static int32_t run_conv1d(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {
  const kr_causal_conv1d_args *a = args;
  kr_conv_params p = conv1d_plan_of(a);
  kr_grid grid = {.block = KR_CONV_THREADS, .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  const kr_kernel *const kernel = family == CHANNELS_LAST ? conv1d_channels_last(ctx, &p, tier, &grid)
                                  : family == PACKED_ROWS ? packed_rows(ctx, &p, &grid)
                                  : family == ANY_ROWS    ? any_rows(&p, &grid)
                                                          : step_by_step(&p, &grid);
  kr_conv_params own = p;
  if (kernel == last_far_kernel) start_ahead(ctx, &a->call, &grid);
  if (kernel != last_far_kernel || p.final.dtype != KRAIT_F32 || p.L < p.W - 1) own.final.data = NULL;
  if (p.final.data && p.W > 1 && !own.final.data) { /* first: out may be x */
    const kr_grid few = {.x = kr_blocks_of(p.B * p.D * (p.W - 1), 128), .block = 128, .stream = a->call.stream};
    kr_chain_add(&chain, &final_kernel[p.x.dtype], &few, &p);
  }
  kr_chain_add(&chain, &kernel[p.x.dtype], &grid, &own);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

static uint64_t conv1d_no_scratch(const krait_ctx *ctx, const void *args, int family) {
  return (void)ctx, (void)args, (void)family, 0;
}

KR_CUDA_FAMILY(causal_conv1d, channels_last, CHANNELS_LAST, run_conv1d, refuse_conv1d, conv1d_no_scratch)
KR_CUDA_FAMILY(causal_conv1d, packed_rows, PACKED_ROWS, run_conv1d, refuse_conv1d, conv1d_no_scratch)
KR_CUDA_FAMILY(causal_conv1d, any_rows, ANY_ROWS, run_conv1d, refuse_conv1d, conv1d_no_scratch)
KR_CUDA_FAMILY(causal_conv1d, step_by_step, STEP_BY_STEP, run_conv1d, refuse_conv1d, conv1d_no_scratch)
