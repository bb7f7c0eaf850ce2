/* asan_checks.c: the checks of AddressSanitizer that GCC calls instead of inlining, for sanitizer builds on x86-64.
 * Like those of libasan they check every byte of an access, but a vector takes two loads of shadow memory instead of a
 * call of a generic function, in which tests of whole models spent three quarters of their time. libasan reports what
 * is bad. */
#include <stdint.h>
#include <string.h>

int __asan_address_is_poisoned(void const volatile *at);
void __asan_report_load_n(void *at, size_t n_bytes);
void __asan_report_store_n(void *at, size_t n_bytes);

/* One byte describes eight; the offset is the one that GCC compiles into inline checks. */
static const uint8_t *shadow(const uint8_t *at) { return (const uint8_t *)(((uintptr_t)at >> 3) + 0x7fff8000); }

/* Whether the shadow bytes of all bytes are 0: then the access is allowed. */
static inline int is_clean(const uint8_t *at, size_t n_bytes) {
  const uint8_t *const first = shadow(at), last = *shadow(at + n_bytes - 1); /* unaligned accesses have one more */
  uint64_t eight = 0;
  if (n_bytes == 64) memcpy(&eight, first, 8);
  else if (n_bytes == 32) memcpy(&eight, first, 4);
  else if (n_bytes == 16) memcpy(&eight, first, 2);
  else if (n_bytes <= 8) eight = *first;
  else return 0;
  return (eight | last) == 0;
}

static int is_bad(const uint8_t *at, size_t n_bytes) {
  for (size_t i = 0; i < n_bytes; i++)
    if (__asan_address_is_poisoned(at + i)) return 1;
  return 0;
}

#define CHECK(kind, name, n_bytes, ...)                                           \
  void __asan_##kind##name(__VA_ARGS__);                                          \
  void __asan_##kind##name(__VA_ARGS__) {                                         \
    if (is_clean(at, n_bytes) || !is_bad(at, n_bytes)) return;                    \
    __asan_report_##kind##_n(at, n_bytes);                                        \
  }
#define CHECKS(kind)                \
  CHECK(kind, 1, 1, uint8_t *at)    \
  CHECK(kind, 2, 2, uint8_t *at)    \
  CHECK(kind, 4, 4, uint8_t *at)    \
  CHECK(kind, 8, 8, uint8_t *at)    \
  CHECK(kind, 16, 16, uint8_t *at)  \
  CHECK(kind, N, n, uint8_t *at, size_t n)
CHECKS(load)
CHECKS(store)
