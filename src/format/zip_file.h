/* zip_file.h: zip archives as hostile input, through libzip: names that leave the folder, links, decompression bombs
 * and contradictions are refused; nothing is ever written to disk. */
#ifndef KR_ZIP_FILE_H
#define KR_ZIP_FILE_H

#include "source.h"

typedef struct kr_zip kr_zip;

typedef struct kr_zip_member {
  const char *name; /* lives as long as the archive */
  uint64_t bytes, packed_bytes;
  int is_folder;
} kr_zip_member;

int32_t kr_zip_open(const char *path, kr_zip **zip); /* the central directory must agree with the local headers */
void kr_zip_close(kr_zip **zip);
int64_t kr_zip_n(const kr_zip *zip);
/* KRAIT_ERR_UNSAFE for a member that must not be trusted; the others may still be read. */
int32_t kr_zip_member_at(kr_zip *zip, int64_t i, kr_zip_member *member);

/* A member as a source of forward.h, to be closed before the archive. */
int32_t kr_zip_source_open(kr_zip *zip, int64_t i, kr_source **source);
/* From now on a thread, if available, unpacks it ahead of the reader: nothing else in this archive may be read until it
 * is closed. */
void kr_zip_source_ahead(kr_source *source);
void kr_zip_source_close(kr_source **source);

#endif
