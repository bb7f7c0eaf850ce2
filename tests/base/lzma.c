/* lzma.c: liblzma streams unpack to their data, at once and in pieces; damaged ones terminate within bounds. */
#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "lzma.h"
#include "lzma_streams.h"

enum { N_CASES = sizeof cases / sizeof *cases, MOST = 1 << 17 };

static uint8_t out[MOST];
static kr_lzma lzma;

static void unpacks_liblzma_streams(void **state) {
  (void)state;
  for (int i = 0; i < N_CASES; i++)
    for (size_t piece = cases[i].n; piece > cases[i].n / 700; piece /= 5) {
      memset(out, 0xaa, sizeof out);
      assert_true(kr_lzma_begin(&lzma, cases[i].stream, cases[i].n_stream, out, cases[i].n));
      for (size_t n = 0; n < cases[i].n;) {
        n = n + piece < cases[i].n ? n + piece : cases[i].n;
        assert_true(kr_lzma_unpack(&lzma, n));
        assert_memory_equal(out, cases[i].data, n);
      }
      assert_int_equal(out[cases[i].n], 0xaa);
      assert_false(kr_lzma_unpack(&lzma, cases[i].n + 1));
    }
}

/* Unpacks an exact-size copy into exact-size memory, so that sanitizers detect overruns. */
static int unpacks(const uint8_t *stream, size_t n_stream, size_t n) {
  uint8_t *in = malloc(n_stream + 1), *to = malloc(n + 1);
  assert_true(in && to);
  memcpy(in + 1, stream, n_stream);
  to[n] = 0x55;
  const int unpacked = kr_lzma_begin(&lzma, in + 1, n_stream, to, n) && kr_lzma_unpack(&lzma, n);
  assert_int_equal(to[n], 0x55);
  free(in), free(to);
  return unpacked;
}

static void short_streams_are_refused(void **state) {
  (void)state;
  for (int i = 0; i < N_CASES; i++) {
    const size_t n = cases[i].n_stream, step = 1 + n / 300;
    assert_true(unpacks(cases[i].stream, n, cases[i].n));
    for (size_t kept = 0; kept + 12 < n; kept += step) assert_false(unpacks(cases[i].stream, kept, cases[i].n));
    if (n > 12) assert_false(unpacks(cases[i].stream, n, cases[i].n + 1)); /* its end marker comes first */
  }
}

static void damaged_streams_terminate(void **state) {
  static uint8_t damaged[MOST];
  int n_refused = 0;
  (void)state;
  for (int i = 0; i < N_CASES; i++)
    for (size_t at = 0; at < cases[i].n_stream; at += 1 + cases[i].n_stream / 200) {
      memcpy(damaged, cases[i].stream, cases[i].n_stream);
      damaged[at] ^= (uint8_t)(1 + at % 255);
      n_refused += !unpacks(damaged, cases[i].n_stream, cases[i].n);
    }
  assert_true(n_refused > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(unpacks_liblzma_streams),
                                     cmocka_unit_test(short_streams_are_refused),
                                     cmocka_unit_test(damaged_streams_terminate)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
