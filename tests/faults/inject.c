/* inject.c: makes a program's libc calls fail: LD_PRELOAD=libinject.so. Calls before main do not count, so that neither
 * the loader nor other libraries' constructors are hit.
 *
 *   KRAIT_FAULT=malloc:7          the seventh allocation fails          malloc:7+  the seventh and all later ones
 *   KRAIT_FAULT=write:3:28        the third write fails with errno 28   kinds: malloc write read open mmap fsync rename
 *                                 link close
 *   KRAIT_FAULT=eintr:3           every third read, write and open is interrupted first
 *   KRAIT_FAULT=short:100         no read or write moves more than 100 bytes
 *   KRAIT_FAULT=named:1           no O_TMPFILE, as on file systems without it
 * Separate several by commas.
 *
 *   KRAIT_FAULT_COUNTS=FILE       writes at exit how often each kind was called: "malloc 1234\n..."
 *   KRAIT_FAULT_SERVER=1          main does not run: for every line "malloc:7" on descriptor 198 a child runs it with
 *                                 that fault, and its wait status goes to descriptor 199 as a line. Loading the program
 *                                   once saves most of the time of a thousand runs. */
#undef _FILE_OFFSET_BITS /* both names of each call are needed, not aliases */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MALLOC, WRITE, READ, OPEN, MMAP, FSYNC, RENAME, LINK, CLOSE, N_KINDS };
enum { REQUESTS = 198, ANSWERS = 199 };
static const char *const kinds[N_KINDS] = {"malloc", "write",  "read", "open", "mmap",
                                           "fsync",  "rename", "link", "close"};
static atomic_long counts[N_KINDS], n_calls;
static long fail_at[N_KINDS], eintr_every, short_bytes;
static int fail_errno, fail_from_then_on, is_active, is_named;

static int must_fail(int kind) {
  if (!is_active) return 0;
  const long n = atomic_fetch_add(&counts[kind], 1) + 1, at = fail_at[kind];
  if (!at || (fail_from_then_on ? n < at : n != at)) return 0;
  errno = kind == MALLOC ? ENOMEM : fail_errno ? fail_errno : EIO;
  return 1;
}

/* Calls that a signal may interrupt: every n-th only returns EINTR. */
static int is_interrupted(void) {
  if (!is_active || !eintr_every || atomic_fetch_add(&n_calls, 1) % eintr_every != eintr_every - 1) return 0;
  errno = EINTR;
  return 1;
}

static size_t shorter(size_t n) {
  return is_active && short_bytes && n > (size_t)short_bytes ? (size_t)short_bytes : n;
}

#define REAL(name, type)                                     \
  static __typeof__(type) real;                               \
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, name)

/* ---- memory: glibc's own names, because dlsym allocates ---- */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);

void *malloc(size_t n) { return must_fail(MALLOC) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t bytes) { return must_fail(MALLOC) ? NULL : __libc_calloc(n, bytes); }
void *realloc(void *block, size_t n) { return must_fail(MALLOC) ? NULL : __libc_realloc(block, n); }
void *aligned_alloc(size_t alignment, size_t n) { return must_fail(MALLOC) ? NULL : __libc_memalign(alignment, n); }
void *memalign(size_t alignment, size_t n) { return must_fail(MALLOC) ? NULL : __libc_memalign(alignment, n); }
int posix_memalign(void **block, size_t alignment, size_t n) {
  if (must_fail(MALLOC)) return ENOMEM;
  return (*block = __libc_memalign(alignment, n)) ? 0 : ENOMEM;
}

/* ---- bytes ---- */
ssize_t write(int fd, const void *bytes, size_t n) {
  REAL("write", ssize_t (*)(int, const void *, size_t));
  if (fd > 2 && (is_interrupted() || must_fail(WRITE)))
    return -1; /* failures are reported on standard error */
  return real(fd, bytes, fd > 2 ? shorter(n) : n);
}

#define PWRITE(name)                                                     \
  ssize_t name(int fd, const void *bytes, size_t n, off_t at) {          \
    REAL(#name, ssize_t (*)(int, const void *, size_t, off_t));          \
    return is_interrupted() || must_fail(WRITE) ? -1 : real(fd, bytes, shorter(n), at); \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t read(int fd, void *bytes, size_t n) {
  REAL("read", ssize_t (*)(int, void *, size_t));
  return is_interrupted() || must_fail(READ) ? -1 : real(fd, bytes, shorter(n));
}

#define PREAD(name)                                                      \
  ssize_t name(int fd, void *bytes, size_t n, off_t at) {                \
    REAL(#name, ssize_t (*)(int, void *, size_t, off_t));                \
    return is_interrupted() || must_fail(READ) ? -1 : real(fd, bytes, shorter(n), at); \
  }
PREAD(pread)
PREAD(pread64)

/* stdio calls the kernel by internal names. */
size_t fwrite(const void *bytes, size_t size, size_t n, FILE *file) {
  REAL("fwrite", size_t (*)(const void *, size_t, size_t, FILE *));
  return file != stderr && file != stdout && fileno(file) > 2 && must_fail(WRITE) ? 0 : real(bytes, size, n, file);
}

/* ---- names ---- */
static int open_mode(int flags, va_list list) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, int) : 0; }

#define OPEN_CALL(name)                                            \
  int name(const char *path, int flags, ...) {                     \
    REAL(#name, int (*)(const char *, int, ...));                  \
    va_list list;                                                  \
    va_start(list, flags);                                         \
    const int mode = open_mode(flags, list);                       \
    va_end(list);                                                  \
    if (is_named && (flags & O_TMPFILE) == O_TMPFILE) return errno = EOPNOTSUPP, -1; \
    return must_fail(OPEN) ? -1 : real(path, flags, mode);         \
  }
OPEN_CALL(open)
OPEN_CALL(open64)

#define FOPEN_CALL(name)                                           \
  FILE *name(const char *path, const char *mode) {                 \
    REAL(#name, FILE *(*)(const char *, const char *));            \
    return must_fail(OPEN) ? NULL : real(path, mode);              \
  }
FOPEN_CALL(fopen)
FOPEN_CALL(fopen64)

#define MMAP_CALL(name)                                                              \
  void *name(void *at, size_t n, int protection, int flags, int fd, off_t offset) {  \
    REAL(#name, void *(*)(void *, size_t, int, int, int, off_t));                    \
    return must_fail(MMAP) ? MAP_FAILED : real(at, n, protection, flags, fd, offset); \
  }
MMAP_CALL(mmap)
MMAP_CALL(mmap64)

int fsync(int fd) {
  REAL("fsync", int (*)(int));
  return must_fail(FSYNC) ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
  REAL("rename", int (*)(const char *, const char *));
  return must_fail(RENAME) ? -1 : real(from, to);
}

int link(const char *from, const char *to) {
  REAL("link", int (*)(const char *, const char *));
  return must_fail(LINK) ? -1 : real(from, to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
  REAL("linkat", int (*)(int, const char *, int, const char *, int));
  return must_fail(LINK) ? -1 : real(from_fd, from, to_fd, to, flags);
}

int close(int fd) { /* closed anyway, like the kernel */
  REAL("close", int (*)(int));
  const int failed = must_fail(CLOSE), os_errno = errno, result = real(fd);
  if (failed) errno = os_errno;
  return failed ? -1 : result;
}

/* ---- the faults ---- */
static void take_one(const char *text) {
  char kind[16] = "";
  long n = 0;
  int at = 0;
  if (sscanf(text, "%15[^:]:%ld%n", kind, &n, &at) < 2) return;
  fail_from_then_on |= text[at] == '+';
  const char *rest = text + at + (text[at] == '+');
  fail_errno = *rest == ':' ? atoi(rest + 1) : fail_errno;
  if (strcmp(kind, "eintr") == 0) eintr_every = n;
  if (strcmp(kind, "short") == 0) short_bytes = n;
  if (strcmp(kind, "named") == 0) is_named = 1;
  for (int i = 0; i < N_KINDS; i++)
    if (strcmp(kind, kinds[i]) == 0) fail_at[i] = n;
}

/* Several, separated by commas. */
static void take_fault(const char *text) {
  for (; text; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL) take_one(text);
}

static void write_counts(void) {
  const char *path = getenv("KRAIT_FAULT_COUNTS");
  char line[64];
  is_active = 0;
  const int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
  for (int i = 0; fd >= 0 && i < N_KINDS; i++) {
    const int n = snprintf(line, sizeof line, "%s %ld\n", kinds[i], atomic_load(&counts[i]));
    if (write(fd, line, (size_t)n) != n) break;
  }
  if (fd >= 0) close(fd);
}

static int read_request(char *line, size_t bytes) {
  size_t n = 0;
  while (n + 1 < bytes && read(REQUESTS, line + n, 1) == 1)
    if (line[n++] == '\n') return line[n - 1] = 0, 1;
  return 0;
}

/* In the parent returns only at the end of requests; in a child returns 1. */
static int serve(void) {
  char line[64];
  while (read_request(line, sizeof line)) {
    const pid_t child = fork();
    if (child == 0) {
      close(REQUESTS);
      close(ANSWERS);
      take_fault(line);
      return 1;
    }
    int status = -1;
    waitpid(child, &status, 0);
    dprintf(ANSWERS, "%d\n", status);
  }
  return 0;
}

static int (*program)(int, char **, char **);

static int run_program(int argc, char **argv, char **environment) {
  const char *fault = getenv("KRAIT_FAULT");
  unsetenv("LD_PRELOAD");
  if (getenv("KRAIT_FAULT_SERVER") && !serve()) _exit(0);
  if (fault) take_fault(fault);
  atexit(write_counts);
  is_active = 1;
  return program(argc, argv, environment);
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end) {
  REAL("__libc_start_main",
       int (*)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *));
  program = main;
  return real(run_program, argc, argv, init, fini, rtld_fini, stack_end);
}
