/* block_mlp.c: the gated MLP, and that of relu squared. Fields: gate, up, or gate_up in one matrix; down; and biases;
 * of an adapter gate_up_in, gate_up_out; of a shared expert the same after shared_, and shared_scale. */
#include <stdio.h>

#include "block_given.h"
#include "status.h"

typedef struct mlp_weights {
  kr_weight_ref gate_up[2], bias[2], down, down_bias; /* gate, up; packed: the first is both */
  kr_weight_ref scale;                                /* (1,d) of a shared expert */
  kr_weight_ref adapter_in, adapter_out;              /* (rank,d), (2F,rank) */
  int32_t is_packed;
} mlp_weights;

/* ---- weights ---- */

static const char *field_of(const kr_lm_mlp_sizes *s, const char *name, char to[32]) {
  snprintf(to, 32, "%s%s", s->is_shared ? "shared_" : "", name);
  return to;
}

static int32_t load_mlp_part(kr_lm_loader *l, const kr_lm_mlp_sizes *s, const char *name, int64_t rows, int64_t inputs,
                             kr_weight_ref *w, kr_weight_ref *bias) {
  char field[32], of_bias[40];
  snprintf(of_bias, sizeof of_bias, "%s_bias", field_of(s, name, field));
  KR_TRY(kr_lm_load(l, field, 1, KR_SIZES(rows, inputs), w));
  return kr_lm_load(l, of_bias, 0, KR_SIZES(rows), bias);
}

static int32_t load_gate_up(kr_lm_loader *l, const kr_lm_mlp_sizes *s, mlp_weights *w) {
  char gate[32], up[32];
  if (s->activation == KR_LM_RELU2) return load_mlp_part(l, s, "up", s->F, s->d, &w->gate_up[1], &w->bias[1]);
  w->is_packed = kr_lm_has(l, field_of(s, "gate_up", gate));
  if (w->is_packed) return load_mlp_part(l, s, "gate_up", 2 * s->F, s->d, &w->gate_up[0], &w->bias[0]);
  KR_TRY(kr_lm_load_rows(l, 2, (const char *const[]){field_of(s, "gate", gate), field_of(s, "up", up)}, 1,
                         (kr_sizes[]){KR_SIZES(s->F, s->d), KR_SIZES(s->F, s->d)}, w->gate_up));
  char gate_bias[40], up_bias[40];
  snprintf(gate_bias, sizeof gate_bias, "%s_bias", gate);
  snprintf(up_bias, sizeof up_bias, "%s_bias", up);
  return kr_lm_load_rows(l, 2, (const char *const[]){gate_bias, up_bias}, 0,
                         (kr_sizes[]){KR_SIZES(s->F), KR_SIZES(s->F)}, w->bias);
}

static int32_t load_own_mlp(kr_lm_loader *l, const kr_lm_mlp_sizes *s, mlp_weights *w) {
  KR_TRY(load_gate_up(l, s, w));
  KR_TRY(load_mlp_part(l, s, "down", s->d, s->F, &w->down, &w->down_bias));
  return s->is_shared ? kr_lm_load(l, "shared_scale", 0, KR_SIZES(1, s->d), &w->scale) : KRAIT_OK;
}

static int32_t load_lm_mlp(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_mlp_sizes *s = block->sizes;
  mlp_weights *w = block->weights;
  if (block->shared)
    *w = *(const mlp_weights *)block->shared->weights;
  else
    KR_TRY(load_own_mlp(l, s, w));
  if (!s->rank) return KRAIT_OK;
  KR_TRY(kr_lm_load(l, "gate_up_in", 1, KR_SIZES(s->rank, s->d), &w->adapter_in));
  return kr_lm_load(l, "gate_up_out", 1, KR_SIZES(2 * s->F, s->rank), &w->adapter_out);
}

/* ---- calls ---- */

/* The matrix of gate (0) or up (1), and its bias. */
typedef struct mlp_half {
  kr_weight_ref w, bias;
} mlp_half;

static mlp_half half_of(const kr_lm_mlp_sizes *s, const mlp_weights *w, int i) {
  if (!w->is_packed) return (mlp_half){w->gate_up[i], w->bias[i]};
  const int64_t first = s->is_up_first ? !i : i;
  return (mlp_half){kr_weight_rows(&w->gate_up[0], first * s->F, s->d), kr_weight_rows(&w->bias[0], first * s->F, 1)};
}

int kr_lm_mlp_has_matrices(const kr_lm_block *block, kr_lm_mlp_matrices *to) {
  const kr_lm_mlp_sizes *s = block->sizes;
  const mlp_weights *w = block->weights;
  if (block->kind != &kr_lm_mlp || s->activation != KR_LM_SILU || s->rank || s->gate_scale != 0 || w->scale.data ||
      w->down_bias.data)
    return 0;
  const mlp_half gate = half_of(s, w, 0), up = half_of(s, w, 1);
  *to = (kr_lm_mlp_matrices){.gate = gate.w, .up = up.w, .down = w->down, .F = s->F};
  return !gate.bias.data && !up.bias.data;
}

void kr_lm_mlp_give(const kr_lm_block *block, const kr_lm_mlp_matrices *from) {
  *(mlp_weights *)block->weights = (mlp_weights){.gate_up = {from->gate, from->up}, .down = from->down};
}

static int32_t activation_of(const kr_lm_mlp_sizes *s) {
  return s->activation == KR_LM_GELU ? KRAIT_ACT_GELU : KRAIT_ACT_SILU;
}

static void multiply_gate(const kr_token_builder *r, const kr_lm_mlp_sizes *s, kr_tensor gate, kr_tensor up,
                          kr_tensor hidden) {
  kr_graph_pointwise(
      r->g, "gated",
      (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = activation_of(s), .x_scale = 1}, gate,
      up, hidden);
}

/* Gate and up in one product, to which the adapter's is added. */
static void adapt_mlp(const kr_token_builder *r, const kr_lm_mlp_sizes *s, const mlp_weights *w, kr_tensor x,
                      kr_tensor hidden) {
  const kr_tensor both = linear(r, "gate_up", x, .w = &w->gate_up[0], .bias = &w->bias[0], .N = 2 * s->F, .K = s->d),
                  narrow = linear(r, "gate_up_in", x, .w = &w->adapter_in, .N = s->rank, .K = s->d);
  linear(r, "gate_up_out", narrow, .w = &w->adapter_out, .N = 2 * s->F, .K = s->rank, .residual = both, .out = both);
  multiply_gate(r, s, columns(r, both, 0, s->F), columns(r, both, s->F, s->F), hidden);
}

/* One product if the weights are not quantized, otherwise two. */
static void gate_mlp(const kr_token_builder *r, const kr_lm_mlp_sizes *s, const mlp_weights *w, kr_tensor x,
                     kr_tensor hidden) {
  const mlp_half gate = half_of(s, w, 0), up = half_of(s, w, 1);
  const float scale = (float)s->gate_scale; /* of both in one product: the result is divided by it */
  if (gate.w.dtype != KRAIT_I32 && up.w.dtype != KRAIT_I32) {
    kr_record_gated(r, "gate_up", x,
                    &(kr_gated){.gate = weight(r, "gate", &gate.w, s->F, s->d),
                                .up = weight(r, "up", &up.w, s->F, s->d),
                                .gate_bias = weight(r, "gate_bias", &gate.bias, s->F),
                                .up_bias = weight(r, "up_bias", &up.bias, s->F),
                                .activation = activation_of(s),
                                .scale = scale},
                    hidden);
    return;
  }
  const kr_tensor up_rows = new_rows(r, s->F);
  linear(r, "gate", x, .w = &gate.w, .bias = &gate.bias, .N = s->F, .K = s->d, .out = hidden, .scale = scale);
  linear(r, "up", x, .w = &up.w, .bias = &up.bias, .N = s->F, .K = s->d, .out = up_rows, .scale = scale);
  multiply_gate(r, s, hidden, up_rows, hidden);
}

static void square_mlp(const kr_token_builder *r, const kr_lm_mlp_sizes *s, const mlp_weights *w, kr_tensor x,
                       kr_tensor hidden) {
  linear(r, "up", x, .w = &w->gate_up[1], .bias = &w->bias[1], .N = s->F, .K = s->d, .out = hidden);
  kr_graph_pointwise(
      r->g, "relu2",
      (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_RELU, .x_scale = 1}, hidden,
      hidden, hidden);
}

static kr_tensor record_lm_mlp(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_mlp_sizes *s = block->sizes;
  const mlp_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_tensor hidden = new_rows(r, s->F);
  (s->activation == KR_LM_RELU2 ? square_mlp : s->rank ? adapt_mlp : gate_mlp)(r, s, w, x, hidden);
  const kr_tensor y = result_of(b, block, "down", hidden, .w = &w->down, .bias = &w->down_bias, .N = s->d, .K = s->F);
  if (!w->scale.data) return y;
  const kr_tensor scale = linear(r, "shared_scale", x, .w = &w->scale, .N = 1, .K = s->d);
  kr_graph_pointwise(
      r->g, "shared_scale",
      (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SIGMOID, .x_scale = 1},
      kr_graph_expand(r->g, scale, KR_DIMS(r->rows, s->d)), y, y);
  return y;
}

const kr_lm_block_kind kr_lm_mlp = {.name = "mlp",
                                    .sizes_bytes = sizeof(kr_lm_mlp_sizes),
                                    .weights_bytes = sizeof(mlp_weights),
                                    .load = load_lm_mlp,
                                    .record = record_lm_mlp};
