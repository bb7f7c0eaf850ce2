/* doc_findings.h: one finding of the doctor: the rule, what it is about, evidence and fixes. */
#ifndef KR_DOC_FINDINGS_H
#define KR_DOC_FINDINGS_H

#include "arena.h"
#include "tables.h"

typedef struct doc_finding {
  const kr_rule *rule;
  char confidence;
  int severity;
  const char *file;   /* "" none */
  const char *package, *version;
  int64_t offset;     /* -1: none */
  const char *says;
  kr_list evidence, fixes; /* const char * */
  int from_log, hidden; /* hidden: shown with --all only */
  int is_named;         /* about the file or package that the log names */
  int n_also;           /* other files with the same problem, covered by this one */
} doc_finding;

#endif
