/* ssd_hopper_cuda.c: the SSD on warpgroups: tensor maps, work partition (ssd_hopper_params.h), launches. */
#include "op_list.h"
#include "ssd_hopper_host.h"
#include "ssd_impls.h"
#include "status.h"

#define UP_TO_128(name)                                                      \
  {{NULL, NULL}, {"ssd_hopper_f16_64", name}, {"ssd_hopper_bf16_64", name}}, \
      {{NULL, NULL}, {"ssd_hopper_f16_128", name}, {"ssd_hopper_bf16_128", name}}
#define BY_STATES(name) {UP_TO_128(name), {{NULL, NULL}, {"ssd_hopper_f16_256", name}, {"ssd_hopper_bf16_256", name}}}
enum { OUTPUT, ENDS, STATES, PASSED };
static const kr_kernel walks[4][3][3] = {BY_STATES("kr_ssd_hopper"), BY_STATES("kr_ssd_hopper_ends"),
                                         {UP_TO_128("kr_ssd_hopper_states")}, BY_STATES("kr_ssd_hopper_passed")};
static const kr_kernel begin[3][3] = BY_STATES("kr_ssd_hopper_begin");

static int ssd_hopper_width_of(int64_t N) { return N <= 64 ? 0 : N <= 128 ? 1 : 2; }
static int64_t heads_of(int64_t N) { return KR_SSD_HOPPER_HEADS(N); }
static int64_t ssd_hopper_columns_of(int64_t N) { return (int64_t)64 << ssd_hopper_width_of(N); }
static uint32_t ssd_hopper_shared_bytes(int64_t N, int outputs) {
  return N <= 64    ? KR_SSD_HOPPER_SHARED(64, outputs)
         : N <= 128 ? KR_SSD_HOPPER_SHARED(128, outputs)
                    : KR_SSD_HOPPER_SHARED(256, outputs);
}

/* Strides of dimensions with more than one element. */
int kr_ssd_boxes_take(const kr_view *v, int64_t B, int64_t L, int64_t H) {
  const int64_t sizes[3] = {B, L, H}, limit = (int64_t)1 << 38;
  if (v->stride[3] != 1 || (uintptr_t)v->data % 16 != 0) return 0;
  for (int i = 0; i < 3; i++)
    if (sizes[i] > 1 && (v->stride[i] % 8 != 0 || v->stride[i] <= 0 || v->stride[i] >= limit)) return 0;
  return 1;
}

const char *kr_ssd_hopper_refuse_sizes(const krait_ctx *ctx, int64_t B, int64_t L, int64_t H, int64_t P,
                                       uint32_t flags) {
  if (!kr_cuda_driver(ctx->cuda)->TensorMapEncodeTiled) return "this driver has no tensor maps";
  if (flags & KRAIT_SSD_REVERSE) return "a walk back";
  if (P % 8 != 0) return "P not a multiple of 8";
  if (L > INT32_MAX / 2 ||
      B * H * ((P + KR_SSD_P - 1) / KR_SSD_P) * ((L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK) > INT32_MAX / 2)
    return "more than 2^30 chunks of tokens";
  return NULL;
}

const char *kr_ssd_hopper_refuse(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  const char *why = kr_ssd_chunks_refuse_tensors(a);
  if (!why) why = kr_ssd_hopper_refuse_sizes(ctx, a->B, a->L, a->H, a->P, a->call.flags);
  if (why) return why;
  if (kr_has(&a->z) && a->N > KR_SSD_MOST_STATES) return "a gate of an output that is added up";
  if (!kr_ssd_boxes_take(&a->x, a->B, a->L, a->H) || !kr_ssd_boxes_take(&a->Bmat, a->B, a->L, a->G) ||
      !kr_ssd_boxes_take(&a->Cmat, a->B, a->L, a->G) ||
      (kr_has(&a->z) && !kr_ssd_boxes_take(&a->z, a->B, a->L, a->H)))
    return "rows that bulk copies do not take";
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)ssd_hopper_shared_bytes(a->N, 0) ? "too little shared memory"
                                                                                           : NULL;
}

/* Partitions into units of n_heads. Returns whether there is at least this share of a unit per multiprocessor. */
static int cut_units(kr_ssd_hopper_params *h, int64_t n_heads, double share, int64_t n_multiprocessors) {
  h->n_heads = (int32_t)n_heads;
  h->per_group = (int32_t)(((int64_t)h->p.heads * h->p.blocks_per_head + n_heads - 1) / n_heads);
  h->n_units = (int32_t)((int64_t)h->n_ways * h->p.B * h->n_groups * h->per_group);
  return h->n_units >= share * (double)n_multiprocessors;
}

/* Units of two heads or of one, if there are too few larger ones and this beats splitting time, which needs a pass over
 * the pieces' ends first. Cost model in us on an H200 with 128 states, from 2048 tokens on: fixed per pass, and per
 * chunk of a block. */
static int cut_output(kr_ssd_hopper_params *h, int64_t n_multiprocessors) {
  static const struct {
    double once, chunk;
  } of_heads[] = {{26, 1.62}, {18, 2.42}}, of_pieces = {38, 4.7};
  int best = 0;
  cut_units(h, 3, 1, n_multiprocessors);
  double least = of_pieces.once + of_pieces.chunk * h->n_units * h->n_chunks / (double)n_multiprocessors;
  for (int n_heads = 1; n_heads <= 2; n_heads++) {
    const int64_t units = (cut_units(h, n_heads, 1, n_multiprocessors), h->n_units),
                  blocks = units < n_multiprocessors ? units : n_multiprocessors;
    const double us =
        of_heads[n_heads - 1].once + of_heads[n_heads - 1].chunk * (double)(units * h->n_chunks) / (double)blocks;
    if (us < least) least = us, best = n_heads;
  }
  if (best) cut_units(h, best, 1, n_multiprocessors);
  return best > 0;
}

/* Below three quarters of the device, a second pass over the states pays off; ranges then lie within units. The
 * state-passing kernel is memory-bound and prefers fewer heads per block, or fewer blocks. */
static void cut_ssd_hopper_work(kr_ssd_hopper_params *h, int64_t N, int64_t G, int64_t n_multiprocessors) {
  h->n_chunks = (int32_t)((h->p.L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK);
  h->n_groups = (int32_t)G;
  int enough = cut_units(h, heads_of(N), 0.75, n_multiprocessors);
  if (!enough && h->n_ways == 2)
    enough = cut_units(h, 2, 0.5, n_multiprocessors) || cut_units(h, 1, 0.75, n_multiprocessors);
  if (!enough && h->n_ways == 1 && N <= 128 && h->n_chunks >= 32) enough = cut_output(h, n_multiprocessors);
  if (!enough) cut_units(h, heads_of(N), 0.75, n_multiprocessors);
  const int64_t units = h->n_units, two_each = units * (h->n_chunks / 2);
  h->joins = !enough && two_each > units;
  h->n_blocks = (int32_t)(units < n_multiprocessors ? units : n_multiprocessors);
  if (h->joins) h->n_blocks = (int32_t)(two_each < n_multiprocessors ? two_each : n_multiprocessors);
  h->per_block = (int32_t)(units * h->n_chunks / h->n_blocks), h->longer = (int32_t)(units * h->n_chunks % h->n_blocks);
}

/* Byte offsets in scratch: states, initial states, decays, flags. */
typedef struct layout {
  uint64_t initial, decays, ready, end;
} layout;

static int has_initial(const kr_ssd_hopper_params *h) { return h->p.initial.data || h->dfinal.data; }

static layout lay_out_ssd_hopper(const kr_ssd_hopper_params *h, int64_t N) {
  const uint64_t pieces = (uint64_t)(h->n_blocks + (h->joins ? h->n_units : 0)), n_heads = (uint64_t)heads_of(N),
                 state = n_heads * 64 * (uint64_t)ssd_hopper_columns_of(N) * sizeof(float);
  const int passes = h->joins || h->n_blocks < h->n_units;
  layout l = {.initial = passes ? kr_scratch_round(pieces * state) : 0};
  l.decays = l.initial + (has_initial(h) ? kr_scratch_round((uint64_t)h->n_units * state) : 0);
  l.ready = l.decays + kr_scratch_round(pieces * n_heads * sizeof(float));
  l.end = l.ready + kr_scratch_round((uint64_t)h->n_blocks * n_heads * sizeof(int32_t));
  return l;
}

int kr_ssd_hopper_is_full(const krait_ctx *ctx, const kr_ssd_hopper_params *h, int64_t N, int64_t G) {
  kr_ssd_hopper_params one = *h;
  one.n_ways = 1, one.n_groups = (int32_t)G;
  return cut_units(&one, heads_of(N), 0.75, kr_cuda_info(ctx->cuda)->n_multiprocessors);
}

uint64_t kr_ssd_hopper_cut(const krait_ctx *ctx, kr_ssd_hopper_params *h, int64_t N, int64_t G) {
  cut_ssd_hopper_work(h, N, G, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  return lay_out_ssd_hopper(h, N).end;
}

void kr_ssd_hopper_place(kr_ssd_hopper_params *h, int64_t N, char *scratch) {
  const layout l = lay_out_ssd_hopper(h, N);
  h->states = (float *)scratch, h->decays = (float *)(scratch + l.decays), h->ready = (int32_t *)(scratch + l.ready);
  h->initial = has_initial(h) ? (float *)(scratch + l.initial) : NULL;
}

/* Parts after the first add to its output. */
static kr_ssd_hopper_params ssd_hopper_plan_of(const kr_ssd_args *a, int part) {
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  kr_ssd_params whole = kr_ssd_params_of(&in, 0);
  whole.out = kr_ssd_sequence(&a->out, 0, a->L), whole.final = kr_ssd_states(&a->final_states);
  return (kr_ssd_hopper_params){.p = kr_ssd_part_of(&whole, part, KR_SSD_MOST_STATES), .n_ways = 1, .adds = part > 0};
}

/* Scratch shared by all parts in turn. */
static uint64_t walk_bytes(const krait_ctx *ctx, const kr_ssd_args *a) {
  uint64_t most = 0;
  for (int part = 0; part * KR_SSD_MOST_STATES < a->N; part++) {
    kr_ssd_hopper_params h = ssd_hopper_plan_of(a, part);
    const uint64_t bytes = kr_ssd_hopper_cut(ctx, &h, h.p.N, a->G);
    most = bytes > most ? bytes : most;
  }
  return most;
}

uint64_t kr_ssd_hopper_scratch(const krait_ctx *ctx, const void *args) {
  const kr_ssd_args *a = args;
  return walk_bytes(ctx, a) + (uint64_t)(a->B * a->H) * sizeof(int32_t);
}

/* A dimension of one element has no stride of its own. L2 promotion stops at a row of a box: the next bytes are another
 * block's head. */
int32_t kr_ssd_hopper_map(const krait_ctx *ctx, kr_ssd_map *map, const kr_ssd_tensor *t, int64_t B, int64_t L,
                          int64_t H, int64_t n) {
  const kr_driver *driver = kr_cuda_driver(ctx->cuda);
  const uint64_t sizes[4] = {(uint64_t)n, (uint64_t)L, (uint64_t)H, (uint64_t)B};
  const uint64_t strides[3] = {(uint64_t)(L > 1 ? t->t : 128) * 2, (uint64_t)(H > 1 ? t->h : 128) * 2,
                               (uint64_t)(B > 1 ? t->b : 128) * 2};
  const uint32_t box[4] = {64, KR_SSD_CHUNK, 1, 1}, steps[4] = {1, 1, 1, 1};
  const int type = t->dtype == KRAIT_BF16 ? KR_CU_MAP_BF16 : KR_CU_MAP_F16;
  KR_CU_TRY(driver,
            TensorMapEncodeTiled(map, type, 4, t->data, sizes, strides, box, steps, 0, KR_CU_MAP_SWIZZLE_128,
                                 KR_CU_MAP_PROMOTE_128, 0),
            "describing a tensor");
  return KRAIT_OK;
}

static int32_t make_ssd_hopper_maps(const krait_ctx *ctx, kr_ssd_hopper_params *h) {
  const kr_ssd_params *const p = &h->p;
  const int64_t groups = p->H / p->heads;
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver encodes tensor maps only in its current context */
  int32_t status = kr_ssd_hopper_map(ctx, &h->x, &p->x, p->B, p->L, p->H, p->P);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &h->Bmat, &p->Bmat, p->B, p->L, groups, p->N);
  if (status == KRAIT_OK) status = kr_ssd_hopper_map(ctx, &h->Cmat, &p->Cmat, p->B, p->L, groups, p->N);
  if (status == KRAIT_OK && p->z.data) status = kr_ssd_hopper_map(ctx, &h->z, &p->z, p->B, p->L, p->H, p->P);
  kr_cuda_end(ctx->cuda);
  return status;
}

static int32_t launch_ssd_hopper(const krait_ctx *ctx, const kr_ssd_hopper_params *h, int64_t N, int leaves,
                                 void *stream) {
  const int width = ssd_hopper_width_of(N), dtype = h->p.x.dtype;
  const uint32_t n_heads = (uint32_t)heads_of(N), messages = (uint32_t)h->n_blocks * n_heads,
                 flags = h->p.spoilt ? (uint32_t)(h->p.B * h->p.H) : 0;
  const uint32_t marks = ((messages > flags ? messages : flags) + KR_SSD_THREADS - 1) / KR_SSD_THREADS,
                 initial = h->initial ? (uint32_t)(h->n_units * ssd_hopper_columns_of(N) / 8) * n_heads : 0;
  const kr_grid beginning = {
      .x = marks > initial ? marks : initial, .block = KR_SSD_THREADS, .is_pdl = 1, .stream = stream};
  const kr_grid walk = {.x = (uint32_t)h->n_blocks,
                        .block = 128 * (n_heads + 1),
                        .shared_bytes = ssd_hopper_shared_bytes(N, leaves == OUTPUT),
                        .is_pdl = 1,
                        .stream = stream},
                ending = {.x = (uint32_t)h->n_blocks,
                          .block = 128 * (n_heads + 1),
                          .shared_bytes = ssd_hopper_shared_bytes(N, 0),
                          .is_pdl = 1,
                          .stream = stream};
  const uint64_t tier = KRAIT_CAP_CUDA_HOPPER;
  const int is_passed = kr_ssd_passes_D(&h->p) && !h->p.has_token_D && !h->p.seq_idx && !h->p.z.data && !h->S,
            kernel = leaves == OUTPUT && is_passed ? PASSED : leaves;
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &begin[width][dtype], &beginning, h, sizeof *h));
  if (h->joins) KR_TRY(kr_cuda_launch(ctx->cuda, tier, &walks[ENDS][width][dtype], &ending, h, sizeof *h));
  return kr_cuda_launch(ctx->cuda, tier, &walks[kernel][width][dtype], &walk, h, sizeof *h);
}

int32_t kr_ssd_hopper_launch_states(const krait_ctx *ctx, const kr_ssd_hopper_params *h, int64_t N, void *stream) {
  return launch_ssd_hopper(ctx, h, N, STATES, stream);
}

int32_t kr_ssd_hopper_launch_output(const krait_ctx *ctx, kr_ssd_hopper_params *h, void *stream) {
  KR_TRY(make_ssd_hopper_maps(ctx, h));
  return launch_ssd_hopper(ctx, h, h->p.N, OUTPUT, stream);
}

int32_t *kr_ssd_hopper_spoilt(const krait_ctx *ctx, const kr_ssd_args *a) {
  return (int32_t *)((char *)a->call.scratch + walk_bytes(ctx, a));
}

/* S: or NULL. */
static int32_t run_hopper_scan(const krait_ctx *ctx, const kr_ssd_args *a, void *S) {
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  kr_ssd_params all = kr_ssd_params_of(&in, 0);
  all.out = kr_ssd_sequence(&a->out, 0, a->L), all.final = kr_ssd_states(&a->final_states);
  all.spoilt = kr_ssd_hopper_spoilt(ctx, a);
  for (int part = 0; part * KR_SSD_MOST_STATES < a->N; part++) {
    kr_ssd_hopper_params h = ssd_hopper_plan_of(a, part);
    kr_ssd_hopper_cut(ctx, &h, h.p.N, a->G);
    kr_ssd_hopper_place(&h, h.p.N, a->call.scratch);
    h.p.spoilt = all.spoilt, h.S = S;
    KR_TRY(kr_ssd_hopper_launch_output(ctx, &h, a->call.stream));
  }
  return kr_ssd_walk_nonfinite(ctx, &all, a->call.stream);
}

int32_t kr_ssd_hopper(const krait_ctx *ctx, const void *args) { return run_hopper_scan(ctx, args, NULL); }
int32_t kr_ssd_hopper_leaving(const krait_ctx *ctx, const kr_ssd_args *a, void *S) {
  return run_hopper_scan(ctx, a, S);
}
