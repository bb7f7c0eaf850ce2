/* block_mlp.c: the gated MLP. Fields: gate, up, or gate_up in one matrix; down; and biases. */
#include "lm_blocks.h"
#include "lm_builder.h"
#include "status.h"

typedef struct mlp_weights {
  kr_weight_ref gate_up[2], gate_up_bias, down, down_bias; /* packed: the first is both */
  int32_t is_packed;
} mlp_weights;

static int32_t load_lm_mlp(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_mlp_sizes *s = block->sizes;
  mlp_weights *w = block->weights;
  w->is_packed = kr_lm_has_key(l, "gate_up");
  if (w->is_packed) {
    KR_TRY(kr_lm_load(l, "gate_up", 1, KR_SIZES(2 * s->F, s->d), &w->gate_up[0]));
    KR_TRY(kr_lm_load(l, "gate_up_bias", 0, KR_SIZES(2 * s->F), &w->gate_up_bias));
  } else {
    KR_TRY(kr_lm_load_rows(l, 2, (const char *const[]){"gate", "up"}, 1,
                           (kr_sizes[]){KR_SIZES(s->F, s->d), KR_SIZES(s->F, s->d)}, w->gate_up));
  }
  KR_TRY(kr_lm_load(l, "down", 1, KR_SIZES(s->d, s->F), &w->down));
  return kr_lm_load(l, "down_bias", 0, KR_SIZES(s->d), &w->down_bias);
}

/* Half `i` of a packed matrix, or of its bias. */
static kr_tensor half_of(const kr_token_builder *r, kr_tensor both, int64_t i, int64_t F) {
  return both ? kr_graph_slice(r->g, both, 0, i * F, F) : 0;
}

static void gate_packed(const kr_token_builder *r, const kr_lm_mlp_sizes *s, const mlp_weights *w, kr_tensor x,
                        kr_tensor hidden) {
  const int64_t F = s->F, gate = s->is_up_first != 0;
  const kr_tensor both = weight(r, "gate_up", &w->gate_up[0], 2 * F, s->d),
                  bias = weight(r, "gate_up_bias", &w->gate_up_bias, 2 * F);
  kr_record_gated(r, "gate_up", x,
                  &(kr_gated){.gate = half_of(r, both, gate, F),
                              .up = half_of(r, both, !gate, F),
                              .gate_bias = half_of(r, bias, gate, F),
                              .up_bias = half_of(r, bias, !gate, F),
                              .activation = KRAIT_ACT_SILU},
                  hidden);
}

/* One product if the weights are not quantized, otherwise two. */
static void gate_mlp(const kr_token_builder *r, const kr_lm_mlp_sizes *s, const mlp_weights *w, kr_tensor x,
                     kr_tensor hidden) {
  if (w->gate_up[0].dtype != KRAIT_I32 && w->gate_up[1].dtype != KRAIT_I32) {
    kr_record_gated(r, "gate_up", x,
                    &(kr_gated){.gate = weight(r, "gate", &w->gate_up[0], s->F, s->d),
                                .up = weight(r, "up", &w->gate_up[1], s->F, s->d),
                                .activation = KRAIT_ACT_SILU},
                    hidden);
    return;
  }
  const kr_tensor up = new_rows(r, s->F);
  linear(r, "gate", x, .w = &w->gate_up[0], .N = s->F, .K = s->d, .out = hidden);
  linear(r, "up", x, .w = &w->gate_up[1], .N = s->F, .K = s->d, .out = up);
  kr_graph_pointwise(
      r->g, "gated",
      (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SILU, .x_scale = 1}, hidden,
      up, hidden);
}

static kr_tensor record_lm_mlp(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_mlp_sizes *s = block->sizes;
  const mlp_weights *w = block->weights;
  const kr_tensor hidden = new_rows(&b->rows, s->F);
  (w->is_packed ? gate_packed : gate_mlp)(&b->rows, s, w, x, hidden);
  return linear(&b->rows, "down", hidden, .w = &w->down, .bias = &w->down_bias, .N = s->d, .K = s->F);
}

const kr_lm_block_kind kr_lm_mlp = {.name = "mlp",
                                    .sizes_bytes = sizeof(kr_lm_mlp_sizes),
                                    .weights_bytes = sizeof(mlp_weights),
                                    .load = load_lm_mlp,
                                    .record = record_lm_mlp};
