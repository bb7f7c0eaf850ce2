/* ldcache.c: a bounded walk over the entries of ld.so.cache. */
#include "ldcache.h"

#include <string.h>

#include "elf.h"
#include "status.h"

enum {
  OLD_HEAD_BYTES = 16,
  OLD_ENTRY_BYTES = 12,
  HEAD_BYTES = 48,
  ENTRY_BYTES = 24,
  MAX_ENTRIES = 1 << 20,
  MAX_NAME = 4096
};
enum { FLAGS_X86_64 = 0x0303, FLAGS_AARCH64 = 0x0a03 };
static const char old_magic[] = "ld.so-1.7.0", magic[] = "glibc-ld.so.cache1.1";

int32_t kr_ldcache_open(kr_ldcache *cache, kr_source *source) {
  uint8_t h[HEAD_BYTES];
  *cache = (kr_ldcache){.source = source};
  if (source->size >= OLD_HEAD_BYTES) {
    KR_TRY(kr_source_read(source, 0, h, OLD_HEAD_BYTES));
    if (memcmp(h, old_magic, sizeof old_magic - 1) == 0)
      cache->base = (OLD_HEAD_BYTES + (uint64_t)kr_le32(h + 12) * OLD_ENTRY_BYTES + 7) & ~7ull;
  }
  KR_CHECK(kr_range_fits(cache->base, HEAD_BYTES, source->size), KRAIT_ERR_FILE_FORMAT, "%s is not a library cache",
           source->name);
  KR_TRY(kr_source_read(source, cache->base, h, sizeof h));
  KR_CHECK(memcmp(h, magic, sizeof magic - 1) == 0, KRAIT_ERR_FILE_FORMAT, "%s is a library cache of an unknown format",
           source->name);
  cache->n = kr_le32(h + 20);
  KR_CHECK(cache->n <= MAX_ENTRIES &&
               kr_range_fits(cache->base + HEAD_BYTES, (uint64_t)cache->n * ENTRY_BYTES, source->size),
           KRAIT_ERR_FILE_FORMAT, "%s is truncated within its list", source->name);
  return KRAIT_OK;
}

/* A name of the list, cut to cap; 0 when it does not end there. */
static int read_ldcache_name(const kr_ldcache *cache, uint32_t offset, char *name, size_t cap) {
  uint64_t at = cache->base + offset, left = at < cache->source->size ? cache->source->size - at : 0;
  size_t n = left < cap ? (size_t)left : cap;
  return n && kr_source_read(cache->source, at, name, n) == KRAIT_OK && memchr(name, 0, n);
}

int32_t kr_ldcache_find(const kr_ldcache *cache, const char *name, int machine, char *path, size_t cap) {
  uint32_t flags = machine == KR_ELF_AARCH64 ? FLAGS_AARCH64 : FLAGS_X86_64, best = 0;
  size_t n = strlen(name) + 1;
  char text[MAX_NAME];
  int has_best = 0, best_is_plain = 0;
  if (n > sizeof text) return 0;
  for (uint32_t i = 0; i < cache->n && !best_is_plain; i++) {
    uint8_t e[ENTRY_BYTES];
    KR_TRY(kr_source_read(cache->source, cache->base + HEAD_BYTES + (uint64_t)i * ENTRY_BYTES, e, sizeof e));
    if (kr_le32(e) != flags || !read_ldcache_name(cache, kr_le32(e + 4), text, n) || strcmp(text, name) != 0) continue;
    best_is_plain = kr_le64(e + 16) == 0;
    if (best_is_plain || !has_best) best = kr_le32(e + 8);
    has_best = 1;
  }
  return has_best && read_ldcache_name(cache, best, path, cap);
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_source source = kr_source_memory(data, size, "fuzz");
  kr_ldcache cache;
  char path[256];
  if (kr_ldcache_open(&cache, &source) < 0) return 0;
  if (cache.n > 4096) cache.n = 4096;
  kr_ldcache_find(&cache, "libc.so.6", KR_ELF_X86_64, path, sizeof path);
  kr_ldcache_find(&cache, "libz.so.1", KR_ELF_AARCH64, path, sizeof path);
  return 0;
}
#endif
