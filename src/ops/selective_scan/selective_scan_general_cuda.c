/* selective_scan_general_cuda.c: launches of the general scan kernels, which take what the fast ones reject. */
#include "scan_any_params.h"
#include "scan_host.h"
#include "view.h"
#include "cuda_views.h"

static const kr_kernel forward = {"selective_scan_general", "kr_scan_general_fwd"},
                       backward = {"selective_scan_general", "kr_scan_general_bwd"};
static const kr_kernel sum_kernel = {"selective_scan_general", "kr_scan_general_sum"};

enum { WARPS_PER_MULTIPROCESSOR = 8 };
static const uint64_t MOST_SCRATCH_BYTES = 1ull << 30; /* cap: use fewer parts instead */

uint64_t kr_scan_general_scratch(const kr_selective_scan_args *a) {
  return kr_scratch_round((uint64_t)(a->B * a->D * a->L) * 4);
}

int32_t kr_scan_general_run(const krait_ctx *ctx, uint64_t tier, const kr_selective_scan_args *a) {
  kr_scan_general_params p = {.a = {KR_SCAN_SHARED_ARGS(a), .states = a->states},
                        .out = a->out,
                        .last_state = a->last_state,
                        .n_rows = kr_has(&a->cu_seqlens) ? a->S : a->B,
                        .y = a->call.scratch};
  const kr_grid grid = {.x = (uint32_t)(p.n_rows * a->D), .block = 32, .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &forward, &grid, &p, sizeof p);
}

static void *take_scan_general(char *base, uint64_t *used, int64_t n_floats) {
  void *block = base ? base + *used : NULL;
  *used += kr_scratch_round((uint64_t)n_floats * 4);
  return block;
}

static uint64_t lay_out_scan_general(kr_scan_general_params *p, char *base) {
  const int64_t slabs = p->a.G * p->parts * p->a.B * p->a.L, sums = p->n_rows * p->a.D;
  uint64_t used = 0;
  p->y = take_scan_general(base, &used, slabs), p->du = take_scan_general(base, &used, slabs),
  p->ddt = take_scan_general(base, &used, slabs);
  p->x = take_scan_general(base, &used, slabs * p->a.N * 2), p->dB = take_scan_general(base, &used, slabs * p->a.N * 2),
  p->dC = take_scan_general(base, &used, slabs * p->a.N * 2);
  p->dA = take_scan_general(base, &used, sums * p->a.N * 2),
  p->dA_reverse = take_scan_general(base, &used, sums * p->a.N * 2);
  p->constant_dB = take_scan_general(base, &used, sums * p->a.N * 2),
  p->constant_dC = take_scan_general(base, &used, sums * p->a.N * 2);
  p->dD = take_scan_general(base, &used, sums), p->dbias = take_scan_general(base, &used, sums);
  return used;
}

static uint64_t scan_general_plan_of(const krait_ctx *ctx, const kr_selective_scan_bwd_args *a,
                                     kr_scan_general_params *p) {
  const int64_t per_group = a->D / a->G,
                wanted = (int64_t)WARPS_PER_MULTIPROCESSOR * kr_cuda_info(ctx->cuda)->n_multiprocessors;
  *p = (kr_scan_general_params){.a = *a, .n_rows = kr_has(&a->cu_seqlens) ? a->S : a->B};
  const int64_t blocks = p->n_rows * a->G;
  p->parts = blocks > 0 && blocks < wanted ? wanted / blocks : 1;
  if (p->parts > per_group) p->parts = per_group;
  while (p->parts > 1 && lay_out_scan_general(p, NULL) > MOST_SCRATCH_BYTES) p->parts /= 2;
  p->per_part = (per_group + p->parts - 1) / p->parts;
  p->parts = (per_group + p->per_part - 1) / p->per_part;
  return lay_out_scan_general(p, a->call.scratch);
}

uint64_t kr_scan_general_bwd_scratch(const krait_ctx *ctx, const kr_selective_scan_bwd_args *a) {
  kr_scan_general_params p;
  return scan_general_plan_of(ctx, a, &p);
}

int32_t kr_scan_general_bwd_run(const krait_ctx *ctx, uint64_t tier, const kr_selective_scan_bwd_args *a) {
  kr_scan_general_params p;
  scan_general_plan_of(ctx, a, &p);
  const kr_grid grid = {.x = (uint32_t)(p.n_rows * a->G * p.parts), .block = 32, .stream = a->call.stream};
  const kr_grid sums = {.x = kr_blocks_of(a->B * a->G * a->N * a->L + a->D * a->N, 128),
                        .block = 128,
                        .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &backward, &grid, &p);
  kr_chain_add(&chain, &sum_kernel, &sums, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}
