/* videomamba_graph.c: the model as calls of a graph, for one clip. Rows are tokens. */
#include <stdio.h>

#include "mamba_block.h"
#include "op_list.h"
#include "status.h"
#include "videomamba_parts.h"

typedef struct builder {
  kr_graph *g;
  const kr_videomamba_config *c;
  int64_t L;     /* tokens */
  int32_t dtype; /* of rows */
} builder;

static krait_view videomamba_view(const builder *b, kr_tensor t) { return kr_graph_view(b->g, t); }
static kr_tensor videomamba_new_rows(const builder *b, int64_t columns) {
  return kr_graph_temp(b->g, b->dtype, KR_DIMS(b->L, columns));
}

static kr_tensor videomamba_weight(const builder *b, int64_t layer, const char *name, const kr_weight_ref *t,
                                   kr_dims dims) {
  char full[64];
  snprintf(full, sizeof full, layer < 0 ? "%.0lld%s" : "%lld.%s", layer < 0 ? 0 : (long long)layer, name);
  return t->data ? kr_graph_weight(b->g, full, t->dtype, dims, t->data) : 0;
}

/* Rows times a weight stored as (columns, inputs). */
static void project_videomamba(const builder *b, const char *name, kr_tensor rows, kr_tensor w, kr_tensor bias,
                               kr_tensor residual, kr_tensor out) {
  kr_graph_call(b->g, name, &kr_op_gemm,
                &(krait_gemm_args){.A = videomamba_view(b, rows),
                                   .Bmat = videomamba_view(b, kr_graph_permute(b->g, w, (int[]){1, 0})),
                                   .bias = videomamba_view(b, bias),
                                   .residual = videomamba_view(b, residual),
                                   .out = videomamba_view(b, out)});
}

/* (L,C) as (1,C,L). */
static kr_tensor videomamba_as_channels(const builder *b, kr_tensor rows) {
  return kr_graph_permute(b->g, kr_graph_reshape(b->g, rows, KR_DIMS(1, b->L, kr_graph_dims(b->g, rows).size[1])),
                          (int[]){0, 2, 1});
}

/* The class token's row is its position embedding; the others are their patches' products plus position embeddings. */
static kr_tensor embed_videomamba(const builder *b, const kr_vm_parameters *p, kr_tensor patches) {
  const kr_videomamba_config *c = b->c;
  const int64_t K = 3 * c->patch * c->patch;
  if (b->dtype != KRAIT_F32) {
    const kr_tensor cast = kr_graph_temp(b->g, b->dtype, KR_DIMS(b->L - 1, K));
    kr_graph_pointwise(b->g, "patches", (krait_pointwise_args){.x_scale = 1}, patches, 0, cast);
    patches = cast;
  }
  const kr_tensor tokens = videomamba_new_rows(b, c->D),
                  pos_embed = videomamba_weight(b, -1, "places", &p->pos_embed, KR_DIMS(b->L, c->D));
  kr_graph_pointwise(b->g, "cls", (krait_pointwise_args){.x_scale = 1}, kr_graph_slice(b->g, pos_embed, 0, 0, 1), 0,
                     kr_graph_slice(b->g, tokens, 0, 0, 1));
  project_videomamba(b, "embed", patches, videomamba_weight(b, -1, "embed.weight", &p->embed, KR_DIMS(c->D, K)),
                     videomamba_weight(b, -1, "embed.bias", &p->embed_bias, KR_DIMS(c->D)),
                     kr_graph_slice(b->g, pos_embed, 0, 1, b->L - 1), kr_graph_slice(b->g, tokens, 0, 1, b->L - 1));
  return tokens;
}

/* Adds h to the residual stream; returns its norm. */
static kr_tensor add_videomamba_norm(const builder *b, const char *name, kr_tensor h, kr_tensor *stream, kr_tensor w,
                          kr_tensor out) {
  const kr_tensor sum = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(b->L, b->c->D)); /* the stream */
  kr_graph_call(b->g, name, &kr_op_add_norm,
                &(krait_add_norm_args){.call.flags = KRAIT_NORM_RMS,
                                       .eps = 1e-5f,
                                       .x = videomamba_view(b, h),
                                       .residual = videomamba_view(b, *stream),
                                       .weight = videomamba_view(b, w),
                                       .out = videomamba_view(b, out),
                                       .residual_out = videomamba_view(b, sum)});
  *stream = sum;
  return out;
}

/* One direction: its gated scan as rows of Di. */
static kr_tensor scan_videomamba(const builder *b, int64_t layer, const kr_vm_scan *s, int is_reverse, kr_tensor xz) {
  const kr_videomamba_config *c = b->c;
  const kr_tensor y = videomamba_new_rows(b, c->Di);
#define PART(name, ...) \
  .name = videomamba_weight(b, layer, is_reverse ? #name "_b" : #name, &s->name, KR_DIMS(__VA_ARGS__))
  kr_mamba_block_record(
      b->g,
      &(kr_mamba_block){
          .flags = KRAIT_SCAN_SOFTPLUS | (is_reverse ? KRAIT_SCAN_REVERSE : 0),
          .dtype = b->dtype,
          .xz = videomamba_as_channels(b, xz),
          .out = videomamba_as_channels(b, y),
          PART(A, c->Di, c->N),
          PART(Dvec, c->Di),
          .conv_weight = videomamba_weight(b, layer, is_reverse ? "conv_b" : "conv", &s->conv, KR_DIMS(c->Di, c->W)),
          PART(conv_bias, c->Di),
          .x_proj_weight = videomamba_weight(b, layer, is_reverse ? "x_proj_b" : "x_proj", &s->x_proj,
                                             KR_DIMS(c->R + 2 * c->N, c->Di)),
          .dt_proj_weight =
              videomamba_weight(b, layer, is_reverse ? "dt_proj_b" : "dt_proj", &s->dt_proj, KR_DIMS(c->Di, c->R)),
          .delta_bias =
              videomamba_weight(b, layer, is_reverse ? "dt_bias_b" : "dt_bias", &s->dt_bias, KR_DIMS(c->Di))});
#undef PART
  return y;
}

static kr_tensor mix(const builder *b, int64_t layer, const kr_vm_layer *l, kr_tensor x) {
  const kr_videomamba_config *c = b->c;
  const kr_tensor xz = videomamba_new_rows(b, 2 * c->Di), both = videomamba_new_rows(b, c->Di),
                  out = videomamba_new_rows(b, c->D);
  project_videomamba(b, "in_proj", x, videomamba_weight(b, layer, "in_proj", &l->in_proj, KR_DIMS(2 * c->Di, c->D)), 0,
                     0, xz);
  const kr_tensor forwards = scan_videomamba(b, layer, &l->scan[0], 0, xz),
                  backwards = scan_videomamba(b, layer, &l->scan[1], 1, xz);
  kr_graph_pointwise(b->g, "both", (krait_pointwise_args){.x_scale = 1, .y_scale = 1}, forwards, backwards, both);
  project_videomamba(b, "out_proj", both, videomamba_weight(b, layer, "out_proj", &l->out_proj, KR_DIMS(c->D, c->Di)),
                     0, 0, out);
  return out;
}

int32_t kr_vm_graph_record(const krait_ctx *ctx, const kr_videomamba_config *c, const kr_vm_parameters *p,
                           kr_vm_graph *to) {
  KR_TRY(kr_graph_open(&to->g));
  const builder b = {to->g, c, kr_videomamba_tokens(c), p->dtype};
  to->patches = kr_graph_input(b.g, "patches", KRAIT_F32, KR_DIMS(b.L - 1, 3 * c->patch * c->patch));
  to->tokens = kr_graph_output(b.g, "tokens", KRAIT_F32, KR_DIMS(b.L, c->D));
  kr_tensor h = embed_videomamba(&b, p, to->patches), stream = 0;
  for (int64_t i = 0; i < c->n_layers; i++)
    h = mix(
        &b, i, &p->layers[i],
        add_videomamba_norm(&b, "norm", h, &stream, videomamba_weight(&b, i, "norm", &p->layers[i].norm, KR_DIMS(c->D)),
                            videomamba_new_rows(&b, c->D)));
  const kr_tensor last = b.dtype == KRAIT_F32 ? to->tokens : videomamba_new_rows(&b, c->D);
  add_videomamba_norm(&b, "norm_f", h, &stream, videomamba_weight(&b, -1, "norm_f", &p->norm, KR_DIMS(c->D)), last);
  if (last != to->tokens) kr_graph_pointwise(b.g, "tokens", (krait_pointwise_args){.x_scale = 1}, last, 0, to->tokens);
  if (c->n_classes) {
    to->logits = kr_graph_output(b.g, "logits", KRAIT_F32, KR_DIMS(1, c->n_classes));
    project_videomamba(&b, "head", kr_graph_slice(b.g, last, 0, 0, 1),
            videomamba_weight(&b, -1, "head.weight", &p->head, KR_DIMS(c->n_classes, c->D)),
            videomamba_weight(&b, -1, "head.bias", &p->head_bias, KR_DIMS(c->n_classes)), 0, to->logits);
  }
  return kr_graph_plan(b.g, ctx, 0);
}
