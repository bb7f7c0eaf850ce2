/* block_short_conv.c: the gated short convolution of LFM2. Fields: in_proj, conv, out_proj, and biases. */
#include "lm_blocks.h"
#include "lm_builder.h"
#include "status.h"

typedef struct short_conv_weights {
  kr_weight_ref in_proj, in_proj_bias, conv, conv_bias, out_proj, out_proj_bias;
} short_conv_weights;

static int32_t load_short_conv(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_short_conv_sizes *s = block->sizes;
  short_conv_weights *w = block->weights;
  KR_TRY(kr_lm_load(l, "in_proj", 1, KR_SIZES(3 * s->d, s->d), &w->in_proj));
  KR_TRY(kr_lm_load(l, "in_proj_bias", 0, KR_SIZES(3 * s->d), &w->in_proj_bias));
  KR_TRY(kr_lm_load(l, "conv", 1, KR_SIZES(s->d, 1, s->W), &w->conv));
  KR_TRY(kr_lm_load(l, "conv_bias", 0, KR_SIZES(s->d), &w->conv_bias));
  KR_TRY(kr_lm_load(l, "out_proj", 1, KR_SIZES(s->d, s->d), &w->out_proj));
  return kr_lm_load(l, "out_proj_bias", 0, KR_SIZES(s->d), &w->out_proj_bias);
}

static int32_t list_short_conv_states(const kr_lm_block *block, kr_lm_state *states) {
  const kr_lm_short_conv_sizes *s = block->sizes;
  states[0] = (kr_lm_state){.name = "conv", .n_dims = 2, .size = {s->d, s->W - 1}};
  return 1;
}

static kr_tensor record_short_conv(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_short_conv_sizes *s = block->sizes;
  const short_conv_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const kr_tensor bcx = linear(r, "in_proj", x, .w = &w->in_proj, .bias = &w->in_proj_bias, .N = 3 * s->d, .K = s->d),
                  in = new_rows(r, s->d), y = new_rows(r, s->d);
  multiply_into(r, "gate_in", columns(r, bcx, 0, s->d), columns(r, bcx, 2 * s->d, s->d), in);
  multiply_into(r, "gate_out", columns(r, bcx, s->d, s->d),
                kr_lm_convolve(b, block, 0, in, &w->conv, &w->conv_bias, s->W, KRAIT_ACT_NONE), y);
  return result_of(b, block, "out_proj", y, .w = &w->out_proj, .bias = &w->out_proj_bias, .N = s->d, .K = s->d);
}

const kr_lm_block_kind kr_lm_short_conv = {.name = "short_conv",
                                           .sizes_bytes = sizeof(kr_lm_short_conv_sizes),
                                           .weights_bytes = sizeof(short_conv_weights),
                                           .load = load_short_conv,
                                           .list_states = list_short_conv_states,
                                           .record = record_short_conv};
