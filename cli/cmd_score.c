/* cmd_score.c: krait score: the perplexity of a text under a language model. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <krait/language.h>

#include "args.h"
#include "cmd.h"
#include "interrupt.h"
#include "progress.h"
#include "output.h"
#include "texts.h"

static int32_t show_score(void *user, int64_t done, int64_t total) { return cli_progress_show(user, done, total); }

static int print_score_line(int as_json, double nats, int64_t n, size_t n_bytes) {
  const double mean = nats / (double)n, bits = nats / log(2) / (double)n_bytes;
  if (as_json)
    return cli_print_json("score",
                          json_pack("{s:o, s:o, s:o, s:I, s:I}", "perplexity", cli_json_real(exp(mean)),
                                    "nats_per_token", cli_json_real(mean), "bits_per_byte", cli_json_real(bits),
                                    "tokens", (json_int_t)n, "bytes", (json_int_t)n_bytes),
                          JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0;
  printf("perplexity %.4f (%.4f nats/token, %.4f bits/byte, %lld tokens)\n", exp(mean), mean, bits, (long long)n);
  return 0;
}

/* Names the text that cannot be scored. */
static int report_text(const char *file, int32_t status) {
  char text[1024];
  if (status != KRAIT_ERR_ARGUMENT) return cli_report("score", status) + 1;
  snprintf(text, sizeof text, "%s: %s", strcmp(file, "-") == 0 ? "standard input" : file, krait_error_detail());
  return cli_report_detail("score", status, text) + 1;
}

static int score(const char *path, const char *tokenizer, const cli_run *run, const char *file, const char *text,
                 size_t n_bytes, int as_json) {
  krait_ctx *ctx = NULL;
  krait_lm *lm = NULL;
  krait_lm_session *session = NULL;
  double nats = 0;
  int64_t n = 0;
  cli_progress progress;
  int exit_status = cli_run_open_ctx("score", run, &ctx);
  if (exit_status >= 0) return exit_status;
  const krait_lm_options options = {
      .size = sizeof options, .path = path, .tokenizer_path = tokenizer, .wide_keys = 1};
  int32_t status = krait_lm_open(ctx, &options, &lm);
  if (status >= 0) status = krait_lm_session_open(lm, NULL, &session);
  cli_progress_begin(&progress, "tokens", NULL);
  const int is_open = status >= 0;
  if (is_open) status = krait_lm_score(session, text, n_bytes, show_score, &progress, &nats, &n);
  cli_progress_end();
  exit_status = status >= 0 ? print_score_line(as_json, nats, n, n_bytes)
                : is_open   ? report_text(file, status)
                            : cli_report("score", status) + 1;
  krait_lm_session_close(&session);
  krait_lm_close(&lm);
  krait_ctx_close(&ctx);
  return exit_status;
}

int cmd_score(int argc, char **argv) {
  int first, as_json = 0;
  const char *tokenizer = NULL;
  cli_run run = {0};
  const cli_option options[] = {
      CLI_TEXT("tokenizer", 0, "FILE", &tokenizer,
               "tokenizer.json or its folder (default: the one beside the weights)"),
      CLI_SWITCH("json", 0, &as_json, "print a JSON object"),
      CLI_RUN_OPTIONS(&run),
  };
  const cli_verb verb = {"score",
                         "MODEL FILE",
                         "Prints the perplexity of a text under a language model: exp of the mean of -ln p over all "
                         "tokens except the first. MODEL is as for krait generate; FILE may be '-'.",
                         options,
                         CLI_N(options),
                         2,
                         2,
                         "krait score mamba-130m-hf text.txt"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  char *text = NULL;
  size_t n_bytes = 0;
  if (exit_status >= 0) return exit_status;
  cli_catch_signals(verb.name, "");
  exit_status = cli_text_read(verb.name, argv[first + 1], &text, &n_bytes);
  if (exit_status < 0) exit_status = score(argv[first], tokenizer, &run, argv[first + 1], text, n_bytes, as_json);
  free(text);
  return exit_status;
}
