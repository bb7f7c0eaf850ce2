/* selective_scan_bwd_cuda.c: scratch and launches of the scan's gradient on the GPU. When the channels are too few to fill
 * the device, time is cut into chunks: two cheap passes first find each chunk's first state and the gradient of its last. */
#include "op_list.h"
#include "scan_host.h"
#include "view.h"

static const kr_kernel back_t4[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_t4"), back_any[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_any");
static const kr_kernel back_s1[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_s1"), back_packed[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_packed");
static const kr_kernel carry_s4[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_carry_s4"), carry_s1[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_carry_s1");
static const kr_kernel carry_combine[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_carry_combine");
static const kr_kernel sum_bc[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_sum_bc"), sum_d[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_sum_d");

/* The forward arguments inside the backward ones. */
static krait_selective_scan_args forward_args(const krait_selective_scan_bwd_args *a) {
  return (krait_selective_scan_args){.call = a->call, .B = a->B, .D = a->D, .L = a->L, .N = a->N, .G = a->G, .S = a->S, .u = a->u, .delta = a->delta, .A = a->A,
    .Bmat = a->Bmat, .Cmat = a->Cmat, .Dvec = a->Dvec, .z = a->z, .delta_bias = a->delta_bias, .initial_state = a->initial_state, .seq_idx = a->seq_idx,
    .cu_seqlens = a->cu_seqlens, .A_reverse = a->A_reverse};
}

static uint32_t shared_bytes(const kr_scan_plan *p) {
  const int channels = 2 * KR_SCAN_THREADS / p->T, width = KR_SCAN_BWD_TILE + 4;
  return (uint32_t)(4 * channels * width + KR_SCAN_BWD_TILE * 2 * p->N_padded + 8 * p->S * KR_SCAN_THREADS + 2 * 16 * 2 * p->N_padded) * 4;
}

/* Takes bytes from scratch; with base NULL it only counts. */
static void *take(char *base, uint64_t *used, int64_t n_floats) {
  void *block = base ? base + *used : NULL;
  *used += kr_scratch_round((uint64_t)n_floats * 4);
  return block;
}

static uint64_t lay_out(kr_scan_plan *p, char *base) {
  uint64_t used = kr_scan_chunk_bytes(p);
  const int64_t states = p->B * p->D * p->N, chunks = p->n_chunks;
  p->n_tiles = (int32_t)((p->L + KR_SCAN_BWD_TILE - 1) / KR_SCAN_BWD_TILE);
  p->tile_state = take(base, &used, states * p->n_tiles);
  p->chunk_carry = take(base, &used, chunks > 1 ? states * chunks : 0);
  p->part_bc = take(base, &used, p->B * p->G * p->blocks_per_group * p->L * 2 * p->N_padded);
  p->part_A = take(base, &used, states * chunks);
  p->part_D = take(base, &used, p->B * p->D * chunks);
  p->part_bias = take(base, &used, p->B * p->D * chunks);
  return used;
}

static void plan_of(kr_scan_plan *p, const krait_selective_scan_bwd_args *a, int n_multiprocessors) {
  const int reverse = (a->call.flags & KRAIT_SCAN_REVERSE) != 0;
  const krait_selective_scan_args f = forward_args(a);
  kr_scan_plan_of(p, &f, reverse, n_multiprocessors);
  p->dout = kr_rows_of(&a->dout, reverse, a->L);
  p->du = kr_rows_of(&a->du, reverse, a->L);
  p->ddelta = kr_rows_of(&a->ddelta, reverse, a->L);
  p->dz = kr_rows_of(&a->dz, reverse, a->L);
  p->dB = kr_scan_mat_of(&a->dB, reverse, a->L);
  p->dC = kr_scan_mat_of(&a->dC, reverse, a->L);
  p->dlast = kr_scan_state_of(&a->dlast_state);
  p->dinitial = kr_scan_state_of(&a->dinitial_state);
  p->dA = a->dA.data, p->dA_d = a->dA.stride[0], p->dA_n = a->dA.stride[1];
  p->dD_vec = a->dDvec.data, p->dD_stride = a->dDvec.stride[0];
  p->dbias = a->ddelta_bias.data, p->dbias_stride = a->ddelta_bias.stride[0];
}

/* Each chunk's first state and the gradient of its last. */
static int32_t chunk_ends(const krait_ctx *ctx, uint64_t tier, kr_scan_plan *p, char *scratch, void *stream) {
  if (p->n_chunks <= 1) return KRAIT_OK;
  const kr_grid grid = {.x = (uint32_t)(p->B * p->G * p->blocks_per_group), .y = (uint32_t)p->n_chunks, .block = KR_SCAN_THREADS, .shared_bytes = shared_bytes(p), .stream = stream};
  const kr_grid walk = {.x = (uint32_t)((p->B * p->D * p->N + 127) / 128), .block = 128, .stream = stream};
  KR_TRY(kr_scan_chunk_starts(ctx, tier, p, p->n_chunks, scratch, stream));
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &(p->S == 1 ? carry_s1 : carry_s4)[p->u.dtype], &grid, p, sizeof *p));
  return kr_cuda_launch(ctx->cuda, tier, &carry_combine[p->u.dtype], &walk, p, sizeof *p);
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_selective_scan_bwd_args *a = args;
  void *stream = a->call.stream;
  kr_scan_plan p;
  plan_of(&p, a, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  lay_out(&p, a->call.scratch);
  KR_TRY(chunk_ends(ctx, tier, &p, a->call.scratch, stream));
  const kr_kernel *kernel = p.seq_idx ? back_packed : p.S == 1 ? back_s1 : p.T == 4 ? back_t4 : back_any;
  const kr_grid grid = {.x = (uint32_t)(p.B * p.G * p.blocks_per_group), .y = (uint32_t)p.n_chunks, .block = KR_SCAN_THREADS, .shared_bytes = shared_bytes(&p), .stream = stream};
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &kernel[p.u.dtype], &grid, &p, sizeof p));
  const kr_grid times = {.x = (uint32_t)(p.B * p.G * ((p.L + 31) / 32)), .block = 256, .stream = stream};
  const kr_grid params = {.x = (uint32_t)((p.D * (p.N + 2) + 127) / 128), .block = 128, .stream = stream};
  if (p.dB.data || p.dC.data) KR_TRY(kr_cuda_launch(ctx->cuda, tier, &sum_bc[p.u.dtype], &times, &p, sizeof p));
  return kr_cuda_launch(ctx->cuda, tier, &sum_d[p.u.dtype], &params, &p, sizeof p);
}

const char *kr_selective_scan_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_selective_scan_bwd_args *a = args;
  const krait_selective_scan_args f = forward_args(a);
  const char *why = kr_scan_refusal(&f);
  if (why) return why;
  if (a->call.flags & KRAIT_SCAN_BOTH) return "both directions in one call";
  if (a->dout.dtype != a->u.dtype) return "dout of another type than u";
  kr_scan_plan p;
  plan_of(&p, a, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  return shared_bytes(&p) > kr_cuda_info(ctx->cuda)->shared_bytes ? "more shared memory than a block of this device has" : NULL;
}

uint64_t kr_selective_scan_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  kr_scan_plan p;
  plan_of(&p, args, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  return lay_out(&p, NULL);
}

KR_CUDA_TIERS(selective_scan_bwd, run)
