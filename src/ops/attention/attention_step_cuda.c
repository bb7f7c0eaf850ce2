/* attention_step_cuda.c: a decode step's rotary embedding, append and attention in one kernel on a GPU. */
#include <math.h>

#include "attention/attention_step_impls.h"
#include "attention_step.h"
#include "cuda_impl.h"
#include "cuda_views.h"
#include "op_list.h"
#include "overlap.h"
#include "status.h"
#include "view.h"

/* Up to FEW_KEYS one block is faster than a cluster; a part has at least KEYS_OF_A_PART. */
enum { FEW_KEYS = 512, KEYS_OF_A_PART = 128, MOST_KEYS = 32768, MOST_HEADS = 2 * KR_STEP_HEADS };

/* Blocks that share a key head's query heads. */
static int64_t head_groups_of(const kr_attention_step_args *a) {
  return (a->H / a->Hk + KR_STEP_HEADS - 1) / KR_STEP_HEADS;
}
/* Parts that pay, without regard to other sequences. */
static int64_t parts_alone(const kr_attention_step_args *a) {
  const int64_t n = a->Lk / KEYS_OF_A_PART;
  return a->Lk <= FEW_KEYS ? 1 : n < KR_STEP_PARTS ? n : KR_STEP_PARTS;
}
static int64_t attention_step_parts_of(const krait_ctx *ctx, const kr_attention_step_args *a) {
  const int64_t rows = a->B > 0 ? a->B * a->Hk * head_groups_of(a) : 1,
                n = kr_cuda_info(ctx->cuda)->n_multiprocessors / rows, most = parts_alone(a);
  return n < 1 ? 1 : n < most ? n : most;
}

static kr_step_rows rows_of_step(const kr_view *v) { return (kr_step_rows){v->data, v->stride[0], v->stride[2]}; }
static kr_step_cache cache_of_step(const kr_view *v) {
  return (kr_step_cache){v->data, v->stride[0], v->stride[1], v->stride[2]};
}
static kr_step_angles angles_of_step(const kr_view *v) { return (kr_step_angles){v->data, v->stride[0], v->stride[1]}; }

static kr_attention_step_params attention_step_plan_of(const krait_ctx *ctx, const kr_attention_step_args *a) {
  const uint32_t both = KR_CALL_PDL | KR_CALL_STATE_PDL;
  const int64_t heads = a->H / a->Hk, groups = head_groups_of(a), parts = attention_step_parts_of(ctx, a),
                at_once = parts * KR_STEP_WARPS * KR_STEP_KEYS;
  return (kr_attention_step_params){.lengths = {a->cache_seqlens.data, a->cache_seqlens.stride[0]},
                                    .cache_row = {a->cache_batch_idx.data, a->cache_batch_idx.stride[0]},
                                    .k_cache = cache_of_step(&a->k_cache),
                                    .v_cache = cache_of_step(&a->v_cache),
                                    .Lk = (int32_t)a->Lk,
                                    .Bk = (int32_t)a->Bk,
                                    .Hk = (int32_t)a->Hk,
                                    .heads = (int32_t)heads,
                                    .T = (int32_t)a->T,
                                    .n_parts = (int32_t)parts,
                                    .n_stages = a->Lk <= at_once ? 1
                                                : a->D == 64     ? KR_STEP_STAGES(64)
                                                                 : KR_STEP_STAGES(128),
                                    .n_groups = (int32_t)groups,
                                    .group = (int32_t)((heads + groups - 1) / groups),
                                    .is_known = (a->call.flags & both) == both,
                                    .scale = a->scale != 0 ? a->scale : (float)(1 / sqrt((double)a->D)),
                                    .eps = a->eps,
                                    .cos = angles_of_step(&a->cos),
                                    .sin = angles_of_step(&a->sin),
                                    .q_norm = a->q_norm.data,
                                    .k_norm = a->k_norm.data,
                                    .q_norm_row = a->q_norm.stride[0],
                                    .k_norm_row = a->k_norm.stride[0],
                                    .q = rows_of_step(&a->q),
                                    .k = rows_of_step(&a->k),
                                    .v = rows_of_step(&a->v),
                                    .out = rows_of_step(&a->out)};
}

static uint32_t shared_of(const kr_attention_step_params *p, int64_t D) {
  return D == 64 ? KR_STEP_SHARED(64, p->n_stages, p->group, p->n_parts)
                 : KR_STEP_SHARED(128, p->n_stages, p->group, p->n_parts);
}

static int is_norm_taken(const kr_view *v) { return !kr_has(v) || (v->dtype == KRAIT_F32 && v->stride[1] == 1); }

/* Whether runs of 16 bytes of a tensor of heads are aligned. */
static int are_heads_aligned(const kr_view *v) {
  return v->stride[3] == 1 && v->stride[2] % 8 == 0 && v->stride[1] % 8 == 0 && v->stride[0] % 8 == 0 &&
         (uintptr_t)v->data % 16 == 0;
}

const char *kr_attention_step_hopper_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_step_args *a = args;
  if (!kr_cuda_driver(ctx->cuda)->LaunchKernelEx) return "this driver has no clusters";
  if (a->q.dtype != KRAIT_F16 && a->q.dtype != KRAIT_BF16) return "float32";
  if ((a->D != 64 && a->D != 128) || 2 * a->R != a->D || a->call.flags & KRAIT_ROTARY_INTERLEAVED)
    return "heads that are not 64 or 128 channels, all rotated in halves";
  if (a->cos.dtype != KRAIT_F32 || a->sin.dtype != KRAIT_F32 || a->T < 1) return "angles that are not float32";
  if (!is_norm_taken(&a->q_norm) || !is_norm_taken(&a->k_norm)) return "weights of norms that are not rows of float32";
  if (a->H / a->Hk > MOST_HEADS) return "more than 16 heads per key head";
  if (a->scale < 0) return "a scale that is not positive";
  if (a->B == 0 || a->Bk == 0 || a->Lk == 0) return "nothing to do";
  if (a->Lk > MOST_KEYS) return "more than 32768 keys: the calls apart are faster";
  const int64_t n = attention_step_parts_of(ctx, a), blocks = n * a->B * a->Hk * head_groups_of(a),
                slots = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  if (blocks > slots || (n < parts_alone(a) && 4 * blocks < 3 * slots))
    return "key heads that do not fill the multiprocessors evenly: the calls apart are faster";
  if (!are_heads_aligned(&a->q) || !are_heads_aligned(&a->k) || !are_heads_aligned(&a->v) ||
      !are_heads_aligned(&a->k_cache) || !are_heads_aligned(&a->v_cache) || !are_heads_aligned(&a->out))
    return "rows not 16-byte aligned";
  const kr_attention_step_params p = attention_step_plan_of(ctx, a);
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)shared_of(&p, a->D) ? "too little shared memory" : NULL;
}

int32_t kr_attention_step_hopper(const krait_ctx *ctx, const void *args) {
#define BY_TYPE(name)                                             \
  {                                                               \
    {"attention_step_f16", name}, { "attention_step_bf16", name } \
  }
  static const kr_kernel kernels[2][2][2] = {
      {BY_TYPE("kr_attention_step_64"), BY_TYPE("kr_attention_step_128")},
      {BY_TYPE("kr_attention_normed_step_64"), BY_TYPE("kr_attention_normed_step_128")}};
#undef BY_TYPE
  const kr_attention_step_args *a = args;
  const kr_attention_step_params p = attention_step_plan_of(ctx, a);
  const kr_grid grid = {.x = (uint32_t)(a->B * a->Hk * p.n_groups * p.n_parts),
                        .block = KR_STEP_THREADS,
                        .shared_bytes = shared_of(&p, a->D),
                        .cluster = (uint32_t)p.n_parts,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER,
                        &kernels[kr_has(&a->q_norm)][a->D == 128][a->q.dtype == KRAIT_BF16], &grid, &p, sizeof p);
}
