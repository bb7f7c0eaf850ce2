/* attention_step_rewrite.c: the rotary embedding of queries is merged into the call that appends keys and values; of a
 * step that call into the attention that follows; and into either the norm of queries and keys before it. */
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

/* ---- the norm of heads ---- */

/* Call 0, if it is the norm of all heads of queries, then of keys, that call 1 reads at q and k: rows of (H + Hk) D. */
typedef struct heads_norm {
  kr_tensor q, k, q_norm, k_norm; /* without the norm; its weights */
  float eps;
} heads_norm;
static int read_heads_norm(const kr_rewriter *w, kr_tensor q, kr_tensor k, int64_t H, int64_t Hk, int64_t D,
                           heads_norm *to) {
#define NORM(field) KR_CALL_TENSOR(w, 0, gated_norm, field)
  const kr_gated_norm_args *n = w->args[0];
  const int64_t Q = H * D, K = Hk * D;
  if (w->op[0] != &kr_op_gated_norm || n->call.flags != KRAIT_GATED_NORM_RMS || NORM(z) || NORM(bias) ||
      !NORM(weight) || n->group_size != D || n->M != Q + K)
    return 0;
  const kr_tensor out = NORM(out), x = NORM(x), weight = NORM(weight);
  const kr_dims of_q = w->can->dims(w, q), of_k = w->can->dims(w, k);
  if (w->can->dtype(w, x) != w->can->dtype(w, out) || !w->can->stays(w, out) ||
      !w->can->same(w, q, w->can->slice(w, out, 1, 0, Q)) || !w->can->same(w, k, w->can->slice(w, out, 1, Q, K)))
    return 0;
  to->q = w->can->slice(w, x, 1, 0, Q), to->k = w->can->slice(w, x, 1, Q, K);
  if (!w->can->can_reshape(w, to->q, of_q) || !w->can->can_reshape(w, to->k, of_k)) return 0;
  to->q = w->can->reshape(w, to->q, of_q), to->k = w->can->reshape(w, to->k, of_k), to->eps = n->eps;
  to->q_norm = w->can->reshape(w, w->can->slice(w, weight, 0, 0, Q), KR_DIMS(H, D));
  to->k_norm = w->can->reshape(w, w->can->slice(w, weight, 0, Q, K), KR_DIMS(Hk, D));
  return 1;
#undef NORM
}

/* Call 1 with the norm's input and weights. */
#define PUT_HEADS_NORM(name)                                                                                 \
  kr_##name##_args a = *(const kr_##name##_args *)w->args[1];                                                \
  heads_norm n;                                                                                              \
  if (KR_CALL_TENSOR(w, 1, name, q_norm) ||                                                                  \
      !read_heads_norm(w, KR_CALL_TENSOR(w, 1, name, q), KR_CALL_TENSOR(w, 1, name, k), a.H, a.Hk, a.D, &n)) \
    return 0;                                                                                                \
  for (int i = 0; i < kr_sig_##name.n_tensors; i++) {                                                        \
    const size_t at = kr_sig_##name.tensors[i].offset;                                                       \
    *(kr_view *)((char *)&a + at) = w->can->view(w, w->can->tensor(w, 1, at));                               \
  }                                                                                                          \
  a.eps = n.eps, a.q = w->can->view(w, n.q), a.k = w->can->view(w, n.k);                                     \
  a.q_norm = w->can->view(w, n.q_norm), a.k_norm = w->can->view(w, n.k_norm);                                \
  return w->can->accepts(w, &kr_op_##name, &a) && w->can->replace(w, 1, &kr_op_##name, &a);

static int norm_in_append(const kr_rewriter *w) {
  if (w->op[1] != &kr_op_rotary_append) return 0;
  PUT_HEADS_NORM(rotary_append)
}

static int norm_in_attention(const kr_rewriter *w) {
  if (w->op[1] != &kr_op_attention_step) return 0;
  PUT_HEADS_NORM(attention_step)
}

const kr_op_rewrite kr_rotary_append_rewrites[] = {
    {"rotary_with_append", rotary_with_append}, {"norm_in_append", norm_in_append}, {0}};
const kr_op_rewrite kr_attention_step_rewrites[] = {
    {"append_in_attention", append_in_attention}, {"norm_in_attention", norm_in_attention}, {0}};
