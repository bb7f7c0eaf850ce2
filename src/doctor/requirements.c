/* requirements.c: P01 and P02: what packages require of each other in their metadata, and pairs known to the tables. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"

enum { MAX_DEPTH = 16, MAX_WORD = 128 };

/* ---- environment markers: platform_system == "Linux" and extra == "x" ---- */
typedef struct marker {
  const doc *d;
  const char *p;
  int depth;
} marker;

static void skip(marker *m) { m->p += strspn(m->p, " \t"); }

/* A quoted text or a variable's value; NULL: not known. */
static int read_value(marker *m, char out[MAX_WORD]) {
  skip(m);
  const char quote = *m->p == '"' || *m->p == '\'' ? *m->p++ : 0;
  size_t n = 0;
  while (quote ? m->p[n] && m->p[n] != quote : isalnum((unsigned char)m->p[n]) || m->p[n] == '_' || m->p[n] == '.') n++;
  size_t kept = n < MAX_WORD ? n : MAX_WORD - 1;
  memcpy(out, m->p, kept);
  out[kept] = '\0';
  m->p += n + (quote && m->p[n] == quote);
  if (quote) return 1;
  const char *value = strcmp(out, "platform_system") == 0                  ? "Linux"
                      : strcmp(out, "sys_platform") == 0                   ? "linux"
                      : strcmp(out, "os_name") == 0                        ? "posix"
                      : strcmp(out, "extra") == 0                          ? ""
                      : strcmp(out, "implementation_name") == 0            ? "cpython"
                      : strcmp(out, "platform_python_implementation") == 0 ? "CPython"
                      : strcmp(out, "platform_machine") == 0
                          ? m->d->target.machine == KR_ELF_AARCH64 ? "aarch64" : "x86_64"
                          : NULL;
  if (strcmp(out, "python_version") == 0 || strcmp(out, "python_full_version") == 0) {
    int python = m->d->target.python ? m->d->target.python : 311;
    memcpy(out, "3.", 2);
    out[2] = (char)('0' + python % 100 / 10), out[3] = (char)('0' + python % 10), out[4] = '\0';
    if (out[2] == '0') out[2] = out[3], out[3] = '\0';
    return 1;
  }
  if (!value) return 0;
  memcpy(out, value, strlen(value) + 1);
  return 1;
}

static int compare_values(const char *a, const char *op, const char *b) {
  int order = isdigit((unsigned char)*a) && isdigit((unsigned char)*b) ? kr_compare_versions(a, b) : strcmp(a, b);
  if (strcmp(op, "==") == 0) return order == 0;
  if (strcmp(op, "!=") == 0) return order != 0;
  if (strcmp(op, ">=") == 0) return order >= 0;
  if (strcmp(op, "<=") == 0) return order <= 0;
  return *op == '>' ? order > 0 : *op == '<' ? order < 0 : strcmp(op, "in") == 0 ? strstr(b, a) != NULL : 0;
}

static int read_or(marker *m);

static int read_term(marker *m) {
  char a[MAX_WORD], op[4] = "", b[MAX_WORD];
  skip(m);
  if (*m->p == '(' && ++m->depth < MAX_DEPTH) {
    m->p++;
    int value = read_or(m);
    skip(m);
    m->p += *m->p == ')';
    m->depth--;
    return value;
  }
  int knows = read_value(m, a);
  skip(m);
  size_t n = strspn(m->p, "=<>!~");
  if (!n && strncmp(m->p, "in ", 3) == 0) n = 2;
  if (!n || n > 3) return 0;
  memcpy(op, m->p, n);
  m->p += n;
  return read_value(m, b) && knows && compare_values(a, op, b);
}

static int take_requirements(marker *m, const char *word) {
  size_t n = strlen(word);
  skip(m);
  if (strncmp(m->p, word, n) != 0 || (m->p[n] != ' ' && m->p[n] != '(')) return 0;
  m->p += n;
  return 1;
}

static int read_and(marker *m) {
  int value = read_term(m);
  while (take_requirements(m, "and")) value &= read_term(m);
  return value;
}

static int read_or(marker *m) {
  int value = read_and(m);
  while (take_requirements(m, "or")) value |= read_and(m);
  return value;
}

int doc_read_requirement(const doc *d, const char *line, doc_requirement *out) {
  const char *semicolon = strchr(line, ';');
  size_t n = strcspn(line, " ([<>=!~;@,");
  *out = (doc_requirement){.name = doc_normalise(d, line, n), .spec = ""};
  const char *p = line + n;
  p += strspn(p, " ");
  if (*p == '[') p += strcspn(p, "]"), p += *p == ']';
  p += strspn(p, " (");
  size_t length = strcspn(p, ";)");
  while (length && p[length - 1] == ' ') length--;
  if (*p != '@') out->spec = kr_arena_copy(d->arena, p, length);
  marker m = {.d = d, .p = semicolon ? semicolon + 1 : ""};
  return n && (!semicolon || read_or(&m));
}

/* ---- versions ---- */
static int count_requirements_parts(const char *version) {
  int n = 1;
  for (const char *p = version; isdigit((unsigned char)*p) || *p == '.'; p++)
    n += *p == '.' && isdigit((unsigned char)p[1]);
  return n;
}

static int begins_alike(const char *version, const char *prefix, int parts) {
  for (int i = 0; i < parts; i++) {
    if (atoi(version) != atoi(prefix)) return 0;
    version += strcspn(version, "."), version += *version == '.';
    prefix += strcspn(prefix, "."), prefix += *prefix == '.';
  }
  return 1;
}

static int fits_one(const char *op, const char *bound, const char *version) {
  int order = kr_compare_versions(version, bound), is_prefix = strstr(bound, ".*") != NULL;
  if (strcmp(op, "==") == 0 || strcmp(op, "===") == 0)
    return is_prefix ? begins_alike(version, bound, count_requirements_parts(bound)) : order == 0;
  if (strcmp(op, "!=") == 0)
    return is_prefix ? !begins_alike(version, bound, count_requirements_parts(bound)) : order != 0;
  if (strcmp(op, "~=") == 0) return order >= 0 && begins_alike(version, bound, count_requirements_parts(bound) - 1);
  if (strcmp(op, ">=") == 0) return order >= 0;
  if (strcmp(op, "<=") == 0) return order <= 0;
  return *op == '>' ? order > 0 : *op == '<' ? order < 0 : 1;
}

int doc_allows(const doc *d, const char *spec, const char *version) {
  for (const char *p = spec; *p;) {
    char op[4] = "";
    p += strspn(p, " ,");
    size_t n_op = strspn(p, "=<>!~");
    if (n_op > 3) return 1;
    memcpy(op, p, n_op);
    p += n_op + strspn(p + n_op, " ");
    size_t n = strcspn(p, " ,");
    if (n && !fits_one(op, kr_arena_copy(d->arena, p, n), version)) return 0;
    p += n;
    if (!n && *p != ',' && *p != ' ') break;
  }
  return 1;
}

/* ---- what is installed ---- */
static const char *version_here(const doc *d, const char *name) {
  if (strcmp(name, "torch") == 0 && *d->target.torch && strcmp(d->target.torch_source, "the log") != 0)
    return d->target.torch;
  const doc_package *p = doc_find_package(d, name);
  return p ? p->version : "";
}

static int is_of_interest(const doc *d, const char *name) {
  return strcmp(name, "torch") == 0 || strncmp(name, "nvidia-", 7) == 0 || doc_package_row(d, name) != NULL;
}

typedef struct missing { /* of one package */
  kr_text names, command;
  int n;
} missing;

static void report(const doc *d, const doc_package *p, const doc_requirement *r, const char *have, int severity,
                   const char *fix) {
  const char *keys[] = {
      "req",
      kr_arena_print(d->arena, "%s%s%s", r->name, *r->spec && isalnum((unsigned char)*r->spec) ? " " : "", r->spec),
      "have",
      have,
      "v",
      p->version,
      "pair",
      fix,
      NULL};
  const doc_file about = {.path = *p->dist_info ? p->dist_info : p->site,
                          .name = p->name,
                          .package = p->name,
                          .package_version = p->version};
  doc_finding *f = doc_report(d, "P01", &about, p->name, keys);
  if (f && severity != KR_ERROR) f->severity = severity;
  doc_add_evidence(d, f, "METADATA of %s %s: Requires-Dist: %s%s; here is %s", p->name, p->version, r->name,
               *r->spec ? kr_arena_print(d->arena, " %s", r->spec) : "", *have ? have : "none");
}

static const char *fix_of(const doc *d, const doc_package *p, const doc_requirement *r) {
  const char *pair = doc_pair_command(d, p->name, NULL);
  if (*pair) return pair;
  if (strcmp(r->name, "torch") == 0)
    return kr_arena_print(d->arena, "pip install --force-reinstall %s==%.*s", p->name, (int)strcspn(p->version, "+"),
                          p->version); /* pip installs the torch that it requires */
  return kr_arena_print(d->arena, "pip install --no-deps --force-reinstall \"%s%s\"", r->name, r->spec);
}

static void check_one(const doc *d, const doc_package *p, const char *line, missing *nvidia) {
  doc_requirement r;
  if (!doc_read_requirement(d, line, &r) || !is_of_interest(d, r.name)) return;
  const char *have = version_here(d, r.name);
  int is_nvidia = strncmp(r.name, "nvidia-", 7) == 0, is_torch = strcmp(r.name, "torch") == 0,
      in_wheel = !*p->dist_info;
  if (!*have && in_wheel) return; /* pip would install it */
  if (!*have && is_nvidia) {
    kr_text_print(&nvidia->names, "%s%s%s", nvidia->n ? ", " : "", r.name, r.spec);
    kr_text_print(&nvidia->command, " \"%s%s\"", r.name, r.spec);
    nvidia->n++;
  } else if (!*have) {
    if (is_torch && (*kr_names_put(d->arena, &d->found->said, "torch is not installed"))++) return; /* once for all */
    const char *torch = is_torch ? doc_torch_install(d) : "";
    report(d, p, &r, "", is_torch ? KR_ERROR : KR_WARN,
           *torch && doc_main_cc(d) ? torch
           : is_torch               ? "pip install torch"
                                    : fix_of(d, p, &r));
  } else if (!is_nvidia && !doc_allows(d, r.spec, have)) {
    report(d, p, &r, have, is_torch || doc_package_row(d, r.name) ? KR_ERROR : KR_WARN, fix_of(d, p, &r));
  }
}

/* Libraries that torch installs as separate packages: it cannot be imported without them. */
static void report_nvidia(const doc *d, const doc_package *p, const missing *m) {
  if (!m->n) return;
  const char *what = m->n == 1 ? m->names.at : kr_arena_print(d->arena, "%d NVIDIA packages", m->n);
  const char *keys[] = {
      "req", what, "v", p->version, "pair", kr_arena_print(d->arena, "pip install --no-deps%s", m->command.at), NULL};
  const doc_file about = {.path = p->dist_info, .name = p->name, .package = p->name, .package_version = p->version};
  doc_add_evidence(d, doc_report(d, "P01", &about, p->name, keys), "METADATA of %s %s requires %s", p->name, p->version,
               m->names.at);
}

/* ---- pairs of the tables ---- */
static int in_range(const char *version, const char *first, const char *last) {
  return kr_compare_versions(version, first) >= 0 && (!*last || kr_compare_versions(version, last) <= 0);
}

static void check_requirements_pairs(const doc *d) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "pair", &at));) {
    const doc_package *p = doc_find_package(d, row->column[0]), *partner = doc_find_package(d, row->column[3]);
    if (!p || !partner || !in_range(p->version, row->column[1], row->column[2]) ||
        in_range(partner->version, row->column[4], row->column[5]))
      continue;
    const char *want = *row->column[5] ? kr_arena_print(d->arena, "%s to %s", row->column[4], row->column[5])
                                       : kr_arena_print(d->arena, "%s or newer", row->column[4]);
    const char *keys[] = {"v",       p->version,
                          "partner", partner->name,
                          "have",    partner->version,
                          "want",    want,
                          "pair",    doc_pair_command(d, p->name, row),
                          NULL};
    doc_report(d, "P02", NULL, p->name, keys);
  }
}

void doc_diagnose_requirements(const doc *d) {
  for (size_t i = 0; i < d->evidence.packages.n && !kr_arena_failed(d->arena); i++) {
    const doc_package p = *KR_AT(d->evidence.packages, doc_package, i);
    missing nvidia = {.names = kr_text_begin(d->arena), .command = kr_text_begin(d->arena)};
    int is_ours = strcmp(p.name, "torch") == 0 || doc_package_row(d, p.name) != NULL;
    if (p.by_distribution || !is_ours) continue;
    for (size_t k = 0; k < p.requires.n; k++) check_one(d, &p, DOC_TEXT(p.requires, k), &nvidia);
    if (strcmp(p.name, "torch") == 0) report_nvidia(d, &p, &nvidia);
  }
  if (d->evidence.is_environment) check_requirements_pairs(d);
}
