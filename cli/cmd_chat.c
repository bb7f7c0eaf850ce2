/* cmd_chat.c: krait chat: a conversation, line by line. The session keeps what has been said: each message is read
 * once. Ctrl-C ends an answer; what is there of it remains in the conversation. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <krait/language.h>

#include "args.h"
#include "cmd.h"
#include "decode_loop.h"
#include "inputs.h"
#include "interrupt.h"
#include "line_editor.h"
#include "output.h"

typedef struct settings {
  const char *model, *system, *chat_format, *tokenizer, *load;
  int no_config;
  cli_telling telling;
  cli_run run;
} settings;

static const char commands[] =
    "/reset begins again, /save FILE and /load FILE keep the conversation, /help says this, /quit or Ctrl-D ends; "
    "Ctrl-C ends an answer";

/* ---- messages ---- */

/* -1: go on; else the exit status. */
static int reply_to(const settings *s, const krait_lm *lm, krait_lm_session *session, const char *line) {
  const krait_lm_message messages[] = {{"system", s->system}, {"user", line}};
  const int has_system = s->system && krait_lm_n_tokens(session) == 0;
  cli_decoding text = {.session = session, .lm = lm};
  const int32_t status = krait_lm_chat(session, has_system ? messages : messages + 1, has_system ? 2 : 1);
  if (status == KRAIT_ERR_UNSUPPORTED) return cli_report("chat", status) + 1; /* no message will do better */
  if (status < 0) return cli_report("chat", status), -1;
  cli_let_interrupt_ask_again();
  text.reason = s->telling.n == 0 ? "length" : NULL;
  const int exit_status = cli_decode_text("chat", &s->telling, &text, 1);
  if (text.n_text == 0 || text.text[text.n_text - 1] != '\n') putchar('\n');
  fflush(stdout);
  free(text.text);
  cli_let_interrupt_ask_again();
  return exit_status >= 0 ? exit_status : -1;
}

/* ---- commands ---- */

static void print_note(const char *text) {
  if (!cli_is_quiet()) fprintf(cli_err(), "krait chat: %s\n", text);
}

static int has_name(const char *name, const char *command) {
  if (*name) return 1;
  fprintf(cli_err(), "krait chat: %s needs a file: %s conversation.state\n", command, command);
  return 0;
}

static int save_conversation(const settings *s, krait_lm_session *session, const char *file) {
  const cli_outputs_rule rule = {.verb = "chat", .model = s->model, .force = 1};
  if (!has_name(file, "/save") || cli_output_check(&rule, s->model, file) >= 0) return -1;
  const int32_t status = krait_lm_save(session, file);
  if (status < 0) cli_report("chat", status);
  else print_note("saved");
  return -1;
}

/* -1: go on; 0: the end. */
static int obey(const settings *s, krait_lm_session *session, char *line) {
  char *name = line + strcspn(line, " \t");
  const size_t n = (size_t)(name - line);
  name += strspn(name, " \t");
  name[strcspn(name, "\r\n")] = 0;
  const int is_reset = n == 6 && memcmp(line, "/reset", 6) == 0, is_load = n == 5 && memcmp(line, "/load", 5) == 0;
  if (n == 5 && memcmp(line, "/quit", 5) == 0) return 0;
  if (n == 5 && memcmp(line, "/save", 5) == 0) return save_conversation(s, session, name);
  if (is_load && !has_name(name, "/load")) return -1;
  if (!is_reset && !is_load) return print_note(commands), -1;
  const int32_t status = is_reset ? krait_lm_reset(session) : krait_lm_load(session, name);
  if (status < 0) cli_report("chat", status);
  else print_note(is_reset ? "begun again" : "loaded");
  return -1;
}

/* ---- the conversation ---- */

static int converse(const settings *s, const krait_lm *lm, krait_lm_session *session) {
  int exit_status = -1;
  cli_let_interrupt_ask_again();
  while (exit_status < 0 && !ferror(stdout)) {
    char *line = cli_line_read("> ");
    if (!line) break;
    if (*line == '/') exit_status = obey(s, session, line);
    else if (*line) exit_status = reply_to(s, lm, session, line);
    free(line);
  }
  return exit_status < 0 ? 0 : exit_status;
}

static int run_chat(settings *s) {
  krait_ctx *ctx = NULL;
  krait_lm *lm = NULL;
  krait_lm_session *session = NULL;
  krait_lm_sampling sampling = {.size = sizeof sampling};
  int64_t n_tokens = 0;
  int exit_status = cli_run_open_ctx("chat", &s->run, &ctx);
  if (exit_status >= 0) return exit_status;
  const krait_lm_options options = {.size = sizeof options,
                                    .path = s->model,
                                    .tokenizer_path = s->tokenizer,
                                    .chat_format = s->chat_format,
                                    .no_generation_config = s->no_config};
  int32_t status = krait_lm_open(ctx, &options, &lm);
  if (status >= 0) status = krait_lm_defaults(lm, &sampling, &n_tokens);
  cli_telling_fill(&s->telling, &sampling, n_tokens ? n_tokens : 1024);
  sampling = cli_telling_sampling(&s->telling);
  if (status >= 0) status = krait_lm_session_open(lm, &sampling, &session);
  if (status >= 0 && s->load) status = krait_lm_load(session, s->load);
  exit_status = status < 0 ? cli_report("chat", status) + 1 : converse(s, lm, session);
  krait_lm_session_close(&session);
  krait_lm_close(&lm);
  krait_ctx_close(&ctx);
  return exit_status;
}

int cmd_chat(int argc, char **argv) {
  int first;
  settings s = {.telling = {CLI_TELLING_UNSET}};
  const cli_option options[] = {
      CLI_TEXT("system", 0, "TEXT", &s.system, "the system message"),
      CLI_TEXT("chat-format", 0, "NAME", &s.chat_format,
               "chatml, llama3, granite or nemotron instead of the model's chat template"),
      CLI_TELLING_OPTIONS(&s.telling, "the model's, else ", "1024"),
      CLI_SWITCH("no-config", 0, &s.no_config,
                 "ignore the model's generation_config.json: its ends of a text, its sampling"),
      CLI_TEXT("load-state", 0, "FILE", &s.load, "continue the conversation that /save has written"),
      CLI_TEXT("tokenizer", 0, "FILE", &s.tokenizer,
               "tokenizer.json or its folder (default: the one beside the weights or in the GGUF file)"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {"chat",
                         "MODEL",
                         "A conversation with a language model: each line is a message, and the answer is printed as "
                         "it is generated. MODEL is as for krait generate; it needs a chat template of a known form, "
                         "or --chat-format. /reset begins again, /save FILE and /load FILE keep the conversation, "
                         "/quit or Ctrl-D ends it. Ctrl-C ends an answer.",
                         options,
                         CLI_N(options),
                         1,
                         1,
                         "krait chat Qwen2.5-0.5B-Instruct"};
  const int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  cli_catch_signals(verb.name, "");
  s.model = argv[first];
  return run_chat(&s);
}
