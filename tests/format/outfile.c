/* outfile.c: an output appears whole or not at all. */
#define _GNU_SOURCE
#include "../folder.h"
#include "../test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "outfile.h"
#include "status.h"

static char folder[] = "/tmp/krait-test-XXXXXX";
static char path[64];

static int enter_folder(void **state) {
  (void)state;
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s/out.wav", folder);
  return 0;
}

static void put(const char *name, const char *text) {
  FILE *file = fopen(name, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  fclose(file);
}

static void assert_holds(const char *name, const char *text) {
  char found[64] = "";
  FILE *file = fopen(name, "r");
  assert_non_null(file);
  if (!fgets(found, sizeof found, file)) found[0] = 0;
  fclose(file);
  assert_string_equal(found, text);
}

static void commit_replaces_and_abandon_keeps(void **state) {
  (void)state;
  kr_outfile file;
  struct stat info;
  put(path, "old");
  assert_int_equal(kr_outfile_begin(&file, path), KRAIT_OK);
  assert_string_not_equal(file.temp_path, path);
  put(file.temp_path, "half");
  assert_holds(path, "old");
  kr_outfile_abandon(&file);
  kr_outfile_abandon(&file);
  assert_holds(path, "old");
  assert_int_equal(kr_count_files(folder), 1);

  mode_t mask = umask(027);
  assert_int_equal(kr_outfile_begin(&file, path), KRAIT_OK);
  umask(mask);
  put(file.temp_path, "new");
  assert_int_equal(kr_outfile_commit(&file), KRAIT_OK);
  kr_outfile_abandon(&file);
  assert_holds(path, "new");
  assert_int_equal(stat(path, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0640);
  assert_int_equal(kr_count_files(folder), 1);
  unlink(path);
}

static void a_link_stays_a_link(void **state) {
  (void)state;
  kr_outfile file;
  struct stat info;
  char link[80];
  snprintf(link, sizeof link, "%s/link.wav", folder);
  put(path, "old");
  assert_int_equal(symlink("out.wav", link), 0);
  assert_int_equal(kr_outfile_begin(&file, link), KRAIT_OK);
  put(file.temp_path, "new");
  assert_int_equal(kr_outfile_commit(&file), KRAIT_OK);
  assert_holds(path, "new");
  assert_int_equal(lstat(link, &info), 0);
  assert_true(S_ISLNK(info.st_mode));
  unlink(link);
  unlink(path);
}

static void what_is_no_file_is_written_directly(void **state) {
  (void)state;
  kr_outfile file;
  assert_int_equal(kr_outfile_begin(&file, "/dev/null"), KRAIT_OK);
  assert_string_equal(file.temp_path, "/dev/null");
  assert_int_equal(kr_outfile_commit(&file), KRAIT_OK);
  assert_int_equal(access("/dev/null", W_OK), 0);
}

static void impossible_places_are_refused(void **state) {
  (void)state;
  kr_outfile file;
  char long_name[400];
  assert_int_equal(kr_outfile_begin(&file, folder), KRAIT_ERR_FILE_WRITE);
  assert_non_null(strstr(krait_error_detail(), "is a folder"));
  snprintf(path, sizeof path, "%s/none/out.wav", folder);
  assert_int_equal(kr_outfile_begin(&file, path), KRAIT_ERR_FILE_WRITE);
  assert_non_null(strstr(krait_error_detail(), "No such file"));
  memset(long_name, 'x', sizeof long_name - 1);
  long_name[sizeof long_name - 1] = 0;
  assert_int_equal(kr_outfile_begin(&file, long_name), KRAIT_ERR_FILE_WRITE);
  assert_int_equal(kr_outfile_begin(&file, ""), KRAIT_ERR_FILE_WRITE);
  snprintf(path, sizeof path, "%s/out.wav", folder);
  if (geteuid() == 0) return; /* root may write anywhere */
  chmod(folder, 0500);
  assert_int_equal(kr_outfile_begin(&file, path), KRAIT_ERR_FILE_WRITE);
  chmod(folder, 0700);
}

static void a_handler_removes_what_is_open(void **state) {
  (void)state;
  kr_outfile files[3];
  for (int i = 0; i < 3; i++) assert_int_equal(kr_outfile_begin(&files[i], path), KRAIT_OK);
  assert_int_equal(kr_count_files(folder), 3);
  kr_outfile_abandon_all();
  assert_int_equal(kr_count_files(folder), 0);
  for (int i = 0; i < 3; i++) kr_outfile_abandon(&files[i]);
}

static void *write_many(void *name) {
  kr_outfile file;
  for (int i = 0; i < 50; i++) {
    if (kr_outfile_begin(&file, name) != KRAIT_OK) return "begin";
    if (kr_outfile_commit(&file) != KRAIT_OK) return "commit";
  }
  return NULL;
}

static void threads_do_not_share_names(void **state) {
  (void)state;
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, write_many, path), 0);
  for (int i = 0; i < 4; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  assert_int_equal(kr_count_files(folder), 1);
  unlink(path);
}

static int leave_folder(void **state) {
  (void)state;
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(commit_replaces_and_abandon_keeps), cmocka_unit_test(a_link_stays_a_link),            cmocka_unit_test(what_is_no_file_is_written_directly),
      cmocka_unit_test(impossible_places_are_refused),     cmocka_unit_test(a_handler_removes_what_is_open), cmocka_unit_test(threads_do_not_share_names)};
  return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
