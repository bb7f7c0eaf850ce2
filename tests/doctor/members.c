/* members.c: a wheel of large members, read by one thread and by several: same answer, no race (for
 * ThreadSanitizer). */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zip.h>

#include "../test.h"

#include <krait/doctor.h>

enum { N_MEMBERS = 5, LARGE = 36 << 20, SMALL = 3 << 20 };

static char path[] = "/tmp/krait-members-XXXXXX/x-1.0-cp311-cp311-linux_x86_64.whl";

static size_t load(const char *name, uint8_t *out, size_t cap) {
  char full[600];
  snprintf(full, sizeof full, "%s/%s", FIXTURES, name);
  FILE *file = fopen(full, "rb");
  assert_non_null(file);
  const size_t n = fread(out, 1, cap, file);
  fclose(file);
  return n;
}

/* Containers far apart, zeros between them, and noise after the last: every way to search for the next one. A list
 * reads noise as a broken container, so its members have none. */
static uint8_t *make_member(int i, size_t bytes, int with_noise) {
  uint8_t *data = calloc(1, bytes);
  uint32_t x = 12345 + (uint32_t)i;
  size_t at = load("plain.fatbin", data, bytes);
  for (size_t k = bytes / 2; with_noise && k < bytes; k++) data[k] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
  if (i % 2 == 0) load("zstd.fatbin", data + (at + 4096) / 256 * 256, bytes / 4);
  return data;
}

static int make_folder(void **state) {
  (void)state;
  char folder[sizeof path];
  snprintf(folder, sizeof folder, "%.*s", 25, path);
  assert_non_null(mkdtemp(folder));
  memcpy(path, folder, 25);
  return 0;
}

static void make_wheel(int with_noise) {
  zip_t *zip = zip_open(path, ZIP_CREATE | ZIP_TRUNCATE, NULL);
  assert_non_null(zip);
  for (int i = 0; i < N_MEMBERS; i++) {
    const size_t bytes = i < 2 ? LARGE : SMALL;
    char name[20];
    snprintf(name, sizeof name, "m%d.so", i);
    const zip_int64_t at =
        zip_file_add(zip, name, zip_source_buffer(zip, make_member(i, bytes, with_noise), bytes, 1), 0);
    assert_true(at >= 0);
    zip_set_file_compression(zip, (zip_uint64_t)at, i == 1 ? ZIP_CM_STORE : ZIP_CM_DEFLATE, 1);
  }
  assert_int_equal(zip_close(zip), 0);
}

static int remove_wheel(void **state) {
  (void)state;
  remove(path);
  path[25] = '\0';
  return rmdir(path);
}

static char *ask(int is_list) {
  krait_report *report = NULL;
  const char *text = NULL, *const paths[] = {path};
  const krait_doctor_options options = {.size = sizeof options,
                                        .paths = paths,
                                        .n_paths = 1,
                                        .gpu = "9.0",
                                        .driver = "570.86",
                                        .root = "/nonexistent",
                                        .all = 1};
  if (is_list) assert_int_equal(krait_doctor_list(path, &report, &text), KRAIT_OK);
  else if (krait_doctor_run(&options, &report) == KRAIT_OK) text = krait_report_json(report, 0);
  char *copy = strdup(text ? text : "");
  krait_report_close(&report);
  return copy;
}

static void several_threads_agree_with_one(void **state) {
  (void)state;
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  if (CPU_COUNT(&all) < 2) skip();
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  for (int is_list = 0; is_list < 2; is_list++) {
    make_wheel(!is_list);
    sched_setaffinity(0, sizeof one, &one);
    char *alone = ask(is_list);
    sched_setaffinity(0, sizeof all, &all);
    char *together = ask(is_list);
    assert_true(strlen(alone) > 500 && strstr(alone, is_list ? "cubin sm_" : "m4.so"));
    assert_string_equal(alone, together);
    free(alone);
    free(together);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(several_threads_agree_with_one, make_folder, remove_wheel)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
