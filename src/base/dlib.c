/* dlib.c: dlopen and related functions. */
#include "dlib.h"

#include <dlfcn.h>
#include <stddef.h>

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
