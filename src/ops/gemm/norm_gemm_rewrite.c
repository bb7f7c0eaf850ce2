/* norm_gemm_rewrite.c: how calls of a decode step become norm_gemm, where one kernel less saves a microsecond: an RMS
 * norm is merged into the product that reads it, which normalises the row while it waits for its weights; the norm's
 * addition into the product before it; its gate into the scan before it; a convolution's step into the product that
 * computes its inputs. */
#include "gemm/gemm_plain.h"
#include "gemm/norm_gemm_impls.h"
#include "op_list.h"
#include "rewrite.h"

#define TENSOR(call, op, field) KR_CALL_TENSOR(w, call, op, field)
#define VIEW(call, op, field) KR_CALL_VIEW(w, call, op, field)

/* ---- norms in products ---- */

/* Call 0's part, a norm; returns its output. 0: another kind of norm. */
static kr_tensor read_norm(const kr_rewriter *w, kr_norm_gemm_args *to) {
  if (w->op[0] == &kr_op_add_norm) {
    const kr_add_norm_args *a = w->args[0];
    if (a->call.flags != KRAIT_NORM_RMS || TENSOR(0, add_norm, x1) || TENSOR(0, add_norm, rowscale) ||
        TENSOR(0, add_norm, bias) || TENSOR(0, add_norm, weight1) || TENSOR(0, add_norm, out1))
      return 0;
    to->eps = a->eps, to->x = VIEW(0, add_norm, x), to->residual = VIEW(0, add_norm, residual),
    to->weight = VIEW(0, add_norm, weight), to->residual_out = VIEW(0, add_norm, residual_out);
    return TENSOR(0, add_norm, out);
  }
  if (w->op[0] == &kr_op_gated_norm) {
    const kr_gated_norm_args *a = w->args[0];
    if (a->call.flags != (KRAIT_GATED_NORM_RMS | KRAIT_GATED_NORM_GATE_FIRST) || a->group_size != a->M ||
        TENSOR(0, gated_norm, bias))
      return 0;
    to->eps = a->eps, to->x = VIEW(0, gated_norm, x), to->z = VIEW(0, gated_norm, z),
    to->weight = VIEW(0, gated_norm, weight);
    return TENSOR(0, gated_norm, out);
  }
  return 0;
}

/* Whether the norm or the product writes what the norm reads, which other blocks of the fused kernel may still be
 * reading. */
static int is_in_place(const kr_rewriter *w, kr_tensor out) {
  const kr_tensor sum = w->op[0] == &kr_op_add_norm ? TENSOR(0, add_norm, residual_out) : 0;
  const kr_sig *sig = w->op[0]->sig;
  for (int i = 0; i < sig->n_tensors; i++) {
    const kr_tensor read = sig->tensors[i].role == KR_IN ? w->can->tensor(w, 0, sig->tensors[i].offset) : 0;
    if (read && (w->can->share(w, read, out) || (sum && w->can->share(w, read, sum)))) return 1;
  }
  return 0;
}

/* A product with at most a bias. */
static int is_known_product(const kr_rewriter *w, int call) {
  const kr_gemm_args *a = w->args[call];
  return w->op[call] == &kr_op_gemm && kr_gemm_is_plain(a) && a->activation == KRAIT_ACT_NONE &&
         !TENSOR(call, gemm, residual);
}

/* silu(x Bmat) * x B2 and nothing else. */
static int is_gated_product(const kr_rewriter *w, int call) {
  const kr_gemm_args *a = w->args[call];
  return w->op[call] == &kr_op_gemm && a->activation == KRAIT_ACT_SILU && a->P == 0 &&
         (a->scale == 0 || a->scale == 1) && TENSOR(call, gemm, B2) && !TENSOR(call, gemm, bias) &&
         !TENSOR(call, gemm, bias2) && !TENSOR(call, gemm, residual) && !TENSOR(call, gemm, row_scale) &&
         !TENSOR(call, gemm, factor);
}

/* Call 1's part, a product; what it reads. 0: another kind of call. */
static kr_tensor read_product(const kr_rewriter *w, kr_norm_gemm_args *to, kr_tensor *out) {
  if (is_known_product(w, 1) || is_gated_product(w, 1)) {
    const kr_gemm_args *of = w->args[1];
    to->M = of->M, to->N = of->N, to->K = of->K, to->activation = of->activation;
    to->Bmat = VIEW(1, gemm, Bmat), to->B2 = VIEW(1, gemm, B2), to->bias = VIEW(1, gemm, bias),
    to->out = VIEW(1, gemm, out);
    *out = TENSOR(1, gemm, out);
    return TENSOR(1, gemm, A);
  }
  if (w->op[1] == &kr_op_gemm_q8) {
    const kr_gemm_q8_args *of = w->args[1];
    to->M = of->M, to->N = of->N, to->K = 32 * of->S, to->S = of->S;
    to->qweight = VIEW(1, gemm_q8, qweight), to->scales = VIEW(1, gemm_q8, scales), to->bias = VIEW(1, gemm_q8, bias),
    to->out = VIEW(1, gemm_q8, out);
    *out = TENSOR(1, gemm_q8, out);
    return TENSOR(1, gemm_q8, A);
  }
  return 0;
}

static int norm_in_product(const kr_rewriter *w) {
  kr_norm_gemm_args a = {0};
  kr_tensor out = 0;
  const kr_tensor x = read_product(w, &a, &out), normed = x ? read_norm(w, &a) : 0;
  if (!normed || !w->can->passes(w, normed) || !w->can->share(w, x, normed) || is_in_place(w, out) ||
      kr_rewrite_is_empty(w, x))
    return 0;
  return w->can->accepts(w, &kr_op_norm_gemm, &a) && w->can->replace(w, 1, &kr_op_norm_gemm, &a);
}

/* ---- the addition of such a norm, in the product before it ---- */

/* Otherwise each block of a norm's product would repeat the addition. */
static int sum_in_product(const kr_rewriter *w) {
  if (w->op[1] != &kr_op_norm_gemm || !is_known_product(w, 0)) return 0;
  const kr_tensor out = TENSOR(0, gemm, out), x = TENSOR(1, norm_gemm, x), stream = TENSOR(1, norm_gemm, residual),
                  sum = TENSOR(1, norm_gemm, residual_out);
  if (!stream || !sum || w->can->dtype(w, stream) != KRAIT_F32 || w->can->dtype(w, sum) != KRAIT_F32 ||
      !w->can->passes(w, out) || !w->can->share(w, x, out) || kr_rewrite_is_empty(w, x))
    return 0;
  kr_gemm_args p = *(const kr_gemm_args *)w->args[0];
  kr_norm_gemm_args a = *(const kr_norm_gemm_args *)w->args[1];
  p.residual = w->can->view(w, stream), p.out = a.x = w->can->view(w, sum);
  a.residual = a.residual_out = (kr_view){0};
  if (!w->can->accepts(w, &kr_op_gemm, &p) || !w->can->accepts(w, &kr_op_norm_gemm, &a)) return 0;
  w->can->set(w, 0, offsetof(kr_gemm_args, residual), KR_IN, stream);
  w->can->set(w, 0, offsetof(kr_gemm_args, out), KR_OUT, sum);
  w->can->set(w, 1, offsetof(kr_norm_gemm_args, x), KR_IN, sum);
  w->can->set(w, 1, offsetof(kr_norm_gemm_args, residual), KR_IN, 0);
  w->can->set(w, 1, offsetof(kr_norm_gemm_args, residual_out), KR_OUT, 0);
  return 1;
}

/* ---- the gate of such a norm, in the scan before it ---- */

/* Otherwise each block of a norm's product would repeat the gate. */
static int gate_in_update(const kr_rewriter *w) {
  if (w->op[0] != &kr_op_state_update || w->op[1] != &kr_op_norm_gemm) return 0;
  const kr_tensor out = TENSOR(0, state_update, out), x = TENSOR(1, norm_gemm, x), z = TENSOR(1, norm_gemm, z);
  if (!z || TENSOR(0, state_update, z) || !w->can->passes(w, out) || !w->can->share(w, x, out) ||
      kr_rewrite_is_empty(w, out) || !w->can->can_reshape(w, z, w->can->dims(w, out)))
    return 0;
  kr_state_update_args u = *(const kr_state_update_args *)w->args[0];
  kr_norm_gemm_args p = *(const kr_norm_gemm_args *)w->args[1];
  const kr_tensor gate = w->can->reshape(w, z, w->can->dims(w, out));
  u.z = w->can->view(w, gate), p.z = (kr_view){0};
  if (!w->can->accepts(w, &kr_op_state_update, &u) || !w->can->accepts(w, &kr_op_norm_gemm, &p)) return 0;
  w->can->set(w, 0, offsetof(kr_state_update_args, z), KR_IN, gate);
  w->can->set(w, 1, offsetof(kr_norm_gemm_args, z), KR_IN, 0);
  return 1;
}

/* ---- a convolution's step after the product ---- */

static int conv_in_product(const kr_rewriter *w) {
  if (w->op[0] != &kr_op_norm_gemm || w->op[1] != &kr_op_causal_conv1d_update) return 0;
  const kr_causal_conv1d_update_args *c = w->args[1];
  const kr_tensor out = TENSOR(0, norm_gemm, out), y = TENSOR(1, causal_conv1d_update, out),
                  x = TENSOR(1, causal_conv1d_update, x);
  kr_norm_gemm_args a = *(const kr_norm_gemm_args *)w->args[0];
  if (TENSOR(0, norm_gemm, conv_weight) || TENSOR(0, norm_gemm, B2) || c->L != 1 || c->S != c->W - 1 ||
      c->activation != KRAIT_ACT_SILU || TENSOR(1, causal_conv1d_update, cache_seqlens) ||
      w->can->share(w, y, out) || kr_rewrite_is_empty(w, x))
    return 0;
  const kr_dims dims = w->can->dims(w, x);
  a.C = dims.size[1], a.W = c->W, a.n_states = c->n_states, a.conv_from = w->can->columns_from(w, x, out);
  if (a.conv_from < 0) return 0;
  for (int i = 0; i < kr_sig_norm_gemm.n_tensors; i++) {
    const kr_tensor t = w->can->tensor(w, 0, kr_sig_norm_gemm.tensors[i].offset);
    if (t) *(kr_view *)((char *)&a + kr_sig_norm_gemm.tensors[i].offset) = w->can->view(w, t);
  }
  a.conv_weight = VIEW(1, causal_conv1d_update, weight), a.conv_bias = VIEW(1, causal_conv1d_update, bias),
  a.conv_state = VIEW(1, causal_conv1d_update, conv_state),
  a.conv_state_indices = VIEW(1, causal_conv1d_update, conv_state_indices);
  a.conv_out = w->can->view(w, w->can->reshape(w, y, KR_DIMS(dims.size[0], dims.size[1])));
  return w->can->accepts(w, &kr_op_norm_gemm, &a) && w->can->replace(w, 0, &kr_op_norm_gemm, &a);
}

const kr_op_rewrite kr_norm_gemm_rewrites[] = {{"norm_in_product", norm_in_product},
                                               {"sum_in_product", sum_in_product},
                                               {"gate_in_update", gate_in_update},
                                               {"conv_in_product", conv_in_product},
                                               {0}};
