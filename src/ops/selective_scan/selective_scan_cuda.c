/* selective_scan_cuda.c: cuts a forward scan into blocks, chunks and directions, and launches it. When the channels are
 * too few to fill the device, time is cut into chunks: end states from zero, a walk over the chunks, then every chunk
 * from its true first state. Both directions in one call are two scans; the first leaves its y in scratch. */
#include "op_list.h"
#include "scan_host.h"
#include "view.h"

#define KERNELS(name) KR_BY_TYPE("selective_scan", name)
static const kr_kernel fwd_s4[] = KERNELS("kr_scan_fwd_s4"), fwd_s1[] = KERNELS("kr_scan_fwd_s1");
static const kr_kernel state_s4[] = KERNELS("kr_scan_state_s4"), state_s1[] = KERNELS("kr_scan_state_s1");
static const kr_kernel fwd_packed[] = KERNELS("kr_scan_fwd_s4_packed"), combine[] = KERNELS("kr_scan_combine");

kr_scan_mat kr_scan_mat_of(const krait_view *v, int reverse, int64_t L) {
  kr_scan_mat m = {v->data, v->stride[0], v->stride[1], v->stride[2], v->stride[3], v->dtype, 0};
  const int64_t per_pack = v->dtype == KRAIT_F32 ? 4 : 8;
  m.packs = !reverse && m.t == 1 && m.b % per_pack == 0 && m.g % per_pack == 0 && m.n % per_pack == 0 && (uintptr_t)v->data % 16 == 0;
  if (reverse) {
    m.data = (char *)v->data + (L - 1) * m.t * (int64_t)krait_dtype_bytes(v->dtype);
    m.t = -m.t;
  }
  return m;
}

kr_scan_state kr_scan_state_of(const krait_view *v) { return (kr_scan_state){v->data, v->stride[0], v->stride[1], v->stride[2]}; }

/* What the fast kernels do not take. */
const char *kr_scan_refusal(const krait_selective_scan_args *a) {
  if (a->A.dtype == KRAIT_C64) return "complex A";
  if (a->call.flags & (KRAIT_SCAN_B_CONSTANT | KRAIT_SCAN_C_CONSTANT)) return "B or C constant over time";
  if (a->N > 128) return "N above 128";
  if (kr_has(&a->cu_seqlens)) return "cu_seqlens";
  if (a->delta.dtype != a->u.dtype) return "delta of another type than u";
  if (kr_has(&a->z) && a->z.dtype != a->u.dtype) return "z of another type than u";
  return NULL;
}

static int channels_per_block(const kr_scan_plan *p) { return 2 * KR_SCAN_THREADS / p->T; }

/* blocks_wanted: as many as the device runs at a time. Cutting time costs a pass over the input, so it must gain least_chunks. */
static void cut(kr_scan_plan *p, int64_t blocks_wanted, int64_t least_chunks) {
  const int may_chunk = !p->seq_idx;
  /* One state per lane also where channels are too few for a block of four states per lane. */
  p->S = !p->seq_idx && (p->N <= 4 || (p->N <= 32 && p->D_group <= 16)) ? 1 : 4;
  p->T_shift = 2;
  while (p->S << p->T_shift < p->N) p->T_shift++;
  p->T = 1 << p->T_shift;
  p->N_padded = p->T * p->S;
  p->rows_shift = 1 + p->T_shift + (p->S == 4 ? 2 : 0);
  p->mixed = p->B_mat.dtype != p->u.dtype || p->C_mat.dtype != p->u.dtype;
  p->TL = p->u.dtype == KRAIT_F32 ? 16 : 32;
  const int channels = channels_per_block(p);
  p->blocks_per_group = (int)((p->D_group + channels - 1) / channels);
  int64_t blocks = p->B * p->G * p->blocks_per_group, most = p->L / (4 * p->TL), chunks = 1;
  if (may_chunk && blocks > 0) chunks = blocks_wanted / blocks < most ? blocks_wanted / blocks : most;
  if (chunks < least_chunks) chunks = 1;
  p->chunk = (p->L + chunks - 1) / chunks;
  p->chunk = (p->chunk + p->TL - 1) / p->TL * p->TL;
  p->n_chunks = p->chunk ? (int)((p->L + p->chunk - 1) / p->chunk) : 1;
  if (p->n_chunks < 1) p->n_chunks = 1;
}

uint32_t kr_scan_shared_bytes(const kr_scan_plan *p) {
  return (uint32_t)(2 * channels_per_block(p) * (p->TL + 4) + p->TL * 2 * p->N_padded) * 4;
}

void kr_scan_plan_of(kr_scan_plan *p, const krait_selective_scan_args *a, int reverse, int64_t blocks_wanted, int64_t least_chunks) {
  *p = (kr_scan_plan){.B = a->B, .L = a->L, .D = a->D, .D_group = a->D / a->G, .N = (int32_t)a->N, .G = (int32_t)a->G};
  p->softplus = (a->call.flags & KRAIT_SCAN_SOFTPLUS) != 0;
  p->u = kr_rows_of(&a->u, reverse, a->L);
  p->delta = kr_rows_of(&a->delta, reverse, a->L);
  p->z = kr_rows_of(&a->z, reverse, a->L);
  p->out = kr_rows_of(&a->out, reverse, a->L);
  p->B_mat = kr_scan_mat_of(&a->Bmat, reverse, a->L);
  p->C_mat = kr_scan_mat_of(&a->Cmat, reverse, a->L);
  p->A = a->A.data, p->A_d = a->A.stride[0], p->A_n = a->A.stride[1];
  p->D_vec = a->Dvec.data, p->D_stride = a->Dvec.stride[0];
  p->bias = a->delta_bias.data, p->bias_stride = a->delta_bias.stride[0];
  p->initial = kr_scan_state_of(&a->initial_state);
  p->last = kr_scan_state_of(&a->last_state);
  if (kr_has(&a->seq_idx)) {
    p->seq_b = a->seq_idx.stride[0];
    p->seq_t = reverse ? -a->seq_idx.stride[1] : a->seq_idx.stride[1];
    p->seq_idx = (const int32_t *)a->seq_idx.data + (reverse ? (a->L - 1) * a->seq_idx.stride[1] : 0);
  }
  cut(p, blocks_wanted, least_chunks);
}

uint64_t kr_scan_chunk_bytes(const kr_scan_plan *p) {
  if (p->n_chunks <= 1) return 0;
  return kr_scratch_round((uint64_t)(p->B * p->n_chunks * p->D * p->N_padded) * 4) + kr_scratch_round((uint64_t)(p->B * p->n_chunks * p->D) * 4);
}

void kr_scan_chunk_scratch(kr_scan_plan *p, char *scratch) {
  p->chunk_state = (float *)scratch;
  p->chunk_dt = (float *)(scratch + kr_scratch_round((uint64_t)(p->B * p->n_chunks * p->D * p->N_padded) * 4));
}

int32_t kr_scan_chunk_walk(const krait_ctx *ctx, uint64_t tier, const kr_scan_plan *p, void *stream) {
  const kr_grid walk = {.x = (uint32_t)((p->B * p->D * p->N_padded + 127) / 128), .block = 128, .stream = stream};
  return kr_cuda_launch(ctx->cuda, tier, &combine[p->u.dtype], &walk, p, sizeof *p);
}

/* Every chunk's first state. */
static int32_t chunk_starts(const krait_ctx *ctx, uint64_t tier, kr_scan_plan *p, char *scratch, void *stream) {
  const kr_grid grid = {.x = (uint32_t)(p->B * p->G * p->blocks_per_group), .y = (uint32_t)p->n_chunks - 1, .block = KR_SCAN_THREADS, .shared_bytes = kr_scan_shared_bytes(p), .stream = stream};
  kr_scan_chunk_scratch(p, scratch);
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &(p->S == 1 ? state_s1 : state_s4)[p->u.dtype], &grid, p, sizeof *p));
  return kr_scan_chunk_walk(ctx, tier, p, stream);
}

static int32_t run_scan(const krait_ctx *ctx, uint64_t tier, kr_scan_plan *p, char *scratch, void *stream) {
  if (p->n_chunks > 1) KR_TRY(chunk_starts(ctx, tier, p, scratch, stream));
  const kr_grid grid = {.x = (uint32_t)(p->B * p->G * p->blocks_per_group), .y = (uint32_t)p->n_chunks, .block = KR_SCAN_THREADS, .shared_bytes = kr_scan_shared_bytes(p), .stream = stream};
  return kr_cuda_launch(ctx->cuda, tier, &(p->seq_idx ? fwd_packed : p->S == 1 ? fwd_s1 : fwd_s4)[p->u.dtype], &grid, p, sizeof *p);
}

/* y of the forward direction, float32, in scratch. */
static kr_rows sum_rows(const krait_selective_scan_args *a, void *data, int reverse) {
  const krait_view v = {.data = data, .stride = {a->D * a->L, a->L, 1}, .dtype = KRAIT_F32};
  return kr_rows_of(&v, reverse, a->L);
}

static int32_t run(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const krait_selective_scan_args *a = args;
  if (kr_scan_refusal(a)) return kr_scan_any_run(ctx, tier, a);
  const int n = 4 * kr_cuda_info(ctx->cuda)->n_multiprocessors, both = (a->call.flags & KRAIT_SCAN_BOTH) != 0;
  kr_scan_plan p;
  char *scratch = a->call.scratch;
  kr_scan_plan_of(&p, a, both ? 0 : (a->call.flags & KRAIT_SCAN_REVERSE) != 0, n, 3);
  if (!both) return run_scan(ctx, tier, &p, scratch, a->call.stream);
  char *rest = scratch + kr_scratch_round((uint64_t)(a->B * a->D * a->L) * 4);
  p.out = sum_rows(a, scratch, 0);
  p.z.data = NULL;
  p.D_vec = NULL;
  KR_TRY(run_scan(ctx, tier, &p, rest, a->call.stream));
  kr_scan_plan_of(&p, a, 1, n, 3);
  p.add = sum_rows(a, scratch, 1);
  p.A = a->A_reverse.data, p.A_d = a->A_reverse.stride[0], p.A_n = a->A_reverse.stride[1];
  return run_scan(ctx, tier, &p, rest, a->call.stream);
}

const char *kr_selective_scan_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_selective_scan_args *a = args;
  (void)ctx;
  return (kr_has(&a->cu_seqlens) ? a->S : a->B) * a->D > (1ll << 31) - 1 ? "2^31 channels or more" : NULL;
}

uint64_t kr_selective_scan_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const krait_selective_scan_args *a = args;
  kr_scan_plan p;
  if (kr_scan_refusal(a)) return kr_scan_any_scratch(a);
  kr_scan_plan_of(&p, a, 0, 4 * kr_cuda_info(ctx->cuda)->n_multiprocessors, 3);
  uint64_t sum = a->call.flags & KRAIT_SCAN_BOTH ? kr_scratch_round((uint64_t)(a->B * a->D * a->L) * 4) : 0;
  return sum + kr_scan_chunk_bytes(&p);
}

KR_CUDA_TIERS(selective_scan, run)
