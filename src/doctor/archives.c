/* archives.c: source releases (.tar.gz), whose build files are read but never run; and conda packages (.conda,
 * .tar.bz2), whose index says what they are. */
#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"
#include "forward.h"
#include "status.h"
#include "tar_file.h"
#include "zip_file.h"

enum { MAX_TEXT_BYTES = 1 << 20, MAX_INDEX_BYTES = 4 << 20, MAX_SAID = 120, OLDEST_TARGET = 30, MAX_WORD = 16 };

static int archives_ends_with(const char *text, const char *end) {
  const size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

static const char *archives_base_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

int doc_is_archive(const char *path) {
  static const char *const ends[] = {".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar", ".conda"};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
    if (archives_ends_with(path, ends[i])) return 1;
  return 0;
}

static void report_broken(const doc *d, const char *path) {
  const char *keys[] = {"why", kr_arena_print(d->arena, "%s", krait_error_detail()), NULL};
  doc_report(d, "F01", &(doc_file){.path = path, .name = archives_base_of(path), .package = "", .package_version = ""},
             "", keys);
}

static const char *archives_member_text(const doc *d, kr_tar *tar, uint64_t bytes, uint64_t most) {
  kr_source *source;
  const size_t n = bytes < most ? (size_t)bytes : (size_t)most;
  char *text = kr_arena_try(d->arena, n + 1);
  if (!text || kr_tar_source_open(tar, &source) < 0) return "";
  if (kr_source_read(source, 0, text, n) < 0) text[0] = '\0';
  kr_forward_close(&source);
  return text;
}

/* ---- what a build's text says ---- */
static void add_target(const doc *d, doc_build *b, int sm, const char *where) {
  if (sm < OLDEST_TARGET || !kr_tables_first_cuda_for(d->tables, kr_arena_print(d->arena, "%d", sm)))
    return; /* not a GPU's number */
  b->named_at = where;
  for (int i = 0; i < b->n_targets; i++)
    if (b->targets[i] == sm) return;
  if (b->n_targets < (int)(sizeof b->targets / sizeof *b->targets)) b->targets[b->n_targets++] = sm;
}

static void add_ptx(doc_build *b, int sm) {
  if (sm >= OLDEST_TARGET && (!b->ptx || sm < b->ptx)) b->ptx = sm;
}

/* "8.0", "90a", "12.0+PTX", "sm_86", "compute_90" */
static void read_word(const doc *d, doc_build *b, const char *word, const char *where) {
  const char *p = strncmp(word, "sm_", 3) == 0 ? word + 3 : strncmp(word, "compute_", 8) == 0 ? word + 8 : word;
  const size_t n = strspn(p, "0123456789."), is_named = p != word;
  const char *end = p + n + strspn(p + n, "af"), *dot = strchr(p, '.');
  if (!n || (*end && strcmp(end, "+PTX") != 0 && strcmp(end, "-real") != 0 && strcmp(end, "-virtual") != 0)) return;
  if (dot && dot < p + n && (strchr(dot + 1, '.') || !isdigit((unsigned char)dot[1]) || isdigit((unsigned char)dot[2])))
    return;
  const int sm = dot && dot < p + n ? kr_parse_tenths(p) : atoi(p);
  if (!is_named && !dot && n > 3) return;
  add_target(d, b, sm, where);
  if (strcmp(end, "+PTX") == 0 || strcmp(end, "-virtual") == 0) add_ptx(b, sm);
}

/* The quoted strings of a line about architectures. */
static void read_quoted(const doc *d, doc_build *b, const char *line, const char *where) {
  for (const char *p = line; (p = strpbrk(p, "\"'"));) {
    const size_t n = strcspn(p + 1, *p == '"' ? "\"" : "'");
    const char *end = p + 1 + n;
    for (const char *q = p + 1; q < end;) {
      size_t length = 0;
      char word[MAX_WORD + 1] = "";
      while (q + length < end && !strchr(";, ", q[length])) length++;
      if (length && length <= MAX_WORD) memcpy(word, q, length), read_word(d, b, word, where);
      q += length ? length : 1;
    }
    p = *end ? end + 1 : end;
  }
}

/* -gencode arch=compute_80,code=sm_80: machine code; code=compute_90 and code="[sm_90,compute_90]": PTX. */
static void read_flags(const doc *d, doc_build *b, const char *line, const char *where) {
  for (const char *p = line; (p = strstr(p, "code=")); p += 5)
    for (const char *q = p + 5; *q && !strchr(" \t\"'", *q); q++) {
      if (strncmp(q, "sm_", 3) == 0 && isdigit((unsigned char)q[3])) add_target(d, b, atoi(q + 3), where);
      if (strncmp(q, "compute_", 8) == 0 && isdigit((unsigned char)q[8]))
        add_target(d, b, atoi(q + 8), where), add_ptx(b, atoi(q + 8));
      if (*q == '-' && q > p + 5) break;
    }
}

/* The name of the environment variable from which a line reads its targets: FLASH_ATTN_CUDA_ARCHS. */
static const char *variable_in(const doc *d, const char *line) {
  const char *at = strstr(line, "CUDA_ARCH");
  if (!at) return "";
  const char *begin = at, *end = at;
  while (begin > line && (isupper((unsigned char)begin[-1]) || isdigit((unsigned char)begin[-1]) || begin[-1] == '_'))
    begin--;
  while (isupper((unsigned char)*end) || isdigit((unsigned char)*end) || *end == '_') end++;
  const char *name = kr_arena_copy(d->arena, begin, (size_t)(end - begin));
  return strcmp(name, "CUDA_ARCH") == 0 || strstr(name, "__") ? "" : name;
}

static int is_about_targets(const char *line) {
  return strstr(line, "arch") || strstr(line, "ARCH") || strstr(line, "Arch") || strstr(line, "apabilit");
}

/* A quoted requirement on torch, wherever a build keeps its requirements. */
static void read_torch_pin(const doc *d, doc_build *b, const char *line) {
  for (const char *p = line; (p = strpbrk(p, "\"'")); p++) {
    if (strncmp(p + 1, "torch", 5) != 0 || !strchr("=<>!~ ", p[6]) || !p[6]) continue;
    const char *text = kr_arena_copy(d->arena, p + 1, strcspn(p + 1, "\"'"));
    if (strpbrk(text, "=<>~") && !doc_has_text(&b->torch_pins, text)) doc_add_text(d, &b->torch_pins, text);
  }
}

static void read_build_text(const doc *d, doc_build *b, const char *file, const char *text) {
  int number = 0;
  for (const char *at = text; *at && !kr_arena_failed(d->arena); at += strcspn(at, "\n"), at += *at == '\n') {
    const char *line = kr_arena_copy(d->arena, at, strcspn(at, "\n")), *start = line + strspn(line, " \t");
    number++;
    if (*start == '#') continue;
    read_torch_pin(d, b, line);
    if (strstr(line, "CUDAExtension") || strstr(line, "cpp_extension")) b->uses_torch = 1;
    if (!is_about_targets(line) && !strstr(line, "code=")) continue;
    const char *where = kr_arena_print(d->arena, "%s, line %d: %.*s", file, number, MAX_SAID, start),
               *variable = variable_in(d, line);
    const int before = b->n_targets;
    if (strstr(line, "gencode") || strstr(line, "code=sm_")) b->sets_own = 1;
    read_flags(d, b, line, where);
    if (is_about_targets(line)) read_quoted(d, b, line, where);
    if (*variable && b->n_targets > before) b->variable = variable;
  }
}

/* ---- source releases ---- */
static int is_build_file(const char *name) {
  static const char *const names[] = {"setup.py", "pyproject.toml", "setup.cfg", "CMakeLists.txt", "setup_cuda.py"};
  const char *slash = strchr(name, '/'), *rest = slash ? slash + 1 : name;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(rest, names[i]) == 0) return 1;
  return 0;
}

static doc_build *add_build(doc *d, const char *path) {
  doc_build *b = kr_list_push(d->arena, &d->evidence.builds);
  *b = (doc_build){.path = path,
                   .package = "",
                   .version = "",
                   .named_at = "",
                   .variable = "",
                   .python = "",
                   .platform = "",
                   .torch_pins = KR_LIST(const char *)};
  return b;
}

typedef struct reader {
  const char *path, *name, *version; /* name: of the package, once its index has been read; else "" */
  doc_build *build;
  const char *metadata; /* PKG-INFO of a source release, or "" */
  int is_conda;
} reader;

static reader begin_archive(doc *d, const char *path) {
  return (reader){.path = path, .name = "", .version = "", .build = add_build(d, path), .metadata = ""};
}

static void read_code(doc *d, kr_tar *tar, const kr_tar_member *member, const reader *r) {
  kr_source *source;
  const char *path = kr_arena_print(d->arena, "%s/%s", r->path, member->name), *base = archives_base_of(path);
  if (strcmp(base, "ptxas") != 0 && (!doc_is_library_name(member->name) || !member->bytes)) return;
  if (kr_tar_source_open(tar, &source) < 0) {
    report_broken(d, r->path);
    return;
  }
  d->evidence.owner = r->name, d->evidence.owner_version = r->version;
  if (strcmp(base, "ptxas") == 0) {
    doc_read_compiler(d, source, &(doc_file){.path = path, .name = base, .package = r->name});
  } else {
    doc_file *file = doc_inspect_source(d, source, path);
    if (file) file->in_wheel = 1;
  }
  d->evidence.owner = d->evidence.owner_version = "";
  kr_forward_close(&source);
}

/* ---- conda's packages ---- */
static const char *pip_name(const doc *d, const char *name) {
  if (strcmp(name, "pytorch") == 0 || strcmp(name, "pytorch-gpu") == 0 || strcmp(name, "libtorch") == 0) return "torch";
  return doc_normalise(d, name, strlen(name));
}

/* "pytorch 2.7.1 cuda126_py311_0", "pytorch >=2.7,<2.8.0a0", "python >=3.11,<3.12" as pip writes them. */
static const char *pip_requirement(const doc *d, const char *text) {
  const size_t n = strcspn(text, " ");
  const char *name = pip_name(d, kr_arena_copy(d->arena, text, n)), *spec = text + n + strspn(text + n, " ");
  const size_t length = strcspn(spec, " |");
  if (!length || *spec == '*') return name;
  return kr_arena_print(d->arena, "%s%s%.*s", name, isdigit((unsigned char)*spec) ? "==" : "", (int)length, spec);
}

static const char *text_of(const doc *d, const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? kr_arena_print(d->arena, "%s", text) : "";
}

static void read_index(doc *d, const char *text, reader *r) {
  json_t *index = json_loads(text, 0, NULL);
  const json_t *depends = json_object_get(index, "depends");
  doc_build *b = r->build;
  doc_package *p = doc_add_package(d, "", "", "");
  p->name = r->name = b->package = pip_name(d, text_of(d, index, "name"));
  p->version = r->version = b->version = text_of(d, index, "version");
  p->site = r->path;
  b->platform = text_of(d, index, "subdir");
  r->is_conda = 1;
  for (size_t i = 0; i < json_array_size(depends) && !kr_arena_failed(d->arena); i++) {
    const char *line = json_string_value(json_array_get(depends, i));
    const char *requirement = line ? pip_requirement(d, line) : "";
    if (strncmp(requirement, "python", 6) == 0 && strchr("=<>", requirement[6])) b->python = requirement + 6;
    else if (*requirement) doc_add_text(d, &p->requires, requirement);
  }
  doc_index_package(d, d->evidence.packages.n - 1);
  json_decref(index);
}

/* Also names the libraries that came before the index. */
static void name_owner(const doc *d, size_t first_file, const reader *r) {
  for (size_t i = first_file; i < d->evidence.files.n; i++) {
    doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (!*file->package) file->package = r->name, file->package_version = r->version;
  }
}

/* One member: conda's index, texts of a source release's build, its metadata, or a library. */
static void read_archives_member(doc *d, kr_tar *tar, const kr_tar_member *m, reader *r) {
  const char *slash = strchr(m->name, '/');
  if (!r->is_conda && strcmp(m->name, "info/index.json") == 0)
    read_index(d, archives_member_text(d, tar, m->bytes, MAX_INDEX_BYTES), r);
  else if (!r->is_conda && slash && strcmp(slash, "/PKG-INFO") == 0)
    r->metadata = archives_member_text(d, tar, m->bytes, MAX_TEXT_BYTES);
  else if (!r->is_conda && is_build_file(m->name))
    read_build_text(d, r->build, kr_arena_print(d->arena, "%s", archives_base_of(m->name)),
                    archives_member_text(d, tar, m->bytes, MAX_TEXT_BYTES));
  else read_code(d, tar, m, r);
}

/* 0: not an archive that is read here. */
static int read_tar(doc *d, kr_source *packed, reader *r) {
  const size_t first_file = d->evidence.files.n;
  kr_tar *tar;
  kr_tar_member m;
  int32_t status = KRAIT_OK;
  if (kr_tar_open(packed, &tar) < 0) {
    doc_add_text(d, &d->found->unreadable, kr_arena_print(d->arena, "%s", krait_error_detail()));
    return 0;
  }
  while (status >= 0 && ((status = kr_tar_next(tar, &m)) == 1 || status == KRAIT_ERR_UNSAFE) &&
         !kr_arena_failed(d->arena)) {
    if (status == 1) read_archives_member(d, tar, &m, r);
    else report_broken(d, r->path), status = KRAIT_OK;
  }
  if (status < 0) report_broken(d, r->path);
  if (r->is_conda) name_owner(d, first_file, r);
  kr_tar_close(&tar);
  return 1;
}

/* NAME-VERSION of the folder inside, where PKG-INFO is missing. */
static void name_by_folder(const doc *d, doc_package *p, const char *path) {
  const char *base = archives_base_of(path), *end = strstr(base, ".tar"), *dash = NULL;
  if (!end) end = base + strcspn(base, ".");
  for (const char *q = base; q < end; q++)
    if (*q == '-' && isdigit((unsigned char)q[1])) dash = q;
  if (*p->name || !dash) return;
  p->name = doc_normalise(d, base, (size_t)(dash - base));
  p->version = kr_arena_copy(d->arena, dash + 1, (size_t)(end - dash - 1));
}

static void end_source_release(doc *d, const reader *r) {
  doc_package *p = doc_add_package(d, r->metadata, "", "");
  p->site = r->path;
  name_by_folder(d, p, r->path);
  r->build->package = p->name, r->build->version = p->version,
  r->build->python = doc_header(d, r->metadata, "Requires-Python");
  doc_index_package(d, d->evidence.packages.n - 1);
}

/* A zip archive of two: info- first, so that the other's contents have an owner. */
static void read_conda(doc *d, const char *path) {
  static const char *const parts[] = {"info-", "pkg-"};
  reader r = begin_archive(d, path);
  kr_zip *zip;
  if (kr_zip_open(path, &zip) < 0) {
    report_broken(d, path);
    return;
  }
  for (int part = 0; part < 2; part++)
    for (int64_t i = 0; i < kr_zip_n(zip); i++) {
      kr_zip_member m;
      kr_source *source;
      if (kr_zip_member_at(zip, i, &m) < 0 || strncmp(m.name, parts[part], strlen(parts[part])) != 0 ||
          !archives_ends_with(m.name, ".tar.zst"))
        continue;
      if (kr_zip_source_open(zip, i, &source) < 0) {
        report_broken(d, path);
        continue;
      }
      read_tar(d, source, &r);
      kr_zip_source_close(&source);
    }
  if (!r.is_conda)
    doc_add_text(d, &d->found->unreadable,
                 kr_arena_print(d->arena, "%s is not a conda package: it has no info/index.json", path));
  kr_zip_close(&zip);
}

void doc_read_archive(doc *d, const char *path) {
  kr_source packed;
  if (archives_ends_with(path, ".conda")) {
    read_conda(d, path);
    return;
  }
  if (kr_source_open(&packed, path) < 0) {
    doc_add_text(d, &d->found->unreadable, kr_arena_print(d->arena, "%s", krait_error_detail()));
    return;
  }
  reader r = begin_archive(d, path);
  if (read_tar(d, &packed, &r) && !r.is_conda) end_source_release(d, &r);
  kr_source_close(&packed);
}

/* ---- judging ---- */
static int compare_archives_ints(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static const char *print_targets(const doc *d, const doc_build *b) {
  kr_text text = kr_text_begin(d->arena);
  int sorted[sizeof b->targets / sizeof *b->targets];
  memcpy(sorted, b->targets, sizeof sorted);
  qsort(sorted, (size_t)b->n_targets, sizeof *sorted, compare_archives_ints);
  for (int i = 0; i < b->n_targets; i++) kr_text_print(&text, "%s%s", i ? " " : "", kr_print_cc(d->arena, sorted[i]));
  if (b->ptx) kr_text_print(&text, ", PTX from %s", kr_print_cc(d->arena, b->ptx));
  return text.at;
}

static int archives_serves(const doc_build *b, int cc) {
  for (int i = 0; i < b->n_targets; i++)
    if (b->targets[i] / 10 == cc / 10 && b->targets[i] <= cc) return 1;
  return b->ptx && b->ptx <= cc;
}

static void check_targets(const doc *d, const doc_build *b, const doc_file *about) {
  const int cc = doc_main_cc(d);
  if (!b->n_targets) {
    if (b->uses_torch)
      doc_add_text(
          d, &d->found->notes,
          kr_arena_print(
              d->arena,
              "%s: its build names no GPUs, so torch's builder uses TORCH_CUDA_ARCH_LIST, or the machine's own",
              about->name));
    return;
  }
  if (!cc || archives_serves(b, cc)) {
    doc_add_text(d, &d->found->notes,
                 kr_arena_print(d->arena, "%s: its build names the GPUs %s", about->name, print_targets(d, b)));
    return;
  }
  const char *flags = kr_arena_print(d->arena,
                                     "in its setup.py add \"-gencode\", \"arch=compute_%d,code=sm_%d\"; then in its "
                                     "folder: pip install --no-build-isolation --no-deps --force-reinstall .",
                                     cc, cc);
  const char *set =
      *b->variable
          ? kr_arena_print(d->arena,
                           "%s=%s pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall %s",
                           b->variable,
                           strcmp(b->variable, "TORCH_CUDA_ARCH_LIST") == 0 ? kr_print_cc(d->arena, cc)
                                                                            : kr_arena_print(d->arena, "%d", cc),
                           b->path)
          : flags;
  const char *keys[] = {"set",        print_targets(d, b),
                        "cc",         kr_print_cc(d->arena, cc),
                        "add_target", doc_package_row(d, b->package) ? "" : set,
                        NULL};
  doc_finding *f = doc_report(d, "W10", about, b->package, keys);
  doc_add_evidence(d, f, "%s", b->named_at);
  if (f && !doc_package_row(d, b->package)) { /* no table knows its name: only its own files can tell */
    f->fixes.n = 0;
    doc_add_text(d, &f->fixes, set);
  }
}

static void check_torch_pins(const doc *d, const doc_build *b, const doc_file *about) {
  for (size_t i = 0; i < b->torch_pins.n && *d->target.torch; i++) {
    doc_requirement r;
    const char *line = DOC_TEXT(b->torch_pins, i);
    if (!doc_read_requirement(d, line, &r) || strcmp(r.name, "torch") != 0 || doc_allows(d, r.spec, d->target.torch))
      continue;
    const char *keys[] = {
        "req", line, "have", d->target.torch, "v", b->version, "pair", doc_build_command(d, b->package), NULL};
    doc_finding *f = doc_report(d, "P01", about, b->package, keys);
    doc_add_evidence(d, f,
                 "its build requires \"%s\"; pip's isolated build would install that torch, and the result may not "
                 "load with %s",
                 line, d->target.torch);
    if (f && f->fixes.n == 0)
      doc_add_text(
          d, &f->fixes,
          kr_arena_print(d->arena, "pip install --no-build-isolation --no-deps --force-reinstall %s", b->path));
    if (f) f->severity = KR_WARN, f->confidence = 'M';
  }
}

static void check_place(const doc *d, const doc_build *b, const doc_file *about) {
  const char *python = d->target.python
                           ? kr_arena_print(d->arena, "%d.%d", d->target.python / 100, d->target.python % 100)
                           : "",
             *platform = d->target.machine == KR_ELF_AARCH64 ? "linux-aarch64" : "linux-64";
  if (*b->python && *python && !doc_allows(d, b->python, python)) {
    const char *keys[] = {"tag",
                          kr_arena_print(d->arena, "%s %s, which is for Python %s,", b->package, b->version, b->python),
                          "why", kr_arena_print(d->arena, "Python %s", python), NULL};
    doc_report(d, "W01", about, b->package, keys);
  }
  if (*b->platform && strcmp(b->platform, "noarch") != 0 && strcmp(b->platform, platform) != 0) {
    const char *keys[] = {
        "tag",  b->platform, "why", d->target.machine == KR_ELF_AARCH64 ? "an aarch64 Linux" : "an x86_64 Linux",
        "best", platform,    NULL};
    doc_report(d, "W01", about, b->package, keys);
  }
}

void doc_diagnose_archives(const doc *d) {
  for (size_t i = 0; i < d->evidence.builds.n && !kr_arena_failed(d->arena); i++) {
    const doc_build *b = KR_AT(d->evidence.builds, doc_build, i);
    const doc_file about = {
        .path = b->path, .name = archives_base_of(b->path), .package = b->package, .package_version = b->version};
    check_place(d, b, &about);
    if (*b->platform) continue;
    check_targets(d, b, &about);
    check_torch_pins(d, b, &about);
  }
}
