/* cmd_generate.c: krait generate: which prompts a language model goes on from, what of its text is shown when, and how fast it was. */
#define _GNU_SOURCE
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <krait/language.h>

#include "args.h"
#include "cmd.h"
#include "inputs.h"
#include "interrupt.h"
#include "say.h"
#include "texts.h"

enum { MOST_PROMPTS = 1024, MOST_PROMPT_BYTES = 1 << 30 };

typedef struct settings {
  const char *prompt, *file, *stop, *save, *load, *tokenizer;
  int64_t n, top_k, seed;
  double temperature, top_p, min_p, penalty;
  int chat, as_json, force;
  kr_run run;
} settings;

/* One prompt and what came of it. */
typedef struct story {
  const char *prompt;
  size_t n_prompt;
  krait_lm_session *session;
  char *text;            /* all of it; shown: so much */
  size_t n_text, room, n_shown;
  int64_t n_read, n_drawn;
  const char *reason;    /* "length", "end" (the model's), "stop" (--stop); NULL: it goes on */
} story;

typedef struct rates {
  double start_s, read_s, first_s, end_s;
} rates;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- text ---- */

static int add_text(story *o, const char *text, size_t n) {
  if (o->n_text + n + 1 > o->room) {
    const size_t room = 2 * (o->n_text + n + 64);
    char *grown = realloc(o->text, room);
    if (!grown) return kr_usage_error("generate", "no memory for the text");
    o->text = grown;
    o->room = room;
  }
  memcpy(o->text + o->n_text, text, n);
  o->n_text += n;
  o->text[o->n_text] = 0;
  return -1;
}

/* Cuts the text off at --stop. Otherwise the bytes at its end that may be the beginning of it: they are not shown yet. */
static size_t look_for_stop(const settings *s, story *o) {
  const size_t n = s->stop ? strlen(s->stop) : 0;
  if (!n) return 0;
  const char *found = memmem(o->text + o->n_shown, o->n_text - o->n_shown, s->stop, n);
  if (found) {
    o->n_text = (size_t)(found - o->text);
    o->text[o->n_text] = 0;
    o->reason = "stop";
    return 0;
  }
  for (size_t held = n - 1; held > 0; held--)
    if (held <= o->n_text - o->n_shown && memcmp(o->text + o->n_text - held, s->stop, held) == 0) return held;
  return 0;
}

/* What a terminal would take for a command is not shown to it. */
static void show(const char *text, size_t n) {
  const int is_terminal = isatty(STDOUT_FILENO);
  for (size_t i = 0; i < n; i++) {
    const unsigned char c = (unsigned char)text[i];
    putchar(is_terminal && (c < 32 || c == 127) && c != '\n' && c != '\t' ? '?' : c);
  }
  fflush(stdout);
}

static int take_text(const settings *s, story *o, int is_shown) {
  size_t n;
  const char *text = krait_lm_text(o->session, &n);
  if (n == 0 && !o->reason) return -1;
  const int exit_status = add_text(o, text, n);
  if (exit_status >= 0) return exit_status;
  const size_t held = look_for_stop(s, o), until = o->n_text - (o->reason ? 0 : held);
  if (is_shown) show(o->text + o->n_shown, until - o->n_shown);
  o->n_shown = until;
  return -1;
}

/* ---- the work ---- */

/* A step of all stories that go on. */
static int step(const settings *s, story *stories, int n, int is_shown) {
  krait_lm_session *sessions[MOST_PROMPTS];
  int32_t n_open = 0;
  for (int i = 0; i < n; i++)
    if (!stories[i].reason) sessions[n_open++] = stories[i].session;
  const int32_t status = krait_lm_step(sessions, n_open);
  if (status < 0) return kr_report("generate", status);
  for (int i = 0; i < n; i++) {
    story *o = &stories[i];
    if (o->reason) continue;
    int exit_status = take_text(s, o, is_shown);
    o->n_drawn++;
    if (o->reason || exit_status >= 0) {
      if (exit_status >= 0) return exit_status;
      continue;
    }
    if (krait_lm_is_done(o->session)) o->reason = "end";
    else if (o->n_drawn >= s->n) o->reason = "length";
    if (!o->reason) continue;
    krait_lm_finish(o->session);
    if ((exit_status = take_text(s, o, is_shown)) >= 0) return exit_status;
  }
  return -1;
}

static int is_any_open(const story *stories, int n) {
  for (int i = 0; i < n; i++)
    if (!stories[i].reason) return 1;
  return 0;
}

static int tell_stories(const settings *s, krait_lm *lm, story *stories, int n, int is_shown, rates *r) {
  const krait_lm_sampling sampling = {.size = sizeof sampling, .top_k = (int32_t)s->top_k, .temperature = (float)s->temperature, .top_p = (float)s->top_p, .min_p = (float)s->min_p,
                                      .repetition_penalty = (float)s->penalty, .seed = (uint64_t)s->seed};
  r->start_s = now_s();
  for (int i = 0; i < n; i++) {
    story *o = &stories[i];
    krait_lm_sampling own = sampling;
    own.seed += (uint64_t)i;
    int32_t status = krait_lm_session_open(lm, &own, &o->session);
    if (status >= 0 && s->load) status = krait_lm_load(o->session, s->load);
    if (status >= 0) status = krait_lm_read(o->session, o->prompt, o->n_prompt, s->chat ? KRAIT_LM_CHAT : 0);
    if (status < 0) return kr_report("generate", status);
    o->n_read = krait_lm_n_tokens(o->session);
    o->reason = s->n == 0 ? "length" : NULL;
  }
  r->read_s = r->first_s = now_s();
  for (int k = 0; is_any_open(stories, n); k++) {
    const int exit_status = step(s, stories, n, is_shown);
    if (exit_status >= 0) return exit_status;
    if (k == 0) r->first_s = now_s();
  }
  r->end_s = now_s();
  return -1;
}

/* ---- results ---- */

static double per_second(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

static void print_rates(const story *stories, int n, const rates *r) {
  int64_t n_read = 0, n_drawn = 0;
  for (int i = 0; i < n; i++) n_read += stories[i].n_read, n_drawn += stories[i].n_drawn;
  fprintf(kr_err(), "read %lld tokens in %.3f s (%.1f/s), first token after %.3f s, generated %lld in %.3f s (%.1f/s)\n", (long long)n_read, r->read_s - r->start_s,
          per_second((double)n_read, r->read_s - r->start_s), r->first_s - r->start_s, (long long)n_drawn, r->end_s - r->read_s, per_second((double)n_drawn, r->end_s - r->read_s));
}

static json_t *story_json(const story *o, const rates *r) {
  return json_pack("{s:o, s:o, s:I, s:I, s:s, s:o, s:o, s:o}", "prompt", kr_json_text(o->prompt), "text", kr_json_text(o->text ? o->text : ""), "prompt_tokens", (json_int_t)o->n_read, "tokens",
                   (json_int_t)o->n_drawn, "reason", o->reason, "read_s", kr_json_real(r->read_s - r->start_s), "first_token_s", kr_json_real(r->first_s - r->start_s), "generate_s",
                   kr_json_real(r->end_s - r->read_s));
}

/* A text as one line: what --file prints. */
static void print_line(const char *text) {
  for (; *text; text++) {
    if (*text == '\n') fputs("\\n", stdout);
    else if (*text == '\r') fputs("\\r", stdout);
    else show(text, 1);
  }
  putchar('\n');
}

static int print_results(const settings *s, const story *stories, int n, const rates *r) {
  int failed = 0;
  for (int i = 0; i < n; i++) {
    if (s->as_json) failed |= kr_print_json("generate", story_json(&stories[i], r), JSON_COMPACT | JSON_REAL_PRECISION(6));
    else if (s->file) print_line(stories[i].text ? stories[i].text : "");
    else if (stories[i].n_text == 0 || stories[i].text[stories[i].n_text - 1] != '\n') putchar('\n');
  }
  if (!s->as_json) print_rates(stories, n, r);
  return failed ? 1 : 0;
}

static int run_model(const settings *s, const char *path, story *stories, int n) {
  krait_ctx *ctx = NULL;
  krait_lm *lm = NULL;
  rates r = {0};
  int exit_status = kr_run_open_ctx("generate", &s->run, &ctx);
  if (exit_status >= 0) return exit_status;
  const krait_lm_options options = {.size = sizeof options, .n_sessions = n, .path = path, .tokenizer_path = s->tokenizer};
  int32_t status = krait_lm_open(ctx, &options, &lm);
  exit_status = status < 0 ? kr_report("generate", status) + 1 : tell_stories(s, lm, stories, n, !s->as_json && !s->file, &r);
  if (exit_status < 0) exit_status = print_results(s, stories, n, &r);
  if (exit_status == 0 && s->save && (status = krait_lm_save(stories[0].session, s->save)) < 0) exit_status = kr_report("generate", status);
  for (int i = 0; i < n; i++) krait_lm_session_close(&stories[i].session);
  krait_lm_close(&lm);
  krait_ctx_close(&ctx);
  return exit_status;
}

/* ---- prompts ---- */

/* Lines of a text, which is changed; an empty line is no prompt. */
static int cut_lines(const settings *s, char *text, size_t n, story *stories, int *n_stories) {
  char *end = text + n;
  for (char *line = text, *next; line < end; line = next) {
    char *stop = memchr(line, '\n', (size_t)(end - line));
    next = stop ? stop + 1 : end;
    if (!stop) stop = end;
    *stop = 0;
    if (stop > line && stop[-1] == '\r') *--stop = 0;
    if (stop == line) continue;
    if (*n_stories == MOST_PROMPTS) return kr_usage_error("generate", "%s has more than %d prompts", s->file, MOST_PROMPTS);
    stories[(*n_stories)++] = (story){.prompt = line, .n_prompt = (size_t)(stop - line)};
  }
  return *n_stories ? -1 : kr_usage_error("generate", "%s has no prompts, one a line", s->file);
}

static int run(const settings *s, char **operands, int n_operands) {
  static story stories[MOST_PROMPTS];
  int n = 0, exit_status = -1;
  char *text = NULL;
  size_t n_bytes = 0;
  const int is_stdin = n_operands > 1;
  if (s->file || is_stdin) exit_status = kr_text_read("generate", is_stdin ? "-" : s->file, &text, &n_bytes);
  if (exit_status < 0 && s->file) exit_status = cut_lines(s, text, n_bytes, stories, &n);
  else if (exit_status < 0) stories[n++] = (story){.prompt = is_stdin ? text : s->prompt ? s->prompt : "", .n_prompt = is_stdin ? n_bytes : s->prompt ? strlen(s->prompt) : 0};
  if (exit_status < 0) exit_status = run_model(s, operands[0], stories, n);
  for (int i = 0; i < n; i++) free(stories[i].text);
  free(text);
  return exit_status;
}

static int check_settings(const settings *s, char **operands, int n_operands) {
  if (n_operands > 1 && strcmp(operands[1], "-") != 0) return kr_usage_error("generate", "'%s' after the model: a prompt is given with -p, or '-' for standard input", operands[1]);
  if ((s->prompt != NULL) + (s->file != NULL) + (n_operands > 1) > 1) return kr_usage_error("generate", "-p, --file and '-' are three ways to give prompts; take one");
  if (!s->prompt && !s->file && n_operands < 2 && !s->load) return kr_usage_error("generate", "no prompt; give -p TEXT, --file FILE or '-' for standard input");
  if (s->file && s->save) return kr_usage_error("generate", "--save-state keeps the state of one text; --file has several");
  if (s->chat && s->load) return kr_usage_error("generate", "--chat begins a conversation; --load-state goes on with one");
  const kr_outputs_rule rule = {.verb = "generate", .read_too = &s->load, .n_read_too = 1, .force = s->force};
  return s->save ? kr_output_check(&rule, operands[0], s->save) : -1;
}

int cmd_generate(int argc, char **argv) {
  int first;
  settings s = {.n = 128};
  const kr_option options[] = {
      KR_TEXT("prompt", 'p', "TEXT", &s.prompt, "the text to go on from"),
      KR_TEXT("file", 0, "FILE", &s.file, "a prompt a line, all at once; prints a line for each"),
      KR_SWITCH("chat", 0, &s.chat, "the prompt is what a user says, for models with Qwen2's chat template"),
      KR_WHOLE("tokens", 'n', "N", &s.n, 0, 1 << 30, "generate at most N tokens (default: 128)"),
      KR_REAL("temperature", 0, "T", &s.temperature, 0, 1000, "0 takes the likeliest token (default); 1 draws as the model says, more is bolder"),
      KR_WHOLE("top-k", 0, "K", &s.top_k, 0, 1 << 30, "draw from the K likeliest tokens (default: 0, all)"),
      KR_REAL("top-p", 0, "P", &s.top_p, 0, 1, "draw from the fewest tokens whose probability reaches P (default: 0, all)"),
      KR_REAL("min-p", 0, "P", &s.min_p, 0, 1, "leave out tokens less than P times as likely as the likeliest (default: 0)"),
      KR_REAL("repetition-penalty", 0, "R", &s.penalty, 0, 1000, "make tokens that were there before less likely: 1.1 a little (default: 0, no)"),
      KR_WHOLE("seed", 0, "N", &s.seed, 0, 9e15, "of the draws (default: 0); the same seed gives the same text"),
      KR_TEXT("stop", 0, "TEXT", &s.stop, "end before TEXT"),
      KR_TEXT("save-state", 0, "FILE", &s.save, "keep what was read and generated: a file whose size does not depend on the text's"),
      KR_TEXT("load-state", 0, "FILE", &s.load, "go on from such a file; -p then comes behind it"),
      KR_SWITCH("force", 'f', &s.force, "replace the file of --save-state where it exists"),
      KR_TEXT("tokenizer", 0, "FILE", &s.tokenizer, "tokenizer.json (default: the one beside the weights)"),
      KR_SWITCH("json", 0, &s.as_json, "print one JSON object per prompt, when all are done"),
      KR_RUN_OPTIONS(&s.run),
  };
  const kr_verb verb = {"generate", "MODEL [-]",
                        "Goes on with a text: tokens appear as they are made, rates on standard error. MODEL is a folder with config.json, weights (safetensors, in one file or several, or "
                        "pytorch_model.bin) and tokenizer.json, or a weights file beside the other two; Mamba, Mamba-2, FalconMamba and Qwen2. '-' reads the prompt from standard input.",
                        options, KR_N(options), 1, 2};
  int exit_status = kr_args_read(&verb, argc, argv, &first);
  if (exit_status < 0) exit_status = check_settings(&s, argv + first, argc - first);
  if (exit_status >= 0) return exit_status;
  kr_catch_signals(verb.name);
  return run(&s, argv + first, argc - first);
}
