/* asan_checks.c (the test): every size, position and poisoned byte against libasan's answer, byte by byte. Reports are
 * caught here; the file is compiled without AddressSanitizer. */
#include "../asan_checks.c"
#include "../test.h"

void __asan_poison_memory_region(void const volatile *at, size_t n_bytes);
void __asan_unpoison_memory_region(void const volatile *at, size_t n_bytes);

static int n_reports;

void __asan_report_load_n(void *at, size_t n_bytes) { (void)at, (void)n_bytes, n_reports++; }
void __asan_report_store_n(void *at, size_t n_bytes) { (void)at, (void)n_bytes, n_reports++; }

static void access_bytes(uint8_t *at, size_t n) {
  switch (n) {
    case 1: __asan_load1(at), __asan_store1(at); break;
    case 2: __asan_load2(at), __asan_store2(at); break;
    case 4: __asan_load4(at), __asan_store4(at); break;
    case 8: __asan_load8(at), __asan_store8(at); break;
    case 16: __asan_load16(at), __asan_store16(at); break;
    default: break;
  }
  __asan_loadN(at, n), __asan_storeN(at, n);
}

static void as_libasan(void **state) {
  static const size_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 3, 12, 24, 48, 96};
  _Alignas(64) static uint8_t room[256];
  (void)state;
  for (size_t from = 0; from < 200; from += 8) /* a granule of eight bytes, of which the first few stay accessible */
    for (size_t kept = 0; kept < 8; kept++) {
      __asan_poison_memory_region(room + from, 8), __asan_unpoison_memory_region(room + from, kept);
      for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t at = 64; at < 73; at++) {
          const int is_power = sizes[s] <= 16 && (sizes[s] & (sizes[s] - 1)) == 0; /* has functions of its own */
          int bad = 0;
          for (size_t i = 0; i < sizes[s]; i++) bad |= __asan_address_is_poisoned(room + at + i);
          n_reports = 0;
          access_bytes(room + at, sizes[s]);
          if (n_reports != bad * (is_power ? 4 : 2))
            fail_msg("%zu bytes at %zu, poison from %zu: %d reports", sizes[s], at, from + kept, n_reports);
        }
      __asan_unpoison_memory_region(room + from, 8);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_libasan)};
  return cmocka_run_group_tests_name("asan_checks", tests, NULL, NULL);
}
