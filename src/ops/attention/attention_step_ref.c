/* attention_step_ref.c: rotary_append, then attention (their _ref.c have the equations); between them the rotated q has
 * its type. */
#include "attention/attention_impls.h"
#include "attention/attention_step_impls.h"
#include "attention/rotary_append_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static kr_attention_args attention_of(const kr_attention_step_args *a) {
  kr_attention_args attention = kr_attention_of(a);
  attention.call = (kr_call){.size = sizeof attention, .flags = KRAIT_ATTENTION_CAUSAL};
  return attention;
}

static kr_rotary_append_args append_of(const kr_attention_step_args *a) {
  return (kr_rotary_append_args){.call = {.size = sizeof(kr_rotary_append_args), .flags = a->call.flags},
                                 .B = a->B,
                                 .L = 1,
                                 .H = a->H,
                                 .Hk = a->Hk,
                                 .D = a->D,
                                 .Dv = a->D,
                                 .R = a->R,
                                 .T = a->T,
                                 .Bk = a->Bk,
                                 .Lk = a->Lk,
                                 .q = a->q,
                                 .k = a->k,
                                 .v = a->v,
                                 .cos = a->cos,
                                 .sin = a->sin,
                                 .cache_seqlens = a->cache_seqlens,
                                 .cache_batch_idx = a->cache_batch_idx,
                                 .k_cache = a->k_cache,
                                 .v_cache = a->v_cache,
                                 .eps = a->eps,
                                 .q_norm = a->q_norm,
                                 .k_norm = a->k_norm};
}

static uint64_t score_bytes(const krait_ctx *ctx, const kr_attention_step_args *a) {
  const kr_attention_args attention = attention_of(a);
  return kr_attention_ref_scratch(ctx, &attention);
}

static uint64_t append_bytes(const krait_ctx *ctx, const kr_attention_step_args *a) {
  const kr_rotary_append_args append = append_of(a);
  return kr_rotary_append_ref_scratch(ctx, &append);
}

uint64_t kr_attention_step_ref_scratch(const krait_ctx *ctx, const void *args) {
  const kr_attention_step_args *a = args;
  return kr_scratch_round(score_bytes(ctx, a)) + append_bytes(ctx, a) +
         (uint64_t)a->B * (sizeof(int32_t) + 4 * (uint64_t)(a->H * a->D));
}

int32_t kr_attention_step_ref(const krait_ctx *ctx, const void *args) {
  const kr_attention_step_args *a = args;
  char *const normed = (char *)a->call.scratch + kr_scratch_round(score_bytes(ctx, a)),
              *const lengths = normed + append_bytes(ctx, a), *const rows = lengths + 4 * a->B;
  kr_attention_args attention = attention_of(a);
  kr_rotary_append_args append = append_of(a);
  attention.call.scratch = a->call.scratch, append.call.scratch = normed;
  append.seqused = attention.seqused_k = (kr_view){.data = lengths, .dtype = KRAIT_I32, .stride = {1}};
  append.out = attention.q = (kr_view){
      .data = rows, .dtype = a->q.dtype, .stride = {a->H * a->D, a->H * a->D, a->D, 1}};
  KR_TRY(kr_rotary_append_ref(ctx, &append));
  return kr_attention_ref(ctx, &attention);
}
