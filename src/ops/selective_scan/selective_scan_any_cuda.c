/* selective_scan_any_cuda.c: launches of the general scan kernels, which take what the fast ones reject. */
#include "scan_any_plan.h"
#include "scan_host.h"
#include "view.h"

static const kr_kernel forward = {"selective_scan_any", "kr_scan_any_fwd"},
                       backward = {"selective_scan_any", "kr_scan_any_bwd"};
static const kr_kernel sum_kernel = {"selective_scan_any", "kr_scan_any_sum"};

enum { WARPS_PER_MULTIPROCESSOR = 8 };
static const uint64_t MOST_SCRATCH_BYTES = 1ull << 30; /* cap: use fewer parts instead */

static uint32_t blocks_of(int64_t n, int64_t threads) { return (uint32_t)((n + threads - 1) / threads); }

uint64_t kr_scan_any_scratch(const krait_selective_scan_args *a) {
  return kr_scratch_round((uint64_t)(a->B * a->D * a->L) * 4);
}

int32_t kr_scan_any_run(const krait_ctx *ctx, uint64_t tier, const krait_selective_scan_args *a) {
  kr_scan_any_plan p = {.a = {.call = a->call,
                              .B = a->B,
                              .D = a->D,
                              .L = a->L,
                              .N = a->N,
                              .G = a->G,
                              .S = a->S,
                              .u = a->u,
                              .delta = a->delta,
                              .A = a->A,
                              .Bmat = a->Bmat,
                              .Cmat = a->Cmat,
                              .Dvec = a->Dvec,
                              .z = a->z,
                              .delta_bias = a->delta_bias,
                              .initial_state = a->initial_state,
                              .seq_idx = a->seq_idx,
                              .cu_seqlens = a->cu_seqlens,
                              .A_reverse = a->A_reverse,
                              .states = a->states},
                        .out = a->out,
                        .last_state = a->last_state,
                        .n_rows = kr_has(&a->cu_seqlens) ? a->S : a->B,
                        .y = a->call.scratch};
  const kr_grid grid = {.x = (uint32_t)(p.n_rows * a->D), .block = 32, .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &forward, &grid, &p, sizeof p);
}

static void *take(char *base, uint64_t *used, int64_t n_floats) {
  void *block = base ? base + *used : NULL;
  *used += kr_scratch_round((uint64_t)n_floats * 4);
  return block;
}

static uint64_t lay_out(kr_scan_any_plan *p, char *base) {
  const int64_t slabs = p->a.G * p->parts * p->a.B * p->a.L, sums = p->n_rows * p->a.D;
  uint64_t used = 0;
  p->y = take(base, &used, slabs), p->du = take(base, &used, slabs), p->ddt = take(base, &used, slabs);
  p->x = take(base, &used, slabs * p->a.N * 2), p->dB = take(base, &used, slabs * p->a.N * 2),
  p->dC = take(base, &used, slabs * p->a.N * 2);
  p->dA = take(base, &used, sums * p->a.N * 2), p->dA_reverse = take(base, &used, sums * p->a.N * 2);
  p->constant_dB = take(base, &used, sums * p->a.N * 2), p->constant_dC = take(base, &used, sums * p->a.N * 2);
  p->dD = take(base, &used, sums), p->dbias = take(base, &used, sums);
  return used;
}

static uint64_t plan_of(const krait_ctx *ctx, const krait_selective_scan_bwd_args *a, kr_scan_any_plan *p) {
  const int64_t per_group = a->D / a->G,
                wanted = (int64_t)WARPS_PER_MULTIPROCESSOR * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  *p = (kr_scan_any_plan){.a = *a, .n_rows = kr_has(&a->cu_seqlens) ? a->S : a->B};
  const int64_t blocks = p->n_rows * a->G;
  p->parts = blocks > 0 && blocks < wanted ? wanted / blocks : 1;
  if (p->parts > per_group) p->parts = per_group;
  while (p->parts > 1 && lay_out(p, NULL) > MOST_SCRATCH_BYTES) p->parts /= 2;
  p->per_part = (per_group + p->parts - 1) / p->parts;
  p->parts = (per_group + p->per_part - 1) / p->per_part;
  return lay_out(p, a->call.scratch);
}

uint64_t kr_scan_any_bwd_scratch(const krait_ctx *ctx, const krait_selective_scan_bwd_args *a) {
  kr_scan_any_plan p;
  return plan_of(ctx, a, &p);
}

int32_t kr_scan_any_bwd_run(const krait_ctx *ctx, uint64_t tier, const krait_selective_scan_bwd_args *a) {
  kr_scan_any_plan p;
  plan_of(ctx, a, &p);
  const kr_grid grid = {.x = (uint32_t)(p.n_rows * a->G * p.parts), .block = 32, .stream = a->call.stream};
  const kr_grid sums = {
      .x = blocks_of(a->B * a->G * a->N * a->L + a->D * a->N, 128), .block = 128, .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &backward, &grid, &p);
  kr_chain_add(&chain, &sum_kernel, &sums, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}
