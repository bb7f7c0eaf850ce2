/* mamba3_cuda.c: Mamba 3's scan on a GPU: rows for the SSD, an implementation of the SSD, and what follows it. */
#include "mamba3_host.h"
#include "mamba3_impls.h"
#include "op_list.h"
#include "ssd/ssd_impls.h"
#include "ssd/ssd_inputs.h"
#include "status.h"

static const kr_kernel turns_kernel[] = KR_BY_TYPE("mamba3", "kr_mamba3_turns"),
                       carry_kernel[] = KR_BY_TYPE("mamba3", "kr_mamba3_carry"),
                       rows_kernel[] = KR_BY_TYPE("mamba3", "kr_mamba3_rows"),
                       plain_rows_kernel[2][3] = {KR_BY_TYPE("mamba3_plain", "kr_mamba3_plain_rows"),
                                                  KR_BY_TYPE("mamba3_plain", "kr_mamba3_plain_rows_halves")},
                       plain_finish_kernel[] = KR_BY_TYPE("mamba3_plain", "kr_mamba3_plain_finish"),
                       ranked_rows_kernel[2][3] = KR_MAMBA3_BY_RANKS("kr_mamba3_rows"),
                       ranked_finish_kernel[2][3] = KR_MAMBA3_BY_RANKS("kr_mamba3_finish"),
                       edges_kernel[] = KR_BY_TYPE("mamba3", "kr_mamba3_edges"),
                       finish_kernel[2][3] = {KR_BY_TYPE("mamba3", "kr_mamba3_finish_64"),
                                              KR_BY_TYPE("mamba3", "kr_mamba3_finish_256")},
                       ends_kernel[] = KR_BY_TYPE("mamba3", "kr_mamba3_ends");

#define CORE(refuse, run, scratch, bwd_refuse, bwd_run, bwd_scratch) \
  {NULL, 0, refuse, run, scratch}, { NULL, 0, bwd_refuse, bwd_run, bwd_scratch }

const kr_mamba3_core *kr_mamba3_core_of(int which) {
  static const kr_mamba3_core cores[] = {
      {.tier = KRAIT_CAP_CUDA_TURING, .ssd = {NULL, 0, kr_ssd_turing_refuse, kr_ssd_turing, kr_ssd_chunks_scratch}},
      {KRAIT_CAP_CUDA_AMPERE, 0, 0, 1,
       CORE(kr_ssd_hopper_refuse, kr_ssd_hopper, kr_ssd_hopper_scratch, kr_ssd_bwd_hopper_refuse, kr_ssd_bwd_hopper,
            kr_ssd_bwd_hopper_scratch),
       kr_ssd_bwd_hopper_made},
      {KRAIT_CAP_CUDA_AMPERE, 0, 0, 0,
       CORE(kr_ssd_chunks_refuse, kr_ssd_chunks, kr_ssd_chunks_scratch, kr_ssd_bwd_chunks_refuse, kr_ssd_bwd_chunks,
            kr_ssd_bwd_chunks_scratch),
       kr_ssd_bwd_chunks_made},
      {KRAIT_CAP_CUDA_BASE, KRAIT_SSD_TF32, 0, 0,
       CORE(kr_ssd_tf32_refuse, kr_ssd_tf32, kr_ssd_parts_scratch, kr_ssd_bwd_tf32_refuse, kr_ssd_bwd_tf32,
            kr_ssd_bwd_chunks_scratch), NULL},
      {KRAIT_CAP_CUDA_BASE, 0, 0, 0,
       CORE(kr_ssd_parts_refuse, kr_ssd_parts, kr_ssd_parts_scratch, kr_ssd_bwd_parts_refuse, kr_ssd_bwd_parts,
            kr_ssd_bwd_chunks_scratch), NULL},
      {KRAIT_CAP_CUDA_BASE, 0, 1, 0,
       CORE(kr_ssd_tiles_refuse, kr_ssd_tiles, kr_ssd_tiles_scratch, kr_ssd_bwd_tiles_refuse, kr_ssd_bwd_tiles,
            kr_ssd_bwd_tiles_scratch), NULL},
      {KRAIT_CAP_CUDA_BASE, 0, 1, 0,
       CORE(kr_ssd_cuda_refuse, kr_ssd_cuda_base, kr_ssd_cuda_scratch, kr_ssd_bwd_cuda_refuse, kr_ssd_bwd_cuda_base,
            kr_ssd_bwd_cuda_scratch), NULL},
  };
  return cores + which;
}

/* ---- what surrounds the SSD -------------------------------------------------------------------------------------- */

int kr_mamba3_row_type(const kr_mamba3_core *core, const kr_mamba3_inputs *in) {
  return core->takes_any ? KRAIT_F32 : in->x.dtype;
}

const char *kr_mamba3_refuse(const kr_mamba3_core *core, const kr_mamba3_inputs *in) {
  const int64_t most = INT32_MAX / 2;
  if (core->flag && !(in->flags & KRAIT_MAMBA3_TF32)) return "the call does not allow tf32";
  if (!core->takes_any && (in->Bmat.dtype != in->x.dtype || in->Cmat.dtype != in->x.dtype))
    return "B or C of another type than x";
  if (in->B > 65535 || in->H > 65535 || in->S > 65535) return "more than 65535 sequences or heads";
  if ((in->L / KR_MAMBA3_TILE + 1) * in->H > most || in->S * in->H > most) return "more than 2^30 blocks";
  return NULL;
}

static int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

kr_mamba3_params kr_mamba3_params_of(const kr_mamba3_inputs *in, int has_ends) {
  const int is_pack = kr_has(&in->cu_seqlens), has_states = kr_has(&in->initial_states);
  kr_mamba3_params p = {.flags = in->flags,
                        .B = (int32_t)in->B,
                        .H = (int32_t)in->H,
                        .P = (int32_t)in->P,
                        .N = (int32_t)in->N,
                        .G = (int32_t)in->G,
                        .R = (int32_t)in->R,
                        .M = (int32_t)in->M,
                        .S = (int32_t)in->S,
                        .eps = in->eps,
                        .L = in->L,
                        .has_ends = has_ends};
  for (p.ranks = 1; p.ranks < in->R;) p.ranks *= 2;
  p.row_N = (int32_t)up_to(in->N, 8), p.row_P = (int32_t)up_to(in->P, 8);
  p.n_chunks = (int32_t)((in->L + KR_MAMBA3_CHUNK - 1) / KR_MAMBA3_CHUNK);
  p.n_tiles = (int32_t)((in->L + KR_MAMBA3_TILE - 1) / KR_MAMBA3_TILE);
  p.n_spans = (int32_t)((in->L + KR_MAMBA3_SPAN - 1) / KR_MAMBA3_SPAN);
  const int32_t units = (int32_t)(up_to(in->N, p.ranks) / p.ranks);
  if (is_pack) p.before = has_states ? units : 0, p.after = has_ends ? units : 0;
  p.n_rows = (is_pack ? in->L + in->S * (p.before + p.has_ends + p.after) : in->L + has_ends) * p.ranks;
  p.x = in->x, p.log_decay = in->log_decay, p.dt = in->dt, p.trap = in->trap, p.Bmat = in->Bmat, p.Cmat = in->Cmat;
  p.B_bias = in->B_bias, p.C_bias = in->C_bias, p.angles = in->angles, p.Dvec = in->Dvec, p.z = in->z;
  p.mimo_x = in->mimo_x, p.mimo_z = in->mimo_z, p.mimo_o = in->mimo_o, p.norm_weight = in->norm_weight;
  p.initial_angles = in->initial_angles, p.initial_states = in->initial_states, p.initial_B = in->initial_B;
  p.span_heads = in->angles.stride[2] ? 1 : 4; /* heads that share angles share their tangents */
  p.initial_x = in->initial_x, p.cu_seqlens = in->cu_seqlens;
  return p;
}

int kr_mamba3_takes_vectors(const kr_view *v, int type) {
  const int64_t strides = v->stride[0] | v->stride[1] | v->stride[2];
  return !kr_has(v) || (v->dtype == type && v->stride[3] == 1 && strides % 8 == 0 && (uintptr_t)v->data % 16 == 0);
}

static int is_power_of_two(int32_t n) { return (n & (n - 1)) == 0; }

void kr_mamba3_be_plain(kr_mamba3_params *p, int type) {
  const kr_view *const rows[] = {&p->x, &p->z, &p->Bmat, &p->Cmat};
  int takes_vectors = p->M % 4 == 0 && p->P >= 8 && is_power_of_two(p->P) && p->N >= 16 &&
                      p->N <= KR_MAMBA3_PLAIN_N && is_power_of_two(p->N);
  for (int i = 0; i < 4; i++) takes_vectors = takes_vectors && kr_mamba3_takes_vectors(rows[i], type);
  p->is_plain = takes_vectors && p->R == 1 && !kr_has(&p->mimo_x) && !kr_has(&p->mimo_z) && !kr_has(&p->mimo_o) &&
                !kr_has(&p->norm_weight);
  p->is_ranked = takes_vectors && (p->R == 2 || p->R == 4) && p->flags & KRAIT_MAMBA3_HALVES && p->P >= 32 &&
                 p->P <= KR_MAMBA3_RANKED_P;
  p->is_ranked_output = p->is_ranked && !kr_has(&p->norm_weight);
}

/* The angle of one token alone has no gradient, not even by rounding: the rows of its key and query must not meet. */
void kr_mamba3_be_direct(const kr_mamba3_core *core, kr_mamba3_params *p) {
  p->is_direct = core->takes_direct && p->is_plain && p->L > 1 && !kr_has(&p->cu_seqlens) &&
                 !kr_has(&p->initial_states) && !(p->flags & KRAIT_MAMBA3_REVERSE);
  if (p->is_direct) p->has_ends = 0, p->n_rows = p->L;
}

void *kr_mamba3_take(char *scratch, uint64_t *at, int64_t n, uint64_t bytes) {
  void *const place = scratch + *at;
  *at += kr_scratch_round((uint64_t)n * bytes);
  return place;
}

uint64_t kr_mamba3_place(kr_mamba3_params *p, char *scratch, int type) {
  const int64_t units = (int64_t)p->B * p->H, rows = units * p->n_rows;
  const uint64_t bytes = krait_dtype_bytes(type);
  uint64_t at = 0;
  p->q = kr_mamba3_take(scratch, &at, rows * p->row_N, bytes),
  p->k = kr_mamba3_take(scratch, &at, rows * p->row_N, bytes);
  p->rows_x = kr_mamba3_take(scratch, &at, p->is_direct ? 0 : rows * p->row_P, bytes),
  p->y = kr_mamba3_take(scratch, &at, p->is_direct ? 0 : rows * p->row_P, bytes);
  p->weight = kr_mamba3_take(scratch, &at, rows, sizeof(float)),
  p->decay = kr_mamba3_take(scratch, &at, rows, sizeof(float));
  p->dots = kr_mamba3_take(scratch, &at, units * p->L * p->R * p->R, sizeof(float));
  p->gamma = kr_mamba3_take(scratch, &at, units * p->L, sizeof(float));
  p->skips = kr_mamba3_take(scratch, &at, p->is_direct ? units * p->L : 0, sizeof(float));
  p->angles_within = kr_mamba3_take(scratch, &at, p->is_walked ? 0 : units * p->L * p->M, sizeof(uint32_t));
  p->angles_before = kr_mamba3_take(scratch, &at, p->is_walked ? 0 : units * p->n_spans * p->M, sizeof(uint32_t));
  p->seq_idx = kr_mamba3_take(scratch, &at, p->cu_seqlens.data ? p->n_rows : 0, sizeof(int32_t));
  return at;
}

kr_view kr_mamba3_rows_of(const kr_mamba3_params *p, void *data, int64_t columns, int32_t dtype) {
  const int64_t head = p->n_rows * columns;
  return (kr_view){.data = data, .dtype = dtype, .stride = {p->H * head, columns, head, 1}};
}

kr_view kr_mamba3_values_of(const kr_mamba3_params *p, void *data) {
  return (kr_view){.data = data, .dtype = KRAIT_F32, .stride = {p->H * p->L, 1, p->L}};
}

kr_ssd_args kr_mamba3_ssd(const kr_mamba3_core *core, const kr_mamba3_inputs *in, const kr_mamba3_params *p,
                          const kr_call *call, void *scratch) {
  const int type = kr_mamba3_row_type(core, in);
  uint32_t ranks = 0;
  while (1 << ranks < p->ranks) ranks++;
  kr_ssd_args s = {.B = in->B, .L = p->n_rows, .H = in->H, .P = in->P, .N = in->N, .G = in->H};
  s.call.size = sizeof s, s.call.flags = core->flag | KR_SSD_RANKS(ranks);
  s.call.stream = call->stream, s.call.scratch = scratch;
  s.x = p->is_direct ? in->x : kr_mamba3_rows_of(p, p->rows_x, p->row_P, type);
  if (p->is_direct)
    s.call.flags |= KR_SSD_TOKEN_D, s.Dvec = kr_mamba3_values_of(p, p->skips), s.z = in->z;
  s.Bmat = kr_mamba3_rows_of(p, p->k, p->row_N, type), s.Cmat = kr_mamba3_rows_of(p, p->q, p->row_N, type);
  s.dt = kr_mamba3_rows_of(p, p->weight, 1, KRAIT_F32), s.log_decay = kr_mamba3_rows_of(p, p->decay, 1, KRAIT_F32);
  if (p->cu_seqlens.data)
    s.seq_idx = (kr_view){.data = p->seq_idx, .dtype = KRAIT_I32, .stride = {p->n_rows, 1}};
  else
    s.initial_states = in->initial_states;
  return s;
}

kr_grid kr_mamba3_grid(int64_t blocks, int64_t batch, void *stream) {
  return (kr_grid){
      .x = (uint32_t)(batch ? blocks : 0), .y = 1, .z = (uint32_t)batch, .block = KR_MAMBA3_THREADS, .stream = stream};
}

int32_t kr_mamba3_launch(const krait_ctx *ctx, uint64_t tier, const kr_kernel kernels[3], int type, const kr_grid *grid,
                         const void *params, size_t bytes) {
  return grid->x ? kr_cuda_launch(ctx->cuda, tier, &kernels[type], grid, params, bytes) : KRAIT_OK;
}

int32_t kr_mamba3_run_rows(const krait_ctx *ctx, uint64_t tier, int type, const kr_mamba3_params *p, void *stream) {
  const int64_t sequences = p->cu_seqlens.data ? p->S : p->B, warps = KR_MAMBA3_THREADS / 32,
                groups = (p->H + p->span_heads - 1) / p->span_heads,
                spans = (int64_t)p->n_spans * ((p->M + 31) / 32) * groups,
                part = p->is_plain ? KR_MAMBA3_PLAIN_PART : KR_MAMBA3_CHUNK;
  const kr_grid chunks = kr_mamba3_grid((p->L + part - 1) / part * p->H, p->B, stream),
                turns = kr_mamba3_grid((spans + warps - 1) / warps, p->B, stream),
                heads = kr_mamba3_grid((int64_t)p->B * p->H, 1, stream),
                edges = kr_mamba3_grid(sequences * p->H, 1, stream);
  if (p->n_chunks && p->M) {
    KR_TRY(kr_mamba3_launch(ctx, tier, turns_kernel, type, &turns, p, sizeof *p));
    KR_TRY(kr_mamba3_launch(ctx, tier, carry_kernel, type, &heads, p, sizeof *p));
  }
  const kr_kernel *const rows = p->is_plain    ? plain_rows_kernel[(p->flags & KRAIT_MAMBA3_HALVES) != 0]
                                : p->is_ranked ? ranked_rows_kernel[p->R == 4]
                                               : rows_kernel;
  KR_TRY(kr_mamba3_launch(ctx, tier, rows, type, &chunks, p, sizeof *p));
  return p->is_direct ? KRAIT_OK : kr_mamba3_launch(ctx, tier, edges_kernel, type, &edges, p, sizeof *p);
}

/* ---- the scan ---------------------------------------------------------------------------------------------------- */

typedef struct scan {
  kr_mamba3_inputs in;
  kr_mamba3_params p;
  kr_ssd_args ssd;
  uint64_t at; /* of the SSD's scratch */
} scan;

static scan scan_of(const kr_mamba3_core *core, const kr_mamba3_args *a, char *scratch) {
  scan s = {.in = KR_MAMBA3_INPUTS(a)};
  s.p = kr_mamba3_params_of(&s.in, kr_has(&a->final_states));
  s.p.out = KR_MAMBA3_TIME(a, out), s.p.final_angles = a->final_angles, s.p.final_states = a->final_states;
  s.p.final_B = a->final_B, s.p.final_x = a->final_x;
  kr_mamba3_be_plain(&s.p, kr_mamba3_row_type(core, &s.in));
  if (!kr_mamba3_takes_vectors(&s.p.out, kr_mamba3_row_type(core, &s.in))) s.p.is_plain = s.p.is_ranked_output = 0;
  s.at = kr_mamba3_place(&s.p, scratch, kr_mamba3_row_type(core, &s.in));
  s.ssd = kr_mamba3_ssd(core, &s.in, &s.p, &a->call, scratch + s.at);
  s.ssd.out = kr_mamba3_rows_of(&s.p, s.p.y, s.p.row_P, kr_mamba3_row_type(core, &s.in));
  if (!s.p.cu_seqlens.data) s.ssd.final_states = a->final_states;
  return s;
}

/* Without rows. */
static int is_walk(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_args *a) {
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  return !kr_has(&a->final_angles) && !kr_has(&a->final_states) && !kr_has(&a->final_B) && !kr_has(&a->final_x) &&
         kr_mamba3_takes_vectors(&a->out, a->x.dtype) && kr_mamba3_walks(ctx, core, &in);
}

static kr_mamba3_walk_params walk_of(const krait_ctx *ctx, const kr_mamba3_args *a, char *scratch, uint64_t *bytes) {
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  kr_mamba3_params p = kr_mamba3_params_of(&in, 0);
  p.out = a->out;
  kr_mamba3_walk_params w = kr_mamba3_walk_of(ctx, &p, scratch, bytes);
  if (kr_has(&a->kept)) kr_mamba3_use_kept(&w, &a->kept);
  return w;
}

/* A call asks for what its gradient takes only where that is left. */
static const char *refuse_kept(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_args *a) {
  const kr_mamba3_inputs in = KR_MAMBA3_INPUTS(a);
  return kr_has(&a->kept) && !(is_walk(ctx, core, a) && kr_mamba3_keeps(ctx, core, &in))
             ? "kept, of which it leaves nothing"
             : NULL;
}

static int32_t run_walk(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_args *a) {
  uint64_t bytes = 0;
  kr_mamba3_walk_params w = walk_of(ctx, a, a->call.scratch, &bytes);
  KR_TRY(kr_mamba3_launch_packets(ctx, core, &w, 0, a->x.dtype, a->call.stream));
  KR_TRY(kr_mamba3_launch_walk(ctx, &w, &(kr_view){.data = NULL}, a->x.dtype, a->call.stream));
  return kr_mamba3_walk_again(ctx, &w, a->call.stream);
}

static const char *refuse_mamba3_scan(const krait_ctx *ctx, const void *args, int which) {
  const kr_mamba3_core *const core = kr_mamba3_core_of(which);
  const scan s = scan_of(core, args, kr_mamba3_nowhere());
  const char *why = kr_mamba3_refuse(core, &s.in);
  if (!why) why = refuse_kept(ctx, core, args);
  return why ? why : core->ssd.refuse(ctx, &s.ssd);
}

static uint64_t scan_scratch(const krait_ctx *ctx, const void *args, int which) {
  const kr_mamba3_core *const core = kr_mamba3_core_of(which);
  if (is_walk(ctx, core, args)) {
    uint64_t bytes = 0;
    walk_of(ctx, args, kr_mamba3_nowhere(), &bytes);
    return bytes;
  }
  const scan s = scan_of(core, args, kr_mamba3_nowhere());
  return s.at + core->ssd.scratch_bytes(ctx, &s.ssd);
}

static int32_t run_mamba3_scan(const krait_ctx *ctx, const void *args, int which) {
  const kr_mamba3_args *a = args;
  const kr_mamba3_core *const core = kr_mamba3_core_of(which);
  if (is_walk(ctx, core, a)) return run_walk(ctx, core, a);
  const scan s = scan_of(core, a, a->call.scratch);
  const int type = kr_mamba3_row_type(core, &s.in);
  const kr_grid chunks = kr_mamba3_grid((int64_t)s.p.n_chunks * s.p.H, s.p.B, a->call.stream),
                sequences = kr_mamba3_grid((int64_t)s.p.S * s.p.H, 1, a->call.stream);
  KR_TRY(kr_mamba3_run_rows(ctx, core->tier, type, &s.p, a->call.stream));
  if (s.p.n_rows && s.p.B) KR_TRY(core->ssd.run(ctx, &s.ssd));
  const kr_kernel *const finish = s.p.is_plain           ? plain_finish_kernel
                                  : s.p.is_ranked_output ? ranked_finish_kernel[s.p.R == 4]
                                                         : finish_kernel[s.p.P > 64];
  KR_TRY(kr_mamba3_launch(ctx, core->tier, finish, type, &chunks, &s.p, sizeof s.p));
  if (!s.p.cu_seqlens.data || !s.p.final_states.data) return KRAIT_OK;
  return kr_mamba3_launch(ctx, core->tier, ends_kernel, type, &sequences, &s.p, sizeof s.p);
}

#define ROW(name, which)                                                                                  \
  const char *kr_mamba3_##name##_refuse(const krait_ctx *ctx, const void *args) {                         \
    return refuse_mamba3_scan(ctx, args, which);                                                                 \
  }                                                                                                       \
  int32_t kr_mamba3_##name(const krait_ctx *ctx, const void *args) { return run_mamba3_scan(ctx, args, which); } \
  uint64_t kr_mamba3_##name##_scratch(const krait_ctx *ctx, const void *args) { return scan_scratch(ctx, args, which); }
ROW(hopper, KR_MAMBA3_HOPPER)
ROW(chunks, KR_MAMBA3_CHUNKS)
ROW(turing, KR_MAMBA3_TURING)
ROW(tf32, KR_MAMBA3_CHUNKS_TF32)
ROW(parts, KR_MAMBA3_PARTS)
ROW(tiles, KR_MAMBA3_TILES)
ROW(tokens, KR_MAMBA3_TOKENS)
