/* texts.h: reads whole texts from files and pipes. */
#ifndef CLI_TEXTS_H
#define CLI_TEXTS_H

#include <stddef.h>
#include <stdint.h>

/* -1: *text has n_bytes and a terminating NUL, to be freed; otherwise the exit status 2 after one line. "-" is standard
 * input. */
int cli_text_read(const char *verb, const char *path, char **text, size_t *n_bytes);
/* Whole numbers from 0 on, with spaces or commas between them. -1: *ids has n, to be freed; otherwise the exit status 2
 * after one line, which names the text by its label. */
int cli_ids_parse(const char *verb, const char *label, const char *text, int32_t **ids, int64_t *n);

#endif
