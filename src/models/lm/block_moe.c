/* block_moe.c: mixtures of experts. Fields: router, router_bias; expert_gate and expert_up, or expert_gate_up in one
 * matrix for each expert (of relu squared only expert_up); expert_down; latent_in, latent_out. */
#include <stdio.h>

#include "ctx.h"
#include "expert_step/expert_step.h"
#include "lm_blocks.h"
#include "lm_builder.h"
#include "lm_ops.h"
#include "status.h"

typedef struct moe_weights {
  kr_weight_ref router, router_bias, latent_in, latent_out;
  kr_weight_ref gate_up[2], down; /* (E,F,m), (E,F,m), (E,m,F); packed: the first is (E,2F,m) */
  int32_t is_packed;
} moe_weights;

static int64_t inner_of(const kr_lm_moe_sizes *s) { return s->latent ? s->latent : s->d; }

/* ---- weights ---- */

static int32_t load_experts(kr_lm_loader *l, const kr_lm_moe_sizes *s, moe_weights *w) {
  const int64_t m = inner_of(s);
  w->is_packed = s->activation == KR_LM_SILU && kr_lm_has_key(l, "expert_gate_up") && kr_lm_has(l, "expert_gate_up");
  if (w->is_packed)
    KR_TRY(kr_lm_load_experts(l, "expert_gate_up", s->E, KR_SIZES(2 * s->F, m), &w->gate_up[0]));
  else if (s->activation == KR_LM_SILU)
    KR_TRY(kr_lm_load_experts(l, "expert_gate", s->E, KR_SIZES(s->F, m), &w->gate_up[0]));
  if (!w->is_packed) KR_TRY(kr_lm_load_experts(l, "expert_up", s->E, KR_SIZES(s->F, m), &w->gate_up[1]));
  return kr_lm_load_experts(l, "expert_down", s->E, KR_SIZES(m, s->F), &w->down);
}

static int32_t load_moe(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_moe_sizes *s = block->sizes;
  moe_weights *w = block->weights;
  KR_TRY(kr_lm_load(l, "router", 1, KR_SIZES(s->E, s->d), &w->router));
  if (s->scores == KR_ROUTE_SIGMOID && kr_lm_has_key(l, "router_bias") && kr_lm_has(l, "router_bias"))
    KR_TRY(kr_lm_load_f32(l, "router_bias", KR_SIZES(s->E), NULL, &w->router_bias));
  if (s->latent) {
    KR_TRY(kr_lm_load(l, "latent_in", 1, KR_SIZES(s->latent, s->d), &w->latent_in));
    KR_TRY(kr_lm_load(l, "latent_out", 1, KR_SIZES(s->d, s->latent), &w->latent_out));
  }
  return load_experts(l, s, w);
}

/* ---- calls ---- */

/* A token's experts and their weights. */
typedef struct choice {
  kr_tensor index, weights; /* (rows,k) */
} choice;

/* Of the choices' weights. */
static float scale_choices(const kr_lm_moe_sizes *s, const kr_lm_block *block) {
  return (float)((s->scale != 0 ? s->scale : 1) * (block->out_scale != 0 ? block->out_scale : 1));
}

static choice choose_experts(const kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_moe_sizes *s = block->sizes;
  const moe_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_tensor scores = kr_graph_temp(r->g, KRAIT_F32, KR_DIMS(r->rows, s->E));
  const choice to = {kr_graph_temp(r->g, KRAIT_I32, KR_DIMS(r->rows, s->k)),
                     kr_graph_temp(r->g, KRAIT_F32, KR_DIMS(r->rows, s->k))};
  linear(r, "router", x, .w = &w->router, .N = s->E, .K = s->d, .out = scores);
  kr_graph_call(r->g, "route", &kr_op_expert_route,
                &(kr_expert_route_args){.call.flags = s->is_normed ? KR_ROUTE_NORMED : 0,
                                        .n_groups = s->n_groups ? s->n_groups : 1,
                                        .best_groups = s->best_groups ? s->best_groups : 1,
                                        .scores = (int32_t)s->scores,
                                        .eps = (float)s->norm_eps,
                                        .scale = scale_choices(s, block),
                                        .x = view(r, scores),
                                        .bias = view(r, weight(r, "router_bias", &w->router_bias, s->E)),
                                        .index = view(r, to.index),
                                        .weights = view(r, to.weights)});
  return to;
}

/* Experts' matrices (E,N,K) of 16 or 32 bits from row `first` of each one's rows. */
static kr_view matrices_of(const kr_token_builder *r, const char *name, const kr_lm_moe_sizes *s,
                           const kr_weight_ref *w, int64_t rows, int64_t first, int64_t N, int64_t K) {
  return view(r, kr_graph_slice(r->g, kr_record_weight(r, name, w, KR_DIMS(s->E, rows, K)), 1, first, N));
}

/* The same in whatever form, in a call. */
static void give_matrices(const kr_token_builder *r, const char *name, const kr_lm_moe_sizes *s, const kr_weight_ref *w,
                          int64_t rows, int64_t first, int64_t N, int64_t K, kr_expert_gemm_args *call,
                          kr_view *matrix) {
  if (w->dtype != KRAIT_I32) {
    *matrix = matrices_of(r, name, s, w, rows, first, N, K);
    return;
  }
  const kr_tensor all = kr_record_weight(r, name, w, KR_DIMS(s->E, rows, w->scales ? K / 4 : K / 256 * 36));
  call->qweight = view(r, kr_graph_slice(r->g, all, 1, first, N));
  call->K = K;
  if (!w->scales) return;
  const kr_weight_ref scales = {.data = w->scales, .dtype = KRAIT_F16};
  char of_scales[48];
  snprintf(of_scales, sizeof of_scales, "%s.scales", name);
  call->scales = view(r, kr_graph_slice(r->g, kr_record_weight(r, of_scales, &scales, KR_DIMS(s->E, rows, K / 32)), 1,
                                        first, N));
}

/* One product with some rows of the experts' matrices; x (rows,1 or k,K). */
static kr_tensor multiply_experts(const kr_token_builder *r, const char *name, const kr_lm_moe_sizes *s,
                                  const choice *chosen, kr_tensor x, const kr_weight_ref *w, int64_t rows,
                                  int64_t first) {
  const kr_tensor out = kr_graph_temp(r->g, r->dtype, KR_DIMS(r->rows, s->k, s->F));
  kr_expert_gemm_args call = {.A = view(r, x), .index = view(r, chosen->index), .out = view(r, out)};
  give_matrices(r, name, s, w, rows, first, s->F, inner_of(s), &call, &call.Bmat);
  kr_graph_call(r->g, name, &kr_op_expert_gemm, &call);
  return out;
}

/* silu(gate x) * up x in one call, if the matrices are not quantized. */
static kr_tensor gate_experts(const kr_token_builder *r, const kr_lm_moe_sizes *s, const moe_weights *w,
                              const choice *chosen, kr_tensor x) {
  const kr_weight_ref *gate = &w->gate_up[0], *up = w->is_packed ? gate : &w->gate_up[1];
  const int64_t rows = w->is_packed ? 2 * s->F : s->F, at = w->is_packed ? s->F : 0, m = inner_of(s);
  if (gate->dtype != KRAIT_I32 && up->dtype != KRAIT_I32) {
    const kr_tensor out = kr_graph_temp(r->g, r->dtype, KR_DIMS(r->rows, s->k, s->F));
    kr_expert_gemm_args call = {
        .activation = KRAIT_ACT_SILU, .A = view(r, x), .index = view(r, chosen->index), .out = view(r, out)};
    give_matrices(r, "expert_gate", s, gate, rows, 0, s->F, m, &call, &call.Bmat);
    give_matrices(r, "expert_up", s, up, rows, at, s->F, m, &call, &call.B2);
    kr_graph_call(r->g, "expert_gate_up", &kr_op_expert_gemm, &call);
    return out;
  }
  const kr_tensor hidden = multiply_experts(r, "expert_gate", s, chosen, x, gate, rows, 0),
                  other = multiply_experts(r, "expert_up", s, chosen, x, up, rows, at);
  kr_graph_pointwise(
      r->g, "gated",
      (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SILU, .x_scale = 1}, hidden,
      other, hidden);
  return hidden;
}

static kr_tensor square_experts(const kr_token_builder *r, const kr_lm_moe_sizes *s, const moe_weights *w,
                                const choice *chosen, kr_tensor x) {
  const kr_tensor hidden = multiply_experts(r, "expert_up", s, chosen, x, &w->gate_up[1], s->F, 0);
  kr_graph_pointwise(
      r->g, "relu2",
      (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_RELU, .x_scale = 1}, hidden,
      hidden, hidden);
  return hidden;
}

/* ---- a step on a GPU: one call ---- */

static int is_step_matrix(const kr_token_builder *r, const kr_weight_ref *w) { return w->dtype == r->dtype; }

static int can_step_experts(const kr_lm_builder *b, const kr_lm_moe_sizes *s, const moe_weights *w, int64_t S) {
  const kr_token_builder *r = &b->rows;
  return b->run.is_step && r->ctx->caps & KRAIT_CAP_CUDA_AMPERE && r->dtype != KRAIT_F32 &&
         s->activation == KR_LM_SILU && s->scores != KR_ROUTE_SIGMOID && !s->latent && is_step_matrix(r, &w->router) &&
         is_step_matrix(r, &w->gate_up[0]) && (w->is_packed || is_step_matrix(r, &w->gate_up[1])) &&
         is_step_matrix(r, &w->down) && kr_expert_step_has(r->rows, s->E, s->k, s->d, s->F, S);
}

/* The MLP whose result is added to this block's, if one call can compute both. */
static const kr_lm_block *find_shared(const kr_lm_builder *b, const kr_lm_block *block, const moe_weights *w,
                                      kr_lm_mlp_matrices *to) {
  const kr_lm_block *next = block + 1;
  if (next == b->c->blocks + b->c->n_blocks || next->reads != KR_LM_READS_SAME || !kr_lm_mlp_has_matrices(next, to) ||
      block->in_scale != 0 || next->in_scale != 0 || block->post || next->post)
    return NULL;
  return is_step_matrix(&b->rows, &to->gate) && is_step_matrix(&b->rows, &to->up) &&
                 is_step_matrix(&b->rows, &to->down) && can_step_experts(b, block->sizes, w, to->F)
             ? next
             : NULL;
}

static kr_tensor step_experts(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_moe_sizes *s = block->sizes;
  const moe_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_weight_ref *up = w->is_packed ? &w->gate_up[0] : &w->gate_up[1];
  const int64_t rows = w->is_packed ? 2 * s->F : s->F, at = w->is_packed ? s->F : 0;
  const kr_tensor y = new_rows(r, s->d);
  kr_lm_mlp_matrices shared;
  kr_expert_step_args call = {
      .call.flags = s->is_normed ? KR_ROUTE_NORMED : 0,
      .K = s->k,
      .scores = (int32_t)s->scores,
      .eps = (float)s->norm_eps,
      .scale = scale_choices(s, block),
      .x = view(r, x),
      .router = view(r, weight(r, "router", &w->router, s->E, s->d)),
      .gate = matrices_of(r, "expert_gate", s, &w->gate_up[0], rows, 0, s->F, s->d),
      .up = matrices_of(r, "expert_up", s, up, rows, at, s->F, s->d),
      .down = matrices_of(r, "expert_down", s, &w->down, s->d, 0, s->d, s->F),
      .out = view(r, y)};
  b->joined = find_shared(b, block, w, &shared);
  if (b->joined) {
    call.S = shared.F, call.shared_scale = b->joined->out_scale != 0 ? (float)b->joined->out_scale : 1.0f;
    call.shared_gate = view(r, weight(r, "shared_gate", &shared.gate, shared.F, s->d));
    call.shared_up = view(r, weight(r, "shared_up", &shared.up, shared.F, s->d));
    call.shared_down = view(r, weight(r, "shared_down", &shared.down, s->d, shared.F));
  }
  kr_graph_call(r->g, "experts", &kr_op_expert_step, &call);
  return y;
}

/* ---- the whole ---- */

static kr_tensor record_moe(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_moe_sizes *s = block->sizes;
  const moe_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const int64_t m = inner_of(s);
  if (can_step_experts(b, s, w, 0)) return step_experts(b, block, x);
  const choice chosen = choose_experts(b, block, x);
  const kr_tensor in = s->latent ? linear(r, "latent_in", x, .w = &w->latent_in, .N = m, .K = s->d) : x,
                  each = kr_graph_reshape(r->g, in, KR_DIMS(r->rows, 1, m)),
                  hidden = (s->activation == KR_LM_RELU2 ? square_experts : gate_experts)(r, s, w, &chosen, each),
                  y = new_rows(r, m);
  kr_expert_gemm_args call = {.A = view(r, hidden),
                              .index = view(r, chosen.index),
                              .weights = view(r, chosen.weights),
                              .out = view(r, y)};
  give_matrices(r, "expert_down", s, &w->down, m, 0, m, s->F, &call, &call.Bmat);
  kr_graph_call(r->g, "expert_down", &kr_op_expert_gemm, &call);
  return s->latent ? linear(r, "latent_out", y, .w = &w->latent_out, .N = s->d, .K = m) : y;
}

const kr_lm_block_kind kr_lm_moe = {.name = "moe",
                                    .sizes_bytes = sizeof(kr_lm_moe_sizes),
                                    .weights_bytes = sizeof(moe_weights),
                                    .load = load_moe,
                                    .record = record_moe};
