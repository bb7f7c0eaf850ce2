/* canvas.c: pixels, strokes, letters, and the PNG of them, read back. */
#define _GNU_SOURCE
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

#include "alloc.h"
#include "canvas.h"
#include "charts.h"
#include "status.h"
#include "stroke_font.h"

enum { WIDTH = 60, HEIGHT = 40 };

static uint32_t at(const kr_canvas *c, int x, int y) { return c->pixels[y * c->width + x]; }

static int count_ink(const kr_canvas *c) {
  int n = 0;
  for (int i = 0; i < c->width * c->height; i++) n += c->pixels[i] != 0xffffff;
  return n;
}

static kr_canvas opened(int32_t width, int32_t height) {
  kr_canvas c;
  assert_int_equal(kr_canvas_open(&c, width, height), KRAIT_OK);
  return c;
}

static void shapes_cover_what_they_say(void **state) {
  (void)state;
  kr_canvas c = opened(WIDTH, HEIGHT);
  assert_int_equal(count_ink(&c), 0);
  kr_canvas_color(&c, 1, 0, 0);
  kr_canvas_fill(&c, 2, 3, 4.5, 2);
  assert_int_equal(count_ink(&c), 5 * 2);
  assert_int_equal(at(&c, 5, 4), 0xff0000);
  assert_int_equal(at(&c, 6, 4), 0xff8080); /* half of it */
  kr_canvas_color(&c, 0, 0, 0);
  kr_chart_line(&c, 10.5, 10.5, 20.5, 10.5);
  for (int x = 10; x <= 20; x++) assert_int_equal(at(&c, x, 10), 0);
  assert_int_equal(at(&c, 15, 9), 0xffffff);
  c.opacity = 0.5; /* crosses itself: half, not three quarters */
  kr_canvas_move(&c, 30.5, 5.5), kr_canvas_line(&c, 30.5, 15.5), kr_canvas_line(&c, 30.5, 5.5), kr_canvas_end(&c);
  assert_int_equal(at(&c, 30, 10), 0x808080);
  c.opacity = 1;
  kr_canvas_dot(&c, 45, 20, 4);
  assert_int_equal(at(&c, 45, 20), 0);
  assert_int_equal(at(&c, 45, 26), 0xffffff);
  kr_canvas_close(&c);
}

static void what_is_outside_is_left_out(void **state) {
  (void)state;
  static const double far[] = {-1e300, -1e9, -3, 0, 1e9, 1e300, NAN, INFINITY, -INFINITY};
  enum { N = sizeof far / sizeof *far };
  kr_canvas c = opened(WIDTH, HEIGHT);
  for (int i = 0; i < N * N * N; i++) {
    const double a = far[i % N], b = far[i / N % N], d = far[i / N / N];
    kr_chart_line(&c, a, b, d, a);
    kr_canvas_dot(&c, a, b, 5);
    kr_stroke_draw(&c, a, b, i & 1, 12, "text");
  }
  memset(c.pixels, 0xff, (size_t)WIDTH * HEIGHT * sizeof *c.pixels);
  kr_canvas_fill(&c, -5, -5, 10, 6);
  assert_int_equal(at(&c, 4, 0) & 0xffffff, 0);
  assert_int_equal(at(&c, 5, 0) & 0xffffff, 0xffffff);
  kr_canvas_pixel(&c, WIDTH, 0, 0), kr_canvas_pixel(&c, 0, -1, 0);
  kr_canvas_close(&c);
}

/* Every letter leaves ink within its width and its line, and no two are the same. */
static void letters_are_different(void **state) {
  (void)state;
  enum { SIDE = 60, N = '~' - '!' + 1 };
  uint32_t *seen[N];
  char text[2] = "";
  for (int i = 0; i < N; i++) {
    kr_canvas c = opened(SIDE, SIDE);
    text[0] = (char)('!' + i);
    const double width = kr_stroke_width(40, text);
    kr_stroke_draw(&c, 10, 45, 0, 40, text);
    assert_true(count_ink(&c) > 8);
    for (int k = 0; k < SIDE * SIDE; k++)
      if (c.pixels[k] != 0xffffff && (k % SIDE < 7 || k % SIDE > 13 + width || k / SIDE > 57))
        fail_msg("'%s' is too large", text);
    for (int k = 0; k < i; k++)
      if (memcmp(seen[k], c.pixels, SIDE * SIDE * sizeof *c.pixels) == 0) fail_msg("'%s' is '%c'", text, '!' + k);
    seen[i] = c.pixels, c.pixels = NULL;
    kr_canvas_close(&c);
  }
  for (int i = 0; i < N; i++) kr_free(seen[i]);
}

static int ink_of(const char *text) {
  kr_canvas c = opened(200, 40);
  kr_stroke_draw(&c, 5, 25, 0, 16, text);
  const int n = count_ink(&c);
  kr_canvas_close(&c);
  return n;
}

static void texts_of_all_kinds(void **state) {
  (void)state;
  assert_int_equal(ink_of(""), 0);
  assert_int_equal(ink_of(" "), 0);
  assert_true(ink_of("\xc3\xa4") > ink_of("a") + 2);                 /* an accent */
  assert_int_equal(ink_of("\xc3\xa4"), ink_of("a\xcc\x88"));         /* the same, not composed */
  assert_int_equal(ink_of("\xe6\x97\xa5"), ink_of("\xff"));           /* boxes: not in the font, not UTF-8 */
  assert_true(kr_stroke_width(16, "a\xcc\x88") == kr_stroke_width(16, "a"));
  assert_true(kr_stroke_width(16, "ab") > 2 * kr_stroke_width(16, "a"));
  assert_true(kr_stroke_width(16, "") == 0);
}

static uint32_t get32(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The bytes of the rows, inflated, of a PNG with one IDAT. */
static void unpack(const char *path, uint8_t *rows, size_t n_rows) {
  static uint8_t bytes[1 << 16];
  FILE *file = fopen(path, "rb");
  const size_t n = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  assert_memory_equal(bytes, "\x89PNG\r\n\x1a\n", 8);
  int n_chunks = 0;
  for (size_t i = 8; i < n; i += 12 + get32(bytes + i), n_chunks++) {
    const uint32_t length = get32(bytes + i);
    assert_int_equal(get32(bytes + i + 8 + length), crc32(0, bytes + i + 4, length + 4));
    uLongf n_unpacked = n_rows;
    if (n_chunks == 0) assert_int_equal(get32(bytes + i + 8), WIDTH);
    if (n_chunks == 1) assert_int_equal(uncompress(rows, &n_unpacked, bytes + i + 8, length), Z_OK);
    if (n_chunks == 1) assert_int_equal(n_unpacked, n_rows);
  }
  assert_int_equal(n_chunks, 3);
}

static void png_is_read_back(void **state) {
  (void)state;
  enum { ROW = 1 + 3 * WIDTH };
  uint8_t rows[HEIGHT * ROW];
  char path[] = "/tmp/krait-canvas-XXXXXX";
  kr_canvas c = opened(WIDTH, HEIGHT);
  for (int i = 0; i < WIDTH * HEIGHT; i++) kr_canvas_pixel(&c, i % WIDTH, i / WIDTH, (uint32_t)i * 2654435761u >> 8);
  close(mkstemp(path));
  assert_int_equal(kr_chart_write(&c, path), KRAIT_OK);
  unpack(path, rows, sizeof rows);
  for (int i = 0; i < WIDTH * HEIGHT; i++) {
    uint8_t *pixel = rows + i / WIDTH * ROW + 1 + 3 * (i % WIDTH);
    for (int k = 0; i >= WIDTH && k < 3; k++) pixel[k] = (uint8_t)(pixel[k] + pixel[k - ROW]);
    assert_int_equal(pixel[0] << 16 | pixel[1] << 8 | pixel[2], c.pixels[i]);
  }
  for (long n = 1; n <= 3; n++) { /* no memory: a sentence, and the old file */
    kr_alloc_fail_after(n);
    const int32_t status = kr_chart_write(&c, path);
    kr_alloc_fail_after(0);
    assert_int_equal(status, KRAIT_ERR_NO_MEMORY);
  }
  unlink(path);
  kr_canvas_close(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shapes_cover_what_they_say),
      cmocka_unit_test(what_is_outside_is_left_out),
      cmocka_unit_test(letters_are_different),
      cmocka_unit_test(texts_of_all_kinds),
      cmocka_unit_test(png_is_read_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
