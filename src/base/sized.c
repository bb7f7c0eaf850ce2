/* sized.c: structs of callers that are older or newer than this library. */
#include "sized.h"

#include <string.h>

#include "status.h"

enum { MOST_BYTES = 4096 }; /* a larger value is a size that was never set */

static int32_t check_size(const char *what, uint32_t size, size_t least_bytes, size_t known_bytes) {
  KR_CHECK(size >= least_bytes && size <= MOST_BYTES, KRAIT_ERR_STRUCT_SIZE, "%s.size is %u, this library knows %zu",
           what, size, known_bytes);
  return KRAIT_OK;
}

int32_t kr_struct_take(const char *what, const void *given, size_t least_bytes, void *known, size_t known_bytes) {
  const uint32_t size = *(const uint32_t *)given;
  KR_TRY(check_size(what, size, least_bytes, known_bytes));
  for (size_t i = known_bytes; i < size; i++)
    KR_CHECK(((const unsigned char *)given)[i] == 0, KRAIT_ERR_STRUCT_SIZE,
             "%s is newer than this library and uses an unknown field (byte %zu)", what, i);
  memset(known, 0, known_bytes);
  memcpy(known, given, size < known_bytes ? size : known_bytes);
  *(uint32_t *)known = (uint32_t)known_bytes;
  return KRAIT_OK;
}

int32_t kr_struct_give(const char *what, void *given, size_t least_bytes, const void *known, size_t known_bytes) {
  const uint32_t size = *(const uint32_t *)given;
  KR_TRY(check_size(what, size, least_bytes, known_bytes));
  memcpy(given, known, size < known_bytes ? size : known_bytes);
  if (size > known_bytes) memset((char *)given + known_bytes, 0, size - known_bytes);
  *(uint32_t *)given = size;
  return KRAIT_OK;
}
