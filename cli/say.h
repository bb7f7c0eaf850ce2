/* say.h: what the program prints, and that it arrived: lines on standard error, JSON on standard output, text that came
 * from elsewhere. */
#ifndef CLI_SAY_H
#define CLI_SAY_H

#include <jansson.h>
#include <stdio.h>

FILE *cli_err(void); /* standard error, also after cli_hush_libraries */
/* From here on no library writes to standard error: libmpg123 tells its troubles there, line after line. */
void cli_hush_libraries(void);
/* Standard streams that are closed become ones that fail: else the first file that is opened would take their place. */
void cli_open_streams(void);
/* jansson loses text, or crashes, where it has no memory: then the program ends with this line and status instead, as
 * after Ctrl-C. */
void cli_guard_json(const char *verb, int status);
/* status, or cannot_print after a line on standard error when standard output did not take all that was printed. */
int cli_end_output(const char *verb, int status, int cannot_print);

/* Control characters and bytes that are not UTF-8 become '?': text from files and names must not command the terminal.
 * In place; returns text. */
char *cli_clean(char *text);
void cli_print_clean(FILE *file, const char *text); /* the same, printed */

json_t *cli_json_text(const char *text);  /* what is not UTF-8 in it as U+FFFD */
json_t *cli_json_real(double value);      /* null for what JSON has no number for */
/* object[key] = name; one that is not UTF-8 also as hexadecimal bytes in object[key "_bytes"]. */
int cli_json_set_name(json_t *object, const char *key, const char *name);
/* What JSON may hold as it is but a terminal obeys (C1 controls, DEL, line separators) is escaped. */
void cli_print_json_text(FILE *file, const char *json);
/* Prints and frees object; NULL (a failed json_pack) is out of memory. 0, or 1 after a line on standard error. */
int cli_print_json(const char *verb, json_t *object, size_t flags);

#endif
