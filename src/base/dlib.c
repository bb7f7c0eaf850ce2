/* dlib.c: dlopen and related functions. */
#define _GNU_SOURCE /* dladdr */
#include "dlib.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

kr_dlib *kr_dlib_open(const char *path, const char **why) {
  kr_dlib *lib = (kr_dlib *)dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    const char *text = dlerror();
    *why = text ? text : "no reason given";
  }
  return lib;
}

void kr_dlib_close(kr_dlib **lib) {
  if (*lib) dlclose(*lib);
  *lib = NULL;
}

void *kr_dlib_find(kr_dlib *lib, const char *symbol) { return dlsym(lib, symbol); }

int kr_dlib_own_folder(char *folder, size_t bytes) {
  static const char here;
  Dl_info info;
  const int is_known =
      dladdr(&here, &info) && info.dli_fname && strchr(info.dli_fname, '/') && strlen(info.dli_fname) < bytes;
  if (is_known) {
    memcpy(folder, info.dli_fname, strlen(info.dli_fname) + 1);
  } else { /* a program that the shell found has no folder in its name */
    const ssize_t n = readlink("/proc/self/exe", folder, bytes);
    if (n <= 0 || (size_t)n >= bytes) return 0;
    folder[n] = 0;
  }
  char *slash = strrchr(folder, '/');
  if (slash) *slash = 0;
  return slash != NULL;
}
