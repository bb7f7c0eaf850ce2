/* cmd_generate.c: krait generate: collects the prompts, prints the text as it is generated, and reports how fast it
 * was. */
#define _GNU_SOURCE
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <krait/language.h>

#include "args.h"
#include "cmd.h"
#include "inputs.h"
#include "interrupt.h"
#include "output.h"
#include "decode_loop.h"
#include "texts.h"

typedef struct settings {
  const char *prompt, *file, *save, *load, *tokenizer;
  cli_telling telling;
  int chat, as_json, force;
  const char *state_dtype;
  cli_run run;
} settings;

typedef struct rates {
  double start_s, read_s, first_s, end_s;
} rates;

/* ---- the work ---- */

/* Names the prompt of the file that failed. */
static int report_prompt(const settings *s, int i, int n, int32_t status) {
  char text[1024];
  snprintf(text, sizeof text, "%s: prompt %d of %d: %s", s->file, i + 1, n, krait_error_detail());
  return cli_report_call("generate", status, text);
}

static int tell_stories(const settings *s, krait_lm *lm, cli_decoding *stories, int n, int is_shown, rates *r) {
  const krait_lm_sampling sampling = cli_telling_sampling(&s->telling);
  r->start_s = cli_now_s();
  for (int i = 0; i < n; i++) {
    cli_decoding *o = &stories[i];
    krait_lm_sampling own = sampling;
    own.seed += (uint64_t)i;
    int32_t status = krait_lm_session_open(lm, &own, &o->session);
    if (status >= 0 && s->load) status = krait_lm_load(o->session, s->load);
    o->n_loaded = status >= 0 && s->load ? krait_lm_n_tokens(o->session) : 0;
    if (status >= 0) status = krait_lm_prefill(o->session, o->prompt, o->n_prompt, s->chat ? KRAIT_LM_CHAT : 0);
    if (status < 0 && s->file) return report_prompt(s, i, n, status);
    if (status < 0) return cli_report_call("generate", status, krait_error_detail());
    o->n_read = krait_lm_n_tokens(o->session);
    o->reason = s->telling.n == 0 ? "length" : NULL;
  }
  r->read_s = cli_now_s();
  if (s->save || s->as_json || s->file) cli_let_interrupt_ask(); /* what was generated until then is saved or printed */
  const int exit_status = cli_decode_all("generate", &s->telling, stories, n, is_shown, &r->first_s);
  r->end_s = cli_now_s();
  return exit_status;
}

/* ---- results ---- */

static double per_second(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

static void print_generate_rates(const cli_decoding *stories, int n, const rates *r) {
  int64_t n_read = 0, n_drawn = 0;
  for (int i = 0; i < n; i++) n_read += stories[i].n_read - stories[i].n_loaded, n_drawn += stories[i].n_drawn;
  fflush(stdout); /* the text comes before the rates when both go to the same place */
  fprintf(cli_err(),
          "prompt: %lld tokens in %.3f s (%.1f/s); time to first token %.3f s; generated %lld in %.3f s (%.1f/s)\n",
          (long long)n_read, r->read_s - r->start_s, per_second((double)n_read, r->read_s - r->start_s),
          r->first_s - r->start_s, (long long)n_drawn, r->end_s - r->read_s,
          per_second((double)n_drawn, r->end_s - r->read_s));
}

static json_t *story_json(const cli_decoding *o, const rates *r) {
  return json_pack("{s:o, s:o, s:I, s:I, s:s, s:o, s:o, s:o}", "prompt", cli_json_bytes(o->prompt, o->n_prompt),
                   "text", cli_json_bytes(o->text, o->n_text), "prompt_tokens", (json_int_t)o->n_read, "tokens",
                   (json_int_t)o->n_drawn, "reason", o->reason, "read_s", cli_json_real(r->read_s - r->start_s),
                   "first_token_s", cli_json_real(r->first_s - r->start_s), "generate_s",
                   cli_json_real(r->end_s - r->read_s));
}

/* A text on one line, as --file prints it. */
static void print_generate_line(const char *text, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (text[i] == '\n') fputs("\\n", stdout);
    else if (text[i] == '\r') fputs("\\r", stdout);
    else cli_decode_show(text + i, 1);
  }
  putchar('\n');
}

static int print_results(const settings *s, const cli_decoding *stories, int n, const rates *r) {
  int failed = 0;
  for (int i = 0; i < n; i++) {
    if (s->as_json)
      failed |= cli_print_json("generate", story_json(&stories[i], r), JSON_COMPACT | JSON_REAL_PRECISION(6));
    else if (s->file) print_generate_line(stories[i].text, stories[i].n_text);
    else if (stories[i].n_text == 0 || stories[i].text[stories[i].n_text - 1] != '\n') putchar('\n');
  }
  if (!s->as_json && !cli_is_quiet() && !cli_is_asked_to_stop() && !ferror(stdout)) print_generate_rates(stories, n, r);
  return failed ? 1 : 0;
}

static int run_model(const settings *s, const char *path, cli_decoding *stories, int n) {
  krait_ctx *ctx = NULL;
  krait_lm *lm = NULL;
  rates r = {0};
  int exit_status = cli_run_open_ctx("generate", &s->run, &ctx);
  if (exit_status >= 0) return exit_status;
  const krait_lm_options options = {.size = sizeof options,
                                    .n_sessions = n,
                                    .path = path,
                                    .tokenizer_path = s->tokenizer,
                                    .narrow_states = s->state_dtype && strcmp(s->state_dtype, "weights") == 0};
  int32_t status = krait_lm_open(ctx, &options, &lm);
  exit_status =
      status < 0 ? cli_report("generate", status) + 1 : tell_stories(s, lm, stories, n, !s->as_json && !s->file, &r);
  if (exit_status < 0) exit_status = print_results(s, stories, n, &r);
  if (exit_status == 0 && s->save && (status = krait_lm_save(stories[0].session, s->save)) < 0)
    exit_status = cli_report("generate", status);
  if (exit_status == 0 && cli_is_asked_to_stop()) {
    if (s->save)
      fprintf(cli_err(), "krait generate: stopped; the state of what was read and generated is in %s\n", s->save);
    else
      fprintf(cli_err(), "krait generate: stopped; the text generated so far has been printed\n");
    exit_status = 130;
  }
  for (int i = 0; i < n; i++) krait_lm_session_close(&stories[i].session);
  krait_lm_close(&lm);
  krait_ctx_close(&ctx);
  return exit_status;
}

/* ---- prompts ---- */

/* Splits text into lines, in place; empty lines are skipped. */
static int cut_lines(const settings *s, char *text, size_t n, cli_decoding *stories, int *n_stories) {
  char *end = text + n;
  for (char *line = text, *next; line < end; line = next) {
    char *stop = memchr(line, '\n', (size_t)(end - line));
    next = stop ? stop + 1 : end;
    if (!stop) stop = end;
    *stop = 0;
    if (stop > line && stop[-1] == '\r') *--stop = 0;
    if (stop == line) continue;
    if (*n_stories == CLI_MOST_STORIES)
      return cli_usage_error("generate", "%s has more than %d prompts", s->file, CLI_MOST_STORIES);
    stories[(*n_stories)++] = (cli_decoding){.prompt = line, .n_prompt = (size_t)(stop - line)};
  }
  return *n_stories ? -1 : cli_usage_error("generate", "%s has no prompts (one per line)", s->file);
}

static int run_generate(const settings *s, char **operands, int n_operands) {
  static cli_decoding stories[CLI_MOST_STORIES];
  int n = 0, exit_status = -1;
  char *text = NULL;
  size_t n_bytes = 0;
  const int is_stdin = n_operands > 1;
  if (s->file || is_stdin) exit_status = cli_text_read("generate", is_stdin ? "-" : s->file, &text, &n_bytes);
  if (exit_status < 0 && s->file) exit_status = cut_lines(s, text, n_bytes, stories, &n);
  else if (exit_status < 0)
    stories[n++] = (cli_decoding){.prompt = is_stdin    ? text
                                         : s->prompt ? s->prompt
                                                     : "",
                               .n_prompt = is_stdin    ? n_bytes
                                           : s->prompt ? strlen(s->prompt)
                                                       : 0};
  if (exit_status < 0) exit_status = run_model(s, operands[0], stories, n);
  for (int i = 0; i < n; i++) free(stories[i].text);
  free(text);
  return exit_status;
}

static int check_generate_settings(const settings *s, char **operands, int n_operands) {
  if (s->state_dtype && strcmp(s->state_dtype, "float32") != 0 && strcmp(s->state_dtype, "weights") != 0)
    return cli_usage_error("generate", "--state-dtype is '%s'; give float32 or weights", s->state_dtype);
  if (n_operands > 1 && strcmp(operands[1], "-") != 0)
    return cli_usage_error(
        "generate", "unexpected '%s' after the model: give a prompt with -p, or '-' for standard input", operands[1]);
  if ((s->prompt != NULL) + (s->file != NULL) + (n_operands > 1) > 1)
    return cli_usage_error("generate", "-p, --file and '-' are three ways to give prompts; use one");
  if (!s->prompt && !s->file && n_operands < 2 && !s->load)
    return cli_usage_error("generate", "no prompt; give -p TEXT, --file FILE or '-' for standard input");
  if (s->file && s->save)
    return cli_usage_error("generate", "--save-state saves the state of one text; --file has several");
  if (s->chat && s->load)
    return cli_usage_error("generate", "--chat begins a conversation; --load-state continues one");
  const char *const read_too[] = {s->load, s->tokenizer};
  const cli_outputs_rule rule = {
      .verb = "generate", .read_too = read_too, .n_read_too = 2, .model = operands[0], .force = s->force};
  return s->save ? cli_output_check(&rule, operands[0], s->save) : -1;
}

int cmd_generate(int argc, char **argv) {
  int first;
  settings s = {.telling.n = 128};
  const cli_option options[] = {
      CLI_TEXT("prompt", 'p', "TEXT", &s.prompt, "the text to continue"),
      CLI_TEXT("file", 0, "FILE", &s.file, "one prompt per line, run as one batch; prints one line for each"),
      CLI_SWITCH("chat", 0, &s.chat, "treat the prompt as a user message, for models with Qwen2's chat template"),
      CLI_TELLING_OPTIONS(&s.telling, "128"),
      CLI_TEXT("save-state", 0, "FILE", &s.save,
               "save the model's state after the text; of attention layers the keys and values of every token"),
      CLI_TEXT("load-state", 0, "FILE", &s.load, "continue from such a file; -p is then appended to it"),
      CLI_SWITCH("force", 'f', &s.force, "replace the file of --save-state if it exists"),
      CLI_TEXT("tokenizer", 0, "FILE", &s.tokenizer,
               "tokenizer.json or its folder (default: the one beside the weights or in the GGUF file)"),
      CLI_TEXT("state-dtype", 0, "TYPE", &s.state_dtype,
               "on a GPU: float32 (default) or weights: Mamba's states in the weights' type, as in mamba-ssm"),
      CLI_SWITCH("json", 0, &s.as_json, "print one JSON object per prompt when all are done"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {"generate",
                         "MODEL [-]",
                         "Continues a text with a language model. Tokens are printed as they are generated, rates on "
                         "standard error. MODEL is a folder with config.json, weights (safetensors in one file or "
                         "several, or pytorch_model.bin) and tokenizer.json, a weights file beside the other two, or a "
                         "GGUF file. Architectures: Mamba, Mamba-2, FalconMamba and Qwen2. '-' reads the prompt from "
                         "standard input.",
                         options,
                         CLI_N(options),
                         1,
                         2};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status < 0) exit_status = check_generate_settings(&s, argv + first, argc - first);
  if (exit_status >= 0) return exit_status;
  cli_catch_signals(verb.name, "");
  return run_generate(&s, argv + first, argc - first);
}
