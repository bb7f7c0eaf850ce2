/* saver.c: files hold what their tensors were when they were added, whatever becomes of them meanwhile; a failure is
 * told once. */
#define _GNU_SOURCE
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "saver.h"
#include "status.h"

enum { N = 1 << 18 };

static char folder[200];

static const char *in_folder(const char *name) {
  static char path[2][300];
  static int which;
  which = !which;
  snprintf(path[which], sizeof path[0], "%s/%s", folder, name);
  return path[which];
}

static float first_of(const char *name, float value) {
  kr_weights *w = NULL;
  char step[16];
  snprintf(step, sizeof step, "%g", (double)value);
  assert_int_equal(kr_weights_open(in_folder(name), &w), KRAIT_OK);
  const kr_weight *found = kr_weights_find(w, "tensor");
  assert_true(found && found->n_dims == 1 && found->shape[0] == N);
  assert_string_equal(kr_weights_metadata(w, "step"), step);
  const float *const x = found->data, first = x[0];
  for (int i = 1; i < N; i++) assert_true(x[i] == first);
  kr_weights_close(&w);
  return first;
}

static void add(kr_saver *saver, const char *name, float *x, float value, int32_t status) {
  char tensor[] = "tensor", step[16];
  for (int i = 0; i < N; i++) x[i] = value;
  snprintf(step, sizeof step, "%g", (double)value);
  const kr_weight item = {.name = tensor, .dtype = KRAIT_F32, .n_dims = 1, .shape = {N}, .data = x, .bytes = N * 4};
  const kr_metadata metadata = {"step", step};
  assert_int_equal(kr_saver_add(saver, in_folder(name), &item, 1, &metadata, 1), status);
  for (int i = 0; i < N; i++) x[i] = -1; /* nothing of it is needed any more */
  memset(tensor, '?', sizeof tensor - 1), memset(step, '?', sizeof step - 1);
}

static void saves(void **state) {
  (void)state;
  kr_saver *saver = NULL;
  float *x = malloc(N * sizeof *x);
  assert_non_null(x);
  assert_int_equal(kr_saver_open(&saver), KRAIT_OK);
  assert_int_equal(kr_saver_wait(saver), KRAIT_OK); /* nothing to wait for */
  for (int round = 1; round < 4; round++) {
    add(saver, "a", x, (float)round, KRAIT_OK), add(saver, "b", x, (float)(10 * round), KRAIT_OK);
    add(saver, "c", x, 0, KRAIT_ERR_ARGUMENT); /* too many */
    assert_int_equal(kr_saver_begin(saver), KRAIT_OK);
    add(saver, "c", x, (float)round, KRAIT_OK); /* waits for those */
    assert_true(!kr_saver_is_busy(saver));
    assert_true(first_of("a", (float)round) == (float)round);
    assert_int_equal(kr_saver_begin(saver), KRAIT_OK);
    assert_int_equal(kr_saver_wait(saver), KRAIT_OK);
    assert_true(first_of("b", (float)(10 * round)) == (float)(10 * round));
  }
  add(saver, "no/such/folder", x, 1, KRAIT_OK), add(saver, "d", x, 1, KRAIT_OK);
  assert_int_equal(kr_saver_begin(saver), KRAIT_OK);
  assert_true(kr_saver_wait(saver) < 0 && strstr(krait_error_detail(), "no/such/folder"));
  assert_int_equal(kr_saver_wait(saver), KRAIT_OK);
  assert_true(access(in_folder("d"), F_OK) != 0);
  kr_saver_close(&saver);
  free(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(saves)};
  snprintf(folder, sizeof folder, "%s/krait-saver-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  if (!mkdtemp(folder)) return perror("mkdtemp"), 2;
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  char command[300];
  snprintf(command, sizeof command, "rm -r '%s'", folder);
  return system(command) ? 2 : failed;
}
