/* diagnose_log.c: what a pasted error suggests by itself. A text alone is medium evidence at best, unless the rule says that the
 * text is the evidence; a diagnosis that the bytes made already is not repeated. */
#include <stdlib.h>
#include <string.h>

#include "doc.h"

enum { MAX_KEYS = 24 };

typedef struct hit_keys {
  const char *at[MAX_KEYS + 1];
  size_t n;
} hit_keys;

static void put(hit_keys *keys, const char *name, const char *value) {
  if (keys->n + 2 > MAX_KEYS || !value || !*value) return;
  keys->at[keys->n++] = name;
  keys->at[keys->n++] = value;
}

static const char *taken(const doc_hit *hit, const char *name) {
  for (size_t i = 0; i + 1 < hit->keys.n; i += 2)
    if (strcmp(DOC_TEXT(hit->keys, i), name) == 0) return DOC_TEXT(hit->keys, i + 1);
  return "";
}

static int is(const doc_hit *hit, const char *id) { return strcmp(hit->rule->id, id) == 0; }

static int log_suggests(const doc *d, const char *id) {
  for (size_t i = 0; i < d->log.hits.n; i++)
    if (is(KR_AT(d->log.hits, doc_hit, i), id)) return 1;
  return 0;
}

static int already_found(const doc *d, const char *ids) {
  for (size_t i = 0; i < d->findings.n; i++) {
    const doc_finding *f = KR_AT(d->findings, doc_finding, i);
    if (!f->from_log && !f->hidden && kr_tables_has_word(ids, f->rule->id)) return 1;
  }
  return 0;
}

/* The package that a hit is about: of its own line, the one named last before it, else of the library that the text names last. */
static const char *package_of(const doc *d, const doc_hit *hit) {
  const char *package = doc_package_in(d, hit->line);
  if (!*package) package = hit->near;
  if (hit->rule->stage == KR_STAGE_IMAGE) return package; /* which file fails only bytes can say */
  for (size_t i = d->log.files.n; i-- > 0 && !*package;) package = doc_package_in(d, DOC_TEXT(d->log.files, i));
  return *package || !d->log.names.n ? package : DOC_TEXT(d->log.names, d->log.names.n - 1);
}

static const char *library_of_log(const doc *d) {
  const char *path = d->log.files.n ? DOC_TEXT(d->log.files, d->log.files.n - 1) : "";
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* The text may name a library that has nothing to do with the hit: without code for a GPU is what the bytes say, so there its own line must name it. */
static int is_about_library(const doc *d, const doc_hit *hit) {
  const char *name = library_of_log(d);
  return *name && (strstr(hit->line, name) || hit->rule->stage == KR_STAGE_SYMBOL || hit->rule->stage == KR_STAGE_LIBRARY);
}

static int is_torch_symbol(const char *symbol) {
  return strstr(symbol, "N3c10") || strstr(symbol, "NK3c10") || strstr(symbol, "N2at") || strstr(symbol, "NK2at") || strstr(symbol, "5torch") || strstr(symbol, "6caffe2");
}

static int sm_of(const char *text) { return atoi(strncmp(text, "sm_", 3) == 0 ? text + 3 : text); }

/* Values that need more than the text; 0: the hit is no finding after all. */
static int fill_symbol(doc *d, const doc_hit *hit, hit_keys *keys) {
  int first, last;
  const char *symbol = d->log.symbol ? d->log.symbol : "";
  if (is(hit, "S01")) {
    if (!is_torch_symbol(symbol) || log_suggests(d, "S02")) return 0;
    kr_list one = {.at = &symbol, .n = 1, .item_bytes = sizeof symbol};
    doc_torch_range(d, &one, &first, &last);
    put(keys, "symbol", doc_demangle(d, symbol));
    if (first || last) put(keys, "range", kr_arena_print(d->arena, "%s%s", first ? ">= " : "<= ", kr_print_torch(d->arena, first ? first : last)));
  }
  if (is(hit, "S02")) {
    int old = strstr(symbol, "Ss") != NULL && !strstr(symbol, "cxx11");
    put(keys, "ext_abi", old ? "old" : "new (cxx11)");
    put(keys, "torch_abi", old ? "new (cxx11)" : "old");
    put(keys, "TRUE", old ? "TRUE" : "FALSE");
  }
  if (is(hit, "S03") && !log_suggests(d, "S01")) return 0;
  return 1;
}

static int fill_build(doc *d, const doc_hit *hit, hit_keys *keys) {
  const char *arch = taken(hit, "arch");
  int sm = sm_of(arch), need = kr_tables_first_cuda_for(d->tables, strncmp(arch, "sm_", 3) == 0 ? arch + 3 : arch);
  if (is(hit, "B01") && sm < 75) return 0;
  if (is(hit, "B02") && sm >= 75) return 0;
  if (is(hit, "B01") || is(hit, "B02")) put(keys, "arch", kr_arena_print(d->arena, "%d.%d%s", sm / 10, sm % 10, strpbrk(arch, "af") ? strpbrk(arch, "af") : ""));
  if (is(hit, "B10")) need = doc_main_cc(d) ? kr_tables_first_cuda_for(d->tables, kr_arena_print(d->arena, "%d", doc_main_cc(d))) : 128;
  if (is(hit, "B01") && (kr_parse_tenths(d->log.nvcc) || kr_parse_tenths(d->nvcc) >= need)) /* this machine's need not be the one that failed */
    put(keys, "nvcc", *d->log.nvcc ? d->log.nvcc : "of the log");
  if (need) put(keys, "need", kr_print_tenths(d->arena, need)), put(keys, "need_dash", kr_arena_print(d->arena, "%d-%d", need / 10, need % 10));
  if (is(hit, "B07") && !kr_tables_has_word("torch packaging wheel", taken(hit, "module"))) return 0;
  if (is(hit, "B08")) put(keys, "first", d->log.first_error ? kr_arena_print(d->arena, "\"%.60s\"", d->log.first_error) : "further up, outside of this text");
  return 1;
}

static int fill_library(doc *d, const doc_hit *hit, hit_keys *keys) {
  const char *lib = taken(hit, "lib");
  const kr_row *row = kr_tables_find(d->tables, "soname", lib);
  if (is(hit, "L01")) {
    if (strncmp(lib, "libc10", 6) == 0 || strncmp(lib, "libtorch", 8) == 0 || strncmp(lib, "libcuda.so", 10) == 0) return 0;
    put(keys, "of", doc_major_of(d, row));
    put(keys, "package", row ? row->column[2] : kr_arena_print(d->arena, "the package that brings %s", lib));
  }
  if (is(hit, "L07")) { /* L03 and L04 have their own texts */
    const char *need = taken(hit, "need"), *slash = strrchr(lib, '/');
    if (strncmp(need, "GLIBC", 5) == 0 || strncmp(need, "CXXABI", 6) == 0 || strncmp(need, "GCC_", 4) == 0) return 0;
    put(keys, "lib", slash ? slash + 1 : lib);
  }
  if (is(hit, "L04") && *taken(hit, "need")) put(keys, "need", kr_arena_print(d->arena, "GLIBCXX_%s", taken(hit, "need")));
  if (is(hit, "D01") && *taken(hit, "found")) {
    int found = atoi(taken(hit, "found"));
    put(keys, "driver", kr_arena_print(d->arena, "for CUDA %d.%d", found / 1000, found / 10 % 100));
  }
  if (is(hit, "W01") && *taken(hit, "tag")) {
    krait_wheel_name name = {.size = sizeof name};
    if (krait_wheel_name_parse(taken(hit, "tag"), &name) == KRAIT_OK) put(keys, "why", kr_arena_print(d->arena, "this Python, glibc or machine (it is for %s, %s)", name.python, name.platform));
  }
  return 1;
}

static int fill_image(doc *d, const doc_hit *hit, hit_keys *keys) {
  if (is(hit, "K04")) return 0; /* only bytes can say so */
  if (is(hit, "K14") && *taken(hit, "arch")) {
    int cc = sm_of(taken(hit, "arch"));
    put(keys, "cc", kr_print_cc(d->arena, cc));
    put(keys, "index", doc_index_for(d, cc));
  }
  return 1;
}

static const char *check_for(int stage) {
  if (stage == KR_STAGE_IMAGE) return "to be certain: krait doctor SITE-PACKAGES --gpu NAME reads what every library holds";
  if (stage == KR_STAGE_SYMBOL) return "to be certain: krait doctor SITE-PACKAGES compares the library's names with torch's";
  if (stage == KR_STAGE_DRIVER) return "to be certain: run krait doctor on the machine itself";
  return "to be certain: krait doctor SITE-PACKAGES, or the file itself";
}

static void report_hit(doc *d, const doc_hit *hit, const hit_keys *keys, const char *package) {
  doc_finding *f = doc_report(d, hit->rule->id, NULL, package, keys->at);
  if (!f) return;
  f->from_log = 1;
  f->confidence = hit->rule->log_confidence;
  if (f->severity == KR_ERROR && f->confidence != 'C' && f->confidence != 'H') f->severity = KR_WARN;
  doc_evidence(d, f, "the log: %.300s", hit->line);
  if (d->log.last_frame && is(hit, "K01")) doc_evidence(d, f, "its last Python frame: %s", d->log.last_frame);
  if (d->log.is_frame_torch && is(hit, "K01")) doc_evidence(d, f, "a call of torch: it also reports launches of other libraries that failed before it (K03)");
  if (!*f->package && is(hit, "K01")) {
    f->fixes.n = 0;
    doc_add_text(d, &f->fixes, kr_arena_print(d->arena, "krait doctor --log THIS-TEXT SITE-PACKAGES%s", doc_main_cc(d) ? "" : " --gpu NAME"));
    doc_add_text(d, &f->fixes, "then rebuild the library that it names, or take a newer release");
  }
  if (f->confidence == 'M') doc_evidence(d, f, "%s", check_for(hit->rule->stage));
}

/* B04 is about packages that set their own targets; one finding for each that the line names, or the whole text when the line names none. */
static void report_arch_list(doc *d, const doc_hit *hit) {
  int is_here = *doc_package_in(d, hit->line) != '\0';
  for (size_t i = 0; i < d->log.names.n; i++) {
    const kr_row *row = kr_tables_find(d->tables, "package", DOC_TEXT(d->log.names, i));
    hit_keys keys = {.n = 0};
    if (row && strcmp(row->column[4], "no") == 0 && (!is_here || doc_is_named(row, hit->line))) report_hit(d, hit, &keys, row->column[0]);
  }
}

static void judge_hit(doc *d, const doc_hit *hit) {
  static const struct { const char *id, *by; } explained[] = {
      {"K01", "K01 K02 K03 K04 K05 K06 K07 K09 K10 K14"}, {"S01", "S01 S02"}, {"S02", "S02"}, {"S04", "S04"}, {"K08", "K08"}, {"K09", "K09"}, {"K14", "K14"},
      {"L01", "L01"}, {"L03", "L03"}, {"L04", "L04"}, {"L05", "L05"}, {"D01", "D01"}, {"D02", "D02"}, {"D03", "D03"}, {"D07", "D07"}, {"D08", "D08"}, {"W06", "W06 F01"},
      {"K12", "K12"}, {"S06", "S06"}, {"D09", "D09"}};
  hit_keys keys = {.n = 0};
  const char *package = kr_tables_has_word("K14 K15 D07", hit->rule->id) ? "torch" : package_of(d, hit);
  for (size_t i = 0; i < sizeof explained / sizeof *explained; i++)
    if (is(hit, explained[i].id) && already_found(d, explained[i].by)) return;
  if (is(hit, "B04")) {
    report_arch_list(d, hit);
    return;
  }
  if (!fill_symbol(d, hit, &keys) || !fill_build(d, hit, &keys) || !fill_library(d, hit, &keys) || !fill_image(d, hit, &keys)) return;
  for (size_t i = 0; i + 1 < hit->keys.n; i += 2) put(&keys, DOC_TEXT(hit->keys, i), DOC_TEXT(hit->keys, i + 1));
  if (is_about_library(d, hit)) put(&keys, "ext", library_of_log(d)), put(&keys, "file", library_of_log(d));
  report_hit(d, hit, &keys, package);
}

/* K15 is certain only when the scanned torch runs by a lower minor version. */
void doc_diagnose_log(doc *d) {
  for (size_t i = 0; i < d->log.hits.n; i++) judge_hit(d, KR_AT(d->log.hits, doc_hit, i));
  for (size_t i = 0; i < d->files.n && log_suggests(d, "K15"); i++) {
    const doc_file *file = KR_AT(d->files, doc_file, i);
    if (strncmp(file->name, "libtorch_cuda", 13) != 0 || file->verdict != KRAIT_VERDICT_NATIVE_MINOR) continue;
    for (size_t k = 0; k < d->findings.n; k++)
      if (strcmp(KR_AT(d->findings, doc_finding, k)->rule->id, "K15") == 0) KR_AT(d->findings, doc_finding, k)->confidence = 'H';
  }
}
