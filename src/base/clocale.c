/* clocale.c: the C locale, created once and kept. */
#define _GNU_SOURCE
#include "clocale.h"

#include <stdatomic.h>

locale_t kr_c_locale_begin(void) {
  static _Atomic(locale_t) kept;
  locale_t c = atomic_load(&kept);
  if (!c) {
    locale_t none = (locale_t)0;
    c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c && !atomic_compare_exchange_strong(&kept, &none, c)) {
      freelocale(c); /* another thread was first */
      c = none;
    }
  }
  return c ? uselocale(c) : (locale_t)0;
}

void kr_c_locale_end(locale_t before) {
  if (before) uselocale(before);
}
