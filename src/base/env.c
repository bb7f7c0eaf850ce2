/* env.c: reads the environment. */
#define _POSIX_C_SOURCE 200809L
#include "env.h"

#include <stdlib.h>

static const char *text_of(const char *name) {
  const char *text = getenv(name);
  return text && *text ? text : NULL;
}

static int env_number_of(const char *name) {
  const char *text = text_of(name);
  long value = text ? strtol(text, NULL, 10) : 0;
  return value < 0 || value > 1 << 20 ? 0 : (int)value;
}

const char *kr_env_caps(void) { return text_of("KRAIT_CAPS"); }
const char *kr_env_tier(void) { return text_of("KRAIT_TIER"); }
int kr_env_verbose(void) { return env_number_of("KRAIT_VERBOSE"); }
const char *kr_env_fallback(void) { return text_of("KRAIT_FALLBACK"); }
int kr_env_threads(void) { return env_number_of("KRAIT_THREADS"); }
const char *kr_env_libcuda(void) { return text_of("KRAIT_LIBCUDA"); }
const char *kr_env_mamba3_A(void) { return text_of("KRAIT_MAMBA3_A"); }
const char *kr_env_cubins(void) { return text_of("KRAIT_CUBINS"); }
const char *kr_env_libnccl(void) { return text_of("KRAIT_LIBNCCL"); }
const char *kr_env_tmpdir(void) { return text_of("TMPDIR") ? text_of("TMPDIR") : "/tmp"; }
const char *kr_env_foreign(const char *name) { return getenv(name); }
void kr_env_offer(const char *name, const char *value) { (void)setenv(name, value, 0); }
