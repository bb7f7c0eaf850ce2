/* version.c: the version of krait.h as text. */
#include <krait/krait.h>

#define KR_STRING2(x) #x
#define KR_STRING(x) KR_STRING2(x)

const char *krait_version(void) {
  return KR_STRING(KRAIT_VERSION_MAJOR) "." KR_STRING(KRAIT_VERSION_MINOR) "." KR_STRING(KRAIT_VERSION_PATCH);
}
