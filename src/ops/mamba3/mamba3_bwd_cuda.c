/* mamba3_bwd_cuda.c: the gradient of Mamba 3's scan on a GPU: rows for the SSD, y if a gate, norm or sum over ranks
 * needs it, dy, an implementation of the SSD's gradient, and what goes back from there. */
#include "mamba3_host.h"
#include "mamba3_impls.h"
#include "mamba3_inner_params.h"
#include "op_list.h"
#include "ssd/ssd_hopper_host.h"
#include "status.h"

static const kr_kernel leave_kernel[2][3] = {KR_BY_TYPE("mamba3_bwd", "kr_mamba3_leave_64"),
                                             KR_BY_TYPE("mamba3_bwd", "kr_mamba3_leave_256")},
                       far_kernel[] = KR_BY_TYPE("mamba3_bwd", "kr_mamba3_far"),
                       inputs_kernel[2][3] = {KR_BY_TYPE("mamba3_bwd", "kr_mamba3_inputs_64"),
                                              KR_BY_TYPE("mamba3_bwd", "kr_mamba3_inputs_256")},
                       matrices_kernel[] = KR_BY_TYPE("mamba3_bwd", "kr_mamba3_matrices"),
                       plain_leave_kernel[] = KR_BY_TYPE("mamba3_plain", "kr_mamba3_plain_leave"),
                       plain_inputs_kernel[] = KR_BY_TYPE("mamba3_plain", "kr_mamba3_plain_inputs"),
                       plain_matrices_kernel[2][3] = {KR_BY_TYPE("mamba3_plain", "kr_mamba3_plain_matrices"),
                                                      KR_BY_TYPE("mamba3_plain", "kr_mamba3_plain_matrices_halves")},
                       ranked_leave_kernel[2][3] = KR_MAMBA3_BY_RANKS("kr_mamba3_leave"),
                       ranked_inputs_kernel[2][3] = KR_MAMBA3_BY_RANKS("kr_mamba3_inputs"),
                       ranked_matrices_kernel[2][3] = KR_MAMBA3_BY_RANKS("kr_mamba3_matrices"),
                       sums_kernel[] = KR_BY_TYPE("mamba3_bwd", "kr_mamba3_sums"),
                       later_kernel[] = KR_BY_TYPE("mamba3_bwd", "kr_mamba3_later"),
                       crossing_kernel[3] = {{NULL, NULL},
                                             {"mamba3_crossing_f16", "kr_mamba3_crossing"},
                                             {"mamba3_crossing_bf16", "kr_mamba3_crossing"}},
                       steps_kernel[] = KR_BY_TYPE("mamba3_bwd", "kr_mamba3_steps"),
                       initial_kernel[] = KR_BY_TYPE("mamba3_bwd", "kr_mamba3_initial"),
                       add_kernel[] = KR_BY_TYPE("mamba3_bwd", "kr_mamba3_add");

static const kr_kernel inner_kernel[3] = {{NULL, NULL},
                                          {"mamba3_inner_f16", "kr_mamba3_inner"},
                                          {"mamba3_inner_bf16", "kr_mamba3_inner"}},
                       inner_rows_kernel[3] = {{NULL, NULL},
                                               {"mamba3_inner_f16", "kr_mamba3_inner_rows"},
                                               {"mamba3_inner_bf16", "kr_mamba3_inner_rows"}},
                       inner_again_kernel[3] = {{NULL, NULL},
                                                {"mamba3_inner_f16", "kr_mamba3_inner_again"},
                                                {"mamba3_inner_bf16", "kr_mamba3_inner_again"}};

/* p: the forward call of the rows is p.f. */
typedef struct gradient {
  kr_mamba3_inputs in;
  kr_mamba3_bwd_params p;
  kr_ssd_args ssd;
  kr_ssd_bwd_args ssd_bwd;
  kr_mamba3_walk_params walk; /* of a walked call */
  int has_kept;               /* states, output before the gate and so on are those of the forward call */
  kr_mamba3_inner_params *inner; /* or absent: chunks by mamba3_inner.cu; set when the SSD's gradient runs */
  uint64_t at; /* of the SSD's scratch */
  int type, which;
} gradient;

static void view_tensors(kr_mamba3_bwd_params *p, const kr_mamba3_bwd_args *a) {
  p->dout = KR_MAMBA3_TIME(a, dout), p->dx = KR_MAMBA3_TIME(a, dx), p->dlog_decay = KR_MAMBA3_TIME(a, dlog_decay);
  p->ddt = KR_MAMBA3_TIME(a, ddt), p->dtrap = KR_MAMBA3_TIME(a, dtrap), p->dB = KR_MAMBA3_TIME(a, dB);
  p->dC = KR_MAMBA3_TIME(a, dC), p->dangles = KR_MAMBA3_TIME(a, dangles), p->dz = KR_MAMBA3_TIME(a, dz);
  p->dfinal_angles = a->dfinal_angles, p->dfinal_states = a->dfinal_states, p->dfinal_B = a->dfinal_B;
  p->dfinal_x = a->dfinal_x, p->dB_bias = a->dB_bias, p->dC_bias = a->dC_bias, p->dDvec = a->dDvec;
  p->dmimo_x = a->dmimo_x, p->dmimo_z = a->dmimo_z, p->dmimo_o = a->dmimo_o, p->dnorm_weight = a->dnorm_weight;
  p->dinitial_angles = a->dinitial_angles, p->dinitial_states = a->dinitial_states, p->dinitial_B = a->dinitial_B;
  p->dinitial_x = a->dinitial_x;
  p->shares_angles = kr_has(&p->dangles) && p->dangles.stride[2] == 0;
  p->needs_y = kr_has(&a->z) || kr_has(&a->norm_weight) || kr_has(&a->mimo_o);
}

/* Whether dq and dk stay in the kernel that makes them (mamba3_inner.cu). */
static int has_inner(const krait_ctx *ctx, const kr_mamba3_bwd_params *p) {
  const kr_mamba3_params *const f = &p->f;
  return f->is_walked && f->N > 64 && f->M > 0 && f->M <= KR_MAMBA3_INNER_M && !kr_has(&p->dfinal_angles) &&
         !kr_has(&p->dfinal_states) && !kr_has(&p->dfinal_B) &&
         kr_cuda_info(ctx->cuda)->shared_bytes >= KR_MAMBA3_INNER_SHARED;
}

/* Whether it takes what the forward call kept, whose conditions are kr_mamba3_keeps'. */
static int takes_kept(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_inputs *in,
                      const kr_mamba3_bwd_params *p, const kr_mamba3_bwd_args *a) {
  return kr_has(&a->kept) && has_inner(ctx, p) && kr_mamba3_keeps(ctx, core, in) &&
         kr_ssd_boxes_take(&p->dout, in->B, in->L, in->H) &&
         (!kr_has(&p->dz) || kr_ssd_boxes_take(&p->dz, in->B, in->L, in->H));
}

/* Whether the call is plain or direct, or its ranks are in vectors; its tiles then. */
static void be_plain(const krait_ctx *ctx, const kr_mamba3_core *core, const kr_mamba3_inputs *in,
                     kr_mamba3_bwd_params *p, int type) {
  kr_mamba3_params *const f = &p->f;
  const kr_view *const rows[] = {&p->dout, &p->dx, &p->dz};
  kr_mamba3_be_plain(f, type);
  if (!kr_mamba3_takes_vectors(&p->dB, type) || !kr_mamba3_takes_vectors(&p->dC, type))
    f->is_plain = f->is_ranked = f->is_ranked_output = 0;
  for (int i = 0; i < 3; i++)
    if (!kr_mamba3_takes_vectors(rows[i], type)) f->is_plain = f->is_ranked_output = 0;
  const int64_t tile = 8 * KR_MAMBA3_THREADS / f->N;
  if (f->is_plain || f->is_ranked) f->n_tiles = (int32_t)((f->L + tile - 1) / tile);
  if (kr_has(&p->dout) && !kr_has(&p->dfinal_x)) kr_mamba3_be_direct(core, f);
  f->is_walked = f->is_direct && kr_has(&f->z) && kr_mamba3_walks(ctx, core, in);
  if (has_inner(ctx, p)) f->n_tiles = f->n_chunks * (KR_MAMBA3_CHUNK / KR_MAMBA3_INNER_TOKENS);
}

static uint64_t place_gradient(kr_mamba3_bwd_params *p, char *scratch, int type) {
  kr_mamba3_params *const f = &p->f;
  const int64_t units = (int64_t)f->B * f->H, rows = units * f->n_rows, tokens = units * f->L;
  const uint64_t bytes = krait_dtype_bytes(type), each = sizeof(float);
  uint64_t at = kr_mamba3_place(f, scratch, type);
  p->n_factors = (int32_t)((int64_t)f->B * f->n_chunks + (f->cu_seqlens.data ? f->S : f->B));
  p->n_parts = (3 * f->R + 1) * f->P + 1;
  p->dq = kr_mamba3_take(scratch, &at, rows * f->row_N, each);
  p->dk = kr_mamba3_take(scratch, &at, rows * f->row_N, each);
  p->rows_dx = kr_mamba3_take(scratch, &at, f->is_direct ? 0 : rows * f->row_P, bytes);
  p->dweight = kr_mamba3_take(scratch, &at, rows, each), p->ddecay = kr_mamba3_take(scratch, &at, rows, each);
  p->products = kr_mamba3_take(scratch, &at, tokens * f->R * f->R, each);
  p->psi = kr_mamba3_take(scratch, &at, tokens * f->M, each);
  p->later = kr_mamba3_take(scratch, &at, units * f->n_spans * f->M, each);
  p->slopes = kr_mamba3_take(scratch, &at, tokens, each);
  p->crossing = p->n_bounds ? kr_mamba3_take(scratch, &at, units * p->n_bounds * f->M, each) : NULL;
  p->biases = kr_mamba3_take(scratch, &at, (int64_t)f->B * f->n_tiles * f->H * 2 * f->R * f->N, each);
  p->factors = kr_mamba3_take(scratch, &at, (int64_t)p->n_factors * f->H * p->n_parts, each);
  return at;
}

/* The SSD's gradient, of y's rows after they have become dy. */
static kr_ssd_bwd_args gradient_of_ssd(const gradient *g, const kr_mamba3_bwd_args *a) {
  const kr_mamba3_params *const f = &g->p.f;
  kr_ssd_bwd_args s = {.B = g->ssd.B, .L = g->ssd.L, .H = g->ssd.H, .P = g->ssd.P, .N = g->ssd.N, .G = g->ssd.G};
  s.call = g->ssd.call, s.call.size = sizeof s;
  s.x = g->ssd.x, s.dt = g->ssd.dt, s.log_decay = g->ssd.log_decay, s.Bmat = g->ssd.Bmat, s.Cmat = g->ssd.Cmat;
  s.initial_states = g->ssd.initial_states, s.seq_idx = g->ssd.seq_idx;
  if (f->is_direct) {
    s.dout = a->dout, s.dx = a->dx, s.z = g->ssd.z, s.dz = a->dz;
    s.Dvec = g->ssd.Dvec, s.dDvec = kr_mamba3_values_of(f, g->p.products);
  } else {
    s.dout = g->ssd.out, s.dx = kr_mamba3_rows_of(f, g->p.rows_dx, f->row_P, g->type);
  }
  s.dB = kr_mamba3_rows_of(f, g->p.dk, f->row_N, KRAIT_F32), s.dC = kr_mamba3_rows_of(f, g->p.dq, f->row_N, KRAIT_F32);
  s.ddt = kr_mamba3_rows_of(f, g->p.dweight, 1, KRAIT_F32);
  s.dlog_decay = kr_mamba3_rows_of(f, g->p.ddecay, 1, KRAIT_F32);
  if (f->cu_seqlens.data) return s;
  s.dfinal_states = a->dfinal_states, s.dinitial_states = a->dinitial_states;
  return s;
}

/* How many bounds' sums of angles' shares states give. */
static int32_t count_bounds(const kr_mamba3_core *core, const kr_mamba3_bwd_params *p) {
  const kr_mamba3_params *const f = &p->f;
  const int64_t blocks = f->n_rows / f->ranks;
  return core->ssd_bwd_made && f->N <= KR_MAMBA3_WALK_N && blocks ? (int32_t)((blocks - 1) >> p->bound_shift) : 0;
}

/* Whether the scan that makes y leaves the states before chunks, too. */
static int leaves_states(const gradient *g) {
  const kr_mamba3_params *const f = &g->p.f;
  return g->which == KR_MAMBA3_HOPPER && g->p.needs_y && !f->is_direct && f->n_rows && f->B && f->N <= KR_MAMBA3_WALK_N;
}

static gradient gradient_of(const krait_ctx *ctx, int which, const kr_mamba3_bwd_args *a, char *scratch) {
  const kr_mamba3_core *const core = kr_mamba3_core_of(which);
  gradient g = {.in = KR_MAMBA3_INPUTS(a), .which = which};
  g.type = kr_mamba3_row_type(core, &g.in);
  g.p.f = kr_mamba3_params_of(&g.in, kr_has(&a->dfinal_states));
  view_tensors(&g.p, a);
  be_plain(ctx, core, &g.in, &g.p, g.type);
  g.p.bound_shift = has_inner(ctx, &g.p) ? 8 : 6; /* chunks or more */
  g.p.n_bounds = count_bounds(core, &g.p);
  g.at = place_gradient(&g.p, scratch, g.type);
  if (g.p.f.is_walked) {
    g.walk = kr_mamba3_walk_of(ctx, &g.p.f, scratch, &g.at);
    g.has_kept = takes_kept(ctx, core, &g.in, &g.p, a);
    if (g.has_kept) kr_mamba3_use_kept(&g.walk, &a->kept);
    g.p.f.packets = g.walk.f.packets, g.p.f.packet_bytes = g.walk.f.packet_bytes, g.p.f.dots = g.walk.f.dots;
  }
  g.ssd = kr_mamba3_ssd(core, &g.in, &g.p.f, &a->call, scratch + g.at);
  if (!g.p.f.is_direct) g.ssd.out = kr_mamba3_rows_of(&g.p.f, g.p.f.y, g.p.f.row_P, g.type);
  g.ssd_bwd = gradient_of_ssd(&g, a);
  if (leaves_states(&g)) g.ssd.call.scratch = scratch + g.at + core->ssd_bwd.scratch_bytes(ctx, &g.ssd_bwd);
  return g;
}

static const char *refuse_gradient(const krait_ctx *ctx, const void *args, int which) {
  const kr_mamba3_core *const core = kr_mamba3_core_of(which);
  const gradient g = gradient_of(ctx, which, args, kr_mamba3_nowhere());
  const char *why = kr_mamba3_refuse(core, &g.in);
  if (!why && !g.p.f.is_direct) why = core->ssd.refuse(ctx, &g.ssd);
  return why ? why : core->ssd_bwd.refuse(ctx, &g.ssd_bwd);
}

static uint64_t gradient_scratch(const krait_ctx *ctx, const void *args, int which) {
  const kr_mamba3_core *const core = kr_mamba3_core_of(which);
  const gradient g = gradient_of(ctx, which, args, kr_mamba3_nowhere());
  const uint64_t forward = g.p.f.is_direct ? 0 : core->ssd.scratch_bytes(ctx, &g.ssd),
                 back = core->ssd_bwd.scratch_bytes(ctx, &g.ssd_bwd);
  return g.at + (leaves_states(&g) ? forward + back : forward > back ? forward : back);
}

/* dy, dz, rows and states of a walked call. */
static int32_t make_walked(const krait_ctx *ctx, const void *user, const kr_ssd_params *forward, void *S) {
  const gradient *const g = user;
  kr_mamba3_walk_params w = g->walk;
  if (g->has_kept) return KRAIT_OK; /* the walk back makes dy and dz */
  w.f.out = (kr_view){.data = forward->out.data,
                      .dtype = g->type,
                      .stride = {forward->out.b, forward->out.t, forward->out.h, forward->out.n}};
  w.dz = g->p.dz, w.keeps_rows = !g->inner;
  w.S = S, w.S_bytes = KR_SSD_HOPPER_TILE * (w.f.N > 64 ? 2 : 1);
  return kr_mamba3_launch_walk(ctx, &w, &g->p.dout, g->type, g->ssd_bwd.call.stream);
}

/* Blocks share a group's heads only if one block per chunk and group does not fill the device. */
static int32_t splits_of_inner(const krait_ctx *ctx, const kr_mamba3_params *f) {
  const int64_t blocks = (int64_t)f->B * f->G * f->n_chunks, heads = f->H / f->G, most = heads < 16 ? heads : 16;
  int64_t n = kr_cuda_info(ctx->cuda)->n_multiprocessors / blocks;
  n = n < 1 ? 1 : n > most ? most : n;
  const int64_t per_split = (heads + n - 1) / n;
  return (int32_t)((heads + per_split - 1) / per_split);
}

static int32_t make_inner_maps(const krait_ctx *ctx, const kr_mamba3_params *f, kr_mamba3_inner_params *w) {
  const kr_ssd_tensor B = kr_ssd_sequence(&f->Bmat, 0, f->L), C = kr_ssd_sequence(&f->Cmat, 0, f->L);
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver encodes tensor maps only in its current context */
  int32_t status = kr_ssd_hopper_map(ctx, &w->x, &w->q.f.x, f->B, f->L, f->H, f->P);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &w->dy, &w->q.f.dout, f->B, f->L, f->H, f->P);
  if (status == KRAIT_OK && w->q.dx.data) status = kr_ssd_hopper_map(ctx, &w->dx, &w->q.dx, f->B, f->L, f->H, f->P);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &w->Bmat, &B, f->B, f->L, f->G, f->N);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &w->Cmat, &C, f->B, f->L, f->G, f->N);
  kr_cuda_end(ctx->cuda);
  return status;
}

/* What heads in which NaN or infinity was met need to be computed again (rows), or leave then. */
static int32_t launch_inner_again(const krait_ctx *ctx, const gradient *g, const kr_kernel kernels[3]) {
  const kr_mamba3_params *const f = &g->p.f;
  const int32_t warps = KR_MAMBA3_THREADS / 32;
  const kr_grid grid = {.x = (uint32_t)((f->n_tiles + warps - 1) / warps),
                        .y = (uint32_t)f->G,
                        .z = (uint32_t)f->B,
                        .block = KR_MAMBA3_THREADS,
                        .stream = g->ssd_bwd.call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &kernels[g->type], &grid, g->inner, sizeof *g->inner);
}

/* The gradients of the states after chunks; of kept tensors dy and dz, too. */
static int32_t walk_back(const krait_ctx *ctx, const gradient *g, const kr_ssd_bwd_params *p) {
  const kr_ssd_tensor *const d = &p->f.dout;
  const kr_view dy = {.data = d->data, .dtype = g->type, .stride = {d->b, d->t, d->h, d->n}};
  kr_mamba3_walk_params w = g->walk;
  w.f.x = g->has_kept ? g->p.dout : dy, w.dz = g->p.dz;
  if (!g->has_kept) w.f.z.data = w.dz.data = NULL;
  w.S = p->M, w.S_bytes = 2 * KR_SSD_HOPPER_TILE, w.spoilt = p->f.spoilt;
  return kr_mamba3_launch_walk_back(ctx, &w, g->has_kept ? &dy : &w.dz, g->type, g->ssd_bwd.call.stream);
}

/* The SSD's gradient is one of every head's keys and queries; here B and C have groups again. */
static int32_t run_inner(const krait_ctx *ctx, const void *user, kr_ssd_bwd_params *p) {
  const gradient *const g = user;
  const kr_mamba3_params *const f = &g->p.f;
  p->f.heads = f->H / f->G, p->n_splits = splits_of_inner(ctx, f);
  p->dB = kr_ssd_sequence(&g->p.dB, 0, f->L), p->dC = kr_ssd_sequence(&g->p.dC, 0, f->L);
  p->sum_B.b = p->sum_C.b = f->L * f->G * f->N, p->sum_B.t = p->sum_C.t = (int64_t)f->G * f->N;
  p->sum_B.h = p->sum_C.h = f->N, p->leaves_sums = p->n_splits > 1; /* in dk and dq, which are needed later */
  *g->inner = (kr_mamba3_inner_params){.q = *p,
                                       .B = f->Bmat,
                                       .C = f->Cmat,
                                       .B_bias = f->B_bias,
                                       .C_bias = f->C_bias,
                                       .packets = f->packets,
                                       .gamma = f->gamma,
                                       .products = g->p.products,
                                       .dq = g->p.dq,
                                       .dk = g->p.dk,
                                       .rows_q = f->q,
                                       .rows_k = f->k,
                                       .psi = g->p.psi,
                                       .later = g->p.later,
                                       .factors = kr_has(&g->p.dDvec) ? g->p.factors : NULL,
                                       .n_parts = g->p.n_parts,
                                       .biases = g->p.biases,
                                       .M = f->M,
                                       .packet_bytes = f->packet_bytes};
  KR_TRY(walk_back(ctx, g, p));
  KR_TRY(make_inner_maps(ctx, f, g->inner));
  const kr_grid grid = {.x = (uint32_t)f->n_chunks,
                        .y = (uint32_t)(f->G * p->n_splits),
                        .z = (uint32_t)f->B,
                        .block = KR_MAMBA3_INNER_THREADS,
                        .shared_bytes = KR_MAMBA3_INNER_SHARED,
                        .is_pdl = 1,
                        .stream = g->ssd_bwd.call.stream};
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &inner_kernel[g->type], &grid, g->inner, sizeof *g->inner));
  return launch_inner_again(ctx, g, inner_rows_kernel);
}

static int32_t leave_dy(const krait_ctx *ctx, const kr_mamba3_core *core, const gradient *g, void *stream) {
  const kr_mamba3_bwd_params *const p = &g->p;
  const kr_grid chunks = kr_mamba3_grid((int64_t)p->f.n_chunks * p->f.H, p->f.B, stream),
                sequences = kr_mamba3_grid((int64_t)(p->f.cu_seqlens.data ? p->f.S : p->f.B) * p->f.H, 1, stream);
  const kr_kernel *const leave = p->f.is_plain           ? plain_leave_kernel
                                 : p->f.is_ranked_output ? ranked_leave_kernel[p->f.R == 4]
                                                         : leave_kernel[p->f.P > 64];
  KR_TRY(kr_mamba3_launch(ctx, core->tier, leave, g->type, &chunks, p, sizeof *p));
  return kr_mamba3_launch(ctx, core->tier, far_kernel, g->type, &sequences, p, sizeof *p);
}

/* dy in place of y, and states. */
static int32_t make_dy(const krait_ctx *ctx, const void *user, const kr_ssd_params *forward, void *S) {
  const gradient *const g = user;
  (void)forward;
  KR_TRY(kr_ssd_hopper_leaving(ctx, &g->ssd, S));
  return leave_dy(ctx, kr_mamba3_core_of(g->which), g, g->ssd_bwd.call.stream);
}

static int32_t sum_crossing(const krait_ctx *ctx, const void *user, const kr_ssd_bwd_params *q) {
  const gradient *const g = user;
  const kr_mamba3_core *const core = kr_mamba3_core_of(g->which);
  kr_mamba3_bwd_params p = g->p;
  const kr_grid bounds = kr_mamba3_grid((int64_t)p.n_bounds * p.f.H, p.f.B, g->ssd_bwd.call.stream);
  p.S = q->S, p.M_states = q->M, p.spoilt = q->f.spoilt, p.has_warpgroup_tiles = g->which == KR_MAMBA3_HOPPER;
  return kr_mamba3_launch(ctx, core->tier, crossing_kernel, g->type, &bounds, &p, sizeof p);
}

static int32_t run_ssd_bwd_core(const krait_ctx *ctx, const kr_mamba3_core *core, const gradient *g) {
  if (!g->p.f.B) return KRAIT_OK;
  if (!g->p.f.n_rows || !core->ssd_bwd_made) /* also without tokens: the states' gradients pass */
    return core->ssd_bwd.run(ctx, &g->ssd_bwd);
  const int leaves = leaves_states(g);
  const kr_ssd_maker maker = {.run = leaves ? make_dy : g->p.f.is_walked ? make_walked : NULL,
                              .user = g,
                              .spoilt = leaves ? kr_ssd_hopper_spoilt(ctx, &g->ssd) : g->walk.spoilt,
                              .S = g->has_kept ? g->walk.S : NULL,
                              .run_inner = g->inner ? run_inner : NULL,
                              .take_states = g->p.n_bounds ? sum_crossing : NULL};
  return core->ssd_bwd_made(ctx, &g->ssd_bwd, &maker);
}

/* Rows, and (not of a direct call, or one whose states are left with y) dy in place of y; of a walked call packets. */
static int32_t run_to_dy(const krait_ctx *ctx, const kr_mamba3_core *core, const gradient *g, void *stream) {
  const kr_mamba3_bwd_params *const p = &g->p;
  if (p->f.is_walked) return kr_mamba3_launch_packets(ctx, core, &g->walk, g->has_kept, g->type, stream);
  KR_TRY(kr_mamba3_run_rows(ctx, core->tier, g->type, &p->f, stream));
  if (p->f.is_direct || leaves_states(g)) return KRAIT_OK;
  if (p->needs_y && p->f.n_rows && p->f.B) KR_TRY(core->ssd.run(ctx, &g->ssd));
  return leave_dy(ctx, core, g, stream);
}

static kr_grid threads_of(int64_t n, void *stream) {
  return kr_mamba3_grid((n + KR_MAMBA3_THREADS - 1) / KR_MAMBA3_THREADS, 1, stream);
}

static int32_t run_from_ssd(const krait_ctx *ctx, const kr_mamba3_core *core, const gradient *g, void *stream) {
  const kr_mamba3_bwd_params *const p = &g->p;
  const kr_mamba3_params *const f = &p->f;
  const int are_halves = (f->flags & KRAIT_MAMBA3_HALVES) != 0;
  const kr_kernel *const inputs = f->is_plain           ? plain_inputs_kernel
                                  : f->is_ranked_output ? ranked_inputs_kernel[f->R == 4]
                                                        : inputs_kernel[f->P > 64],
                         *const matrices = f->is_plain    ? plain_matrices_kernel[are_halves]
                                           : f->is_ranked ? ranked_matrices_kernel[f->R == 4]
                                                          : matrices_kernel;
  const int64_t heads = (int64_t)f->B * f->H,
                width = f->is_plain || f->is_ranked ? 1 : (f->N / 2 + KR_MAMBA3_PAIRS - 1) / KR_MAMBA3_PAIRS,
                places = (2 * (int64_t)f->R * f->N + p->n_parts + 31) / 32;
  const kr_grid chunks = kr_mamba3_grid((int64_t)f->n_chunks * f->H, f->B, stream),
                tiles = kr_mamba3_grid((int64_t)f->n_tiles * f->G * width, f->B, stream),
                sequences = kr_mamba3_grid((int64_t)(f->cu_seqlens.data ? f->S : f->B) * f->H, 1, stream),
                sums = threads_of(heads * f->n_spans * f->M, stream), later = kr_mamba3_grid(heads, 1, stream),
                spans = kr_mamba3_grid(f->n_spans, f->B, stream), parameters = kr_mamba3_grid(f->H * places, 1, stream);
  const uint64_t tier = core->tier;
  if (!g->inner && (!f->is_direct || kr_has(&p->dDvec)))
    KR_TRY(kr_mamba3_launch(ctx, tier, inputs, g->type, &chunks, p, sizeof *p));
  if (g->inner)
    KR_TRY(launch_inner_again(ctx, g, inner_again_kernel));
  else
    KR_TRY(kr_mamba3_launch(ctx, tier, matrices, g->type, &tiles, p, sizeof *p));
  if (!g->inner) KR_TRY(kr_mamba3_launch(ctx, tier, sums_kernel, g->type, &sums, p, sizeof *p));
  if (sums.x) KR_TRY(kr_mamba3_launch(ctx, tier, later_kernel, g->type, &later, p, sizeof *p));
  KR_TRY(kr_mamba3_launch(ctx, tier, steps_kernel, g->type, &spans, p, sizeof *p));
  KR_TRY(kr_mamba3_launch(ctx, tier, initial_kernel, g->type, &sequences, p, sizeof *p));
  return kr_mamba3_launch(ctx, tier, add_kernel, g->type, &parameters, p, sizeof *p);
}

static int32_t run_gradient(const krait_ctx *ctx, const void *args, int which) {
  const kr_mamba3_bwd_args *a = args;
  const kr_mamba3_core *const core = kr_mamba3_core_of(which);
  gradient g = gradient_of(ctx, which, a, a->call.scratch);
  kr_mamba3_inner_params inner;
  if (has_inner(ctx, &g.p)) g.inner = &inner;
  KR_TRY(run_to_dy(ctx, core, &g, a->call.stream));
  KR_TRY(run_ssd_bwd_core(ctx, core, &g));
  return run_from_ssd(ctx, core, &g, a->call.stream);
}

#define ROW(name, which)                                                                                          \
  const char *kr_mamba3_bwd_##name##_refuse(const krait_ctx *ctx, const void *args) {                             \
    return refuse_gradient(ctx, args, which);                                                                     \
  }                                                                                                               \
  int32_t kr_mamba3_bwd_##name(const krait_ctx *ctx, const void *args) { return run_gradient(ctx, args, which); } \
  uint64_t kr_mamba3_bwd_##name##_scratch(const krait_ctx *ctx, const void *args) {                               \
    return gradient_scratch(ctx, args, which);                                                                    \
  }
ROW(hopper, KR_MAMBA3_HOPPER)
ROW(chunks, KR_MAMBA3_CHUNKS)
ROW(tf32, KR_MAMBA3_CHUNKS_TF32)
ROW(parts, KR_MAMBA3_PARTS)
ROW(tiles, KR_MAMBA3_TILES)
ROW(tokens, KR_MAMBA3_TOKENS)
