/* log.c: one write per line, so that lines of several threads do not mix. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>

void kr_log(const char *format, ...) {
  char line[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  fprintf(stderr, "krait: %s\n", line);
}
