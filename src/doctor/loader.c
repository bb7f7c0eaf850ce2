/* loader.c: where the dynamic loader would find a library that a file needs, in glibc's order: RPATH of the file, of
 * what loaded it, and of the interpreter (unless the file has a RUNPATH), LD_LIBRARY_PATH, RUNPATH, ld.so.cache, the
 * system's folders. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doc.h"
#include "ldcache.h"

enum { MAX_CACHE_BYTES = 16 << 20, MAX_PATH = 4096, MAX_LOADERS = 64 };

static const char *folder_of(const doc *d, const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? kr_arena_copy(d->arena, path, (size_t)(slash - path)) : ".";
}

/* Exists, and is not for another processor, which the loader would skip. */
static int is_loadable(const doc *d, const char *path) {
  kr_source source;
  uint8_t head[20];
  if (access(path, F_OK) != 0) return 0;
  if (!d->target.machine || kr_source_open(&source, path) < 0) return 1;
  const int is_elf = source.size >= sizeof head && kr_source_read(&source, 0, head, sizeof head) == KRAIT_OK &&
                     memcmp(head, "\177ELF", 4) == 0;
  kr_source_close(&source);
  return !is_elf || kr_le16(head + 18) == d->target.machine;
}

/* ---- the system's libraries ---- */
static void read_list(const doc *d) {
  kr_source source;
  const char *path = doc_path(d, "/etc/ld.so.cache");
  d->lookups->knows_list = 1;
  if (kr_source_open(&source, path) < 0) return;
  char *bytes = source.size <= MAX_CACHE_BYTES ? kr_arena_try(d->arena, (size_t)source.size + 1) : NULL;
  if (bytes && kr_source_read(&source, 0, bytes, (size_t)source.size) == KRAIT_OK)
    d->lookups->list = bytes, d->lookups->list_bytes = (size_t)source.size;
  kr_source_close(&source);
}

static const char *find_in_list(const doc *d, const char *name) {
  char path[MAX_PATH];
  kr_ldcache cache;
  if (!d->lookups->knows_list) read_list(d);
  kr_source source = kr_source_memory(d->lookups->list, d->lookups->list_bytes, "/etc/ld.so.cache");
  if (!d->lookups->list || kr_ldcache_open(&cache, &source) < 0 ||
      kr_ldcache_find(&cache, name, d->target.machine, path, sizeof path) != 1)
    return "";
  const char *below = doc_path(d, path);
  return is_loadable(d, below) ? kr_arena_print(d->arena, "%s", below) : "";
}

static const char *find_in_folders(const doc *d, const char *name) {
  static const char *const folders[] = {
      "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
      "/lib/x86_64-linux-gnu",     "/lib/aarch64-linux-gnu",     "/lib64",     "/usr/local/nvidia/lib64",
      "/usr/lib/wsl/lib"};
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    const char *path = doc_path(d, kr_arena_print(d->arena, "%s/%s", folders[i], name));
    if (is_loadable(d, path)) return path;
  }
  return "";
}

/* Every file needs the same few names: each is looked up once. */
const char *doc_system_library(const doc *d, const char *name) {
  if (strchr(name, '/')) return "";
  for (size_t i = 0; i < d->lookups->system_libraries.n; i++)
    if (strcmp(KR_AT(d->lookups->system_libraries, doc_version, i)->file, name) == 0)
      return KR_AT(d->lookups->system_libraries, doc_version, i)->version;
  const char *path = find_in_list(d, name);
  if (!*path) path = find_in_folders(d, name);
  doc_version *kept = kr_list_push(d->arena, &d->lookups->system_libraries);
  *kept = (doc_version){kr_arena_copy(d->arena, name, strlen(name)), path};
  return path;
}

/* ---- search paths ---- */
static size_t token(const char *text, const char *plain, const char *braced) {
  if (strncmp(text, braced, strlen(braced)) == 0) return strlen(braced);
  return strncmp(text, plain, strlen(plain)) == 0 ? strlen(plain) : 0;
}

/* One element of a search path, with $ORIGIN, $LIB and $PLATFORM expanded. */
static const char *expand_loader(const doc *d, const char *element, size_t n, const char *origin, const char *lib) {
  kr_text text = kr_text_begin(d->arena);
  for (size_t i = 0, skip; i < n; i += skip) {
    if ((skip = token(element + i, "$ORIGIN", "${ORIGIN}"))) kr_text_print(&text, "%s", origin);
    else if ((skip = token(element + i, "$LIB", "${LIB}"))) kr_text_print(&text, "%s", lib);
    else if ((skip = token(element + i, "$PLATFORM", "${PLATFORM}")))
      kr_text_print(&text, "%s", d->target.machine == KR_ELF_AARCH64 ? "aarch64" : "x86_64");
    else skip = 1, kr_text_add(&text, element + i, 1);
  }
  return text.at;
}

/* What $LIB stands for depends on how the loader was built: Debian's value, then the others'. */
static const char *search_path(const doc *d, const char *paths, const char *origin, const char *name) {
  const char *const libs[] = {d->target.machine == KR_ELF_AARCH64 ? "lib/aarch64-linux-gnu" : "lib/x86_64-linux-gnu",
                              "lib64", "lib"};
  for (const char *p = paths; *p;) {
    size_t n = strcspn(p, ":");
    int n_libs = memmem(p, n, "LIB", 3) ? 3 : 1;
    for (int i = 0; n && i < n_libs; i++) {
      const char *full = kr_arena_print(d->arena, "%s/%s", expand_loader(d, p, n, origin, libs[i]), name);
      if (is_loadable(d, full)) return full;
    }
    p += n + (p[n] == ':');
  }
  return "";
}

/* An empty element is the current directory at run time. */
int doc_has_empty_element(const char *paths) {
  size_t n = strlen(paths);
  return n && (paths[0] == ':' || paths[n - 1] == ':' || strstr(paths, "::"));
}

/* ---- RPATH ---- */
static void index_needs(const doc *d) {
  d->lookups->knows_needs = 1;
  for (size_t i = 0; i < d->evidence.files.n && !kr_arena_failed(d->arena); i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    for (size_t k = 0; k < file->needed.n && !file->in_wheel; k++) {
      size_t *head = kr_names_put(d->arena, &d->lookups->needers, DOC_TEXT(file->needed, k));
      doc_need *need = kr_list_push(d->arena, &d->lookups->needs);
      *need = (doc_need){.file = i, .next = *head};
      *head = d->lookups->needs.n;
    }
  }
}

/* Appends the files that need a library of this name. */
static size_t add_needers(const doc *d, const char *name, const doc_file *chain[MAX_LOADERS], size_t n) {
  const size_t *head = *name ? kr_names_find(&d->lookups->needers, name) : NULL;
  for (size_t at = head ? *head : 0; at && n < MAX_LOADERS; at = KR_AT(d->lookups->needs, doc_need, at - 1)->next) {
    const doc_file *other = KR_AT(d->evidence.files, doc_file, KR_AT(d->lookups->needs, doc_need, at - 1)->file);
    int is_known = 0;
    for (size_t k = 0; k < n && !is_known; k++) is_known = chain[k] == other;
    if (!is_known) chain[n++] = other;
  }
  return n;
}

/* The file, then whatever may have loaded it, then what loaded that. An RPATH next to a RUNPATH is ignored. */
static const char *search_rpaths(const doc *d, const doc_file *file, const char *name) {
  const doc_file *chain[MAX_LOADERS] = {file};
  const char *found = "";
  if (!d->lookups->knows_needs) index_needs(d);
  for (size_t at = 0, n = 1; at < n && !*found; at++) {
    if (*chain[at]->rpath && !*chain[at]->runpath)
      found = search_path(d, chain[at]->rpath, folder_of(d, chain[at]->path), name);
    if (!*found) n = add_needers(d, chain[at]->name, chain, n), n = add_needers(d, chain[at]->soname, chain, n);
  }
  return found;
}

/* The interpreter's own RPATH applies to everything that it loads; conda's points to its libraries. */
static void read_interpreter(const doc *d) {
  enum { DT_RPATH = 15, DT_RUNPATH = 29 };
  char real[MAX_PATH], text[MAX_PATH];
  krait_scan *scan;
  d->lookups->knows_interpreter = 1;
  d->lookups->interpreter_origin = d->lookups->interpreter_rpath = "";
  if (!*d->target.prefix || !realpath(kr_arena_print(d->arena, "%s/bin/python3", d->target.prefix), real) ||
      krait_scan_open(real, &scan) < 0)
    return;
  const kr_dynamic *dynamic = kr_scan_elf(scan) ? kr_scan_dynamic(scan) : NULL;
  int has_runpath = 0;
  for (uint64_t i = 0, tag, value; dynamic && i < dynamic->n_entries &&
                                   kr_elf_dynamic_entry(kr_scan_elf(scan), dynamic, i, &tag, &value) == KRAIT_OK;
       i++) {
    has_runpath |= tag == DT_RUNPATH;
    if (tag == DT_RPATH && kr_elf_string(kr_scan_elf(scan), dynamic->strings + value, text, sizeof text) > 0)
      d->lookups->interpreter_rpath = kr_arena_copy(d->arena, text, strlen(text));
  }
  if (has_runpath) d->lookups->interpreter_rpath = "";
  if (dynamic) d->lookups->interpreter_origin = folder_of(d, kr_arena_print(d->arena, "%s", real));
  krait_scan_close(&scan);
}

const char *doc_find_library(const doc *d, const doc_file *file, const char *name) {
  const char *origin = folder_of(d, file->path), *found = "";
  if (strchr(name, '/')) return access(name, F_OK) == 0 ? name : "";
  if (!d->lookups->knows_interpreter) read_interpreter(d);
  if (!*file->runpath) found = search_rpaths(d, file, name);
  if (!*found && !*file->runpath)
    found = search_path(d, d->lookups->interpreter_rpath, d->lookups->interpreter_origin, name);
  if (!*found && !*d->root) found = search_path(d, d->target.env_library_path, origin, name);
  if (!*found) found = search_path(d, file->runpath, origin, name);
  /* Without an interpreter to read, assumes conda's. */
  if (!*found && *d->target.prefix && !*d->lookups->interpreter_origin)
    found = search_path(d, kr_arena_print(d->arena, "%s/lib", d->target.prefix), origin, name);
  return *found ? found : doc_system_library(d, name);
}
