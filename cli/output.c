/* output.c: the one place that knows how text leaves the program. */
#define _GNU_SOURCE
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <krait/enhance.h>

/* ---- streams ---- */
static FILE *own_err;

static int is_quiet;

void cli_set_quiet(int quiet) { is_quiet = quiet; }

int cli_is_quiet(void) { return is_quiet; }

FILE *cli_err(void) { return own_err ? own_err : stderr; }

/* In glibc stderr is an ordinary variable: what libraries print through it is discarded, while descriptor 2 stays as it
 * is. */
void cli_hush_libraries(void) {
#ifdef __GLIBC__
  FILE *null = own_err ? NULL : fopen("/dev/null", "we");
  if (!null) return;
  own_err = stderr;
  stderr = null;
#endif
}

void cli_open_streams(void) {
  for (int fd = 0; fd <= 2; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) _exit(2);
}

int cli_end_output(const char *verb, int status, int cannot_print) {
  const int had_failed = ferror(stdout);
  errno = 0;
  if (fflush(stdout) == 0 && !had_failed && !ferror(stdout)) return status;
  fprintf(cli_err(), "krait %s: cannot write standard output%s%s\n", verb, errno ? ": " : "",
          errno ? strerror(errno) : "");
  return cannot_print;
}

static const char *guarded_verb;
static int guarded_status;

static void *allocate_or_end(size_t bytes) {
  void *block = malloc(bytes);
  if (block) return block;
  char line[96];
  krait_outputs_abandon();
  const int n = snprintf(line, sizeof line, "krait %s: out of memory\n", guarded_verb);
  (void)!write(STDERR_FILENO, line, (size_t)n);
  _exit(guarded_status);
}

void cli_guard_json(const char *verb, int status) {
  guarded_verb = verb;
  guarded_status = status;
  json_set_alloc_funcs(allocate_or_end, free);
}

/* ---- text ---- */
/* Length in bytes of the well-formed, printable UTF-8 character at s; 0 if there is none. */
static int printable_length(const unsigned char *s) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const int n = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
  uint32_t code = n == 1 ? *s : *s & (0x7fu >> n);
  for (int i = 1; i < n; i++) {
    if (s[i] >> 6 != 2) return 0;
    code = code << 6 | (s[i] & 63u);
  }
  const int is_control = code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029;
  return n && code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) && !is_control ? n : 0;
}

char *cli_clean(char *text) {
  for (unsigned char *s = (unsigned char *)text; *s;) {
    const int n = printable_length(s);
    if (n == 0) *s = '?';
    s += n ? n : 1;
  }
  return text;
}

void cli_print_clean(FILE *file, const char *text) {
  for (const unsigned char *s = (const unsigned char *)text; *s;) {
    const int n = printable_length(s);
    if (n == 0) fputc('?', file);
    else fwrite(s, 1, (size_t)n, file);
    s += n ? n : 1;
  }
}

/* ---- JSON ---- */
static int is_plain(const char *text) {
  json_t *string = json_string(text); /* jansson accepts any UTF-8 and escapes control characters */
  json_decref(string);
  return string != NULL;
}

json_t *cli_json_text(const char *text) {
  static const char mark[] = "\xef\xbf\xbd";
  json_t *plain = json_string(text);
  if (plain) return plain;
  char *copy = malloc(3 * strlen(text) + 1), *to = copy;
  if (!copy) return NULL;
  for (const unsigned char *s = (const unsigned char *)text; *s;) {
    const int n = printable_length(s) ? printable_length(s) : *s < 0x80;
    memcpy(to, n ? (const char *)s : mark, n ? (size_t)n : sizeof mark - 1);
    to += n ? (size_t)n : sizeof mark - 1;
    s += n ? n : 1;
  }
  *to = 0;
  plain = json_string(copy);
  free(copy);
  return plain;
}

json_t *cli_json_bytes(const char *text, size_t n) {
  json_t *whole = n ? json_stringn(text, n) : json_string("");
  return whole ? whole : cli_json_text(text);
}

json_t *cli_json_real(double value) {
  json_t *number = json_real(value); /* NULL for NaN and infinity */
  return number ? number : json_null();
}

static json_t *hexadecimal(const char *text) {
  static const char digits[] = "0123456789abcdef";
  const size_t n = strlen(text);
  char *hex = malloc(2 * n + 1);
  if (!hex) return NULL;
  for (size_t i = 0; i < n; i++) {
    hex[2 * i] = digits[(unsigned char)text[i] >> 4];
    hex[2 * i + 1] = digits[(unsigned char)text[i] & 15];
  }
  hex[2 * n] = 0;
  json_t *string = json_string(hex);
  free(hex);
  return string;
}

int cli_json_set_name(json_t *object, const char *key, const char *name) {
  char other[64];
  int failed = json_object_set_new(object, key, cli_json_text(name));
  if (is_plain(name)) return failed;
  snprintf(other, sizeof other, "%s_bytes", key);
  return failed | json_object_set_new(object, other, hexadecimal(name));
}

void cli_print_json_text(FILE *file, const char *json) {
  for (const unsigned char *s = (const unsigned char *)json; *s; s++) {
    const int is_c1 = s[0] == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0,
              is_line = s[0] == 0xe2 && s[1] == 0x80 && (s[2] == 0xa8 || s[2] == 0xa9);
    if (*s == 0x7f) fputs("\\u007f", file);
    else if (is_c1) fprintf(file, "\\u%04x", *++s);
    else if (is_line) fprintf(file, "\\u20%x", s[2] - 0x80), s += 2;
    else fputc(*s, file);
  }
}

int cli_print_json(const char *verb, json_t *object, size_t flags) {
  char *text =
      object ? json_dumps(object, flags) : NULL; /* complete: cli_guard_json ends the process if memory runs out */
  json_decref(object);
  if (!text) {
    fprintf(cli_err(), "krait %s: out of memory for the JSON\n", verb);
    return 1;
  }
  cli_print_json_text(stdout, text); /* cli_end_output reports write failures */
  fputc('\n', stdout);
  free(text);
  return 0;
}
