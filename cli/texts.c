/* texts.c: texts may come from pipes: the buffer grows as text arrives. Tokens are written as numbers. */
#include "texts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"

enum { LONGEST = 1 << 28 }; /* endless input (/dev/zero) is cut off here */

static int read_all(FILE *file, char **text, size_t *n_bytes) {
  size_t capacity = 1 << 16, n = 0, got;
  char *bytes = malloc(capacity + 1);
  if (!bytes) errno = ENOMEM;
  while (bytes && (got = fread(bytes + n, 1, capacity - n, file)) > 0) {
    n += got;
    if (n < capacity) continue;
    char *grown = capacity >= LONGEST ? NULL : realloc(bytes, 2 * capacity + 1);
    if (!grown) errno = capacity >= LONGEST ? EFBIG : ENOMEM, free(bytes);
    bytes = grown;
    capacity *= 2;
  }
  if (!bytes || ferror(file)) {
    free(bytes);
    return 0;
  }
  bytes[n] = 0;
  *text = bytes;
  *n_bytes = n;
  return 1;
}

int cli_text_read(const char *verb, const char *path, char **text, size_t *n_bytes) {
  const int is_stdin = strcmp(path, "-") == 0;
  errno = 0;
  FILE *file = is_stdin ? stdin : fopen(path, "rb");
  const int is_read = file && read_all(file, text, n_bytes);
  const int error = errno;
  if (file && !is_stdin) fclose(file);
  return is_read ? -1
                 : cli_usage_error(verb, "cannot read %s: %s", is_stdin ? "standard input" : path, strerror(error));
}

int cli_ids_parse(const char *verb, const char *label, const char *text, int32_t **ids, int64_t *n) {
  *n = 0;
  *ids = malloc((strlen(text) / 2 + 2) * sizeof **ids); /* every number has a digit and something behind it */
  if (!*ids) return cli_usage_error(verb, "no memory for the tokens of %s", label);
  for (const char *at = text;;) {
    at += strspn(at, " ,\t\r\n");
    if (!*at) return -1;
    char *end = NULL;
    errno = 0;
    const long value = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : -1;
    if (value < 0 || value > INT32_MAX || errno || (*end && !strchr(" ,\t\r\n", *end))) {
      const int n_bad = (int)strcspn(at, " ,\t\r\n");
      free(*ids);
      *ids = NULL;
      return cli_usage_error(verb, "%s: '%.*s' is not a token: with --ids give whole numbers, such as 5,17,3", label,
                             n_bad < 40 ? n_bad : 40, at);
    }
    (*ids)[(*n)++] = (int32_t)value;
    at = end;
  }
}
