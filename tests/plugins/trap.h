/* trap.h: what a host sees of a plug-in in an audio thread. The host's malloc, free, locks and output functions stand
 * in front of the C library's: while a thread is in the plug-in, each call of one is counted, and there must be none.
 * For the one file of a program, which must export its symbols. */
#ifndef KR_TESTS_TRAP_H
#define KR_TESTS_TRAP_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static __thread int is_in_run; /* in what an audio thread calls */
static __thread const char *trapped;
static __thread int n_trapped;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which stand there themselves */
/* glibc's own names for what stands behind malloc. */
extern void *__libc_malloc(size_t bytes), *__libc_calloc(size_t n, size_t bytes),
    *__libc_realloc(void *block, size_t bytes), *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *block);
static void note_call(const char *name) {
  if (is_in_run) trapped = name, n_trapped++;
}
static void *next_of(const char *name) { return dlsym(RTLD_NEXT, name); }

#define SEEN __attribute__((visibility("default")))
SEEN void *malloc(size_t bytes) { return note_call("malloc"), __libc_malloc(bytes); }
SEEN void *calloc(size_t n, size_t bytes) { return note_call("calloc"), __libc_calloc(n, bytes); }
SEEN void *realloc(void *block, size_t bytes) { return note_call("realloc"), __libc_realloc(block, bytes); }
SEEN void *aligned_alloc(size_t alignment, size_t bytes) {
  return note_call("aligned_alloc"), __libc_memalign(alignment, bytes);
}
SEEN int posix_memalign(void **block, size_t alignment, size_t bytes) {
  note_call("posix_memalign");
  *block = __libc_memalign(alignment, bytes);
  return *block ? 0 : 12;
}
SEEN void free(void *block) { note_call("free"), __libc_free(block); }

#define IN_FRONT_OF(type, name, parameters, arguments) \
  SEEN type name parameters {                          \
    static type(*next) parameters;                     \
    note_call(#name);                                  \
    if (!next) *(void **)&next = next_of(#name);       \
    return next arguments;                             \
  }
IN_FRONT_OF(int, pthread_mutex_lock, (pthread_mutex_t * mutex), (mutex))
IN_FRONT_OF(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
IN_FRONT_OF(int, pthread_cond_wait, (pthread_cond_t * cond, pthread_mutex_t *mutex), (cond, mutex))
IN_FRONT_OF(int, pthread_create,
            (pthread_t * thread, const pthread_attr_t *attr, void *(*start)(void *), void *user),
            (thread, attr, start, user))
IN_FRONT_OF(ssize_t, write, (int fd, const void *bytes, size_t n), (fd, bytes, n))
IN_FRONT_OF(ssize_t, read, (int fd, void *bytes, size_t n), (fd, bytes, n))
IN_FRONT_OF(int, nanosleep, (const struct timespec *time, struct timespec *left), (time, left))
IN_FRONT_OF(int, puts, (const char *text), (text))

#endif

#endif
