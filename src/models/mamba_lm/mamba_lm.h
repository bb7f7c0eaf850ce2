/* mamba_lm.h: Mamba language models (MODEL.md has the equations and the keys): weights, and runs on the states of many
 * sequences. */
#ifndef KR_MAMBA_LM_H
#define KR_MAMBA_LM_H

#include <krait/krait.h>

#include "graph.h"
#include "model_folder.h"

enum { KR_MIXER_MAMBA1, KR_MIXER_MAMBA2 };
enum { KR_MAMBA_LM_MOST_LAYERS = 4096 };

/* The attention layers of a hybrid. */
typedef struct kr_mamba_lm_attention {
  uint8_t layers[KR_MAMBA_LM_MOST_LAYERS]; /* 1: of attention */
  int32_t n;                          /* how many */
  int64_t H, Hk, D, W, R; /* query and key heads, their size, taps of the convolution (0: none), rotated pairs */
  int32_t is_interleaved;
  float scale, base;                  /* scale 0: 1 / sqrt D; of the angles */
} kr_mamba_lm_attention;

typedef struct kr_mamba_lm_config {
  int32_t mixer;                  /* KR_MIXER_* */
  int64_t d, n_layers, V, Di, N, W,
      F; /* model width, layers, vocabulary, inner width, states, taps, width of the gated MLP (0: none) */
  int64_t R;                      /* Mamba-1: rank of dt */
  int64_t H, P, G;                /* Mamba-2: heads, their size, groups */
  float eps, dt_eps;              /* of the norms; of FalconMamba's norms of dt, B and C, 0: none */
  int32_t is_rms;
  int32_t state_dtype;            /* of the scan's states: float32, or the type of activations */
  int64_t n_used; /* tokens that may be sampled: vocab_size before padding, or fewer if the tokenizer has fewer */
  int64_t eos[8];
  int32_t n_eos;
  kr_mamba_lm_attention attention;
} kr_mamba_lm_config;

/* The channels of a layer's convolution, and its taps. */
static inline int64_t kr_mamba_lm_channels(const kr_mamba_lm_config *c, int64_t layer) {
  const kr_mamba_lm_attention *a = &c->attention;
  return a->layers[layer] ? (a->H + 2 * a->Hk) * a->D : c->mixer == KR_MIXER_MAMBA1 ? c->Di : c->Di + 2 * c->G * c->N;
}
static inline int64_t kr_mamba_lm_taps(const kr_mamba_lm_config *c, int64_t layer) {
  return c->attention.layers[layer] ? c->attention.W : c->W;
}

/* A layer's tensors; data are in the context's memory, 0: absent. */
typedef struct kr_mamba_lm_tensor {
  const void *data;
  int32_t dtype;      /* KRAIT_I32: words of q8_0 or q4_k (quantize.h) */
  const void *scales; /* of q8_0, float16; else NULL */
  const void *qweight, *qscales; /* on a GPU: the same in 8 bits, for decode steps; data are float16, for prefill.
                                      NULL: none */
} kr_mamba_lm_tensor;
#define KR_MAMBA_LM_TENSORS(X)                                                                                         \
  X(norm)                                                                                                             \
  X(norm_bias) X(in_proj) X(in_proj_bias) X(conv) X(conv_bias) X(A) X(D) X(x_proj) X(dt_proj) X(dt_bias) X(gate_norm) \
      X(out_proj) X(out_proj_bias) X(norm2) X(norm2_bias) X(fc1) X(fc1_bias) X(fc2) X(fc2_bias)
typedef struct kr_mamba_lm_layer {
#define KR_FIELD(name) kr_mamba_lm_tensor name;
  KR_MAMBA_LM_TENSORS(KR_FIELD)
#undef KR_FIELD
  int32_t D_per_channel; /* Mamba-2: D is (H,P), not (H) */
} kr_mamba_lm_layer;

typedef struct kr_mamba_lm_weights {
  kr_mamba_lm_layer *layers;
  kr_mamba_lm_tensor embedding, head, norm_f, norm_f_bias;
  int32_t dtype;  /* of activations: float32 on a CPU, the weights' type on a GPU */
  uint64_t bytes; /* that a token reads */
  void *owned;    /* the computed ones, or on a GPU all */
} kr_mamba_lm_weights;

int32_t kr_mamba_lm_config_read(const kr_model_folder *folder, kr_mamba_lm_config *config);
int32_t kr_mamba_lm_weights_read(const krait_ctx *ctx, const kr_model_folder *folder, const kr_mamba_lm_config *config,
                            kr_mamba_lm_weights *weights);
/* Random weights of the configuration's sizes, for timing; dtype KRAIT_Q8_0, KRAIT_Q4_K: large matrices in these
 * blocks, the rest float16. */
int32_t kr_mamba_lm_weights_random(const krait_ctx *ctx, const kr_mamba_lm_config *config, int32_t dtype,
                              kr_mamba_lm_weights *weights);
void kr_mamba_lm_weights_free(const krait_ctx *ctx, kr_mamba_lm_weights *weights);

/* ---- runs: a model has n_slots slots for the states of sequences ----
 * A call that fails before it runs changes nothing, and may be repeated. If it fails while it runs, or after a part of
 * its tokens, the states of its slots are lost: everything but kr_mamba_lm_reset and kr_mamba_lm_states_in refuses
 * them. */
#define KR_TEXT_IS_LOST \
  "an earlier call failed while it read tokens, and the text's states are lost: start again with krait_lm_reset"
typedef struct kr_mamba_lm kr_mamba_lm;
/* n_tokens: of the tokenizer, 0: unknown. */
int32_t kr_mamba_lm_open(const krait_ctx *ctx, const kr_model_folder *folder, int64_t n_slots, int64_t n_tokens,
                    kr_mamba_lm **model);
int32_t kr_mamba_lm_open_random(const krait_ctx *ctx, const kr_mamba_lm_config *config, int32_t dtype, int64_t n_slots,
                           kr_mamba_lm **model);
void kr_mamba_lm_close(kr_mamba_lm **model);
/* Keeps the scan's states in the type of activations, as mamba-ssm does: half the memory for a 16-bit model on a GPU.
 * Resets all states to zero. */
int32_t kr_mamba_lm_narrow_states(kr_mamba_lm *model);
const kr_mamba_lm_config *kr_mamba_lm_config_of(const kr_mamba_lm *model);
uint64_t kr_mamba_lm_bytes(const kr_mamba_lm *model); /* of weights that a token reads */

int32_t kr_mamba_lm_check(const kr_mamba_lm *model, int64_t slot); /* a slot whose states are not lost */
int32_t kr_mamba_lm_reset(kr_mamba_lm *model, int64_t slot);
/* Reads n >= 1 tokens into a slot's states. logits: of the last token (V), or with `all` of every token (n,V); may be
 * NULL. */
int32_t kr_mamba_lm_prefill(kr_mamba_lm *model, int64_t slot, const int32_t *ids, int64_t n, int all, float *logits);
/* One token each for B different slots; logits (B,V) and best (B), the argmax over the tokens that the model was
 * trained on, may be NULL. */
int32_t kr_mamba_lm_step(kr_mamba_lm *model, int64_t B, const int32_t *slots, const int32_t *ids, float *logits,
                         int32_t *argmax);
/* Repeats the previous step, without copying logits: for timing. */
int32_t kr_mamba_lm_step_again(kr_mamba_lm *model);
int32_t kr_mamba_lm_wait(const kr_mamba_lm *model);
/* For tests: 1: the layers of a step are one call wherever possible, -1: never; 0: whichever is faster. */
void kr_mamba_lm_choose_fused(kr_mamba_lm *model, int whole);
int kr_mamba_lm_was_fused(const kr_mamba_lm *model); /* whether the latest run's were */
/* The kinds of calls in the latest run, and their times (kr_runner_profile_by_kernel); the states are lost. */
int32_t kr_mamba_lm_profile_by_kernel(kr_mamba_lm *model, kr_runner_profile_fn fn, void *user);
/* The graph that reads n tokens at once, or with n == 0 that of one sequence's step; owned by the model, valid until
 * its next run. */
int32_t kr_mamba_lm_graph_of(kr_mamba_lm *model, int64_t n, const kr_graph **graph);

/* A slot's states as named tensors, in host memory. */
typedef int32_t (*kr_mamba_lm_state_fn)(void *user, const char *name, int32_t n_dims, const int64_t *shape,
                                        float *data);
int32_t kr_mamba_lm_states_out(kr_mamba_lm *model, int64_t slot, kr_mamba_lm_state_fn take,
                               void *user); /* data hold the states */
int32_t kr_mamba_lm_states_in(kr_mamba_lm *model, int64_t slot, int64_t n_tokens, kr_mamba_lm_state_fn give,
                         void *user); /* data are filled in */

/* ---- graphs (mamba_lm_graph.c); room: the capacity of keys and values in tokens ---- */
typedef struct kr_mamba_lm_run {
  int64_t B, L;    /* sequences, tokens of each; L > 1 only with B == 1 */
  int32_t is_step; /* uses the single-token ops, with states by slots; otherwise the parallel ops, with the states of
                      one slot */
  int32_t all;     /* logits of every token */
  int32_t whole, apart; /* a step's layers as one call wherever possible, or never; otherwise if a row other than the
                           reference accepts it */
} kr_mamba_lm_run;
typedef struct kr_mamba_lm_graph {
  kr_mamba_lm_run run;
  kr_graph *g;
  kr_runner *runner;
  kr_tensor ids, slots, logits,
      argmax;                 /* (B L) int32; (B) int32, of steps; (B or B L, V) float32; (B) int32, of steps */
  kr_tensor *conv, *ssm;      /* states of each layer; 0: none */
  kr_tensor all_conv, all_ssm; /* of all layers, if one call or one copy covers them all: conv and ssm, if any, are
                                  parts of them */
  kr_tensor *keys, *values;   /* of attention layers */
  kr_tensor lengths, cos, sin; /* (B) int32: tokens that came before; (capacity, R) */
  uint64_t used;              /* time of last use, by its owner's counter */
} kr_mamba_lm_graph;
int32_t kr_mamba_lm_graph_open(const krait_ctx *ctx, const kr_mamba_lm_config *c, const kr_mamba_lm_weights *w,
                               const kr_mamba_lm_run *run, int64_t n_slots, int64_t capacity, kr_mamba_lm_graph *graph);
void kr_mamba_lm_graph_close(kr_mamba_lm_graph *graph);

#endif
