/* mapfile.h: a whole regular file in our own read-only memory: with a mapping of the file itself, truncating the file
 * would raise SIGBUS in any code that reads it, host programs included. */
#ifndef KR_MAPFILE_H
#define KR_MAPFILE_H
#include <stddef.h>
#include <stdint.h>

#include "pool.h"

typedef struct kr_mapfile {
  const unsigned char *bytes;
  size_t n_bytes;
} kr_mapfile;

/* KRAIT_ERR_FILE_OPEN, _READ or _FORMAT (a folder, a device, an empty file). */
int32_t kr_mapfile_open(const char *path, kr_mapfile *file);
/* For a safetensors file only the header is read; the rest has its place in memory, and is zero. Other files as
 * above. */
int32_t kr_mapfile_open_header(const char *path, kr_mapfile *file);
enum { KR_MAPFILE_GGUF_HEAD = 16 << 20 };
/* The same, and of a GGUF file so many bytes, with the descriptor, which the caller closes: parts of the file, as it is
 * then, by kr_mapfile_read_part, whose KRAIT_ERR_FILE_READ says if it has become shorter. pool: or NULL. */
int32_t kr_mapfile_open_parts(const char *path, kr_mapfile *file, int *fd);
int32_t kr_mapfile_read_part(int fd, size_t from, size_t n_bytes, kr_pool *pool, void *to);
/* The same from a worker, whose own error goes to nobody: 0, or what its caller gives to kr_mapfile_check_read. */
int kr_mapfile_read_bytes(int fd, size_t from, size_t n_bytes, void *to);
int32_t kr_mapfile_check_read(int error);
void kr_mapfile_close(kr_mapfile *file); /* may be called twice, or on a zeroed struct */
#endif
