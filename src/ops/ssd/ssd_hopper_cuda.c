/* ssd_hopper_cuda.c: the SSD on warpgroups: tensor maps, how the work is cut (ssd_hopper_plan.h), launches. */
#include "cuda_row.h"
#include "op_list.h"
#include "ssd_hopper_plan.h"
#include "ssd_host.h"
#include "ssd_rows.h"
#include "status.h"
#include "view.h"

#define BY_STATES(name) {{{NULL, NULL}, {"ssd_hopper_f16_64", name}, {"ssd_hopper_bf16_64", name}}, {{NULL, NULL}, {"ssd_hopper_f16_128", name}, {"ssd_hopper_bf16_128", name}}, \
                         {{NULL, NULL}, {"ssd_hopper_f16_256", name}, {"ssd_hopper_bf16_256", name}}}
static const kr_kernel output[3][3] = BY_STATES("kr_ssd_hopper"), ends[3][3] = BY_STATES("kr_ssd_hopper_ends"), join[3][3] = BY_STATES("kr_ssd_hopper_join"), begin[3][3] = BY_STATES("kr_ssd_hopper_begin");

static int width_of(int64_t N) { return N <= 64 ? 0 : N <= 128 ? 1 : 2; }
static int64_t heads_of(int64_t N) { return KR_SSD_HOPPER_HEADS(N); }
static int64_t columns_of(int64_t N) { return (int64_t)64 << width_of(N); }
static uint32_t shared_bytes(int64_t N) { return N <= 64 ? KR_SSD_HOPPER_SHARED(64) : N <= 128 ? KR_SSD_HOPPER_SHARED(128) : KR_SSD_HOPPER_SHARED(256); }

/* Whether boxes take a tensor (batch, token, head, channel): strides of dimensions with more than one element. */
static int boxes_take(const krait_view *v, int64_t B, int64_t L, int64_t H) {
  const int64_t sizes[3] = {B, L, H}, limit = (int64_t)1 << 38;
  if (v->stride[3] != 1 || (uintptr_t)v->data % 16 != 0) return 0;
  for (int i = 0; i < 3; i++)
    if (sizes[i] > 1 && (v->stride[i] % 8 != 0 || v->stride[i] <= 0 || v->stride[i] >= limit)) return 0;
  return 1;
}

const char *kr_ssd_hopper_refuse(const krait_ctx *ctx, const void *args) {
  const krait_ssd_args *a = args;
  const char *why = kr_ssd_chunks_refuse(ctx, args);
  if (why) return why;
  if (!kr_cuda_driver(ctx->cuda)->TensorMapEncodeTiled) return "this driver has no tensor maps";
  if (kr_has(&a->z)) return "a gate";
  if (a->call.flags & KRAIT_SSD_REVERSE) return "a walk back";
  if (a->P % 8 != 0) return "P not a multiple of 8";
  if (a->L > INT32_MAX / 2 || a->B * a->H * ((a->P + KR_SSD_P - 1) / KR_SSD_P) * ((a->L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK) > INT32_MAX / 2) return "more than 2^30 chunks of tokens";
  if (!boxes_take(&a->x, a->B, a->L, a->H) || !boxes_take(&a->Bmat, a->B, a->L, a->G) || !boxes_take(&a->Cmat, a->B, a->L, a->G)) return "rows that bulk copies do not take";
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)shared_bytes(a->N) ? "too little shared memory" : NULL;
}

static kr_ssd_hopper_plan plan_of(const krait_ssd_args *a) {
  const kr_ssd_inputs in = KR_SSD_INPUTS(a);
  kr_ssd_hopper_plan h = {.p = kr_ssd_plan_of(&in, 0)};
  h.p.out = kr_ssd_sequence(&a->out, 0, a->L), h.p.final = kr_ssd_states(&a->final_states);
  return h;
}

/* Below three quarters of a unit for each multiprocessor it is worth to walk over states twice; ranges then lie within units. */
static void cut_work(kr_ssd_hopper_plan *h, int64_t N, int64_t G, int64_t n_multiprocessors) {
  const int64_t n_heads = heads_of(N);
  h->n_chunks = (int32_t)((h->p.L + KR_SSD_CHUNK - 1) / KR_SSD_CHUNK);
  h->n_groups = (int32_t)G, h->per_group = (int32_t)(((int64_t)h->p.heads * h->p.blocks_per_head + n_heads - 1) / n_heads);
  const int64_t units = (int64_t)h->p.B * h->n_groups * h->per_group, two_each = units * (h->n_chunks / 2);
  h->n_units = (int32_t)units;
  h->joins = units * 4 < n_multiprocessors * 3 && two_each > units;
  h->n_blocks = (int32_t)(units < n_multiprocessors ? units : n_multiprocessors);
  if (h->joins) h->n_blocks = (int32_t)(two_each < n_multiprocessors ? two_each : n_multiprocessors);
  h->per_block = (int32_t)(units * h->n_chunks / h->n_blocks), h->longer = (int32_t)(units * h->n_chunks % h->n_blocks);
}

/* Bytes from scratch's begin: states, initial ones, what is left of them, messages, spoilt heads. */
typedef struct layout {
  uint64_t initial, decays, ready, spoilt, end;
} layout;

static layout lay_out(const kr_ssd_hopper_plan *h, int64_t N) {
  const uint64_t pieces = (uint64_t)(h->n_blocks + (h->joins ? h->n_units : 0)), n_heads = (uint64_t)heads_of(N);
  const uint64_t state = n_heads * 64 * (uint64_t)columns_of(N) * sizeof(float);
  const int passes = h->joins || h->n_blocks < h->n_units;
  layout l = {.initial = passes ? kr_scratch_round(pieces * state) : 0};
  l.decays = l.initial + (h->p.initial.data ? kr_scratch_round((uint64_t)h->n_units * state) : 0);
  l.ready = l.decays + kr_scratch_round(pieces * n_heads * sizeof(float));
  l.spoilt = l.ready + kr_scratch_round((uint64_t)h->n_blocks * n_heads * sizeof(int32_t));
  l.end = l.spoilt + (uint64_t)((int64_t)h->p.B * h->p.H) * sizeof(int32_t);
  return l;
}

static kr_ssd_hopper_plan cut_plan(const krait_ctx *ctx, const krait_ssd_args *a) {
  kr_ssd_hopper_plan h = plan_of(a);
  cut_work(&h, a->N, a->G, kr_cuda_info(ctx->cuda)->n_multiprocessors);
  return h;
}

uint64_t kr_ssd_hopper_scratch(const krait_ctx *ctx, const void *args) {
  const krait_ssd_args *a = args;
  const kr_ssd_hopper_plan h = cut_plan(ctx, a);
  return lay_out(&h, a->N).end;
}

/* Boxes of 64 tokens by 64 channels; a dimension of one element has no stride of its own. */
static int32_t make_map(const krait_ctx *ctx, kr_ssd_map *map, const krait_view *v, int64_t B, int64_t L, int64_t H, int64_t n) {
  const kr_driver *driver = kr_cuda_driver(ctx->cuda);
  const uint64_t sizes[4] = {(uint64_t)n, (uint64_t)L, (uint64_t)H, (uint64_t)B};
  const uint64_t strides[3] = {(uint64_t)(L > 1 ? v->stride[1] : 128) * 2, (uint64_t)(H > 1 ? v->stride[2] : 128) * 2, (uint64_t)(B > 1 ? v->stride[0] : 128) * 2};
  const uint32_t box[4] = {64, KR_SSD_CHUNK, 1, 1}, steps[4] = {1, 1, 1, 1};
  const int type = v->dtype == KRAIT_BF16 ? KR_CU_MAP_BF16 : KR_CU_MAP_F16;
  KR_CU_TRY(driver, TensorMapEncodeTiled(map, type, 4, v->data, sizes, strides, box, steps, 0, KR_CU_MAP_SWIZZLE_128, KR_CU_MAP_PROMOTE_256, 0), "describing a tensor");
  return KRAIT_OK;
}

static int32_t make_maps(const krait_ctx *ctx, kr_ssd_hopper_plan *h, const krait_ssd_args *a) {
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver describes tensors of its current context alone */
  int32_t status = make_map(ctx, &h->x, &a->x, a->B, a->L, a->H, a->P);
  if (status == KRAIT_OK) status = make_map(ctx, &h->Bmat, &a->Bmat, a->B, a->L, a->G, a->N);
  if (status == KRAIT_OK) status = make_map(ctx, &h->Cmat, &a->Cmat, a->B, a->L, a->G, a->N);
  kr_cuda_end(ctx->cuda);
  return status;
}

int32_t kr_ssd_hopper(const krait_ctx *ctx, const void *args) {
  const krait_ssd_args *a = args;
  const int width = width_of(a->N), dtype = a->x.dtype;
  const uint32_t n_heads = (uint32_t)heads_of(a->N);
  kr_ssd_hopper_plan h = cut_plan(ctx, a);
  const layout l = lay_out(&h, a->N);
  char *const scratch = a->call.scratch;
  h.states = (float *)scratch, h.decays = (float *)(scratch + l.decays), h.ready = (int32_t *)(scratch + l.ready), h.p.spoilt = (int32_t *)(scratch + l.spoilt);
  if (h.p.initial.data) h.initial = (float *)(scratch + l.initial);
  KR_TRY(make_maps(ctx, &h, a));
  const uint32_t marks = (uint32_t)(h.p.B * h.p.H) > (uint32_t)h.n_blocks * n_heads ? (uint32_t)(h.p.B * h.p.H) : (uint32_t)h.n_blocks * n_heads;
  const uint32_t marking_blocks = (marks + KR_SSD_THREADS - 1) / KR_SSD_THREADS, initial_blocks = h.initial ? (uint32_t)(h.n_units * columns_of(a->N) / 8) * n_heads : 0;
  const kr_grid marking = {.x = marking_blocks > initial_blocks ? marking_blocks : initial_blocks, .block = KR_SSD_THREADS, .stream = a->call.stream};
  const kr_grid walk = {.x = (uint32_t)h.n_blocks, .block = 128 * (n_heads + 1), .shared_bytes = shared_bytes(a->N), .stream = a->call.stream};
  const kr_grid joining = {.x = (uint32_t)(columns_of(a->N) / 8), .y = n_heads, .z = (uint32_t)h.n_units, .block = KR_SSD_THREADS, .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &begin[width][dtype], &marking, &h);
  if (h.joins) kr_chain_add(&chain, &ends[width][dtype], &walk, &h), kr_chain_add(&chain, &join[width][dtype], &joining, &h);
  kr_chain_add(&chain, &output[width][dtype], &walk, &h);
  KR_TRY(kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &chain));
  return kr_ssd_walk_spoilt(ctx, &h.p, a->call.stream);
}
