/* ssd_bwd_cuda.c: the SSD's gradient on a GPU: states before every chunk and their gradients after it, then chunk by
 * chunk; reductions over chunks last. Bidirectional calls run twice, the first run leaving its part to the second. */
#include "cuda_impl.h"
#include "op_list.h"
#include "ssd_hopper_bwd_params.h"
#include "ssd_hopper_host.h"
#include "ssd_impls.h"
#include "status.h"

static const kr_kernel walks_s4 = {"ssd_bwd", "kr_ssd_bwd_walks_s4"}, walks_s16 = {"ssd_bwd", "kr_ssd_bwd_walks_s16"};
static const kr_kernel in_chunks = {"ssd_bwd", "kr_ssd_bwd_chunks"}, add_chunks = {"ssd_bwd", "kr_ssd_bwd_add"};
static const kr_kernel only_y_s4 = {"ssd", "kr_ssd_walk_s4"}, only_y_s16 = {"ssd", "kr_ssd_walk_s16"};

/* Scratch layout: byte offsets. */
typedef struct layout {
  uint64_t S, M, sum_B, sum_C, parts, all_dx, all_dd, y, end;
} layout;

static int is_both_for_ssd_bwd_cuda(const kr_ssd_bwd_args *a) { return (a->call.flags & KRAIT_SSD_BOTH) != 0; }
static int64_t chunks_of(const kr_ssd_bwd_args *a) { return (a->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK; }
static uint64_t place_ssd_bwd(uint64_t *end, int64_t floats) {
  const uint64_t at = *end;
  *end += kr_scratch_round((uint64_t)floats * sizeof(float));
  return at;
}

static layout ssd_bwd_cuda_layout_of(const kr_ssd_bwd_args *a) {
  const int64_t states = a->B * a->H * chunks_of(a) * a->P * a->N, matrix = a->B * a->L * a->G * a->N,
                channels = is_both_for_ssd_bwd_cuda(a) ? a->B * a->L * a->H : 0;
  layout l = {.end = 0};
  l.S = place_ssd_bwd(&l.end, states), l.M = place_ssd_bwd(&l.end, states);
  l.sum_B = place_ssd_bwd(&l.end, matrix), l.sum_C = place_ssd_bwd(&l.end, matrix);
  l.parts = place_ssd_bwd(&l.end, a->B * chunks_of(a) * a->H * (a->P + 2));
  l.all_dx = place_ssd_bwd(&l.end, channels * a->P), l.all_dd = place_ssd_bwd(&l.end, channels),
  l.y = place_ssd_bwd(&l.end, kr_has(&a->dz) ? channels * a->P : 0);
  return l;
}

/* Scratch as a (B,L,H,n) tensor in scan order. */
static kr_ssd_tensor floats_at(const kr_ssd_bwd_args *a, uint64_t at, int64_t H, int64_t n, int reverse) {
  const kr_view v = {(char *)a->call.scratch + at, {a->L * H * n, H * n, n, 1}, KRAIT_F32, 0};
  return kr_ssd_sequence(&v, reverse, a->L);
}

static kr_ssd_bwd_params ssd_bwd_plan_of(const kr_ssd_bwd_args *a, int reverse) {
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  const layout l = ssd_bwd_cuda_layout_of(a);
  char *const scratch = a->call.scratch;
  kr_ssd_bwd_params p = {.f = kr_ssd_params_of(&in, reverse), .n_chunks = (int32_t)chunks_of(a)};
  p.f.dout = kr_ssd_sequence(&a->dout, reverse, a->L);
  p.dx = kr_ssd_sequence(&a->dx, reverse, a->L), p.ddt = kr_ssd_sequence(&a->ddt, reverse, a->L);
  p.dlog_decay = kr_ssd_sequence(&a->dlog_decay, reverse, a->L);
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
  const kr_ssd_bwd_args *a = args;
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  (void)ctx;
  if (a->G > 65535) return "more than 65535 groups";
  return kr_ssd_refuse_sizes(&in);
}

uint64_t kr_ssd_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return ssd_bwd_cuda_layout_of(args).end;
}

/* n_ways: 2: the backward scan runs beside the forward one. */
static kr_grid walks(const kr_ssd_params *f, uint32_t n_ways, void *stream) {
  return (kr_grid){.x = (uint32_t)(f->B ? f->H * ((f->P + 15) / 16) : 0),
                   .y = n_ways,
                   .z = (uint32_t)f->B,
                   .block = KR_SSD_THREADS,
                   .stream = stream};
}

/* Everything but the reductions over chunks. Of spoilt groups alone, which are few or none, a block takes eight chunks:
 * with a group for each head most of the time would be that of blocks which leave at once. */
static int32_t run_tokens(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p) {
  const int narrow = a->N <= 128, each = p->f.spoilt ? 8 : 1;
  const kr_grid walk = walks(&p->f, 2, a->call.stream);
  const kr_grid chunk = {.x = (uint32_t)(a->B ? (p->n_chunks + each - 1) / each : 0),
                         .y = (uint32_t)a->G,
                         .z = (uint32_t)a->B,
                         .block = KR_SSD_BWD_THREADS,
                         .stream = a->call.stream};
  if (walk.x)
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, narrow ? &walks_s4 : &walks_s16, &walk, p, sizeof *p));
  return chunk.x ? kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &in_chunks, &chunk, p, sizeof *p) : KRAIT_OK;
}

static int32_t run_ssd_bwd_direction(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p) {
  const kr_grid heads = {.x = (uint32_t)a->H, .y = 1, .z = 1, .block = KR_SSD_BWD_ADDERS, .stream = a->call.stream};
  KR_TRY(run_tokens(ctx, a, p));
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &add_chunks, &heads, p, sizeof *p);
}

static int32_t ssd_bwd_cuda_both_directions(const krait_ctx *ctx, const kr_ssd_bwd_args *a) {
  kr_ssd_bwd_params forwards = ssd_bwd_plan_of(a, 0), backwards = ssd_bwd_plan_of(a, 1);
  backwards.f.A = kr_ssd_heads(&a->A_reverse, 0), backwards.dA = kr_ssd_heads(&a->dA_reverse, 0);
  forwards.keeps = 1, backwards.adds = 1;
  forwards.dD = kr_ssd_heads(&a->dDvec, 1), backwards.dbias = kr_ssd_heads(&a->ddt_bias, 0);
  if (kr_has(&a->dz) && a->B) {
    kr_ssd_params y = backwards.f;
    const kr_grid walk = walks(&y, 1, a->call.stream);
    y.add = forwards.f.add = (float *)((char *)a->call.scratch + ssd_bwd_cuda_layout_of(a).y), y.keep_y = 1;
    forwards.f.dz = kr_ssd_sequence(&a->dz, 0, a->L);
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, a->N <= 128 ? &only_y_s4 : &only_y_s16, &walk, &y, sizeof y));
  }
  KR_TRY(run_ssd_bwd_direction(ctx, a, &forwards));
  return run_ssd_bwd_direction(ctx, a, &backwards);
}

static int32_t run_ssd_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_ssd_bwd_args *a = args;
  (void)tier; /* one module serves all tiers */
  if (is_both_for_ssd_bwd_cuda(a)) return ssd_bwd_cuda_both_directions(ctx, a);
  kr_ssd_bwd_params p = ssd_bwd_plan_of(a, (a->call.flags & KRAIT_SSD_REVERSE) != 0);
  p.dD = kr_ssd_heads(&a->dDvec, 1), p.dbias = kr_ssd_heads(&a->ddt_bias, 0);
  p.f.dz = kr_ssd_sequence(&a->dz, (a->call.flags & KRAIT_SSD_REVERSE) != 0, a->L);
  return run_ssd_bwd_direction(ctx, a, &p);
}

KR_CUDA_TIERS(ssd_bwd, run_ssd_bwd)

/* ---- on tensor cores ---- */

#define CHUNKS(name) {{NULL, NULL}, {"ssd_bwd_chunks_f16", name}, {"ssd_bwd_chunks_bf16", name}}
static const kr_kernel states_kernel[2][3] = {CHUNKS("kr_ssd_bwd_states_n64"), CHUNKS("kr_ssd_bwd_states_n128")};
static const kr_kernel inner_kernel[2][3] = {CHUNKS("kr_ssd_bwd_inner_n64"), CHUNKS("kr_ssd_bwd_inner_n128")};
static const kr_kernel sum_kernel[3] = CHUNKS("kr_ssd_bwd_sum"),
                       gate_kernel[3] = {{"ssd_bwd_chunks_f32", "kr_ssd_bwd_gate"},
                                         {"ssd_bwd_chunks_f16", "kr_ssd_bwd_gate"},
                                         {"ssd_bwd_chunks_bf16", "kr_ssd_bwd_gate"}},
                       finish_kernel[3] = {{"ssd_bwd_chunks_f32", "kr_ssd_bwd_finish"},
                                           {"ssd_bwd_chunks_f16", "kr_ssd_bwd_finish"},
                                           {"ssd_bwd_chunks_bf16", "kr_ssd_bwd_finish"}};

static int64_t ssd_bwd_columns_of(const kr_ssd_bwd_args *a) { return a->N <= 64 ? 64 : 128; }
static uint32_t inner_shared_bytes(const kr_ssd_bwd_args *a, int n_stages) {
  return (uint32_t)KR_SSD_BWD_INNER_SHARED(ssd_bwd_columns_of(a), n_stages);
}

/* Whether dB and dC are to be float32 beside 16-bit inputs: of callers that work on with them. */
static int has_wide_matrices(const kr_ssd_bwd_args *a) {
  return a->x.dtype != KRAIT_F32 && kr_has(&a->dB) && kr_has(&a->dC) && a->dB.dtype == KRAIT_F32;
}

static const char *refuse_tensors(const kr_ssd_bwd_args *a) {
  const kr_view *const rows[] = {&a->x, &a->dout, &a->z, &a->Bmat, &a->Cmat, &a->dx, &a->dB, &a->dC};
  const int n_inputs = 6, wide = has_wide_matrices(a);
  for (int i = 0; i < 8; i++) {
    const int32_t dtype = wide && i >= n_inputs ? KRAIT_F32 : a->x.dtype;
    if (kr_has(rows[i]) && rows[i]->dtype != dtype) return "z, B or C of another type than x";
    if (!kr_ssd_is_aligned(rows[i])) return "rows that are not aligned to 16 bytes";
  }
  return NULL;
}

/* What no chunked implementation takes. */
static const char *refuse_ssd_bwd_modes(const krait_ctx *ctx, const kr_ssd_bwd_args *a) {
  if (kr_ssd_bwd_cuda_refuse(ctx, a)) return kr_ssd_bwd_cuda_refuse(ctx, a);
  if (a->dt_min < 0) return "a negative dt_min";
  if (KR_SSD_LAST_RANK(a->call.flags) >= KR_SSD_MOST_RANKS) return "more than eight ranks";
  if (is_both_for_ssd_bwd_cuda(a)) return "both directions";
  if (a->L == 0 || a->B == 0) return "nothing to do";
  return a->G > 4096 || a->H > 65535 ? "more than 4096 groups or 65535 heads" : NULL;
}

/* shared_bytes: what the largest of the kernels needs. */
static const char *refuse_chunks(const krait_ctx *ctx, const kr_ssd_bwd_args *a, uint32_t shared_bytes) {
  if (refuse_ssd_bwd_modes(ctx, a)) return refuse_ssd_bwd_modes(ctx, a);
  if (refuse_tensors(a)) return refuse_tensors(a);
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)shared_bytes ? "too little shared memory" : NULL;
}

const char *kr_ssd_bwd_chunks_refuse(const krait_ctx *ctx, const void *args) {
  const kr_ssd_bwd_args *a = args;
  return a->x.dtype == KRAIT_F32 ? "float32" : refuse_chunks(ctx, a, inner_shared_bytes(a, 1));
}

/* Blocks share a group's heads only if one block per group does not fill the device, whose multiprocessors take
 * `at_once` of them. */
static int32_t splits_for(const krait_ctx *ctx, const kr_ssd_bwd_args *a, int at_once) {
  const int64_t blocks = a->B * a->G * chunks_of(a), most = a->H / a->G < 16 ? a->H / a->G : 16;
  int64_t n = at_once * kr_cuda_info(ctx->cuda)->n_multiprocessors / (blocks ? blocks : 1);
  n = n < 1 ? 1 : n > most ? most : n;
  const int64_t per_split = (a->H / a->G + n - 1) / n;
  return (int32_t)((a->H / a->G + per_split - 1) / per_split);
}
static int32_t splits_of(const krait_ctx *ctx, const kr_ssd_bwd_args *a) { return splits_for(ctx, a, 1); }

/* products, W: of float32 alone. */
typedef struct chunks_layout {
  uint64_t S, M, S_scale, M_scale, sum_B, sum_C, parts, steps, tokens, spoilt, y, products, W, end;
} chunks_layout;

static chunks_layout lay_out_chunks(const krait_ctx *ctx, const kr_ssd_bwd_args *a) {
  const int64_t chunks = a->B * a->H * chunks_of(a),
                tiles = chunks * ((a->P + KR_SSD_P - 1) / KR_SSD_P) *
                        (KR_SSD_P * ssd_bwd_columns_of(a) + KR_SSD_BWD_FLOATS_SCALES / 4),
                plain = chunks * a->P * a->N;
  const int64_t n_splits = splits_of(ctx, a), matrices = n_splits == 1 && has_wide_matrices(a) ? 0 : n_splits,
                matrix = matrices * a->B * a->L * a->G * a->N,
                states = tiles > plain ? tiles : plain; /* plain: what redo_nonfinite stores there */
  const int is_float = a->x.dtype == KRAIT_F32, per_float = is_float ? 1 : 2;
  const int64_t scales = a->x.dtype == KRAIT_F16 ? chunks * a->P : 0;
  const int64_t squares = is_float ? a->B * a->G * chunks_of(a) * KR_SSD_CHUNK * KR_SSD_CHUNK : 0;
  chunks_layout l = {.end = 0};
  l.S = place_ssd_bwd(&l.end, (states + 1) / per_float), l.M = place_ssd_bwd(&l.end, (states + 1) / per_float);
  l.S_scale = place_ssd_bwd(&l.end, scales), l.M_scale = place_ssd_bwd(&l.end, scales);
  l.sum_B = place_ssd_bwd(&l.end, matrix), l.sum_C = place_ssd_bwd(&l.end, matrix);
  l.parts = place_ssd_bwd(&l.end, a->B * chunks_of(a) * a->H * (a->P + 2));
  l.steps = place_ssd_bwd(&l.end, a->B * a->H * chunks_of(a) * (KR_SSD_STEPS_BYTES / 4)),
  l.tokens = place_ssd_bwd(&l.end, a->B * a->H * chunks_of(a) * (KR_SSD_BWD_TOKENS_BYTES / 4));
  l.spoilt = place_ssd_bwd(&l.end, a->B * a->H);
  l.y = place_ssd_bwd(&l.end, kr_has(&a->z) ? (a->B * a->L * a->H * ((a->P + 7) / 8 * 8) + 1) / per_float : 0);
  l.products = place_ssd_bwd(&l.end, squares), l.W = place_ssd_bwd(&l.end, n_splits * squares);
  return l;
}

uint64_t kr_ssd_bwd_chunks_scratch(const krait_ctx *ctx, const void *args) { return lay_out_chunks(ctx, args).end; }

/* y before the gate, of a params without one; may leave S. */
typedef int32_t make_y_fn(const krait_ctx *ctx, const kr_ssd_bwd_args *a, kr_ssd_bwd_params *p,
                          const kr_ssd_params *forward, const kr_ssd_maker *maker);

static int32_t make_y(const krait_ctx *ctx, const kr_ssd_bwd_args *a, kr_ssd_bwd_params *p,
                      const kr_ssd_params *forward, const kr_ssd_maker *maker) {
  const int at_once = kr_ssd_states_at_once(ctx);
  (void)p, (void)maker;
  for (int part = 0; part * at_once < forward->N; part++) {
    const kr_ssd_params some = kr_ssd_part_of(forward, part, at_once);
    KR_TRY(kr_ssd_launch_chunks(ctx, &some, a->call.stream));
  }
  return KRAIT_OK;
}

/* dz, and dout after the gate in place of y, which comes from the forward kernel, unless a maker does that; of float32,
 * whose kernel of dC computes y and dz, dout alone. */
static int32_t pass_gate(const krait_ctx *ctx, const kr_ssd_bwd_args *a, kr_ssd_bwd_params *p, uint64_t y,
                         make_y_fn *make, const kr_ssd_maker *maker) {
  const int64_t row = (a->P + 7) / 8 * 8;
  kr_ssd_params forward = p->f;
  forward.out = (kr_ssd_tensor){.data = (char *)a->call.scratch + y,
                                .b = a->L * a->H * row,
                                .t = a->H * row,
                                .h = row,
                                .n = 1,
                                .dtype = a->x.dtype};
  forward.z = forward.dout = (kr_ssd_tensor){.data = NULL};
  if (a->x.dtype != KRAIT_F32) KR_TRY(make(ctx, a, p, &forward, maker));
  p->gated = p->f.dout, p->f.out = p->f.dout = forward.out;
  if (maker && maker->run) return KRAIT_OK;
  p->gates_eight = a->x.dtype != KRAIT_F32 && a->P % 8 == 0 && p->f.z.packs && p->gated.packs &&
                   (!p->f.dz.data || p->f.dz.packs);
  const int64_t n = a->L * a->H * a->P / (p->gates_eight ? 8 : 1);
  const kr_grid grid = {.x = (uint32_t)((n + KR_SSD_BWD_THREADS - 1) / KR_SSD_BWD_THREADS),
                        .y = 1,
                        .z = (uint32_t)a->B,
                        .block = KR_SSD_BWD_THREADS,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &gate_kernel[a->x.dtype], &grid, p, sizeof *p);
}

static kr_ssd_bwd_params chunks_plan(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const chunks_layout *l) {
  const int reverse = (a->call.flags & KRAIT_SSD_REVERSE) != 0;
  char *const scratch = a->call.scratch;
  kr_ssd_bwd_params p = ssd_bwd_plan_of(a, reverse);
  p.n_splits = splits_of(ctx, a), p.n_parts = (int32_t)((a->N + 127) / 128);
  p.n_stages = kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)inner_shared_bytes(a, 2) ? 1 : 2;
  p.f.kept_scale = (float *)(scratch + l->S_scale), p.M_scale = (float *)(scratch + l->M_scale);
  p.S = scratch + l->S, p.M = scratch + l->M, p.parts = (float *)(scratch + l->parts), p.f.kept = NULL;
  p.f.steps = scratch + l->steps, p.tokens = scratch + l->tokens, p.f.spoilt = (int32_t *)(scratch + l->spoilt);
  p.sum_B = floats_at(a, l->sum_B, a->G, a->N, reverse), p.sum_C = floats_at(a, l->sum_C, a->G, a->N, reverse);
  if (p.n_splits == 1 && has_wide_matrices(a)) p.sum_B = p.dB, p.sum_C = p.dC;
  p.leaves_sums = p.n_splits > 1 || has_wide_matrices(a);
  p.f.products = (float *)(scratch + l->products), p.W = (float *)(scratch + l->W);
  p.dD = kr_ssd_skips(&a->dDvec, a->call.flags), p.dbias = kr_ssd_heads(&a->ddt_bias, 0);
  p.f.dz = kr_ssd_sequence(&a->dz, reverse, a->L);
  return p;
}

/* The slice of 128 states that `part` selects. */
static kr_ssd_bwd_params ssd_bwd_part_of(const kr_ssd_bwd_params *whole, int part) {
  kr_ssd_bwd_params p = *whole;
  const int64_t first = 128 * part;
  kr_ssd_tensor *const tensors[] = {&p.f.Bmat, &p.f.Cmat,    &p.dB,     &p.dC,      &p.sum_B,
                                    &p.sum_C,  &p.f.initial, &p.dfinal, &p.dinitial};
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
    if (tensors[i]->data)
      tensors[i]->data =
          (char *)tensors[i]->data + first * tensors[i]->n * (int64_t)krait_dtype_bytes(tensors[i]->dtype);
  p.f.N = whole->f.N - first < 128 ? (int32_t)(whole->f.N - first) : 128;
  p.part = part;
  if (part) p.f.D.data = NULL;
  return p;
}

static int32_t sum_splits(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p) {
  const int64_t n = a->L * (p->f.H / p->f.heads) * p->f.N;
  const kr_grid sum = {.x = (uint32_t)((n + KR_SSD_BWD_THREADS - 1) / KR_SSD_BWD_THREADS),
                       .y = 2,
                       .z = (uint32_t)a->B,
                       .block = KR_SSD_BWD_THREADS,
                       .stream = a->call.stream};
  return p->n_splits > 1 ? kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &sum_kernel[a->x.dtype], &sum, p, sizeof *p)
                         : KRAIT_OK;
}

static int32_t run_ssd_bwd_part(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p,
                                const kr_ssd_maker *maker) {
  (void)maker;
  const int wide = a->N > 64, dtype = a->x.dtype;
  const uint32_t batch = (uint32_t)a->B;
  const kr_grid states = {.x = (uint32_t)(a->H * p->f.blocks_per_head),
                          .y = 2,
                          .z = batch,
                          .block = KR_SSD_THREADS,
                          .shared_bytes = (uint32_t)KR_SSD_BWD_STATES_SHARED(ssd_bwd_columns_of(a)),
                          .stream = a->call.stream};
  const kr_grid inner = {.x = (uint32_t)p->n_chunks,
                         .y = (uint32_t)(a->G * p->n_splits),
                         .z = batch,
                         .block = KR_SSD_BWD_THREADS,
                         .shared_bytes = inner_shared_bytes(a, p->n_stages),
                         .stream = a->call.stream};
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &states_kernel[wide][dtype], &states, p, sizeof *p));
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &inner_kernel[wide][dtype], &inner, p, sizeof *p));
  return sum_splits(ctx, a, p);
}

/* Recomputes token by token the groups of heads in which chunks met NaN or infinity, in scratch no longer in use. */
static int32_t redo_nonfinite(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *chunks,
                              int32_t kept_dtype) {
  kr_ssd_bwd_params p = ssd_bwd_plan_of(a, (a->call.flags & KRAIT_SSD_REVERSE) != 0);
  p.S = p.f.kept = chunks->S, p.M = chunks->M, p.f.kept_dtype = kept_dtype, p.f.spoilt = chunks->f.spoilt;
  p.sum_B = chunks->sum_B, p.sum_C = chunks->sum_C, p.parts = chunks->parts, p.f.dz = chunks->f.dz;
  p.f.kept_scale = chunks->f.kept_scale, p.M_scale = chunks->M_scale, p.dD = chunks->dD;
  return run_tokens(ctx, a, &p);
}

typedef int32_t run_part_fn(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p,
                            const kr_ssd_maker *maker);

static int32_t run_parts(const krait_ctx *ctx, const kr_ssd_bwd_args *a, make_y_fn *make, const kr_ssd_maker *maker,
                         run_part_fn *run_one) {
  const chunks_layout l = lay_out_chunks(ctx, a);
  kr_ssd_bwd_params p = chunks_plan(ctx, a, &l);
  if (!maker || !maker->run) KR_TRY(kr_ssd_launch_steps(ctx, &p.f, a->call.stream));
  if (kr_has(&a->z)) KR_TRY(pass_gate(ctx, a, &p, l.y, make, maker));
  else if (maker && maker->run) KR_TRY(make(ctx, a, &p, &p.f, maker));
  for (int part = 0; part < p.n_parts; part++) {
    kr_ssd_bwd_params some = ssd_bwd_part_of(&p, part);
    if (maker && maker->S) some.S = maker->S;
    KR_TRY(run_one(ctx, a, &some, maker));
    if (maker && maker->take_states) KR_TRY(maker->take_states(ctx, maker->user, &some));
  }
  const kr_grid finish = {.x = (uint32_t)p.n_chunks,
                          .y = (uint32_t)((a->H + 3) / 4),
                          .z = (uint32_t)a->B,
                          .block = KR_SSD_THREADS,
                          .stream = a->call.stream};
  const kr_grid heads = {.x = (uint32_t)a->H, .y = 1, .z = 1, .block = KR_SSD_BWD_ADDERS, .stream = a->call.stream};
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &finish_kernel[a->x.dtype], &finish, &p, sizeof p));
  KR_TRY(redo_nonfinite(ctx, a, &p, a->x.dtype));
  if (p.f.has_token_D && !p.dA.data && !p.dbias.data) return KRAIT_OK; /* no sums over chunks */
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &add_chunks, &heads, &p, sizeof p);
}

int32_t kr_ssd_bwd_chunks(const krait_ctx *ctx, const void *args) {
  return run_parts(ctx, args, make_y, NULL, run_ssd_bwd_part);
}
int32_t kr_ssd_bwd_chunks_made(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_maker *maker) {
  return run_parts(ctx, a, make_y, maker, run_ssd_bwd_part);
}

/* ---- on tensor cores, float32 ---- */

typedef struct float_kernels {
  kr_kernel states, inner, matrices;
} float_kernels;

#define FLOATS(states, columns)                                 \
  {{"ssd_bwd_chunks_f32", "kr_ssd_bwd_states" states},          \
   {"ssd_bwd_chunks_f32", "kr_ssd_bwd_inner_" columns states},  \
   {"ssd_bwd_chunks_f32", "kr_ssd_bwd_matrices_" columns}}
static const float_kernels float_kernels_of[2][2] = {{FLOATS("", "n64"), FLOATS("", "n128")},
                                                     {FLOATS("_tf32", "n64"), FLOATS("_tf32", "n128")}};

const char *kr_ssd_bwd_parts_refuse(const krait_ctx *ctx, const void *args) {
  const kr_ssd_bwd_args *a = args;
  const uint32_t forward = kr_ssd_float_shared_bytes(a->N),
                 inner = (uint32_t)KR_SSD_BWD_FLOATS_INNER_SHARED(ssd_bwd_columns_of(a), 2);
  return a->x.dtype != KRAIT_F32 ? "not float32" : refuse_chunks(ctx, a, forward > inner ? forward : inner);
}

const char *kr_ssd_bwd_tf32_refuse(const krait_ctx *ctx, const void *args) {
  const kr_ssd_bwd_args *a = args;
  return a->call.flags & KRAIT_SSD_TF32 ? kr_ssd_bwd_parts_refuse(ctx, args) : "the call does not allow tf32";
}

static int32_t run_float_part(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p,
                              int is_tf32) {
  const float_kernels *const kernels = &float_kernels_of[is_tf32][p->f.N > 64];
  const uint32_t columns = p->f.N > 64 ? 128 : 64;
  kr_grid grid = {.x = (uint32_t)(a->H * p->f.blocks_per_head) * (columns / 64),
                  .y = 2,
                  .z = (uint32_t)a->B,
                  .block = KR_SSD_THREADS,
                  .shared_bytes = KR_SSD_BWD_FLOATS_STATES_SHARED,
                  .stream = a->call.stream};
  KR_TRY(kr_ssd_launch_products(ctx, &p->f, is_tf32, a->call.stream));
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &kernels->states, &grid, p, sizeof *p));
  grid.x = (uint32_t)p->n_chunks, grid.y = (uint32_t)(KR_SSD_BWD_FLOATS_ROLES(p->f.dz.data) * a->G * p->n_splits);
  grid.block = KR_SSD_BWD_THREADS, grid.shared_bytes = KR_SSD_BWD_FLOATS_INNER_SHARED(columns, is_tf32 ? 1 : 2);
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &kernels->inner, &grid, p, sizeof *p));
  grid.y = (uint32_t)a->G, grid.shared_bytes = KR_SSD_BWD_FLOATS_MATRICES_SHARED(columns);
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &kernels->matrices, &grid, p, sizeof *p);
}

static int32_t run_parts_part(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p,
                              const kr_ssd_maker *maker) {
  (void)maker;
  return run_float_part(ctx, a, p, 0);
}
static int32_t run_tf32_part(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p,
                             const kr_ssd_maker *maker) {
  (void)maker;
  return run_float_part(ctx, a, p, 1);
}

int32_t kr_ssd_bwd_parts(const krait_ctx *ctx, const void *args) {
  return run_parts(ctx, args, make_y, NULL, run_parts_part);
}
int32_t kr_ssd_bwd_tf32(const krait_ctx *ctx, const void *args) {
  return run_parts(ctx, args, make_y, NULL, run_tf32_part);
}

/* ---- by multiply-adds ---- */

static const kr_kernel tiles_gate = {"ssd_bwd_tiles", "kr_ssd_bwd_tiles_gate"},
                       tiles_additions = {"ssd_bwd_tiles", "kr_ssd_bwd_tiles_additions"},
                       tiles_states = {"ssd_bwd_tiles", "kr_ssd_bwd_tiles_states"},
                       tiles_inputs = {"ssd_bwd_tiles", "kr_ssd_bwd_tiles_inputs"},
                       tiles_outputs = {"ssd_bwd_tiles", "kr_ssd_bwd_tiles_outputs"},
                       tiles_pairs = {"ssd_bwd_tiles", "kr_ssd_bwd_tiles_pairs"},
                       tiles_matrices = {"ssd_bwd_tiles", "kr_ssd_bwd_tiles_matrices"},
                       tiles_sum = {"ssd_bwd_tiles", "kr_ssd_bwd_tiles_sum"},
                       tiles_finish = {"ssd_bwd_tiles", "kr_ssd_bwd_tiles_finish"};

const char *kr_ssd_bwd_tiles_refuse(const krait_ctx *ctx, const void *args) {
  const kr_ssd_bwd_args *a = args;
  if (a->L < KR_SSD_LEAST_TOKENS) return "too few tokens for chunks";
  return a->G > 2048 ? "more than 2048 groups" : refuse_ssd_bwd_modes(ctx, a); /* blocks along y */
}

/* Where everything is in scratch; dy: of float32, with a gate. */
static kr_ssd_bwd_params tiles_plan(const krait_ctx *ctx, const kr_ssd_bwd_args *a, uint64_t *end) {
  const int reverse = (a->call.flags & KRAIT_SSD_REVERSE) != 0;
  const int32_t n_splits = splits_for(ctx, a, 4);
  const int64_t chunks = a->B * a->H * chunks_of(a), states = chunks * a->P * a->N, row = a->P,
                matrix = n_splits * a->B * a->L * a->G * a->N,
                squares = a->B * a->G * chunks_of(a) * KR_SSD_CHUNK * KR_SSD_CHUNK;
  char *const scratch = a->call.scratch;
  kr_ssd_bwd_params p = ssd_bwd_plan_of(a, reverse);
  *end = 0;
  p.n_splits = n_splits, p.f.kept = NULL;
  p.S = scratch + place_ssd_bwd(end, states), p.M = scratch + place_ssd_bwd(end, states);
  p.sum_B = floats_at(a, place_ssd_bwd(end, matrix), a->G, a->N, reverse);
  p.sum_C = floats_at(a, place_ssd_bwd(end, matrix), a->G, a->N, reverse);
  p.parts = (float *)(scratch + place_ssd_bwd(end, chunks * (a->P + 2)));
  p.f.steps = scratch + place_ssd_bwd(end, chunks * (KR_SSD_STEPS_BYTES / 4));
  p.tokens = scratch + place_ssd_bwd(end, chunks * (KR_SSD_BWD_TOKENS_BYTES / 4));
  p.f.spoilt = (int32_t *)(scratch + place_ssd_bwd(end, a->B * a->H));
  p.f.products = (float *)(scratch + place_ssd_bwd(end, squares));
  p.W = (float *)(scratch + place_ssd_bwd(end, n_splits * squares));
  p.dD = kr_ssd_heads(&a->dDvec, 1), p.dbias = kr_ssd_heads(&a->ddt_bias, 0);
  p.f.dz = kr_ssd_sequence(&a->dz, reverse, a->L);
  if (!kr_has(&a->z)) return p;
  const kr_view dy = {scratch + place_ssd_bwd(end, a->B * a->L * a->H * row), {a->L * a->H * row, a->H * row, row, 1},
                      KRAIT_F32, 0};
  p.f.out = kr_ssd_sequence(&dy, reverse, a->L);
  return p;
}

uint64_t kr_ssd_bwd_tiles_scratch(const krait_ctx *ctx, const void *args) {
  uint64_t end;
  (void)tiles_plan(ctx, args, &end);
  return end;
}

typedef struct tiles_launch {
  const kr_kernel *kernel;
  int64_t x, y;
  uint32_t threads;
} tiles_launch;

static int32_t launch_ssd_bwd_tiles(const krait_ctx *ctx, const kr_ssd_bwd_params *p, const tiles_launch *launches,
                                    int n, void *stream) {
  for (int i = 0; i < n; i++) {
    const kr_grid grid = {.x = (uint32_t)launches[i].x,
                          .y = (uint32_t)launches[i].y,
                          .z = (uint32_t)p->f.B,
                          .block = launches[i].threads,
                          .stream = stream};
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, launches[i].kernel, &grid, p, sizeof *p));
  }
  return KRAIT_OK;
}

static int64_t in_blocks(int64_t n, int64_t of) { return (n + of - 1) / of; }

int32_t kr_ssd_bwd_tiles(const krait_ctx *ctx, const void *args) {
  const kr_ssd_bwd_args *a = args;
  uint64_t end;
  kr_ssd_bwd_params p = tiles_plan(ctx, a, &end);
  const int64_t chunks = p.n_chunks, columns = in_blocks(a->N, 64), shares = a->G * p.n_splits;
  const kr_grid heads = {.x = (uint32_t)a->H, .y = 1, .z = 1, .block = KR_SSD_BWD_ADDERS, .stream = a->call.stream};
  const tiles_launch gate = {&tiles_gate, in_blocks(a->L * a->H * a->P, KR_SSD_BWD_THREADS), 1, KR_SSD_BWD_THREADS};
  const tiles_launch launches[] = {
      {&tiles_additions, 2 * chunks * p.f.blocks_per_head * columns, a->H, KR_SSD_TILERS},
      {&tiles_states, 2 * in_blocks(a->P * a->N, KR_SSD_THREADS), a->H, KR_SSD_THREADS},
      {&tiles_inputs, chunks, a->H, KR_SSD_TILERS},
      {&tiles_outputs, chunks, a->H, KR_SSD_TILERS},
      {&tiles_pairs, chunks, shares, KR_SSD_TILERS},
      {&tiles_matrices, chunks, 2 * shares * columns, KR_SSD_TILERS},
      {&tiles_finish, chunks, in_blocks(a->H, KR_SSD_THREADS / 32), KR_SSD_THREADS},
      {&tiles_sum, in_blocks(a->L * a->G * a->N, KR_SSD_BWD_THREADS), 2, KR_SSD_BWD_THREADS}};
  KR_TRY(kr_ssd_prepare_tiles(ctx, &p.f, a->call.stream));
  if (kr_has(&a->z)) {
    p.gated = p.f.dout;
    KR_TRY(launch_ssd_bwd_tiles(ctx, &p, &gate, 1, a->call.stream));
    p.f.dout = p.f.out;
  }
  KR_TRY(launch_ssd_bwd_tiles(ctx, &p, launches, p.n_splits > 1 ? 8 : 7, a->call.stream));
  KR_TRY(redo_nonfinite(ctx, a, &p, KRAIT_F32));
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &add_chunks, &heads, &p, sizeof p);
}

/* ---- on warpgroups ---- */

#define WIDTHS(name)                                                                      \
  {                                                                                       \
    {{NULL, NULL}, {"ssd_hopper_bwd_f16_64", name}, {"ssd_hopper_bwd_bf16_64", name}}, {  \
      {NULL, NULL}, {"ssd_hopper_bwd_f16_128", name}, { "ssd_hopper_bwd_bf16_128", name } \
    }                                                                                     \
  }
enum { PACKED, PLAIN, CHANNELS };
static const kr_kernel hopper_inner[3][2][3] = {
    WIDTHS("kr_ssd_hopper_inner_packed"), WIDTHS("kr_ssd_hopper_inner_plain"), WIDTHS("kr_ssd_hopper_inner_channels")};

/* plain: neither D nor its gradient is per channel. */
static int ssd_bwd_kind_of(const kr_ssd_bwd_params *p) {
  const int plain = (!p->f.D.data || p->f.D.n == 0) && (!p->dD.data || p->dD.n == 0 || p->part);
  return p->f.seq_idx ? PACKED : plain ? PLAIN : CHANNELS;
}

static uint32_t hopper_shared_bytes(const kr_ssd_bwd_args *a) {
  return a->N <= 64 ? KR_SSD_HOPPER_BWD_SHARED(64) : KR_SSD_HOPPER_BWD_SHARED(128);
}

const char *kr_ssd_bwd_hopper_refuse(const krait_ctx *ctx, const void *args) {
  const kr_ssd_bwd_args *a = args;
  const char *why = kr_ssd_bwd_chunks_refuse(ctx, args);
  if (!why) why = kr_ssd_hopper_refuse_sizes(ctx, a->B, a->L, a->H, a->P, a->call.flags);
  if (why) return why;
  if (!kr_ssd_boxes_take(&a->x, a->B, a->L, a->H) || !kr_ssd_boxes_take(&a->dout, a->B, a->L, a->H) ||
      (kr_has(&a->dx) && !kr_ssd_boxes_take(&a->dx, a->B, a->L, a->H)) ||
      !kr_ssd_boxes_take(&a->Bmat, a->B, a->L, a->G) || !kr_ssd_boxes_take(&a->Cmat, a->B, a->L, a->G))
    return "rows that bulk copies do not take";
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)hopper_shared_bytes(a) ? "too little shared memory" : NULL;
}

/* The state-passing kernels (states before chunks, gradients after chunks): one launch if a single direction does not
 * fill the device, otherwise one after the other, which is slightly faster. */
static kr_ssd_hopper_params walks_of(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p) {
  kr_ssd_hopper_params h = {
      .p = p->f, .adds = 1, .S = p->S, .M = p->M, .dfinal = p->dfinal, .dinitial = p->dinitial};
  h.n_ways = p->has_states || kr_ssd_hopper_is_full(ctx, &h, ssd_bwd_columns_of(a), a->G) ? 1 : 2;
  return h;
}

/* Whether y is needed and its walk leaves states: as many as the gradient's kernels take at once. */
static int has_states_of_y(const kr_ssd_bwd_args *a) { return kr_has(&a->z) && a->N <= 128; }

uint64_t kr_ssd_bwd_hopper_scratch(const krait_ctx *ctx, const void *args) {
  const kr_ssd_bwd_args *a = args;
  kr_ssd_bwd_params p = ssd_bwd_plan_of(a, 0);
  uint64_t most = 0;
  for (p.has_states = has_states_of_y(a); p.has_states < 2; p.has_states++) { /* a maker may have them */
    kr_ssd_hopper_params states = walks_of(ctx, a, &p);
    const uint64_t walk = kr_ssd_hopper_cut(ctx, &states, ssd_bwd_columns_of(a), a->G);
    most = walk > most ? walk : most;
  }
  kr_ssd_hopper_params output = {.p = p.f, .n_ways = 1};
  const uint64_t forward = kr_has(&a->z) ? kr_ssd_hopper_cut(ctx, &output, ssd_bwd_columns_of(a), a->G) : 0;
  return lay_out_chunks(ctx, a).end + (most > forward ? most : forward);
}

static int32_t make_y_hopper(const krait_ctx *ctx, const kr_ssd_bwd_args *a, kr_ssd_bwd_params *p,
                             const kr_ssd_params *forward, const kr_ssd_maker *maker) {
  p->has_states = has_states_of_y(a);
  if (!p->has_states) return make_y(ctx, a, p, forward, maker);
  kr_ssd_hopper_params h = {.p = *forward, .n_ways = 1, .S = p->S};
  kr_ssd_hopper_cut(ctx, &h, a->N, a->G);
  kr_ssd_hopper_place(&h, a->N, (char *)a->call.scratch + lay_out_chunks(ctx, a).end);
  return kr_ssd_hopper_launch_output(ctx, &h, a->call.stream);
}

static int32_t make_ssd_bwd_maps(const krait_ctx *ctx, const kr_ssd_bwd_args *a, kr_ssd_hopper_bwd_params *h) {
  const kr_ssd_params *f = &h->q.f;
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver encodes tensor maps only in its current context */
  int32_t status = kr_ssd_hopper_map(ctx, &h->x, &f->x, a->B, a->L, a->H, a->P);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &h->dy, &f->dout, a->B, a->L, a->H, a->P);
  if (status == KRAIT_OK && h->q.dx.data)
    status = kr_ssd_hopper_map(ctx, &h->dx, &h->q.dx, a->B, a->L, a->H, a->P);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &h->Bmat, &f->Bmat, a->B, a->L, a->G, f->N);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &h->Cmat, &f->Cmat, a->B, a->L, a->G, f->N);
  kr_cuda_end(ctx->cuda);
  return status;
}

static int32_t run_hopper_part(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_bwd_params *p,
                               const kr_ssd_maker *maker) {
  const int wide = a->N > 64, dtype = a->x.dtype;
  if (maker && maker->run_inner) {
    kr_ssd_bwd_params own = *p;
    KR_TRY(maker->run_inner(ctx, maker->user, &own));
    return sum_splits(ctx, a, &own);
  }
  kr_ssd_hopper_bwd_params h = {.q = *p};
  KR_TRY(make_ssd_bwd_maps(ctx, a, &h));
  kr_ssd_hopper_params states = walks_of(ctx, a, p);
  states.x = h.x, states.Bmat = h.Bmat, states.Cmat = h.Cmat, states.dy = h.dy;
  kr_ssd_hopper_cut(ctx, &states, ssd_bwd_columns_of(a), a->G);
  kr_ssd_hopper_place(&states, ssd_bwd_columns_of(a), (char *)a->call.scratch + lay_out_chunks(ctx, a).end);
  for (states.back = p->has_states; states.back < (states.n_ways == 1 ? 2 : 1); states.back++)
    KR_TRY(kr_ssd_hopper_launch_states(ctx, &states, ssd_bwd_columns_of(a), a->call.stream));
  const kr_grid inner = {.x = (uint32_t)p->n_chunks,
                         .y = (uint32_t)(a->G * p->n_splits),
                         .z = (uint32_t)a->B,
                         .block = KR_SSD_HOPPER_BWD_THREADS,
                         .shared_bytes = hopper_shared_bytes(a),
                         .is_pdl = 1,
                         .stream = a->call.stream};
  KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &hopper_inner[ssd_bwd_kind_of(p)][wide][dtype], &inner, &h,
                        sizeof h));
  return sum_splits(ctx, a, p);
}

int32_t kr_ssd_bwd_hopper(const krait_ctx *ctx, const void *args) {
  return run_parts(ctx, args, make_y_hopper, NULL, run_hopper_part);
}

static int32_t have_y_made(const krait_ctx *ctx, const kr_ssd_bwd_args *a, kr_ssd_bwd_params *p,
                           const kr_ssd_params *forward, const kr_ssd_maker *maker) {
  const uint64_t flags = (uint64_t)(a->B * a->H) * sizeof(int32_t);
  p->has_states = 1;
  KR_TRY(maker->run(ctx, maker->user, forward, p->S));
  KR_TRY(kr_ssd_launch_steps(ctx, &p->f, a->call.stream));
  return kr_cuda_copy(ctx->cuda, p->f.spoilt, maker->spoilt, flags, a->call.stream);
}

int32_t kr_ssd_bwd_hopper_made(const krait_ctx *ctx, const kr_ssd_bwd_args *a, const kr_ssd_maker *maker) {
  return run_parts(ctx, a, maker->run ? have_y_made : make_y_hopper, maker, run_hopper_part);
}
