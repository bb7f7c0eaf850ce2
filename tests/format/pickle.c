/* pickle.c: good pickles are read, bad ones are refused: unsafe, bombs, inconsistent, truncated. */
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>

#include "pickle.h"
#include "status.h"

static const kr_pickle_value *root;
static kr_arena *arena;

static int32_t read_bytes(const void *bytes, size_t n_bytes) {
  unsigned char *exact = malloc(n_bytes ? n_bytes : 1); /* exact size, so that a sanitizer detects overruns */
  memcpy(exact, bytes, n_bytes);
  kr_arena_close(&arena);
  arena = kr_arena_open();
  int32_t status = kr_pickle_read(exact, n_bytes, "made", arena, &root);
  free(exact);
  return status;
}
#define READ(text) read_bytes(text, sizeof(text) - 1)

static void pickle_assert_refused(int32_t status, const char *words) {
  assert_int_equal(status < 0, 1);
  if (!strstr(krait_error_detail(), words)) fail_msg("'%s' lacks '%s'", krait_error_detail(), words);
}

static void plain_values(void **state) {
  (void)state;
  assert_int_equal(READ("\x80\2("
                        "K\7M\1\2J\xff\xff\xff\xff\x8a\0\x8a\2\xff\x7f\x8a\1\x80\x8a\x09\0\0\0\0\0\0\0\0\1G\x3f\xf8\0\0"
                        "\0\0\0\0N\x88X\3\0\0\0abct."),
                   KRAIT_OK);
  const int64_t whole[] = {7, 513, -1, 0, 32767, -128};
  assert_int_equal(root->kind, KR_PICKLE_TUPLE);
  assert_int_equal(root->n_items, 11);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(root->items[i]->kind, KR_PICKLE_INT);
    assert_int_equal(root->items[i]->whole, whole[i]);
  }
  assert_int_equal(root->items[6]->kind, KR_PICKLE_BIG_INT);
  assert_true(root->items[7]->real == 1.5);
  assert_int_equal(root->items[8]->kind, KR_PICKLE_NONE);
  assert_int_equal(root->items[9]->whole, 1);
  assert_string_equal(root->items[10]->text, "abc");
}

static void maps_and_memo(void **state) {
  (void)state;
  assert_int_equal(READ("\x80\2}q\0(X\1\0\0\0aq\1K\1X\1\0\0\0bK\2h\1K\3u."), KRAIT_OK);
  assert_int_equal(kr_pickle_find(root, "a")->whole, 3); /* the last one wins */
  assert_int_equal(kr_pickle_find(root, "b")->whole, 2);
  assert_null(kr_pickle_find(root, "c"));
  assert_int_equal(READ("\x80\4\x95\x0b\0\0\0\0\0\0\0}\x94(\x8c\1x\x94K\5u."), KRAIT_OK);
  assert_int_equal(kr_pickle_find(root, "x")->whole, 5);
  assert_int_equal(READ("\x80\2]q\0h\0a."), KRAIT_OK); /* a list that contains itself */
  assert_ptr_equal(root->items[0], root);
}

static void calls_are_kept_not_made(void **state) {
  (void)state;
  assert_int_equal(READ("\x80\2c"
                        "evil\nThing\nq\0)\x81}(X\1\0\0\0aK\1ub."),
                   KRAIT_OK); /* NEWOBJ, then BUILD: __setstate__ in Python */
  assert_int_equal(root->kind, KR_PICKLE_OBJECT);
  assert_string_equal(root->callee->text, "evil.Thing");
  assert_int_equal(READ("\x80\2cevil\nf\n(K\1K\2tR."), KRAIT_OK);
  assert_int_equal(root->args->n_items, 2);
  assert_int_equal(READ("\x80\2(X\7\0\0\0storageK\1tQ."), KRAIT_OK);
  assert_int_equal(root->kind, KR_PICKLE_PERSISTENT);
}

static void code_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *module, *name;
  } unsafe[] = {{"os", "system"},
                {"posix", "system"},
                {"nt", "system"},
                {"subprocess", "Popen"},
                {"builtins", "eval"},
                {"__builtin__", "exec"},
                {"builtins", "getattr"},
                {"builtins", "__import__"},
                {"importlib", "import_module"},
                {"os.path", "join"},
                {"torch.hub", "load"},
                {"torch.utils.cpp_extension", "load"},
                {"pickle", "loads"},
                {"operator", "attrgetter"},
                {"runpy", "_run_code"},
                {"numpy.testing._private.utils", "runstring"}};
  for (size_t i = 0; i < sizeof unsafe / sizeof *unsafe; i++) {
    char text[256], full[128];
    int n = snprintf(text, sizeof text, "\x80\2c%s\n%s\n(X\4%c%c%cls /tR.", unsafe[i].module, unsafe[i].name, 0, 0, 0);
    snprintf(full, sizeof full, "%s.%s", unsafe[i].module, unsafe[i].name);
    assert_int_equal(read_bytes(text, (size_t)n), KRAIT_ERR_UNSAFE);
    pickle_assert_refused(KRAIT_ERR_UNSAFE, full);
    n = snprintf(text, sizeof text, "\x80\4\x8c%c%s\x8c%c%s\x93.", (int)strlen(unsafe[i].module), unsafe[i].module,
                 (int)strlen(unsafe[i].name), unsafe[i].name);
    assert_int_equal(read_bytes(text, (size_t)n), KRAIT_ERR_UNSAFE);
  }
  assert_int_equal(READ("\x80\2cbuiltins\ndict\n)R."), KRAIT_OK);
  assert_int_equal(READ("\x80\2costrich\nsystem\n)R."), KRAIT_OK); /* not os, and never called */
  pickle_assert_refused(READ("\x80\2(ios\nsystem\n."), "opcode 0x69");
  pickle_assert_refused(READ("\x80\2(cevil\nf\no."), "opcode 0x6f");
  pickle_assert_refused(READ("\x80\2\x82\1."), "opcode 0x82"); /* the extension registry */
}

static void wrong_lengths(void **state) {
  (void)state;
  pickle_assert_refused(READ("\x80\2X\xff\xff\xff\xff"
                      "abc."),
                 "truncated or inconsistent");
  pickle_assert_refused(READ("\x80\4\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                      "abc."),
                 "truncated or inconsistent");
  pickle_assert_refused(READ("\x80\4\x8d\0\0\0\0\0\0\0\x80"
                      "abc."),
                 "truncated or inconsistent");
  pickle_assert_refused(READ("\x80\4\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"
                      "abc."),
                 "truncated or inconsistent");
  pickle_assert_refused(READ("\x80\2\x8b\xff\xff\xff\x7f"
                      "abc."),
                 "truncated or inconsistent");
  pickle_assert_refused(READ("\x80\2\x8b\xff\xff\xff\xff"
                      "abc."),
                 "truncated or inconsistent");
  pickle_assert_refused(READ("\x80\4\x95\xff\xff\xff\xff\0\0\0\0N."), "frame");
  pickle_assert_refused(READ("\x80\2Nr\xff\xff\xff\xff."), "memo index");
  pickle_assert_refused(READ("\x80\2h\7."), "never stored");
  pickle_assert_refused(READ("\x80\2j\xff\xff\xff\xff."), "never stored");
  pickle_assert_refused(READ("\x80\2cevil"), "in the middle of a name");
}

static void broken_stacks(void **state) {
  (void)state;
  pickle_assert_refused(READ("\x80\2."), "missing");
  pickle_assert_refused(READ("\x80\2N(."), "missing"); /* below a mark */
  pickle_assert_refused(READ("\x80\2t."), "mark");
  pickle_assert_refused(READ("(\x90."), "missing");
  pickle_assert_refused(READ("\x80\2NR."), "missing");
  pickle_assert_refused(READ("\x80\2NNR."), "not a tuple");
  pickle_assert_refused(READ("\x80\2}(K\1u."), "without a value");
  pickle_assert_refused(READ("\x80\2(K\1d."), "without a value");
  pickle_assert_refused(READ("\x80\2NNa."), "has none");
  pickle_assert_refused(READ("\x80\2K\1K\2\x93."), "without a name");
  pickle_assert_refused(READ("\x80\2N"), "truncated");
  pickle_assert_refused(READ("\x80\1N."), "protocol");
  pickle_assert_refused(READ("\x80\6N."), "protocol");
  pickle_assert_refused(READ("I7\n."), "opcode 0x49");
  pickle_assert_refused(READ(""), "truncated");
}

static void bombs_stay_small(void **state) {
  (void)state;
  enum { DEEP = 200000 };
  unsigned char *bytes = malloc(3000000);
  size_t n = 2;
  memcpy(bytes, "\x80\2", 2);
  memset(bytes + n, ']', DEEP); /* lists in lists */
  memset(bytes + n + DEEP, 'a', DEEP - 1);
  n += 2 * DEEP - 1;
  bytes[n++] = '.';
  assert_int_equal(read_bytes(bytes, n), KRAIT_OK);

  n = 2; /* a billion laughs: each list contains the previous one ten times */
  for (int level = 0; level < 60; level++) {
    memcpy(bytes + n, "](", 2);
    n += 2;
    for (int i = 0; level && i < 10; i++) {
      bytes[n++] = 'h';
      bytes[n++] = (unsigned char)(level - 1);
    }
    bytes[n++] = 'e';
    bytes[n++] = 'q';
    bytes[n++] = (unsigned char)level;
  }
  bytes[n++] = '.';
  assert_int_equal(read_bytes(bytes, n), KRAIT_OK);

  memset(bytes + 2, 'N', 2200000); /* more values than any file needs */
  pickle_assert_refused(read_bytes(bytes, 2200002), "more than");
  free(bytes);
}

static int close_arena(void **state) {
  (void)state;
  kr_arena_close(&arena);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plain_values),    cmocka_unit_test(maps_and_memo),    cmocka_unit_test(calls_are_kept_not_made),
      cmocka_unit_test(code_is_refused), cmocka_unit_test(wrong_lengths), cmocka_unit_test(broken_stacks),
      cmocka_unit_test(bombs_stay_small)};
  return cmocka_run_group_tests(tests, NULL, close_arena);
}
