/* language.c: sessions of a language model: a slot of its states, the logits after the last token, and text not yet
 * returned. The model reads a generated token only in the next step, so the last token of a text is never read. */
#include "public_names.h"

#include <krait/language.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "lm_files.h"
#include "lm_parts.h"
#include "safetensors.h"
#include "sampler.h"
#include "sized.h"
#include "status.h"
#include "utf8.h"

enum { MOST_SESSIONS = 1024, NO_TOKEN = -1 };

struct krait_lm {
  kr_model_folder *folder;
  kr_lm_files files;
  kr_lm *model;
  const kr_lm_config *config; /* of the model */
  int32_t n_sessions;
  uint64_t caps; /* of the context */
  uint8_t *taken;      /* by slot */
  float *logits;       /* (n_sessions, V), while a step runs */
};

struct krait_lm_session {
  krait_lm *lm;
  int32_t slot, pending; /* generated, not read yet; NO_TOKEN */
  float *logits;         /* after everything that was read */
  kr_sampler sampler;
  kr_ids ids; /* read and generated */
  kr_utf8_stream stream;
  char *text; /* has room for every token's */
  size_t n_text;
  int is_done;
};

/* ---- models ---- */

static int32_t open_lm_parts(const krait_ctx *ctx, const krait_lm_options *o, krait_lm *lm) {
  KR_TRY(kr_model_folder_open(o->path, &lm->folder));
  KR_TRY(kr_lm_files_open(o, lm->folder, &lm->files));
  const int64_t n_known = lm->files.tokenizer ? kr_tokenizer_size(lm->files.tokenizer) : 0;
  KR_TRY(kr_lm_open_as(ctx, lm->folder, o->dtype, lm->n_sessions, n_known, &lm->model));
  lm->config = kr_lm_config_of(lm->model);
  if (o->narrow_states) KR_TRY(kr_lm_narrow_states(lm->model));
  if (!o->wide_keys) KR_TRY(kr_lm_narrow_keys(lm->model));
  const int64_t V = lm->config->V;
  KR_CHECK(n_known <= V, KRAIT_ERR_WEIGHTS, "%s: its tokenizer has %lld tokens, but the model %lld; they do not match",
           o->path, (long long)n_known, (long long)V);
  lm->taken = kr_alloc_array((size_t)lm->n_sessions, 1);
  lm->logits = kr_alloc_array((size_t)(lm->n_sessions * V), sizeof *lm->logits);
  KR_CHECK(lm->taken && lm->logits, KRAIT_ERR_NO_MEMORY, "no memory for %d sessions", lm->n_sessions);
  return KRAIT_OK;
}

int32_t krait_lm_open(const krait_ctx *ctx, const krait_lm_options *given, krait_lm **out) {
  krait_lm_options o;
  KR_CHECK(ctx && given && out, KRAIT_ERR_ARGUMENT, "ctx, options and lm must not be NULL");
  *out = NULL;
  KR_TRY(kr_struct_take("krait_lm_options", given, sizeof o, &o, sizeof o));
  KR_CHECK(o.path, KRAIT_ERR_ARGUMENT, "options.path must not be NULL");
  KR_CHECK(o.n_sessions >= 0 && o.n_sessions <= MOST_SESSIONS, KRAIT_ERR_ARGUMENT,
           "options.n_sessions is %d, must be 0 to %d", o.n_sessions, MOST_SESSIONS);
  KR_CHECK(o.narrow_states == 0 || o.narrow_states == 1, KRAIT_ERR_ARGUMENT,
           "options.narrow_states is %d, must be 0 or 1", o.narrow_states);
  KR_CHECK(o.wide_keys == 0 || o.wide_keys == 1, KRAIT_ERR_ARGUMENT, "options.wide_keys is %d, must be 0 or 1",
           o.wide_keys);
  KR_CHECK(o.no_generation_config == 0 || o.no_generation_config == 1, KRAIT_ERR_ARGUMENT,
           "options.no_generation_config is %d, must be 0 or 1", o.no_generation_config);
  KR_CHECK(o.no_tokenizer == 0 || (o.no_tokenizer == 1 && !o.tokenizer_path), KRAIT_ERR_ARGUMENT,
           "options.no_tokenizer is %d, must be 0, or without a tokenizer_path 1", o.no_tokenizer);
  KR_CHECK(o.dtype == 0 || o.dtype == KRAIT_F16 || o.dtype == KRAIT_BF16, KRAIT_ERR_ARGUMENT,
           "options.dtype is %d, must be 0, KRAIT_F16 or KRAIT_BF16", o.dtype);
  krait_lm *lm = *out = kr_zalloc(sizeof *lm);
  KR_CHECK(lm, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  lm->caps = ctx->caps;
  lm->n_sessions = o.n_sessions ? o.n_sessions : 1;
  const int32_t status = open_lm_parts(ctx, &o, lm);
  if (status < 0) krait_lm_close(out);
  return status;
}

void krait_lm_close(krait_lm **handle) {
  krait_lm *lm = handle ? *handle : NULL;
  if (!lm) return;
  *handle = NULL;
  kr_lm_close(&lm->model);
  kr_lm_files_close(&lm->files);
  kr_model_folder_close(&lm->folder);
  kr_free(lm->taken);
  kr_free(lm->logits);
  kr_free(lm);
}

const kr_model_folder *kr_lm_folder(const krait_lm *lm) { return lm->folder; }
const kr_tokenizer *kr_lm_tokenizer(const krait_lm *lm) { return lm->files.tokenizer; }
kr_lm *kr_lm_model(const krait_lm *lm) { return lm->model; }

int32_t krait_lm_defaults(const krait_lm *lm, krait_lm_sampling *sampling, int64_t *n_tokens) {
  KR_CHECK(lm && sampling, KRAIT_ERR_ARGUMENT, "lm and sampling must not be NULL");
  if (n_tokens) *n_tokens = lm->files.n_tokens;
  return kr_struct_give("krait_lm_sampling", sampling, sizeof *sampling, &lm->files.sampling, sizeof *sampling);
}

const char *krait_lm_token(const krait_lm *lm, int32_t id, size_t *n_bytes) {
  size_t n = 0;
  const char *bytes = lm && lm->files.tokenizer ? kr_tokenizer_bytes(lm->files.tokenizer, id, &n) : "";
  if (n_bytes) *n_bytes = n;
  return bytes;
}

int32_t krait_lm_faster_dtype(const krait_lm *lm) {
  const int32_t dtype = lm ? kr_lm_dtype(lm->model) : KRAIT_F16;
  if (dtype != KRAIT_F32 && dtype != KRAIT_BF16) return 0;
  if (lm->caps & KRAIT_CAP_CUDA_AMPERE) return dtype == KRAIT_F32 ? KRAIT_BF16 : 0;
  return lm->caps & KRAIT_CAP_CUDA_TURING ? KRAIT_F16 : 0;
}
uint64_t krait_lm_token_bytes(const krait_lm *lm) { return lm ? kr_lm_bytes(lm->model) : 0; }

/* ---- sessions ---- */

static int64_t vocabulary(const krait_lm *lm) { return lm->config->V; }

/* Makes the session as if it had just been opened. */
static int32_t begin_lm(krait_lm_session *s) {
  s->ids.n = 0;
  s->pending = NO_TOKEN;
  s->n_text = 0;
  s->text[0] = 0;
  s->is_done = 0;
  s->stream = (kr_utf8_stream){0};
  kr_sampler_reset(&s->sampler);
  return kr_lm_reset(s->lm->model, s->slot);
}

static size_t longest_token(const kr_tokenizer *t) {
  size_t longest = 0, n;
  for (int64_t id = 0; id < kr_tokenizer_size(t); id++) {
    kr_tokenizer_bytes(t, (int32_t)id, &n);
    longest = n > longest ? n : longest;
  }
  return longest;
}

static int32_t make_session(krait_lm_session *s, const krait_lm_sampling *sampling) {
  s->logits = kr_alloc_array((size_t)vocabulary(s->lm), sizeof *s->logits);
  s->text = kr_zalloc(3 * ((s->lm->files.tokenizer ? longest_token(s->lm->files.tokenizer) : 0) + 4) + 1);
  KR_CHECK(s->logits && s->text, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  KR_TRY(kr_sampler_open(&s->sampler, sampling, s->lm->config->n_used));
  return begin_lm(s);
}

int32_t krait_lm_session_open(krait_lm *lm, const krait_lm_sampling *given, krait_lm_session **out) {
  krait_lm_sampling sampling = {.size = sizeof sampling};
  KR_CHECK(lm && out, KRAIT_ERR_ARGUMENT, "lm and session must not be NULL");
  *out = NULL;
  if (given) KR_TRY(kr_struct_take("krait_lm_sampling", given, sizeof sampling, &sampling, sizeof sampling));
  int32_t slot = 0;
  while (slot < lm->n_sessions && lm->taken[slot]) slot++;
  KR_CHECK(slot < lm->n_sessions, KRAIT_ERR_ARGUMENT, "the model was opened for %d sessions, which are all open",
           lm->n_sessions);
  krait_lm_session *s = *out = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  s->lm = lm, s->slot = slot;
  lm->taken[slot] = 1;
  const int32_t status = make_session(s, &sampling);
  if (status < 0) krait_lm_session_close(out);
  return status;
}

void krait_lm_session_close(krait_lm_session **handle) {
  krait_lm_session *s = handle ? *handle : NULL;
  if (!s) return;
  *handle = NULL;
  s->lm->taken[s->slot] = 0;
  kr_sampler_close(&s->sampler);
  kr_ids_free(&s->ids);
  kr_free(s->logits);
  kr_free(s->text);
  kr_free(s);
}

/* After a failure whose states are of no use; its status and sentence stay, unless this fails, too. */
static int32_t begin_again(krait_lm_session *s, int32_t status) {
  KR_TRY(begin_lm(s));
  return status;
}

int32_t krait_lm_reset(krait_lm_session *s) {
  KR_CHECK(s, KRAIT_ERR_ARGUMENT, "session must not be NULL");
  return begin_lm(s);
}

/* ---- reading ---- */

/* Behind other tokens a text has no beginning. */
static int32_t encode(const krait_lm *lm, const char *text, size_t n, uint32_t flags, kr_ids *ids) {
  KR_CHECK(lm->files.tokenizer, KRAIT_ERR_ARGUMENT,
           "the model was opened without a tokenizer; give tokens instead of text");
  if (!(flags & KRAIT_LM_CHAT))
    return kr_tokenizer_encode(
        lm->files.tokenizer, text, n,
        (ids->n ? KR_ENCODE_INSIDE : KR_ENCODE_WHOLE) | (flags & KRAIT_LM_PLAIN ? KR_ENCODE_PLAIN : 0), ids);
  char *content = kr_alloc(n + 1);
  KR_CHECK(content, KRAIT_ERR_NO_MEMORY, "no memory for a message");
  if (n) memcpy(content, text, n);
  content[n] = 0;
  const int32_t status = kr_chat_encode(lm->files.tokenizer, &lm->files.chat, &(kr_message){"user", content}, 1, ids);
  kr_free(content);
  return status;
}

/* Reads the tokens from number `from` on, the pending one first. */
static int32_t try_read(krait_lm_session *s, int64_t from, const void *rows) {
  KR_TRY(kr_lm_check(s->lm->model, s->slot));
  const int64_t first = s->pending == NO_TOKEN ? from : from - 1, n = s->ids.n - first;
  if (n > 0) KR_TRY(kr_lm_prefill(s->lm->model, s->slot, s->ids.at + first, rows, n, 0, s->logits));
  for (int64_t i = from; i < s->ids.n; i++) kr_sampler_see(&s->sampler, s->ids.at[i]);
  s->pending = NO_TOKEN;
  s->is_done = 0;
  return KRAIT_OK;
}

/* After a failure the session has the tokens that it had; without any there are no states to lose. */
static int32_t read_ids(krait_lm_session *s, int64_t from, const void *rows) {
  const int32_t status = try_read(s, from, rows);
  return status < 0 && from == 0 ? begin_again(s, status) : status;
}

/* What has been added to the tokens since there were `before`; without any, a text begins with the model's token for
 * that. */
static int32_t read_added(krait_lm_session *s, int64_t before, int32_t status) {
  const int64_t bos = s->lm->files.bos;
  if (status >= 0 && s->ids.n == 0)
    status = bos >= 0 && bos < vocabulary(s->lm)
                 ? kr_ids_add(&s->ids, (int32_t)bos)
                 : kr_fail(KRAIT_ERR_ARGUMENT, "the prompt is empty; the model needs at least one token");
  if (status >= 0) status = read_ids(s, before, NULL);
  if (status < 0) s->ids.n = before;
  return status;
}

int32_t krait_lm_prefill(krait_lm_session *s, const char *text, size_t n_bytes, uint32_t flags) {
  KR_CHECK(s && (text || !n_bytes), KRAIT_ERR_ARGUMENT, "session and text must not be NULL");
  KR_CHECK(!(flags & ~(KRAIT_LM_CHAT | KRAIT_LM_PLAIN)), KRAIT_ERR_ARGUMENT, "unknown flags 0x%x", flags);
  const int64_t before = s->ids.n;
  return read_added(s, before, encode(s->lm, text ? text : "", n_bytes, flags, &s->ids));
}

int32_t krait_lm_chat(krait_lm_session *s, const krait_lm_message *messages, int32_t n) {
  KR_CHECK(s && messages && n >= 1, KRAIT_ERR_ARGUMENT, "session and messages must not be NULL, n at least 1");
  for (int32_t i = 0; i < n; i++)
    KR_CHECK(messages[i].role && messages[i].content, KRAIT_ERR_ARGUMENT, "messages[%d] has no role or no content", i);
  KR_CHECK(s->lm->files.tokenizer, KRAIT_ERR_ARGUMENT, "the model was opened without a tokenizer");
  kr_message *own = kr_alloc_array((size_t)n, sizeof *own);
  KR_CHECK(own, KRAIT_ERR_NO_MEMORY, "no memory for %d messages", n);
  for (int32_t i = 0; i < n; i++) own[i] = (kr_message){messages[i].role, messages[i].content};
  const int64_t before = s->ids.n;
  const int32_t status = kr_chat_encode(s->lm->files.tokenizer, &s->lm->files.chat, own, n, &s->ids);
  kr_free(own);
  return read_added(s, before, status);
}

int32_t kr_lm_prefill_rows(krait_lm_session *s, const int32_t *ids, const void *rows, int64_t n) {
  KR_CHECK(s->pending == NO_TOKEN, KRAIT_ERR_ARGUMENT, "rows after a generated token are not supported");
  const int64_t before = s->ids.n;
  int32_t status = kr_ids_reserve(&s->ids, n);
  for (int64_t i = 0; i < n && status >= 0; i++) status = kr_ids_add(&s->ids, ids[i]);
  if (status >= 0) status = read_ids(s, before, rows);
  if (status < 0) s->ids.n = before;
  return status;
}

int32_t krait_lm_prefill_ids(krait_lm_session *s, const int32_t *ids, int64_t n) {
  KR_CHECK(s && (ids || n == 0) && n >= 0, KRAIT_ERR_ARGUMENT, "session and ids must not be NULL, n not negative");
  for (int64_t i = 0; i < n; i++)
    KR_CHECK(ids[i] >= 0 && ids[i] < vocabulary(s->lm), KRAIT_ERR_ARGUMENT,
             "token %lld is %d, but the model's tokens are 0 to %lld", (long long)i, ids[i],
             (long long)vocabulary(s->lm) - 1);
  const int64_t before = s->ids.n;
  int32_t status = kr_ids_reserve(&s->ids, n);
  for (int64_t i = 0; i < n && status >= 0; i++) status = kr_ids_add(&s->ids, ids[i]);
  return read_added(s, before, status);
}

/* ---- steps ---- */

static int32_t check_sessions(krait_lm_session *const *sessions, int32_t n) {
  KR_CHECK(sessions && n >= 1 && n <= MOST_SESSIONS, KRAIT_ERR_ARGUMENT, "a step of %d sessions; it takes 1 to %d", n,
           MOST_SESSIONS);
  for (int32_t i = 0; i < n; i++) {
    KR_CHECK(sessions[i] && sessions[i]->lm == sessions[0]->lm, KRAIT_ERR_ARGUMENT,
             "session %d of a step is NULL or of another model", i);
    KR_CHECK(sessions[i]->ids.n, KRAIT_ERR_ARGUMENT, "session %d of a step has read nothing yet", i);
    KR_TRY(kr_lm_check(sessions[i]->lm->model, sessions[i]->slot));
    for (int32_t k = 0; k < i; k++)
      KR_CHECK(sessions[i] != sessions[k], KRAIT_ERR_ARGUMENT, "session %d of a step is given twice", i);
  }
  return KRAIT_OK;
}

/* Whether all sessions decode greedily: the model then computes the argmax on its device. */
static int are_greedy(krait_lm_session *const *sessions, int32_t n) {
  for (int32_t i = 0; i < n; i++)
    if (!kr_sampler_is_greedy(&sessions[i]->sampler) || sessions[i]->sampler.rules.flags & KRAIT_LM_LOGITS) return 0;
  return 1;
}

/* Whether one of n likeliest tokens is 0, which it also is if no logit is a number. */
static int has_doubtful(const int32_t *argmax, int32_t n) {
  for (int32_t i = 0; i < n; i++)
    if (argmax[i] == 0) return 1;
  return 0;
}

/* The model reads the generated tokens: one run for all sessions with a pending token. next (n): only the argmax is
 * needed, unless it is doubtful; the others' is kept. */
static int32_t read_pending(krait_lm_session *const *sessions, int32_t n, int32_t *next) {
  krait_lm *lm = sessions[0]->lm;
  int32_t slots[MOST_SESSIONS], ids[MOST_SESSIONS], argmax[MOST_SESSIONS], n_pending = 0;
  for (int32_t i = 0; i < n; i++)
    if (sessions[i]->pending != NO_TOKEN) slots[n_pending] = sessions[i]->slot, ids[n_pending++] = sessions[i]->pending;
  if (n_pending) KR_TRY(kr_lm_step(lm->model, n_pending, slots, ids, next ? NULL : lm->logits, argmax));
  if (next && has_doubtful(argmax, n_pending)) {
    KR_TRY(kr_lm_read_logits(lm->model, n_pending, lm->logits));
    next = NULL; /* all are drawn from their logits */
  }
  for (int32_t i = 0, k = 0; i < n; i++) {
    if (sessions[i]->pending == NO_TOKEN) continue;
    if (next)
      next[i] = argmax[k];
    else
      memcpy(sessions[i]->logits, lm->logits + k * vocabulary(lm), (size_t)vocabulary(lm) * sizeof(float));
    sessions[i]->pending = NO_TOKEN;
    k++;
  }
  return KRAIT_OK;
}

static int is_end(const krait_lm *lm, int32_t id) {
  const kr_lm_files *f = &lm->files;
  for (int i = 0; f->has_ends && i < f->n_ends; i++)
    if (f->ends[i] == id) return 1;
  for (int i = 0; !f->has_ends && i < lm->config->n_eos; i++)
    if (lm->config->eos[i] == id) return 1;
  return f->tokenizer && (id == kr_tokenizer_find_added(f->tokenizer, "<|endoftext|>") ||
                          id == kr_tokenizer_find_added(f->tokenizer, "<|im_end|>") ||
                          id == kr_chat_end(f->tokenizer, &f->chat));
}

static void show_token(krait_lm_session *s, int32_t id) {
  size_t n;
  if (!s->lm->files.tokenizer) return;
  const char *bytes = kr_tokenizer_bytes(s->lm->files.tokenizer, id, &n);
  const int is_shown = (s->sampler.rules.flags & KRAIT_LM_SPECIAL) != 0;
  const int is_hidden = !is_shown && kr_tokenizer_is_special(s->lm->files.tokenizer, id);
  s->n_text = is_hidden ? 0 : kr_utf8_push(&s->stream, bytes, n, s->text);
  s->text[s->n_text] = 0;
}

static int32_t refuse_token(const krait_lm_session *s, int32_t id) {
  if (id == KR_NO_CANDIDATE)
    return kr_fail(KRAIT_ERR_ARGUMENT,
                   "token %lld: a repetition_penalty of %g leaves no finite logit; give one nearer to 1",
                   (long long)s->ids.n, (double)s->sampler.rules.repetition_penalty);
  return kr_fail(KRAIT_ERR_WEIGHTS,
                 "token %lld: the model's logits are not finite; the weights are damaged, or their training diverged",
                 (long long)s->ids.n);
}

/* The next tokens, not known yet, of sessions whose logits are those after all of their tokens. */
static int32_t draw_lm(krait_lm_session *const *sessions, int32_t n, int32_t *next) {
  for (int32_t i = 0; i < n; i++) {
    if (sessions[i]->pending != NO_TOKEN || next[i] != NO_TOKEN) continue;
    next[i] = kr_sampler_draw(&sessions[i]->sampler, sessions[i]->logits);
    if (next[i] < 0) return refuse_token(sessions[i], next[i]);
  }
  return KRAIT_OK;
}

/* Each session's next token. What fails without the model comes before it; after it only logits that are no numbers. */
static int32_t find_next(krait_lm_session *const *sessions, int32_t n, int32_t *next) {
  for (int32_t i = 0; i < n; i++) KR_TRY(kr_ids_reserve(&sessions[i]->ids, 1));
  KR_TRY(draw_lm(sessions, n, next));
  KR_TRY(read_pending(sessions, n, are_greedy(sessions, n) ? next : NULL));
  return draw_lm(sessions, n, next);
}

/* The sessions change when nothing can fail any more. */
int32_t krait_lm_step(krait_lm_session *const *sessions, int32_t n) {
  int32_t next[MOST_SESSIONS];
  uint64_t before[MOST_SESSIONS];
  KR_TRY(check_sessions(sessions, n));
  for (int32_t i = 0; i < n; i++) next[i] = NO_TOKEN, before[i] = sessions[i]->sampler.state;
  const int32_t status = find_next(sessions, n, next);
  for (int32_t i = 0; i < n && status < 0; i++) sessions[i]->sampler.state = before[i]; /* a step that never was */
  KR_TRY(status);
  for (int32_t i = 0; i < n; i++) {
    krait_lm_session *s = sessions[i];
    s->ids.at[s->ids.n++] = s->pending = next[i];
    kr_sampler_see(&s->sampler, next[i]);
    s->is_done = is_end(s->lm, next[i]);
    show_token(s, next[i]);
  }
  return KRAIT_OK;
}

const char *krait_lm_text(const krait_lm_session *s, size_t *n_bytes) {
  if (n_bytes) *n_bytes = s ? s->n_text : 0;
  return s && s->text ? s->text : "";
}

void krait_lm_finish(krait_lm_session *s) {
  if (!s || !s->text) return;
  s->n_text = kr_utf8_end(&s->stream, s->text);
  s->text[s->n_text] = 0;
}

int krait_lm_is_done(const krait_lm_session *s) { return s && s->is_done; }
int64_t krait_lm_n_tokens(const krait_lm_session *s) { return s ? s->ids.n : 0; }
const int32_t *krait_lm_ids(const krait_lm_session *s) { return s && s->ids.n ? s->ids.at : NULL; }

/* The logarithm of the sum of exponentials. */
static double log_sum(const float *logits, int64_t n) {
  double most = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) most = logits[i] > most ? logits[i] : most;
  for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
  return most + log(sum);
}

/* While a generated token is pending, the logits are those that it was drawn from. */
int32_t krait_lm_logprobs(const krait_lm_session *s, int32_t n, int32_t *ids, float *logprobs) {
  KR_CHECK(s && ids && logprobs && n >= 0 && n <= s->sampler.n, KRAIT_ERR_ARGUMENT,
           "session, ids and logprobs must not be NULL, n not negative and not more than there are tokens");
  KR_CHECK(s->sampler.rules.flags & KRAIT_LM_LOGITS && s->pending != NO_TOKEN, KRAIT_ERR_ARGUMENT,
           "the session was opened without KRAIT_LM_LOGITS, or its last call was not a step");
  const double sum = log_sum(s->logits, s->sampler.n);
  for (int32_t k = 0; k < n; k++) {
    int64_t best = -1;
    for (int64_t i = 0; i < s->sampler.n; i++) {
      const int is_after = !k || s->logits[i] < s->logits[ids[k - 1]] ||
                           (s->logits[i] == s->logits[ids[k - 1]] && i > ids[k - 1]);
      if (is_after && (best < 0 || s->logits[i] > s->logits[best])) best = i;
    }
    ids[k] = (int32_t)best;
  }
  ids[n] = s->pending;
  for (int32_t k = 0; k <= n; k++) logprobs[k] = (float)((double)s->logits[ids[k]] - sum);
  return KRAIT_OK;
}

/* ---- state files ---- */

typedef struct file {
  kr_weight *items;
  char (*names)[32];
  int64_t n, capacity;
  const kr_weights *from;
  const char *path;
} file;

static int32_t keep_state(void *user, const char *name, int32_t n_dims, const int64_t *shape, float *data) {
  file *f = user;
  kr_weight *item = &f->items[f->n];
  *item = (kr_weight){.name = f->names[f->n], .dtype = KRAIT_F32, .n_dims = n_dims, .bytes = sizeof(float)};
  snprintf(f->names[f->n++], sizeof *f->names, "%s", name);
  for (int i = 0; i < n_dims; i++) item->bytes *= (uint64_t)(item->shape[i] = shape[i]);
  void *copy = kr_alloc((size_t)item->bytes);
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory for a state");
  item->data = memcpy(copy, data, (size_t)item->bytes);
  return KRAIT_OK;
}

static int32_t write_states(krait_lm_session *s, const char *path, file *f) {
  char fingerprint[KR_FINGERPRINT];
  kr_lm_fingerprint(s->lm->model, s->lm->folder, fingerprint, sizeof fingerprint);
  const kr_metadata metadata[] = {{"krait_state", "1"}, {"weights", fingerprint}};
  KR_TRY(kr_lm_states_out(s->lm->model, s->slot, keep_state, f));
  f->items[f->n] =
      (kr_weight){"logits", KRAIT_F32, 1, {vocabulary(s->lm)}, s->logits, (uint64_t)vocabulary(s->lm) * sizeof(float)};
  f->items[f->n + 1] = (kr_weight){"ids", KRAIT_I32, 1, {s->ids.n}, s->ids.at, (uint64_t)s->ids.n * sizeof(int32_t)};
  return kr_safetensors_write(path, f->items, f->n + 2, metadata, 2);
}

int32_t krait_lm_save(krait_lm_session *s, const char *path) {
  KR_CHECK(s && path, KRAIT_ERR_ARGUMENT, "session and path must not be NULL");
  KR_CHECK(s->ids.n, KRAIT_ERR_ARGUMENT, "the session has read nothing yet");
  KR_TRY(read_pending(&s, 1, NULL));
  const int64_t most = kr_lm_n_states(s->lm->model) + 2;
  file f = {.items = kr_alloc_array((size_t)most, sizeof *f.items),
            .names = kr_alloc_array((size_t)most, sizeof *f.names)};
  int32_t status =
      f.items && f.names ? write_states(s, path, &f) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the states");
  for (int64_t i = 0; f.items && i < f.n; i++) kr_free((void *)f.items[i].data);
  kr_free(f.items);
  kr_free(f.names);
  return status;
}

static int32_t find_state(const file *f, const char *name, int32_t n_dims, const int64_t *shape, const float **data) {
  const int32_t status = kr_weights_take_f32(f->from, name, n_dims, shape, data);
  return status < 0 ? kr_fail(status, "%s: %s", f->path, krait_error_detail()) : KRAIT_OK;
}

static int32_t give_state(void *user, const char *name, int32_t n_dims, const int64_t *shape, float *data) {
  const float *from;
  size_t bytes = sizeof *data;
  KR_TRY(find_state(user, name, n_dims, shape, &from));
  for (int i = 0; i < n_dims; i++) bytes *= (size_t)shape[i];
  memcpy(data, from, bytes);
  return KRAIT_OK;
}

static int32_t read_states(krait_lm_session *s, file *f) {
  const char *fingerprint = kr_weights_metadata(f->from, "weights");
  const kr_weight *ids = kr_weights_find(f->from, "ids");
  const float *logits;
  char own[KR_FINGERPRINT];
  kr_lm_fingerprint(s->lm->model, s->lm->folder, own, sizeof own);
  KR_CHECK(kr_weights_metadata(f->from, "krait_state") && fingerprint, KRAIT_ERR_FILE_FORMAT,
           "%s was not written by --save-state", f->path);
  KR_CHECK(strcmp(fingerprint, own) == 0, KRAIT_ERR_WEIGHTS, "%s: its states belong to another model",
           f->path);
  KR_CHECK(ids && ids->dtype == KRAIT_I32 && ids->n_dims == 1 && ids->shape[0] >= 1, KRAIT_ERR_FILE_FORMAT,
           "%s: it has no tokens", f->path);
  KR_TRY(find_state(f, "logits", 1, (int64_t[]){vocabulary(s->lm)}, &logits));
  KR_TRY(kr_lm_states_in(s->lm->model, s->slot, ids->shape[0], give_state, f));
  memcpy(s->logits, logits, (size_t)vocabulary(s->lm) * sizeof *logits);
  for (int64_t i = 0; i < ids->shape[0]; i++) {
    const int32_t id = ((const int32_t *)ids->data)[i];
    KR_TRY(kr_ids_add(&s->ids, id));
    kr_sampler_see(&s->sampler, id);
  }
  return KRAIT_OK;
}

int32_t krait_lm_load(krait_lm_session *s, const char *path) {
  KR_CHECK(s && path, KRAIT_ERR_ARGUMENT, "session and path must not be NULL");
  kr_weights *weights = NULL;
  KR_TRY(begin_lm(s));
  KR_TRY(kr_weights_open(path, &weights));
  const int32_t status = read_states(s, &(file){.from = weights, .path = path});
  kr_weights_close(&weights);
  return status < 0 ? begin_again(s, status) : status;
}

/* ---- scores ---- */

/* -ln of the probability of `id`. */
static double surprise(const float *logits, int64_t n, int32_t id) { return log_sum(logits, n) - logits[id]; }

static int32_t score_ids(krait_lm_session *s, krait_lm_progress_fn progress, void *user, float *logits, int64_t piece,
                         double *nats) {
  const int64_t n = s->ids.n - 1;
  for (int64_t at = 0, L; at < n; at += L) {
    L = n - at < piece ? n - at : piece;
    KR_TRY(kr_lm_prefill(s->lm->model, s->slot, s->ids.at + at, NULL, L, 1, logits));
    for (int64_t i = 0; i < L; i++)
      *nats += surprise(logits + i * vocabulary(s->lm), vocabulary(s->lm), s->ids.at[at + i + 1]);
    KR_CHECK(isfinite(*nats), KRAIT_ERR_WEIGHTS,
             "tokens %lld to %lld: the model's logits are not finite; the weights are damaged, or their training "
             "diverged",
             (long long)at, (long long)(at + L - 1));
    KR_CHECK(!progress || progress(user, at + L, n) == 0, KRAIT_ERR_CANCELLED, "stopped");
  }
  return KRAIT_OK;
}

static int32_t lm_score(krait_lm_session *s, const char *text, size_t n_bytes, krait_lm_progress_fn progress,
                        void *user, double *nats, int64_t *n_tokens) {
  enum { PREFILL_CHUNK = 128 };
  KR_TRY(encode(s->lm, text, n_bytes, 0, &s->ids));
  KR_CHECK(s->ids.n >= 2, KRAIT_ERR_ARGUMENT, "the text has %lld tokens; a score needs at least two",
           (long long)s->ids.n);
  float *logits = kr_alloc_array((size_t)(PREFILL_CHUNK * vocabulary(s->lm)), sizeof *logits);
  KR_CHECK(logits, KRAIT_ERR_NO_MEMORY, "no memory for the logits of %d tokens", PREFILL_CHUNK);
  *nats = 0;
  const int32_t status = score_ids(s, progress, user, logits, PREFILL_CHUNK, nats);
  *n_tokens = s->ids.n - 1;
  kr_free(logits);
  return status;
}

int32_t krait_lm_score(krait_lm_session *s, const char *text, size_t n_bytes, krait_lm_progress_fn progress, void *user,
                       double *nats, int64_t *n_tokens) {
  KR_CHECK(s && text && nats && n_tokens, KRAIT_ERR_ARGUMENT, "session, text, nats and n_tokens must not be NULL");
  KR_TRY(begin_lm(s));
  return begin_again(s, lm_score(s, text, n_bytes, progress, user, nats, n_tokens));
}
