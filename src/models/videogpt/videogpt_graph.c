/* videogpt_graph.c: the two graphs between the towers and the language model. Rows are patches, row-major in an
 * image. */
#include <math.h>
#include <stdio.h>

#include "status.h"
#include "token_builder.h"
#include "videogpt.h"

enum { N = KR_VIDEOGPT_PATCHES };

/* part: the owner of the weights. */
static kr_token_builder builder_of(kr_graph *g, const char *part) {
  return (kr_token_builder){.g = g, .part = part, .layer = -1};
}

/* ---- pooling ---- */

/* (B, patches, C) by a matrix (cells, patches): (B, cells, C), of the matrix's type on a GPU, else float32. */
static kr_tensor pool(const kr_token_builder *b, const char *name, kr_tensor x, const kr_weight_ref *matrix,
                      int64_t cells, int32_t dtype) {
  const kr_dims in = kr_graph_dims(b->g, x);
  const kr_tensor out = kr_graph_temp(b->g, dtype, KR_DIMS(in.size[0], cells, in.size[2])),
                  m = kr_graph_reshape(b->g, weight(b, name, matrix, cells, N), KR_DIMS(cells, N, 1));
  kr_graph_call(b->g, name, &kr_op_gemm,
                &(kr_gemm_args){.P = in.size[0],
                                   .A = view(b, kr_graph_expand(b->g, m, KR_DIMS(cells, N, in.size[0]))),
                                   .Bmat = view(b, kr_graph_permute(b->g, x, (int[]){1, 2, 0})),
                                   .out = view(b, kr_graph_permute(b->g, out, (int[]){1, 2, 0}))});
  return out;
}

/* ---- projectors ---- */

/* The part of (B,e,e,d) that is shifted by `dy` rows and `dx` columns from the part on the other side. */
static kr_tensor shifted(const kr_token_builder *b, kr_tensor t, int64_t edge, int dy, int dx) {
  t = kr_graph_slice(b->g, t, 1, dy > 0 ? dy : 0, edge - (dy ? 1 : 0));
  return kr_graph_slice(b->g, t, 2, dx > 0 ? dx : 0, edge - (dx ? 1 : 0));
}

/* x plus its depthwise 3 x 3 convolution, float32: the center tap includes the identity. Computed tap by tap, as
 * shifted x times the tap's weights. */
static kr_tensor add_neighbours(const kr_token_builder *b, const kr_projector *p, int64_t d, kr_tensor x) {
  const int64_t B = kr_graph_dims(b->g, x).size[0], e = p->edge;
  const kr_dims all = KR_DIMS(B, e, e, d);
  const kr_tensor from = kr_graph_reshape(b->g, x, all), sum = kr_graph_temp(b->g, KRAIT_F32, all),
                  part = kr_graph_temp(b->g, KRAIT_F32, all), taps = weight(b, "taps", &p->taps, 9, d);
  copy(
      b, "taps_bias",
      kr_graph_expand(b->g, kr_graph_reshape(b->g, weight(b, "taps_bias", &p->taps_bias, d), KR_DIMS(1, 1, 1, d)), all),
      sum);
  for (int k = 0; k < 9; k++) {
    const int dy = k / 3 - 1, dx = k % 3 - 1;
    const kr_tensor at = shifted(b, from, e, dy, dx), to = shifted(b, sum, e, -dy, -dx),
                    product = shifted(b, part, e, -dy, -dx);
    const kr_tensor tap =
        kr_graph_expand(b->g, kr_graph_reshape(b->g, kr_graph_slice(b->g, taps, 0, k, 1), KR_DIMS(1, 1, 1, d)),
                        kr_graph_dims(b->g, at));
    multiply_into(b, "tap", at, tap, product);
    add_into(b, "add", to, product, to);
  }
  return sum;
}

/* x (B PATCHES, K) into rows (B edge^2, d). */
static void project_videogpt(const kr_token_builder *from, const kr_projector *p, int64_t d, kr_tensor x,
                             kr_tensor rows) {
  const int64_t B = kr_graph_dims(from->g, x).size[0] / N;
  kr_token_builder own = *from;
  const kr_token_builder *b = &own;
  own.dtype = kr_graph_dtype(from->g, x);
  const kr_tensor h = linear(b, "first", x, .w = &p->first, .bias = &p->first_bias, .N = d, .K = p->K,
                             .activation = KRAIT_ACT_GELU),
                  y = linear(b, "second", h, .w = &p->second, .bias = &p->second_bias, .N = d, .K = d);
  const kr_tensor cells =
      pool(b, "pool", kr_graph_reshape(b->g, y, KR_DIMS(B, N, d)), &p->pool, p->edge * p->edge, KRAIT_F32);
  copy(b, "rows", kr_graph_reshape(b->g, add_neighbours(b, p, d, cells), KR_DIMS(B * p->edge * p->edge, d)), rows);
}

/* ---- frame selection ---- */

/* Of X (patches of a chunk, C): W = softmax(X X^T / sqrt C) before its division, times of_frames: for each row the sums
 * of W over each frame, and the total. A row is shifted by its largest element: its product with itself. */
static void weigh(const kr_token_builder *b, const kr_videogpt_weights *w, kr_tensor X, kr_tensor sums) {
  const int64_t R = KR_VIDEOGPT_CHUNK * N, C = w->clip_config.C;
  const float scale = (float)(1 / sqrt((double)C));
  const kr_tensor S = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(R, R)), best = kr_graph_temp(b->g, KRAIT_I32, KR_DIMS(R)),
                  other = kr_graph_temp(b->g, kr_graph_dtype(b->g, X), KR_DIMS(R, C));
  const kr_tensor product = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(R, C)),
                  most = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(R, 1));
  kr_graph_call(b->g, "scores", &kr_op_gemm,
                &(kr_gemm_args){.scale = scale, .A = view(b, X), .Bmat = transposed(b, X), .out = view(b, S)});
  kr_graph_call(b->g, "best", &kr_op_argmax_rows, &(kr_argmax_rows_args){.x = view(b, S), .out = view(b, best)});
  kr_record_gather(b, "other", X, best, other);
  multiply_into(b, "product", X, other, product);
  kr_graph_call(b->g, "most", &kr_op_gemm,
                &(kr_gemm_args){.scale = scale,
                                   .A = view(b, product),
                                   .Bmat = view(b, weight(b, "ones", &w->ones, C, 1)),
                                   .out = view(b, most)});
  kr_graph_pointwise(b->g, "shift", (kr_pointwise_args){.x_scale = 1, .y_scale = -1}, S,
                     kr_graph_expand(b->g, most, KR_DIMS(R, R)), S);
  kr_graph_pointwise(b->g, "exp", (kr_pointwise_args){.activation = KRAIT_ACT_EXP, .x_scale = 1}, S, 0, S);
  kr_graph_call(b->g, "sums", &kr_op_gemm,
                &(kr_gemm_args){.A = view(b, S),
                                   .Bmat = view(b, weight(b, "of_frames", &w->of_frames, R, KR_VIDEOGPT_SUMS)),
                                   .out = view(b, sums)});
}

/* ---- the graphs ---- */

static int32_t finish(const krait_ctx *ctx, kr_videogpt_graph *to) {
  KR_TRY(kr_graph_plan(to->g, ctx, 0));
  return kr_runner_open(to->g, &to->runner);
}

int32_t kr_videogpt_record_context(const krait_ctx *ctx, const kr_videogpt_weights *w, int32_t rows_dtype,
                                   kr_videogpt_graph *to) {
  const kr_clip_config *c = &w->clip_config;
  const int64_t K = 3 * c->patch * c->patch;
  char name[16];
  KR_TRY(kr_graph_open(&to->g));
  const kr_token_builder b = builder_of(to->g, "context");
  to->in = kr_graph_input(b.g, "patches", KRAIT_F32, KR_DIMS(KR_VIDEOGPT_IMAGES * N, K));
  to->rows = kr_graph_output(b.g, "rows", rows_dtype, KR_DIMS(KR_VIDEOGPT_CONTEXT_ROWS, w->d));
  const kr_tensor features = kr_clip_record(b.g, c, &w->clip, w->n_layers, KR_VIDEOGPT_IMAGES, to->in),
                  rows = kr_graph_reshape(b.g, features, KR_DIMS(KR_VIDEOGPT_IMAGES * N, c->C));
  for (int i = 0; i < KR_VIDEOGPT_CHUNKS; i++) {
    snprintf(name, sizeof name, "sums.%d", i);
    to->sums[i] = kr_graph_output(b.g, name, KRAIT_F32, KR_DIMS(KR_VIDEOGPT_CHUNK * N, KR_VIDEOGPT_SUMS));
    weigh(&b, w, kr_graph_slice(b.g, rows, 0, (int64_t)i * KR_VIDEOGPT_CHUNK * N, KR_VIDEOGPT_CHUNK * N), to->sums[i]);
  }
  project_videogpt(&b, &w->context, w->d, rows, to->rows);
  return finish(ctx, to);
}

int32_t kr_videogpt_record_video(const krait_ctx *ctx, const kr_videogpt_weights *w, int32_t rows_dtype,
                                 kr_videogpt_graph *to) {
  const int64_t Dv = w->video.K, cells = KR_VIDEOGPT_VIDEO_EDGE * KR_VIDEOGPT_VIDEO_EDGE;
  KR_TRY(kr_graph_open(&to->g));
  const kr_token_builder b = builder_of(to->g, "video");
  to->in = kr_graph_input(b.g, "tokens", KRAIT_F32, KR_DIMS(1 + KR_VIDEOGPT_T * N, Dv));
  to->rows = kr_graph_output(b.g, "rows", rows_dtype, KR_DIMS(KR_VIDEOGPT_VIDEO_ROWS, w->d));
  const kr_tensor frames =
      kr_graph_reshape(b.g, kr_graph_slice(b.g, to->in, 0, 1, KR_VIDEOGPT_T * N), KR_DIMS(KR_VIDEOGPT_T, N, Dv));
  const kr_tensor pooled =
      pool(&b, "frame_pool", frames, &w->frame_pool, cells, ctx->cuda ? w->frame_pool.dtype : KRAIT_F32);
  project_videogpt(&b, &w->video, w->d, kr_graph_reshape(b.g, pooled, KR_DIMS(KR_VIDEOGPT_T * cells, Dv)),
                   to->rows); /* the cells of four frames as one image, as published */
  return finish(ctx, to);
}
