/* report.h: what the two reports share. */
#ifndef KR_REPORT_H
#define KR_REPORT_H
#include "doc.h"
/* Control bytes and broken UTF-8 as \xNN: names in files must not move a terminal's cursor or break JSON. */
const char *doc_printable(doc *d, const char *text);
int doc_is_shown(const doc *d, const doc_finding *finding);
#endif
