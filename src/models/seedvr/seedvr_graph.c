/* seedvr_graph.c: the model as calls of a graph, for one sample of one shape. Rows are tokens: the video's in raster
 * order, then the text's. */
#include <stdio.h>
#include <string.h>

#include "ctx.h"
#include "seedvr.h"
#include "status.h"
#include "token_builder.h"

/* Tensors of a layout. */
typedef struct places {
  kr_tensor to_packed, video_at, text_at, starts, cos, sin;
} places;

typedef struct builder {
  kr_token_builder rec; /* its rows are those of video and text */
  kr_graph *g;
  const kr_seedvr_config *c;
  const kr_seedvr_weights *w;
  kr_seedvr_graph *to;
  int64_t T, n;  /* video tokens, text tokens */
  kr_tensor emb; /* (6,C), a view */
  places of[KR_SEEDVR_PARTITIONS];
} builder;

/* A part of the stream and its weights. */
typedef struct part {
  const kr_seedvr_part *w;
  int64_t from, n;
  kr_tensor mods; /* (6,C) */
  char tag;       /* of names */
} part;

static kr_tensor temp(const builder *b, int64_t rows, int64_t width) {
  return kr_graph_temp(b->g, b->rec.dtype, KR_DIMS(rows, width));
}
static kr_tensor rows_of(const builder *b, kr_tensor t, const part *p) {
  return kr_graph_slice(b->g, t, 0, p->from, p->n);
}

/* tag: 0: of no part. */
static kr_tensor weight_as(const builder *b, const char *name, char tag, const kr_weight_ref *w, kr_dims dims) {
  char full[64];
  snprintf(full, sizeof full, tag ? "%s.%c" : "%s", name, tag);
  return kr_record_weight(&b->rec, full, w, dims);
}
#define WEIGHT(p, name, ...) weight_as(b, #name, (p)->tag, &(p)->w->name, KR_DIMS(__VA_ARGS__))
#define END(name, ...) weight_as(b, #name, 0, &b->w->name, KR_DIMS(__VA_ARGS__))

/* act(rows times a weight (columns, inputs) + bias) + residual. */
static void project_seedvr(const builder *b, const char *name, int32_t activation, kr_tensor rows, kr_tensor w,
                           kr_tensor bias, kr_tensor residual, kr_tensor out) {
  const kr_dims from = kr_graph_dims(b->g, rows), to = kr_graph_dims(b->g, out);
  b->to->flops += 2 * (double)from.size[0] * (double)from.size[1] * (double)to.size[1];
  linear(&b->rec, name, rows, .matrix = w, .bias_row = bias, .residual = residual, .out = out,
         .activation = activation);
}

/* Tensors of a golden file are also output as float32. */
static void tap(const builder *b, const char *name, kr_tensor t) {
  kr_seedvr_graph *to = b->to;
  if (!to->with_taps || to->n_taps == KR_SEEDVR_MOST_TAPS) return;
  const kr_dims dims = kr_graph_dims(b->g, t);
  kr_seedvr_tap *made = &to->taps[to->n_taps++];
  snprintf(made->name, sizeof made->name, "%s", name);
  made->tensor = kr_graph_output(b->g, name, KRAIT_F32, dims);
  made->n = 1;
  for (int d = 0; d < dims.n; d++) made->n *= dims.size[d];
  copy(&b->rec, name, t, made->tensor);
}
/* The same for both streams: name is the part before vid and txt. */
static void tap_rows(const builder *b, const char *name, kr_tensor t) {
  char full[32];
  snprintf(full, sizeof full, "%svid", name);
  tap(b, full, kr_graph_slice(b->g, t, 0, 0, b->T));
  snprintf(full, sizeof full, "%stxt", name);
  tap(b, full, kr_graph_slice(b->g, t, 0, b->T, b->n));
}

/* ---- modulation ---- */

/* Row k of the modulation, as a vector. */
static kr_tensor mod_of(const builder *b, const part *p, int k) {
  return p->mods ? kr_graph_reshape(b->g, kr_graph_slice(b->g, p->mods, 0, k, 1), KR_DIMS(b->c->C)) : 0;
}

/* The modulated norm: `which` is 0 before attention, 1 before the mlp. */
static void norm_rows(const builder *b, const char *name, const part *p, int which, kr_tensor x, kr_tensor out) {
  norm_of(&b->rec, name, rows_of(b, x, p), NULL, .weight = mod_of(b, p, 3 * which + 1), .bias = mod_of(b, p, 3 * which),
          .out = rows_of(b, out, p), .eps = b->c->eps, .is_rms = 1);
}

/* x + gate (rows w' + bias): the gate scales the rows of w. */
static void project_gated(const builder *b, const char *name, const part *p, int which, kr_tensor rows, kr_tensor w,
                          kr_tensor bias, kr_tensor x, kr_tensor out) {
  const kr_dims dims = kr_graph_dims(b->g, w);
  const kr_tensor gate = mod_of(b, p, 3 * which + 2);
  if (gate) {
    const kr_tensor gated = kr_graph_temp(b->g, b->rec.dtype, dims),
                    gated_bias = bias ? kr_graph_temp(b->g, b->rec.dtype, KR_DIMS(dims.size[0])) : 0;
    multiply_into(&b->rec, "gate", w,
                  kr_graph_expand(b->g, kr_graph_reshape(b->g, gate, KR_DIMS(dims.size[0], 1)), dims), gated);
    if (bias) multiply_into(&b->rec, "gate_bias", bias, gate, gated_bias);
    w = gated, bias = gated_bias;
  }
  project_seedvr(b, name, KRAIT_ACT_NONE, rows, w, bias, rows_of(b, x, p), rows_of(b, out, p));
}

/* ---- attention ---- */

/* Rows as heads: one packed row of sequences. */
static kr_tensor seedvr_as_heads(const builder *b, kr_tensor t) {
  return kr_graph_reshape(b->g, t, KR_DIMS(1, kr_graph_dims(b->g, t).size[0], b->c->H, b->c->D));
}

/* The k-th third of proj_qkv of all rows. */
static kr_tensor project_third(const builder *b, const char *name, const part *parts, int n_parts, int k, kr_tensor x) {
  const int64_t inner = b->c->H * b->c->D;
  const kr_tensor out = temp(b, b->rec.rows, inner);
  for (int i = 0; i < n_parts; i++)
    project_seedvr(b, name, KRAIT_ACT_NONE, rows_of(b, x, &parts[i]),
            kr_graph_slice(b->g, WEIGHT(&parts[i], qkv, 3 * inner, b->c->C), 0, k * inner, inner), 0, 0,
            rows_of(b, out, &parts[i]));
  return out;
}

/* Queries or keys: norm over the head and rotary embedding, if the model has them. */
static void norm_and_turn(const builder *b, const char *name, const part *parts, int n_parts, int is_key, kr_tensor t) {
  const int64_t H = b->c->H, D = b->c->D;
  const kr_seedvr_layout *layout = &b->to->layout[b->c->is_shifted[b->rec.layer]];
  const places *at = &b->of[b->c->is_shifted[b->rec.layer]];
  for (int i = 0; i < n_parts; i++) {
    const kr_tensor heads = kr_graph_reshape(b->g, rows_of(b, t, &parts[i]), KR_DIMS(parts[i].n * H, D)),
                    w = is_key ? WEIGHT(&parts[i], norm_k, D) : WEIGHT(&parts[i], norm_q, D);
    norm_of(&b->rec, name, heads, NULL, .weight = w, .out = heads, .eps = b->c->eps, .is_rms = 1);
  }
  const kr_tensor turned = seedvr_as_heads(b, kr_graph_slice(b->g, t, 0, 0, layout->n_turned));
  kr_graph_call(b->g, "rotary", &kr_op_rotary,
                &(kr_rotary_args){.call.flags = KRAIT_ROTARY_INTERLEAVED,
                                     .x = view(&b->rec, turned),
                                     .cos = view(&b->rec, at->cos),
                                     .sin = view(&b->rec, at->sin),
                                     .out = view(&b->rec, turned)});
}

/* From packed sequences back to rows: the video's at their original position, the text's as means over the windows. */
static kr_tensor unpack(const builder *b, kr_tensor packed) {
  const int64_t inner = b->c->H * b->c->D, n = b->to->layout[b->c->is_shifted[b->rec.layer]].n_windows;
  const places *at = &b->of[b->c->is_shifted[b->rec.layer]];
  const kr_tensor out = temp(b, b->rec.rows, inner);
  kr_record_gather(&b->rec, "video_back", packed, at->video_at, kr_graph_slice(b->g, out, 0, 0, b->T));
  const kr_tensor copies = kr_record_gather(&b->rec, "text_back", packed, at->text_at, temp(b, n * b->n, inner)),
                  sum = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(b->n * inner));
  kr_graph_call(b->g, "text_sum", &kr_op_sum_rows,
                &(kr_sum_rows_args){.x = view(&b->rec, kr_graph_reshape(b->g, copies, KR_DIMS(n, b->n * inner))),
                                       .out = view(&b->rec, sum)});
  kr_graph_pointwise(b->g, "text_mean", (kr_pointwise_args){.x_scale = 1 / (float)n},
                     kr_graph_reshape(b->g, sum, KR_DIMS(b->n, inner)), 0, kr_graph_slice(b->g, out, 0, b->T, b->n));
  return out;
}

static kr_tensor seedvr_attend(const builder *b, const part *parts, int n_parts, kr_tensor x) {
  const kr_seedvr_config *c = b->c;
  const kr_seedvr_layout *layout = &b->to->layout[c->is_shifted[b->rec.layer]];
  const places *at = &b->of[c->is_shifted[b->rec.layer]];
  const kr_tensor q = project_third(b, "q", parts, n_parts, 0, x), k = project_third(b, "k", parts, n_parts, 1, x),
                  v = project_third(b, "v", parts, n_parts, 2, x);
  norm_and_turn(b, "norm_q", parts, n_parts, 0, q);
  norm_and_turn(b, "norm_k", parts, n_parts, 1, k);
  kr_tensor packed[3];
  const kr_tensor from[] = {q, k, v};
  for (int i = 0; i < 3; i++)
    packed[i] = kr_record_gather(&b->rec, "pack", from[i], at->to_packed, temp(b, layout->n_packed, c->H * c->D));
  if (b->rec.layer == 1) tap(b, "window_q1", packed[0]);
  const kr_tensor out = temp(b, layout->n_packed, c->H * c->D);
  kr_graph_call(b->g, "attention", &kr_op_attention,
                &(kr_attention_args){.max_q = layout->longest,
                                        .max_k = layout->longest,
                                        .q = view(&b->rec, seedvr_as_heads(b, packed[0])),
                                        .k = view(&b->rec, seedvr_as_heads(b, packed[1])),
                                        .v = view(&b->rec, seedvr_as_heads(b, packed[2])),
                                        .cu_seqlens_q = view(&b->rec, at->starts),
                                        .cu_seqlens_k = view(&b->rec, at->starts),
                                        .out = view(&b->rec, seedvr_as_heads(b, out))});
  b->to->flops += 4 * layout->pairs * (double)(c->H * c->D);
  return unpack(b, out);
}

/* ---- a block ---- */

/* The parts of the stream, with their modulation. */
static int divide(const builder *b, part parts[2]) {
  const kr_seedvr_layer *l = &b->w->layers[b->rec.layer];
  for (int i = 0; i < l->n_parts; i++) {
    part *p = &parts[i];
    *p = (part){.w = &l->part[i],
                .from = i ? b->T : 0,
                .n = l->n_parts == 1 ? b->rec.rows
                     : i             ? b->n
                                     : b->T,
                .tag = l->n_parts == 1 ? 'a'
                       : i             ? 't'
                                       : 'v'};
    if (!p->w->ada.data) continue;
    p->mods = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(6, b->c->C));
    add_into(&b->rec, "modulation", WEIGHT(p, ada, 6, b->c->C), b->emb, p->mods);
  }
  return l->n_parts;
}

static void mlp(const builder *b, const part *p, kr_tensor normed, kr_tensor x, kr_tensor out) {
  const kr_seedvr_config *c = b->c;
  const kr_tensor hidden = temp(b, p->n, c->F), in = WEIGHT(p, mlp_in, c->F, c->C);
  if (c->is_3b) {
    const kr_tensor gate = WEIGHT(p, mlp_gate, c->F, c->C);
    kr_record_gated(&b->rec, "mlp_in", rows_of(b, normed, p),
                    &(kr_gated){.gate = gate, .up = in, .activation = KRAIT_ACT_SILU}, hidden);
    b->to->flops += 4 * (double)p->n * (double)c->C * (double)c->F;
  } else {
    project_seedvr(b, "mlp_in", KRAIT_ACT_GELU_TANH, rows_of(b, normed, p), in, WEIGHT(p, mlp_in_bias, c->F), 0,
                   hidden);
  }
  project_gated(b, "mlp_out", p, 1, hidden, WEIGHT(p, mlp_out, c->C, c->F), WEIGHT(p, mlp_out_bias, c->C), x, out);
}

/* The text of the last block: without modulation and mlp; it is only read if requested. */
static void end_text(const builder *b, kr_tensor attended, kr_tensor out) {
  const part text = {.from = b->T, .n = b->n};
  kr_graph_pointwise(b->g, "text_end", (kr_pointwise_args){.x_scale = 2}, rows_of(b, attended, &text), 0,
                     rows_of(b, out, &text));
}

/* In the block where the text ends, its rows are a separate part from here on, without modulation. */
static int divide_end(const builder *b, part parts[2], int n_parts) {
  parts[1] = (part){.w = parts[n_parts - 1].w, .from = b->T, .n = b->n, .tag = parts[n_parts - 1].tag};
  parts[0].n = b->T;
  return 2;
}

static kr_tensor record_block(builder *b, kr_tensor x) {
  const kr_seedvr_config *c = b->c;
  char name[32];
  part parts[2], ends[2];
  const int n_parts = divide(b, parts), text_ends = b->w->layers[b->rec.layer].text_ends;
  int n_ends = n_parts;
  for (int i = 0; i < n_parts; i++) ends[i] = parts[i];
  if (text_ends) n_ends = divide_end(b, ends, n_parts);
  const kr_tensor normed = temp(b, b->rec.rows, c->C), attended = temp(b, b->rec.rows, c->C),
                  normed2 = temp(b, b->rec.rows, c->C), out = temp(b, b->rec.rows, c->C);
  for (int i = 0; i < n_ends; i++) norm_rows(b, "attn_norm", &ends[i], 0, x, normed);
  if (b->rec.layer == 0) tap_rows(b, "attn0.in_", normed);
  const kr_tensor y = seedvr_attend(b, parts, n_parts, normed);
  for (int i = 0; i < n_ends; i++)
    project_gated(b, "proj_out", &ends[i], 0, rows_of(b, y, &ends[i]), WEIGHT(&ends[i], out, c->C, c->H * c->D),
                  WEIGHT(&ends[i], out_bias, c->C), x, attended);
  for (int i = 0; i < (text_ends ? 1 : n_parts); i++) {
    norm_rows(b, "mlp_norm", &ends[i], 1, attended, normed2);
    mlp(b, &ends[i], normed2, attended, out);
  }
  if (text_ends) end_text(b, attended, out);
  snprintf(name, sizeof name, "block%lld.", (long long)b->rec.layer);
  tap_rows(b, name, out);
  return out;
}

/* ---- the whole ---- */

/* The caller's float32, in the type of activations. */
static kr_tensor take_input(const builder *b, const char *name, kr_dims dims, kr_tensor *input) {
  *input = kr_graph_input(b->g, name, KRAIT_F32, dims);
  if (b->rec.dtype == KRAIT_F32) return *input;
  const kr_tensor x = kr_graph_temp(b->g, b->rec.dtype, dims);
  copy(&b->rec, name, *input, x);
  return x;
}

static kr_tensor embed_time(const builder *b) {
  const int64_t C = b->c->C;
  const kr_tensor first = temp(b, 1, C), second = temp(b, 1, C),
                  emb = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(1, 6 * C));
  const kr_tensor sinusoids = take_input(b, "sinusoids", KR_DIMS(1, KR_SEEDVR_SINUSOIDS), &b->to->sinusoids);
  project_seedvr(b, "emb_in", KRAIT_ACT_SILU, sinusoids, END(emb_in, C, KR_SEEDVR_SINUSOIDS),
                 END(emb_in_bias, C), 0, first);
  project_seedvr(b, "emb_hid", KRAIT_ACT_SILU, first, END(emb_hid, C, C), END(emb_hid_bias, C), 0, second);
  project_seedvr(b, "emb_out", KRAIT_ACT_NONE, second, END(emb_out, 6 * C, C), END(emb_out_bias, 6 * C), 0, emb);
  tap(b, "emb", emb);
  return emb;
}

static kr_tensor embed_rows(const builder *b) {
  const kr_seedvr_config *c = b->c;
  const int64_t K = c->patch[1] * c->patch[2] * c->vid_in;
  kr_seedvr_graph *to = b->to;
  const kr_tensor x = temp(b, b->rec.rows, c->C), text = kr_graph_slice(b->g, x, 0, b->T, b->n);
  const kr_tensor patches = take_input(b, "patches", KR_DIMS(b->T, K), &to->patches),
                  words = take_input(b, "text", KR_DIMS(b->n, c->txt_in), &to->text);
  project_seedvr(b, "vid_in", KRAIT_ACT_NONE, patches, END(vid_in, c->C, K), END(vid_in_bias, c->C), 0,
          kr_graph_slice(b->g, x, 0, 0, b->T));
  if (b->w->txt_in.data)
    project_seedvr(b, "txt_in", KRAIT_ACT_NONE, words, END(txt_in, c->C, c->txt_in), END(txt_in_bias, c->C), 0,
                   text);
  else
    copy(&b->rec, "txt_in", words, text);
  tap(b, "vid_tokens", kr_graph_slice(b->g, x, 0, 0, b->T));
  tap(b, "txt_tokens", text);
  return x;
}

/* 3B: the modulation of the blocks' attention, with its own shift and scale, and a norm with a weight. */
static void record_out(const builder *b, kr_tensor x) {
  const kr_seedvr_config *c = b->c;
  const int64_t N = c->patch[1] * c->patch[2] * c->vid_out;
  x = kr_graph_slice(b->g, x, 0, 0, b->T);
  if (c->is_3b) {
    const kr_tensor mods = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(2, c->C)),
                    scale = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(1, c->C)), normed = temp(b, b->T, c->C);
    add_into(&b->rec, "out_mod", END(out_ada, 2, c->C), kr_graph_slice(b->g, b->emb, 0, 0, 2), mods);
    multiply_into(&b->rec, "out_scale", END(out_norm, 1, c->C), kr_graph_slice(b->g, mods, 0, 1, 1), scale);
    norm_of(&b->rec, "out_norm", x, NULL, .weight = kr_graph_reshape(b->g, scale, KR_DIMS(c->C)),
            .bias = kr_graph_reshape(b->g, kr_graph_slice(b->g, mods, 0, 0, 1), KR_DIMS(c->C)), .out = normed,
            .eps = c->eps, .is_rms = 1);
    x = normed;
  }
  b->to->out = kr_graph_output(b->g, "vid_out", KRAIT_F32, KR_DIMS(b->T, N));
  project_seedvr(b, "vid_out", KRAIT_ACT_NONE, x, END(vid_out, N, c->C), END(vid_out_bias, N), 0, b->to->out);
}

/* Tables in the context's memory have the same offsets in their block as on the host. */
static kr_tensor table(const builder *b, const kr_seedvr_layout *l, const char *block, const char *name, const void *at,
                       int32_t dtype, kr_dims dims) {
  return kr_graph_weight(b->g, name, dtype, dims, block + ((const char *)at - (const char *)l->memory));
}

static void record_places(builder *b, int which, const char *block) {
  const kr_seedvr_layout *l = &b->to->layout[which];
  const int64_t R = 3 * b->w->n_freqs;
  places *p = &b->of[which];
  p->to_packed = table(b, l, block, "to_packed", l->to_packed, KRAIT_I32, KR_DIMS(l->n_packed));
  p->video_at = table(b, l, block, "video_at", l->video_at, KRAIT_I32, KR_DIMS(b->T));
  p->text_at = table(b, l, block, "text_at", l->text_at, KRAIT_I32, KR_DIMS(l->n_windows * b->n));
  p->starts = table(b, l, block, "starts", l->starts, KRAIT_I32, KR_DIMS(l->n_windows + 1));
  p->cos = table(b, l, block, "cos", l->cos, KRAIT_F32, KR_DIMS(l->n_turned, R));
  p->sin = table(b, l, block, "sin", l->sin, KRAIT_F32, KR_DIMS(l->n_turned, R));
}

static kr_tensor output_copy(const builder *b, const char *name, kr_tensor t) {
  const kr_tensor out = kr_graph_output(b->g, name, kr_graph_dtype(b->g, t), kr_graph_dims(b->g, t));
  copy(&b->rec, name, t, out);
  return out;
}

static void record_seedvr(builder *b) {
  kr_seedvr_graph *to = b->to;
  const int64_t C = b->c->C, n = to->n_layers ? to->n_layers : b->c->n_layers;
  const int has_blocks = to->part == KR_SEEDVR_ALL || to->part == KR_SEEDVR_BLOCKS;
  kr_tensor x, emb;
  if (to->part == KR_SEEDVR_ALL || to->part == KR_SEEDVR_HEAD) {
    emb = embed_time(b);
    x = embed_rows(b);
  } else {
    x = to->rows = kr_graph_input(b->g, "rows", b->rec.dtype, KR_DIMS(b->rec.rows, C));
    emb = to->emb = kr_graph_input(b->g, "emb", KRAIT_F32, KR_DIMS(1, 6 * C));
  }
  b->emb = kr_graph_permute(b->g, kr_graph_reshape(b->g, emb, KR_DIMS(C, 6)), (int[]){1, 0});
  for (b->rec.layer = to->from; has_blocks && b->rec.layer < to->from + n; b->rec.layer++) x = record_block(b, x);
  b->rec.layer = -1;
  if (to->part == KR_SEEDVR_HEAD) to->emb_out = output_copy(b, "emb_out", emb);
  if (to->part == KR_SEEDVR_ALL || to->part == KR_SEEDVR_TAIL) record_out(b, x);
  else to->out = output_copy(b, "rows_out", x);
}

static int32_t make_tables(const krait_ctx *ctx, const kr_seedvr_config *c, const kr_seedvr_weights *w,
                           kr_seedvr_graph *to, const char *blocks[]) {
  size_t bytes = 0;
  if (to->tables_of) {
    memcpy(to->layout, to->tables_of->layout, sizeof to->layout);
    for (int i = 0; i < KR_SEEDVR_PARTITIONS; i++)
      blocks[i] = to->tables_of->tables ? to->tables_of->tables + (i ? to->layout[0].bytes : 0) : to->layout[i].memory;
    return KRAIT_OK;
  }
  for (int i = 0; i < KR_SEEDVR_PARTITIONS; i++) {
    KR_TRY(kr_seedvr_layout_open(c, w->freqs, w->n_freqs, to->size, to->n_text, i, &to->layout[i]));
    blocks[i] = to->layout[i].memory;
    bytes += to->layout[i].bytes;
  }
  if (!ctx->cuda || to->only_planned) return KRAIT_OK;
  KR_TRY(kr_mem_get(ctx, "tables of windows", bytes, &to->tables));
  for (int i = 0; i < KR_SEEDVR_PARTITIONS; i++) {
    blocks[i] = to->tables + (i ? to->layout[0].bytes : 0);
    KR_TRY(kr_mem_put(ctx, (char *)blocks[i], to->layout[i].memory, to->layout[i].bytes));
  }
  return kr_mem_wait(ctx);
}

static int32_t open_graph(builder *b, const krait_ctx *ctx) {
  const char *blocks[KR_SEEDVR_PARTITIONS];
  kr_seedvr_graph *to = b->to;
  KR_TRY(make_tables(ctx, b->c, b->w, to, blocks));
  KR_TRY(kr_graph_open(&to->g));
  b->g = b->rec.g = to->g;
  for (int i = 0; i < KR_SEEDVR_PARTITIONS; i++) record_places(b, i, blocks[i]);
  record_seedvr(b);
  KR_TRY(kr_graph_plan(to->g, ctx, 0));
  if (to->only_planned) return KRAIT_OK;
  return to->arena ? kr_runner_open_in(to->g, to->arena, to->arena_bytes, &to->runner)
                   : kr_runner_open(to->g, &to->runner);
}

uint64_t kr_seedvr_graph_bytes(const kr_seedvr_graph *g) {
  return kr_graph_bytes(g->g) + g->layout[0].bytes + g->layout[1].bytes;
}

int32_t kr_seedvr_graph_open(const krait_ctx *ctx, const kr_seedvr_config *c, const kr_seedvr_weights *w,
                             kr_seedvr_graph *to) {
  const int64_t *s = to->size, most = INT32_MAX;
  KR_CHECK(s[0] >= 1 && s[1] >= 1 && s[2] >= 1 && s[0] <= most / s[1] / s[2], KRAIT_ERR_SHAPE,
           "seedvr: a grid of %lld x %lld x %lld tokens is empty or too large", (long long)s[0], (long long)s[1],
           (long long)s[2]);
  KR_CHECK(to->n_text >= 1 && to->n_text <= 1 << 20, KRAIT_ERR_SHAPE, "seedvr: %lld text tokens, must be 1 to 2^20",
           (long long)to->n_text);
  to->ctx = ctx, to->T = s[0] * s[1] * s[2];
  builder b = {.rec = {.ctx = ctx, .dtype = w->dtype, .rows = to->T + to->n_text, .layer = -1},
               .c = c,
               .w = w,
               .to = to,
               .T = to->T,
               .n = to->n_text};
  const int32_t status = open_graph(&b, ctx);
  if (status < 0) kr_seedvr_graph_close(to);
  return status;
}

void kr_seedvr_graph_close(kr_seedvr_graph *to) {
  if (to->runner) kr_runner_close(&to->runner);
  if (to->g) kr_graph_close(&to->g);
  if (to->tables) kr_mem_free(to->ctx, to->tables);
  for (int i = 0; i < KR_SEEDVR_PARTITIONS && !to->tables_of; i++) kr_seedvr_layout_close(&to->layout[i]);
  *to = (kr_seedvr_graph){0};
}
