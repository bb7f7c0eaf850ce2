/* outfile.c: an output appears complete or not at all. */
#define _GNU_SOURCE
#include "../folder.h"
#include "../test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

/* Of two writers that both found nothing, the later one loses, with and without unnamed files, and only once: the next
 * output under the name replaces its own. */
static void a_claimed_output_is_the_first(void **state) {
  (void)state;
  kr_outfile file;
  for (int use_names = 0; use_names < 2; use_names++) {
    kr_outfile_use_names(use_names);
    for (int early = 0; early < 2; early++) { /* the other one is there before this one begins, or before it ends */
      assert_int_equal(kr_outfile_claim(path, 1), KRAIT_OK);
      if (early) put(path, "theirs");
      assert_int_equal(kr_outfile_begin(&file, path), KRAIT_OK);
      put(file.temp_path, "ours");
      if (!early) put(path, "theirs");
      assert_int_equal(kr_outfile_commit(&file), KRAIT_ERR_FILE_WRITE);
      assert_non_null(strstr(krait_error_detail(), "exists and is not replaced"));
      assert_holds(path, "theirs");
      assert_int_equal(kr_count_files(folder), 1);
      assert_int_equal(kr_outfile_claim(path, 1), KRAIT_ERR_FILE_WRITE);
      unlink(path);
    }
    for (int i = 0; i < 2; i++) {
      assert_int_equal(kr_outfile_text(path, "ours"), KRAIT_OK);
      assert_holds(path, "ours");
    }
    assert_int_equal(kr_outfile_claim(path, 0), KRAIT_OK);
    assert_int_equal(kr_outfile_text(path, "again"), KRAIT_OK);
    unlink(path);
    assert_int_equal(kr_count_files(folder), 0);
  }
  kr_outfile_use_names(0);
  char missing[80];
  snprintf(missing, sizeof missing, "%s/none/out", folder);
  assert_int_equal(kr_outfile_claim(missing, 1), KRAIT_ERR_FILE_WRITE);
}

static void special_files_are_written_directly(void **state) {
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
  if (geteuid() == 0) return; /* root can write anywhere */
  chmod(folder, 0500);
  assert_int_equal(kr_outfile_begin(&file, path), KRAIT_ERR_FILE_WRITE);
  chmod(folder, 0700);
}

/* In a child: from then on its process uses no names. Returns how many checks failed. */
static int stop_with_three_open(void) {
  kr_outfile files[3], more;
  int failed = 0;
  kr_outfile_use_names(1);
  for (int i = 0; i < 3; i++) failed += kr_outfile_begin(&files[i], path) != KRAIT_OK;
  failed += kr_count_files(folder) != 3;
  kr_outfile_abandon_all();
  failed += kr_count_files(folder) != 0;
  failed += kr_outfile_begin(&more, path) != KRAIT_ERR_CANCELLED;
  failed += kr_outfile_commit(&files[0]) != KRAIT_ERR_CANCELLED;
  for (int i = 0; i < 3; i++) kr_outfile_abandon(&files[i]);
  failed += kr_count_files(folder) != 0;
  return failed;
}

static void a_handler_removes_what_is_open(void **state) {
  (void)state;
  int status = 0;
  const pid_t child = fork();
  if (child == 0) _exit(stop_with_three_open());
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

/* With names and, if the file system supports it, without. */
static void nothing_is_replaced_unasked(void **state) {
  (void)state;
  kr_outfile file;
  for (int names = 0; names < 2; names++) {
    kr_outfile_use_names(names);
    assert_int_equal(kr_outfile_begin(&file, path), KRAIT_OK);
    file.keep = 1;
    put(file.temp_path, "late");
    put(path, "first");
    assert_int_equal(kr_outfile_commit(&file), KRAIT_ERR_FILE_WRITE);
    assert_non_null(strstr(krait_error_detail(), "exists"));
    assert_holds(path, "first");
    assert_int_equal(kr_count_files(folder), 1);
    unlink(path);
    assert_int_equal(kr_outfile_begin(&file, path), KRAIT_OK);
    file.keep = 1;
    put(file.temp_path, "alone");
    assert_int_equal(kr_outfile_commit(&file), KRAIT_OK);
    assert_holds(path, "alone");
    assert_int_equal(kr_count_files(folder), 1);
    unlink(path);
  }
  kr_outfile_use_names(0);
}

static void the_longest_name_can_be_written(void **state) {
  (void)state;
  kr_outfile file;
  char long_path[400];
  for (int names = 0; names < 2; names++) {
    kr_outfile_use_names(names);
    for (int n = 253; n <= 256; n++) {
      snprintf(long_path, sizeof long_path, "%s/", folder);
      memset(long_path + strlen(folder) + 1, 'x', (size_t)n);
      long_path[strlen(folder) + 1 + (size_t)n] = 0;
      const int32_t status = kr_outfile_begin(&file, long_path);
      assert_int_equal(status, n <= 255 ? KRAIT_OK : KRAIT_ERR_FILE_WRITE);
      if (n > 255) continue;
      put(file.temp_path, "content");
      assert_int_equal(kr_outfile_commit(&file), KRAIT_OK);
      assert_holds(long_path, "content");
      unlink(long_path);
    }
  }
  kr_outfile_use_names(0);
}

/* Six threads write outputs while the process is stopped at a random moment: only finished ones may remain. */
static void *write_until_stopped(void *name) {
  kr_outfile file;
  char own[96];
  for (int i = 0; i < 100000; i++) {
    snprintf(own, sizeof own, "%s.%d.tmp", (const char *)name, i % 5);
    if (kr_outfile_begin(&file, own) != KRAIT_OK || kr_outfile_commit(&file) != KRAIT_OK) break;
  }
  return NULL;
}

static void stop_in_the_middle(int microseconds) {
  pthread_t threads[6];
  for (int i = 0; i < 6; i++) pthread_create(&threads[i], NULL, write_until_stopped, path);
  usleep((useconds_t)microseconds);
  kr_outfile_abandon_all();
  _exit(0);
}

static void no_temporary_name_survives_a_stop(void **state) {
  (void)state;
  char command[160];
  for (int round = 0; round < 60; round++) {
    const pid_t child = fork();
    kr_outfile_use_names(round % 2);
    if (child == 0) {
      kr_outfile_use_names(round % 2);
      stop_in_the_middle(round * 37 % 2000);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    snprintf(command, sizeof command, "ls -A %s | grep -q part", folder);
    assert_int_not_equal(system(command), 0); /* the grep finds none */
  }
  snprintf(command, sizeof command, "rm -f %s/*.tmp", folder);
  assert_int_equal(system(command), 0);
  kr_outfile_use_names(0);
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

/* ---- random sequences: several outputs by several names, other processes' files among them ---- */
typedef struct pending {
  kr_outfile file;
  int name, is_open, is_claimed; /* is_claimed when it was begun */
  char text[16];
} pending;

enum { N_NAMES = 3, N_PENDING = 4 };

/* What is under each name, and whether the next output there must be the first. */
typedef struct world {
  char paths[N_NAMES][80], held[N_NAMES][16];
  int is_claimed[N_NAMES];
  pending open[N_PENDING];
  uint32_t dice;
} world;

static uint32_t roll(world *w, uint32_t n) {
  w->dice = w->dice * 1664525u + 1013904223u;
  return (w->dice >> 8) % n;
}

static void change_as_another(world *w, int name) {
  if (roll(w, 2)) {
    snprintf(w->held[name], sizeof w->held[name], "other %u", roll(w, 1000));
    put(w->paths[name], w->held[name]);
  } else {
    unlink(w->paths[name]);
    w->held[name][0] = 0;
  }
}

static void claim(world *w, int name) {
  const int keep = (int)roll(w, 2), wants = keep && w->held[name][0] ? KRAIT_ERR_FILE_WRITE : KRAIT_OK;
  assert_int_equal(kr_outfile_claim(w->paths[name], keep), wants);
  if (wants == KRAIT_OK) w->is_claimed[name] = keep;
}

static void begin_one(world *w, pending *p, int name) {
  kr_outfile_use_names((int)roll(w, 2));
  assert_int_equal(kr_outfile_begin(&p->file, w->paths[name]), KRAIT_OK);
  p->name = name, p->is_open = 1, p->is_claimed = w->is_claimed[name];
  snprintf(p->text, sizeof p->text, "ours %u", roll(w, 1000));
  put(p->file.temp_path, p->text);
}

static void end_one(world *w, pending *p) {
  char *held = w->held[p->name];
  p->is_open = 0;
  if (roll(w, 4) == 0) {
    kr_outfile_abandon(&p->file);
    return;
  }
  const int loses = p->is_claimed && held[0];
  assert_int_equal(kr_outfile_commit(&p->file), loses ? KRAIT_ERR_FILE_WRITE : KRAIT_OK);
  if (loses) return;
  snprintf(held, sizeof w->held[0], "%s", p->text);
  w->is_claimed[p->name] = 0;
}

static void check_names(const world *w) {
  int n = 0;
  for (int i = 0; i < N_NAMES; i++) {
    if (w->held[i][0]) assert_holds(w->paths[i], w->held[i]);
    else assert_int_equal(access(w->paths[i], F_OK), -1);
    n += w->held[i][0] != 0;
  }
  for (int i = 0; i < N_PENDING; i++) n += w->open[i].is_open && !w->open[i].file.is_nameless;
  assert_int_equal(kr_count_files(folder), n);
}

static void one_sequence(uint32_t seed) {
  world w = {.dice = seed};
  for (int i = 0; i < N_NAMES; i++) snprintf(w.paths[i], sizeof w.paths[i], "%s/%d", folder, i);
  for (int step = 0; step < 12; step++) {
    pending *p = &w.open[roll(&w, N_PENDING)];
    const int name = (int)roll(&w, N_NAMES);
    if (roll(&w, 3) == 0) change_as_another(&w, name);
    else if (roll(&w, 3) == 0) claim(&w, name);
    else if (p->is_open) end_one(&w, p);
    else begin_one(&w, p, name);
    check_names(&w);
  }
  for (int i = 0; i < N_PENDING; i++)
    if (w.open[i].is_open) end_one(&w, &w.open[i]);
  for (int i = 0; i < N_NAMES; i++) {
    unlink(w.paths[i]);
    if (w.is_claimed[i]) assert_int_equal(kr_outfile_claim(w.paths[i], 0), KRAIT_OK);
  }
  assert_int_equal(kr_count_files(folder), 0);
}

/* KR_SEQUENCES of them, from KR_CHECK_SEED. */
static void random_sequences_agree_with_a_model(void **state) {
  (void)state;
  const char *count = getenv("KR_SEQUENCES"), *seed = getenv("KR_CHECK_SEED");
  const long n = count ? strtol(count, NULL, 10) : 60;
  const uint32_t first = seed ? (uint32_t)strtoul(seed, NULL, 10) : 1;
  for (long i = 0; i < n; i++) one_sequence(first * 2654435761u + (uint32_t)i);
  kr_outfile_use_names(0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(commit_replaces_and_abandon_keeps),
                                     cmocka_unit_test(a_link_stays_a_link),
                                     cmocka_unit_test(a_claimed_output_is_the_first),
                                     cmocka_unit_test(special_files_are_written_directly),
                                     cmocka_unit_test(impossible_places_are_refused),
                                     cmocka_unit_test(a_handler_removes_what_is_open),
                                     cmocka_unit_test(threads_do_not_share_names),
                                     cmocka_unit_test(nothing_is_replaced_unasked),
                                     cmocka_unit_test(the_longest_name_can_be_written),
                                     cmocka_unit_test(random_sequences_agree_with_a_model),
                                     cmocka_unit_test(no_temporary_name_survives_a_stop)};
  return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
