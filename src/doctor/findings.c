/* findings.c: from a rule and its values to a finding: the first sentence with all values known, fixes, causes,
 * order. */
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"
#include "report.h"

enum { MAX_KEYS = 64, MAX_NESTED = 3, MAX_ALSO = 6 };

typedef struct values { /* of one finding */
  const doc *d;
  const char *keys[MAX_KEYS + 1];
  const char *package, *version;
} values;

/* ---- templates ---- */
static const char *given(const values *v, const char *key) {
  for (size_t i = 0; v->keys[i]; i += 2)
    if (strcmp(v->keys[i], key) == 0 && v->keys[i + 1] && *v->keys[i + 1]) return v->keys[i + 1];
  return "";
}

/* Values that need not be passed; "" for others. */
static const char *value_of(const values *v, const char *key) {
  const doc *d = v->d;
  const char *text = given(v, key);
  if (*text) return text;
  const size_t n = strlen(key);
  if (n > 5 && strcmp(key + n - 5, "_dash") == 0) { /* 12-8 of 12.8 */
    char *dashed = kr_arena_print(d->arena, "%s", value_of(v, kr_arena_copy(d->arena, key, n - 5)));
    for (char *p = dashed; *p; p++) *p = *p == '.' ? '-' : *p;
    return dashed;
  }
  if (strcmp(key, "toolkit_install") == 0) return "sudo apt install cuda-toolkit-{take_dash}";
  if (strcmp(key, "take") == 0) /* the oldest that NVIDIA's repositories of today have */
    return kr_parse_tenths(value_of(v, "need")) && kr_parse_tenths(value_of(v, "need")) < 118 ? "11.8"
                                                                                              : value_of(v, "need");
  if (strcmp(key, "index") == 0) return doc_index_for(d, doc_main_cc(d));
  if (strcmp(key, "cc") == 0) return doc_main_cc(d) ? kr_print_cc(d->arena, doc_main_cc(d)) : "";
  if (strcmp(key, "gpu_name") == 0) return doc_main_cc(d) ? KR_AT(d->target.gpus, doc_gpu, 0)->name : "";
  if (strcmp(key, "torch") == 0) return d->target.torch;
  if (strcmp(key, "torch_cuda") == 0) return d->target.torch_cuda;
  if (strcmp(key, "python") == 0)
    return d->target.python ? kr_arena_print(d->arena, "%d.%d", d->target.python / 100, d->target.python % 100) : "";
  if (strcmp(key, "driver") == 0) return d->target.driver;
  if (strcmp(key, "driver_cuda") == 0)
    return d->target.driver_cuda
               ? kr_arena_print(d->arena, "%d.%d", d->target.driver_cuda / 1000, d->target.driver_cuda / 10 % 100)
               : "";
  if (strcmp(key, "nvcc") == 0) return d->target.nvcc;
  return doc_command(d, key, v->package, v->version, given(v, "nvcc"));
}

/* The text with its values filled in; NULL when one is unknown. {name?} may be missing; a value may be a template
 * itself. */
static const char *expand_findings(const values *v, const char *text, int depth) {
  kr_text out = kr_text_begin(v->d->arena);
  for (const char *p = text; *p;) {
    size_t n = strcspn(p, "{");
    while (n && p[n] && p[n - 1] == '$') n += 1 + strcspn(p + n + 1, "{"); /* ${X} is the shell's */
    kr_text_add(&out, p, n);
    p += n;
    size_t length = *p ? strcspn(p, "}") : 0;
    if (!*p) break;
    if (!p[length]) return NULL;
    const int may_lack = p[length - 1] == '?';
    const char *value = value_of(v, kr_arena_copy(v->d->arena, p + 1, length - 1 - (size_t)may_lack));
    if (!*value && !may_lack) return NULL;
    if (strchr(value, '{') && depth < MAX_NESTED && (value = expand_findings(v, value, depth + 1)) == NULL) return NULL;
    kr_text_print(&out, "%s", value);
    p += length + 1;
  }
  return out.at;
}

static const char *say(const values *v, const kr_rule *rule) {
  const char *text = NULL;
  for (int i = 0; i < rule->n_says && !text; i++) text = expand_findings(v, rule->says[i], 0);
  return text ? text : rule->name;
}

static void add_fixes(const values *v, doc_finding *f) {
  const doc *d = v->d;
  for (int i = 0; i < f->rule->n_fixes; i++) {
    if (strcmp(f->rule->fix[i], "{build}") == 0) {
      doc_add_build_fixes(d, &f->fixes, v->package, v->version);
      continue;
    }
    const char *text = expand_findings(v, f->rule->fix[i], 0);
    if (text && *text && !doc_has_text(&f->fixes, text)) doc_add_text(d, &f->fixes, text);
  }
}

/* ---- findings ---- */
int doc_main_cc(const doc *d) {
  int cc = d->target.judged_cc;
  for (size_t i = 0; i < d->target.gpus.n; i++)
    if (!cc) cc = KR_AT(d->target.gpus, doc_gpu, i)->cc;
  return cc;
}

/* Two modules called _C.so are told apart by their folders. */
const char *doc_shown_name(const doc_file *file) {
  size_t stem = strcspn(file->name, ".");
  const char *folder = file->name;
  int is_plain = *file->name == '_' || stem <= 3 || strncmp(file->name, "common_ops", 10) == 0 ||
                 strncmp(file->name, "core_cc", 7) == 0;
  if (!is_plain || folder - file->path < 2) return file->name;
  for (folder--; folder > file->path && folder[-1] != '/';) folder--;
  return strstr(folder, "-packages/") || strstr(folder, ".whl/") == folder + strcspn(folder, "/") - 4 ? file->name
                                                                                                      : folder;
}

static int is_repeated_for_findings(const doc *d, const doc_finding *f) {
  size_t *seen =
      kr_names_put(d->arena, &d->found->said, kr_arena_print(d->arena, "%s\1%s\1%s", f->rule->id, f->file, f->says));
  return (*seen)++ != 0;
}

doc_finding *doc_report(const doc *d, const char *id, const doc_file *file, const char *package,
                        const char *const *keys) {
  const kr_rule *rule = kr_tables_rule(d->tables, id);
  if (!rule || kr_arena_failed(d->arena)) return NULL;
  if (!package || !*package) package = file ? file->package : "";
  const char *version = file && file->package_version && strcmp(file->package, package) == 0
                            ? file->package_version
                            : doc_version_of(d, package);
  const char *name = file ? doc_shown_name(file) : "";
  const char *own[] = {"file", name, "ext", name, "pkg", package, "v", version};
  values v = {.d = d, .package = package, .version = version};
  size_t k = 0;
  for (size_t i = 0; keys && keys[i] && k + sizeof own / sizeof *own < MAX_KEYS; i++)
    v.keys[k++] = keys[i]; /* values passed come first: they may be more exact than the file's */
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) v.keys[k++] = own[i];
  doc_finding f = {.rule = rule,
                   .confidence = rule->confidence,
                   .severity = rule->severity,
                   .file = file ? file->path : "",
                   .package = package,
                   .version = version,
                   .offset = -1,
                   .says = say(&v, rule),
                   .evidence = KR_LIST(const char *),
                   .fixes = KR_LIST(const char *)};
  if (is_repeated_for_findings(d, &f)) return NULL;
  if (f.severity == KR_ERROR && rule->confidence != 'C' && rule->confidence != 'H') f.severity = KR_WARN;
  add_fixes(&v, &f);
  if (!f.fixes.n && file && strchr("FW", *rule->id))
    doc_add_text(d, &f.fixes, "download it again from the original source");
  doc_finding *kept = kr_list_push(d->arena, &d->found->findings);
  *kept = f;
  return kept;
}

void doc_add_evidence(const doc *d, doc_finding *finding, const char *format, ...) {
  va_list args;
  if (!finding) return;
  va_start(args, format);
  doc_add_text(d, &finding->evidence, kr_arena_vprint(d->arena, format, args));
  va_end(args);
}

/* ---- causes ---- */
static const doc_finding *first_of(const doc *d, const char *id) {
  for (size_t i = 0; i < d->found->findings.n; i++)
    if (strcmp(KR_AT(d->found->findings, doc_finding, i)->rule->id, id) == 0)
      return KR_AT(d->found->findings, doc_finding, i);
  return NULL;
}

/* About torch's own libraries or those that come with it; conda's are named by no package. */
static int is_torchs(const doc *d, const doc_finding *f) {
  const size_t n = strlen(d->target.torch_lib);
  return doc_comes_with_torch(f->package) || (n && strncmp(f->file, d->target.torch_lib, n) == 0);
}

static const char *consequence_of(const doc *d, const doc_finding *f, const doc_finding *torch,
                                  const doc_finding *driver, const doc_finding *packed) {
  const int is_ours = f->rule->stage == KR_STAGE_IMAGE && *f->rule->id == 'K' && is_torchs(d, f),
            is_packed = strcmp(f->rule->id, "K11") == 0;
  if (torch && !torch->from_log && is_ours && f->rule != torch->rule) return "K14: another torch installs others";
  if (driver && driver->severity != KR_ERROR) driver = NULL; /* a guess explains no certainty away */
  if (driver && is_ours && strcmp(f->rule->id, "K08") == 0) return "D01: a newer driver compiles newer PTX";
  if (driver && is_packed && d->found->driver_needed >= kr_parse_driver(kr_tables_zstd_driver(d->tables)))
    return "D01: the driver that it requires can decompress them";
  return is_packed && is_ours && f != packed && is_torchs(d, packed) ? "the same driver" : NULL;
}

static void set_aside(const doc *d, doc_finding *f, const char *cause) {
  f->severity = KR_INFO, f->hidden = 1;
  doc_add_evidence(d, f, "a consequence of %s", cause);
}

/* A cause counts for its own package; the driver's and a torch without CUDA's for all; in a log, also for what names no
 * package. */
static const char *cause_key(const doc *d, const doc_finding *f, const char *package) {
  return kr_arena_print(d->arena, "%s\1%s\1%d", f->rule->id, package, f->from_log);
}

static int is_for_all(const doc_finding *f) {
  return f->rule->stage == KR_STAGE_DRIVER || strcmp(f->rule->id, "L05") == 0;
}

static int has_cause(const doc *d, const kr_names *causes, const kr_rule *rule, const doc_finding *f) {
  for (int from_log = 0; from_log <= f->from_log; from_log++) {
    const doc_finding probe = {.rule = rule, .from_log = from_log};
    if (kr_names_find(causes, cause_key(d, &probe, "*")) ||
        (*f->package && kr_names_find(causes, cause_key(d, &probe, f->package))))
      return 1;
    if (from_log && (kr_names_find(causes, cause_key(d, &probe, "")) ||
                     (!*f->package && kr_names_find(causes, cause_key(d, &probe, "+")))))
      return 1;
  }
  return 0;
}

/* By the rules' own `explains`. */
static void fold_consequences(const doc *d) {
  kr_names causes = {0};
  for (size_t i = 0; i < d->found->findings.n; i++) {
    const doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    if (!*f->rule->explains || f->hidden || f->severity != KR_ERROR) continue; /* a guess explains no certainty away */
    *kr_names_put(d->arena, &causes, cause_key(d, f, is_for_all(f) ? "*" : f->package)) = i + 1;
    if (f->from_log) *kr_names_put(d->arena, &causes, cause_key(d, f, "+")) = i + 1;
  }
  for (size_t i = 0; i < d->found->findings.n && causes.n; i++) {
    doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    for (size_t k = 0; k < d->tables->rules.n && !f->hidden; k++) {
      const kr_rule *rule = KR_AT(d->tables->rules, kr_rule, k);
      if (rule == f->rule || !kr_tables_has_word(rule->explains, f->rule->id)) continue;
      if (has_cause(d, &causes, rule, f)) set_aside(d, f, rule->id);
    }
  }
}

/* The same problem in several files of one package is one finding, if one command fixes it. */
static void group_by_package(const doc *d) {
  kr_names groups = {0};
  for (size_t i = 0; i < d->found->findings.n; i++) {
    doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    if (f->hidden || f->severity == KR_INFO || !*f->package || !*f->file) continue;
    const char *fix = f->fixes.n ? DOC_TEXT(f->fixes, 0) : "";
    size_t *first = kr_names_put(d->arena, &groups,
                                 kr_arena_print(d->arena, "%s\1%s\1%s\1%d", f->rule->id, f->package, fix, f->severity));
    if (!*first) {
      *first = i + 1;
      continue;
    }
    doc_finding *head = KR_AT(d->found->findings, doc_finding, *first - 1);
    if (head->n_also++ < MAX_ALSO) doc_add_evidence(d, head, "also %s", f->says);
    set_aside(d, f, "the same cause");
  }
  for (size_t i = 0; i < d->found->findings.n; i++) {
    doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    if (f->n_also > MAX_ALSO)
      doc_add_evidence(d, f, "and %d more of its files: --all shows them", f->n_also - MAX_ALSO);
  }
}

/* A torch without code for the GPU is one finding, not twenty: its own and NVIDIA's libraries were built for the same
 * GPUs. So is a driver that is too old. */
void doc_keep_causes(const doc *d) {
  const doc_finding *torch = first_of(d, "K14"), *driver = first_of(d, "D01"), *packed = first_of(d, "K11");
  for (size_t i = 0; i < d->found->findings.n; i++) {
    doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    const char *cause = f->severity == KR_INFO ? NULL : consequence_of(d, f, torch, driver, packed);
    if (cause) set_aside(d, f, cause);
  }
  fold_consequences(d);
  group_by_package(d);
}

/* A file that the log names comes first; advice comes last. */
static int order_of(const doc_finding *f) {
  int confidence = f->confidence == 'C' ? 0 : f->confidence == 'H' ? 1 : f->confidence == 'M' ? 2 : 3;
  int is_torch = doc_comes_with_torch(f->package) && f->rule->stage >= KR_STAGE_LIBRARY;
  return f->severity * 10000 + (f->is_named ? 0 : 5000) + f->rule->is_advice * 2000 +
         (is_torch ? 0 : 1) * 100 * (f->rule->stage >= KR_STAGE_LIBRARY) + confidence * 200 + f->rule->stage * 10;
}

static int compare_findings(const void *a, const void *b) {
  const doc_finding *x = a, *y = b;
  int order = order_of(x) - order_of(y);
  if (!order) order = strcmp(x->rule->id, y->rule->id);
  if (!order) order = strcmp(x->file, y->file);
  return order ? order : strcmp(x->says, y->says);
}

/* Where the first fix is unknown, the second drops its "or": "or, outside conda: export X" becomes the command, "or
 * take Y" its sentence. */
static const char *without_or(const doc *d, const char *fix) {
  if (strncmp(fix, "or ", 3) != 0 && strncmp(fix, "or:", 3) != 0 && strncmp(fix, "or,", 3) != 0) return fix;
  const char *colon = strstr(fix, ": ");
  if (colon && doc_is_command(colon + 2)) return colon + 2;
  fix += fix[2] == ' ' ? 3 : 4;
  return kr_arena_print(d->arena, "%s", fix);
}

/* What must not be printed is left out, whoever made it. */
static void check_fixes(const doc *d, doc_finding *f) {
  const size_t n_made = f->fixes.n;
  size_t n = 0;
  for (size_t i = 0; i < n_made; i++) {
    const char *fix = doc_checked(d, DOC_TEXT(f->fixes, i));
    int is_new = fix != NULL && (n || strncmp(fix, "it names the library", 20) != 0); /* of the command before it */
    for (size_t k = 0; k < n && is_new; k++) is_new = strcmp(DOC_TEXT(f->fixes, k), fix) != 0;
    if (is_new) DOC_TEXT(f->fixes, n++) = fix;
  }
  f->fixes.n = n;
  if (!n && n_made && f->from_log)
    doc_add_text(d, &f->fixes,
                 d->log.is_windows ? "python -m torch.utils.collect_env" : "python3 -m torch.utils.collect_env");
  if (f->fixes.n) DOC_TEXT(f->fixes, 0) = without_or(d, DOC_TEXT(f->fixes, 0));
}

void doc_rank(const doc *d) {
  for (size_t i = 0; i < d->found->findings.n; i++) check_fixes(d, KR_AT(d->found->findings, doc_finding, i));
  if (d->found->findings.n) qsort(d->found->findings.at, d->found->findings.n, sizeof(doc_finding), compare_findings);
}
