/* doc_findings.h: what the doctor reports: findings (the rule, what it is about, evidence and fixes), and what it could
 * not read or judge. */
#ifndef KR_DOC_FINDINGS_H
#define KR_DOC_FINDINGS_H

#include "arena.h"
#include "names.h"
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

typedef struct doc_findings {
  kr_list findings;   /* doc_finding */
  kr_names said;      /* of these, by their words */
  kr_list unreadable; /* const char * */
  kr_list notes;      /* const char *: checks that passed */
  kr_list unjudged;   /* const char *: names of requirements that no table knows */
  int driver_needed;  /* the newest that D01 requires, or 0 */
  int n_pins;         /* requirements that were read */
  int n_unjudged;     /* of these, with GPU code that no table tells of */
  int n_unreached;    /* findings hidden because the log's imports do not reach their files */
} doc_findings;

#endif
