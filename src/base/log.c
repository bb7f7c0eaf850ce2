/* log.c: one write per line, so that lines of several threads do not mix. Not through stderr, which the program
 * redirects for other libraries. */
#define _POSIX_C_SOURCE 200809L
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void kr_log(const char *format, ...) {
  char line[1024] = "krait: ";
  enum { HEAD = 7 };
  va_list list;
  va_start(list, format);
  int n = vsnprintf(line + HEAD, sizeof line - HEAD - 1, format, list);
  va_end(list);
  n = HEAD + (n < 0 ? 0 : n > (int)sizeof line - HEAD - 2 ? (int)sizeof line - HEAD - 2 : n);
  line[n] = '\n';
  (void)!write(STDERR_FILENO, line, (size_t)n + 1);
}
