/* language.h: language models: a krait_lm is weights, a tokenizer and room for the states of a number of sessions; a
 * session is one text that grows. A model and its sessions are used by one thread at a time. The context must outlive
 * the model, the model its sessions.
 *
 *   krait_lm_open(ctx, &(krait_lm_options){.size = sizeof(krait_lm_options), .path = "mamba-130m-hf"}, &lm);
 *   krait_lm_session_open(lm, NULL, &session);
 *   krait_lm_read(session, prompt, strlen(prompt), 0);
 *   for (int i = 0; i < 100 && !krait_lm_is_done(session); i++) {
 *     krait_lm_step(&session, 1);
 *     text = krait_lm_text(session, &n_bytes);
 *   } */
#ifndef KRAIT_LANGUAGE_H
#define KRAIT_LANGUAGE_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_lm krait_lm;
typedef struct krait_lm_session krait_lm_session;

typedef struct krait_lm_options {
  uint32_t size;
  int32_t n_sessions;         /* that may be open at once; 0: one */
  const char *path;           /* a model's folder, a weights file with config.json beside it, or a GGUF file */
  const char *tokenizer_path; /* tokenizer.json; NULL: the one beside the weights, or in the GGUF file */
  int32_t narrow_states; /* 1: Mamba's states in the type of the weights where that is what a GPU computes in, not in
                            float32: half the memory, less exact */
  int32_t reserved;
} krait_lm_options;

/* The next token: of the likeliest top_k, then (temperature divides the logits) of the fewest whose probability reaches
 * top_p, and of those at least min_p times as likely as the likeliest. 0 leaves a rule out; temperature 0 takes the
 * likeliest token. Logits of tokens that were there before are divided by repetition_penalty where positive, else
 * multiplied. Equal seeds give equal texts. */
typedef struct krait_lm_sampling {
  uint32_t size;
  int32_t top_k;
  float temperature, top_p, min_p, repetition_penalty;
  uint64_t seed;
} krait_lm_sampling;

KRAIT_API int32_t krait_lm_open(const krait_ctx *ctx, const krait_lm_options *options, krait_lm **lm);
KRAIT_API void krait_lm_close(krait_lm **lm);
/* Bytes of weights that a token reads. */
KRAIT_API uint64_t krait_lm_token_bytes(const krait_lm *lm);

/* sampling may be NULL: the likeliest token. */
KRAIT_API int32_t krait_lm_session_open(krait_lm *lm, const krait_lm_sampling *sampling, krait_lm_session **session);
KRAIT_API void krait_lm_session_close(krait_lm_session **session);

#define KRAIT_LM_CHAT 1u  /* text is what a user says: the model's chat template stands around it */
#define KRAIT_LM_PLAIN 2u /* names of special tokens in the text are text */
/* Reads a prompt behind what the session has read so far. UTF-8; n_bytes may be 0 where there is something already. */
KRAIT_API int32_t krait_lm_read(krait_lm_session *session, const char *text, size_t n_bytes, uint32_t flags);
/* Draws the next token of each of n different sessions of one model; the model runs for all at once. */
KRAIT_API int32_t krait_lm_step(krait_lm_session *const *sessions, int32_t n);
/* The characters that the last step completed, NUL-terminated; with krait_lm_finish those that no further token can
 * complete. */
KRAIT_API const char *krait_lm_text(const krait_lm_session *session, size_t *n_bytes);
KRAIT_API void krait_lm_finish(krait_lm_session *session);
KRAIT_API int krait_lm_is_done(const krait_lm_session *session);      /* the last token ends the text */
KRAIT_API int64_t krait_lm_n_tokens(const krait_lm_session *session); /* read and drawn so far */

/* Everything that a session has read, as a file of the size of the model's states, whatever the length of the text. */
KRAIT_API int32_t krait_lm_save(krait_lm_session *session, const char *path);
KRAIT_API int32_t krait_lm_load(krait_lm_session *session, const char *path);

/* Called with tokens done and in all; non-zero asks to stop: KRAIT_ERR_CANCELLED. */
typedef int32_t (*krait_lm_progress_fn)(void *user, int64_t done, int64_t total);
/* Of a text of two tokens at least: the sum of -ln p of every token but the first, and how many those are. The session
 * begins anew. */
KRAIT_API int32_t krait_lm_score(krait_lm_session *session, const char *text, size_t n_bytes,
                                 krait_lm_progress_fn progress, void *user, double *nats, int64_t *n_tokens);

/* A model's folder or weights file as safetensors whose large matrices have 8 bits a weight (format "q8_0": blocks of
 * 32 with a scale) or 4 (format "q4_k": super-blocks of 256; the output matrix, and what makes Mamba's steps, have 8,
 * as have matrices whose rows are no multiple of 256); what moves the states is float32. config.json and tokenizer.json
 * must then lie beside the new file, too. */
KRAIT_API int32_t krait_lm_quantize(const char *in_path, const char *out_path, const char *format);

/* Random weights of a published model's sizes, for krait bench generate. */
typedef struct krait_lm_timing {
  uint32_t size;
  int32_t narrow_states; /* given: states in the weights' type, as mamba-ssm keeps them, not in float32 (on a GPU) */
  uint64_t token_bytes; /* of weights, that a token reads */
  double open_s;        /* making the weights */
  double prompt_s;      /* reading the prompt, the best of three */
  double token_s;       /* a step of the batch, with the likeliest tokens on the host, median */
  double step_s;        /* a step without these, of many in a row */
} krait_lm_timing;
typedef void (*krait_lm_kind_fn)(void *user, const char *run, const char *name, const char *op, const char *row,
                                 int64_t n_calls, double seconds);
/* What the prompt's run and a step are made of: calls of one name and row, how many, and what all of them take in a
 * row. */
KRAIT_API int32_t krait_lm_kinds(const krait_ctx *ctx, const char *model, int32_t dtype, int64_t batch,
                                 int64_t n_prompt, int32_t narrow_states, krait_lm_kind_fn kind, void *user);
/* model: "mamba-130m", "mamba2-2.7b" and the like; dtype: KRAIT_F32, KRAIT_F16, KRAIT_BF16, for Mamba's models also
 * KRAIT_I32 (q8_0) and KRAIT_U8 (q4_k). */
KRAIT_API int32_t krait_lm_measure(const krait_ctx *ctx, const char *model, int32_t dtype, int64_t batch,
                                   int64_t n_prompt, int64_t n_tokens, krait_lm_timing *timing);

#ifdef __cplusplus
}
#endif
#endif
