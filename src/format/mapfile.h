/* mapfile.h: a whole regular file in read-only memory of our own: a mapping of the file itself would raise SIGBUS in
 * whoever touches it, host programs included, when somebody cuts the file meanwhile. */
#ifndef KR_MAPFILE_H
#define KR_MAPFILE_H
#include <stddef.h>
#include <stdint.h>

typedef struct kr_mapfile {
  const unsigned char *bytes;
  size_t n_bytes;
} kr_mapfile;

/* KRAIT_ERR_FILE_OPEN, _READ or _FORMAT (a folder, a device, an empty file). */
int32_t kr_mapfile_open(const char *path, kr_mapfile *file);
/* Of a safetensors file only the header is read; what follows has its place in memory, and is zero. Other files as
 * above. */
int32_t kr_mapfile_open_header(const char *path, kr_mapfile *file);
void kr_mapfile_close(kr_mapfile *file); /* twice, or zeroed, is fine */
#endif
