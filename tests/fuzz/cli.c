/* cli.c: fuzz target: the program's output. Files go to verbs that describe them, as text and as JSON, and words to
 * every read-only verb: no control byte on either stream, well-formed UTF-8, valid JSON, at most one line of error, and
 * a documented exit status. */
#define _GNU_SOURCE
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_WORDS = 12, MAX_OUTPUT = 1 << 22 };

int krait_main(int argc, char **argv); /* cli/main.c's */

static int out_fd, err_fd;
static char text[MAX_OUTPUT + 1];

static void fail(const char *what) {
  dprintf(2, "cli: %s in: %.2000s\n", what, text);
  abort();
}

/* Both streams go to memory files; sanitizers write to descriptor 2 directly. */
static FILE *open_stream(const char *name, int *fd) {
  *fd = memfd_create(name, 0);
  FILE *file = *fd < 0 ? NULL : fdopen(*fd, "w+");
  if (!file) abort();
  return file;
}

static size_t take_output(FILE *file, int fd) {
  fflush(file);
  const ssize_t n = pread(fd, text, MAX_OUTPUT, 0);
  if (n < 0 || ftruncate(fd, 0) != 0) abort();
  rewind(file);
  clearerr(file);
  text[n] = 0;
  return (size_t)n;
}

static void check_text(size_t n) {
  if (strlen(text) != n) fail("a NUL byte");
  for (const unsigned char *s = (const unsigned char *)text; *s; s++)
    if ((*s < 32 && *s != '\n') || *s == 127 || (*s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0))
      fail("a control character");
  json_t *whole = json_stringn(text, n);
  if (!whole && n) fail("broken UTF-8");
  json_decref(whole);
}

static void run_cli(int argc, char **argv, int is_json) {
  const int status = krait_main(argc, argv);
  const size_t n = take_output(stdout, out_fd);
  if (n < MAX_OUTPUT) check_text(n);
  if (status == 0 && is_json) {
    json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!json) fail("no JSON");
    json_decref(json);
  }
  const size_t n_err = take_output(stderr, err_fd);
  check_text(n_err);
  const char *end = strchr(text, '\n');
  if (end && end[1] && strncmp(text, "usage:", 6) != 0) fail("more than one line");
  if (status < 0 || (status > 4 && status != 64 && status != 70)) fail("undocumented exit status");
}

static void run_words(char *words, size_t n, const char *verb) {
  char *argv[MAX_WORDS + 3] = {(char *)"krait", (char *)verb};
  int argc = 2;
  for (char *p = words; p < words + n && argc < MAX_WORDS; p += strlen(p) + 1) argv[argc++] = p;
  int is_json = 0;
  run_cli(argc, argv, is_json);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  stdout = open_stream("out", &out_fd);
  stderr = open_stream("err", &err_fd);
  return 0;
}

/* The first byte selects the kind of input. "devices" and "version" only read the machine; words for "info" may name
 * any file, which is only read. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const verbs[] = {"info", "version", "devices"};
  char path[40];
  const int fd = memfd_create("file", 0);
  if (fd < 0 || !size) {
    if (fd >= 0) close(fd);
    return 0;
  }
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  char *const as_text[] = {"krait", "info", path, NULL}, *const as_json[] = {"krait", "info", path, "--json", NULL};
  char *const log[] = {"krait", "doctor", "--log", path, "--root", "/nonexistent", "--gpu", "9.0", NULL};
  char *const listed[] = {"krait", "doctor", "--list", path, "--json", NULL};
  const size_t n = size - 1;
  const int kind = data[0] % 7;
  if (kind >= 4) {
    char *words = calloc(1, n + 1);
    if (words) memcpy(words, data + 1, n), run_words(words, n, verbs[kind - 4]);
    free(words);
  } else if (write(fd, data + 1, n) == (ssize_t)n) {
    if (kind == 0) run_cli(3, (char **)as_text, 0);
    if (kind == 1) run_cli(4, (char **)as_json, 1);
    if (kind == 2) run_cli(8, (char **)log, 0);
    if (kind == 3) run_cli(5, (char **)listed, 1);
  }
  close(fd);
  return 0;
}
