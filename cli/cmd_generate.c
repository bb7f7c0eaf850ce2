/* cmd_generate.c: krait generate: collects the prompts, prints the text as it is generated, and reports how fast it
 * was. Prompts of a file are decoded together, as many as fit; when one has ended, the next takes its place. */
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
#include "generate/lm_describe.h"
#include "texts.h"

typedef struct settings {
  const char *prompt, *file, *save, *load, *tokenizer, *chat_format, *system;
  cli_telling telling;
  int chat, as_json, force, no_config;
  const char *dtype, *state_dtype;
  cli_run run;
} settings;

typedef struct work {
  settings *s;
  krait_lm *lm;
  cli_decoding *all; /* in the order of the file */
  int64_t n, n_begun, n_printed;
  cli_decoding *open[CLI_MOST_DECODED];
  int n_open, most_open;
  int64_t n_read, n_drawn; /* tokens of all prompts, generated ones */
  double start_s, read_s, first_s; /* the beginning, the time for all prompts, until the first token */
} work;

/* ---- results ---- */

static double per_second(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

static void print_generate_rates(const work *w) {
  const double generate_s = cli_now_s() - w->start_s - w->read_s;
  fflush(stdout); /* the text comes before the rates when both go to the same place */
  fprintf(cli_err(),
          "prompt: %lld tokens in %.3f s (%.1f/s); time to first token %.3f s; generated %lld in %.3f s (%.1f/s)\n",
          (long long)w->n_read, w->read_s, per_second((double)w->n_read, w->read_s), w->first_s, (long long)w->n_drawn,
          generate_s, per_second((double)w->n_drawn, generate_s));
}

static json_t *ids_json(const int32_t *ids, int64_t n) {
  json_t *list = json_array();
  for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
  return list;
}

static json_t *decoding_json(const work *w, const cli_decoding *o) {
  json_t *line = w->s->file ? json_pack("{s:I}", "line", (json_int_t)(o - w->all + 1)) : json_object();
  const int32_t *ids = krait_lm_ids(o->session);
  if (w->s->telling.as_ids) {
    json_object_set_new(line, "prompt", ids_json(ids + o->n_loaded, o->n_read - o->n_loaded));
    json_object_set_new(line, "ids", ids_json(ids + o->n_read, o->n_drawn));
  } else {
    json_object_set_new(line, "prompt", cli_json_bytes(o->prompt, o->n_prompt));
    json_object_set_new(line, "text", cli_json_bytes(o->text, o->n_text));
  }
  json_t *rest = json_pack("{s:I, s:I, s:s, s:o, s:o, s:o}", "prompt_tokens", (json_int_t)o->n_read, "tokens",
                           (json_int_t)o->n_drawn, "stop_reason", o->reason, "read_s",
                           cli_json_real(o->read_s - o->start_s), "first_token_s",
                           cli_json_real(o->first_s - o->start_s), "generate_s", cli_json_real(o->end_s - o->read_s));
  if (o->logprobs) json_object_set(line, "logprobs", o->logprobs);
  json_object_update(line, rest);
  json_decref(rest);
  return line;
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

static void free_text(cli_decoding *o) {
  json_decref(o->logprobs);
  o->logprobs = NULL;
  free(o->text);
  o->text = NULL;
  o->n_text = o->capacity = 0;
}

/* Lines are printed in the order of the file: a text waits for those before it. */
static void print_lines(work *w) {
  for (; w->n_printed < w->n_begun && w->all[w->n_printed].reason; w->n_printed++) {
    cli_decoding *o = &w->all[w->n_printed];
    print_generate_line(o->text, o->n_text);
    free_text(o);
  }
  fflush(stdout);
}

/* A text that has ended: prints it, unless it was streamed, and gives its session up. */
static int end_text(work *w, cli_decoding *o) {
  const settings *s = w->s;
  int32_t status = KRAIT_OK;
  int exit_status = -1;
  if (s->as_json) {
    if (cli_print_json("generate", decoding_json(w, o), JSON_COMPACT | JSON_REAL_PRECISION(6))) exit_status = 1;
    fflush(stdout);
  }
  if (exit_status < 0 && s->save && (status = krait_lm_save(o->session, s->save)) < 0)
    exit_status = cli_report("generate", status);
  if (o->n_drawn && (w->first_s == 0 || o->first_s - w->start_s < w->first_s)) w->first_s = o->first_s - w->start_s;
  w->n_drawn += o->n_drawn;
  krait_lm_session_close(&o->session);
  if (s->as_json) free_text(o);
  else if (s->file) print_lines(w);
  else if (o->n_text == 0 || o->text[o->n_text - 1] != '\n') putchar('\n');
  return exit_status;
}

/* ---- the work ---- */

/* Names the line of the file that failed. A chat template that is not known is no failed work. */
static int report_prompt(const work *w, const cli_decoding *o, int32_t status) {
  char text[1024];
  if (w->s->file)
    snprintf(text, sizeof text, "%s: line %lld: %s", w->s->file, (long long)(o - w->all + 1), krait_error_detail());
  else snprintf(text, sizeof text, "%s", krait_error_detail());
  const int exit_status = cli_report_call("generate", status, text);
  return status == KRAIT_ERR_UNSUPPORTED ? 2 : exit_status;
}

static int read_ids(const work *w, cli_decoding *o) {
  char label[1024] = "the prompt";
  int32_t *ids;
  int64_t n;
  if (w->s->file) snprintf(label, sizeof label, "%s: line %lld", w->s->file, (long long)(o - w->all + 1));
  const int exit_status = cli_ids_parse("generate", label, o->prompt, &ids, &n);
  if (exit_status >= 0) return exit_status;
  const int32_t status = krait_lm_prefill_ids(o->session, ids, n);
  free(ids);
  return status < 0 ? report_prompt(w, o, status) : -1;
}

static int read_prompt(const work *w, cli_decoding *o) {
  const settings *s = w->s;
  if (s->telling.as_ids) return read_ids(w, o);
  const krait_lm_message messages[] = {{"system", s->system}, {"user", o->prompt}};
  const int32_t status = s->chat && s->system ? krait_lm_chat(o->session, messages, 2)
                                              : krait_lm_prefill(o->session, o->prompt, o->n_prompt,
                                                                 s->chat ? KRAIT_LM_CHAT : 0);
  return status < 0 ? report_prompt(w, o, status) : -1;
}

static int begin_text(work *w, cli_decoding *o) {
  const settings *s = w->s;
  krait_lm_sampling own = cli_telling_sampling(&s->telling);
  own.seed += (uint64_t)(o - w->all);
  o->start_s = cli_now_s();
  int32_t status = krait_lm_session_open(w->lm, &own, &o->session);
  if (status >= 0 && s->load) status = krait_lm_load(o->session, s->load);
  if (status < 0) return report_prompt(w, o, status);
  o->n_loaded = krait_lm_n_tokens(o->session), o->lm = w->lm;
  const int is_empty = s->file && o->n_prompt == 0, exit_status = is_empty ? -1 : read_prompt(w, o);
  if (exit_status >= 0) return exit_status;
  o->n_read = krait_lm_n_tokens(o->session);
  o->reason = is_empty ? "empty" : s->telling.n == 0 ? "length" : NULL;
  o->read_s = o->first_s = o->end_s = cli_now_s();
  w->n_read += o->n_read - o->n_loaded;
  w->read_s += o->read_s - o->start_s;
  return -1;
}

/* Begins as many texts as there are places. */
static int fill_places(work *w) {
  while (w->n_open < w->most_open && w->n_begun < w->n) {
    cli_decoding *o = &w->all[w->n_begun++];
    int exit_status = begin_text(w, o);
    if (exit_status < 0 && o->reason) exit_status = end_text(w, o);
    else w->open[w->n_open++] = o;
    if (exit_status >= 0) return exit_status;
  }
  return -1;
}

static int step_places(work *w, int is_shown) {
  const int exit_status = cli_decode_step("generate", &w->s->telling, w->open, w->n_open, is_shown);
  if (exit_status >= 0) return exit_status;
  int n = 0;
  for (int i = 0; i < w->n_open; i++) {
    cli_decoding *o = w->open[i];
    if (!o->reason) w->open[n++] = o;
    else if (end_text(w, o) >= 0) return 1;
  }
  w->n_open = n;
  return -1;
}

static int tell_texts(work *w) {
  const settings *s = w->s;
  const int is_shown = !s->as_json && !s->file;
  w->start_s = cli_now_s();
  for (int is_first = 1; w->n_begun < w->n || w->n_open; is_first = 0) {
    int exit_status = fill_places(w);
    /* what was generated until Ctrl-C is saved or printed */
    if (exit_status < 0 && is_first && (s->save || s->as_json || s->file)) cli_let_interrupt_ask();
    if (exit_status < 0 && cli_decode_must_end()) break;
    if (exit_status < 0 && w->n_open) exit_status = step_places(w, is_shown);
    if (exit_status >= 0) return exit_status;
  }
  for (int i = 0; i < w->n_open; i++) {
    w->open[i]->reason = "interrupted";
    w->open[i]->end_s = cli_now_s();
    const int exit_status = end_text(w, w->open[i]);
    if (exit_status >= 0) return exit_status;
  }
  if (!s->as_json && !cli_is_quiet() && !cli_decode_must_end()) print_generate_rates(w);
  return 0;
}

static int say_stopped(const settings *s) {
  if (s->save)
    fprintf(cli_err(), "krait generate: stopped; the state of what was read and generated is in %s\n", s->save);
  else
    fprintf(cli_err(), "krait generate: stopped; the text generated so far has been printed\n");
  return 130;
}

static void take_model_defaults(work *w) {
  krait_lm_sampling defaults = {.size = sizeof defaults};
  int64_t n_tokens = 0;
  krait_lm_defaults(w->lm, &defaults, &n_tokens);
  cli_telling_fill(&w->s->telling, &defaults, n_tokens ? n_tokens : 128);
}

/* How many texts are decoded together: as many as memory has room for. A prompt has at most a token per byte. */
static int count_places(work *w, const krait_ctx *ctx, const char *path) {
  size_t longest = 0;
  int64_t n = 1;
  for (int64_t i = 0; i < w->n; i++) longest = w->all[i].n_prompt > longest ? w->all[i].n_prompt : longest;
  const int64_t n_tokens = (int64_t)longest + (w->s->telling.n < 0 ? 1024 : w->s->telling.n);
  const int64_t most = w->n < CLI_MOST_DECODED ? w->n : CLI_MOST_DECODED;
  const int32_t status = most > 1 ? kr_lm_count_places(ctx, path, n_tokens, most, &n) : KRAIT_OK;
  w->most_open = (int)n;
  return status < 0 ? cli_report("generate", status) + 1 : -1;
}

/* 0: as stored. */
static int32_t dtype_of(const settings *s) {
  if (!s->dtype || strcmp(s->dtype, "as-stored") == 0) return 0;
  return strcmp(s->dtype, "float16") == 0 ? KRAIT_F16 : strcmp(s->dtype, "bfloat16") == 0 ? KRAIT_BF16 : -1;
}

static void say_faster_dtype(int32_t dtype) {
  if (dtype)
    fprintf(cli_err(),
            "krait generate: %s a token takes about half the time (--dtype as-stored: keep the weights, without this "
            "line)\n",
            dtype == KRAIT_F16 ? "this GPU's tensor cores take float16 alone; with --dtype float16"
                               : "these weights are float32; with --dtype float16 or bfloat16");
}

static int run_model(work *w, const char *path) {
  const settings *s = w->s;
  krait_ctx *ctx = NULL;
  int exit_status = cli_run_open_ctx("generate", &s->run, &ctx);
  if (exit_status >= 0) return exit_status;
  if ((exit_status = count_places(w, ctx, path)) >= 0) {
    krait_ctx_close(&ctx);
    return exit_status;
  }
  const krait_lm_options options = {.size = sizeof options,
                                    .n_sessions = w->most_open,
                                    .path = path,
                                    .tokenizer_path = s->tokenizer,
                                    .no_tokenizer = s->telling.as_ids,
                                    .chat_format = s->chat_format,
                                    .no_generation_config = s->no_config,
                                    .dtype = dtype_of(s),
                                    .narrow_states = s->state_dtype && strcmp(s->state_dtype, "weights") == 0,
                                    .wide_keys = s->state_dtype && strcmp(s->state_dtype, "float32") == 0};
  const int32_t status = krait_lm_open(ctx, &options, &w->lm);
  if (status >= 0 && !s->dtype && !cli_is_quiet()) say_faster_dtype(krait_lm_faster_dtype(w->lm));
  if (status >= 0) take_model_defaults(w);
  exit_status = status >= 0                       ? tell_texts(w)
                : status == KRAIT_ERR_ARGUMENT ? cli_report_call("generate", status, krait_error_detail())
                                               : cli_report("generate", status) + 1;
  if (exit_status == 0 && cli_is_asked_to_stop()) exit_status = say_stopped(s);
  for (int64_t i = 0; i < w->n; i++) krait_lm_session_close(&w->all[i].session);
  krait_lm_close(&w->lm);
  krait_ctx_close(&ctx);
  return exit_status;
}

/* ---- prompts ---- */

/* Splits text into lines, in place. */
static int cut_lines(work *w, char *text, size_t n) {
  char *end = text + n;
  size_t n_lines = 1;
  for (const char *at = text; (at = memchr(at, '\n', (size_t)(end - at))) != NULL; at++) n_lines++;
  w->all = calloc(n_lines, sizeof *w->all);
  if (!w->all) return cli_usage_error("generate", "no memory for the %zu lines of %s", n_lines, w->s->file);
  for (char *line = text, *next; line < end; line = next) {
    char *stop = memchr(line, '\n', (size_t)(end - line));
    next = stop ? stop + 1 : end;
    if (!stop) stop = end;
    *stop = 0;
    if (stop > line && stop[-1] == '\r') *--stop = 0;
    w->all[w->n++] = (cli_decoding){.prompt = line, .n_prompt = (size_t)(stop - line)};
  }
  return w->n ? -1 : cli_usage_error("generate", "%s has no prompts (one per line)", w->s->file);
}

static int take_one(work *w, const char *prompt, size_t n) {
  w->all = calloc(1, sizeof *w->all);
  if (!w->all) return cli_usage_error("generate", "no memory for a prompt");
  w->all[w->n++] = (cli_decoding){.prompt = prompt, .n_prompt = n};
  return -1;
}

static int run_generate(settings *s, char **operands, int n_operands) {
  work w = {.s = s};
  int exit_status = -1;
  char *text = NULL;
  size_t n_bytes = 0;
  const int is_stdin = n_operands > 1;
  const char *prompt = s->prompt ? s->prompt : "";
  if (s->file || is_stdin) exit_status = cli_text_read("generate", is_stdin ? "-" : s->file, &text, &n_bytes);
  if (exit_status < 0)
    exit_status = s->file     ? cut_lines(&w, text, n_bytes)
                  : is_stdin ? take_one(&w, text, n_bytes)
                             : take_one(&w, prompt, strlen(prompt));
  if (exit_status < 0) exit_status = run_model(&w, operands[0]);
  for (int64_t i = 0; i < w.n; i++) free_text(&w.all[i]);
  free(w.all);
  free(text);
  return exit_status;
}

static int check_generate_settings(const settings *s, char **operands, int n_operands) {
  if (dtype_of(s) < 0)
    return cli_usage_error("generate", "--dtype is '%s'; give as-stored, float16 or bfloat16", s->dtype);
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
  if (s->telling.as_ids && (s->chat || s->tokenizer || s->telling.stop || s->telling.shows_special))
    return cli_usage_error("generate", "--ids is without text; --chat, --tokenizer, --stop and --special need one");
  if ((s->system || s->chat_format) && !s->chat)
    return cli_usage_error("generate", "--system and --chat-format are for --chat");
  if (s->system && s->load)
    return cli_usage_error("generate", "--system begins a conversation; --load-state continues one");
  if (s->telling.n_logprobs && !s->as_json)
    return cli_usage_error("generate", "--logprobs is printed as JSON; give --json, too");
  const char *const read_too[] = {s->load, s->tokenizer};
  const cli_outputs_rule rule = {
      .verb = "generate", .read_too = read_too, .n_read_too = 2, .model = operands[0], .force = s->force};
  return s->save ? cli_output_check(&rule, operands[0], s->save) : -1;
}

int cmd_generate(int argc, char **argv) {
  int first;
  settings s = {.telling = {CLI_TELLING_UNSET}};
  const cli_option options[] = {
      CLI_TEXT("prompt", 'p', "TEXT", &s.prompt, "the text to continue"),
      CLI_TEXT("file", 0, "FILE", &s.file,
               "one prompt per line, any number, decoded together; prints one line for each line of the file"),
      CLI_SWITCH("chat", 0, &s.chat, "treat the prompt as a user message: the model's chat template goes around it"),
      CLI_TEXT("system", 0, "TEXT", &s.system, "with --chat: the system message"),
      CLI_TEXT("chat-format", 0, "NAME", &s.chat_format,
               "with --chat: chatml, llama3, granite or nemotron instead of the model's chat template"),
      CLI_TELLING_OPTIONS(&s.telling, "the model's, else ", "128"),
      CLI_WHOLE("logprobs", 0, "N", &s.telling.n_logprobs, 1, CLI_MOST_LOGPROBS,
                "with --json: the logarithm of each token's probability, and of the N likeliest ones'"),
      CLI_SWITCH("no-config", 0, &s.no_config,
                 "ignore the model's generation_config.json: its ends of a text, its sampling"),
      CLI_SWITCH("ids", 0, &s.telling.as_ids,
                 "prompts and results are tokens as numbers, such as 5,17,3; no tokenizer is needed"),
      CLI_TEXT("save-state", 0, "FILE", &s.save,
               "save the model's state after the text; of attention layers the keys and values of every token"),
      CLI_TEXT("load-state", 0, "FILE", &s.load, "continue from such a file; -p is then appended to it"),
      CLI_SWITCH("force", 'f', &s.force, "replace the file of --save-state if it exists"),
      CLI_TEXT("tokenizer", 0, "FILE", &s.tokenizer,
               "tokenizer.json or its folder (default: the one beside the weights or in the GGUF file)"),
      CLI_TEXT("dtype", 0, "TYPE", &s.dtype,
               "on a GPU: as-stored (default), float16 or bfloat16: the type that weights get when they are loaded"),
      CLI_TEXT("state-dtype", 0, "TYPE", &s.state_dtype,
               "float32: all states, on a CPU also keys and values, which 16-bit and quantized models keep in float16 "
               "else; weights: on a GPU Mamba's states in the weights' type, as in mamba-ssm"),
      CLI_SWITCH("json", 0, &s.as_json, "print one JSON object per prompt as it ends"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {"generate",
                         "MODEL [-]",
                         "Continues a text with a language model. Tokens are printed as they are generated, rates on "
                         "standard error. MODEL is a folder with config.json, weights (safetensors in one file or "
                         "several, or pytorch_model.bin) and tokenizer.json, a weights file beside the other two, or a "
                         "GGUF file. Architectures: Mamba, Mamba-2, Mamba-3, FalconMamba, Jamba, Bamba, Granite, "
                         "Falcon-H1, Nemotron-H, LFM2, LFM3, Llama, Mistral, Qwen2 to Qwen3.5, OLMo hybrid. '-' reads "
                         "the prompt from standard input.",
                         options,
                         CLI_N(options),
                         1,
                         2,
                         "krait generate mamba-130m-hf -p \"The sea was calm, and\" -n 64"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status < 0) exit_status = check_generate_settings(&s, argv + first, argc - first);
  if (exit_status >= 0) return exit_status;
  cli_catch_signals(verb.name, "");
  return run_generate(&s, argv + first, argc - first);
}
