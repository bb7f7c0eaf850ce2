/* ldcache.h: the loader's list of libraries, /etc/ld.so.cache, which ldconfig writes. The format of glibc 2.2 and later
 * is read, alone or after the older one. Nothing is trusted; no allocation. */
#ifndef KR_LDCACHE_H
#define KR_LDCACHE_H

#include "source.h"

typedef struct kr_ldcache {
  kr_source *source;
  uint64_t base; /* offsets of names count from here */
  uint32_t n;
} kr_ldcache;

int32_t kr_ldcache_open(kr_ldcache *cache, kr_source *source); /* KRAIT_ERR_FILE_FORMAT if it is not one */
/* The path that the list has for a library's name and an ELF machine: 1, 0 when it has none, or damage. Variants for
 * newer processors are chosen last. */
int32_t kr_ldcache_find(const kr_ldcache *cache, const char *name, int machine, char *path, size_t cap);

#endif
