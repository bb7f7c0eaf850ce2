/* rotary_append_impls.h: the call split into one of rotary and one of attention_append; the GPU implementation
 * (rotary_cuda.c). */
#ifndef KR_ROTARY_APPEND_IMPLS_H
#define KR_ROTARY_APPEND_IMPLS_H

#include "op_args.h"

#include "rewrite.h"

extern const kr_op_rewrite kr_rotary_append_rewrites[]; /* attention_step_rewrite.c */

static inline kr_rotary_args kr_rotary_of(const kr_rotary_append_args *a) {
  return (kr_rotary_args){
      .call = {.size = sizeof(kr_rotary_args), .flags = a->call.flags, .stream = a->call.stream},
      .B = a->B,
      .L = a->L,
      .H = a->H,
      .D = a->D,
      .R = a->R,
      .T = a->T,
      .x = a->q,
      .cos = a->cos,
      .sin = a->sin,
      .offsets = a->cache_seqlens,
      .out = a->out};
}
static inline kr_attention_append_args kr_append_of(const kr_rotary_append_args *a) {
  return (kr_attention_append_args){
      .call = {.size = sizeof(kr_attention_append_args), .flags = a->call.flags, .stream = a->call.stream},
      .B = a->B,
      .L = a->L,
      .Hk = a->Hk,
      .D = a->D,
      .Dv = a->Dv,
      .R = a->R,
      .T = a->T,
      .Bk = a->Bk,
      .Lk = a->Lk,
      .k = a->k,
      .v = a->v,
      .cos = a->cos,
      .sin = a->sin,
      .cache_seqlens = a->cache_seqlens,
      .cache_batch_idx = a->cache_batch_idx,
      .k_cache = a->k_cache,
      .v_cache = a->v_cache,
      .seqused = a->seqused};
}

const char *kr_rotary_append_cuda_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_rotary_append_cuda(const krait_ctx *ctx, const void *args);
/* Whole heads of many tokens. */
const char *kr_rotary_append_heads_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_rotary_append_heads(const krait_ctx *ctx, const void *args);
uint64_t kr_rotary_append_ref_scratch(const krait_ctx *ctx, const void *args);

#endif
