/* selective_scan_bwd_cuda.c: kernel families of the scan's gradient (scan_families.h): which calls each takes, scratch
 * and launches. When channels are too few to fill the device, time is split into chunks: cheap passes first find each
 * chunk's first state and the gradient of its last. */
#include "op_list.h"
#include "scan_families.h"
#include "scan_host.h"
#include "view.h"

enum { PACKED_ROWS, UNALIGNED_ROWS, STATES_OVER_LANES, TIME_OVER_LANES, GENERAL, CHANNELS_LAST };

static const kr_kernel back_t4[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_t4"),
                       back_any[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_any");
static const kr_kernel back_two[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_t4_two");
static const kr_kernel back_t16[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_t16"),
                       sweep_packed[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_sweep_packed");
static const kr_kernel sweep_s4[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_sweep_s4"),
                       sweep_s1[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_sweep_s1");
static const kr_kernel back_s1[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_s1"),
                       back_packed[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_packed");
static const kr_kernel walk_kernel[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_walk"),
                       sum_kernel[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_sum");
static const kr_kernel lanes_sum[] = KR_BY_TYPE("selective_scan_bwd", "kr_scan_bwd_sum_lanes");

#define WHOLE(name) KR_BY_TYPE("selective_scan_packed_rows", name)
static const kr_kernel whole_sweep[3][3] = {WHOLE("kr_scan_packed_rows_sweep_t4"),
                                            WHOLE("kr_scan_packed_rows_sweep_t8"),
                                            WHOLE("kr_scan_packed_rows_sweep_t16")};
static const kr_kernel whole_sweep_any[] = WHOLE("kr_scan_packed_rows_sweep_any"),
                       whole_cut_any[] = WHOLE("kr_scan_packed_rows_cut_any");
static const kr_kernel whole_cut[3][3] = {WHOLE("kr_scan_packed_rows_cut_t4"), WHOLE("kr_scan_packed_rows_cut_t8"),
                                          WHOLE("kr_scan_packed_rows_cut_t16")};
#define WHOLE_BACK(name) KR_BY_TYPE("selective_scan_packed_rows_bwd", name)
static const kr_kernel whole_back[3][3] = {WHOLE_BACK("kr_scan_packed_rows_back_t4"),
                                           WHOLE_BACK("kr_scan_packed_rows_back_t8"),
                                           WHOLE_BACK("kr_scan_packed_rows_back_t16")},
                       whole_back_any[] = WHOLE_BACK("kr_scan_packed_rows_back_any");
#define LAST(name) KR_BY_TYPE("selective_scan_channels_last", name)
static const kr_kernel last_sweep[2][3] = {LAST("kr_scan_channels_last_sweep"),
                                           LAST("kr_scan_channels_last_sweep_any")},
                       last_cut[2][3] = {LAST("kr_scan_channels_last_cut"), LAST("kr_scan_channels_last_cut_any")};
static const kr_kernel last_back[2][3] = {KR_BY_TYPE("selective_scan_channels_last_bwd", "kr_scan_channels_last_back"),
                                          KR_BY_TYPE("selective_scan_channels_last_bwd",
                                                     "kr_scan_channels_last_back_any")},
                       last_back_usual[] =
                           KR_BY_TYPE("selective_scan_channels_last_bwd", "kr_scan_channels_last_back_usual");
#define LANES(name) KR_BY_TYPE("selective_scan_time_over_lanes_bwd", name)
static const kr_kernel lanes_sweep[2][3] = {LANES("kr_scan_time_over_lanes_sweep_any"),
                                            LANES("kr_scan_time_over_lanes_sweep")};
static const kr_kernel lanes_back_t8[2][3] = {LANES("kr_scan_time_over_lanes_back_t8_any"),
                                              LANES("kr_scan_time_over_lanes_back_t8")},
                       lanes_back_t16[2][3] = {LANES("kr_scan_time_over_lanes_back_t16_any"),
                                               LANES("kr_scan_time_over_lanes_back_t16")};
static const kr_kernel lanes_sweep_packed[] = LANES("kr_scan_time_over_lanes_sweep_packed"),
                       lanes_back_packed[] = LANES("kr_scan_time_over_lanes_back_packed");

/* The forward arguments inside the backward ones. */
static kr_selective_scan_args forward_args(const kr_selective_scan_bwd_args *a) {
  return (kr_selective_scan_args){KR_SCAN_SHARED_ARGS(a)};
}

/* Rows of the tile, B and C, the threads' partial dB and dC. */
static uint32_t scan_bwd_shared_bytes(const kr_scan_params *p, int n_part_floats) {
  return (uint32_t)(2 * KR_SCAN_THREADS / p->T * KR_SCAN_BWD_ROW + KR_SCAN_BWD_TILE * 2 * p->N_padded + n_part_floats) *
         4;
}

static int part_floats(const kr_scan_params *p) { return p->S == 1 ? 16 * 2 * p->N_padded : KR_SCAN_PART; }
static uint32_t back_shared_bytes(const kr_scan_params *p) {
  return scan_bwd_shared_bytes(p,
                               part_floats(p) * (p->part_step ? 2 : 1) + (p->n_chunks > 1 ? 8 * KR_SCAN_THREADS : 0));
}

/* Carves floats from scratch; with base NULL it only counts. */
static void *take_scan_bwd(char *base, uint64_t *used, int64_t n_floats) {
  void *block = base ? base + *used : NULL;
  *used += kr_scratch_round((uint64_t)n_floats * 4);
  return block;
}

/* Must match selective_scan_time_over_lanes_bwd.cu. */
enum {
  LANES_RUN = 8,
  LANES_PART = 4 * (KR_SCAN_THREADS * 4 + 16),
  LANES_SLAB = 16
};

/* n_matrices of B and C, n_states arrays of one float per state and channel; the gradient also double-buffers its
 * partial dB and dC. */
static uint32_t scan_bwd_lanes_shared_bytes(const kr_scan_params *p, int n_matrices, int n_states, int n_parts) {
  return (uint32_t)(n_states * p->N * (KR_SCAN_THREADS / p->TT) + n_parts * LANES_PART +
                    n_matrices * p->slab * (LANES_RUN / 4) * (p->TT * 4 + 4) + KR_SCAN_THREADS * (LANES_RUN + 4)) *
         4;
}
static uint32_t lanes_back_bytes(const kr_scan_params *p) { return scan_bwd_lanes_shared_bytes(p, 2, 4, 2); }

/* Time over lanes: a single tile if it holds the whole sequence (up to 128 steps), else tiles of 64 steps of 16
 * channels, with time chunked. */
static void cut_scan_bwd_lanes(kr_scan_params *p, int64_t n_multiprocessors) {
  p->direct = kr_scan_is_aligned(p);
  p->TT = !p->seq_idx && p->L > 8 * LANES_RUN && p->L <= 16 * LANES_RUN ? 16 : 8;
  p->slab = p->N < LANES_SLAB ? p->N : LANES_SLAB;
  const int slots = KR_SCAN_THREADS / p->TT;
  p->blocks_per_group = (int)((p->D_group + slots - 1) / slots);
  const int64_t tile = p->TT * LANES_RUN, blocks = p->B * p->G * p->blocks_per_group, tiles = (p->L + tile - 1) / tile;
  int64_t chunks = 1;
  if (!p->seq_idx && blocks > 0 && blocks < 2 * n_multiprocessors && tiles >= 4)
    chunks = 4 * n_multiprocessors / blocks < tiles / 2 ? 4 * n_multiprocessors / blocks : tiles / 2;
  p->chunk = (tiles + chunks - 1) / chunks * tile;
  p->n_chunks = p->chunk ? (int)((p->L + p->chunk - 1) / p->chunk) : 1;
  if (p->n_chunks < 1) p->n_chunks = 1;
}

static uint64_t lay_out_scan_bwd(kr_scan_params *p, char *base) {
  uint64_t used = kr_scan_chunk_bytes(p);
  const int64_t states = p->B * p->D * p->N_padded, chunks = p->n_chunks;
  if (p->TT) p->n_kept = p->L > p->TT * LANES_RUN ? (int32_t)((p->L + p->TT * LANES_RUN - 1) / (p->TT * LANES_RUN)) : 0;
  else p->n_kept = (int32_t)((p->L + KR_SCAN_BWD_TILE - 1) / KR_SCAN_BWD_TILE * (KR_SCAN_BWD_TILE / KR_SCAN_KEPT));
  if (!p->keeps) p->kept_state = take_scan_bwd(base, &used, states * p->n_kept);
  if (p->channels_last && !p->keeps) {
    p->kept_N = p->N_padded, p->kept_d = p->kept_N, p->kept_k = p->D * p->kept_d, p->kept_b = p->n_kept * p->kept_k;
  }
  p->kept_dt = take_scan_bwd(base, &used, chunks > 1 ? p->B * p->D * p->n_kept : 0);
  p->chunk_carry = take_scan_bwd(base, &used, chunks > 1 ? states * chunks : 0);
  p->part_bc = take_scan_bwd(base, &used, p->B * p->G * p->blocks_per_group * p->L * 2 * p->N_padded);
  p->part_A = take_scan_bwd(base, &used, states * chunks);
  p->part_D = take_scan_bwd(base, &used, p->B * p->D * chunks);
  p->part_bias = take_scan_bwd(base, &used, p->B * p->D * chunks);
  return used;
}

/* Measured on an H200: short sequences, few states or few channels favour time over lanes. */
static int scan_bwd_states_over_lanes(const kr_scan_params *p) {
  if (p->seq_idx) return p->N > 4;
  if (p->L <= 8) return p->N <= 32 || p->N * p->D_group < p->B << 16;
  if (p->N <= 4) return 0;
  if (p->L <= 16 * LANES_RUN)
    return (p->u.dtype == KRAIT_F32 || kr_scan_is_anywhere(p)) && p->N <= 16 && p->L > 32 && p->B * p->D >= 1 << 14;
  return p->N > 16 || (p->D_group > 16 && (p->B * p->D > 256 || p->L >= 1 << 14));
}

/* Shared memory of selective_scan_packed_rows_bwd.cu. */
static uint32_t whole_back_bytes(const kr_scan_params *p, kr_scan_fit fit) {
  const int tile = p->u.dtype == KRAIT_F32 ? 8 : 16, orders = p->T == 16 ? 2 : 4, own = p->T == 16 ? 8 : 7,
            part = p->T == 16 ? 128 : 64;
  const int warp_rows = 2 * (32 / p->T * (tile * 4 + 4) + 8), bc = orders * (tile * 8 * p->T + 16),
            parts = 4 * tile * part, landed = (4 * (64 / p->T) + 4 * p->T) * 3 * 4;
  return (uint32_t)(own * KR_SCAN_THREADS * 16 + (4 * warp_rows + bc + parts + KR_SCAN_THREADS +
                                                  (fit == KR_SCAN_ANYWHERE && landed > warp_rows ? 4 * landed : 0)) *
                                                     4);
}

/* The backward kernel uses 32-bit offsets within a warp's rows. */
static int is_short_stride(int64_t stride) { return stride > -(1 << 28) && stride < 1 << 28; }

static kr_scan_fit back_fit(const krait_ctx *ctx, const kr_scan_params *p) {
  const kr_rows *const rows[] = {&p->u, &p->delta, &p->z, &p->dout, &p->du, &p->ddelta, &p->dz};
  const kr_scan_fit fit = kr_scan_packed_rows_fit(ctx, p), rest = kr_scan_rows_fit(p, 7, rows),
                    least = fit < rest ? fit : rest;
  for (int i = 0; i < 7; i++)
    if (rows[i]->data && !is_short_stride(rows[i]->row)) return KR_SCAN_NO_FIT;
  if (!is_short_stride(p->B_mat.n) || !is_short_stride(p->C_mat.n) ||
      3 * whole_back_bytes(p, least) > kr_cuda_info(ctx->cuda)->shared_bytes)
    return KR_SCAN_NO_FIT;
  return least == KR_SCAN_ANYWHERE && p->T != 4 ? KR_SCAN_NO_FIT : least;
}

static void read_args(kr_scan_params *p, const kr_selective_scan_bwd_args *a, const kr_selective_scan_args *f,
                      int64_t n_multiprocessors) {
  const int reverse = (a->call.flags & KRAIT_SCAN_REVERSE) != 0;
  kr_scan_params_of(p, f, reverse, 3 * n_multiprocessors, 2);
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

/* Without chunking, states kept by the forward call replace the sweep. */
static const char *cut_scan_bwd_channels_last(kr_scan_params *p, const krait_ctx *ctx,
                                              const kr_selective_scan_bwd_args *a) {
  const char *why = kr_scan_channels_last_refuse(p, 1);
  if (!why && !kr_scan_channels_last_params(p, ctx, 1)) why = "too little shared memory";
  if (!why && kr_has(&a->states) && p->n_chunks <= 1) p->keeps = kr_scan_channels_last_keeps(p, &a->states);
  return why;
}

/* States over lanes are skipped where time over lanes measured faster. */
static const char *cut_scan_bwd_states(kr_scan_params *p, const krait_ctx *ctx, const kr_selective_scan_bwd_args *a,
                              int family) {
  if (a->dout.data && a->dout.dtype != a->u.dtype) return "dout differs in type from u";
  if (!scan_bwd_states_over_lanes(p)) return "few states, steps or channels";
  const kr_scan_fit fit = family == STATES_OVER_LANES ? KR_SCAN_NO_FIT : back_fit(ctx, p);
  if (family == PACKED_ROWS && fit != KR_SCAN_PACKS) return "rows are not in aligned packs of 16 bytes";
  if (family == UNALIGNED_ROWS && (!fit || p->T != 4))
    return "time is not contiguous, types are mixed, or more than 16 states";
  p->whole = family == PACKED_ROWS ? KR_SCAN_PACKS : family == UNALIGNED_ROWS ? KR_SCAN_ANYWHERE : KR_SCAN_NO_FIT;
  if (p->whole && 3 * whole_back_bytes(p, p->whole) > kr_cuda_info(ctx->cuda)->shared_bytes)
    return "too little shared memory";
  if (p->whole) kr_scan_cut(p, 4 * kr_cuda_info(ctx->cuda)->n_multiprocessors, 2);
  return NULL;
}

static uint32_t back_bytes(const kr_scan_params *p) {
  if (p->channels_last) return kr_scan_channels_last_back_bytes(p);
  return p->TT ? lanes_back_bytes(p) : p->whole ? whole_back_bytes(p, p->whole) : back_shared_bytes(p);
}

/* Plans the call for one family; returns why the family rejects it, or NULL. */
static const char *scan_bwd_plan_of(kr_scan_params *p, const kr_selective_scan_bwd_args *a, const krait_ctx *ctx,
                                    int family) {
  const kr_selective_scan_args f = forward_args(a);
  const char *why = kr_scan_general(&f);
  if (why) return why;
  if (kr_has(&f.cu_seqlens)) return "cu_seqlens";
  if (a->call.flags & KRAIT_SCAN_BOTH) return "both directions in one call";
  if (family != TIME_OVER_LANES && kr_scan_refusal(&f)) return kr_scan_refusal(&f);
  read_args(p, a, &f, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  if (family == CHANNELS_LAST) return cut_scan_bwd_channels_last(p, ctx, a);
  p->part_step = part_floats(p); /* double buffering saves a barrier, if three blocks still fit a multiprocessor */
  if (p->S == 4 && kr_cuda_info(ctx->cuda)->shared_bytes < 3 * back_shared_bytes(p)) p->part_step = 0;
  if (family == TIME_OVER_LANES) cut_scan_bwd_lanes(p, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  else why = cut_scan_bwd_states(p, ctx, a, family);
  return why ? why : back_bytes(p) <= kr_cuda_info(ctx->cuda)->shared_bytes ? NULL : "too little shared memory";
}

static kr_grid scan_bwd_grid_of(const kr_scan_params *p, uint32_t shared_bytes, void *stream) {
  return (kr_grid){.x = (uint32_t)(p->B * p->G * p->blocks_per_group),
                   .y = (uint32_t)p->n_chunks,
                   .block = KR_SCAN_THREADS,
                   .shared_bytes = shared_bytes,
                   .stream = stream};
}

/* States every few steps; each chunk's first state and the gradient of its last. Where one launch sweeps both ways it
 * has twice the blocks. */
static void sweep_scan_bwd_cuda(kr_chain *chain, kr_scan_params *p, char *scratch, void *stream) {
  const int cut = p->n_chunks > 1;
  const kr_scan_fit whole = p->whole;
  const kr_kernel *of_whole = whole == KR_SCAN_ANYWHERE ? (cut ? whole_cut_any : whole_sweep_any)
                              : !whole                  ? NULL
                              : cut                     ? whole_cut[p->T_shift - 2]
                                                        : whole_sweep[p->T_shift - 2];
  const kr_kernel *of_lanes = p->seq_idx ? lanes_sweep_packed : lanes_sweep[p->direct];
  const kr_kernel *kernel = p->channels_last ? (cut ? last_cut : last_sweep)[p->align < 16]
                            : p->TT          ? of_lanes
                            : whole          ? of_whole
                            : p->seq_idx     ? sweep_packed
                            : p->S == 1      ? sweep_s1
                                             : sweep_s4;
  const uint32_t shared = p->channels_last ? kr_scan_channels_last_bytes(p, cut ? KR_SCAN_CUT : KR_SCAN_STATES)
                          : p->TT          ? scan_bwd_lanes_shared_bytes(p, 1, 2, 0)
                          : whole          ? kr_scan_packed_rows_bytes(p, cut ? KR_SCAN_CUT : KR_SCAN_STATES, whole)
                                           : scan_bwd_shared_bytes(p, 0);
  const kr_grid walk = {
      .x = (uint32_t)((p->B * p->D * p->N_padded + 127) / 128), .y = 2, .block = 128, .stream = stream};
  kr_grid grid = scan_bwd_grid_of(p, shared, stream);
  grid.z = cut && !whole && !p->channels_last ? 2 : 1;
  if ((p->TT && p->n_kept == 0) || p->keeps) return;
  if (cut) kr_scan_chunk_scratch(p, scratch);
  kr_chain_add(chain, &kernel[p->u.dtype], &grid, p);
  if (cut) kr_chain_add(chain, &walk_kernel[p->u.dtype], &walk, p);
}

/* Three resident blocks per multiprocessor, or two faster ones: whichever leaves less of the last wave idle. */
static const kr_kernel *back_kernel(const krait_ctx *ctx, const kr_scan_params *p) {
  const int64_t blocks = p->B * p->G * p->blocks_per_group * p->n_chunks,
                n = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  if (p->channels_last) return p->usual ? last_back_usual : last_back[p->align < 16];
  if (p->whole) return p->whole == KR_SCAN_ANYWHERE ? whole_back_any : whole_back[p->T_shift - 2];
  if (p->TT) return p->seq_idx ? lanes_back_packed : p->TT == 8 ? lanes_back_t8[p->direct] : lanes_back_t16[p->direct];
  if (p->seq_idx) return back_packed;
  if (p->S == 1) return back_s1;
  if (p->T != 4) return p->T == 16 ? back_t16 : back_any;
  return (blocks + 2 * n - 1) / (2 * n) * 2 < (blocks + 3 * n - 1) / (3 * n) * 3 ? back_two : back_t4;
}

static int32_t run_scan_bwd(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {
  const kr_selective_scan_bwd_args *a = args;
  void *stream = a->call.stream;
  kr_scan_params p;
  if (family == GENERAL) return kr_scan_general_bwd_run(ctx, tier, a);
  (void)scan_bwd_plan_of(&p, a, ctx, family);
  lay_out_scan_bwd(&p, a->call.scratch);
  kr_chain chain = {.n = 0};
  sweep_scan_bwd_cuda(&chain, &p, a->call.scratch, stream);
  const kr_kernel *kernel = back_kernel(ctx, &p);
  const kr_grid grid = scan_bwd_grid_of(&p, back_bytes(&p), stream);
  kr_chain_add(&chain, &kernel[p.u.dtype], &grid, &p);
  const int64_t n_times = p.TT ? 2 * p.N * ((p.L + 255) / 256) : (p.L + 31) / 32;
  p.n_matrix_blocks = p.dB.data || p.dC.data ? (int32_t)(p.B * p.G * n_times) : 0;
  const kr_grid sums = {
      .x = (uint32_t)(p.n_matrix_blocks + (p.D * (p.N_padded + 2) + 31) / 32), .block = 256, .stream = stream};
  kr_chain_add(&chain, &(p.TT ? lanes_sum : sum_kernel)[p.u.dtype], &sums, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

static const char *refuse_scan_bwd(const krait_ctx *ctx, const void *args, int family) {
  const kr_selective_scan_bwd_args *a = args;
  kr_scan_params p;
  if ((kr_has(&a->cu_seqlens) ? a->S : a->B) * a->D > (1ll << 31) - 1) return "2^31 channels or more";
  return family == GENERAL ? NULL : scan_bwd_plan_of(&p, a, ctx, family);
}

static uint64_t scan_bwd_scratch_of(const krait_ctx *ctx, const void *args, int family) {
  kr_scan_params p;
  if (family == GENERAL) return kr_scan_general_bwd_scratch(ctx, args);
  return scan_bwd_plan_of(&p, args, ctx, family) ? 0 : lay_out_scan_bwd(&p, NULL);
}

KR_CUDA_FAMILY(selective_scan_bwd, channels_last, CHANNELS_LAST, run_scan_bwd, refuse_scan_bwd, scan_bwd_scratch_of)
KR_CUDA_FAMILY(selective_scan_bwd, packed_rows, PACKED_ROWS, run_scan_bwd, refuse_scan_bwd, scan_bwd_scratch_of)
KR_CUDA_FAMILY(selective_scan_bwd, unaligned_rows, UNALIGNED_ROWS, run_scan_bwd, refuse_scan_bwd, scan_bwd_scratch_of)
KR_CUDA_FAMILY(selective_scan_bwd, states_over_lanes, STATES_OVER_LANES, run_scan_bwd, refuse_scan_bwd,
               scan_bwd_scratch_of)
KR_CUDA_FAMILY(selective_scan_bwd, time_over_lanes, TIME_OVER_LANES, run_scan_bwd, refuse_scan_bwd, scan_bwd_scratch_of)
KR_CUDA_FAMILY(selective_scan_bwd, general, GENERAL, run_scan_bwd, refuse_scan_bwd, scan_bwd_scratch_of)
