/* selective_scan_bwd_cuda.c: scratch and launches of the scan's gradient on the GPU. When the channels are too few to fill
 * the device, time is cut into chunks: cheap passes first find each chunk's first state and the gradient of its last. */
#include "op_list.h"
#include "scan_host.h"
#include "view.h"

static const kr_kernel back_t4[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_t4"), back_any[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_any");
static const kr_kernel back_two[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_t4_two");
static const kr_kernel back_t16[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_t16"), sweep_packed[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_sweep_packed");
static const kr_kernel sweep_s4[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_sweep_s4"), sweep_s1[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_sweep_s1");
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

/* Rows of the tile, B and C, the threads' parts of dB and dC. */
static uint32_t shared_bytes(const kr_scan_plan *p, int n_part_floats) {
  return (uint32_t)(2 * KR_SCAN_THREADS / p->T * KR_SCAN_BWD_ROW + KR_SCAN_BWD_TILE * 2 * p->N_padded + n_part_floats) * 4;
}

static int part_floats(const kr_scan_plan *p) { return p->S == 1 ? 16 * 2 * p->N_padded : KR_SCAN_PART; }
static uint32_t back_shared_bytes(const kr_scan_plan *p) { return shared_bytes(p, part_floats(p) * (p->part_step ? 2 : 1) + (p->n_chunks > 1 ? 8 * KR_SCAN_THREADS : 0)); }

/* Takes bytes from scratch; with base NULL it only counts. */
static void *take(char *base, uint64_t *used, int64_t n_floats) {
  void *block = base ? base + *used : NULL;
  *used += kr_scratch_round((uint64_t)n_floats * 4);
  return block;
}

static uint64_t lay_out(kr_scan_plan *p, char *base) {
  uint64_t used = kr_scan_chunk_bytes(p);
  const int64_t states = p->B * p->D * p->N_padded, chunks = p->n_chunks;
  p->n_kept = (int32_t)((p->L + KR_SCAN_BWD_TILE - 1) / KR_SCAN_BWD_TILE * (KR_SCAN_BWD_TILE / KR_SCAN_KEPT));
  p->kept_state = take(base, &used, states * p->n_kept);
  p->kept_dt = take(base, &used, chunks > 1 ? p->B * p->D * p->n_kept : 0);
  p->chunk_carry = take(base, &used, chunks > 1 ? states * chunks : 0);
  p->part_bc = take(base, &used, p->B * p->G * p->blocks_per_group * p->L * 2 * p->N_padded);
  p->part_A = take(base, &used, states * chunks);
  p->part_D = take(base, &used, p->B * p->D * chunks);
  p->part_bias = take(base, &used, p->B * p->D * chunks);
  return used;
}

static void plan_of(kr_scan_plan *p, const krait_selective_scan_bwd_args *a, const krait_ctx *ctx) {
  const int reverse = (a->call.flags & KRAIT_SCAN_REVERSE) != 0;
  const krait_selective_scan_args f = forward_args(a);
  kr_scan_plan_of(p, &f, reverse, 3 * kr_cuda_info(ctx->cuda)->n_multiprocessors, 2);
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
  p->part_step = part_floats(p); /* two halves save a barrier, where three blocks still fit a multiprocessor */
  if (p->S == 4 && kr_cuda_info(ctx->cuda)->shared_bytes < 3 * back_shared_bytes(p)) p->part_step = 0;
}

/* The states before every few steps; each chunk's first state and the gradient of its last. */
static int32_t sweep(const krait_ctx *ctx, uint64_t tier, kr_scan_plan *p, char *scratch, void *stream) {
  const kr_kernel *kernel = p->seq_idx ? sweep_packed : p->S == 1 ? sweep_s1 : sweep_s4;
  const kr_grid grid = {.x = (uint32_t)(p->B * p->G * p->blocks_per_group), .y = (uint32_t)p->n_chunks, .block = KR_SCAN_THREADS, .shared_bytes = shared_bytes(p, 0), .stream = stream};
  const kr_grid walk = {.x = (uint32_t)((p->B * p->D * p->N_padded + 127) / 128), .block = 128, .stream = stream};
  if (p->n_chunks > 1) kr_scan_chunk_scratch(p, scratch);
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &kernel[p->u.dtype], &grid, p, sizeof *p));
  if (p->n_chunks == 1) return KRAIT_OK;
  KR_TRY(kr_scan_chunk_walk(ctx, tier, p, stream));
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &(p->S == 1 ? carry_s1 : carry_s4)[p->u.dtype], &grid, p, sizeof *p));
  return kr_cuda_launch(ctx->cuda, tier, &carry_combine[p->u.dtype], &walk, p, sizeof *p);
}

/* Three blocks run on a multiprocessor, or two that each go faster: whichever leaves less of the last round empty. */
static const kr_kernel *back_kernel(const krait_ctx *ctx, const kr_scan_plan *p) {
  const int64_t blocks = p->B * p->G * p->blocks_per_group * p->n_chunks, n = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  if (p->seq_idx) return back_packed;
  if (p->S == 1) return back_s1;
  if (p->T != 4) return p->T == 16 ? back_t16 : back_any;
  return (blocks + 2 * n - 1) / (2 * n) * 2 < (blocks + 3 * n - 1) / (3 * n) * 3 ? back_two : back_t4;
}

/* What the fast kernels do not take. */
static int is_general(const krait_ctx *ctx, const krait_selective_scan_bwd_args *a) {
  const krait_selective_scan_args f = forward_args(a);
  kr_scan_plan p;
  if (kr_scan_refusal(&f) || a->call.flags & KRAIT_SCAN_BOTH || (a->dout.data && a->dout.dtype != a->u.dtype)) return 1;
  plan_of(&p, a, ctx);
  return back_shared_bytes(&p) > kr_cuda_info(ctx->cuda)->shared_bytes;
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_selective_scan_bwd_args *a = args;
  void *stream = a->call.stream;
  kr_scan_plan p;
  if (is_general(ctx, a)) return kr_scan_any_bwd_run(ctx, tier, a);
  plan_of(&p, a, ctx);
  lay_out(&p, a->call.scratch);
  KR_TRY(sweep(ctx, tier, &p, a->call.scratch, stream));
  const kr_kernel *kernel = back_kernel(ctx, &p);
  const kr_grid grid = {.x = (uint32_t)(p.B * p.G * p.blocks_per_group), .y = (uint32_t)p.n_chunks, .block = KR_SCAN_THREADS, .shared_bytes = back_shared_bytes(&p), .stream = stream};
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &kernel[p.u.dtype], &grid, &p, sizeof p));
  const kr_grid times = {.x = (uint32_t)(p.B * p.G * ((p.L + 31) / 32)), .block = 256, .stream = stream};
  const kr_grid params = {.x = (uint32_t)((p.D * (p.N_padded + 2) + 31) / 32), .block = 256, .stream = stream};
  if (p.dB.data || p.dC.data) KR_TRY(kr_cuda_launch(ctx->cuda, tier, &sum_bc[p.u.dtype], &times, &p, sizeof p));
  return kr_cuda_launch(ctx->cuda, tier, &sum_d[p.u.dtype], &params, &p, sizeof p);
}

const char *kr_selective_scan_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_selective_scan_bwd_args *a = args;
  (void)ctx;
  return (kr_has(&a->cu_seqlens) ? a->S : a->B) * a->D > (1ll << 31) - 1 ? "2^31 channels or more" : NULL;
}

uint64_t kr_selective_scan_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  kr_scan_plan p;
  if (is_general(ctx, args)) return kr_scan_any_bwd_scratch(ctx, args);
  plan_of(&p, args, ctx);
  return lay_out(&p, NULL);
}

KR_CUDA_TIERS(selective_scan_bwd, run)
