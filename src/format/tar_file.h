/* tar_file.h: tar archives as hostile input, compressed with gzip, bzip2 or zstd or uncompressed: names that leave the
 * folder and decompression bombs are refused, links and other non-files are skipped; nothing is ever written to
 * disk. */
#ifndef KR_TAR_FILE_H
#define KR_TAR_FILE_H

#include "source.h"

typedef struct kr_tar kr_tar;

typedef struct kr_tar_member { /* a plain file */
  const char *name; /* until the next one */
  uint64_t bytes;
} kr_tar_member;

/* packed must outlive the archive; it is read forward. */
int32_t kr_tar_open(kr_source *packed, kr_tar **tar);
void kr_tar_close(kr_tar **tar);
/* 1, 0 at the end; KRAIT_ERR_UNSAFE for a member that must not be trusted: the iteration may continue; other failures
 * end it. */
int32_t kr_tar_next(kr_tar *tar, kr_tar_member *member);
/* The last member as a source (forward.h); close it before reading the next one. */
int32_t kr_tar_source_open(kr_tar *tar, kr_source **source);

#endif
