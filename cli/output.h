/* output.h: printing, and checking that it succeeded: lines on standard error, JSON on standard output, untrusted text.
 */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <jansson.h>
#include <stdio.h>

FILE *cli_err(void); /* standard error, also after cli_hush_libraries */
/* --quiet: neither progress nor notes nor rates. */
void cli_set_quiet(int is_quiet);
int cli_is_quiet(void);
/* After this call no library writes to standard error: libmpg123 prints its warnings there, line after line. */
void cli_hush_libraries(void);
/* Closed standard streams are replaced by ones that fail: otherwise the first file opened would take their place. */
void cli_open_streams(void);
/* jansson loses text, or crashes, when out of memory: the program then ends with a line and this status instead, as
 * after Ctrl-C. */
void cli_guard_json(const char *verb, int status);
/* Returns status, or cannot_print after a line on standard error if not everything could be written to standard
 * output. */
int cli_end_output(const char *verb, int status, int cannot_print);

/* Replaces control characters and bytes that are not UTF-8 by '?': text from files and names must not control the
 * terminal. In place; returns text. */
char *cli_clean(char *text);
void cli_print_clean(FILE *file, const char *text); /* the same, printed */

json_t *cli_json_text(const char *text); /* bytes that are not UTF-8 become U+FFFD */
json_t *cli_json_bytes(const char *text, size_t n); /* the same for text that may contain zeros */
json_t *cli_json_real(double value);     /* null for values that JSON cannot represent */
/* object[key] = name; one that is not UTF-8 also as hexadecimal bytes in object[key "_bytes"]. */
int cli_json_set_name(json_t *object, const char *key, const char *name);
/* Escapes what JSON allows but a terminal would interpret (C1 controls, DEL, line separators). */
void cli_print_json_text(FILE *file, const char *json);
/* Prints and frees object; NULL (a failed json_pack) means out of memory. 0, or 1 after a line on standard error. */
int cli_print_json(const char *verb, json_t *object, size_t flags);

#endif
