/* selective_scan_cuda.c: kernel families of the forward scan (scan_families.h): which calls each takes, the split into
 * blocks, chunks and directions, and the launch. When channels are too few to fill the device, time is split into
 * chunks: end states from zero, a scan over the chunks, then every chunk from its true first state. Both directions in
 * one call are two scans; the first leaves its y in scratch. */
#include "overlap.h"
#include "op_list.h"
#include "scan_families.h"
#include "scan_host.h"
#include "view.h"

enum {
  PACKED_ROWS,
  UNALIGNED_ROWS,
  STATES_OVER_LANES,
  FEW_STEPS,
  FEW_CHANNELS,
  TIME_OVER_LANES,
  BOTH_DIRECTIONS,
  GENERAL,
  CHANNELS_LAST
};

#define KERNELS(name) KR_BY_TYPE("selective_scan", name)
static const kr_kernel fwd_s4[] = KERNELS("kr_scan_fwd_s4"), fwd_s1[] = KERNELS("kr_scan_fwd_s1");
#define WHOLE(name) KR_BY_TYPE("selective_scan_packed_rows", name)
static const kr_kernel whole[3][3] = {WHOLE("kr_scan_packed_rows_t4"), WHOLE("kr_scan_packed_rows_t8"),
                                      WHOLE("kr_scan_packed_rows_t16")},
                       whole_any[] = WHOLE("kr_scan_packed_rows_any");
static const kr_kernel whole_state[3][3] = {WHOLE("kr_scan_packed_rows_state_t4"),
                                            WHOLE("kr_scan_packed_rows_state_t8"),
                                            WHOLE("kr_scan_packed_rows_state_t16")},
                       whole_state_any[] = WHOLE("kr_scan_packed_rows_state_any");
static const kr_kernel state_s4[] = KERNELS("kr_scan_state_s4"), state_s1[] = KERNELS("kr_scan_state_s1");
#define LANES(name) KR_BY_TYPE("selective_scan_time_over_lanes", name)
static const kr_kernel lanes_t8[2][3] = {LANES("kr_scan_time_over_lanes_t8_any"), LANES("kr_scan_time_over_lanes_t8")},
                       lanes_t32[2][3] = {LANES("kr_scan_time_over_lanes_t32_any"),
                                          LANES("kr_scan_time_over_lanes_t32")};
static const kr_kernel lanes_state[2][3] = {LANES("kr_scan_time_over_lanes_state_any"),
                                            LANES("kr_scan_time_over_lanes_state")};
static const kr_kernel lanes_packed[] = LANES("kr_scan_time_over_lanes_packed"),
                       lanes_wide[] = LANES("kr_scan_time_over_lanes_wide"), brief[] = LANES("kr_scan_short");
#define USUAL(name)                                                                                           \
  {                                                                                                           \
    {NULL}, {"selective_scan_channels_last_n16_f16", name}, { "selective_scan_channels_last_n16_bf16", name } \
  }
static const kr_kernel usual_out[] = USUAL("kr_scan_channels_last_n16_out"),
                       usual_out_keep[] = USUAL("kr_scan_channels_last_n16_out_keep");
#define LAST(name) KR_BY_TYPE("selective_scan_channels_last", name)
static const kr_kernel last_out[2][3] = {LAST("kr_scan_channels_last_out"), LAST("kr_scan_channels_last_out_any")},
                       last_out_keep[2][3] = {LAST("kr_scan_channels_last_out_keep"),
                                              LAST("kr_scan_channels_last_out_keep_any")},
                       last_out_n32[] = LAST("kr_scan_channels_last_out_n32"),
                       last_out_n64[] = LAST("kr_scan_channels_last_out_n64");
static const kr_kernel last_state[2][3] = {LAST("kr_scan_channels_last_state"),
                                           LAST("kr_scan_channels_last_state_any")},
                       last_state_n32[] = LAST("kr_scan_channels_last_state_n32"),
                       last_state_n64[] = LAST("kr_scan_channels_last_state_n64");
static const kr_kernel fwd_packed[] = KERNELS("kr_scan_fwd_s4_packed"), combine[] = KERNELS("kr_scan_combine");

kr_scan_mat kr_scan_mat_of(const kr_view *v, int reverse, int64_t L) {
  kr_scan_mat m = {v->data, v->stride[0], v->stride[1], v->stride[2], v->stride[3], v->dtype, 0};
  const int64_t per_pack = v->dtype == KRAIT_F32 ? 4 : 8;
  m.packs = !reverse && m.t == 1 && m.b % per_pack == 0 && m.g % per_pack == 0 && m.n % per_pack == 0 &&
            (uintptr_t)v->data % 16 == 0;
  if (reverse) {
    m.data = (char *)v->data + (L - 1) * m.t * (int64_t)krait_dtype_bytes(v->dtype);
    m.t = -m.t;
  }
  return m;
}

kr_scan_state kr_scan_state_of(const kr_view *v) {
  return (kr_scan_state){v->data, v->stride[0], v->stride[1], v->stride[2]};
}

/* Calls that no fast kernel takes. */
const char *kr_scan_general(const kr_selective_scan_args *a) {
  if (a->A.dtype == KRAIT_C64) return "complex A";
  if (a->call.flags & (KRAIT_SCAN_B_CONSTANT | KRAIT_SCAN_C_CONSTANT)) return "B or C constant over time";
  return NULL;
}

/* Calls that the kernels with states over lanes do not take. */
const char *kr_scan_refusal(const kr_selective_scan_args *a) {
  if (kr_scan_general(a)) return kr_scan_general(a);
  if (a->N > 128) return "N above 128";
  if (kr_has(&a->cu_seqlens)) return "cu_seqlens";
  if (a->delta.dtype != a->u.dtype) return "delta differs in type from u";
  if (kr_has(&a->z) && a->z.dtype != a->u.dtype) return "z differs in type from u";
  return NULL;
}

static int channels_per_block(const kr_scan_params *p) { return 2 * KR_SCAN_THREADS / p->T; }

/* blocks_wanted: as many as fit the device at a time. Chunking costs a pass over the input, so it must yield at least
 * least_chunks. */
void kr_scan_cut(kr_scan_params *p, int64_t blocks_wanted, int64_t least_chunks) {
  const int may_chunk = !p->seq_idx;
  /* One state per lane also where there are too few channels for a block at four states per lane. */
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

enum { LANES_RUN = 16, LANES_TURN = LANES_RUN + 4, LANES_STAGED = 8448, SHORT_STEPS = 8 };

static int lanes_row_floats(const kr_scan_params *p) { return LANES_RUN / 4 * (p->TT * 4 + 4); }

static uint32_t scan_lanes_shared_bytes(const kr_scan_params *p, int state) {
  return (uint32_t)(2 * p->N * (KR_SCAN_THREADS / p->TT) + (state ? 1 : 2) * p->slab * lanes_row_floats(p) +
                    KR_SCAN_THREADS * LANES_TURN) *
         4;
}

/* Time over lanes: tiles of 128 steps of 16 channels or, if those make too few blocks, 512 steps of 4 channels; then
 * time is chunked. */
static void cut_scan_lanes(kr_scan_params *p, int64_t n_multiprocessors, int64_t most_shared_bytes) {
  const int64_t rows = p->B * p->G, wide = rows * ((p->D_group + 15) / 16);
  p->TT = p->N <= 128 && !p->seq_idx && (p->L <= 8 * LANES_RUN || wide >= 4 * n_multiprocessors) ? 8 : 32;
  const int slots = KR_SCAN_THREADS / p->TT;
  p->slab = LANES_STAGED / 2 / lanes_row_floats(p);
  if (p->slab > p->N) p->slab = p->N;
  while (p->slab > 1 && scan_lanes_shared_bytes(p, 0) > most_shared_bytes) p->slab /= 2;
  p->blocks_per_group = (int)((p->D_group + slots - 1) / slots);
  const int64_t tile = p->TT * LANES_RUN, blocks = rows * p->blocks_per_group, tiles = (p->L + tile - 1) / tile;
  int64_t chunks = 1;
  if (p->TT == 32 && !p->seq_idx && !p->offsets && blocks > 0 && 3 * blocks < 4 * n_multiprocessors && tiles >= 16)
    chunks = 4 * n_multiprocessors / blocks < tiles / 2 ? 4 * n_multiprocessors / blocks : tiles / 2;
  p->chunk = (tiles + chunks - 1) / chunks * tile;
  p->n_chunks = p->chunk ? (int)((p->L + p->chunk - 1) / p->chunk) : 1;
  if (p->n_chunks < 1) p->n_chunks = 1;
}

/* Few channels: a whole block along the time of one channel. */
static void cut_wide(kr_scan_params *p) {
  p->TT = KR_SCAN_THREADS;
  p->blocks_per_group = (int)p->D_group;
  p->chunk = p->L, p->n_chunks = 1;
}

/* Few steps: lanes share the states. */
static void cut_short(kr_scan_params *p) {
  p->T_shift = 2;
  while (p->T_shift < 5 && 1 << p->T_shift < p->N) p->T_shift++;
  p->T = 1 << p->T_shift;
  p->brief = p->n_chunks = 1;
}

/* Layout: scan_whole. */
uint32_t kr_scan_packed_rows_bytes(const kr_scan_params *p, kr_scan_walk walk, kr_scan_fit fit) {
  enum { PACKS = KR_SCAN_PACKED_ROWS_PACKS, WARPS = KR_SCAN_THREADS / 32 };
  const int rows = (walk == KR_SCAN_STATES ? 4 : 8) * p->T, per_lane = (64 / p->T * PACKS + 31) / 32,
            tile = p->u.dtype == KRAIT_F32 ? PACKS * 4 : PACKS * 8;
  const int inputs = walk == KR_SCAN_STATES   ? 2
                     : walk == KR_SCAN_OUTPUT ? 3
                                              : 4,
            arrays = walk == KR_SCAN_CUT ? 3 : 2, any = fit == KR_SCAN_ANYWHERE;
  const int places = any ? WARPS * (64 / p->T) * (PACKS + 1) : per_lane * KR_SCAN_THREADS,
            bc_places = !any                     ? rows * PACKS
                        : walk == KR_SCAN_OUTPUT ? rows
                                                 : 0;
  const int warp_floats = 2 * (32 / p->T * (tile + 4) + 16) - (any ? 16 : 0), bc_floats = rows * tile + (any ? 32 : 0);
  return (uint32_t)((inputs * places + bc_places) * 16 + (arrays * WARPS * warp_floats + 2 * bc_floats) * 4);
}

kr_scan_fit kr_scan_rows_fit(const kr_scan_params *p, int n, const kr_rows *const *rows) {
  kr_scan_fit fit = KR_SCAN_PACKS;
  for (int i = 0; i < n; i++) {
    if (!rows[i]->data) continue;
    if (rows[i]->t != 1 || rows[i]->dtype != p->u.dtype) return KR_SCAN_NO_FIT;
    if (!rows[i]->packs) fit = KR_SCAN_ANYWHERE;
  }
  return fit;
}

/* Fewer than three blocks per multiprocessor would make shared memory the limit. Unaligned rows: N up to 16. */
kr_scan_fit kr_scan_packed_rows_fit(const krait_ctx *ctx, const kr_scan_params *p) {
  if (p->TT || p->brief || p->S != 4 || p->T > 16 || p->mixed || p->seq_idx || p->offsets || p->L <= 0 ||
      p->L >= 1 << 28 || p->B_mat.t != 1 || p->C_mat.t != 1)
    return KR_SCAN_NO_FIT;
  kr_scan_fit fit = kr_scan_rows_fit(p, 2, (const kr_rows *[]){&p->u, &p->delta});
  if (p->L % (p->u.dtype == KRAIT_F32 ? 4 : 8) || !p->B_mat.packs || !p->C_mat.packs)
    fit = fit == KR_SCAN_PACKS ? KR_SCAN_ANYWHERE : fit;
  if (fit == KR_SCAN_ANYWHERE && p->T != 4) return KR_SCAN_NO_FIT;
  return 3 * kr_scan_packed_rows_bytes(p, KR_SCAN_OUTPUT, fit) <= kr_cuda_info(ctx->cuda)->shared_bytes ? fit
                                                                                                  : KR_SCAN_NO_FIT;
}

/* How selective_scan_packed_rows.cu reads a forward call. */
static kr_scan_fit whole_fit(const krait_ctx *ctx, const kr_scan_params *p) {
  const kr_scan_fit fit = kr_scan_packed_rows_fit(ctx, p),
                    rest = kr_scan_rows_fit(p, 2, (const kr_rows *[]){&p->z, &p->out}), least = fit < rest ? fit : rest;
  return p->add.data || (least == KR_SCAN_ANYWHERE && p->T != 4) ? KR_SCAN_NO_FIT : least;
}

uint32_t kr_scan_shared_bytes(const kr_scan_params *p) {
  return (uint32_t)(2 * channels_per_block(p) * (p->TL + 4) + p->TL * 2 * p->N_padded) * 4;
}

void kr_scan_params_of(kr_scan_params *p, const kr_selective_scan_args *a, int reverse, int64_t blocks_wanted,
                     int64_t least_chunks) {
  *p =
      (kr_scan_params){.B = a->B, .L = a->L, .D = a->D, .D_group = a->D / a->G, .N = (int32_t)a->N, .G = (int32_t)a->G};
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
  p->reverse = reverse;
  kr_scan_cut(p, blocks_wanted, least_chunks);
}

/* Aligned groups of four elements of u's type: is_aligned4 in scan_time_over_lanes.cuh. */
static int is_aligned4(const kr_scan_params *p, const void *data, int64_t strides, int64_t step, int32_t dtype) {
  return dtype == p->u.dtype && step == 1 && ((strides | p->L) & 3) == 0 &&
         ((uintptr_t)data & (dtype == KRAIT_F32 ? 15 : 7)) == 0 && !p->offsets;
}
static int rows_are_aligned(const kr_scan_params *p, const kr_rows *v) {
  return !v->data || is_aligned4(p, v->data, v->b | v->row, v->t, v->dtype);
}
static int mat_is_aligned(const kr_scan_params *p, const kr_scan_mat *m) {
  return is_aligned4(p, m->data, m->b | m->g | m->n, m->t, m->dtype);
}

int kr_scan_is_aligned(const kr_scan_params *p) {
  return rows_are_aligned(p, &p->u) && rows_are_aligned(p, &p->delta) && rows_are_aligned(p, &p->z) &&
         rows_are_aligned(p, &p->out) && rows_are_aligned(p, &p->add) && mat_is_aligned(p, &p->B_mat) &&
         mat_is_aligned(p, &p->C_mat) && rows_are_aligned(p, &p->dout) && rows_are_aligned(p, &p->du) &&
         rows_are_aligned(p, &p->ddelta) && rows_are_aligned(p, &p->dz);
}

int kr_scan_is_anywhere(const kr_scan_params *p) {
  return p->S == 4 && p->u.t == 1 && !p->mixed && !kr_scan_is_aligned(p);
}

/* cu_seqlens: sequences are batch entries that share the single row of every tensor but the states. */
static void take_offsets(kr_scan_params *p, const kr_selective_scan_args *a) {
  if (!kr_has(&a->cu_seqlens)) return;
  p->offsets = a->cu_seqlens.data, p->offsets_step = a->cu_seqlens.stride[0], p->B = a->S;
  p->u.b = p->delta.b = p->z.b = p->out.b = p->B_mat.b = p->C_mat.b = 0;
  p->u.packs = p->delta.packs = p->z.packs = p->out.packs = p->B_mat.packs = p->C_mat.packs =
      0; /* sequences need not be aligned */
}

/* Whether n_blocks, in waves of one per multiprocessor, leave less than a sixth idle. */
static int fills_rounds(int64_t n_blocks, int64_t n_multiprocessors) {
  return 5 * ((n_blocks + n_multiprocessors - 1) / n_multiprocessors * n_multiprocessors) <= 6 * n_blocks;
}

/* Thresholds measured on an H200: few steps, few states or few channels favour time over lanes. */
static int scan_states_over_lanes(const kr_scan_params *p, int64_t n_multiprocessors) {
  const int64_t channels = p->B * p->D;
  if (p->seq_idx && p->L <= 8 * LANES_RUN) return 1;
  if (p->N <= 4) return 0;
  if (p->L <= SHORT_STEPS) return p->N <= 64 ? channels * p->N >= 1 << 17 : channels * p->N >= 1 << 18 && p->L > 4;
  if (p->L <= 8 * LANES_RUN)
    return (p->u.dtype == KRAIT_F32 || kr_scan_is_anywhere(p)) && p->N <= 16 && p->L > 32 && channels >= 1 << 14;
  if (p->N <= 16 && p->D_group >= 1024 && channels < 1 << 14 && (p->L <= 4096 || channels >= 4096) &&
      kr_scan_is_aligned(p) && fills_rounds((channels + 3) / 4, n_multiprocessors))
    return 0;
  if (p->N <= 16) return p->D_group > 16 && (channels > n_multiprocessors || p->L >= 1 << 14);
  if (p->N <= 32) return 1;
  return channels <= 1024 || (channels >= 4096 && (p->N <= 64 || channels <= 8192));
}

static int is_wide(const kr_scan_params *p, int64_t n_multiprocessors) {
  const int64_t tiles = p->L / (KR_SCAN_THREADS * LANES_RUN), channels = p->B * p->D;
  return p->L >= 512 && !p->seq_idx && kr_scan_is_aligned(p) &&
         (channels <= 4 * n_multiprocessors ? tiles <= 4 : channels <= 8 * n_multiprocessors);
}

/* Checks the rows' layout for the family. States over lanes are skipped where time over lanes measured faster. */
static const char *cut_scan_states(kr_scan_params *p, const krait_ctx *ctx, const kr_selective_scan_args *a,
                                   int family) {
  if (kr_scan_refusal(a)) return kr_scan_refusal(a);
  if (!scan_states_over_lanes(p, kr_cuda_info(ctx->cuda)->n_multiprocessors)) return "few states, steps or channels";
  const kr_scan_fit fit = family == STATES_OVER_LANES ? KR_SCAN_NO_FIT : whole_fit(ctx, p);
  if (family == PACKED_ROWS && fit != KR_SCAN_PACKS) return "rows are not in aligned packs of 16 bytes";
  if (family == UNALIGNED_ROWS && (!fit || p->T != 4))
    return "time is not contiguous, types are mixed, or more than 16 states";
  if (family == UNALIGNED_ROWS &&
      3 * kr_scan_packed_rows_bytes(p, KR_SCAN_OUTPUT, KR_SCAN_ANYWHERE) > kr_cuda_info(ctx->cuda)->shared_bytes)
    return "too little shared memory";
  p->whole = family == PACKED_ROWS ? KR_SCAN_PACKS : family == UNALIGNED_ROWS ? KR_SCAN_ANYWHERE : KR_SCAN_NO_FIT;
  return NULL;
}

int kr_scan_channels_last_keeps(kr_scan_params *p, const kr_view *states) {
  const int64_t *const stride = states->stride;
  if (p->N > 16 || p->N % 4 || stride[2] != 1 || ((stride[0] | stride[1] | stride[3]) & 3) ||
      (uintptr_t)states->data % 16)
    return 0;
  p->kept_state = states->data, p->kept_N = p->N;
  p->kept_b = stride[0], p->kept_d = stride[1], p->kept_k = stride[3];
  return 1;
}

static const char *cut_scan_channels_last(kr_scan_params *p, const krait_ctx *ctx, const kr_selective_scan_args *a) {
  if (kr_scan_refusal(a)) return kr_scan_refusal(a);
  if (kr_has(&a->states) && !kr_scan_channels_last_keeps(p, &a->states))
    return "states (one per 8 steps) not in aligned groups of four, or N above 16";
  if (kr_scan_channels_last_refuse(p, 0)) return kr_scan_channels_last_refuse(p, 0);
  return kr_scan_channels_last_params(p, ctx, 0) ? NULL : "too little shared memory";
}

static const char *cut_few_steps(kr_scan_params *p) {
  if (p->L > SHORT_STEPS) return "more than 8 steps";
  if (p->seq_idx || p->offsets) return "packed sequences";
  cut_short(p);
  return NULL;
}

/* Plans one direction for one family; returns why the family rejects it, or NULL. */
static const char *scan_plan_of(kr_scan_params *p, const krait_ctx *ctx, const kr_selective_scan_args *a,
                                int family) {
  const int64_t n = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  if (kr_scan_general(a)) return kr_scan_general(a);
  if (a->call.flags & KRAIT_SCAN_BOTH) return "both directions in one call";
  kr_scan_params_of(p, a, (a->call.flags & KRAIT_SCAN_REVERSE) != 0, 4 * n, 3);
  take_offsets(p, a);
  if (family == CHANNELS_LAST) return cut_scan_channels_last(p, ctx, a);
  if (kr_has(&a->states)) return "states (one per 8 steps)";
  if (family <= STATES_OVER_LANES) return cut_scan_states(p, ctx, a, family);
  if (family == FEW_STEPS) return cut_few_steps(p);
  if (family == FEW_CHANNELS && !is_wide(p, n))
    return "many channels, few steps, packed sequences, or unaligned rows";
  if (family == FEW_CHANNELS) cut_wide(p);
  else cut_scan_lanes(p, n, kr_cuda_info(ctx->cuda)->shared_bytes);
  return NULL;
}

/* One of both directions, by the single-direction families. */
static void plan_direction(kr_scan_params *p, const krait_ctx *ctx, const kr_selective_scan_args *a, int reverse) {
  const int64_t n = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  kr_scan_params_of(p, a, reverse, 4 * n, 3);
  if (!kr_scan_refusal(a) && scan_states_over_lanes(p, n)) return;
  if (cut_few_steps(p)) cut_scan_lanes(p, n, kr_cuda_info(ctx->cuda)->shared_bytes);
}

uint64_t kr_scan_chunk_bytes(const kr_scan_params *p) {
  if (p->n_chunks <= 1) return 0;
  return kr_scratch_round((uint64_t)(p->B * p->n_chunks * p->D * p->N_padded) * 4) +
         kr_scratch_round((uint64_t)(p->B * p->n_chunks * p->D) * 4);
}

void kr_scan_chunk_scratch(kr_scan_params *p, char *scratch) {
  p->chunk_state = (float *)scratch;
  p->chunk_dt = (float *)(scratch + kr_scratch_round((uint64_t)(p->B * p->n_chunks * p->D * p->N_padded) * 4));
}

/* Every chunk's first state. */
static void chunk_starts(kr_chain *chain, kr_scan_params *p, char *scratch, void *stream) {
  const uint32_t shared_bytes = p->channels_last ? kr_scan_channels_last_bytes(p, KR_SCAN_STATES)
                                : p->TT          ? scan_lanes_shared_bytes(p, 1)
                                : p->whole       ? kr_scan_packed_rows_bytes(p, KR_SCAN_STATES, p->whole)
                                                 : kr_scan_shared_bytes(p);
  const kr_grid grid = {.x = (uint32_t)(p->B * p->G * p->blocks_per_group),
                        .y = (uint32_t)p->n_chunks - 1,
                        .block = KR_SCAN_THREADS,
                        .shared_bytes = shared_bytes,
                        .stream = stream};
  const kr_kernel *kernel = p->channels_last               ? (p->N > 32   ? last_state_n64
                                                              : p->N > 16 ? last_state_n32
                                                                          : last_state[p->align < 16])
                            : p->TT                        ? lanes_state[p->direct]
                            : p->whole == KR_SCAN_ANYWHERE ? whole_state_any
                            : p->whole                     ? whole_state[p->T_shift - 2]
                            : p->S == 1                    ? state_s1
                                                           : state_s4;
  const kr_grid walk = {.x = (uint32_t)((p->B * p->D * p->N_padded + 127) / 128), .block = 128, .stream = stream};
  kr_scan_chunk_scratch(p, scratch);
  kr_chain_add(chain, &kernel[p->u.dtype], &grid, p);
  kr_chain_add(chain, &combine[p->u.dtype], &walk, p);
}

static const kr_kernel *scan_kernel_of(const kr_scan_params *p) {
  if (p->usual) return p->kept_state ? usual_out_keep : usual_out;
  if (p->channels_last && p->kept_state) return last_out_keep[p->align < 16];
  if (p->channels_last) return p->N > 32 ? last_out_n64 : p->N > 16 ? last_out_n32 : last_out[p->align < 16];
  if (p->brief) return brief;
  if (p->TT)
    return p->seq_idx    ? lanes_packed
           : p->TT == 8  ? lanes_t8[p->direct]
           : p->TT == 32 ? lanes_t32[p->direct]
                         : lanes_wide;
  if (p->whole) return p->whole == KR_SCAN_ANYWHERE ? whole_any : whole[p->T_shift - 2];
  return p->seq_idx ? fwd_packed : p->S == 1 ? fwd_s1 : fwd_s4;
}

static void add_scan(const krait_ctx *ctx, kr_chain *chain, kr_scan_params *p, char *scratch, const kr_call *call) {
  void *const stream = call->stream;
  kr_grid grid = {.x = (uint32_t)(p->B * p->G * p->blocks_per_group),
                  .y = (uint32_t)p->n_chunks,
                  .block = KR_SCAN_THREADS,
                  .shared_bytes = p->TT ? scan_lanes_shared_bytes(p, 0) : kr_scan_shared_bytes(p),
                  .stream = stream};
  if (p->TT == KR_SCAN_THREADS) grid.shared_bytes = (uint32_t)(2 * p->N + 4 * KR_SCAN_THREADS / 32) * 4;
  if (p->usual) {
    grid.x = (uint32_t)(p->B * p->D / KR_SCAN_CHANNELS_LAST_N16_CHANNELS);
    grid.block = KR_SCAN_CHANNELS_LAST_N16_CHANNELS * 4, grid.shared_bytes = kr_scan_channels_last_n16_bytes();
    grid.is_pdl = (call->flags & KR_CALL_PDL) != 0;
    const uint32_t even = kr_cuda_even_bytes(ctx->cuda, grid.x * grid.y);
    if (grid.is_pdl && even > grid.shared_bytes) grid.shared_bytes = even;
  } else if (p->channels_last) grid.shared_bytes = kr_scan_channels_last_bytes(p, KR_SCAN_OUTPUT);
  else p->direct = kr_scan_is_aligned(p);
  if (p->whole) grid.shared_bytes = kr_scan_packed_rows_bytes(p, KR_SCAN_OUTPUT, p->whole);
  if (p->brief)
    grid.x = (uint32_t)((p->B * p->D * p->T + KR_SCAN_THREADS - 1) / KR_SCAN_THREADS), grid.shared_bytes = 0;
  if (p->n_chunks > 1) chunk_starts(chain, p, scratch, stream);
  kr_chain_add(chain, &scan_kernel_of(p)[p->u.dtype], &grid, p);
}

/* y of the forward direction, float32, in scratch. */
static kr_rows view_sums(const kr_selective_scan_args *a, void *data, int reverse) {
  const kr_view v = {.data = data, .stride = {a->D * a->L, a->L, 1}, .dtype = KRAIT_F32};
  return kr_rows_of(&v, reverse, a->L);
}

/* The first leaves its y in scratch, the second adds it; D and z are applied once. */
static int32_t run_both(const krait_ctx *ctx, const kr_selective_scan_args *a, uint64_t tier) {
  kr_scan_params p, back;
  kr_chain chain = {.n = 0};
  char *scratch = a->call.scratch, *rest = scratch + kr_scratch_round((uint64_t)(a->B * a->D * a->L) * 4);
  plan_direction(&p, ctx, a, 0);
  p.out = view_sums(a, scratch, 0);
  p.z.data = NULL;
  p.D_vec = NULL;
  p.whole = whole_fit(ctx, &p);
  add_scan(ctx, &chain, &p, rest, &a->call);
  plan_direction(&back, ctx, a, 1);
  back.add = view_sums(a, scratch, 1);
  back.A = a->A_reverse.data, back.A_d = a->A_reverse.stride[0], back.A_n = a->A_reverse.stride[1];
  back.whole = whole_fit(ctx, &back);
  add_scan(ctx, &chain, &back, rest, &a->call);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

static int32_t run_scan(const krait_ctx *ctx, const void *args, uint64_t tier, int family) {
  const kr_selective_scan_args *a = args;
  kr_scan_params p;
  kr_chain chain = {.n = 0};
  if (family == GENERAL) return kr_scan_general_run(ctx, tier, a);
  if (family == BOTH_DIRECTIONS) return run_both(ctx, a, tier);
  (void)scan_plan_of(&p, ctx, a, family);
  add_scan(ctx, &chain, &p, a->call.scratch, &a->call);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

static const char *refuse_scan(const krait_ctx *ctx, const void *args, int family) {
  const kr_selective_scan_args *a = args;
  kr_scan_params p;
  if ((kr_has(&a->cu_seqlens) ? a->S : a->B) * a->D > (1ll << 31) - 1) return "2^31 channels or more";
  if (family == GENERAL) return NULL;
  if (family == BOTH_DIRECTIONS)
    return kr_scan_general(a) ? kr_scan_general(a) : a->call.flags & KRAIT_SCAN_BOTH ? NULL : "one direction";
  return scan_plan_of(&p, ctx, a, family);
}

static uint64_t scan_scratch_of(const krait_ctx *ctx, const void *args, int family) {
  const kr_selective_scan_args *a = args;
  kr_scan_params p, back;
  if (family == GENERAL) return kr_scan_general_scratch(a);
  if (family != BOTH_DIRECTIONS) return scan_plan_of(&p, ctx, a, family) ? 0 : kr_scan_chunk_bytes(&p);
  plan_direction(&p, ctx, a, 0), plan_direction(&back, ctx, a, 1);
  const uint64_t one = kr_scan_chunk_bytes(&p), other = kr_scan_chunk_bytes(&back);
  return kr_scratch_round((uint64_t)(a->B * a->D * a->L) * 4) + (one > other ? one : other);
}

KR_CUDA_FAMILY(selective_scan, channels_last, CHANNELS_LAST, run_scan, refuse_scan, scan_scratch_of)
KR_CUDA_FAMILY(selective_scan, packed_rows, PACKED_ROWS, run_scan, refuse_scan, scan_scratch_of)
KR_CUDA_FAMILY(selective_scan, unaligned_rows, UNALIGNED_ROWS, run_scan, refuse_scan, scan_scratch_of)
KR_CUDA_FAMILY(selective_scan, states_over_lanes, STATES_OVER_LANES, run_scan, refuse_scan, scan_scratch_of)
KR_CUDA_FAMILY(selective_scan, few_steps, FEW_STEPS, run_scan, refuse_scan, scan_scratch_of)
KR_CUDA_FAMILY(selective_scan, few_channels, FEW_CHANNELS, run_scan, refuse_scan, scan_scratch_of)
KR_CUDA_FAMILY(selective_scan, time_over_lanes, TIME_OVER_LANES, run_scan, refuse_scan, scan_scratch_of)
KR_CUDA_FAMILY(selective_scan, both_directions, BOTH_DIRECTIONS, run_scan, refuse_scan, scan_scratch_of)
KR_CUDA_FAMILY(selective_scan, general, GENERAL, run_scan, refuse_scan, scan_scratch_of)
