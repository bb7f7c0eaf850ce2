/* report.h: shared by the two reports. */
#ifndef KR_REPORT_H
#define KR_REPORT_H
#include "doc.h"
/* Control bytes and broken UTF-8 as \xNN: names in files must not control the terminal or break JSON. */
const char *doc_printable(const doc *d, const char *text);
/* text after head, wrapped at 80 columns; continuation lines are indented by indent spaces. Commands break with a
 * backslash. */
void doc_wrap(const doc *d, kr_text *out, const char *head, size_t indent, const char *text, int is_command);
int32_t doc_open_report(const char *tables, krait_report **report); /* without any facts */
int doc_is_command(const char *fix); /* a line that can be pasted into a shell */
const char *doc_addressed(const doc *d, const char *command); /* with the pip of the inspected environment */
int doc_is_shown(const doc *d, const doc_finding *finding);
/* The best tier of krait's device code on a GPU; "": none. */
const char *doc_tier_name(const doc *d, int cc);
/* That krait runs there, and with what, or why not. */
const char *doc_tier_line(const doc *d, int cc);
#endif
