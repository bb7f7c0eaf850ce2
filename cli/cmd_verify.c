/* cmd_verify.c: krait verify: runs a recorded input through the model and compares the result with the recorded
 * output. */
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>

#include <krait/enhance.h>
#include <krait/restore.h>

#include "args.h"
#include "cmd.h"
#include "output.h"
#include "verify.h"

enum { MAX_ROWS = 128 };

typedef struct settings {
  double rtol, atol;
  int as_json;
  cli_run run;
  const char *precision;
  krait_denoiser_options model;
} settings;

/* NaN is never within tolerance. */
static int is_within(const settings *s, const krait_verify_result *row) {
  return row->rel_l2 <= s->rtol && row->max_abs <= s->atol;
}

static void print_verify_table(const settings *s, const krait_verify_result *rows, int32_t n, int all) {
  printf("%-12s %14s %14s\n", "output", "rel. L2 error", "max |error|");
  for (int32_t i = 0; i < n; i++)
    printf("%-12s %14.3e %14.3e%s\n", rows[i].name, rows[i].rel_l2, rows[i].max_abs,
           is_within(s, &rows[i]) ? "" : "   too large");
  printf("%s: rtol %g, atol %g\n", all ? "within tolerance" : "NOT within tolerance", s->rtol, s->atol);
}

static json_t *rows_json(const settings *s, const krait_verify_result *rows, int32_t n, int all) {
  json_t *list = json_array();
  int failed = 0;
  for (int32_t i = 0; i < n; i++)
    failed |= json_array_append_new(
        list, json_pack("{s:s, s:o, s:o, s:b}", "name", rows[i].name, "rel_l2", cli_json_real(rows[i].rel_l2),
                        "max_abs", cli_json_real(rows[i].max_abs), "within", is_within(s, &rows[i])));
  json_t *report = json_pack("{s:b, s:f, s:f, s:o}", "within", all, "rtol", s->rtol, "atol", s->atol, "outputs", list);
  if (!failed) return report;
  json_decref(report);
  return NULL;
}

static int print_verify_rows(const settings *s, const krait_verify_result *rows, int32_t n) {
  int all = 1;
  for (int32_t i = 0; i < n; i++) all &= is_within(s, &rows[i]);
  if (!s->as_json) print_verify_table(s, rows, n, all);
  else if (cli_print_json("verify", rows_json(s, rows, n, all), JSON_INDENT(2)) != 0) return 2;
  return all ? 0 : 1;
}

/* A folder of models: a whole restoration. */
static int verify_folder(const settings *s, const krait_ctx *ctx, const char *golden_path) {
  const krait_restorer_options options = {.size = sizeof options, .precision = s->model.precision,
                                          .path = s->model.weights_path};
  krait_verify_result rows[MAX_ROWS];
  int32_t n = 0;
  const int32_t status = krait_restorer_verify(ctx, &options, golden_path, rows, MAX_ROWS, &n);
  return status < 0 ? cli_report("verify", status) + 1 : print_verify_rows(s, rows, n < MAX_ROWS ? n : MAX_ROWS);
}

static int is_verify_folder(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int verify(const settings *s, const char *golden_path) {
  krait_ctx *ctx = NULL;
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  krait_verify_result rows[MAX_ROWS];
  int32_t n = 0;
  int exit_status = cli_run_open_ctx("verify", &s->run, &ctx);
  if (exit_status >= 0) return exit_status;
  const int is_denoiser = s->model.config_path || s->model.overrides; /* only these have settings to give */
  int is_known = 0;
  int32_t status =
      is_denoiser ? KRAIT_OK : kr_verify_model(ctx, s->model.weights_path, golden_path, rows, MAX_ROWS, &n, &is_known);
  if (status == KRAIT_OK && is_known) exit_status = print_verify_rows(s, rows, n < MAX_ROWS ? n : MAX_ROWS);
  if (status == KRAIT_OK && !is_known && is_verify_folder(s->model.weights_path))
    is_known = 1, exit_status = verify_folder(s, ctx, golden_path);
  if (is_known || status < 0) {
    krait_ctx_close(&ctx);
    return status < 0 ? cli_report("verify", status) + 1 : exit_status;
  }
  status = krait_denoiser_open(ctx, &s->model, &model);
  if (status == KRAIT_OK) status = krait_denoiser_session_open(model, &session);
  if (status == KRAIT_OK) status = krait_verify(session, golden_path, rows, MAX_ROWS, &n);
  exit_status = status < 0 ? cli_report("verify", status) + 1 : print_verify_rows(s, rows, n < MAX_ROWS ? n : MAX_ROWS);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
  krait_ctx_close(&ctx);
  return exit_status;
}

int cmd_verify(int argc, char **argv) {
  int first;
  settings s = {.rtol = 1e-4, .atol = 1e-3, .model.size = sizeof s.model, .model.precision = KRAIT_PRECISION_FP32};
  const cli_option options[] = {
      CLI_REAL("rtol", 0, "R", &s.rtol, 0, 1e9, "largest relative L2 error (default: 1e-4)"),
      CLI_REAL("atol", 0, "A", &s.atol, 0, 1e9, "largest absolute error (default: 1e-3)"),
      CLI_TEXT("config", 0, "YAML", &s.model.config_path,
               "the model's configuration, if the weights do not contain it"),
      CLI_TEXT("set", 0, "K=V,...", &s.model.overrides, "override single values of the configuration"),
      CLI_SWITCH("json", 0, &s.as_json, "print JSON"),
      CLI_PRECISION_OPTION(&s.precision, "fp32"),
      CLI_RUN_OPTIONS(&s.run),
  };
  const cli_verb verb = {
      "verify",
      "WEIGHTS GOLDEN",
      "Runs the input recorded in GOLDEN (a safetensors file, see docs/GOLDEN.md) through the model "
      "and prints the error of each output against the recorded one. WEIGHTS is a file, the folder of "
      "a language model, of Mobile-VideoGPT or of SeedVR's models, or 'builtin' or 'streaming'. Exit status: 0 within "
      "tolerance, 1 not within tolerance, 2 could not run.",
      options,
      CLI_N(options),
      2,
      2,
      "krait verify model.safetensors model.golden.safetensors"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status < 0) exit_status = cli_precision_parse("verify", s.precision, &s.model.precision);
  if (exit_status >= 0) return exit_status;
  s.model.weights_path = argv[first];
  return verify(&s, argv[first + 1]);
}
