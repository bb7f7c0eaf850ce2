/* attention_step_rewrite.c: the rotary embedding of a step's queries is merged into the call that appends keys and
 * values, and that call into the attention that follows. */
#include "attention/attention_step_impls.h"
#include "attention/rotary_append_impls.h"
#include "op_list.h"
#include "rewrite.h"

/* What the call that appends and the step's attention have in common: of `from`, a call's args, and of VIEW, the
 * appending call's tensors as the new call sees them. */
#define SHARED_ARGS(from)                                                                                             \
  .call.flags = (from)->call.flags, .B = (from)->B, .H = (from)->H, .D = (from)->D, .R = (from)->R, .T = (from)->T,   \
  .k = VIEW(k), .v = VIEW(v), .cos = VIEW(cos), .sin = VIEW(sin), .cache_seqlens = VIEW(cache_seqlens),               \
  .cache_batch_idx = VIEW(cache_batch_idx), .k_cache = VIEW(k_cache), .v_cache = VIEW(v_cache)

static int rotary_with_append(const kr_rewriter *w) {
  if (w->op[0] != &kr_op_rotary || w->op[1] != &kr_op_attention_append) return 0;
  const kr_rotary_args *r = w->args[0];
  const kr_attention_append_args *p = w->args[1];
#define TURN(field) KR_CALL_TENSOR(w, 0, rotary, field)
#define APPEND(field) KR_CALL_TENSOR(w, 1, attention_append, field)
  if (TURN(cos) != APPEND(cos) || TURN(sin) != APPEND(sin) || TURN(offsets) != APPEND(cache_seqlens) ||
      r->call.flags != p->call.flags || TURN(cu_seqlens) || APPEND(block_table) || r->D != p->D || r->L != p->L ||
      w->can->share(w, TURN(x), TURN(out)))
    return 0;
#define VIEW(field) w->can->view(w, APPEND(field))
  const kr_rotary_append_args a = {SHARED_ARGS(r),
                                   .L = r->L,
                                   .Hk = p->Hk,
                                   .Dv = p->Dv,
                                   .Bk = p->Bk,
                                   .Lk = p->Lk,
                                   .q = w->can->view(w, TURN(x)),
                                   .out = w->can->view(w, TURN(out)),
                                   .seqused = VIEW(seqused)};
#undef VIEW
#undef APPEND
#undef TURN
  return w->can->accepts(w, &kr_op_rotary_append, &a) && w->can->replace(w, 1, &kr_op_rotary_append, &a);
}

#define APPEND(field) KR_CALL_TENSOR(w, 0, rotary_append, field)
#define ATTENTION(field) KR_CALL_TENSOR(w, 1, attention, field)

/* Attention of a step's queries to its own keys and all before them, and nothing else. */
static int is_step(const kr_rewriter *w) {
  const kr_rotary_append_args *r = w->args[0];
  const kr_attention_args *a = w->args[1];
  return a->Lq == 1 && r->L == 1 && a->D == a->Dv && r->Dv == r->D && a->H == r->H && a->Hk == r->Hk &&
         a->call.flags == KRAIT_ATTENTION_CAUSAL && a->softcap == 0 && a->dropout == 0 && APPEND(out) == ATTENTION(q) &&
         APPEND(k_cache) == ATTENTION(k) && APPEND(v_cache) == ATTENTION(v) &&
         APPEND(seqused) == ATTENTION(seqused_k) && APPEND(cache_batch_idx) == ATTENTION(cache_batch_idx) &&
         APPEND(cache_seqlens) && APPEND(seqused) && !ATTENTION(cu_seqlens_q) && !ATTENTION(cu_seqlens_k) &&
         !ATTENTION(seqused_q) && !ATTENTION(leftpad_k) && !ATTENTION(block_table) && !ATTENTION(alibi_slopes) &&
         !ATTENTION(sinks) && !ATTENTION(rng) && !ATTENTION(lse);
}

static int append_in_attention(const kr_rewriter *w) {
  if (w->op[0] != &kr_op_rotary_append || w->op[1] != &kr_op_attention || !is_step(w) ||
      !w->can->passes(w, APPEND(out)) || !w->can->passes(w, APPEND(seqused)))
    return 0;
  const kr_rotary_append_args *r = w->args[0];
#define VIEW(field) w->can->view(w, APPEND(field))
  const kr_attention_step_args a = {SHARED_ARGS(r),
                                    .Hk = r->Hk,
                                    .Bk = r->Bk,
                                    .Lk = r->Lk,
                                    .scale = ((const kr_attention_args *)w->args[1])->scale,
                                    .q = VIEW(q),
                                    .out = w->can->view(w, ATTENTION(out))};
#undef VIEW
  return w->can->accepts(w, &kr_op_attention_step, &a) && w->can->replace(w, 1, &kr_op_attention_step, &a);
}

const kr_op_rewrite kr_rotary_append_rewrites[] = {{"rotary_with_append", rotary_with_append}, {0}};
const kr_op_rewrite kr_attention_step_rewrites[] = {{"append_in_attention", append_in_attention}, {0}};
