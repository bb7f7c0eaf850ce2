/* decode_loop.c: generates tokens for texts, step by step; text that may be the beginning of --stop is held
 * back. */
#define _GNU_SOURCE
#include "decode_loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "interrupt.h"
#include "output.h"

static double given_or(double given, double own) { return given < 0 ? own : given; }

/* A temperature that the user gives decides alone whether there is sampling; the model's rules then apply if it is made
 * for sampling. */
void cli_telling_fill(cli_telling *t, const krait_lm_sampling *defaults, int64_t n) {
  const krait_lm_sampling none = {0}, *d = defaults ? defaults : &none;
  t->temperature = given_or(t->temperature, (double)d->temperature);
  t->top_p = given_or(t->top_p, (double)d->top_p);
  t->min_p = given_or(t->min_p, (double)d->min_p);
  t->penalty = given_or(t->penalty, (double)d->repetition_penalty);
  t->top_k = t->top_k < 0 ? d->top_k : t->top_k;
  t->n = t->n < 0 ? n : t->n;
}

krait_lm_sampling cli_telling_sampling(const cli_telling *t) {
  return (krait_lm_sampling){.size = sizeof(krait_lm_sampling),
                             .top_k = (int32_t)t->top_k,
                             .temperature = (float)t->temperature,
                             .top_p = (float)t->top_p,
                             .min_p = (float)t->min_p,
                             .repetition_penalty = (float)t->penalty,
                             .seed = (uint64_t)t->seed,
                             .flags = (t->shows_special ? KRAIT_LM_SPECIAL : 0) |
                                      (t->n_logprobs > 0 ? KRAIT_LM_LOGITS : 0)};
}

double cli_now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- text ---- */

static int add_text(const char *verb, cli_decoding *o, const char *text, size_t n) {
  if (o->n_text + n + 1 > o->capacity) {
    const size_t capacity = 2 * (o->n_text + n + 64);
    char *grown = realloc(o->text, capacity);
    if (!grown) return cli_usage_error(verb, "no memory for the text");
    o->text = grown;
    o->capacity = capacity;
  }
  memcpy(o->text + o->n_text, text, n);
  o->n_text += n;
  o->text[o->n_text] = 0;
  return -1;
}

/* Cuts the text off at --stop. Otherwise returns the number of bytes at its end that may be the beginning of --stop;
 * they are not shown yet. */
static size_t look_for_stop(const cli_telling *t, cli_decoding *o) {
  const size_t n = t->stop ? strlen(t->stop) : 0;
  if (!n) return 0;
  const char *found = memmem(o->text + o->n_shown, o->n_text - o->n_shown, t->stop, n);
  if (found) {
    o->n_text = (size_t)(found - o->text);
    o->text[o->n_text] = 0;
    o->reason = "stop";
    return 0;
  }
  for (size_t held = n - 1; held > 0; held--)
    if (held <= o->n_text - o->n_shown && memcmp(o->text + o->n_text - held, t->stop, held) == 0) return held;
  return 0;
}

/* Control characters are not shown on a terminal. */
void cli_decode_show(const char *text, size_t n) {
  const int is_terminal = isatty(STDOUT_FILENO);
  for (size_t i = 0; i < n; i++) {
    const unsigned char c = (unsigned char)text[i];
    putchar(is_terminal && (c < 32 || c == 127) && c != '\n' && c != '\t' ? '?' : c);
  }
  if (n > 0 && is_terminal && isatty(fileno(cli_err()))) cli_set_mid_line(text[n - 1] != '\n');
  fflush(stdout);
}

/* What the last step has added: text, or the token's number. */
static int take_text(const char *verb, const cli_telling *t, cli_decoding *o, int is_shown) {
  char number[16];
  size_t n;
  const char *text = krait_lm_text(o->session, &n);
  if (t->as_ids) {
    const int32_t id = krait_lm_ids(o->session)[krait_lm_n_tokens(o->session) - 1];
    n = (size_t)snprintf(number, sizeof number, "%s%d", o->n_text ? " " : "", id);
    text = number;
  }
  if (n == 0 && !o->reason) return -1;
  const int exit_status = add_text(verb, o, text, n);
  if (exit_status >= 0) return exit_status;
  const size_t held = look_for_stop(t, o), until = o->n_text - (o->reason ? 0 : held);
  if (is_shown) cli_decode_show(o->text + o->n_shown, until - o->n_shown);
  o->n_shown = until;
  return -1;
}

/* ---- steps ---- */

static json_t *logprob_json(const krait_lm *lm, int32_t id, float logprob) {
  size_t n;
  const char *name = krait_lm_token(lm, id, &n);
  json_t *one = json_pack("{s:i, s:o}", "id", id, "logprob", cli_json_real((double)logprob));
  if (n) json_object_set_new(one, "token", cli_json_bytes(name, n));
  return one;
}

/* The last token's, and the likeliest ones'. */
static int take_logprobs(const char *verb, const cli_telling *t, cli_decoding *o) {
  int32_t ids[CLI_MOST_LOGPROBS + 1];
  float logprobs[CLI_MOST_LOGPROBS + 1];
  const int n = (int)t->n_logprobs;
  if (!n) return -1;
  const int32_t status = krait_lm_logprobs(o->session, n, ids, logprobs);
  if (status < 0) return cli_report(verb, status);
  json_t *top = json_array(), *one = logprob_json(o->lm, ids[n], logprobs[n]);
  for (int k = 0; k < n; k++) json_array_append_new(top, logprob_json(o->lm, ids[k], logprobs[k]));
  json_object_set_new(one, "top", top);
  if (!o->logprobs) o->logprobs = json_array();
  json_array_append_new(o->logprobs, one);
  return -1;
}

/* After a step of the text. */
static int take_step(const char *verb, const cli_telling *t, cli_decoding *o, int is_shown) {
  int exit_status = take_logprobs(verb, t, o);
  if (exit_status < 0) exit_status = take_text(verb, t, o, is_shown);
  if (o->n_drawn++ == 0) o->first_s = cli_now_s();
  if (o->reason || exit_status >= 0) return exit_status;
  if (krait_lm_is_done(o->session) && !t->ignores_end)
    o->reason = "end";
  else if (o->n_drawn >= t->n)
    o->reason = "length";
  if (!o->reason || t->as_ids) return -1;
  krait_lm_finish(o->session);
  return take_text(verb, t, o, is_shown);
}

int cli_decode_step(const char *verb, const cli_telling *t, cli_decoding *const *texts, int n, int is_shown) {
  krait_lm_session *sessions[CLI_MOST_DECODED] = {0};
  for (int i = 0; i < n; i++) sessions[i] = texts[i]->session;
  const int32_t status = krait_lm_step(sessions, n);
  if (status < 0) return cli_report(verb, status);
  for (int i = 0; i < n; i++) {
    const int exit_status = take_step(verb, t, texts[i], is_shown);
    if (exit_status >= 0) return exit_status;
    if (texts[i]->reason) texts[i]->end_s = cli_now_s();
  }
  return -1;
}

int cli_decode_must_end(void) { return cli_is_asked_to_stop() || ferror(stdout); }

int cli_decode_text(const char *verb, const cli_telling *t, cli_decoding *text, int is_shown) {
  while (!text->reason && !cli_decode_must_end()) {
    const int exit_status = cli_decode_step(verb, t, &text, 1, is_shown);
    if (exit_status >= 0) return exit_status;
  }
  if (text->reason) return -1;
  text->reason = "interrupted";
  text->end_s = cli_now_s();
  return -1;
}
