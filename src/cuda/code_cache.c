/* code_cache.c: where the driver keeps what it has translated, by its documented environment variables. */
#define _POSIX_C_SOURCE 200809L
#include "code_cache.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env.h"
#include "log.h"

static const char *set(const char *name) {
  const char *text = kr_env_foreign(name);
  return text && *text ? text : NULL;
}

/* The folder itself, or the nearest above it that exists, in which the driver would make it. */
static int is_writable(const char *path) {
  char at[KR_CACHE_PATH];
  snprintf(at, sizeof at, "%s", path);
  while (access(at, W_OK | X_OK) != 0) {
    char *slash = strrchr(at, '/');
    if (errno != ENOENT || !slash || !*at) return 0;
    *(slash == at && at[1] ? slash + 1 : slash) = 0;
  }
  return 1;
}

void kr_code_cache_find(kr_code_cache *c) {
  const char *path = set("CUDA_CACHE_PATH"), *home = set("HOME"), *most = set("CUDA_CACHE_MAXSIZE"),
             *off = set("CUDA_CACHE_DISABLE");
  *c = (kr_code_cache){.most_bytes = most ? strtoll(most, NULL, 10) : -1};
  if (path) snprintf(c->path, sizeof c->path, "%s", path);
  else if (home) snprintf(c->path, sizeof c->path, "%s/.nv/ComputeCache", home);
  if (off && strtol(off, NULL, 10) != 0) snprintf(c->why, sizeof c->why, "CUDA_CACHE_DISABLE is %s", off);
  else if (!c->path[0]) snprintf(c->why, sizeof c->why, "neither HOME nor CUDA_CACHE_PATH is set");
  else if (!is_writable(c->path)) snprintf(c->why, sizeof c->why, "%s is not writable", c->path);
}

void kr_code_cache_check(void) {
  static atomic_flag checked = ATOMIC_FLAG_INIT;
  if (atomic_flag_test_and_set(&checked)) return;
  kr_code_cache c;
  kr_code_cache_find(&c);
  if (c.why[0])
    kr_log("the driver cannot keep translated GPU code, which every start pays for again: %s (set CUDA_CACHE_PATH to a "
           "folder that lasts, or install krait-cubins)",
           c.why);
}
