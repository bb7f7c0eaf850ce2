/* wheel.c: what a wheel's file name says, and the wheel walker of krait/doctor.h. */
#include "public_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "status.h"
#include "tables.h"
#include "zip_file.h"

static int copy_part(char *out, size_t cap, const char *from, size_t n) {
  if (n >= cap) return 0;
  memcpy(out, from, n);
  out[n] = '\0';
  return 1;
}

/* Past the digits and dots of a number after word, which may begin with a lower- or upper-case letter; NULL: not
 * there. */
static const char *find_number(const char *text, const char *word) {
  size_t n = strlen(word);
  for (const char *p = text; *p; p++)
    if (strncmp(p, word, n) == 0 && isdigit((unsigned char)p[n])) return p + n;
  return NULL;
}

/* cu128, cu12.8, cu12: ten times the version. */
static int cuda_of(const char *digits) {
  size_t n = strspn(digits, "0123456789");
  if (digits[n] == '.') return kr_parse_tenths(digits);
  int v = 0;
  for (size_t i = 0; i < n && i < 3; i++) v = v * 10 + (digits[i] - '0');
  return n == 2 ? v * 10 : v;
}

/* torch2.8 and pt2.8 have a dot, pt28 and pt210 have none. */
static int torch_of(const char *digits) {
  size_t n = strspn(digits, "0123456789");
  if (digits[n] == '.') return kr_parse_torch(digits);
  if (n < 2 || n > 3) return 0;
  return (digits[0] - '0') * 100 + (digits[1] - '0') * (n == 3 ? 10 : 1) + (n == 3 ? digits[2] - '0' : 0);
}

static void read_local(krait_wheel_name *name) {
  char lower[64];
  for (size_t i = 0; i < sizeof lower; i++) lower[i] = (char)tolower((unsigned char)name->local[i]);
  const char *cuda = find_number(lower, "cu"), *torch = find_number(lower, "torch"), *abi = strstr(lower, "cxx11abi");
  if (!torch) torch = find_number(lower, "pt");
  name->cuda = cuda ? cuda_of(cuda) : 0;
  name->torch = torch ? torch_of(torch) : 0;
  name->cxx11abi = abi && strncmp(abi + 8, "true", 4) == 0 ? 1 : abi && strncmp(abi + 8, "false", 5) == 0 ? 0 : -1;
}

/* The last part of a path or URL, with %2B as +. */
static int32_t base_name(const char *file, char *out, size_t cap) {
  const char *slash = strrchr(file, '/');
  size_t n = 0;
  for (const char *p = slash ? slash + 1 : file; *p && *p != '?' && *p != '#'; p++) {
    KR_CHECK(n + 1 < cap, KRAIT_ERR_ARGUMENT, "a wheel name of more than %zu characters", cap);
    if (strncmp(p, "%2B", 3) == 0 || strncmp(p, "%2b", 3) == 0) out[n++] = '+', p += 2;
    else out[n++] = *p;
  }
  out[n] = '\0';
  return KRAIT_OK;
}

static int32_t split_version(krait_wheel_name *name, const char *version, size_t n) {
  const char *plus = memchr(version, '+', n);
  size_t length = plus ? (size_t)(plus - version) : n;
  KR_CHECK(copy_part(name->version, sizeof name->version, version, length), KRAIT_ERR_ARGUMENT,
           "a wheel name with a very long version");
  if (plus)
    KR_CHECK(copy_part(name->local, sizeof name->local, plus + 1, n - length - 1), KRAIT_ERR_ARGUMENT,
             "a wheel name with a very long version");
  read_local(name);
  return KRAIT_OK;
}

/* A label such as cu128 gives its CUDA; other words or a hash give nothing. */
static void read_variant(krait_wheel_name *name, const char *label) {
  if (strncmp(label, "cu", 2) == 0 && isdigit((unsigned char)label[2])) name->cuda = cuda_of(label + 2);
}

int32_t krait_wheel_name_parse(const char *file, krait_wheel_name *name) {
  char text[512];
  const char *part[8];
  size_t length[8];
  int n = 0, has_build, has_variant;
  KR_CHECK(file && name, KRAIT_ERR_ARGUMENT, "file and name must not be NULL");
  const uint32_t size = name->size;
  KR_CHECK(size == sizeof(krait_wheel_name), KRAIT_ERR_STRUCT_SIZE, "wheel name: size is not set");
  memset(name, 0, size < sizeof *name ? size : sizeof *name);
  name->size = size, name->cxx11abi = -1;
  KR_TRY(base_name(file, text, sizeof text));
  size_t end = strlen(text);
  KR_CHECK(end > 4 && strcmp(text + end - 4, ".whl") == 0, KRAIT_ERR_ARGUMENT, "%s does not end in .whl", text);
  text[end - 4] = '\0';
  for (char *p = text; n < 8; n++) {
    part[n] = p;
    length[n] = strcspn(p, "-");
    p += length[n];
    if (!*p++) {
      n++;
      break;
    }
  }
  /* NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM(-VARIANT): a build begins with a digit, and a Python's tag does not */
  has_build = n >= 6 && isdigit((unsigned char)*part[2]);
  has_variant = n - has_build == 6 && (memchr(part[4 + has_build], '_', length[4 + has_build]) ||
                                       strncmp(part[4 + has_build], "any-", 4) == 0);
  KR_CHECK(n - has_build == 5 || has_variant, KRAIT_ERR_ARGUMENT,
           "%s.whl is not a wheel name: NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl", text);
  const int tags = 2 + has_build;
  int fits = copy_part(name->dist, sizeof name->dist, part[0], length[0]) &&
             copy_part(name->python, sizeof name->python, part[tags], length[tags]) &&
             copy_part(name->abi, sizeof name->abi, part[tags + 1], length[tags + 1]) &&
             copy_part(name->platform, sizeof name->platform, part[tags + 2], length[tags + 2]);
  if (has_build) fits = fits && copy_part(name->build, sizeof name->build, part[2], length[2]);
  if (has_variant && size >= sizeof *name)
    fits = fits && copy_part(name->variant, sizeof name->variant, part[tags + 3], length[tags + 3]);
  KR_CHECK(fits, KRAIT_ERR_ARGUMENT, "%s.whl has a part that is too long", text);
  KR_TRY(split_version(name, part[1], length[1]));
  if (has_variant && !name->cuda) read_variant(name, part[tags + 3]);
  return KRAIT_OK;
}

struct krait_wheel {
  kr_zip *zip;
  int64_t next;
};

int32_t krait_wheel_open(const char *path, krait_wheel **wheel) {
  kr_zip *zip;
  KR_CHECK(path && wheel, KRAIT_ERR_ARGUMENT, "path and wheel must not be NULL");
  *wheel = NULL;
  KR_TRY(kr_zip_open(path, &zip));
  krait_wheel *w = kr_zalloc(sizeof *w);
  if (!w) {
    kr_zip_close(&zip);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to open %s", path);
  }
  w->zip = zip;
  *wheel = w;
  return KRAIT_OK;
}

void krait_wheel_close(krait_wheel **wheel) {
  if (!wheel || !*wheel) return;
  kr_zip_close(&(*wheel)->zip);
  kr_free(*wheel);
  *wheel = NULL;
}

int32_t krait_wheel_next(krait_wheel *wheel, const char **name, uint64_t *bytes) {
  kr_zip_member member;
  KR_CHECK(wheel && name && bytes, KRAIT_ERR_ARGUMENT, "wheel, name and bytes must not be NULL");
  if (wheel->next >= kr_zip_n(wheel->zip)) return 0;
  int32_t status = kr_zip_member_at(wheel->zip, wheel->next++, &member);
  *name = member.name;
  *bytes = member.bytes;
  return status < 0 ? status : 1;
}
