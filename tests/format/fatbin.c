/* fatbin.c: published header vectors, real images packed in every way, and damage: every prefix, many flipped bytes. */
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include <krait/doctor.h>

#include "elf.h"
#include "fatbin.h"

enum { MAX_BYTES = 65536 };
static uint8_t buffer[MAX_BYTES];

/* Container header (its first 8 bytes dropped) and the first 48 bytes of the entry, as nvcc 13.0 wrote them. */
static const struct {
  const char *name, *hex;
  int kind, sm, suffix, pack;
  uint32_t packed, unpacked; /* 0: not stated */
} entries[] = {
    {"sm_75",
     "e80c0000000000000200010140000000a80c0000000000000000000000000000080001004b00000000000000000000001100000000000000",
     2, 75, 0, 0, 0, 3240},
    {"sm_80",
     "680d0000000000000200010140000000280d0000000000000000000000000000080001005000000000000000000000001100000000000000",
     2, 80, 0, 0, 0, 3368},
    {"sm_86",
     "680d0000000000000200010140000000280d0000000000000000000000000000080001005600000000000000000000001100000000000000",
     2, 86, 0, 0, 0, 0},
    {"sm_89",
     "680d0000000000000200010140000000280d0000000000000000000000000000080001005900000000000000000000001100000000000000",
     2, 89, 0, 0, 0, 0},
    {"sm_90",
     "c80f0000000000000200010140000000880f0000000000000000000000000000080001005a00000000000000000000001100000000000000",
     2, 90, 0, 0, 0, 0},
    {"sm_90a",
     "c80f0000000000000200010140000000880f0000000000000000000000000000080001005a00000000000000000000001100100000000000",
     2, 90, 'a', 0, 0, 0},
    {"sm_100",
     "d016000000000000020001017000000060160000000000000000000040000000080001006400000000000000000000001100000100000000",
     2, 100, 0, 0, 0, 0},
    {"sm_100a",
     "d016000000000000020001017000000060160000000000000000000040000000080001006400000000000000000000001100100100000000",
     2, 100, 'a', 0, 0, 0},
    {"sm_100f",
     "d016000000000000020001017000000060160000000000000000000040000000080001006400000000000000000000001100200100000000",
     2, 100, 'f', 0, 0, 0},
    {"sm_103",
     "d016000000000000020001017000000060160000000000000000000040000000080001006700000000000000000000001100000100000000",
     2, 103, 0, 0, 0, 0},
    {"sm_120",
     "d016000000000000020001017000000060160000000000000000000040000000080001007800000000000000000000001100000100000000",
     2, 120, 0, 0, 0, 0},
    {"sm_120a",
     "d016000000000000020001017000000060160000000000000000000040000000080001007800000000000000000000001100100100000000",
     2, 120, 'a', 0, 0, 0},
    {"ptx75",
     "d801000000000000010001015000000088010000000000008701000040000000000009004b00000000000000000000001180000000000000",
     1, 75, 0, 3, 391, 904},
    {"size",
     "d001000000000000010001015000000080010000000000007f01000040000000000009004b00000000000000000000001180000000000000",
     1, 75, 0, 3, 383, 904},
    {"speed",
     "5002000000000000010001015000000000020000000000000002000040000000000009004b00000000000000000000001120000000000000",
     1, 75, 0, 2, 512, 904},
    {"none",
     "d803000000000000010001015000000088030000000000000000000040000000000009004b00000000000000000000001100000000000000",
     1, 75, 0, 0, 0, 904},
    {"ptx120f",
     "e801000000000000010001015000000098010000000000009101000040000000000009007800000000000000000000001180200000000000",
     1, 120, 'f', 3, 401, 930},
    {"80 all",
     "f0030000000000000200010140000000b003000000000000ac03000000000000080001005000000000000000000000001180000000000000",
     2, 80, 0, 3, 940, 3368},
    {"80 lz4",
     "5005000000000000020001014000000010050000000000000d05000000000000080001005000000000000000000000001120000000000000",
     2, 80, 0, 2, 1293, 3368},
    {"80 -G",
     "800c0000000000000200010148000000380c000000000000320c000000000000080001005000000040000000040000001380000000000000",
     2, 80, 0, 3, 0, 0},
    {"lto_80",
     "b007000000000000080001017800000038070000000000003507000040000000410001005000000000000000000000001180010000000000",
     8, 80, 0, 0, 0, 0},
};

static const struct {
  const char *name, *hex;
  int sm, suffix, toolkit, new_abi;
} cubins[] = {
    {"12.8 sm_80",
     "7f454c460201013307000000000000000200be008000000000000000000000008009000000000000800600000000000050055000400038000"
     "30040000c000100",
     80, 0, 128, 0},
    {"12.8 sm_90a",
     "7f454c460201013307000000000000000200be00800000000000000000000000180a00000000000018070000000000005a0d5a00400038000"
     "50040000c000100",
     90, 'a', 128, 0},
    {"12.9 sm_70",
     "7f454c460201013307000000000000000200be008100000000000000000000000009000000000000000600000000000046054600400038000"
     "30040000c000100",
     70, 0, 129, 0},
    {"12.8 sm_100a",
     "7f454c460201014108000000000000000200be00010000000000000000000000d811000000000000580c0000000000000a640006400038000"
     "500400016000100",
     100, 'a', 0, 1},
    {"12.9 sm_120f",
     "7f454c460201014108000000000000000200be00010000000000000000000000f011000000000000700c00000000000002780006400038000"
     "500400016000100",
     120, 0, 0, 1},
    {"13.0 sm_80",
     "7f454c460201014108000000000000000200be00010000000000000000000000800c000000000000000900000000000004500006400038000"
     "30040000e000100",
     80, 0, 0, 1},
    {"13.0 sm_90a",
     "7f454c460201014108000000000000000200be00010000000000000000000000700e000000000000b00a000000000000045a0006400038000"
     "50040000f000100",
     90, 0, 0, 1},
    {"11.1 sm_86",
     "7f454c460201013307000000000000000200be006f0000000000000000000000801c010000000000801801000000000056055600400038000"
     "300400010000100",
     86, 0, 111, 0},
};

static size_t put_hex(uint8_t *out, const char *hex) {
  size_t n = strlen(hex) / 2;
  for (size_t i = 0; i < n; i++) {
    unsigned byte;
    assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
    out[i] = (uint8_t)byte;
  }
  return n;
}

static void vectors_decode_as_stated(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    memset(buffer, 0, sizeof buffer);
    put_hex(buffer, "50ed55ba01001000");
    put_hex(buffer + 8, entries[i].hex);
    if (entries[i].unpacked)
      buffer[72] = (uint8_t)entries[i].unpacked, buffer[73] = (uint8_t)(entries[i].unpacked >> 8);
    kr_source source = kr_source_memory(buffer, 16 + (size_t)kr_le64(buffer + 8), entries[i].name);
    kr_fatbin fatbin;
    kr_entry e;
    assert_int_equal(kr_fatbin_at(&source, 0, source.size, &fatbin), 1);
    assert_int_equal(fatbin.size, source.size);
    uint64_t at = 16;
    assert_int_equal(kr_entry_next(&source, &fatbin, &at, &e), 1);
    assert_int_equal(at, source.size);
    assert_int_equal(e.kind, entries[i].kind);
    assert_int_equal(e.sm, entries[i].sm);
    assert_int_equal(kr_entry_suffix(&e), entries[i].suffix);
    assert_int_equal(kr_entry_pack(&e), strcmp(entries[i].name, "lto_80") == 0 ? KR_PACK_OLD : entries[i].pack);
    if (entries[i].packed) assert_int_equal(e.packed_bytes, entries[i].packed);
    if (strcmp(entries[i].name, "80 -G") == 0)
      assert_int_equal(e.n_name, 4), assert_int_equal(e.name, 0x40), assert_true(e.flags & KR_FLAG_DEBUG);
    assert_int_equal(kr_entry_next(&source, &fatbin, &at, &e), 0);
    assert_int_equal(kr_fatbin_next(&source, 0, source.size, &fatbin, &fatbin), 0);
  }
}

static void cubin_headers_decode_as_stated(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cubins / sizeof *cubins; i++) {
    kr_elf elf;
    kr_cubin cubin;
    kr_source source = kr_source_memory(buffer, put_hex(buffer, cubins[i].hex), cubins[i].name);
    assert_int_equal(kr_elf_open(&elf, &source, 0, source.size), KRAIT_OK);
    assert_int_equal(kr_cubin_read(&elf, &cubin), KRAIT_OK);
    assert_int_equal(cubin.sm, cubins[i].sm);
    assert_int_equal(cubin.suffix, cubins[i].suffix);
    assert_int_equal(cubin.toolkit, cubins[i].toolkit);
    assert_int_equal(cubin.new_abi, cubins[i].new_abi);
  }
}

static size_t load(const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", FIXTURES, name);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  size_t n = fread(buffer, 1, sizeof buffer, file);
  fclose(file);
  assert_true(n > 100 && n < sizeof buffer);
  return n;
}

static double slowest_s; /* of all walks over damaged input, in CPU time: the machine may be shared */

/* Walks everything; returns a sum, so that the compiler removes nothing. */
static int64_t walk(const uint8_t *bytes, size_t n) {
  krait_scan *scan;
  krait_container container = {.size = sizeof container};
  krait_image image = {.size = sizeof image};
  char name[256];
  int64_t sum = 0;
  int steps = 0;
  if (krait_scan_open_bytes(bytes, n, &scan) < 0) return -1;
  while (krait_scan_next_container(scan, &container) == 1 && steps++ < 1000)
    while (krait_scan_next_image(scan, &image) == 1 && steps++ < 1000) {
      sum += image.sm * 8 + image.suffix + image.kind + image.ptx;
      for (int k = 0; k < 64 && krait_scan_next_kernel(scan, name, sizeof name) == 1; k++) sum += 1000000;
    }
  for (uint64_t cursor = 0; steps < 2000 && krait_scan_next_symbol(scan, 1, &cursor, name, sizeof name) == 1; steps++)
    sum++;
  krait_scan_close(&scan);
  assert_true(steps < 2000);
  return sum;
}

static void walk_damage(const uint8_t *bytes, size_t n) {
  const clock_t begin = clock();
  walk(bytes, n);
  const double took_s = (double)(clock() - begin) / CLOCKS_PER_SEC;
  if (took_s > slowest_s) slowest_s = took_s;
}

static void packed_images_equal_plain_ones(void **state) {
  (void)state;
  const int64_t one_kernel = 1000000;
  int64_t plain = walk(buffer, load("plain.fatbin"));
  assert_int_equal(plain / one_kernel, 4);
  assert_int_equal(walk(buffer, load("zstd.fatbin")), plain);
  assert_int_equal(walk(buffer, load("lz4.fatbin")), plain);
  assert_int_equal(walk(buffer, load("sm120.cubin")), one_kernel + 120 * 8 + KRAIT_IMAGE_CUBIN);
}

static void suffix_is_found_in_all_three_places(void **state) {
  (void)state;
  size_t n = load("plain.fatbin");
  krait_scan *scan;
  krait_container container = {.size = sizeof container};
  krait_image image = {.size = sizeof image};
  assert_int_equal(krait_scan_open_bytes(buffer, n, &scan), KRAIT_OK);
  assert_int_equal(krait_scan_next_container(scan, &container), 1);
  int n_images = 0, at_90a = 0;
  while (krait_scan_next_image(scan, &image) == 1) n_images++, at_90a = image.sm == 90 ? (int)image.offset : at_90a;
  assert_int_equal(n_images, 4);
  assert_true(at_90a > 0);
  krait_scan_close(&scan);
  buffer[at_90a + 0x2a] &= (uint8_t)~0x10; /* without the entry's flag .nv.compat decides */
  assert_int_equal(krait_scan_open_bytes(buffer, n, &scan), KRAIT_OK);
  krait_scan_next_container(scan, &container);
  while (krait_scan_next_image(scan, &image) == 1)
    if (image.sm == 90) assert_int_equal(image.suffix, 'a');
  krait_scan_close(&scan);
  kr_ptx ptx;
  assert_int_equal(kr_ptx_read("//\n.version 9.0\n.target sm_120f\n", 33, &ptx), KRAIT_OK);
  assert_int_equal(ptx.suffix, 'f');
  assert_int_equal(ptx.version, 90);
}

static void impossible_sizes_are_damage(void **state) {
  (void)state;
  static const struct { int at; uint64_t value; int bytes;
  } lies[] = {{8, UINT64_MAX, 8},   {8, UINT64_MAX - 15, 8},  {20, 0, 4},          {20, 0x3f, 4},
              {20, 0xfffffff8u, 4}, {24, UINT64_MAX - 63, 8}, {24, UINT64_MAX, 8}, {32, 0xffffffffu, 4},
              {36, 0xfffffff0u, 4}, {24, (uint64_t)-0x40, 8}};
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    size_t n = load("zstd.fatbin");
    for (int k = 0; k < lies[i].bytes; k++) buffer[lies[i].at + k] = (uint8_t)(lies[i].value >> 8 * k);
    kr_source source = kr_source_memory(buffer, n, "lie");
    kr_fatbin fatbin;
    kr_entry e;
    uint64_t at = 16;
    int32_t status = kr_fatbin_at(&source, 0, n, &fatbin);
    if (status == 1) status = kr_entry_next(&source, &fatbin, &at, &e);
    assert_int_equal(status, KRAIT_ERR_FILE_FORMAT);
  }
}

static void bombs_are_refused(void **state) {
  (void)state;
  size_t n_out, n = load("zstd.fatbin");
  uint8_t out[64];
  kr_source source = kr_source_memory(buffer, n, "bomb");
  kr_entry e = {.kind = 2,
                .packed_bytes = 400,
                .payload = 80,
                .payload_bytes = 400,
                .flags = KR_FLAG_ZSTD,
                .unpacked_bytes = 1ull << 40};
  assert_int_equal(kr_entry_unpack(&source, &e, out, sizeof out, &n_out), KRAIT_ERR_FILE_FORMAT);
  e.unpacked_bytes = 400 * 2001;
  assert_int_equal(kr_entry_unpack(&source, &e, out, sizeof out, &n_out), KRAIT_ERR_FILE_FORMAT);
  memset(buffer, 255, sizeof buffer); /* an LZ4 length that never ends */
  source = kr_source_memory(buffer, sizeof buffer, "bomb");
  e = (kr_entry){.kind = 2,
                 .packed_bytes = 60000,
                 .payload = 0,
                 .payload_bytes = 60000,
                 .flags = KR_FLAG_LZ4,
                 .unpacked_bytes = 60000000};
  assert_int_equal(kr_entry_unpack(&source, &e, out, sizeof out, &n_out), KRAIT_ERR_FILE_FORMAT);
}

static void walk_prefixes(size_t n) {
  uint8_t *copy = malloc(n);
  assert_non_null(copy);
  for (size_t k = 0; k < n; k++) {
    memcpy(copy + n - k, buffer, k); /* at the block's end, so that a sanitizer detects a byte too many */
    walk_damage(copy + n - k, k);
  }
  free(copy);
}

static void every_prefix_terminates(void **state) {
  (void)state;
  static const char *const names[] = {"zstd.fatbin", "lz4.fatbin", "plain.fatbin", "sm120.cubin"};
  for (size_t i = 0; i < 4; i++) walk_prefixes(load(names[i]));
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
    put_hex(buffer, "50ed55ba01001000");
    walk_prefixes(8 + put_hex(buffer + 8, entries[i].hex));
  }
  for (size_t i = 0; i < sizeof cubins / sizeof *cubins; i++) walk_prefixes(put_hex(buffer, cubins[i].hex));
}

static void flipped_bytes_terminate(void **state) {
  (void)state;
  static const char *const names[] = {"zstd.fatbin", "lz4.fatbin", "plain.fatbin", "sm120.cubin"};
  uint64_t random = 88172645463325252ull;
  for (int round = 0; round < N_FLIPS; round++) {
    static size_t n;
    if (round % (N_FLIPS / 4) == 0) n = load(names[round / (N_FLIPS / 4) % 4]);
    size_t at[3];
    uint8_t old[3];
    for (int k = 0; k < 3; k++) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      at[k] = (k ? random >> 20 : random >> 20 & 511) % n; /* one of the three in the headers */
      old[k] = buffer[at[k]];
      buffer[at[k]] = (uint8_t)random;
    }
    walk_damage(buffer, n);
    for (int k = 2; k >= 0; k--) buffer[at[k]] = old[k];
  }
}

/* After all that damage. Sanitizers need extra memory and time. */
static void damage_costs_little(void **state) {
  (void)state;
  struct rusage usage;
  assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
  if (N_FLIPS < 100000) skip();
  assert_true(slowest_s < 1);
  assert_true(usage.ru_maxrss < 256 * 1024);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(vectors_decode_as_stated), cmocka_unit_test(cubin_headers_decode_as_stated),
      cmocka_unit_test(packed_images_equal_plain_ones), cmocka_unit_test(suffix_is_found_in_all_three_places),
      cmocka_unit_test(impossible_sizes_are_damage), cmocka_unit_test(bombs_are_refused),
      cmocka_unit_test(every_prefix_terminates), cmocka_unit_test(flipped_bytes_terminate),
      cmocka_unit_test(damage_costs_little)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
