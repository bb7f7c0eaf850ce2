/* findings.c: from a rule and its values to a finding: sentences, fixes, confidence, order. */
#include <stdlib.h>
#include <string.h>

#include "doc.h"

/* What to say where a value is not known, as after a log text alone. */
static const char *fallback(doc *d, const char *key) {
  static const char *const pairs[][2] = {
      {"file", "the library"}, {"ext", "the extension"}, {"cc", "this GPU"}, {"set", "code for other GPUs"}, {"pkg", "PACKAGE"}, {"pkgv", "PACKAGE"},
      {"range", "another release"}, {"n", "a symbol"}, {"why", "see the evidence"}, {"torch", "another release"}, {"venv", "$VIRTUAL_ENV"},
      {"names", "of some features"}, {"sm", "a lower minor version"}, {"skip", "PACKAGE_SKIP_CUDA_BUILD"}, {"lib", "a library"}, {"x", "x"},
      {"module", "torch"}, {"first", "further up"}, {"need", "a newer version"}, {"have", "an older one"}, {"arch", "this GPU"}, {"nvcc", "here"},
      {"cuda", "another version"}, {"driver", "here"}, {"kernel", "one version"}, {"user", "another"}, {"where", "see the evidence"},
      {"built", "another one"}, {"machine", "another one"}, {"tag", "the wheel"}, {"best", "for this Python"}, {"other", "3"}, {"branch", "580"},
      {"older", "cu118"}, {"older_cuda", "an older one"}, {"ext_abi", "other"}, {"torch_abi", "other"}, {"TRUE", "TRUE or FALSE, as torch has it"},
      {"want", "another version"}, {"family", "FAMILY"}, {"ptx", "newer"}, {"ptx_most", "less"}, {"left", "LEFT-OVER"}, {"symbol", "see the log"}, {"what", "a search path"}, {"fixed", "install the version that it asks for"}, {"of", ""}};
  if (strcmp(key, "build") == 0) return doc_build_command(d, "");
  if (strcmp(key, "index") == 0) return doc_index_for(d, doc_main_cc(d));
  if (strcmp(key, "cc") == 0 && doc_main_cc(d)) return kr_print_cc(d->arena, doc_main_cc(d));
  if (strcmp(key, "torch") == 0 && *d->torch) return d->torch;
  if (strcmp(key, "torch_cuda") == 0) return *d->torch_cuda ? d->torch_cuda : "another version";
  if (strcmp(key, "torch_cuda_tag") == 0) return *d->torch_cuda ? kr_arena_print(d->arena, "%d", kr_parse_tenths(d->torch_cuda)) : "128";
  if (strcmp(key, "python") == 0 && d->python) return kr_arena_print(d->arena, "%d.%d", d->python / 100, d->python % 100);
  if (strcmp(key, "venv") == 0 && *d->prefix) return d->prefix;
  if (strcmp(key, "driver") == 0 && *d->driver) return d->driver;
  if (strcmp(key, "nvcc") == 0 && *d->nvcc) return d->nvcc;
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    if (strcmp(key, pairs[i][0]) == 0) return pairs[i][1];
  return "?";
}

static const char *value_of(doc *d, const char *key, const char *const *keys) {
  for (size_t i = 0; keys && keys[i]; i += 2)
    if (strcmp(keys[i], key) == 0 && keys[i + 1] && *keys[i + 1]) return keys[i + 1];
  return fallback(d, key);
}

static const char *expand(doc *d, const char *text, const char *const *keys) {
  kr_text out = kr_text_begin(d->arena);
  for (const char *p = text; *p;) {
    size_t n = strcspn(p, "{");
    kr_text_add(&out, p, n);
    p += n;
    if (!*p) break;
    size_t length = strcspn(p, "}");
    if (!p[length]) {
      kr_text_print(&out, "%s", p);
      break;
    }
    kr_text_print(&out, "%s", value_of(d, kr_arena_copy(d->arena, p + 1, length - 1), keys));
    p += length + 1;
  }
  return out.at;
}

/* ---- builds ---- */
static const kr_row *package_row(const doc *d, const char *package) { return kr_tables_find(d->tables, "package", package); }

/* The target to build for: the device's own, or the newest of the package's that runs on it; 0: it has none. */
static int build_target(const kr_row *row, int cc) {
  int best = 0;
  if (!row || !*row->column[6] || !cc) return cc;
  for (const char *p = row->column[6]; *p; p += strcspn(p, " "), p += strspn(p, " "))
    if (atoi(p) / 10 == cc / 10 && atoi(p) <= cc && atoi(p) > best) best = atoi(p);
  return best;
}

static const char *fill_archs(doc *d, const char *text, int cc) {
  kr_text out = kr_text_begin(d->arena);
  for (const char *p = text; *p;) {
    if (strncmp(p, "%cc%", 4) == 0) kr_text_print(&out, "%s", cc ? kr_print_cc(d->arena, cc) : "X.Y"), p += 4;
    else if (strncmp(p, "%sm%", 4) == 0) kr_text_print(&out, cc ? "%d" : "XY", cc), p += 4;
    else kr_text_add(&out, p++, 1);
  }
  return out.at;
}

const char *doc_build_command(doc *d, const char *package) {
  const kr_row *row = package_row(d, package);
  int cc = build_target(row, doc_main_cc(d));
  const char *variables = fill_archs(d, row ? row->column[2] : "TORCH_CUDA_ARCH_LIST=\"%cc%\"", cc);
  if (!*package) package = "PACKAGE";
  return kr_arena_print(d->arena, "%s pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall --no-binary %s %s", variables, package, package);
}

const char *doc_no_build(doc *d, const char *package) {
  const kr_row *row = package_row(d, package);
  int cc = doc_main_cc(d);
  if (!cc || build_target(row, cc)) return "";
  return kr_arena_print(d->arena, "no release of %s has code for %s, and its source builds for sm %s only", package, kr_print_cc(d->arena, cc), row->column[6]);
}

static int serves(const doc *d, const kr_row *row, int cc) {
  int first = kr_parse_torch(row->column[5]), last = kr_parse_torch(row->column[6]), covered = !cc;
  if (d->torch_number && (d->torch_number < first || (last && d->torch_number > last))) return 0;
  for (const char *p = row->column[4]; *p; p += strcspn(p, " "), p += strspn(p, " ")) covered |= atoi(p) / 10 == cc / 10 && atoi(p) <= cc;
  return covered;
}

/* The releases newer than this one whose wheels serve the device and the torch, as pip names them: from the oldest, and up to the newest if later
 * ones no longer do. "" when there are none, or nothing is known that could choose. */
static const char *releases_for(doc *d, const char *package, int cc, const char *than) {
  const kr_row *row, *first = NULL, *last = NULL;
  int is_newest = 0;
  if (!cc && !d->torch_number) return "";
  for (size_t at = 0; (row = kr_tables_next(d->tables, "wheel", &at));) {
    if (strcmp(row->column[0], package) != 0 || kr_compare_versions(row->column[1], than) <= 0) continue;
    is_newest = serves(d, row, cc);
    if (is_newest) first = first ? first : row, last = row;
  }
  if (!first) return "";
  if (is_newest) return kr_arena_print(d->arena, "%s>=%s", package, first->column[1]);
  return first == last || !*than ? kr_arena_print(d->arena, "%s==%s", package, last->column[2])
                                 : kr_arena_print(d->arena, "%s>=%s,<=%s", package, first->column[1], last->column[2]);
}

int doc_comes_with_torch(const char *package) { return strcmp(package, "torch") == 0 || strcmp(package, "triton") == 0 || strncmp(package, "nvidia-", 7) == 0; }

/* "" when krait does not replace the package. */
const char *doc_own_dropin(doc *d, const char *package) {
  const kr_row *row = package_row(d, package);
  return row && strcmp(row->column[5], "yes") == 0 ? kr_arena_print(d->arena, "or krait's own %s, which needs no build and runs on every GPU and CPU: python -m krait dropin on --force", package) : "";
}

static void add_build_fixes(doc *d, doc_finding *f, const char *package, const char *version) {
  if (doc_comes_with_torch(package)) {
    doc_add_text(d, &f->fixes, kr_arena_print(d->arena, "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/%s", doc_index_for(d, doc_main_cc(d))));
    doc_add_text(d, &f->fixes, kr_arena_print(d->arena, "which brings its own torch, triton and nvidia packages%s", doc_main_cc(d) && doc_main_cc(d) < 75 ? "; the last that serve this GPU" : ""));
    return;
  }
  const kr_row *row = package_row(d, package);
  int cc = doc_main_cc(d), need = cc ? kr_tables_first_cuda_for(d->tables, kr_arena_print(d->arena, "%d", cc)) : 0;
  const char *releases = row ? releases_for(d, package, cc, version) : "";
  const char *krait = doc_own_dropin(d, package);
  if (*doc_no_build(d, package)) {
    doc_add_text(d, &f->fixes, doc_no_build(d, package));
    doc_add_text(d, &f->fixes, *krait ? krait : "use PyTorch's own attention instead: attn_implementation=\"sdpa\"");
    return;
  }
  /* Its setup.py fetches the wheel for the torch that it can import: an isolated build would see another one. */
  if (*releases) doc_add_text(d, &f->fixes, kr_arena_print(d->arena, "pip install --no-build-isolation --no-deps --no-cache-dir --upgrade \"%s\"", releases));
  doc_add_text(d, &f->fixes, doc_build_command(d, package));
  if (need) {
    const char *found = *d->nvcc ? kr_arena_print(d->arena, "found %s%s", d->nvcc, kr_parse_tenths(d->nvcc) < need ? ", too old: see B01" : "") : "none found here: see B10";
    doc_add_text(d, &f->fixes, kr_arena_print(d->arena, "needs nvcc >= %s (%s), some minutes and memory", kr_print_tenths(d->arena, need), found));
  }
  int major = kr_parse_tenths(d->torch_cuda) / 10;
  if (need && major && need / 10 > major)
    doc_add_text(d, &f->fixes, kr_arena_print(d->arena, "torch is built with CUDA %s: for that nvcc it must be replaced first: pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/%s",
                                              d->torch_cuda, doc_index_for(d, cc)));
  if (*krait) doc_add_text(d, &f->fixes, krait);
}

const char *doc_index_for(doc *d, int cc) {
  int cuda = d->driver_cuda ? d->driver_cuda / 1000 : 0;
  if (cc && cc < 75) return "cu126";
  if (cc >= 103 && cc != 120) return cuda && cuda < 13 ? "cu129" : "cu130";
  return cuda >= 13 ? "cu130" : "cu128";
}

int doc_main_cc(const doc *d) {
  int cc = d->judged_cc;
  for (size_t i = 0; i < d->gpus.n; i++)
    if (!cc) cc = KR_AT(d->gpus, doc_gpu, i)->cc;
  return cc;
}

/* ---- findings ---- */
static int is_repeated(const doc *d, const doc_finding *f) {
  for (size_t i = 0; i < d->findings.n; i++) {
    const doc_finding *other = KR_AT(d->findings, doc_finding, i);
    if (other->rule == f->rule && strcmp(other->file, f->file) == 0 && strcmp(other->says, f->says) == 0) return 1;
  }
  return 0;
}

doc_finding *doc_report(doc *d, const char *id, const doc_file *file, const char *package, const char *const *keys) {
  const kr_rule *rule = kr_tables_rule(d->tables, id);
  if (!rule || kr_arena_failed(d->arena)) return NULL;
  if (!package || !*package) package = file ? file->package : "";
  const char *release = file && *file->package && file->package_version && *file->package_version ? kr_arena_print(d->arena, "%s==%s", file->package, file->package_version) : package;
  const char *own[] = {"file", file ? file->name : "", "ext", file ? file->name : "", "pkg", package, "pkgv", release};
  const char *ordered[64] = {0};
  size_t k = 0;
  for (size_t i = 0; keys && keys[i] && k + 10 < 64; i++) ordered[k++] = keys[i]; /* given values come first: they may be better than the file's */
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) ordered[k++] = own[i];
  doc_finding f = {.rule = rule, .confidence = rule->confidence, .severity = rule->severity, .file = file ? file->path : "", .package = package, .offset = -1,
                   .says = expand(d, rule->says, ordered), .evidence = KR_LIST(const char *), .fixes = KR_LIST(const char *)};
  if (is_repeated(d, &f)) return NULL;
  if (f.severity == KR_ERROR && rule->confidence != 'C' && rule->confidence != 'H') f.severity = KR_WARN;
  for (int i = 0; i < rule->n_fixes; i++) {
    if (file && !*release && strstr(rule->fix[i], "{pkgv}")) doc_add_text(d, &f.fixes, "get it again from where it came");
    else if (strcmp(rule->fix[i], "{build}") == 0) add_build_fixes(d, &f, package, file ? file->package_version : "");
    else doc_add_text(d, &f.fixes, expand(d, rule->fix[i], ordered));
  }
  doc_finding *kept = kr_list_push(d->arena, &d->findings);
  *kept = f;
  return kept;
}

void doc_evidence(doc *d, doc_finding *finding, const char *format, ...) {
  va_list args;
  if (!finding) return;
  va_start(args, format);
  doc_add_text(d, &finding->evidence, kr_arena_vprint(d->arena, format, args));
  va_end(args);
}

/* ---- causes ---- */
static const doc_finding *first_of(const doc *d, const char *id) {
  for (size_t i = 0; i < d->findings.n; i++)
    if (strcmp(KR_AT(d->findings, doc_finding, i)->rule->id, id) == 0) return KR_AT(d->findings, doc_finding, i);
  return NULL;
}

/* Of torch's own libraries or those that come with it; conda's have no package that names them. */
static int is_torchs(const doc *d, const doc_finding *f) {
  const size_t n = strlen(d->torch_lib);
  return doc_comes_with_torch(f->package) || (n && strncmp(f->file, d->torch_lib, n) == 0);
}

static const char *consequence_of(const doc *d, const doc_finding *f, const doc_finding *torch, const doc_finding *driver, const doc_finding *packed) {
  const int is_ours = f->rule->stage == KR_STAGE_IMAGE && *f->rule->id == 'K' && is_torchs(d, f), is_packed = strcmp(f->rule->id, "K11") == 0;
  if (torch && is_ours && f->rule != torch->rule) return "K14: another torch brings others";
  if (driver && is_ours && strcmp(f->rule->id, "K08") == 0) return "D01: a newer driver compiles newer PTX";
  if (driver && is_packed && d->driver_needed >= kr_parse_driver(kr_tables_zstd_driver(d->tables))) return "D01: the driver that it asks for unpacks them";
  return is_packed && is_ours && f != packed && is_torchs(d, packed) ? "the same driver" : NULL;
}

/* A torch without code for the GPU is one trouble, not twenty: its own and NVIDIA's libraries were built for the same GPUs. So is a driver too old. */
void doc_keep_causes(doc *d) {
  const doc_finding *torch = first_of(d, "K14"), *driver = first_of(d, "D01"), *packed = first_of(d, "K11");
  for (size_t i = 0; i < d->findings.n; i++) {
    doc_finding *f = KR_AT(d->findings, doc_finding, i);
    const char *cause = f->severity == KR_INFO ? NULL : consequence_of(d, f, torch, driver, packed);
    if (!cause) continue;
    f->severity = KR_INFO, f->hidden = 1;
    doc_evidence(d, f, "a consequence of %s", cause);
  }
}

static int order_of(const doc_finding *f) {
  int confidence = f->confidence == 'C' ? 0 : f->confidence == 'H' ? 1 : f->confidence == 'M' ? 2 : 3;
  return f->severity * 1000 + confidence * 100 + f->rule->stage * 10;
}

static int compare_findings(const void *a, const void *b) {
  const doc_finding *x = a, *y = b;
  int order = order_of(x) - order_of(y);
  if (!order) order = strcmp(x->rule->id, y->rule->id);
  if (!order) order = strcmp(x->file, y->file);
  return order ? order : strcmp(x->says, y->says);
}

void doc_rank(doc *d) {
  if (d->findings.n) qsort(d->findings.at, d->findings.n, sizeof(doc_finding), compare_findings);
}
