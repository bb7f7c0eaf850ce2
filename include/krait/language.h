/* language.h: language models: a krait_lm holds weights, a tokenizer and the states of a number of sessions; a session
 * is one growing text. A model and its sessions are used by one thread at a time. The context must outlive the model,
 * the model its sessions. In libkrait, not in libkrait-ops.
 *
 *   krait_lm_open(ctx, &(krait_lm_options){.size = sizeof(krait_lm_options), .path = "mamba-130m-hf"}, &lm);
 *   krait_lm_session_open(lm, NULL, &session);
 *   krait_lm_prefill(session, prompt, strlen(prompt), 0);
 *   for (int i = 0; i < 100 && !krait_lm_is_done(session); i++) {
 *     krait_lm_step(&session, 1);
 *     text = krait_lm_text(session, &n_bytes);
 *   }
 *
 * After an error. krait_lm_prefill, krait_lm_step and krait_lm_save that fail leave the text of every session as it
 * was: repeat the call, or go on with another. If memory runs out while a Mamba model reads, its states can be half
 * computed and are lost: then krait_lm_prefill, krait_lm_step and krait_lm_save refuse this session, with a sentence
 * that says so, until krait_lm_reset, krait_lm_load or krait_lm_score starts it again. Other sessions of the model are
 * not affected. krait_lm_load and krait_lm_score that fail leave the session as krait_lm_reset does. */
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
  int32_t n_sessions;         /* that may be open at the same time; 0: one */
  const char *path;           /* a model's folder, a shard in it, a weights file beside config.json, or a GGUF file */
  const char *tokenizer_path; /* tokenizer.json or its folder; NULL: the one beside the weights, or in the GGUF file */
  int32_t narrow_states; /* 1: on a GPU that computes in the weights' type, Mamba's states have that type instead of
                            float32: half the memory, less accurate */
  int32_t no_tokenizer;  /* 1: no tokenizer is read: prompts are ids, and texts stay empty */
  const char *chat_format;      /* chatml, llama3, granite or nemotron; NULL: that of the model's chat template */
  int32_t no_generation_config; /* 1: generation_config.json is not read */
  int32_t dtype; /* KRAIT_F16, KRAIT_BF16: the type that weights get on a GPU, where a step takes as long as reading
                    them; 0: as stored. Ignored on a CPU, and by quantized weights */
  int32_t wide_keys; /* 1: on a CPU, keys and values are float32 also where the weights have 16 bits or are quantized;
                        0: float16 there. With float32 weights they are float32, on a GPU of the weights' type */
} krait_lm_options;

/* How the next token is sampled: from the top_k most likely, then (temperature divides the logits) from the smallest
 * set whose total probability reaches top_p, and from those at least min_p times as likely as the most likely one. 0
 * disables a rule; temperature 0 is greedy decoding. Logits of tokens that have already occurred are divided by
 * repetition_penalty if positive, else multiplied. Equal seeds give equal texts. */
#define KRAIT_LM_SPECIAL 1u /* krait_lm_text has the names of special tokens, too */
#define KRAIT_LM_LOGITS 2u  /* krait_lm_logprobs can be called */
typedef struct krait_lm_sampling {
  uint32_t size;
  int32_t top_k;
  float temperature, top_p, min_p, repetition_penalty;
  uint64_t seed;
  uint32_t flags, reserved; /* KRAIT_LM_SPECIAL, KRAIT_LM_LOGITS */
} krait_lm_sampling;

KRAIT_API int32_t krait_lm_open(const krait_ctx *ctx, const krait_lm_options *options, krait_lm **lm);
KRAIT_API void krait_lm_close(krait_lm **lm);
/* What generation_config.json recommends; 0 where it says nothing. n_tokens: how many, at most; may be NULL. */
KRAIT_API int32_t krait_lm_defaults(const krait_lm *lm, krait_lm_sampling *sampling, int64_t *n_tokens);
/* A token as text, not always whole characters; n_bytes is 0 if there is no such token, or no tokenizer. */
KRAIT_API const char *krait_lm_token(const krait_lm *lm, int32_t id, size_t *n_bytes);
/* Bytes of weights read per token. */
KRAIT_API uint64_t krait_lm_token_bytes(const krait_lm *lm);
/* The options.dtype with which a token would take about half the time: KRAIT_F16, where only that has tensor cores on
 * this GPU, KRAIT_BF16, where both 16-bit types have; 0: none. */
KRAIT_API int32_t krait_lm_faster_dtype(const krait_lm *lm);

/* sampling may be NULL: greedy decoding. */
KRAIT_API int32_t krait_lm_session_open(krait_lm *lm, const krait_lm_sampling *sampling, krait_lm_session **session);
KRAIT_API void krait_lm_session_close(krait_lm_session **session);

/* Makes the session as if it had just been opened: no text, random numbers from the seed. */
KRAIT_API int32_t krait_lm_reset(krait_lm_session *session);

#define KRAIT_LM_CHAT 1u  /* text is a user message: wrap it in the model's chat template */
#define KRAIT_LM_PLAIN 2u /* names of special tokens in the text are plain text */
/* Appends a prompt to what the session has read so far (prefill). UTF-8; n_bytes may be 0 if the session is not
 * empty, or if the model has a token for the beginning of a text. After an error the session has what it had before;
 * if reading had begun, a model with recurrent states refuses the session until krait_lm_reset or _load. */
KRAIT_API int32_t krait_lm_prefill(krait_lm_session *session, const char *text, size_t n_bytes, uint32_t flags);
typedef struct krait_lm_message {
  const char *role, *content; /* "system", "user", "assistant" */
} krait_lm_message;
/* The same with messages and the beginning of the answer, in the model's chat template; those behind an answer
 * continue the conversation. KRAIT_ERR_UNSUPPORTED: the template is not known. */
KRAIT_API int32_t krait_lm_chat(krait_lm_session *session, const krait_lm_message *messages, int32_t n);
/* The same with tokens, where text would be tokenized. */
KRAIT_API int32_t krait_lm_prefill_ids(krait_lm_session *session, const int32_t *ids, int64_t n);
/* Generates the next token of each of n different sessions of one model, as one batch. After an error none of them has
 * a new token. */
KRAIT_API int32_t krait_lm_step(krait_lm_session *const *sessions, int32_t n);
/* The characters completed by the last step, NUL-terminated; after krait_lm_finish the remaining incomplete ones. Valid
 * until the next krait_lm_step, _finish, _reset, _load or _score of the session, or its krait_lm_session_close. */
KRAIT_API const char *krait_lm_text(const krait_lm_session *session, size_t *n_bytes);
KRAIT_API void krait_lm_finish(krait_lm_session *session);
KRAIT_API int krait_lm_is_done(const krait_lm_session *session);      /* the last token ends the text */
KRAIT_API int64_t krait_lm_n_tokens(const krait_lm_session *session); /* read and generated so far */
/* The likeliest n tokens at the last step, the likeliest first, and the logarithms of their probabilities, before any
 * rule of sampling; ids[n] and logprobs[n]: those of the token that was taken. Both have room for n + 1. */
KRAIT_API int32_t krait_lm_logprobs(const krait_lm_session *session, int32_t n, int32_t *ids, float *logprobs);
/* They, valid until the next call for the session that is not const; NULL if there are none. */
KRAIT_API const int32_t *krait_lm_ids(const krait_lm_session *session);

/* Saves a session's state to a file of the size of the model's states, whatever the length of the text (models with
 * attention also have keys and values of every token). A state belongs to its model: krait_lm_load refuses it if
 * anything that the states depend on differs: configuration, or a tensor's name, type, shape or contents (of large
 * tensors samples), so also the same model quantized or in another type. Loading replaces the session's text. */
KRAIT_API int32_t krait_lm_save(krait_lm_session *session, const char *path);
KRAIT_API int32_t krait_lm_load(krait_lm_session *session, const char *path);

/* Called with tokens done and in total; non-zero requests a stop: KRAIT_ERR_CANCELLED. */
typedef int32_t (*krait_lm_progress_fn)(void *user, int64_t done, int64_t total);
/* For a text of at least two tokens: the sum of -ln p over all tokens except the first, and their number. The session
 * starts again, as after krait_lm_reset. */
KRAIT_API int32_t krait_lm_score(krait_lm_session *session, const char *text, size_t n_bytes,
                                 krait_lm_progress_fn progress, void *user, double *nats, int64_t *n_tokens);

/* Writes a model's folder or weights file as safetensors with its large matrices quantized to 8 bits per weight (format
 * "q8_0": blocks of 32 with a scale) or 4 (format "q4_k": super-blocks of 256; the output matrix, x_proj, and matrices
 * whose rows are not a multiple of 256 keep 8). The parameters of the state update become float32. config.json and
 * tokenizer.json must be copied beside the new file. */
KRAIT_API int32_t krait_lm_quantize(const char *in_path, const char *out_path, const char *format);

#ifdef __cplusplus
}
#endif
#endif
