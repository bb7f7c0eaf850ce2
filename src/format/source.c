/* source.c: files through pread, memory through memcpy, and the range arithmetic that every reader shares. */
#define _GNU_SOURCE
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "open_error.h"
#include "status.h"

int kr_add_u64(uint64_t a, uint64_t b, uint64_t *sum) {
  *sum = a + b;
  return *sum >= a;
}

int kr_mul_u64(uint64_t a, uint64_t b, uint64_t *product) {
  *product = a * b;
  return a == 0 || b <= UINT64_MAX / a;
}

int kr_range_fits(uint64_t offset, uint64_t bytes, uint64_t size) { return offset <= size && bytes <= size - offset; }

static int32_t read_file(kr_source *source, uint64_t offset, void *out, size_t bytes) {
  uint8_t *at = out;
  while (bytes) {
    ssize_t got = pread(source->fd, at, bytes, (off_t)offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read %s", source->name);
    if (got == 0) return kr_fail(KRAIT_ERR_FILE_READ, "%s became shorter while it was read", source->name);
    at += got;
    offset += (uint64_t)got;
    bytes -= (size_t)got;
  }
  return KRAIT_OK;
}

static int32_t read_memory(kr_source *source, uint64_t offset, void *out, size_t bytes) {
  memcpy(out, source->memory + offset, bytes);
  return KRAIT_OK;
}

int32_t kr_source_open(kr_source *source, const char *path) {
  struct stat info;
  *source = (kr_source){.fd = -1};
  /* O_NONBLOCK: a FIFO must not block before fstat can refuse it. */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return kr_fail_open(errno, path);
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return kr_fail(KRAIT_ERR_FILE_OPEN, "%s is not a regular file", path);
  }
  *source = (kr_source){.read = read_file, .size = (uint64_t)info.st_size, .name = path, .fd = fd};
  return KRAIT_OK;
}

void kr_source_close(kr_source *source) {
  if (source->read == read_file && source->fd >= 0) close(source->fd);
  *source = (kr_source){.fd = -1};
}

kr_source kr_source_memory(const void *bytes, size_t n, const char *name) {
  return (kr_source){.read = read_memory, .size = n, .name = name, .memory = bytes, .fd = -1};
}

int32_t kr_source_read(kr_source *source, uint64_t offset, void *out, size_t bytes) {
  KR_CHECK(kr_range_fits(offset, bytes, source->size), KRAIT_ERR_FILE_FORMAT,
           "%s ends at %llu but %zu bytes at offset %llu are needed", source->name, (unsigned long long)source->size,
           bytes, (unsigned long long)offset);
  return bytes ? source->read(source, offset, out, bytes) : KRAIT_OK;
}
