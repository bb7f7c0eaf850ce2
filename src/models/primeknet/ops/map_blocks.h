/* map_blocks.h: blocks of models over maps (B,F,T,C): each is one fused operator, or the graph that is that operator's
 * reference, as kr_builder.mode says. Parameters have PyTorch's shapes. */
#ifndef KR_MAP_BLOCKS_H
#define KR_MAP_BLOCKS_H

#include "op_args.h"

#include "mamba_block.h"

/* How a builder records: single operators, which have gradients; the CPU's frame-by-frame ones; the GPU's fused ones,
 * with weights in float32, or in float16 for tensor cores. */
enum { KR_BUILD_OPS, KR_BUILD_PER_FRAME, KR_BUILD_FUSED_F32, KR_BUILD_FUSED_F16 };

typedef struct kr_builder {
  kr_graph *g;
  int32_t dtype, rows_dtype; /* of parameters; of intermediates */
  int mode;                   /* KR_BUILD_OPS ... */
  int64_t B, F, T;           /* the map that rows belong to */
  int one_sided;             /* causal filters */
  int is_piece;              /* a piece of a map that stays in cache; it has no gradient */
  int has_past;              /* frames continue the previous run's: states hold what is needed of those */
  int recompute;             /* gradients may recompute parts of it */
  int has_tf32;              /* products may round their operands */
} kr_builder;

/* ---- norms with their PReLU (norm_block.c) ---- */

/* Statistics over all positions of an item, or of all items together; or known in advance. */
typedef struct kr_norm {
  kr_tensor weight, bias, slope; /* (C) */
  kr_tensor before;              /* the preceding product's bias, which a norm that measures cancels */
  float eps;
  int over_batch;
  kr_tensor mean, var;    /* with over_batch, written: the mean, with `before`, and the unbiased variance; or 0 */
  kr_tensor scale, shift; /* known: weight / sqrt(var + eps), bias - mean scale; or 0 */
} kr_norm;

/* Of a map; into out of the same shape, or a new tensor. */
kr_tensor kr_norm_record(const kr_builder *w, const kr_norm *n, kr_tensor x, kr_tensor out);
/* Rows times a weight (outputs, inputs), then a norm, with these dimensions as positions. */
kr_tensor kr_product_norm_record(const kr_builder *w, const char *name, kr_tensor rows, kr_tensor weight,
                                 const kr_norm *n, kr_dims dims, kr_tensor out);

/* ---- convolutions along F (conv_norm_graph.c) ---- */

/* Strided by `step` along F, or transposed (KR_CONV_NORM_TRANSPOSED), with its norm; weight (outputs, taps, inputs)
 * in any strides. */
kr_tensor kr_conv_norm_record(const kr_builder *w, const char *name, uint32_t flags, int64_t step, kr_tensor x,
                              kr_tensor weight, const kr_norm *n);
/* The transpose's overlap-add: x is (B,F,T,K C), tap by tap. */
kr_tensor kr_fold_record(const kr_builder *w, int64_t K, int64_t step, kr_tensor x);

/* ---- dense blocks (dense_block_graph.c) ---- */

enum { KR_DENSE_MOST = 16 };
typedef struct kr_dense_layer { /* reads all earlier outputs, I channels, newest first */
  kr_tensor taps, taps_bias;    /* (I,1,3 along time,3) */
  kr_tensor weight;             /* (C,I,1,1) */
  kr_norm norm;
} kr_dense_layer;
typedef struct kr_dense_block {
  int64_t C, L;
  kr_tensor lift; /* (C,K,1,1), applied to x first, with its norm; or 0 */
  kr_norm lift_norm;
  kr_dense_layer layers[KR_DENSE_MOST];
} kr_dense_block;
/* x (B,.,T,C or K); returns the last layer's output. */
kr_tensor kr_dense_block_record(const kr_builder *w, const kr_dense_block *b, kr_tensor x);

/* ---- products with their prologue and epilogue (map_product_graph.c) ---- */

#define KR_CHANNEL_EPS 1e-6f
/* Of x after a norm over its channels; if fused, a.call.flags select the epilogue. */
kr_tensor kr_normed_product_record(const kr_builder *w, const char *name, kr_tensor x, kr_tensor norm_weight,
                                   kr_tensor norm_bias, kr_tensor weight, kr_tensor bias, kr_map_product_args a);
/* The end of a residual branch that began with x: x + beta (weight (h factors) + bias), beta per output; a fused one
 * adds skip_scale skip. */
typedef struct kr_back_product {
  kr_tensor weight, bias, beta, x, factors, skip, skip_scale; /* the last three may be 0 */
} kr_back_product;
kr_tensor kr_back_record(const kr_builder *w, kr_tensor h, const kr_back_product *b);
/* Weights of fused products, and *bias, with beta folded in; with the preceding norm's weight and bias folded in. */
kr_tensor kr_scaled_weight_record(const kr_builder *w, const kr_back_product *b, kr_tensor *bias);
kr_tensor kr_behind_norm_record(const kr_builder *w, kr_tensor norm_weight, kr_tensor norm_bias, kr_tensor weight,
                                kr_tensor *bias);
/* Few outputs for each row, in float32. */
kr_tensor kr_few_products_record(const kr_builder *w, const char *name, kr_tensor rows, kr_tensor weight,
                                 kr_tensor bias, kr_tensor out);
/* y + residual + skip_scale skip into out: maps; the last two may be 0. */
void kr_sum_record(const kr_builder *w, kr_tensor y, kr_tensor residual, kr_tensor skip, kr_tensor skip_scale,
                   kr_tensor out);
/* Fused, into a.out or a new tensor. */
kr_tensor kr_map_product_record(const kr_builder *w, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                                kr_map_product_args a);

/* ---- gates (gated_filter_graph.c, mean_product_graph.c) ---- */

/* The two halves of a product of x after its norm, filtered along F, multiplied. */
typedef struct kr_gate {
  kr_tensor norm_weight, norm_bias;
  kr_tensor weight, bias;     /* (2 C,C,1), (2 C) */
  kr_tensor taps, taps_bias;  /* (2 C,1,K), (2 C) */
} kr_gate;
kr_tensor kr_gate_record(const kr_builder *w, const kr_gate *p, kr_tensor x);
/* Rows times the product of each sequence's mean; sequences run along T or F. If fused, returns the rows unchanged and
 * their pending factors in *factors. */
kr_tensor kr_mean_record(const kr_builder *w, kr_tensor rows, int along_time, kr_tensor weight, kr_tensor bias,
                         kr_tensor *factors);

/* ---- a bank of filters along F (filter_bank_graph.c) ---- */

enum { KR_FILTER_BANK_MOST = 16 };
typedef struct kr_filter_chunk {  /* (weight filter(h)) gate filter(h) */
  kr_tensor taps, taps_bias, weight, bias, gate_taps, gate_bias; /* (C,1,K), (C,C,1) */
} kr_filter_chunk;
typedef struct kr_filter_bank {
  int64_t J;
  kr_tensor norm_weight, norm_bias, in_weight, in_bias; /* (J C,C): h of all chunks */
  kr_filter_chunk chunks[KR_FILTER_BANK_MOST];
} kr_filter_bank;
/* Fused ones have at most 8 chunks. */
kr_tensor kr_filter_bank_record(const kr_builder *w, const kr_filter_bank *b, const kr_back_product *back);

/* ---- along time (rnn_pair_graph.c, projected_scan_graph.c) ---- */

typedef struct kr_rnn_layer {
  kr_tensor in_weight, in_bias, weight, bias;
} kr_rnn_layer;
/* Layers over sequences of rows x; the first reads x after a norm over its channels. */
kr_tensor kr_rnn_layers_record(const kr_builder *w, const kr_rnn_layer *layers, int64_t n, int is_lstm,
                               kr_tensor norm_weight, kr_tensor norm_bias, kr_tensor x);
/* Fused: the inside of a Mamba block from rows xz, x and then silu(z); b: only its parameters. */
kr_tensor kr_projected_mamba_record(const kr_builder *w, const kr_mamba_block *b, kr_tensor xz);

#endif
