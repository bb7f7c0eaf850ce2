/* rotary_cuda.c: the rotary embedding and the cache append on a GPU. */
#include "attention/rotary_append_impls.h"
#include "cuda_impl.h"
#include "cuda_views.h"
#include "op_list.h"
#include "overlap.h"
#include "rotary_impls.h"
#include "rotary_params.h"
#include "status.h"
#include "view.h"

static kr_attention_tensor rotary_tensor(const kr_view *v) {
  return (kr_attention_tensor){
      .data = v->data, .b = v->stride[0], .t = v->stride[1], .h = v->stride[2], .d = v->stride[3], .dtype = v->dtype};
}
static kr_attention_tensor rotary_angles(const kr_view *v) {
  return (kr_attention_tensor){.data = v->data, .t = v->stride[0], .d = v->stride[1], .dtype = v->dtype};
}
static kr_attention_index rotary_indices(const kr_view *v) { return (kr_attention_index){v->data, v->stride[0]}; }

static const char *refuse_rotary_sizes(int64_t rows, int64_t H, int64_t most) {
  if (rows * H / 4 >= INT32_MAX) return "more than 2^33 heads of tokens";
  return most > INT32_MAX ? "a size above 2^31" : NULL;
}

const char *kr_rotary_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rotary_args *a = args;
  (void)ctx;
  return refuse_rotary_sizes(a->B * a->L, a->H, a->L > a->T ? a->L : a->T);
}

static int is_known(const kr_call *call) {
  const uint32_t both = KR_CALL_PDL | KR_CALL_STATE_PDL;
  return (call->flags & both) == both;
}

static kr_grid rotary_grid_of(int64_t units, const kr_call *call) {
  return (kr_grid){.x = (uint32_t)((units + 3) / 4),
                   .block = KR_ROTARY_THREADS,
                   .is_pdl = (call->flags & KR_CALL_PDL) != 0,
                   .stream = call->stream};
}

static kr_rotary_params rotary_plan_of(const kr_rotary_args *a) {
  const int packed = kr_has(&a->cu_seqlens);
  return (kr_rotary_params){.x = rotary_tensor(&a->x),
                          .out = rotary_tensor(&a->out),
                          .cos = rotary_angles(&a->cos),
                          .sin = rotary_angles(&a->sin),
                          .offsets = rotary_indices(&a->offsets),
                          .cu = rotary_indices(&a->cu_seqlens),
                          .B = (int32_t)a->B,
                          .L = (int32_t)a->L,
                          .H = (int32_t)a->H,
                          .D = (int32_t)a->D,
                          .R = (int32_t)a->R,
                          .T = (int32_t)a->T,
                          .interleaved = (a->call.flags & KRAIT_ROTARY_INTERLEAVED) != 0,
                          .still = (a->call.flags & KRAIT_ROTARY_STILL) != 0,
                          .sign = a->call.flags & KRAIT_ROTARY_INVERSE ? -1.0f : 1.0f,
                          .packed = packed,
                          .is_known = is_known(&a->call)};
}

int32_t kr_rotary_cuda(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernel = {"rotary", "kr_rotary"};
  const kr_rotary_args *a = args;
  const kr_rotary_params p = rotary_plan_of(a);
  if (a->B == 0 || a->L == 0) return KRAIT_OK;
  const kr_grid grid = rotary_grid_of((p.packed ? 1 : a->B) * a->L * a->H, &a->call);
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &kernel, &grid, &p, sizeof p);
}

/* Per head, enough threads for a GPU without one thread per head: of packs that are turned, and that are copied too. */
enum { MANY_PACKS = 1 << 14, MANY_APPENDED = 1 << 17, FEWEST_PACKED_TOKENS = 8 };

static int packs_take(const kr_attention_tensor *t) {
  return t->d == 1 && t->b % 8 == 0 && t->t % 8 == 0 && t->h % 8 == 0 && (uintptr_t)t->data % 16 == 0;
}

const char *kr_rotary_packs_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rotary_args *a = args;
  const kr_rotary_params p = rotary_plan_of(a);
  const char *why = kr_rotary_cuda_refuse(ctx, args);
  if (why) return why;
  if (a->x.dtype != KRAIT_F16 && a->x.dtype != KRAIT_BF16) return "x is not float16 or bfloat16";
  if (a->D % 8 != 0 || (!p.interleaved && a->R % 8 != 0) || !packs_take(&p.x) || !packs_take(&p.out))
    return "D, R, or the strides of x or out are not in packs of 16 bytes";
  return (p.packed ? 1 : a->B) * a->L * (a->D / 8) >= INT32_MAX || a->H > 8 * 65535 ? "2^31 packs or more" : NULL;
}

int32_t kr_rotary_packs(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernel = {"rotary", "kr_rotary_packs"};
  const kr_rotary_args *a = args;
  kr_rotary_params p = rotary_plan_of(a);
  if (a->B == 0 || a->L == 0) return KRAIT_OK;
  const int64_t turned = p.interleaved ? (2 * a->R + 7) / 8 : a->R / 8,
                per_token = turned + a->D / 8 - (p.interleaved ? turned : 2 * turned),
                n = (p.packed ? 1 : a->B) * a->L * per_token;
  p.heads = n >= MANY_PACKS || a->H > 65535 ? KR_ROTARY_HEADS : 1;
  const kr_grid grid = {.x = (uint32_t)((n + KR_ROTARY_THREADS - 1) / KR_ROTARY_THREADS),
                        .y = (uint32_t)((a->H + p.heads - 1) / p.heads),
                        .block = KR_ROTARY_THREADS,
                        .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &kernel, &grid, &p, sizeof p);
}

const char *kr_attention_append_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_append_args *a = args;
  (void)ctx;
  return refuse_rotary_sizes(a->B * (a->L + 1), a->Hk, a->Lk > a->T ? a->Lk : a->T);
}

static kr_rotary_params append_plan_of(const kr_attention_append_args *a) {
  const int turned = kr_has(&a->cos);
  return (kr_rotary_params){.x = rotary_tensor(&a->k),
                          .out = rotary_tensor(&a->k_cache),
                          .cos = rotary_angles(&a->cos),
                          .sin = rotary_angles(&a->sin),
                          .offsets = rotary_indices(&a->cache_seqlens),
                          .B = (int32_t)a->B,
                          .L = (int32_t)a->L,
                          .H = (int32_t)a->Hk,
                          .D = (int32_t)a->D,
                          .R = turned ? (int32_t)a->R : 0,
                          .T = (int32_t)a->T,
                          .interleaved = (a->call.flags & KRAIT_ROTARY_INTERLEAVED) != 0,
                          .sign = 1,
                          .is_known = is_known(&a->call),
                          .v = rotary_tensor(&a->v),
                          .v_cache = rotary_tensor(&a->v_cache),
                          .cache_row = rotary_indices(&a->cache_batch_idx),
                          .table = {a->block_table.data, a->block_table.stride[1]},
                          .table_b = a->block_table.stride[0],
                          .seqused = rotary_indices(&a->seqused),
                          .Dv = (int32_t)a->Dv,
                          .Bk = (int32_t)a->Bk,
                          .Lk = (int32_t)a->Lk,
                          .n_pages = (int32_t)a->n_pages};
}

static int32_t launch_append(const krait_ctx *ctx, const kr_rotary_params *p, const kr_call *call) {
  static const kr_kernel kernel = {"rotary", "kr_attention_append"};
  const kr_grid grid = rotary_grid_of((int64_t)p->B * (p->L ? p->L : 1) * (p->n_queries + p->H), call);
  return p->B ? kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &kernel, &grid, p, sizeof *p) : KRAIT_OK;
}

/* Many tokens of 16 bits in packs of 16 bytes. */
static int appends_packs(const kr_attention_append_args *a, const kr_rotary_params *p) {
  const int64_t per_head = a->D / 8 + a->Dv / 8;
  return a->L >= FEWEST_PACKED_TOKENS && p->x.dtype != KRAIT_F32 && p->out.dtype == p->x.dtype &&
         p->v.dtype == p->x.dtype && p->v_cache.dtype == p->x.dtype && a->D % 8 == 0 && a->Dv % 8 == 0 &&
         (p->interleaved || p->R % 8 == 0) && packs_take(&p->x) && packs_take(&p->out) && packs_take(&p->v) &&
         packs_take(&p->v_cache) && a->B * a->L * per_head < INT32_MAX && a->Hk <= 8 * 65535;
}

static int32_t launch_append_packs(const krait_ctx *ctx, kr_rotary_params *p, const kr_call *call) {
  static const kr_kernel kernel = {"rotary", "kr_attention_append_packs"};
  const int64_t turned = p->interleaved ? 0 : p->R / 8,
                n = (int64_t)p->B * p->L * (p->D / 8 - turned + p->Dv / 8);
  p->heads = n >= MANY_APPENDED || p->H > 65535 ? KR_ROTARY_HEADS : 1;
  const kr_grid grid = {.x = (uint32_t)((n + KR_ROTARY_THREADS - 1) / KR_ROTARY_THREADS),
                        .y = (uint32_t)((p->H + p->heads - 1) / p->heads),
                        .block = KR_ROTARY_THREADS,
                        .is_pdl = (call->flags & KR_CALL_PDL) != 0,
                        .stream = call->stream};
  return p->B ? kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &kernel, &grid, p, sizeof *p) : KRAIT_OK;
}

int32_t kr_attention_append_cuda(const krait_ctx *ctx, const void *args) {
  const kr_attention_append_args *a = args;
  kr_rotary_params p = append_plan_of(a);
  return appends_packs(a, &p) ? launch_append_packs(ctx, &p, &a->call) : launch_append(ctx, &p, &a->call);
}

/* ---- both in one launch, for few tokens: many are faster by packs ---- */

enum { MOST_HEADS = 4096 };

const char *kr_rotary_append_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rotary_append_args *a = args;
  const kr_attention_append_args append = kr_append_of(a);
  if (a->B * a->L * (a->H + a->Hk) > MOST_HEADS) return "more than 4096 heads of tokens";
  if (kr_has(&a->q_norm)) return "norms of heads";
  return kr_attention_append_cuda_refuse(ctx, &append);
}

int32_t kr_rotary_append_cuda(const krait_ctx *ctx, const void *args) {
  const kr_rotary_append_args *a = args;
  const kr_attention_append_args append = kr_append_of(a);
  kr_rotary_params p = append_plan_of(&append);
  p.q = rotary_tensor(&a->q), p.q_out = rotary_tensor(&a->out), p.n_queries = (int32_t)a->H;
  return launch_append(ctx, &p, &a->call);
}

/* ---- whole heads of many tokens ---- */

static kr_rotary_params whole_heads_plan_of(const kr_rotary_append_args *a) {
  const kr_attention_append_args append = kr_append_of(a);
  kr_rotary_params p = append_plan_of(&append);
  p.q = rotary_tensor(&a->q), p.q_out = rotary_tensor(&a->out), p.n_queries = (int32_t)a->H;
  p.q_norm = a->q_norm.data, p.k_norm = a->k_norm.data, p.eps = a->eps;
  p.q_norm_row = a->q_norm.stride[0], p.k_norm_row = a->k_norm.stride[0];
  return p;
}

/* Rows of float32 in aligned groups of four. */
static int is_norm_by_fours(const kr_view *v) {
  return !kr_has(v) || (v->dtype == KRAIT_F32 && v->stride[1] == 1 && v->stride[0] % 4 == 0 && kr_is_aligned(v));
}

const char *kr_rotary_append_heads_refuse(const krait_ctx *ctx, const void *args) {
  const kr_rotary_append_args *a = args;
  const kr_rotary_params p = whole_heads_plan_of(a);
  const kr_attention_append_args append = kr_append_of(a);
  const kr_attention_tensor *const of[] = {&p.x, &p.out, &p.v, &p.v_cache, &p.q, &p.q_out};
  if (a->L < FEWEST_PACKED_TOKENS) return "fewer than 8 tokens of a sequence";
  if ((a->D != 64 && a->D != 128) || a->Dv != a->D || 2 * a->R != a->D || p.interleaved)
    return "heads that are not 64 or 128 channels, all rotated in halves";
  if (a->cos.dtype != KRAIT_F32 || a->sin.dtype != KRAIT_F32 || a->cos.stride[1] != 1 || a->sin.stride[1] != 1 ||
      a->T < 1)
    return "angles that are not rows of float32";
  for (int i = 0; i < 6; i++)
    if (of[i]->dtype == KRAIT_F32 || of[i]->dtype != p.x.dtype || !packs_take(of[i]))
      return "tensors of several types or float32, or rows not in packs of 16 bytes";
  if (!is_norm_by_fours(&a->q_norm) || !is_norm_by_fours(&a->k_norm))
    return "weights of norms that are not rows of float32, aligned to 16 bytes";
  if (a->B * a->L * (a->H + 2 * a->Hk) >= INT32_MAX / 16) return "2^27 heads or more";
  return kr_attention_append_cuda_refuse(ctx, &append);
}

int32_t kr_rotary_append_heads(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernels[] = {{"rotary", "kr_rotary_append_64"}, {"rotary", "kr_rotary_append_128"}};
  const kr_rotary_append_args *a = args;
  const kr_rotary_params p = whole_heads_plan_of(a);
  const int64_t heads = 32 / (a->D / 8) * KR_ROTARY_WHOLE_HEADS,
                warps = a->B * a->L * ((a->H + 2 * a->Hk + heads - 1) / heads);
  const kr_grid grid = rotary_grid_of(warps, &a->call);
  return a->B ? kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &kernels[a->D == 128], &grid, &p, sizeof p) : KRAIT_OK;
}
