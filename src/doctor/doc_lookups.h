/* doc_lookups.h: answers that loader.c and symbols.c found once and keep: the loader's search paths, and which
 * libraries are needed, loaded or stable. */
#ifndef KR_DOC_LOOKUPS_H
#define KR_DOC_LOOKUPS_H

#include "arena.h"
#include "names.h"

typedef struct doc_lookups {
  int knows_list, knows_interpreter, knows_needs;
  char *list; /* ld.so.cache; NULL: there is none */
  size_t list_bytes;
  kr_list system_libraries; /* doc_version: name, path */
  const char *interpreter_rpath, *interpreter_origin;
  kr_list provided;         /* doc_provided */
  kr_names loaded, stable, needers; /* names of libraries that torch loads; of torch's stable interface; of libraries
                                       that are needed */
  kr_list needs;            /* doc_need */
} doc_lookups;

#endif
