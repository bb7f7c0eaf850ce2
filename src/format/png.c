/* png.c: one header, one stream of compressed rows, each as its difference from the row above, and an end. */
#include "png.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "alloc.h"
#include "status.h"

enum { UP = 2 /* the filter of a row */, N_HEADER = 13, RGB = 2 };

static void put32(uint8_t *to, uint32_t value) {
  for (int i = 0; i < 4; i++) to[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* name: 4 letters. -> whether all was written. */
static int put_chunk(FILE *file, const char *name, const uint8_t *bytes, size_t n) {
  uint8_t length[4], sum[4];
  put32(length, (uint32_t)n);
  const uLong crc = crc32(crc32(0, (const Bytef *)name, 4), bytes, (uInt)n);
  put32(sum, (uint32_t)crc);
  return fwrite(length, 1, 4, file) == 4 && fwrite(name, 1, 4, file) == 4 && fwrite(bytes, 1, n, file) == n &&
         fwrite(sum, 1, 4, file) == 4;
}

static void filter_rows(const uint32_t *pixels, size_t width, size_t height, uint8_t *to) {
  for (size_t y = 0; y < height; y++) {
    *to++ = UP;
    for (size_t x = 0; x < width; x++) {
      const uint32_t at = pixels[y * width + x], above = y ? pixels[(y - 1) * width + x] : 0;
      for (int shift = 16; shift >= 0; shift -= 8) *to++ = (uint8_t)((at >> shift) - (above >> shift));
    }
  }
}

static int32_t write_png(const kr_outfile *target, const uint8_t *header, const uint8_t *rows, size_t n) {
  FILE *file = fopen(target->temp_path, "wb");
  if (!file) return kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", target->path);
  errno = 0;
  int failed = fwrite("\x89PNG\r\n\x1a\n", 1, 8, file) != 8 || !put_chunk(file, "IHDR", header, N_HEADER) ||
               !put_chunk(file, "IDAT", rows, n) || !put_chunk(file, "IEND", header, 0);
  if (fclose(file) != 0) failed = 1;
  return failed ? kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", target->path) : KRAIT_OK;
}

int32_t kr_png_put(const kr_outfile *target, const uint32_t *pixels, int32_t width, int32_t height) {
  KR_CHECK(width > 0 && height > 0 && width < 1 << 14 && height < 1 << 14, KRAIT_ERR_ARGUMENT,
           "%s: a picture of %d x %d pixels is not written", target->path, width, height);
  uint8_t header[N_HEADER] = {[8] = 8, [9] = RGB};
  put32(header, (uint32_t)width), put32(header + 4, (uint32_t)height);
  const size_t n = (size_t)height * (1 + 3 * (size_t)width);
  uLongf n_packed = compressBound(n);
  uint8_t *rows = kr_alloc(n), *packed = kr_alloc(n_packed);
  int32_t status = KRAIT_ERR_NO_MEMORY;
  if (rows && packed) {
    filter_rows(pixels, (size_t)width, (size_t)height, rows);
    if (compress(packed, &n_packed, rows, n) == Z_OK) status = write_png(target, header, packed, n_packed);
  }
  kr_free(rows);
  kr_free(packed);
  return status != KRAIT_ERR_NO_MEMORY ? status : kr_fail(status, "no memory for %s", target->path);
}
