/* token_builder.h: the vocabulary of models whose rows are tokens, with which they record themselves into a graph:
 * weights under their names, products with them in any stored form, norms of a residual stream. */
#ifndef KR_TOKEN_BUILDER_H
#define KR_TOKEN_BUILDER_H

#include "graph.h"
#include "op_list.h"
#include "weight_loader.h"

typedef struct kr_token_builder {
  kr_graph *g;
  const krait_ctx *ctx;
  int32_t dtype;         /* of activations */
  int64_t rows;          /* tokens of a run */
  const char *part;      /* before the names of weights; or NULL */
  int64_t layer;         /* in the names of weights; -1: none */
  int32_t reads_qweight; /* on a GPU: products of few rows read q8_0's words, where the loader kept them */
} kr_token_builder;

/* Products of more rows read float16. */
enum { KR_MOST_BY_QWEIGHT = 2 };

/* ---- tensors and views ---- */

static inline kr_view view(const kr_token_builder *b, kr_tensor t) { return kr_graph_view(b->g, t); }
static inline kr_view view_as(const kr_token_builder *b, kr_tensor t, kr_dims dims) {
  return kr_graph_view(b->g, kr_graph_reshape(b->g, t, dims));
}
static inline kr_tensor new_rows(const kr_token_builder *b, int64_t columns) {
  return kr_graph_temp(b->g, b->dtype, KR_DIMS(b->rows, columns));
}
static inline kr_tensor columns(const kr_token_builder *b, kr_tensor rows, int64_t from, int64_t n) {
  return kr_graph_slice(b->g, rows, 1, from, n);
}
static inline kr_view transposed(const kr_token_builder *b, kr_tensor matrix) {
  return kr_graph_view(b->g, kr_graph_permute(b->g, matrix, (int[]){1, 0}));
}
/* Rows (L,C) as (1,C,L). */
static inline kr_tensor as_channels(const kr_token_builder *b, kr_tensor rows) {
  const kr_dims d = kr_graph_dims(b->g, rows);
  return kr_graph_permute(b->g, kr_graph_reshape(b->g, rows, KR_DIMS(1, d.size[0], d.size[1])), (int[]){0, 2, 1});
}
/* Columns of rows from a head on, as (B,L,H,D); B L rows. */
static inline kr_tensor as_heads(const kr_token_builder *b, kr_tensor rows, int64_t first, kr_dims heads) {
  const int64_t H = heads.size[2], D = heads.size[3];
  return kr_graph_reshape(b->g, columns(b, rows, first * D, H * D), heads);
}
/* A weight under [part.][layer.]name; absent if it is. */
kr_tensor kr_record_weight(const kr_token_builder *b, const char *name, const kr_weight_ref *w, kr_dims dims);
#define weight(b, name, w, ...) kr_record_weight(b, name, w, KR_DIMS(__VA_ARGS__))

/* ---- calls ---- */

static inline void copy(const kr_token_builder *b, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(b->g, name, (kr_pointwise_args){.x_scale = 1}, from, 0, to);
}
static inline void scale_into(const kr_token_builder *b, const char *name, double scale, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(b->g, name, (kr_pointwise_args){.x_scale = (float)scale}, from, 0, to);
}
static inline void add_into(const kr_token_builder *b, const char *name, kr_tensor x, kr_tensor y, kr_tensor out) {
  kr_graph_pointwise(b->g, name, (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, x, y, out);
}
static inline void multiply_into(const kr_token_builder *b, const char *name, kr_tensor x, kr_tensor y, kr_tensor out) {
  kr_graph_pointwise(b->g, name, (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, x, y,
                     out);
}
/* In the activations' type. */
kr_tensor kr_record_cast(const kr_token_builder *b, const char *name, kr_tensor x);
kr_tensor kr_record_gather(const kr_token_builder *b, const char *name, kr_tensor table, kr_tensor index,
                           kr_tensor out);

/* act(scale x w + bias) + residual, for a weight stored as (N outputs, K inputs) in float32, 16 bits, q8_0 or q4_k; of
 * the last two only w, bias and scale. */
typedef struct kr_linear {
  const kr_weight_ref *w, *bias; /* bias: under the name name_bias; may be NULL or absent */
  int64_t N, K;
  kr_tensor matrix, bias_row; /* instead of them: tensors of the graph */
  kr_tensor residual, out;    /* out 0: new rows */
  int32_t activation;
  float scale;
} kr_linear;
kr_tensor kr_record_linear(const kr_token_builder *b, const char *name, kr_tensor x, const kr_linear *p);
#define linear(b, name, x, ...) kr_record_linear(b, name, x, &(kr_linear){__VA_ARGS__})

typedef struct kr_norm {
  kr_tensor weight, bias, out; /* out 0: new rows */
  float eps;
  int32_t is_rms;
} kr_norm;
/* The norm of x; or of *stream + x, which becomes the stream, in float32 (the first x starts it). */
kr_tensor kr_record_norm(const kr_token_builder *b, const char *name, kr_tensor x, kr_tensor *stream,
                         const kr_norm *norm);
#define norm_of(b, name, x, stream, ...) kr_record_norm(b, name, x, stream, &(kr_norm){__VA_ARGS__})

/* act(x gate + gate_bias) * (x up + up_bias) in one call, for matrices that are not in blocks. */
typedef struct kr_gated {
  kr_tensor gate, up, gate_bias, up_bias; /* (F, inputs) */
  int32_t activation;
  float scale; /* of both products, before their biases; 0: 1 */
} kr_gated;
void kr_record_gated(const kr_token_builder *b, const char *name, kr_tensor x, const kr_gated *p, kr_tensor out);

#endif
