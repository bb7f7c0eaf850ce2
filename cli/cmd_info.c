/* cmd_info.c: krait info: describes the program and the machine; krait info FILE: a weights file, and with --graph what
 * the model computes. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "cmd.h"
#include "generate/lm_describe.h"
#include "model_time.h"
#include "output.h"

/* ---- the program ------------------------------------------------------------------------------------------------ */

/* jansson's functions accept NULL and return NULL for it, so running out of memory anywhere ends as a failure here. */
static json_t *info_whole_or_null(json_t *json, int failed) {
  if (!failed) return json;
  json_decref(json);
  return NULL;
}

static json_t *impls_json(int32_t op, uint64_t caps) {
  json_t *impls = json_array();
  int failed = 0;
  for (int32_t impl = 0; impl < krait_op_n_impls(op); impl++) {
    uint64_t needs = krait_op_impl_needs(op, impl);
    char text[256];
    krait_caps_format(needs, text, sizeof text);
    failed |= json_array_append_new(impls, json_pack("{s:s, s:s, s:b}", "name", krait_op_impl_name(op, impl), "needs",
                                                    text, "usable", (needs & caps) == needs));
  }
  return info_whole_or_null(impls, failed);
}

/* The capabilities that implementations may use on this machine: the CPU's, and those of the GPU that a context would
 * use. */
static int32_t machine_caps(uint64_t *caps) {
  krait_ctx *ctx = NULL;
  *caps = krait_cpu_caps();
  const int32_t status = krait_ctx_open(NULL, &ctx);
  if (status == KRAIT_OK) *caps |= krait_ctx_caps(ctx);
  krait_ctx_close(&ctx);
  return status == KRAIT_ERR_NO_MEMORY ? status : KRAIT_OK;
}

static int count_module(json_t *counts, const char *key) {
  return json_object_set_new(counts, key, json_integer(json_integer_value(json_object_get(counts, key)) + 1));
}

/* The number of modules in this build: as PTX for each tier, and as machine code for each compute capability. */
static json_t *device_code_json(void) {
  static const char *const tiers[] = {"base", "turing", "ampere", "hopper"};
  const char *module, *tier, *text;
  int32_t capability;
  json_t *ptx = json_object(), *machine = json_object();
  int failed = 0;
  for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
    failed |= json_object_set_new(ptx, tiers[i], json_integer(0));
  int32_t status = KRAIT_OK;
  for (int32_t i = 0; (status = krait_embedded_ptx(i, &module, &tier, &text)) == KRAIT_OK; i++)
    failed |= count_module(ptx, tier);
  failed |= status == KRAIT_ERR_NO_MEMORY;
  for (int32_t i = 0; krait_embedded_cubin(i, &module, &tier, &capability) == KRAIT_OK; i++) {
    char name[16];
    snprintf(name, sizeof name, "%d.%d", capability / 10, capability % 10);
    failed |= count_module(machine, name);
  }
  return info_whole_or_null(json_pack("{s:o, s:o}", "ptx", ptx, "machine_code", machine), failed);
}

static json_t *program_json(void) {
  char text[256];
  uint64_t caps;
  if (machine_caps(&caps) < 0) return NULL;
  krait_caps_format(caps, text, sizeof text);
  json_t *ops = json_object();
  int failed = 0;
  for (int32_t op = 0; op < krait_n_ops(); op++)
    failed |= json_object_set_new(ops, krait_op_name(op), impls_json(op, caps));
  return info_whole_or_null(json_pack("{s:s, s:s, s:o, s:o}", "version", krait_version(), "caps", text, "device_code",
                                 device_code_json(), "ops", ops),
                       failed);
}

static void print_device_code(const json_t *code) {
  const char *name;
  json_t *n;
  int64_t n_texts = 0;
  printf("device code modules per tier:");
  json_object_foreach(json_object_get(code, "ptx"), name, n) {
    printf(" %s %" JSON_INTEGER_FORMAT, name, json_integer_value(n));
    n_texts += json_integer_value(n);
  }
  if (n_texts == 0) printf(" (built without clang 18 or later: no GPU can be used)");
  json_object_foreach(json_object_get(code, "machine_code"), name, n)
    printf("; as machine code for compute capability %s: %" JSON_INTEGER_FORMAT, name, json_integer_value(n));
  printf("\n");
}

static int print_program(const json_t *info) {
  const char *name;
  json_t *impls, *impl;
  size_t i;
  printf("krait %s\nthis machine: %s\n", krait_version(), json_string_value(json_object_get(info, "caps")));
  print_device_code(json_object_get(info, "device_code"));
  printf(
      "\noperators and their implementations, best first (implementations in brackets need capabilities that this "
      "machine lacks):\n");
  json_object_foreach(json_object_get(info, "ops"), name, impls) {
    printf("  %-24s", name);
    json_array_foreach(impls, i, impl) printf(json_is_true(json_object_get(impl, "usable")) ? " %s" : " [%s]",
                                            json_string_value(json_object_get(impl, "name")));
    printf("\n");
  }
  return 0;
}

/* Writes a text to a file, completely or not at all. Returns 0 or an errno. */
static int write_text(const char *path, const char *text, int replace) {
  char part[4112];
  snprintf(part, sizeof part, "%s.part", path);
  FILE *file = fopen(part, "wx");
  if (!file) return errno;
  int failed = fputs(text, file) < 0 ? errno : 0;
  if (fclose(file) != 0 && !failed) failed = errno;
  if (!failed && (replace ? rename(part, path) : link(part, path)) != 0) failed = errno;
  if (!replace || failed) remove(part);
  return failed;
}

/* Writes each embedded PTX text to FOLDER/MODULE.TIER.ptx. Returns the exit status. */
static int dump_ptx(const char *folder, int replace) {
  const char *module, *tier, *text;
  char path[4096];
  int n = 0;
  int32_t status;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
    const int error = errno;
    fprintf(cli_err(), "krait info: cannot create ");
    cli_print_clean(cli_err(), folder);
    fprintf(cli_err(), ": %s\n", strerror(error));
    return 1;
  }
  for (; (status = krait_embedded_ptx(n, &module, &tier, &text)) == KRAIT_OK; n++) {
    const int length = snprintf(path, sizeof path, "%s/%s.%s.ptx", folder, module, tier);
    const int failed = length < (int)sizeof path ? write_text(path, text, replace) : ENAMETOOLONG;
    if (!failed) continue;
    fprintf(cli_err(), failed == EEXIST ? "krait info: %s exists; %s\n" : "krait info: cannot write %s: %s\n",
            cli_clean(path), failed == EEXIST ? "-f replaces it" : strerror(failed));
    return 1;
  }
  if (status == KRAIT_ERR_NO_MEMORY) return cli_report("info", status);
  printf("%d PTX files written to ", n);
  cli_print_clean(stdout, folder);
  printf("\n");
  return 0;
}

/* ---- a file ----------------------------------------------------------------------------------------------------- */

/* Prints text from the file, padded to width, without control characters. */
static void print_info_text(const char *text, int width) {
  const int n = (int)strlen(text);
  cli_print_clean(stdout, text);
  printf("%*s", n < width ? width - n : 0, "");
}

static int print_pairs(const char *title, const json_t *pairs) {
  const char *key;
  json_t *value;
  if (json_object_size(pairs) == 0) return 0;
  printf("\n%s:\n", title);
  json_object_foreach((json_t *)pairs, key, value) {
    char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text && !json_is_string(value)) return 1;
    printf("  ");
    print_info_text(key, 24);
    printf(" ");
    print_info_text(text ? text : json_string_value(value), 0);
    printf("\n");
    free(text);
  }
  return 0;
}

static void print_tensor(const json_t *tensor) {
  const json_t *shape = json_object_get(tensor, "shape");
  printf("  ");
  print_info_text(json_string_value(json_object_get(tensor, "name")), 56);
  printf(" %-9s (", json_string_value(json_object_get(tensor, "dtype")));
  for (size_t i = 0; i < json_array_size(shape); i++)
    printf("%s%" JSON_INTEGER_FORMAT, i ? ", " : "", json_integer_value(json_array_get(shape, i)));
  printf(")\n");
}

static int print_file(const json_t *info) {
  const json_t *tensors = json_object_get(info, "tensors");
  const char *model = json_string_value(json_object_get(info, "model"));
  printf("format: %s\nmodel: ", json_string_value(json_object_get(info, "format")));
  print_info_text(model ? model : "not stated", 0);
  printf("\nparameters: %" JSON_INTEGER_FORMAT " in %zu tensors\n",
         json_integer_value(json_object_get(info, "n_params")), json_array_size(tensors));
  if (json_object_size(json_object_get(info, "config"))) printf("operators: --graph lists them\n");
  if (print_pairs("configuration", json_object_get(info, "config")) ||
      print_pairs("metadata", json_object_get(info, "metadata")))
    return 1;
  printf("\ntensors:\n");
  for (size_t i = 0; i < json_array_size(tensors); i++) print_tensor(json_array_get(tensors, i));
  return 0;
}

/* ---- a language model's folder ----------------------------------------------------------------------------------- */

static int is_described_folder(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static double number_of(const json_t *info, const char *key) {
  return (double)json_integer_value(json_object_get(info, key));
}

/* The device that a context would use, if the weights fit there. */
static json_t *place_json(const json_t *info) {
  krait_ctx *ctx = NULL;
  char caps[256], name[300] = "cpu";
  if (krait_ctx_open(NULL, &ctx) < 0) return json_string(name);
  const int32_t device = krait_ctx_device(ctx);
  krait_device_info d = {.size = sizeof d};
  krait_caps_format(krait_ctx_caps(ctx), caps, sizeof caps);
  snprintf(name, sizeof name, "cpu (%.200s), %d threads", caps, krait_ctx_n_threads(ctx));
  if (device != KRAIT_DEVICE_CPU && krait_device_read(device - KRAIT_DEVICE_CUDA(0), &d) >= 0) {
    const int fits = number_of(info, "weights_bytes") < 0.95 * (double)d.memory_bytes;
    snprintf(name, sizeof name, "cuda:%d (%.128s)%s", device - KRAIT_DEVICE_CUDA(0), d.name,
             fits ? "" : ", whose memory is too small for the weights: use --device cpu");
  }
  krait_ctx_close(&ctx);
  return json_string(name);
}

static void print_folder(const json_t *info) {
  const json_t *why = json_object_get(info, "why_none");
  printf("model: ");
  print_info_text(json_string_value(json_object_get(info, "model_type")), 0);
  printf(" (family %s)\nlayers: %.0f, width %.0f, vocabulary %.0f\nparameters: %.0f\nweights: %.0f bytes\n",
         json_string_value(json_object_get(info, "family")), number_of(info, "layers"), number_of(info, "width"),
         number_of(info, "vocabulary"), number_of(info, "parameters"), number_of(info, "weights_bytes"));
  printf("a session: %.0f bytes of states, and %.0f for each token, as on a CPU\n",
         number_of(info, "session_bytes"), number_of(info, "token_bytes"));
  if (why) {
    printf("tokenizer: none (");
    print_info_text(json_string_value(why), 0);
    printf(")\n");
  } else {
    printf("tokenizer: %.0f tokens; chat format: %s\n", number_of(info, "tokenizer"),
           json_string_value(json_object_get(info, "chat_format")));
  }
  printf("runs on: ");
  print_info_text(json_string_value(json_object_get(info, "runs_on")), 0);
  printf("\n\n");
}

/* NULL: not a folder, or not a language model's. */
static json_t *language_json(const char *path) {
  json_t *info = NULL;
  if (!is_described_folder(path) || kr_lm_describe(path, &info) < 0) return NULL;
  json_object_set_new(info, "runs_on", place_json(info));
  return info;
}

/* ---- a model's graphs -------------------------------------------------------------------------------------------- */

typedef struct graphs {
  int is_asked, profile;
  cli_run run;
  krait_denoiser_options model;
} graphs;

static void print_info_line(void *user, const char *line) {
  (void)user;
  cli_print_clean(stdout, line);
  printf("\n");
}

static int print_graphs(const graphs *g) {
  krait_ctx *ctx = NULL;
  const int exit_status = cli_run_open_ctx("info", &g->run, &ctx);
  if (exit_status >= 0) return exit_status;
  const int32_t status =
      kr_model_graphs(ctx, &g->model, g->profile ? KR_GRAPHS_PROFILE : 0, print_info_line, NULL);
  const int failed = status < 0 ? cli_report("info", status) + 1 : 0;
  krait_ctx_close(&ctx);
  return failed;
}

/* Options that only --graph has. */
static int has_graph_options(const graphs *g) {
  const cli_run *r = &g->run;
  return g->profile || r->device || r->tier || r->caps || r->n_threads || r->no_fallback || g->model.config_path ||
         g->model.overrides;
}

/* ----------------------------------------------------------------------------------------------------------------- */

int cmd_info(int argc, char **argv) {
  int as_json = 0, force = 0, first;
  const char *ptx_folder = NULL;
  graphs g = {.model.size = sizeof g.model};
  const cli_option options[] = {
      CLI_SWITCH("graph", 0, &g.is_asked,
                 "FILE is a model's file or folder: list its operators, with implementations, bytes and outputs"),
      CLI_SWITCH("profile", 0, &g.profile, "with --graph: run the operators and time each"),
      CLI_TEXT("config", 0, "YAML", &g.model.config_path,
               "with --graph: the model's configuration, if the weights do not contain it"),
      CLI_TEXT("set", 0, "K=V,...", &g.model.overrides, "with --graph: override single values of the configuration"),
      CLI_SWITCH("json", 0, &as_json, "print JSON"),
      CLI_TEXT("dump-ptx", 0, "DIR", &ptx_folder,
               "write the embedded PTX to this folder, one file per module and tier"),
      CLI_SWITCH("force", 'f', &force, "replace existing files of --dump-ptx"),
      CLI_RUN_OPTIONS(&g.run)};
  const cli_verb verb = {
      "info",
      "[FILE|FOLDER]",
      "Without FILE: the version, this machine's capabilities, and the implementations of "
      "every operator. With FILE: the tensors, shapes, configuration and parameter count of a "
      "weights file (safetensors, PyTorch or GGUF), or of the program's own: 'builtin' or "
      "'streaming'; or a language model's folder: its "
      "architecture, sizes, tokenizer and the device that would run it. With --graph: the operators of a model, given "
      "as file "
      "or folder, one per line.",
      options,
      CLI_N(options),
      0,
      1,
      "krait info mamba-130m-hf --graph --profile"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  if (ptx_folder && first < argc) return cli_usage_error(verb.name, "--dump-ptx takes no FILE");
  if (g.is_asked && (first == argc || as_json || ptx_folder))
    return cli_usage_error(
        verb.name, first == argc ? "--graph needs a FILE" : "--graph cannot be combined with --json or --dump-ptx");
  if (!g.is_asked && has_graph_options(&g))
    return cli_usage_error(verb.name, "--profile, --config, --set and the device options need --graph");
  if (force && !ptx_folder) return cli_usage_error(verb.name, "--force needs --dump-ptx");
  if (ptx_folder) return dump_ptx(ptx_folder, force);
  g.model.weights_path = argv[first];
  if (g.is_asked) return print_graphs(&g);
  char *text = NULL;
  int32_t status = first < argc ? krait_weights_describe(argv[first], &text) : KRAIT_OK;
  if (status < 0) return cli_report(verb.name, status);
  json_t *info = text ? json_loads(text, 0, NULL) : program_json();
  krait_text_free(&text);
  json_t *language = first < argc ? language_json(argv[first]) : NULL;
  if (language) json_object_update_missing(info, language);
  if (!as_json && language) print_folder(language);
  json_decref(language);
  if (as_json) return cli_print_json(verb.name, info, JSON_INDENT(2));
  const int failed = !info || (first < argc ? print_file : print_program)(info);
  json_decref(info);
  return failed ? cli_report_detail(verb.name, KRAIT_ERR_NO_MEMORY, "out of memory while printing") : 0;
}
