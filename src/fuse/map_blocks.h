/* map_blocks.h: blocks of models over maps (B,F,T,C): each of them one operator that does it all, or the graph that is
 * the operator's reference, as kr_words.how says. Parameters have the shapes that modules of PyTorch give them. */
#ifndef KR_MAP_BLOCKS_H
#define KR_MAP_BLOCKS_H

#include <krait/blocks.h>

#include "mamba_block.h"

/* How a builder records: operators one by one, which have gradients; a CPU's that take a map frame by frame; a GPU's
 * that do at once what lies around a product, their weights in float32, or in float16 for tensor cores. */
enum { KR_APART, KR_BY_FRAMES, KR_FUSED, KR_HALF_FACTORS };

typedef struct kr_words {
  kr_graph *g;
  int32_t dtype, rows_dtype; /* of parameters; of what lies between operators */
  int how;                   /* KR_APART ... */
  int64_t B, F, T;           /* the map that rows are of */
  int one_sided;             /* filters see no later position */
  int is_piece;              /* of a map, that stays in the cache; it has no gradient */
  int has_past;              /* frames follow those of the run before: states have what is needed of these */
  int recompute;             /* gradients may compute some of it again */
  int has_tf32;              /* products may round their factors */
} kr_words;

/* ---- norms with their PReLU (norm_block.c) ---- */

/* Over all positions of an item, or of all items together; or by statistics that are known. */
typedef struct kr_norm {
  kr_tensor weight, bias, slope; /* (C) */
  kr_tensor before;              /* the bias of the product in front: a norm that measures takes it out again */
  float eps;
  int over_batch;
  kr_tensor mean, var;    /* with over_batch, written: the mean, with `before`, and the unbiased variance; or 0 */
  kr_tensor scale, shift; /* known: weight / sqrt(var + eps), bias - mean scale; or 0 */
} kr_norm;

/* Of a map; into out of the same shape, or a new tensor. */
kr_tensor kr_norm_record(const kr_words *w, const kr_norm *n, kr_tensor x, kr_tensor out);
/* Rows times a weight (outputs, inputs) through a norm, as positions of these dimensions. */
kr_tensor kr_product_norm_record(const kr_words *w, const char *name, kr_tensor rows, kr_tensor weight,
                                 const kr_norm *n, kr_dims dims, kr_tensor out);

/* ---- convolutions along F (conv_norm_graph.c) ---- */

/* Every so many frequencies, or its transpose (KRAIT_CONV_NORM_TRANSPOSED), with its norm; weight
 * (outputs, taps, inputs) in any strides. */
kr_tensor kr_conv_norm_record(const kr_words *w, const char *name, uint32_t flags, int64_t step, kr_tensor x,
                              kr_tensor weight, const kr_norm *n);
/* Of a transpose: (B,F,T,K C), a tap after the other, added where they belong. */
kr_tensor kr_fold_record(const kr_words *w, int64_t K, int64_t step, kr_tensor x);

/* ---- dense blocks (dense_block_graph.c) ---- */

enum { KR_DENSE_MOST = 16 };
typedef struct kr_dense_layer { /* reads all that came before, I channels, newest first */
  kr_tensor taps, taps_bias;    /* (I,1,3 along time,3) */
  kr_tensor weight;             /* (C,I,1,1) */
  kr_norm norm;
} kr_dense_layer;
typedef struct kr_dense_block {
  int64_t C, L;
  kr_tensor lift; /* (C,K,1,1) of x, with its norm, in front; or 0 */
  kr_norm lift_norm;
  kr_dense_layer layers[KR_DENSE_MOST];
} kr_dense_block;
/* x (B,.,T,C or K); returns what the last layer gives. */
kr_tensor kr_dense_block_record(const kr_words *w, const kr_dense_block *b, kr_tensor x);

/* ---- products with what surrounds them (map_product_graph.c) ---- */

#define KR_CHANNEL_EPS 1e-6f
/* Of x through the norm of its channels; of a fused one a.call.flags say what follows. */
kr_tensor kr_normed_product_record(const kr_words *w, const char *name, kr_tensor x, kr_tensor norm_weight,
                                   kr_tensor norm_bias, kr_tensor weight, kr_tensor bias, krait_map_product_args a);
/* The end of a part that began with x: x + beta (weight (h factors) + bias), beta of each output; a fused one adds
 * skip_scale skip. */
typedef struct kr_back_product {
  kr_tensor weight, bias, beta, x, factors, skip, skip_scale; /* the last three may be 0 */
} kr_back_product;
kr_tensor kr_back_record(const kr_words *w, kr_tensor h, const kr_back_product *b);
/* Weights of fused products, and *bias: with beta in them; with weight and bias of the norm in front in them. */
kr_tensor kr_scaled_weight_record(const kr_words *w, const kr_back_product *b, kr_tensor *bias);
kr_tensor kr_behind_norm_record(const kr_words *w, kr_tensor norm_weight, kr_tensor norm_bias, kr_tensor weight,
                                kr_tensor *bias);
/* A few numbers for each of the rows, in float32. */
kr_tensor kr_few_products_record(const kr_words *w, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                                 kr_tensor out);
/* y + residual + skip_scale skip into out: maps; the last two may be 0. */
void kr_sum_record(const kr_words *w, kr_tensor y, kr_tensor residual, kr_tensor skip, kr_tensor skip_scale,
                   kr_tensor out);
/* A fused one, into a.out or a new tensor. */
kr_tensor kr_map_product_record(const kr_words *w, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                                krait_map_product_args a);

/* ---- gates (gated_filter_graph.c, mean_product_graph.c) ---- */

/* The two halves of a product of x through its norm, filtered along F, multiplied. */
typedef struct kr_gate {
  kr_tensor norm_weight, norm_bias;
  kr_tensor weight, bias;     /* (2 C,C,1), (2 C) */
  kr_tensor taps, taps_bias;  /* (2 C,1,K), (2 C) */
} kr_gate;
kr_tensor kr_gate_record(const kr_words *w, const kr_gate *p, kr_tensor x);
/* Rows times the product of each sequence's mean: a sequence is along T or along F. A fused one returns the rows as
 * they are, and what they are to be multiplied by in *factors. */
kr_tensor kr_mean_record(const kr_words *w, kr_tensor rows, int along_time, kr_tensor weight, kr_tensor bias,
                         kr_tensor *factors);

/* ---- a bank of filters along F (filter_bank_graph.c) ---- */

enum { KR_FILTER_BANK_MOST = 16 };
typedef struct kr_filter_chunk {  /* (weight filter(h)) gate filter(h) */
  kr_tensor taps, taps_bias, weight, bias, gate_taps, gate_bias; /* (C,1,K), (C,C,1) */
} kr_filter_chunk;
typedef struct kr_filter_bank {
  int64_t J;
  kr_tensor norm_weight, norm_bias, in_weight, in_bias; /* (J C,C): of chunks h */
  kr_filter_chunk chunks[KR_FILTER_BANK_MOST];
} kr_filter_bank;
/* Fused ones have no more than 8 chunks. */
kr_tensor kr_filter_bank_record(const kr_words *w, const kr_filter_bank *b, const kr_back_product *back);

/* ---- along time (rnn_pair_graph.c, projected_scan_graph.c) ---- */

typedef struct kr_rnn_layer {
  kr_tensor in_weight, in_bias, weight, bias;
} kr_rnn_layer;
/* Layers over sequences of rows x, of which the first reads x through the norm of its channels. */
kr_tensor kr_rnn_layers_record(const kr_words *w, const kr_rnn_layer *layers, int64_t n, int is_lstm,
                               kr_tensor norm_weight, kr_tensor norm_bias, kr_tensor x);
/* Fused: the inside of a Mamba block of rows xz, x and then silu(z); b: its parameters alone. */
kr_tensor kr_projected_mamba_record(const kr_words *w, const kr_mamba_block *b, kr_tensor xz);

#endif
