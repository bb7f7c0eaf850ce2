/* reach.c: which packages the imports in a pasted error lead to. A library without code for the GPU that none of them
 * reaches is not the cause: its findings are shown only with --all. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doc.h"
#include "doc_commands.h"

enum { MAX_SOURCES = 4000, MAX_SOURCE_BYTES = 1 << 20, MAX_MODULES = 2000, MAX_DEPTH = 12 };

typedef struct reach {
  const doc *d;
  kr_list modules; /* const char *: top-level names */
  int n_sources;
  int is_lost; /* too many to read: nothing is known */
} reach;

static size_t module_length(const char *text) {
  size_t n = 0;
  while (isalnum((unsigned char)text[n]) || text[n] == '_') n++;
  return n;
}

static void add_module(const doc *d, kr_list *modules, const char *text, size_t n) {
  const char *name = n ? kr_arena_copy(d->arena, text, n) : "";
  if (n && modules->n < MAX_MODULES && !doc_has_text(modules, name)) doc_add_text(d, modules, name);
}

/* ---- the text ---- */
/* "File ".../site-packages/mamba_ssm/ops/x.py", line 3", and the line of code below it when it imports. */
void doc_add_modules(doc *d, const char *line) {
  for (const char *p = line; (p = strstr(p, "-packages/")); p++)
    add_module(d, &d->log.modules, p + 10, module_length(p + 10));
  line += strspn(line, " \t>");
  size_t skip = strncmp(line, "import ", 7) == 0                             ? 7
                : strncmp(line, "from ", 5) == 0 && strstr(line, " import ") ? 5
                                                                             : 0;
  if (skip) add_module(d, &d->log.modules, line + skip, module_length(line + skip));
}

/* ---- sources ---- */
/* Every `import a.b, c` and `from a.b import c` at a line's start, indented or not; "from ." stays inside the
 * package. */
static void read_imports(reach *r, const char *text) {
  for (const char *line = text; *line;) {
    size_t length = strcspn(line, "\n");
    const char *p = line + strspn(line, " \t"), *end = line + length;
    if (strncmp(p, "from ", 5) == 0) {
      add_module(r->d, &r->modules, p + 5, module_length(p + 5));
    } else if (strncmp(p, "import ", 7) == 0) {
      for (p += 6; p && p < end; p = memchr(p, ',', (size_t)(end - p))) {
        p++;
        while (p < end && *p == ' ') p++;
        add_module(r->d, &r->modules, p, module_length(p));
      }
    }
    line = end + (*end == '\n');
  }
}

static void read_source(reach *r, const char *path) {
  if (r->n_sources++ >= MAX_SOURCES) {
    r->is_lost = 1;
    return;
  }
  const char *text = doc_read_text(r->d, path, MAX_SOURCE_BYTES);
  if (text) read_imports(r, text);
}

static void read_sources(reach *r, const char *folder, int depth) {
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && !r->is_lost && !kr_arena_failed(r->d->arena) && (entry = readdir(dir));) {
    struct stat info;
    size_t n = strlen(entry->d_name);
    const char *path = kr_arena_print(r->d->arena, "%s/%s", folder, entry->d_name);
    if (entry->d_name[0] == '.' || lstat(path, &info) != 0) continue;
    if (S_ISDIR(info.st_mode) && depth < MAX_DEPTH) read_sources(r, path, depth + 1);
    if (S_ISREG(info.st_mode) && n > 3 && strcmp(entry->d_name + n - 3, ".py") == 0) read_source(r, path);
  }
  if (dir) closedir(dir);
}

/* torch and the large libraries next to it are in every traceback and import none of the packages in question. */
static int leads_nowhere(const char *module) {
  static const char *const names[] = {"torch",    "torchvision", "torchaudio", "numpy",  "scipy",
                                      "sympy",    "triton",      "nvidia",     "pandas", "PIL",
                                      "networkx", "sklearn",     "matplotlib"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(module, names[i]) == 0) return 1;
  return 0;
}

static void follow(reach *r) {
  for (size_t i = 0; i < r->modules.n && !r->is_lost && !kr_arena_failed(r->d->arena); i++) {
    const char *module = DOC_TEXT(r->modules, i);
    for (size_t k = 0; k < r->d->evidence.sites.n && !leads_nowhere(module); k++) {
      const char *base = kr_arena_print(r->d->arena, "%s/%s", DOC_TEXT(r->d->evidence.sites, k), module),
                 *single = kr_arena_print(r->d->arena, "%s.py", base);
      read_sources(r, base, 0);
      if (access(single, F_OK) == 0) read_source(r, single);
    }
  }
}

/* ---- files ---- */
/* The first part of its path below site-packages: a folder, a module's name, or the folder X.libs of a package X. */
static const char *module_of(const doc *d, const doc_file *file) {
  for (size_t i = 0; i < d->evidence.sites.n; i++) {
    size_t n = strlen(DOC_TEXT(d->evidence.sites, i));
    if (strncmp(file->path, DOC_TEXT(d->evidence.sites, i), n) == 0 && file->path[n] == '/')
      return kr_arena_copy(d->arena, file->path + n + 1, module_length(file->path + n + 1));
  }
  return "";
}

static int is_package_reached(const reach *r, const char *package) {
  const doc_table_line *row = kr_tables_find(r->d->tables, "package", package);
  for (size_t i = 0; i < r->modules.n; i++) {
    const char *module = DOC_TEXT(r->modules, i);
    if (strcmp(doc_normalise(r->d, module, strlen(module)), package) == 0 ||
        (row && kr_tables_has_word(row->column[1], module)))
      return 1;
  }
  return 0;
}

static int is_reached(const reach *r, const doc_file *file) {
  const char *module = module_of(r->d, file);
  if (!*module || doc_has_text(&r->modules, module) || doc_has_text(&r->d->log.names, file->package) ||
      is_package_reached(r, file->package))
    return 1;
  for (size_t i = 0; i < r->d->evidence.files.n; i++) { /* as a library of a package that is reached */
    const doc_file *other = KR_AT(r->d->evidence.files, doc_file, i);
    if (other == file ||
        !(doc_has_text(&other->needed, file->name) || (*file->soname && doc_has_text(&other->needed, file->soname))))
      continue;
    const char *from = module_of(r->d, other);
    if (!*from || doc_has_text(&r->modules, from)) return 1;
  }
  return 0;
}

static const doc_file *file_of(const doc *d, const doc_finding *f) {
  for (size_t i = 0; i < d->evidence.files.n && *f->file; i++)
    if (strcmp(KR_AT(d->evidence.files, doc_file, i)->path, f->file) == 0) return KR_AT(d->evidence.files, doc_file, i);
  return NULL;
}

void doc_set_unreached_aside(const doc *d) {
  reach r = {.d = d, .modules = KR_LIST(const char *)};
  for (size_t i = 0; i < d->log.modules.n; i++)
    if (!leads_nowhere(DOC_TEXT(d->log.modules, i))) doc_add_text(d, &r.modules, DOC_TEXT(d->log.modules, i));
  if (!r.modules.n || !d->evidence.is_environment) return; /* the text shows no import */
  for (size_t i = 0, n_followed = 0; i < d->found->findings.n; i++) {
    doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    const doc_file *file = kr_tables_has_word("K01 K02 K05 K06 K07 K09", f->rule->id) ? file_of(d, f) : NULL;
    if (!file || file->is_torch || doc_comes_with_torch(file->package)) continue;
    if (!n_followed++) follow(&r);
    if (r.is_lost || is_reached(&r, file)) continue;
    f->severity = KR_INFO;
    if (!f->hidden) d->found->n_unreached++;
    f->hidden = 1;
    doc_add_evidence(d, f, "no import in the log reaches it");
  }
}
