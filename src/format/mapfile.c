/* mapfile.c: open, check, map; refuses what has no fixed size. */
#define _POSIX_C_SOURCE 200809L
#include "mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"

static int32_t map_descriptor(int fd, const char *path, kr_mapfile *file) {
  struct stat info;
  if (fstat(fd, &info) != 0) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot read %s", path);
  KR_CHECK(!S_ISDIR(info.st_mode), KRAIT_ERR_FILE_FORMAT, "%s is a folder, not a file", path);
  KR_CHECK(S_ISREG(info.st_mode), KRAIT_ERR_FILE_FORMAT, "%s is not a regular file; copy it to one first", path);
  KR_CHECK(info.st_size > 0, KRAIT_ERR_FILE_FORMAT, "%s is empty", path);
  KR_CHECK((uint64_t)info.st_size <= SIZE_MAX / 2, KRAIT_ERR_NO_MEMORY, "%s is too large for this machine", path);
  void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (bytes == MAP_FAILED) return kr_fail_os(KRAIT_ERR_FILE_READ, errno, "cannot map %s", path);
  *file = (kr_mapfile){bytes, (size_t)info.st_size};
  return KRAIT_OK;
}

int32_t kr_mapfile_open(const char *path, kr_mapfile *file) {
  *file = (kr_mapfile){0};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return kr_fail_os(KRAIT_ERR_FILE_OPEN, errno, "cannot open %s", path);
  int32_t status = map_descriptor(fd, path, file);
  close(fd);
  return status;
}

void kr_mapfile_close(kr_mapfile *file) {
  if (file->bytes) munmap((void *)file->bytes, file->n_bytes);
  *file = (kr_mapfile){0};
}
