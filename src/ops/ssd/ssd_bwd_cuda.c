/* ssd_bwd_cuda.c: the SSD's gradient on a GPU: states before every chunk, their gradients after it, then chunk by chunk; sums over chunks
 * last. Both directions of time: twice, the first leaving its part to the second. */
#include "cuda_row.h"
#include "op_list.h"
#include "ssd_bwd_plan.h"
#include "ssd_host.h"
#include "ssd_rows.h"
#include "status.h"

static const kr_kernel before_s4 = {"ssd_bwd", "kr_ssd_bwd_before_s4"}, before_s16 = {"ssd_bwd", "kr_ssd_bwd_before_s16"};
static const kr_kernel after_s4 = {"ssd_bwd", "kr_ssd_bwd_after_s4"}, after_s16 = {"ssd_bwd", "kr_ssd_bwd_after_s16"};
static const kr_kernel in_chunks = {"ssd_bwd", "kr_ssd_bwd_chunks"}, add_chunks = {"ssd_bwd", "kr_ssd_bwd_add"};
static const kr_kernel only_y_s4 = {"ssd", "kr_ssd_walk_s4"}, only_y_s16 = {"ssd", "kr_ssd_walk_s16"};

/* How scratch is cut: bytes from its begin. */
typedef struct layout {
  uint64_t S, M, sum_B, sum_C, parts, all_dx, all_dd, y, end;
} layout;

static int is_both(const krait_ssd_bwd_args *a) { return (a->call.flags & KRAIT_SSD_BOTH) != 0; }
static int64_t chunks_of(const krait_ssd_bwd_args *a) { return (a->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK; }
static uint64_t place(uint64_t *end, int64_t floats) {
  const uint64_t at = *end;
  *end += kr_scratch_round((uint64_t)floats * sizeof(float));
  return at;
}

static layout layout_of(const krait_ssd_bwd_args *a) {
  const int64_t states = a->B * a->H * chunks_of(a) * a->P * a->N, matrix = a->B * a->L * a->G * a->N, channels = is_both(a) ? a->B * a->L * a->H : 0;
  layout l = {.end = 0};
  l.S = place(&l.end, states), l.M = place(&l.end, states);
  l.sum_B = place(&l.end, matrix), l.sum_C = place(&l.end, matrix);
  l.parts = place(&l.end, a->B * chunks_of(a) * a->H * (a->P + 2));
  l.all_dx = place(&l.end, channels * a->P), l.all_dd = place(&l.end, channels), l.y = place(&l.end, kr_has(&a->dz) ? channels * a->P : 0);
  return l;
}

/* Scratch as a tensor (B,L,H,n) of a walk. */
static kr_ssd_tensor floats_at(const krait_ssd_bwd_args *a, uint64_t at, int64_t H, int64_t n, int reverse) {
  const krait_view v = {(char *)a->call.scratch + at, {a->L * H * n, H * n, n, 1}, KRAIT_F32};
  return kr_ssd_sequence(&v, reverse, a->L);
}

static kr_ssd_bwd_plan plan_of(const krait_ssd_bwd_args *a, int reverse) {
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  const layout l = layout_of(a);
  char *const scratch = a->call.scratch;
  kr_ssd_bwd_plan p = {.f = kr_ssd_plan_of(&in, reverse), .n_chunks = (int32_t)chunks_of(a)};
  p.f.dout = kr_ssd_sequence(&a->dout, reverse, a->L);
  p.dx = kr_ssd_sequence(&a->dx, reverse, a->L), p.ddt = kr_ssd_sequence(&a->ddt, reverse, a->L);
  p.dB = kr_ssd_sequence(&a->dB, reverse, a->L), p.dC = kr_ssd_sequence(&a->dC, reverse, a->L);
  p.dfinal = kr_ssd_states(&a->dfinal_states), p.dinitial = kr_ssd_states(&a->dinitial_states);
  p.all_dx = floats_at(a, l.all_dx, a->H, a->P, reverse), p.all_dd = floats_at(a, l.all_dd, a->H, 1, reverse);
  p.sum_B = floats_at(a, l.sum_B, a->G, a->N, reverse), p.sum_C = floats_at(a, l.sum_C, a->G, a->N, reverse);
  p.S = scratch + l.S, p.M = scratch + l.M, p.parts = (float *)(scratch + l.parts);
  p.f.kept = p.S;
  p.dA = kr_ssd_heads(&a->dA, 0);
  return p;
}

const char *kr_ssd_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_ssd_bwd_args *a = args;
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  (void)ctx;
  if (a->G > 65535) return "more than 65535 groups";
  return kr_ssd_refuse_sizes(&in);
}

uint64_t kr_ssd_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return layout_of(args).end;
}

static kr_grid walks(const kr_ssd_plan *f, void *stream) {
  return (kr_grid){.x = (uint32_t)(f->B ? f->H * ((f->P + 15) / 16) : 0), .y = 1, .z = (uint32_t)f->B, .block = KR_SSD_THREADS, .stream = stream};
}

static int32_t run_direction(const krait_ctx *ctx, const krait_ssd_bwd_args *a, const kr_ssd_bwd_plan *p) {
  const int narrow = a->N <= 128;
  const kr_grid walk = walks(&p->f, a->call.stream);
  const kr_grid chunk = {.x = (uint32_t)(a->B ? p->n_chunks : 0), .y = (uint32_t)a->G, .z = (uint32_t)a->B, .block = KR_SSD_BWD_THREADS, .stream = a->call.stream};
  const kr_grid heads = {.x = (uint32_t)a->H, .y = 1, .z = 1, .block = KR_SSD_THREADS, .stream = a->call.stream};
  if (walk.x) KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, narrow ? &before_s4 : &before_s16, &walk, &p->f, sizeof p->f));
  if (walk.x) KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, narrow ? &after_s4 : &after_s16, &walk, p, sizeof *p));
  if (chunk.x) KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &in_chunks, &chunk, p, sizeof *p));
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &add_chunks, &heads, p, sizeof *p);
}

static int32_t both_directions(const krait_ctx *ctx, const krait_ssd_bwd_args *a) {
  kr_ssd_bwd_plan forwards = plan_of(a, 0), backwards = plan_of(a, 1);
  backwards.f.A = kr_ssd_heads(&a->A_reverse, 0), backwards.dA = kr_ssd_heads(&a->dA_reverse, 0);
  forwards.keeps = 1, backwards.adds = 1;
  forwards.dD = kr_ssd_heads(&a->dDvec, 1), backwards.dbias = kr_ssd_heads(&a->ddt_bias, 0);
  if (kr_has(&a->dz) && a->B) {
    kr_ssd_plan y = backwards.f;
    const kr_grid walk = walks(&y, a->call.stream);
    y.add = forwards.f.add = (float *)((char *)a->call.scratch + layout_of(a).y), y.keep_y = 1;
    forwards.f.dz = kr_ssd_sequence(&a->dz, 0, a->L);
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, a->N <= 128 ? &only_y_s4 : &only_y_s16, &walk, &y, sizeof y));
  }
  KR_TRY(run_direction(ctx, a, &forwards));
  return run_direction(ctx, a, &backwards);
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_ssd_bwd_args *a = args;
  (void)tier; /* one module serves all tiers */
  if (is_both(a)) return both_directions(ctx, a);
  kr_ssd_bwd_plan p = plan_of(a, (a->call.flags & KRAIT_SSD_REVERSE) != 0);
  p.dD = kr_ssd_heads(&a->dDvec, 1), p.dbias = kr_ssd_heads(&a->ddt_bias, 0);
  p.f.dz = kr_ssd_sequence(&a->dz, (a->call.flags & KRAIT_SSD_REVERSE) != 0, a->L);
  return run_direction(ctx, a, &p);
}

KR_CUDA_TIERS(ssd_bwd, run)
