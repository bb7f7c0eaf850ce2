/* videomamba_graph.c: the model as calls of a graph, for one clip. Rows are tokens. */
#include "mamba_block.h"
#include "status.h"
#include "token_builder.h"
#include "videomamba_parts.h"

typedef struct recorder {
  kr_token_builder b;
  const kr_videomamba_config *c;
} recorder;

/* The class token's row is its position embedding; the others, before and after it, are their patches' products plus
 * position embeddings. */
static kr_tensor embed_videomamba(const recorder *r, const kr_vm_parameters *p, kr_tensor patches) {
  const kr_videomamba_config *c = r->c;
  const kr_token_builder *b = &r->b;
  const int64_t class = kr_videomamba_class(c), K = 3 * c->grid.patch * c->grid.patch;
  const struct {
    const char *name;
    int64_t patch, row, n;
  } parts[] = {{"embed_before", 0, 0, class}, {"embed", class, class + 1, b->rows - 1 - class}};
  const kr_tensor cast = kr_record_cast(b, "patches", patches), tokens = new_rows(b, c->D),
                  pos_embed = weight(b, "places", &p->pos_embed, b->rows, c->D);
  copy(b, "cls", kr_graph_slice(b->g, pos_embed, 0, class, 1), kr_graph_slice(b->g, tokens, 0, class, 1));
  for (int i = class ? 0 : 1; i < 2; i++)
    linear(b, parts[i].name, kr_graph_slice(b->g, cast, 0, parts[i].patch, parts[i].n), .w = &p->embed,
           .bias = &p->embed_bias, .N = c->D, .K = K,
           .residual = kr_graph_slice(b->g, pos_embed, 0, parts[i].row, parts[i].n),
           .out = kr_graph_slice(b->g, tokens, 0, parts[i].row, parts[i].n));
  return tokens;
}

static kr_tensor norm_videomamba(const recorder *r, const char *name, kr_tensor h, kr_tensor *stream,
                                 const kr_weight_ref *w, kr_tensor out) {
  return norm_of(&r->b, name, h, stream, .weight = weight(&r->b, name, w, r->c->D), .out = out, .eps = 1e-5f,
                 .is_rms = 1);
}

/* One direction: its gated scan as rows of Di. */
static kr_tensor scan_videomamba(const recorder *r, const kr_vm_scan *s, int is_reverse, kr_tensor xz) {
  const kr_videomamba_config *c = r->c;
  const kr_token_builder *b = &r->b;
  const kr_tensor y = new_rows(b, c->Di);
#define PART(field, name, of, ...) .field = weight(b, is_reverse ? name "_b" : name, &s->of, __VA_ARGS__)
  kr_mamba_block_record(b->g, &(kr_mamba_block){.flags = KRAIT_SCAN_SOFTPLUS | (is_reverse ? KRAIT_SCAN_REVERSE : 0),
                                                .dtype = b->dtype,
                                                .xz = as_channels(b, xz),
                                                .out = as_channels(b, y),
                                                PART(A, "A", A, c->Di, c->N),
                                                PART(Dvec, "Dvec", Dvec, c->Di),
                                                PART(conv_weight, "conv", conv, c->Di, c->W),
                                                PART(conv_bias, "conv_bias", conv_bias, c->Di),
                                                PART(x_proj_weight, "x_proj", x_proj, c->R + 2 * c->N, c->Di),
                                                PART(dt_proj_weight, "dt_proj", dt_proj, c->Di, c->R),
                                                PART(delta_bias, "dt_bias", dt_bias, c->Di)});
#undef PART
  return y;
}

static kr_tensor mix(const recorder *r, const kr_vm_layer *l, kr_tensor x) {
  const kr_videomamba_config *c = r->c;
  const kr_token_builder *b = &r->b;
  const kr_tensor xz = linear(b, "in_proj", x, .w = &l->in_proj, .N = 2 * c->Di, .K = c->D), both = new_rows(b, c->Di);
  const kr_tensor forwards = scan_videomamba(r, &l->scan[0], 0, xz), backwards = scan_videomamba(r, &l->scan[1], 1, xz);
  add_into(b, "both", forwards, backwards, both);
  return linear(b, "out_proj", both, .w = &l->out_proj, .N = c->D, .K = c->Di, .scale = c->is_vim ? 0.5f : 0);
}

int32_t kr_vm_graph_record(const krait_ctx *ctx, const kr_videomamba_config *c, const kr_vm_parameters *p,
                           kr_vm_graph *to) {
  KR_TRY(kr_graph_open(&to->g));
  recorder r = {{.g = to->g, .ctx = ctx, .dtype = p->dtype, .rows = kr_videomamba_tokens(c), .layer = -1}, c};
  const kr_token_builder *b = &r.b;
  to->patches = kr_graph_input(b->g, "patches", KRAIT_F32, KR_DIMS(b->rows - 1, 3 * c->grid.patch * c->grid.patch));
  to->tokens = kr_graph_output(b->g, "tokens", KRAIT_F32, KR_DIMS(b->rows, c->D));
  kr_tensor h = embed_videomamba(&r, p, to->patches), stream = 0;
  for (int64_t i = 0; i < c->n_layers; i++) {
    r.b.layer = i;
    h = mix(&r, &p->layers[i], norm_videomamba(&r, "norm", h, &stream, &p->layers[i].norm, 0));
  }
  r.b.layer = -1;
  const kr_tensor last = norm_videomamba(&r, "norm_f", h, &stream, &p->norm, b->dtype == KRAIT_F32 ? to->tokens : 0);
  if (last != to->tokens) copy(b, "tokens", last, to->tokens);
  if (c->n_classes) {
    to->logits = kr_graph_output(b->g, "logits", KRAIT_F32, KR_DIMS(1, c->n_classes));
    linear(b, "head", kr_graph_slice(b->g, last, 0, kr_videomamba_class(c), 1), .w = &p->head, .bias = &p->head_bias,
           .N = c->n_classes, .K = c->D, .out = to->logits);
  }
  return kr_graph_plan(b->g, ctx, 0);
}
