/* mapfile.h: a whole regular file as read-only memory. */
#ifndef KR_MAPFILE_H
#define KR_MAPFILE_H
#include <stddef.h>
#include <stdint.h>

typedef struct kr_mapfile {
  const unsigned char *bytes;
  size_t n_bytes;
} kr_mapfile;

/* KRAIT_ERR_FILE_OPEN, _READ or _FORMAT (a folder, a device, an empty file). A file that another process shortens while it
 * is mapped raises SIGBUS, as every mapping does. */
int32_t kr_mapfile_open(const char *path, kr_mapfile *file);
void kr_mapfile_close(kr_mapfile *file); /* twice, or zeroed, is fine */
#endif
