/* doctor.c: one run, in order: inputs, facts, log, verdicts, diagnoses. */
#include "public_names.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "doc.h"
#include "doc_commands.h"
#include "report.h"
#include "sized.h"
#include "status.h"
#include "zip_file.h"

static int doctor_ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

static int is_pins(const char *path) {
  return doctor_ends_with(path, ".txt") || doctor_ends_with(path, ".in") || doctor_ends_with(path, ".toml");
}

/* A file that was named but cannot be inspected. */
static void refuse_other(const doc *d, const doc_file *file) {
  if (!file || file->kind != KRAIT_FILE_OTHER || !file->bytes || d->found->findings.n) return;
  doc_add_text(d, &d->found->unreadable,
               kr_arena_print(d->arena, "%s is not a library, wheel, archive or GPU code", file->path));
}

static void read_path(doc *d, const char *path) {
  struct stat info;
  if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) doc_read_folder(d, path);
  else if (doctor_ends_with(path, ".whl") && access(path, R_OK) == 0) doc_read_wheel(d, path);
  else if (doc_is_archive(path) && access(path, R_OK) == 0) doc_read_archive(d, path);
  else if (!is_pins(path)) refuse_other(d, doc_inspect_path(d, path));
}

static void read_inputs(doc *d) {
  const krait_doctor_options *o = &d->options;
  for (uint32_t i = 0; i < o->n_paths; i++) read_path(d, o->paths[i]);
  if (o->n_paths || o->log) return;
  doc_find_environment(d);
  d->evidence.is_nowhere = !d->evidence.sites.n;
}

static void set_torch_option(doc *d) {
  if (!d->options.torch) return;
  const char *tag = strstr(d->options.torch, "+cu");
  d->target.torch = d->options.torch;
  d->target.torch_source = "--torch";
  d->target.torch_number = kr_parse_torch(d->options.torch);
  d->target.torch_is_cpu = strstr(d->options.torch, "+cpu") != NULL;
  if (tag) {
    int n = 0;
    for (const char *p = tag + 3; *p >= '0' && *p <= '9' && n < 1000; p++) n = n * 10 + (*p - '0');
    d->target.torch_cuda = kr_print_tenths(d->arena, n);
  }
}

static doc_target no_target(void) {
  return (doc_target){.gpus = KR_LIST(doc_gpu),
                      .driver = "",
                      .driver_source = "",
                      .kernel_driver = "",
                      .user_driver = "",
                      .torch = "",
                      .torch_cuda = "",
                      .torch_source = "",
                      .torch_lib = "",
                      .torch_abi = DOC_ABI_UNKNOWN,
                      .python_source = "",
                      .prefix = "",
                      .nvcc = "",
                      .nvcc_path = "",
                      .env_library_path = "",
                      .env_force_jit = "",
                      .env_disable_jit = "",
                      .env_no_cache = ""};
}

static doc_evidence no_evidence(void) {
  return (doc_evidence){.sites = KR_LIST(const char *),
                        .left_overs = KR_LIST(const char *),
                        .path_files = KR_LIST(const char *),
                        .files = KR_LIST(doc_file),
                        .packages = KR_LIST(doc_package),
                        .owners = KR_LIST(doc_owner),
                        .compilers = KR_LIST(doc_compiler),
                        .builds = KR_LIST(doc_build),
                        .owner = "",
                        .owner_version = ""};
}

static doc_log no_log(void) {
  return (doc_log){.hits = KR_LIST(doc_hit),
                   .names = KR_LIST(const char *),
                   .wheels = KR_LIST(const char *),
                   .files = KR_LIST(const char *),
                   .modules = KR_LIST(const char *),
                   .versions = KR_LIST(const char *),
                   .site = "",
                   .text = "",
                   .source = "",
                   .owner = ""};
}

doc_findings *doc_no_findings(kr_arena *arena) {
  doc_findings *found = kr_arena_alloc(arena, sizeof *found);
  if (found)
    *found = (doc_findings){.findings = KR_LIST(doc_finding),
                            .unreadable = KR_LIST(const char *),
                            .notes = KR_LIST(const char *),
                            .unjudged = KR_LIST(const char *)};
  return found;
}

static doc_lookups *no_lookups(kr_arena *arena) {
  doc_lookups *lookups = kr_arena_alloc(arena, sizeof *lookups);
  if (lookups)
    *lookups = (doc_lookups){.system_libraries = KR_LIST(doc_version),
                             .provided = KR_LIST(doc_provided),
                             .interpreter_rpath = "",
                             .interpreter_origin = "",
                             .needs = KR_LIST(doc_need)};
  return lookups;
}

static doc *new_report(void) {
  doc *d = kr_zalloc(sizeof *d);
  if (!d) return NULL;
  *d = (doc){.arena = kr_arena_open(), .root = "", .target = no_target(), .evidence = no_evidence(), .log = no_log()};
  if (d->arena) d->found = doc_no_findings(d->arena), d->lookups = no_lookups(d->arena);
  if (d->found && d->lookups) return d;
  kr_arena_close(&d->arena);
  kr_free(d);
  return NULL;
}

int32_t doc_open_report(const char *tables, krait_report **report) {
  *report = NULL;
  doc *d = new_report();
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory for a report");
  int32_t status = krait_tables_load(tables, &d->tables);
  if (status < 0) krait_report_close(&d);
  *report = d;
  return status;
}

void krait_report_close(krait_report **report) {
  if (!report || !*report) return;
  krait_tables_close(&(*report)->tables);
  kr_arena_close(&(*report)->arena);
  kr_free(*report);
  *report = NULL;
}

static void read_all_pins(doc *d) {
  for (uint32_t i = 0; i < d->options.n_paths; i++)
    if (is_pins(d->options.paths[i])) doc_read_pins(d, d->options.paths[i]);
}

/* In order; what changes facts, evidence or verdicts stands apart from what only reads them. */
static void judge_and_diagnose(doc *d) {
  static const struct {
    void (*change)(doc *);
    void (*diagnose)(const doc *);
  } steps[] = {{.change = doc_find_missing},
               {.change = doc_choose_variants},
               {.change = doc_judge_all},
               {.diagnose = doc_diagnose_packages},
               {.diagnose = doc_diagnose_archives},
               {.diagnose = doc_diagnose_requirements},
               {.change = doc_diagnose_images},
               {.diagnose = doc_diagnose_compilers},
               {.diagnose = doc_diagnose_symbols},
               {.diagnose = doc_diagnose_libraries},
               {.diagnose = doc_diagnose_driver},
               {.change = read_all_pins},
               {.diagnose = doc_set_unreached_aside},
               {.change = doc_diagnose_log},
               {.diagnose = doc_diagnose_named_torch},
               {.diagnose = doc_keep_causes},
               {.diagnose = doc_rank}};
  for (size_t i = 0; i < sizeof steps / sizeof *steps && !kr_arena_failed(d->arena); i++)
    if (steps[i].change) steps[i].change(d);
    else steps[i].diagnose(d);
}

static int32_t refuse_gpu(const doc *d, const char *name) {
  const char *similar = kr_tables_similar_gpus(d->tables, d->arena, name);
  if (*similar)
    return kr_fail(
        KRAIT_ERR_ARGUMENT,
        "'%.80s' is not a GPU known to the tables of %s; did you mean %s? or give its capability, as in --gpu "
        "12.0",
        name, krait_tables_date(d->tables), similar);
  return kr_fail(KRAIT_ERR_ARGUMENT,
                 "'%.80s' is not a GPU known to the tables of %s; give its capability, as in --gpu 12.0", name,
                 krait_tables_date(d->tables));
}

int32_t krait_doctor_run(const krait_doctor_options *given, krait_report **report) {
  KR_CHECK(report, KRAIT_ERR_ARGUMENT, "report must not be NULL");
  *report = NULL;
  KR_CHECK(given, KRAIT_ERR_ARGUMENT, "options must not be NULL");
  krait_doctor_options taken, *const options = &taken;
  KR_TRY(kr_struct_take("krait_doctor_options", given, sizeof taken, &taken, sizeof taken));
  KR_TRY(doc_open_report(options->tables, report));
  doc *d = *report;
  d->options = taken;
  d->root = options->root && strcmp(options->root, "/") != 0 ? options->root : "";
  int32_t status = KRAIT_OK;
  if (options->gpu && !krait_tables_find_gpu(d->tables, options->gpu))
    status = refuse_gpu(d, options->gpu);
  if (options->driver && !kr_parse_driver(options->driver))
    status =
        kr_fail(KRAIT_ERR_ARGUMENT, "'%s' is not a driver version; give it as in --driver 580.82", options->driver);
  if (options->torch && !kr_parse_torch(options->torch))
    status =
        kr_fail(KRAIT_ERR_ARGUMENT, "'%s' is not a torch version; give it as in --torch 2.8.0+cu128", options->torch);
  if (d->options.machine && strcmp(d->options.machine, "x86_64") != 0 && strcmp(d->options.machine, "aarch64") != 0)
    status = kr_fail(KRAIT_ERR_ARGUMENT, "'%s' is not a supported machine; give x86_64 or aarch64", d->options.machine);
  if (d->options.python && (strncmp(d->options.python, "3.", 2) != 0 || atoi(d->options.python + 2) < 1))
    status =
        kr_fail(KRAIT_ERR_ARGUMENT, "'%s' is not a Python version; give it as in --python 3.11", d->options.python);
  if (d->options.glibc && strncmp(d->options.glibc, "2.", 2) != 0)
    status = kr_fail(KRAIT_ERR_ARGUMENT, "'%s' is not a glibc version; give it as in --glibc 2.35", d->options.glibc);
  if (status == KRAIT_OK && d->options.python)
    d->target.python = 300 + atoi(d->options.python + 2), d->target.python_source = "--python";
  if (status == KRAIT_OK) {
    set_torch_option(d);
    read_inputs(d);
    if (!kr_arena_failed(d->arena)) doc_collect_facts(d);
    if (options->log && !kr_arena_failed(d->arena)) doc_read_log(d, options->log, options->log_bytes);
    judge_and_diagnose(d);
    if (kr_arena_failed(d->arena)) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the report");
  }
  if (status < 0) krait_report_close(report);
  return status;
}

static int count_cuda_files(const doc *d) {
  int n = 0;
  for (size_t i = 0; i < d->evidence.files.n; i++) n += KR_AT(d->evidence.files, doc_file, i)->has_fatbin;
  return n;
}

static size_t n_told(const doc *d) {
  size_t n = 0;
  for (size_t i = 0; i < d->found->findings.n; i++) n += !KR_AT(d->found->findings, doc_finding, i)->hidden;
  return n;
}

int32_t krait_report_exit(const krait_report *d, int32_t strict) {
  if (!d) return 70; /* nothing was learned */
  int errors = 0, warnings = 0, damaged = d->found->unreadable.n > 0;
  for (size_t i = 0; i < d->found->findings.n; i++) {
    const doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    errors += f->severity == KR_ERROR;
    warnings += f->severity == KR_WARN;
    damaged |= strcmp(f->rule->id, "F01") == 0;
  }
  if (damaged) return 3;
  if (errors || (d->log.given && d->log.is_crash && (warnings || !n_told(d))))
    return 1; /* a crash is not a success, even if it is not understood */
  if (d->found->n_unjudged || (!doc_main_cc(d) && (count_cuda_files(d) || d->found->n_pins))) return 4;
  return warnings && strict ? 2 : 0;
}

/* ---- explain ---- */
static const char *doctor_confidence_word(char c) {
  return c == 'C' ? "certain" : c == 'H' ? "high" : c == 'M' ? "medium" : "guess";
}

static void explain_rule(const doc *d, kr_text *text, const kr_rule *rule) {
  enum { INDENT = 11 };
  kr_text_print(text, "%s %s (%s)\n", rule->id, rule->name, doctor_confidence_word(rule->confidence));
  doc_wrap(d, text, "  says", INDENT, rule->says[0], 0);
  doc_wrap(d, text, "  because", INDENT, rule->explain, 0);
  for (int i = 0; i < rule->n_fixes; i++) doc_wrap(d, text, i ? "" : "  fix", INDENT, rule->fix[i], 0);
  for (size_t i = 0; i < rule->logs.n; i++) doc_wrap(d, text, i ? "" : "  log", INDENT, DOC_TEXT(rule->logs, i), 0);
  doc_wrap(d, text, "  source", INDENT, rule->source, 0);
}

int32_t krait_doctor_explain(const char *tables, const char *id, krait_report **report, const char **out) {
  KR_CHECK(id && report && out, KRAIT_ERR_ARGUMENT, "id, report and text must not be NULL");
  KR_TRY(doc_open_report(tables, report));
  doc *d = *report;
  kr_text text = kr_text_begin(d->arena);
  for (size_t i = 0; i < d->tables->rules.n; i++) {
    const kr_rule *rule = KR_AT(d->tables->rules, kr_rule, i);
    if (!*id) doc_wrap(d, &text, kr_arena_print(d->arena, "%s %-23s ", rule->id, rule->name), 28, rule->says[0], 0);
    else if (strcasecmp(rule->id, id) == 0) explain_rule(d, &text, rule);
  }
  *out = text.at;
  if (text.length) return KRAIT_OK;
  krait_report_close(report);
  return kr_fail(KRAIT_ERR_ARGUMENT, "no rule '%s'; krait doctor --explain list lists them all", id);
}

#ifdef KR_FUZZ
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first byte says what the rest is: a file by its name, a log, tables, or an environment's texts between NUL bytes.
 * The machine's facts come from an empty folder. */
enum { FUZZ_FILES = 7, FUZZ_LOG = FUZZ_FILES, FUZZ_TABLES, FUZZ_SITE, N_FUZZ };

static void put_file(const char *path, const uint8_t *data, size_t n) {
  FILE *file = fopen(path, "wb");
  if (!file) return;
  fwrite(data, 1, n, file);
  fclose(file);
}

/* METADATA, WHEEL, RECORD, direct_url.json, torch/version.py, x.pth and a library. */
static void put_site(const char *site, const uint8_t *data, size_t n, int is_end) {
  static const char *const names[] = {"x-1.dist-info/METADATA",
                                      "x-1.dist-info/WHEEL",
                                      "x-1.dist-info/RECORD",
                                      "x-1.dist-info/direct_url.json",
                                      "torch/version.py",
                                      "x.pth",
                                      "a.so",
                                      "x-1.dist-info",
                                      "torch",
                                      ""};
  char path[160];
  for (int i = 9; i >= 7 && !is_end; i--) snprintf(path, sizeof path, "%s/%s", site, names[i]), mkdir(path, 0700);
  for (int i = 0; i < 7; i++) {
    const uint8_t *end = i < 6 && n ? memchr(data, 0, n) : NULL;
    const size_t length = end ? (size_t)(end - data) : n;
    snprintf(path, sizeof path, "%s/%s", site, names[i]);
    if (is_end) unlink(path);
    else put_file(path, data, length);
    data += length + (end != NULL), n -= length + (end != NULL);
  }
  for (int i = 7; i < 10 && is_end; i++) snprintf(path, sizeof path, "%s/%s", site, names[i]), rmdir(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const names[FUZZ_FILES] = {"x-1.0+cu128-cp311-cp311-linux_x86_64.whl",
                                                "x.so",
                                                "requirements.txt",
                                                "pyproject.toml",
                                                "x.fatbin",
                                                "x.a",
                                                "x-1.0.tar"};
  static const char folder[] = "/tmp/krait-fuzz";
  char path[96];
  if (size < 1 || (mkdir(folder, 0700) != 0 && access(folder, W_OK) != 0)) return 0;
  const size_t kind = data[0] % N_FUZZ;
  krait_doctor_options options = {
      .size = sizeof options, .gpu = "12.0", .driver = "570.86", .torch = "2.8.0+cu128", .root = folder, .deep = 1};
  krait_report *report = NULL;
  const char *text = NULL, *const paths[] = {path};
  snprintf(path, sizeof path, "%s/%d-%s", folder, (int)getpid(), kind < FUZZ_FILES ? names[kind] : "site");
  options.paths = paths;
  options.n_paths = kind != FUZZ_LOG && kind != FUZZ_TABLES;
  if (kind < FUZZ_FILES || kind == FUZZ_TABLES) put_file(path, data + 1, size - 1);
  if (kind == FUZZ_SITE) put_site(path, data + 1, size - 1, 0), options.torch = NULL;
  if (kind == FUZZ_TABLES)
    options.tables = path, options.log = "no kernel image is available\nundefined symbol: _ZN3c10x",
    options.log_bytes = strlen(options.log);
  if (kind == FUZZ_LOG) options.log = (const char *)data + 1, options.log_bytes = size - 1;
  if (krait_doctor_run(&options, &report) == KRAIT_OK) {
    krait_report_text(report, 0, 0);
    krait_report_json(report, 0);
    krait_report_plan(report);
    krait_report_issue(report);
  }
  krait_report_close(&report);
  if (kind < FUZZ_FILES && krait_doctor_list(path, &report, &text) == KRAIT_OK) krait_report_close(&report);
  if (kind == FUZZ_SITE) put_site(path, data, 0, 1);
  else unlink(path);
  return 0;
}
#endif
