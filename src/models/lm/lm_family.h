/* lm_family.h: one interface for both kinds of language models, mamba_lm.h and qwen2.h. */
#ifndef KR_LM_FAMILY_H
#define KR_LM_FAMILY_H

#include "mamba_lm/mamba_lm.h"
#include "qwen2/qwen2.h"

typedef struct kr_lm {
  kr_mamba_lm *mamba; /* one of them */
  kr_qwen2 *qwen2;
  int64_t V, n_used, n_layers; /* vocabulary; tokens that may be sampled */
  const int64_t *eos;
  int32_t n_eos;
} kr_lm;

int32_t kr_lm_open(const krait_ctx *ctx, const kr_model_folder *folder, int64_t n_slots, int64_t n_tokens,
                    kr_lm *m);
/* Random weights, for timing; one of the two configurations, the other NULL. */
int32_t kr_lm_open_random(const krait_ctx *ctx, const kr_mamba_lm_config *mamba, const kr_qwen2_config *qwen2,
                           int32_t dtype, int64_t n_slots, kr_lm *m);
void kr_lm_close(kr_lm *m);
uint64_t kr_lm_bytes(const kr_lm *m); /* of weights read per token */
/* For state files: a text that differs between models whose states differ: a hash of the configuration and of every
 * tensor's name, type, shape and contents, of large tensors samples. */
enum { KR_FINGERPRINT = 96 };
void kr_lm_fingerprint(const kr_lm *m, const kr_model_folder *folder, char *text, size_t n);

int32_t kr_any_check(const kr_lm *m, int64_t slot); /* kr_mamba_lm_check: its states are those of its text */
int32_t kr_lm_reset(kr_lm *m, int64_t slot);
/* rows (kr_qwen2_prefill): models of attention only. */
int32_t kr_lm_prefill(kr_lm *m, int64_t slot, const int32_t *ids, const void *rows, int64_t n, int all,
                    float *logits);
int32_t kr_lm_step(kr_lm *m, int64_t B, const int32_t *slots, const int32_t *ids, float *logits, int32_t *argmax);
int32_t kr_lm_step_again(kr_lm *m); /* for timing: repeats the previous step */
/* The kinds of calls in the latest run (kr_runner_profile_by_kernel); the states are lost. */
int32_t kr_lm_profile_by_kernel(kr_lm *m, kr_runner_profile_fn fn, void *user);
/* kr_mamba_lm_graph_of, kr_qwen2_graph_of. */
int32_t kr_lm_graph_of(kr_lm *m, int64_t n, const kr_graph **graph);
int32_t kr_lm_wait(const kr_lm *m);
int32_t kr_lm_states_out(kr_lm *m, int64_t slot, kr_mamba_lm_state_fn take, void *user);
int32_t kr_lm_states_in(kr_lm *m, int64_t slot, int64_t n_tokens, kr_mamba_lm_state_fn give, void *user);

#endif
