/* attention_step_cuda.c: a decode step's rotary embedding, append and attention in one kernel on a GPU. */
#include "attention/attention_step_impls.h"
#include "attention_cuda.h"
#include "attention_keys.h"
#include "cuda_impl.h"
#include "cuda_views.h"
#include "op_list.h"
#include "overlap.h"
#include "status.h"
#include "view.h"

/* Up to FEW_KEYS one block is faster than a cluster; a part has at least KEYS_OF_A_PART. */
enum { FEW_KEYS = 512, KEYS_OF_A_PART = 128, MOST_KEYS = 32768 };

static kr_attention_tensor attention_step_tensor(const kr_view *v) {
  return (kr_attention_tensor){
      .data = v->data, .b = v->stride[0], .t = v->stride[1], .h = v->stride[2], .d = v->stride[3], .dtype = v->dtype};
}
static kr_attention_tensor attention_step_angles(const kr_view *v) {
  return (kr_attention_tensor){.data = v->data, .t = v->stride[0], .d = v->stride[1], .dtype = v->dtype};
}

/* Parts that pay, without regard to other sequences. */
static int64_t parts_alone(const kr_attention_step_args *a) {
  const int64_t n = a->Lk / KEYS_OF_A_PART;
  return a->Lk <= FEW_KEYS ? 1 : n < KR_KEYS_CLUSTER ? n : KR_KEYS_CLUSTER;
}
static int64_t attention_step_parts_of(const krait_ctx *ctx, const kr_attention_step_args *a) {
  const int64_t n = kr_cuda_info(ctx->cuda)->n_multiprocessors / (a->B > 0 ? a->B * a->Hk : 1), most = parts_alone(a);
  return n < 1 ? 1 : n < most ? n : most;
}

static kr_attention_step_params attention_step_plan_of(const krait_ctx *ctx, const kr_attention_step_args *a) {
  const uint32_t both = KR_CALL_PDL | KR_CALL_STATE_PDL;
  kr_attention_args attention = kr_attention_of(a);
  attention.q = a->q;
  kr_attention_step_params p = {.params = kr_attention_params_of(&attention),
                                .fresh = {.k = attention_step_tensor(&a->k),
                                          .v = attention_step_tensor(&a->v),
                                          .cos = attention_step_angles(&a->cos),
                                          .sin = attention_step_angles(&a->sin),
                                          .q_norm = a->q_norm.data,
                                          .k_norm = a->k_norm.data,
                                          .q_norm_row = a->q_norm.stride[0],
                                          .k_norm_row = a->k_norm.stride[0],
                                          .eps = a->eps,
                                          .lengths = {a->cache_seqlens.data, a->cache_seqlens.stride[0]},
                                          .T = (int32_t)a->T,
                                          .is_known = (a->call.flags & both) == both}};
  p.params.n_q_tiles = 1, p.params.n_splits = (int32_t)attention_step_parts_of(ctx, a);
  return p;
}

static uint32_t shared_of(const kr_attention_step_params *p) {
  return p->params.D == 64 ? KR_STEP_SHARED(64, p->params.n_splits) : KR_STEP_SHARED(128, p->params.n_splits);
}

/* Rows that a lane reads in pairs. */
static int are_norms_paired(const kr_view *v) {
  return !kr_has(v) || (v->dtype == KRAIT_F32 && v->stride[1] == 1 && v->stride[0] % 2 == 0 && kr_is_aligned(v));
}

const char *kr_attention_step_hopper_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_step_args *a = args;
  if (!kr_cuda_driver(ctx->cuda)->LaunchKernelEx) return "this driver has no clusters";
  if (a->q.dtype != KRAIT_F16 && a->q.dtype != KRAIT_BF16) return "float32";
  if ((a->D != 64 && a->D != 128) || 2 * a->R != a->D || a->call.flags & KRAIT_ROTARY_INTERLEAVED)
    return "heads that are not 64 or 128 channels, all rotated in halves";
  if (a->cos.dtype != KRAIT_F32 || a->sin.dtype != KRAIT_F32 || a->T < 1) return "angles that are not float32";
  if (!are_norms_paired(&a->q_norm) || !are_norms_paired(&a->k_norm))
    return "weights of norms that are not rows of float32, aligned to 16 bytes";
  if (a->H / a->Hk > KR_STEP_HEADS) return "more than 16 heads per key head";
  if (a->scale < 0) return "a scale that is not positive";
  if (a->B == 0 || a->Bk == 0 || a->Lk == 0) return "nothing to do";
  if (a->Lk > MOST_KEYS) return "more than 32768 keys: the calls apart are faster";
  const int64_t n = attention_step_parts_of(ctx, a), blocks = n * a->B * a->Hk,
                slots = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  if (blocks > slots || (n < parts_alone(a) && 4 * blocks < 3 * slots))
    return "key heads that do not fill the multiprocessors evenly: the calls apart are faster";
  const kr_attention_step_params p = attention_step_plan_of(ctx, a);
  if (!kr_attention_rows_take_packs(&p.params.q) || !kr_attention_rows_take_packs(&p.params.k) ||
      !kr_attention_rows_take_packs(&p.params.v) || !kr_attention_rows_take_packs(&p.params.out) ||
      !kr_attention_rows_take_packs(&p.fresh.k) || !kr_attention_rows_take_packs(&p.fresh.v))
    return "rows not 16-byte aligned";
  return kr_cuda_info(ctx->cuda)->shared_bytes < (int64_t)shared_of(&p) ? "too little shared memory" : NULL;
}

int32_t kr_attention_step_hopper(const krait_ctx *ctx, const void *args) {
#define BY_TYPE(name)                                             \
  {                                                               \
    {"attention_keys_f16", name}, { "attention_keys_bf16", name } \
  }
  static const kr_kernel kernels[2][2][2] = {
      {BY_TYPE("kr_attention_step_64"), BY_TYPE("kr_attention_step_128")},
      {BY_TYPE("kr_attention_normed_step_64"), BY_TYPE("kr_attention_normed_step_128")}};
#undef BY_TYPE
  const kr_attention_step_args *a = args;
  const kr_attention_step_params p = attention_step_plan_of(ctx, a);
  const int wide = a->D == 128;
  const kr_grid grid = {.x = (uint32_t)(a->B * a->Hk * p.params.n_splits),
                        .block = 32 * (uint32_t)(wide ? KR_KEYS_WARPS(128, 1) : KR_KEYS_WARPS(64, 1)),
                        .shared_bytes = shared_of(&p),
                        .cluster = (uint32_t)p.params.n_splits,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_HOPPER, &kernels[kr_has(&a->q_norm)][wide][a->q.dtype == KRAIT_BF16],
                        &grid, &p, sizeof p);
}
