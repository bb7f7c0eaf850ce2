/* ar.c: members of a Unix archive: 60-byte headers with decimal sizes, data aligned to 2. */
#include <string.h>

#include "fatbin.h"
#include "status.h"

enum { MAGIC_BYTES = 8, HEADER_BYTES = 60 };

int32_t kr_ar_next(kr_source *source, uint64_t *at, kr_ar_member *member) {
  uint8_t h[HEADER_BYTES];
  uint64_t size = 0;
  int n = 0;
  if (*at == 0) {
    KR_TRY(kr_source_read(source, 0, h, MAGIC_BYTES));
    KR_CHECK(memcmp(h, "!<arch>\n", MAGIC_BYTES) == 0, KRAIT_ERR_FILE_FORMAT, "%s is not an archive", source->name);
    *at = MAGIC_BYTES;
  }
  if (*at >= source->size) return 0;
  KR_TRY(kr_source_read(source, *at, h, sizeof h));
  while (n < 10 && h[48 + n] >= '0' && h[48 + n] <= '9') size = size * 10 + (uint64_t)(h[48 + n++] - '0');
  KR_CHECK(n && h[58] == '`' && h[59] == '\n', KRAIT_ERR_FILE_FORMAT, "%s: a damaged archive header at offset %llu",
           source->name, (unsigned long long)*at);
  *member = (kr_ar_member){.offset = *at + HEADER_BYTES, .size = size};
  for (n = 0; n < 16 && h[n] != '/' && h[n] != ' ' && h[n]; n++) member->name[n] = (char)h[n];
  KR_CHECK(kr_range_fits(member->offset, size, source->size), KRAIT_ERR_FILE_FORMAT,
           "%s: the archive member at offset %llu extends past the end of the file", source->name,
           (unsigned long long)*at);
  *at = member->offset + size + (size & 1);
  return 1;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_source source = kr_source_memory(data, size, "fuzz");
  kr_ar_member member;
  for (uint64_t at = 0; kr_ar_next(&source, &at, &member) == 1;) continue;
  return 0;
}
#endif
