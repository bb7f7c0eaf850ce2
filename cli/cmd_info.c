/* cmd_info.c: krait info: the program and the machine; krait info FILE: what a weights file holds. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <krait/model.h>

#include "args.h"
#include "cmd.h"

/* ---- the program ------------------------------------------------------------------------------------------------ */

static json_t *rows_json(int32_t op, uint64_t caps) {
  json_t *rows = json_array();
  for (int32_t row = 0; row < krait_op_n_rows(op); row++) {
    uint64_t needs = krait_op_row_needs(op, row);
    char text[256];
    krait_caps_format(needs, text, sizeof text);
    json_array_append_new(rows, json_pack("{s:s, s:s, s:b}", "name", krait_op_row_name(op, row), "needs", text, "usable",
                                          (needs & caps) == needs));
  }
  return rows;
}

/* What rows may use on this machine: the CPU, and the GPU that a context would take. */
static uint64_t machine_caps(void) {
  krait_ctx *ctx = NULL;
  uint64_t caps = krait_cpu_caps();
  if (krait_ctx_open(NULL, &ctx) == KRAIT_OK) caps |= krait_ctx_caps(ctx);
  krait_ctx_close(&ctx);
  return caps;
}

static void count_module(json_t *counts, const char *key) {
  json_object_set_new(counts, key, json_integer(json_integer_value(json_object_get(counts, key)) + 1));
}

/* How many modules this build holds as PTX for each tier, and as machine code for each compute capability. */
static json_t *device_code_json(void) {
  static const char *const tiers[] = {"base", "ampere", "hopper"};
  const char *module, *tier, *text;
  int32_t capability;
  json_t *ptx = json_object(), *machine = json_object();
  for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++) json_object_set_new(ptx, tiers[i], json_integer(0));
  for (int32_t i = 0; krait_embedded_ptx(i, &module, &tier, &text) == KRAIT_OK; i++) count_module(ptx, tier);
  for (int32_t i = 0; krait_embedded_cubin(i, &module, &tier, &capability) == KRAIT_OK; i++) {
    char name[16];
    snprintf(name, sizeof name, "%d.%d", capability / 10, capability % 10);
    count_module(machine, name);
  }
  return json_pack("{s:o, s:o}", "ptx", ptx, "machine_code", machine);
}

static json_t *program_json(void) {
  char text[256];
  const uint64_t caps = machine_caps();
  krait_caps_format(caps, text, sizeof text);
  json_t *ops = json_object();
  for (int32_t op = 0; op < krait_n_ops(); op++) json_object_set_new(ops, krait_op_name(op), rows_json(op, caps));
  return json_pack("{s:s, s:s, s:o, s:o}", "version", krait_version(), "caps", text, "device_code", device_code_json(), "ops", ops);
}

static void print_device_code(const json_t *code) {
  const char *name;
  json_t *n;
  int64_t n_texts = 0;
  printf("device code, modules for each tier:");
  json_object_foreach(json_object_get(code, "ptx"), name, n) {
    printf(" %s %" JSON_INTEGER_FORMAT, name, json_integer_value(n));
    n_texts += json_integer_value(n);
  }
  if (n_texts == 0) printf(" (built without clang 18 or later: no GPU can be used)");
  json_object_foreach(json_object_get(code, "machine_code"), name, n)
    printf("; as machine code for compute capability %s: %" JSON_INTEGER_FORMAT, name, json_integer_value(n));
  printf("\n");
}

static void print_program(const json_t *info) {
  const char *name;
  json_t *rows, *row;
  size_t i;
  printf("krait %s\nthis machine: %s\n", krait_version(), json_string_value(json_object_get(info, "caps")));
  print_device_code(json_object_get(info, "device_code"));
  printf("\noperators and their rows, best first (those in brackets need what this machine lacks):\n");
  json_object_foreach(json_object_get(info, "ops"), name, rows) {
    printf("  %-24s", name);
    json_array_foreach(rows, i, row) printf(json_is_true(json_object_get(row, "usable")) ? " %s" : " [%s]",
                                            json_string_value(json_object_get(row, "name")));
    printf("\n");
  }
}

/* Each embedded PTX text as FOLDER/MODULE.TIER.ptx. Returns the exit status. */
static int dump_ptx(const char *folder) {
  const char *module, *tier, *text;
  char path[4096];
  int n = 0;
  for (; krait_embedded_ptx(n, &module, &tier, &text) == KRAIT_OK; n++) {
    const int length = snprintf(path, sizeof path, "%s/%s.%s.ptx", folder, module, tier);
    FILE *file = length < (int)sizeof path ? fopen(path, "w") : NULL;
    int failed = !file || fputs(text, file) < 0;
    if (file && fclose(file) != 0) failed = 1;
    if (!failed) continue;
    fprintf(stderr, "krait info: %s: %s\n", path, length < (int)sizeof path ? strerror(errno) : "the name is too long");
    return 1;
  }
  printf("%d texts of device code written to %s\n", n, folder);
  return fflush(stdout) != 0;
}

/* ---- a file ----------------------------------------------------------------------------------------------------- */

/* Text from the file, padded to width; control characters must not reach the terminal. */
static void print_text(const char *text, int width) {
  int n = 0;
  for (; text[n]; n++) putchar((unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n]);
  printf("%*s", n < width ? width - n : 0, "");
}

static void print_pairs(const char *title, const json_t *pairs) {
  const char *key;
  json_t *value;
  if (json_object_size(pairs) == 0) return;
  printf("\n%s:\n", title);
  json_object_foreach((json_t *)pairs, key, value) {
    char *text = json_is_string(value) ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    printf("  ");
    print_text(key, 24);
    printf(" ");
    print_text(text ? text : json_string_value(value), 0);
    printf("\n");
    free(text);
  }
}

static void print_tensor(const json_t *tensor) {
  const json_t *shape = json_object_get(tensor, "shape");
  printf("  ");
  print_text(json_string_value(json_object_get(tensor, "name")), 56);
  printf(" %-9s (", json_string_value(json_object_get(tensor, "dtype")));
  for (size_t i = 0; i < json_array_size(shape); i++)
    printf("%s%" JSON_INTEGER_FORMAT, i ? ", " : "", json_integer_value(json_array_get(shape, i)));
  printf(")\n");
}

static void print_file(const json_t *info) {
  const json_t *tensors = json_object_get(info, "tensors");
  const char *model = json_string_value(json_object_get(info, "model"));
  printf("format: %s\nmodel: ", json_string_value(json_object_get(info, "format")));
  print_text(model ? model : "not stated", 0);
  printf("\nparameters: %" JSON_INTEGER_FORMAT " in %zu tensors\n", json_integer_value(json_object_get(info, "n_params")), json_array_size(tensors));
  print_pairs("configuration", json_object_get(info, "config"));
  print_pairs("metadata", json_object_get(info, "metadata"));
  printf("\ntensors:\n");
  for (size_t i = 0; i < json_array_size(tensors); i++) print_tensor(json_array_get(tensors, i));
}

/* ----------------------------------------------------------------------------------------------------------------- */

static int show(const json_t *info, int as_json, void (*print)(const json_t *)) {
  if (!as_json) print(info);
  else if (json_dumpf(info, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF) return 1;
  return fflush(stdout) != 0 || ferror(stdout);
}

int cmd_info(int argc, char **argv) {
  int as_json = 0, first;
  const char *ptx_folder = NULL;
  const kr_option options[] = {KR_SWITCH("json", 0, &as_json, "print JSON"),
                               KR_TEXT("dump-ptx", 0, "DIR", &ptx_folder, "write the device code inside krait to this folder, one file for each module and tier")};
  const kr_verb verb = {"info", "[FILE]",
                        "Without FILE: version, capabilities of this machine, and the rows of every operator. With FILE: the tensors, shapes, configuration and "
                        "parameter count of a weights file (safetensors or PyTorch).",
                        options, KR_N(options), 0, 1};
  int exit_status = kr_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  if (ptx_folder && first < argc) return kr_usage_error(verb.name, "--dump-ptx takes no FILE");
  if (ptx_folder) return dump_ptx(ptx_folder);
  char *text = NULL;
  int32_t status = first < argc ? krait_weights_describe(argv[first], &text) : KRAIT_OK;
  if (status < 0) return kr_report(verb.name, status);
  json_t *info = text ? json_loads(text, 0, NULL) : program_json();
  krait_text_free(&text);
  int failed = !info || show(info, as_json, first < argc ? print_file : print_program);
  json_decref(info);
  if (failed) fprintf(stderr, "krait info: cannot print: out of memory, or standard output is closed\n");
  return failed;
}
