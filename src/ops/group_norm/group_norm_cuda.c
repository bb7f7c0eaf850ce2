/* group_norm_cuda.c: plans and launches of the norm over groups on a GPU. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "group_norm/group_norm_params.h"
#include "op_list.h"
#include "view.h"

static const kr_kernel sums[2][3] = {KR_BY_TYPE("group_norm", "kr_group_norm_sums_one"),
                                     KR_BY_TYPE("group_norm", "kr_group_norm_sums")},
                       merge[3] = KR_BY_TYPE("group_norm", "kr_group_norm_merge"),
                       apply[2][3] = {KR_BY_TYPE("group_norm", "kr_group_norm_apply_one"),
                                      KR_BY_TYPE("group_norm", "kr_group_norm_apply")};

/* Chunks, and so the result's bits, depend on the shape alone. */
static kr_group_norm_params plan_group_norm(const kr_group_norm_args *a, int width) {
  enum { ROWS = 64, BLOCKS = 4096 }; /* positions of a thread in a chunk; blocks that keep any GPU busy */
  kr_group_norm_params p = {.x = a->x, .weight = a->weight, .bias = a->bias, .out = a->out, .S = a->S,
                            .C = (int32_t)a->C, .G = (int32_t)a->G, .each = (int32_t)(a->C / a->G),
                            .activation = a->activation, .eps = a->eps};
  const int64_t runs = (a->C + width - 1) / width,
                least = (a->S + KR_GROUP_NORM_MOST_CHUNKS - 1) / KR_GROUP_NORM_MOST_CHUNKS;
  p.n_runs = (int32_t)(runs < KR_GROUP_NORM_THREADS ? runs : KR_GROUP_NORM_THREADS);
  p.n_rows = KR_GROUP_NORM_THREADS / p.n_runs, p.by_runs = kr_divisor_of(p.n_runs);
  p.chunk = (int32_t)(least < ROWS * p.n_rows ? ROWS * p.n_rows : least);
  p.n_chunks = (int32_t)((a->S + p.chunk - 1) / p.chunk);
  const int64_t blocks = (a->S + p.n_rows - 1) / p.n_rows;
  p.n_blocks = (int32_t)(blocks < BLOCKS ? blocks : BLOCKS);
  p.sums = a->call.scratch, p.scale = p.sums + a->B * p.n_chunks * a->C * 2, p.shift = p.scale + a->B * a->C;
  return p;
}

static int is_in_packs(const kr_view *v, int64_t width) {
  return v->stride[2] == 1 && v->stride[0] % width == 0 && v->stride[1] % width == 0 && kr_is_aligned(v);
}
static int64_t width_of(const kr_group_norm_args *a) {
  const int64_t width = a->x.dtype == KRAIT_F32 ? 4 : 8;
  return a->C % width == 0 && is_in_packs(&a->x, width) && is_in_packs(&a->out, width) ? width : 1;
}

const char *kr_group_norm_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_group_norm_args *a = args;
  (void)ctx;
  if (a->weight.dtype == KRAIT_F64 || a->bias.dtype == KRAIT_F64) return "no float64 on a GPU";
  return a->B > 65535 || a->C > 1 << 23 || a->S >= (int64_t)1 << 40 ? "more than 65535 items, or 2^23 channels" : NULL;
}

/* For either width. */
uint64_t kr_group_norm_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_group_norm_args *a = args;
  const kr_group_norm_params one = plan_group_norm(a, 1), pack = plan_group_norm(a, a->x.dtype == KRAIT_F32 ? 4 : 8);
  const int64_t n_chunks = one.n_chunks > pack.n_chunks ? one.n_chunks : pack.n_chunks;
  (void)ctx;
  return kr_scratch_round((uint64_t)(a->B * (2 * n_chunks + 2) * a->C) * sizeof(float));
}

static int32_t run_group_norm(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_group_norm_args *a = args;
  const int64_t width = width_of(a);
  const kr_group_norm_params p = plan_group_norm(a, (int)width);
  const uint32_t across = kr_blocks_of(a->C, width * p.n_runs);
  const kr_grid chunks = {.x = (uint32_t)p.n_chunks, .y = across, .z = (uint32_t)a->B, .block = KR_GROUP_NORM_THREADS,
                          .stream = a->call.stream},
                groups = {.x = (uint32_t)a->G, .y = (uint32_t)a->B, .block = KR_GROUP_NORM_THREADS,
                          .stream = a->call.stream},
                all = {.x = (uint32_t)p.n_blocks, .y = across, .z = (uint32_t)a->B, .block = KR_GROUP_NORM_THREADS,
                       .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  if (a->B == 0) return KRAIT_OK;
  kr_chain_add(&chain, &sums[width > 1][a->x.dtype], &chunks, &p);
  kr_chain_add(&chain, &merge[a->x.dtype], &groups, &p);
  kr_chain_add(&chain, &apply[width > 1][a->x.dtype], &all, &p);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

KR_CUDA_TIERS(group_norm, run_group_norm)
