/* oom.c: finds whose code a fault is in: the first frame after the signal's that is not in the C library. */
#define _GNU_SOURCE
#include "oom.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <krait/enhance.h>

#ifdef __GLIBC__
#include <execinfo.h>

enum { MAX_FRAMES = 64, STACK_BYTES = 1 << 16, MAX_LINE = 160 };

static const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE};
static const char *guarded_verb;
static int guarded_status;

static const char *base_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static int is_c_library(const char *base) {
  return strncmp(base, "libc.so", 7) == 0 || strncmp(base, "libc-", 5) == 0 || strncmp(base, "libm.", 5) == 0 ||
         strncmp(base, "ld", 2) == 0;
}

/* The frames begin in this handler; the signal's own frame is in the C library, and so are memset or abort called by
 * the culprit. */
static const char *culprit(void) {
  void *frames[MAX_FRAMES];
  Dl_info info;
  const int n = backtrace(frames, MAX_FRAMES);
  int is_behind = 0;
  for (int i = 0; i < n; i++) {
    const char *base = dladdr(frames[i], &info) && info.dli_fname ? base_of(info.dli_fname) : "";
    if (is_c_library(base)) is_behind = 1;
    else if (is_behind) return base;
  }
  return "";
}

static int is_known(const char *base) {
  static const char *const names[] = {"libsoxr",   "libsndfile", "libmpg123", "libmp3lame",
                                      "libvorbis", "libogg",     "libopus",   "libFLAC"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strncmp(base, names[i], strlen(names[i])) == 0) return 1;
  return 0;
}

static void end(int number) {
  char line[MAX_LINE];
  signal(number, SIG_DFL);
  krait_outputs_abandon();
  const char *base = culprit();
  if (!is_known(base)) { /* our own fault: end as without a handler */
    raise(number);
    return;
  }
  const int n = snprintf(
      line, sizeof line,
      "krait %s: %.40s failed, as it does when memory runs out: run fewer recordings at once (-j 1), or free memory\n",
      guarded_verb, base);
  (void)!write(STDERR_FILENO, line, (size_t)n);
  _exit(guarded_status);
}

void cli_guard_foreign(const char *verb, int status) {
  static char stack[STACK_BYTES];
  const stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
  struct sigaction action = {.sa_handler = end, .sa_flags = SA_ONSTACK | SA_NODEFER}, previous;
  void *frames[4];
  backtrace(frames, 4); /* loads its dependencies now, not in the handler */
  guarded_verb = verb, guarded_status = status;
  sigfillset(&action.sa_mask);
  sigaltstack(&own, NULL);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (sigaction(numbers[i], NULL, &previous) == 0 && previous.sa_handler == SIG_DFL)
      sigaction(numbers[i], &action, NULL);
}
#else
void cli_guard_foreign(const char *verb, int status) { (void)verb, (void)status; }
#endif
