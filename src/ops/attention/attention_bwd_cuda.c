/* attention_bwd_cuda.c: the gradient of attention on a GPU. */
#include <string.h>

#include "attention_cuda.h"
#include "cuda_row.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static kr_attention_tensor tensor(const krait_view *v) {
  return (kr_attention_tensor){.data = v->data, .b = v->stride[0], .t = v->stride[1], .h = v->stride[2], .d = v->stride[3], .dtype = v->dtype};
}

kr_attention_plan kr_attention_bwd_plan_of(const krait_attention_bwd_args *b) {
  krait_attention_args a = {.call = b->call, .B = b->B, .Lq = b->Lq, .Lk = b->Lk, .H = b->H, .Hk = b->Hk, .D = b->D, .Dv = b->Dv, .Bk = b->Bk, .n_pages = b->n_pages, .max_q = b->max_q, .max_k = b->max_k,
    .window_left = b->window_left, .window_right = b->window_right, .scale = b->scale, .softcap = b->softcap, .dropout = b->dropout, .q = b->q, .k = b->k, .v = b->v, .cu_seqlens_q = b->cu_seqlens_q,
    .cu_seqlens_k = b->cu_seqlens_k, .seqused_q = b->seqused_q, .seqused_k = b->seqused_k, .alibi_slopes = b->alibi_slopes, .sinks = b->sinks, .rng = b->rng, .out = b->out, .lse = b->lse};
  kr_attention_plan p = kr_attention_plan_of(&a);
  p.dout = tensor(&b->dout), p.dq = tensor(&b->dq), p.dk = tensor(&b->dk), p.dv = tensor(&b->dv);
  p.dlse = (kr_attention_tensor){.data = b->dlse.data, .b = b->dlse.stride[0], .h = b->dlse.stride[1], .t = b->dlse.stride[2], .dtype = b->dlse.dtype};
  p.dsinks = (kr_attention_tensor){.data = b->dsinks.data, .h = b->dsinks.stride[0], .dtype = b->dsinks.dtype};
  p.delta = b->call.scratch;
  p.delta_h = (kr_has(&b->cu_seqlens_q) ? 1 : b->B) * b->Lq;
  return p;
}

const char *kr_attention_bwd_base_refuse(const krait_ctx *ctx, const void *args) {
  const kr_attention_plan p = kr_attention_bwd_plan_of(args);
  (void)ctx;
  return kr_attention_refuse_sizes(&p);
}

uint64_t kr_attention_bwd_base_scratch(const krait_ctx *ctx, const void *args) {
  const krait_attention_bwd_args *a = args;
  (void)ctx;
  return (uint64_t)(kr_has(&a->cu_seqlens_q) ? 1 : a->B) * (uint64_t)a->Lq * (uint64_t)a->H * sizeof(float);
}

#define BY_SIZE(name) {{"attention_base_bwd", name "_k2"}, {"attention_base_bwd", name "_k4"}, {"attention_base_bwd", name "_k8"}}

int32_t kr_attention_bwd_base(const krait_ctx *ctx, const void *args) {
  static const kr_kernel delta = {"attention_base_bwd", "kr_attention_delta"}, dsinks = {"attention_base_bwd", "kr_attention_dsinks"};
  static const kr_kernel dq[] = BY_SIZE("kr_attention_dq"), dkv[] = BY_SIZE("kr_attention_dkv");
  const krait_attention_bwd_args *a = args;
  kr_attention_plan p = kr_attention_bwd_plan_of(a);
  const int widest = p.D > p.Dv ? p.D : p.Dv, which = widest > 128 ? 2 : widest > 64, K = 2 << which, rows = 4 * KR_ATTENTION_BASE_ROWS(K), all = p.B * p.H;
  p.n_q_tiles = (p.rows_q + rows - 1) / rows;
  kr_grid grid = {.x = (uint32_t)((p.rows_q + 3) / 4) * (uint32_t)all, .block = KR_ATTENTION_BASE_THREADS, .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  kr_chain_add(&chain, &delta, &grid, &p);
  grid.x = (uint32_t)p.H;
  if (p.dsinks.data) kr_chain_add(&chain, &dsinks, &grid, &p);
  grid.shared_bytes = KR_ATTENTION_BASE_SHARED(K, 2);
  grid.x = (uint32_t)p.n_q_tiles * (uint32_t)all;
  if (p.dq.data) kr_chain_add(&chain, &dq[which], &grid, &p);
  grid.x = (uint32_t)((p.rows_k + rows - 1) / rows) * (uint32_t)(all / p.heads);
  if (p.dk.data || p.dv.data) kr_chain_add(&chain, &dkv[which], &grid, &p);
  return kr_cuda_launch_chain(ctx->cuda, KRAIT_CAP_CUDA_BASE, &chain);
}
