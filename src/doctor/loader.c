/* loader.c: where the dynamic loader would find a library that a file needs. */
#include <string.h>
#include <unistd.h>

#include "doc.h"

static const char *folder_of(doc *d, const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? kr_arena_copy(d->arena, path, (size_t)(slash - path)) : ".";
}

/* One element of a search path, with $ORIGIN in place. */
static const char *expand(doc *d, const char *element, size_t n, const char *origin) {
  kr_text text = kr_text_begin(d->arena);
  for (size_t i = 0; i < n;) {
    size_t skip = strncmp(element + i, "$ORIGIN", 7) == 0 ? 7 : strncmp(element + i, "${ORIGIN}", 9) == 0 ? 9 : 0;
    if (skip) kr_text_print(&text, "%s", origin);
    else if (strncmp(element + i, "$LIB", 4) == 0) skip = 4, kr_text_print(&text, "lib/x86_64-linux-gnu");
    else if (strncmp(element + i, "$PLATFORM", 9) == 0) skip = 9, kr_text_print(&text, "x86_64");
    else skip = 1, kr_text_add(&text, element + i, 1);
    i += skip;
  }
  return text.at;
}

static const char *search_path(doc *d, const char *paths, const char *origin, const char *name) {
  for (const char *p = paths; *p;) {
    size_t n = strcspn(p, ":");
    if (n) {
      const char *full = kr_arena_print(d->arena, "%s/%s", expand(d, p, n, origin), name);
      if (access(full, F_OK) == 0) return full;
    }
    p += n + (p[n] == ':');
  }
  return "";
}

const char *doc_find_library(doc *d, const doc_file *file, const char *name) {
  const char *origin = folder_of(d, file->path), *found = "";
  if (!*file->runpath) found = search_path(d, file->rpath, origin, name);
  if (!*found && !*d->root) found = search_path(d, d->env_library_path, origin, name);
  if (!*found) found = search_path(d, file->runpath, origin, name);
  if (!*found && *d->prefix) found = search_path(d, kr_arena_print(d->arena, "%s/lib", d->prefix), origin, name);
  if (!*found) found = doc_system_library(d, name);
  if (!*found) found = search_path(d, kr_arena_print(d->arena, "%s:%s:%s", doc_path(d, "/usr/local/cuda/lib64"), doc_path(d, "/opt/cuda/lib64"), doc_path(d, "/usr/local/lib")), origin, name);
  return found;
}
