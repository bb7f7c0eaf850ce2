/* outfile.c: temporary names, rename, and a small table of open ones for signal handlers. */
#define _GNU_SOURCE
#include "outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "status.h"

enum { MAX_OPEN = 64, MAX_ATTEMPTS = 1000 };
static _Atomic(char *) open_names[MAX_OPEN];

static void remember(char *name) {
  for (int i = 0; i < MAX_OPEN; i++) {
    char *empty = NULL;
    if (atomic_compare_exchange_strong(&open_names[i], &empty, name)) return;
  }
}

static void forget(const char *name) {
  for (int i = 0; i < MAX_OPEN; i++)
    if (atomic_load(&open_names[i]) == name) atomic_store(&open_names[i], NULL);
}

void kr_outfile_abandon_all(void) {
  for (int i = 0; i < MAX_OPEN; i++) {
    char *name = atomic_load(&open_names[i]);
    if (name) unlink(name);
  }
}

static int is_direct(const kr_outfile *file) { return file->temp_path == file->path; }

/* Remembered before it exists, so that no signal falls between. Created with the permissions that the umask leaves. */
static int32_t create_temp(kr_outfile *file) {
  static atomic_uint counter;
  size_t bytes = strlen(file->path) + 32;
  file->temp_path = kr_alloc(bytes);
  KR_CHECK(file->temp_path, KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    snprintf(file->temp_path, bytes, "%s.part-%x-%x", file->path, (unsigned)getpid(), atomic_fetch_add(&counter, 1));
    remember(file->temp_path);
    int fd = open(file->temp_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int os_errno = errno;
    if (fd >= 0) return close(fd), KRAIT_OK;
    forget(file->temp_path);
    if (os_errno != EEXIST) return kr_fail_os(KRAIT_ERR_FILE_WRITE, os_errno, "cannot create %s", file->path);
  }
  return kr_fail(KRAIT_ERR_FILE_WRITE, "cannot create %s: %d left-over %s.part- files are in the way", file->path, MAX_ATTEMPTS,
                 file->path);
}

static void release(kr_outfile *file) {
  if (!is_direct(file)) kr_free(file->temp_path);
  kr_free(file->path);
  *file = (kr_outfile){0};
}

int32_t kr_outfile_begin(kr_outfile *file, const char *path) {
  struct stat info;
  *file = (kr_outfile){0};
  KR_CHECK(*path, KRAIT_ERR_FILE_WRITE, "the output has an empty name");
  char *target = realpath(path, NULL); /* a link stays a link; NULL for a new file */
  *file = (kr_outfile){.path = kr_strdup(target ? target : path)};
  free(target);
  KR_CHECK(file->path, KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
    if (S_ISDIR(info.st_mode)) {
      release(file);
      return kr_fail(KRAIT_ERR_FILE_WRITE, "%s is a folder", path);
    }
    file->temp_path = file->path;
    return KRAIT_OK;
  }
  int32_t status = create_temp(file);
  if (status < 0) release(file);
  return status;
}

static int flush_to_disk(const char *name) {
  int fd = open(name, O_RDONLY);
  if (fd < 0) return -1;
  int failed = fsync(fd) != 0;
  close(fd);
  return failed ? -1 : 0;
}

int32_t kr_outfile_commit(kr_outfile *file) {
  int32_t status = KRAIT_OK;
  if (!is_direct(file) && (flush_to_disk(file->temp_path) != 0 || rename(file->temp_path, file->path) != 0)) {
    status = kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", file->path);
    unlink(file->temp_path);
  }
  if (!is_direct(file)) forget(file->temp_path);
  release(file);
  return status;
}

void kr_outfile_abandon(kr_outfile *file) {
  if (!file->path) return;
  if (!is_direct(file)) {
    unlink(file->temp_path);
    forget(file->temp_path);
  }
  release(file);
}
