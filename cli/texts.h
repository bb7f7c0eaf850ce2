/* texts.h: reads whole texts from files and pipes. */
#ifndef CLI_TEXTS_H
#define CLI_TEXTS_H

#include <stddef.h>

/* -1: *text has n_bytes and a terminating NUL, to be freed; otherwise the exit status 2 after one line. "-" is standard
 * input. */
int cli_text_read(const char *verb, const char *path, char **text, size_t *n_bytes);

#endif
