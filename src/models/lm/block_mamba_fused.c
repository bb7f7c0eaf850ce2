/* block_mamba_fused.c: all layers of a step as one call of the operator mamba_decode: where layers are plain, and their
 * weights at equal distances. */
#include <stddef.h>

#include "block_mamba.h"
#include "ctx.h"
#include "lm_slots.h"

static const void *part_of_weight(const kr_weight_ref *t, int which) {
  return which == KR_LAYERED_WORDS ? t->qweight : which == KR_LAYERED_SCALES ? t->qscales : t->scales ? NULL : t->data;
}

/* A weight of a block, by its offset in the mixer's; its norm's for KR_LAYERED_NORM. */
static const kr_weight_ref *weight_at(const kr_lm_block *block, size_t offset) {
  return offset == KR_LAYERED_NORM ? &block->norm_weight
                                   : (const kr_weight_ref *)((const char *)block->weights + offset);
}

kr_view kr_lm_layered(const kr_lm_config *c, size_t offset, int which, kr_dims dims, int *fits) {
  const kr_weight_ref *first = weight_at(&c->blocks[0], offset);
  const int32_t dtype = which == KR_LAYERED_WORDS ? KRAIT_I32 : which == KR_LAYERED_SCALES ? KRAIT_F16 : first->dtype;
  const char *start = part_of_weight(first, which);
  const int64_t bytes = (int64_t)krait_dtype_bytes(dtype), elements = dims.size[0] * (dims.n > 1 ? dims.size[1] : 1);
  int64_t distance = elements * bytes;
  for (int64_t i = 0; i < c->n_blocks; i++) {
    const kr_weight_ref *t = weight_at(&c->blocks[i], offset);
    const char *at = part_of_weight(t, which);
    if (i == 1 && at && start) distance = at - start;
    *fits = *fits && !at == !start && t->dtype == first->dtype && (!at || at - start == i * distance);
  }
  if (!start) return (kr_view){0};
  *fits = *fits && distance > 0 && distance % bytes == 0;
  return (kr_view){
      .data = (void *)start, .dtype = dtype, .stride = {distance / bytes, dims.n > 1 ? dims.size[1] : 1, 1}};
}

static int is_plain_product(const kr_weight_ref *w) { return w->dtype != KRAIT_I32 || w->scales; }

/* Whether the operator has everything that the layers have. */
static int are_plain(const kr_lm_config *c) {
  int plain = c->is_rms;
  for (int64_t i = 0; i < c->n_blocks; i++) {
    const kr_lm_mamba_weights *w = c->blocks[i].weights;
    const kr_lm_mamba_sizes *s = c->blocks[i].sizes;
    plain = plain && s->dt_eps == 0 && s->gate == KR_LM_GATE_FIRST && s->gate_eps == 0 && s->scales[0] == 0 &&
            is_plain_product(&w->in_proj) && is_plain_product(&w->out_proj) &&
            !c->blocks[i].norm_bias.data && !w->in_proj_bias.data && !w->out_proj_bias.data && !w->is_D_per_channel;
  }
  return plain;
}

/* The products' weights in 8 bits instead of 16. */
static void describe_words(const kr_lm_config *c, kr_mamba_decode_args *a, int *fits) {
  const kr_lm_mamba_sizes *s = c->blocks[0].sizes;
  const int64_t columns = s->R + 2 * s->N, rows = kr_mamba_rows(&c->blocks[0]);
#define OF_Q8(name, which, n, k) kr_lm_layered(c, offsetof(kr_lm_mamba_weights, name), which, KR_DIMS(n, k), fits)
  *fits = *fits && s->d % 32 == 0 && s->Di % 32 == 0;
  a->SD = s->d / 32, a->SE = s->Di / 32;
  a->in_proj_qweight = OF_Q8(in_proj, KR_LAYERED_WORDS, rows, s->d / 4),
  a->in_proj_scales = OF_Q8(in_proj, KR_LAYERED_SCALES, rows, s->d / 32);
  a->x_proj_qweight = OF_Q8(x_proj, KR_LAYERED_WORDS, columns, s->Di / 4),
  a->x_proj_scales = OF_Q8(x_proj, KR_LAYERED_SCALES, columns, s->Di / 32);
  a->out_proj_qweight = OF_Q8(out_proj, KR_LAYERED_WORDS, s->d, s->Di / 4),
  a->out_proj_scales = OF_Q8(out_proj, KR_LAYERED_SCALES, s->d, s->Di / 32);
  *fits = *fits && a->out_proj_qweight.data && !a->x_proj_qweight.data == !a->x_proj.data;
  a->in_proj = a->x_proj = a->out_proj = (kr_view){0};
}

/* The call, with addresses if known. 0: the layers are not of its kind. */
static int describe_decode(const kr_lm_builder *b, kr_mamba_decode_args *a) {
  static float aligned[4] __attribute__((aligned(256)));
  const kr_lm_config *c = b->c;
  const kr_lm_block *block = &c->blocks[0];
  const kr_lm_mamba_sizes *s = block->sizes;
  const int64_t C = kr_mamba_channels(block), is_first = !kr_mamba_is_second(block), rows = kr_mamba_rows(block);
  const int32_t state_dtype = kr_lm_state_dtype(b, &block->states[KR_MAMBA_SSM]);
  int fits = are_plain(c) && (state_dtype == KRAIT_F32 || b->slots->n * s->Di * s->N % 2 == 0);
  if (!fits) return 0;
#define LAYERED(name, ...) \
  kr_lm_layered(c, offsetof(kr_lm_mamba_weights, name), KR_LAYERED_DATA, KR_DIMS(__VA_ARGS__), &fits)
  *a = (kr_mamba_decode_args){.B = b->run.B,
                              .Y = c->n_blocks,
                              .D = s->d,
                              .E = s->Di,
                              .N = s->N,
                              .W = s->W,
                              .R = is_first ? s->R : 0,
                              .H = s->H,
                              .G = s->G,
                              .n_states = b->slots->n,
                              .eps = c->eps,
                              .x = {.data = aligned, .dtype = b->rows.dtype, .stride = {s->d, 1}},
                              .norm_weight = kr_lm_layered(c, KR_LAYERED_NORM, KR_LAYERED_DATA, KR_DIMS(s->d), &fits),
                              .in_proj = LAYERED(in_proj, rows, s->d),
                              .conv_weight = LAYERED(conv, C, s->W),
                              .conv_bias = LAYERED(conv_bias, C),
                              .x_proj = LAYERED(x_proj, s->R + 2 * s->N, s->Di),
                              .dt_proj = LAYERED(dt_proj, s->Di, s->R),
                              .dt_bias = LAYERED(dt_bias, is_first ? s->Di : s->H),
                              .Dvec = LAYERED(D, is_first ? s->Di : s->H),
                              .gate_norm = LAYERED(gate_norm, s->Di),
                              .out_proj = LAYERED(out_proj, s->d, s->Di),
                              .conv_state = kr_lm_states_layout(b, block, KR_MAMBA_CONV),
                              .ssm_state = kr_lm_states_layout(b, block, KR_MAMBA_SSM),
                              .state_batch_indices = {.data = aligned, .dtype = KRAIT_I32, .stride = {1}},
                              .out = {.data = aligned, .dtype = KRAIT_F32, .stride = {s->d, 1}}};
  a->A = is_first ? LAYERED(A, s->Di, s->N) : LAYERED(A, s->H);
  if (((const kr_lm_mamba_weights *)block->weights)->in_proj.qweight) describe_words(c, a, &fits);
  return fits && a->in_proj.data != a->in_proj_qweight.data; /* one of them */
}

/* One launch of all layers is faster than separate calls for wide layers, whose weights Hopper's implementation streams
 * (H200, ms per step: 2.8b 1.37 against 1.79 in either type of 16 bits, with q8_0 1.10 against 1.39; 2.7b 1.48 against
 * 1.82, with q8_0 1.14 against 1.58). */
int kr_mamba_can_fuse(const kr_lm_builder *b) {
  kr_mamba_decode_args a;
  int32_t status = KRAIT_OK;
  if (!describe_decode(b, &a)) return 0;
  if (b->run.fused) return 1;
  const krait_ctx *ctx = b->rows.ctx;
  const kr_impl *impl = ctx->cuda ? kr_op_resolve(&kr_op_mamba_decode, ctx, &a, &status) : NULL;
  return impl && impl->needs & KRAIT_CAP_CUDA_HOPPER;
}

kr_view kr_lm_record_layered(const kr_token_builder *r, const char *name, const kr_view *v, kr_dims dims) {
  return v->data ? view(r, kr_graph_input_like(r->g, name, v, dims)) : (kr_view){0};
}

/* x: rows of the embedding; returns the residual stream after all layers. */
kr_tensor kr_mamba_record_fused(kr_lm_builder *b, kr_tensor x) {
  const kr_token_builder *r = &b->rows;
  const kr_lm_block *block = &b->c->blocks[0];
  const kr_lm_mamba_sizes *s = block->sizes;
  const int64_t Y = b->c->n_blocks, C = kr_mamba_channels(block), is_first = !kr_mamba_is_second(block),
                rows = kr_mamba_rows(block), n_columns = s->R + 2 * s->N;
  kr_mamba_decode_args of, a;
  if (!describe_decode(b, &of)) return 0;
  a = of;
  const kr_tensor out = kr_graph_temp(r->g, KRAIT_F32, KR_DIMS(r->rows, s->d)),
                  conv = kr_lm_record_all_states(b, block, KR_MAMBA_CONV, b->slots->n),
                  ssm = kr_lm_record_all_states(b, block, KR_MAMBA_SSM, b->slots->n);
#define STACKED(field, ...) a.field = kr_lm_record_layered(r, #field, &of.field, KR_DIMS(Y, __VA_ARGS__))
  STACKED(norm_weight, s->d), STACKED(in_proj, rows, s->d), STACKED(conv_weight, C, s->W), STACKED(conv_bias, C),
      STACKED(x_proj, n_columns, s->Di), STACKED(dt_proj, s->Di, s->R);
  STACKED(dt_bias, is_first ? s->Di : s->H), STACKED(Dvec, is_first ? s->Di : s->H), STACKED(gate_norm, s->Di),
      STACKED(out_proj, s->d, s->Di);
  STACKED(in_proj_qweight, rows, s->d / 4), STACKED(x_proj_qweight, n_columns, s->Di / 4),
      STACKED(out_proj_qweight, s->d, s->Di / 4);
  STACKED(in_proj_scales, rows, s->d / 32), STACKED(x_proj_scales, n_columns, s->Di / 32),
      STACKED(out_proj_scales, s->d, s->Di / 32);
  if (is_first)
    STACKED(A, s->Di, s->N);
  else
    STACKED(A, s->H);
  a.x = view(r, x), a.state_batch_indices = view(r, b->to->slots);
  a.conv_state = view(r, conv), a.ssm_state = view(r, ssm), a.out = view(r, out);
  kr_graph_call(r->g, "layers", &kr_op_mamba_decode, &a);
  return out;
}
