/* mapfile.c: opens, checks and reads a file into our own pages; refuses files without a fixed size. */
#define _GNU_SOURCE
#include "mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "open_error.h"
#include "pool.h"
#include "status.h"

#ifndef KR_FSTAT /* glibc_floor.h */
#define KR_FSTAT fstat
#endif

enum {
  PIECE_BYTES = 8 << 20,
  PART_BYTES = 1 << 20,
  THREAD_BYTES = 64 << 20, /* less is not worth a thread */
  MOST_THREADS = 16
};

typedef struct reading {
  int fd;
  unsigned char *bytes;
  size_t n_bytes, from; /* from: in the file */
  atomic_int error; /* errno, or TRUNCATED */
} reading;
enum { TRUNCATED = -1 };

static int read_piece(const reading *r, size_t done, size_t end) {
  while (done < end) {
    const ssize_t got = pread(r->fd, r->bytes + done, end - done, (off_t)(r->from + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : TRUNCATED;
    done += (size_t)got;
  }
  return 0;
}

static void read_span(reading *r, int64_t begin, int64_t end, size_t piece) {
  const size_t to = (size_t)end * piece;
  if (r->error) return;
  const int error = read_piece(r, (size_t)begin * piece, to < r->n_bytes ? to : r->n_bytes);
  if (error) r->error = error;
}

static void read_pieces(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  read_span(user, begin, end, PIECE_BYTES);
}
static void read_parts(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  read_span(user, begin, end, PART_BYTES);
}

/* Large files by several threads: one copies from the page cache slower than a GPU takes the bytes. */
static int32_t read_pages(int fd, const char *path, unsigned char *bytes, size_t n) {
  reading r = {.fd = fd, .bytes = bytes, .n_bytes = n};
  const int n_cores = kr_usable_cores(), most = n_cores < MOST_THREADS ? n_cores : MOST_THREADS;
  const size_t n_useful = n / THREAD_BYTES;
  const int n_threads = n_useful < (size_t)most ? (int)n_useful : most;
  kr_pool *pool = n_threads > 1 ? kr_pool_open(n_threads) : NULL; /* without one it is slower */
  kr_pool_run_long(pool, (int64_t)((n + PIECE_BYTES - 1) / PIECE_BYTES), 1, read_pieces, &r);
  kr_pool_close(&pool);
  KR_CHECK(r.error != TRUNCATED, KRAIT_ERR_FILE_READ, "%s was truncated while it was read", path);
  return r.error ? kr_fail_os(KRAIT_ERR_FILE_READ, r.error, "cannot read %s", path) : KRAIT_OK;
}

int kr_mapfile_read_bytes(int fd, size_t from, size_t n_bytes, void *to) {
  return read_piece(&(reading){.fd = fd, .bytes = to, .n_bytes = n_bytes, .from = from}, 0, n_bytes);
}

int32_t kr_mapfile_check_read(int error) {
  KR_CHECK(error != TRUNCATED, KRAIT_ERR_FILE_READ, "the file was truncated while it was in use");
  return error ? kr_fail_os(KRAIT_ERR_FILE_READ, error, "cannot read the file") : KRAIT_OK;
}

int32_t kr_mapfile_read_part(int fd, size_t from, size_t n_bytes, kr_pool *pool, void *to) {
  reading r = {.fd = fd, .bytes = to, .n_bytes = n_bytes, .from = from};
  kr_pool_run_long(pool, (int64_t)((n_bytes + PART_BYTES - 1) / PART_BYTES), 1, read_parts, &r);
  return kr_mapfile_check_read(r.error);
}

/* For a safetensors file the bytes before its data; for any other file all bytes. */
static size_t header_bytes(int fd, size_t n_bytes, int in_parts) {
  unsigned char head[9];
  uint64_t n = 0;
  if (pread(fd, head, sizeof head, 0) != (ssize_t)sizeof head) return n_bytes;
  if (in_parts && memcmp(head, "GGUF", 4) == 0)
    return n_bytes < KR_MAPFILE_GGUF_HEAD ? n_bytes : KR_MAPFILE_GGUF_HEAD;
  if (head[8] != '{') return n_bytes;
  for (int i = 7; i >= 0; i--) n = n << 8 | head[i];
  return n < n_bytes - 8 ? (size_t)n + 8 : n_bytes;
}

static int32_t check_kind(int fd, const char *path, struct stat *info) {
  if (KR_FSTAT(fd, info) != 0) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read %s", path);
  KR_CHECK(!S_ISDIR(info->st_mode), KRAIT_ERR_FILE_FORMAT, "%s is a folder; give a file in it", path);
  KR_CHECK(S_ISREG(info->st_mode), KRAIT_ERR_FILE_FORMAT, "%s is not a regular file; copy it to one first", path);
  KR_CHECK(info->st_size > 0, KRAIT_ERR_FILE_FORMAT, "%s is empty", path);
  KR_CHECK((uint64_t)info->st_size <= SIZE_MAX / 2, KRAIT_ERR_NO_MEMORY, "%s is too large for this machine", path);
  return KRAIT_OK;
}

/* Any file of a repository may be such a pointer, where git-lfs was missing when it was cloned. */
static int32_t check_content(const void *bytes, size_t n, const char *path) {
  static const char pointer[] = "version https://git-lfs";
  KR_CHECK(n < sizeof pointer || memcmp(bytes, pointer, sizeof pointer - 1) != 0, KRAIT_ERR_FILE_FORMAT,
           "%s is a Git LFS pointer, not the file itself; get that with git lfs pull", path);
  return KRAIT_OK;
}

enum { WHOLE, HEADER, PARTS };

static int32_t read_descriptor(int fd, const char *path, int how, kr_mapfile *file) {
  const int only_header = how != WHOLE;
  struct stat info;
  KR_TRY(check_kind(fd, path, &info));
  const size_t n = (size_t)info.st_size;
  void *bytes =
      mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (only_header ? MAP_NORESERVE : 0), -1, 0);
  if (bytes == MAP_FAILED) return kr_fail_os(KRAIT_ERR_NO_MEMORY, errno, "no memory for the %zu bytes of %s", n, path);
  if (!only_header) kr_ask_for_huge_pages(bytes, n);
  int32_t status = read_pages(fd, path, bytes, only_header ? header_bytes(fd, n, how == PARTS) : n);
  if (status == KRAIT_OK) status = check_content(bytes, n, path);
  if (status == KRAIT_OK && mprotect(bytes, n, PROT_READ) != 0)
    status = kr_fail_os(KRAIT_ERR_NO_MEMORY, errno, "no memory for %s", path);
  if (status < 0) munmap(bytes, n);
  else *file = (kr_mapfile){bytes, n};
  return status;
}

static int32_t open_mapfile_file(const char *path, int how, kr_mapfile *file, int *kept) {
  *file = (kr_mapfile){0};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return kr_fail_open(errno, path);
  int32_t status = read_descriptor(fd, path, how, file);
  if (kept && status >= 0) *kept = fd;
  else close(fd);
  return status;
}

int32_t kr_mapfile_open(const char *path, kr_mapfile *file) { return open_mapfile_file(path, WHOLE, file, NULL); }
int32_t kr_mapfile_open_header(const char *path, kr_mapfile *file) {
  return open_mapfile_file(path, HEADER, file, NULL);
}
int32_t kr_mapfile_open_parts(const char *path, kr_mapfile *file, int *fd) {
  return open_mapfile_file(path, PARTS, file, fd);
}

void kr_mapfile_close(kr_mapfile *file) {
  if (file->bytes) munmap((void *)file->bytes, file->n_bytes);
  *file = (kr_mapfile){0};
}
