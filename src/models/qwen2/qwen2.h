/* qwen2.h: Qwen2 language models (MODEL.md has the equations and the keys): weights, and runs on the keys and values of
 * many sequences. */
#ifndef KR_QWEN2_H
#define KR_QWEN2_H

#include <krait/krait.h>

#include "graph.h"
#include "weight_loader.h"

enum { KR_QWEN2_MOST_LAYERS = 1024 };

typedef struct kr_qwen2_config {
  int64_t d, n_layers, V, F; /* width, layers, vocabulary, width of the gated MLP */
  int64_t H, Hk, D;          /* query and key heads, their size */
  float eps;
  double base;    /* of the rotary embedding */
  int64_t n_used; /* tokens that may be sampled: the tokenizer's */
  int64_t eos[8];
  int32_t n_eos, is_tied;
} kr_qwen2_config;

typedef struct kr_qwen2_layer {
  kr_weight_ref norm, qkv[3], qkv_bias[3], o, norm2, gate_up[2], down;
} kr_qwen2_layer;

typedef struct kr_qwen2_weights {
  kr_qwen2_layer *layers;
  kr_weight_ref embedding, head, norm;
  int32_t dtype;     /* of activations: float32 on a CPU, the weights' type on a GPU */
  int32_t is_joined; /* the matrices of queries, keys and values are adjacent in memory */
  uint64_t bytes;    /* that a token reads */
  kr_loader loader;
} kr_qwen2_weights;

int32_t kr_qwen2_config_read(const kr_model_folder *folder, kr_qwen2_config *config);
int kr_qwen2_is(const kr_model_folder *folder); /* by its config.json */

/* ---- runs: a model has n_slots slots for the keys and values of sequences ----
 * A call that fails leaves the texts of its slots as they were, and may be repeated; but a failed kr_qwen2_states_in
 * leaves its slot without a text. */
typedef struct kr_qwen2 kr_qwen2;
/* n_tokens: of the tokenizer, 0: unknown. */
int32_t kr_qwen2_open(const krait_ctx *ctx, const kr_model_folder *folder, int64_t n_slots, int64_t n_tokens,
                      kr_qwen2 **model);
int32_t kr_qwen2_open_random(const krait_ctx *ctx, const kr_qwen2_config *config, int32_t dtype, int64_t n_slots,
                             kr_qwen2 **model);
void kr_qwen2_close(kr_qwen2 **model);
const kr_qwen2_config *kr_qwen2_config_of(const kr_qwen2 *model);
int32_t kr_qwen2_dtype(const kr_qwen2 *model);  /* of rows */
uint64_t kr_qwen2_bytes(const kr_qwen2 *model); /* of weights read per token */

int32_t kr_qwen2_reset(kr_qwen2 *model, int64_t slot);
/* Appends n >= 1 tokens to a slot's text. rows: in the context's memory, (n,d) of kr_qwen2_dtype; they are added to the
 * tokens' embeddings, and the tokens may then be -1: zeros; NULL: none. logits: of the last token (V), or with `all` of
 * every token (n,V); may be NULL. */
int32_t kr_qwen2_prefill(kr_qwen2 *model, int64_t slot, const int32_t *ids, const void *rows, int64_t n, int all,
                      float *logits);
/* One token each for B different slots; logits (B,V) and best (B), the argmax over the tokenizer's tokens, may be
 * NULL. */
int32_t kr_qwen2_step(kr_qwen2 *model, int64_t B, const int32_t *slots, const int32_t *ids, float *logits,
                      int32_t *argmax);
/* Repeats the previous step, without copying logits: for timing. */
int32_t kr_qwen2_step_again(kr_qwen2 *model);
/* The kinds of calls in the latest run (kr_runner_profile_by_kernel); the states are lost. */
int32_t kr_qwen2_profile_by_kernel(kr_qwen2 *model, kr_runner_profile_fn fn, void *user);
/* The graph that reads n tokens at once, or with n == 0 that of one sequence's step; owned by the model, valid until
 * its next run. */
int32_t kr_qwen2_graph_of(kr_qwen2 *model, int64_t n, int with_rows, const kr_graph **graph);
int32_t kr_qwen2_wait(const kr_qwen2 *model);

/* A slot's keys and values as named tensors, in host memory. */
typedef int32_t (*kr_qwen2_state_fn)(void *user, const char *name, int32_t n_dims, const int64_t *shape, float *data);
int32_t kr_qwen2_states_out(kr_qwen2 *model, int64_t slot, kr_qwen2_state_fn take, void *user);
int32_t kr_qwen2_states_in(kr_qwen2 *model, int64_t slot, int64_t n_tokens, kr_qwen2_state_fn give, void *user);

/* ---- graphs (qwen2_graph.c); room: tokens that keys and values have place for ---- */
typedef struct kr_qwen2_run {
  int64_t B, L;      /* sequences, tokens of each; L > 1 only with B == 1 */
  int32_t is_step;   /* keys and values by slots; otherwise of one slot */
  int32_t all;       /* logits of every token */
  int32_t with_rows; /* rows are added to the embeddings */
} kr_qwen2_run;
typedef struct kr_qwen2_graph {
  kr_qwen2_run run;
  kr_graph *g;
  kr_runner *runner;
  kr_tensor ids, rows, slots, lengths, cos,
      sin; /* (B L) int32; (B L, d); (B) int32 of steps; (B) int32; (capacity, D/2) */
  kr_tensor logits, argmax;                        /* (B or B L, V) float32; (B) int32, of steps */
  kr_tensor *keys, *values;                      /* of each layer */
  uint64_t used;                                 /* time of last use, by its owner's counter */
} kr_qwen2_graph;
int32_t kr_qwen2_graph_open(const krait_ctx *ctx, const kr_qwen2_config *c, const kr_qwen2_weights *w,
                            const kr_qwen2_run *run, int64_t n_slots, int64_t capacity, kr_qwen2_graph *graph);
void kr_qwen2_graph_close(kr_qwen2_graph *graph);

/* ---- weights (qwen2_weights.c) ---- */
int32_t kr_qwen2_weights_open(const krait_ctx *ctx, const kr_model_folder *folder, const kr_qwen2_config *c,
                              int32_t random_type, kr_qwen2_weights *w); /* folder NULL: random ones */
void kr_qwen2_weights_close(kr_qwen2_weights *w);

#endif
