/* line_editor.c: libedit's functions by readline's names, opened at run time: nobody needs it to build, or to read
 * lines from a pipe. */
#define _GNU_SOURCE
#include "line_editor.h"

#include <dlfcn.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *(*read_edited)(const char *prompt);
static int (*add_to_history)(const char *line);

/* ISO C has no conversion from an object pointer, which dlsym returns, to one of a function. */
static void find_function(void *library, const char *name, void *function, size_t n) {
  void *found = dlsym(library, name);
  memcpy(function, &found, n);
}

static void open_editor(void) {
  static int is_tried;
  void *library = is_tried ? NULL : dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
  is_tried = 1;
  if (!library) return;
  setlocale(LC_CTYPE, ""); /* libedit reads characters, not bytes */
  find_function(library, "readline", &read_edited, sizeof read_edited);
  find_function(library, "add_history", &add_to_history, sizeof add_to_history);
  if (!add_to_history) read_edited = NULL;
}

static char *read_plain(const char *prompt) {
  char *line = NULL;
  size_t capacity = 0;
  if (*prompt) {
    fputs(prompt, stdout);
    fflush(stdout);
  }
  const ssize_t n = getline(&line, &capacity, stdin);
  if (n < 0) {
    free(line);
    return NULL;
  }
  if (n > 0 && line[n - 1] == '\n') line[n - 1] = 0;
  return line;
}

char *cli_line_read(const char *prompt) {
  const int is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
  if (!is_terminal) return read_plain("");
  open_editor();
  char *line = read_edited ? read_edited(prompt) : read_plain(prompt);
  if (line && *line && read_edited) add_to_history(line);
  return line;
}
