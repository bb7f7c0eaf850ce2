/* lm.h: language models: weights, and runs on the states of many sequences, for every family in models.def.
 *
 * A model has n_slots slots for the states of sequences: recurrent states, keys and values. A call that fails before it
 * runs changes nothing, and may be repeated. If it fails while it runs, or after a part of its tokens, keys and values
 * are as they were, and it may be repeated; but recurrent states are lost: everything except kr_lm_reset and
 * kr_lm_states_in refuses the slot. */
#ifndef KR_LM_H
#define KR_LM_H

#include "lm_config.h"
#include "model_kind.h"

typedef struct kr_lm kr_lm;

/* n_tokens: of the tokenizer, 0: unknown. The folder must outlive the model. */
int32_t kr_lm_open(const krait_ctx *ctx, const kr_model_folder *folder, int64_t n_slots, int64_t n_tokens,
                   kr_lm **model);
/* The same; on a GPU the weights as KRAIT_F16 or KRAIT_BF16, whatever the file's type. 0: as stored. */
int32_t kr_lm_open_as(const krait_ctx *ctx, const kr_model_folder *folder, int32_t dtype, int64_t n_slots,
                      int64_t n_tokens, kr_lm **model);
/* Random weights of the configuration's sizes, for timing; dtype KRAIT_Q8_0, KRAIT_Q4_K: large matrices in these
 * blocks, the rest float16. The model takes over the configuration, whether it opens or not. */
int32_t kr_lm_open_random(const krait_ctx *ctx, kr_lm_config *config, int32_t dtype, int64_t n_slots, kr_lm **model);
void kr_lm_close(kr_lm **model);
const kr_lm_config *kr_lm_config_of(const kr_lm *model);
int32_t kr_lm_dtype(const kr_lm *model);  /* of activations: float32 on a CPU, on a GPU that of the weights */
int32_t kr_lm_converted_to(const kr_lm *model); /* the type asked for when it was opened, on a GPU; 0: none */
uint64_t kr_lm_bytes(const kr_lm *model); /* of weights read per token */
/* Keeps what states may be in the activations' type, as mamba-ssm does: half the memory for a 16-bit model on a GPU.
 * Resets all states. */
int32_t kr_lm_narrow_states(kr_lm *model);
/* On a CPU: keys and values in float16, if the weights have 16 bits or are quantized, where they are float32 otherwise;
 * elsewhere nothing changes. Resets all states. */
int32_t kr_lm_narrow_keys(kr_lm *model);

/* ---- calls ---- */
int32_t kr_lm_check(const kr_lm *model, int64_t slot); /* a slot whose states are not lost */
int32_t kr_lm_reset(kr_lm *model, int64_t slot);
/* Reads n >= 1 tokens into a slot's states. rows: in the context's memory, (n,d) of kr_lm_dtype; they are added to the
 * tokens' embeddings, and the tokens may then be -1: zeros; NULL: none. logits: of the last token (V), or with `all` of
 * every token (n,V); may be NULL. */
int32_t kr_lm_prefill(kr_lm *model, int64_t slot, const int32_t *ids, const void *rows, int64_t n, int all,
                      float *logits);
/* One token each for B different slots; logits (B,V) and argmax (B), over the tokens that may be sampled and 0 if none
 * of their logits is a number, may be NULL. */
int32_t kr_lm_step(kr_lm *model, int64_t B, const int32_t *slots, const int32_t *ids, float *logits, int32_t *argmax);
int32_t kr_lm_read_logits(const kr_lm *model, int64_t B, float *logits); /* (B,V), of the step before */
int32_t kr_lm_wait(const kr_lm *model);

/* ---- timing and tests ---- */
int32_t kr_lm_step_again(kr_lm *model); /* repeats the previous step, without copying logits */
/* 1: the layers of a step are one call wherever possible, -1: never; 0: whichever is faster. */
void kr_lm_choose_fused(kr_lm *model, int fused);
int kr_lm_was_fused(const kr_lm *model); /* whether the latest run's were */
/* The kinds of calls in the latest run, and their times (kr_runner_profile_by_kernel); the states are lost. */
int32_t kr_lm_profile_by_kernel(kr_lm *model, kr_runner_profile_fn fn, void *user);
/* The graph that reads n tokens at once, or with n == 0 that of one sequence's step; owned by the model, valid until
 * its next run. */
int32_t kr_lm_graph_of(kr_lm *model, int64_t n, int with_rows, const kr_graph **graph);

/* kr_model_kind.graphs of every language model: a prompt, and a step. */
int32_t kr_lm_graphs(const krait_ctx *ctx, const kr_model_source *source, kr_model_graph_fn *fn, void *user);

/* ---- states ---- */
/* A slot's states as named tensors, in host memory, in float32. */
typedef int32_t (*kr_lm_state_fn)(void *user, const char *name, int32_t n_dims, const int64_t *shape, float *data);
int64_t kr_lm_n_states(const kr_lm *model);
int32_t kr_lm_states_out(kr_lm *model, int64_t slot, kr_lm_state_fn take, void *user); /* data hold the states */
int32_t kr_lm_states_in(kr_lm *model, int64_t slot, int64_t n_tokens, kr_lm_state_fn give,
                        void *user); /* data are filled in */
/* For state files: a text that differs between models whose states differ: a hash of the blocks and of every tensor's
 * name, type, shape and contents, of large tensors samples. */
enum { KR_FINGERPRINT = 96 };
void kr_lm_fingerprint(const kr_lm *model, const kr_model_folder *folder, char *text, size_t n);

/* ---- families ---- */
/* The family of a folder's model. */
int32_t kr_lm_family_of(const kr_model_folder *folder, const kr_lm_family **family);
/* The sizes of a published model, by any family. */
int32_t kr_lm_find_published(const char *name, kr_lm_config **config);
/* The flags of a tensor's key in a family's table; *field: its field, or NULL: it is not in the table. */
int32_t kr_lm_key_flags(const kr_lm_family *family, const char *name, const char **field);
/* A field's tensor that is of no layer; NULL: missing. *key: its name. */
const kr_weight *kr_lm_find_weight(const kr_lm_family *family, const kr_model_folder *folder, const char *field,
                                   const char **key);
/* A field's tensor of a layer, and of its first expert, with `form` after its name; NULL: missing. */
const kr_weight *kr_lm_find_in_layer(const kr_lm_family *family, const kr_model_folder *folder, const char *field,
                                     int64_t layer, const char *form);

#endif
