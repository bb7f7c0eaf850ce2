/* doc_evidence.h: what was found in the paths that a report is about: environments, files, packages. Complete, with the
 * files' verdicts, before anything is diagnosed from it. */
#ifndef KR_DOC_EVIDENCE_H
#define KR_DOC_EVIDENCE_H

#include "doc_files.h"
#include "doc_packages.h"
#include "names.h"

typedef struct doc_evidence {
  int is_nowhere;                    /* nothing was named, and no environment was found */
  int is_environment;                /* a site-packages was examined */
  kr_list sites;                     /* const char * */
  kr_list left_overs, path_files;    /* const char *: what pip left behind, .pth files */
  kr_list files;                     /* doc_file */
  kr_list packages;                  /* doc_package */
  kr_list owners;                    /* doc_owner */
  kr_list compilers;                 /* doc_compiler */
  kr_list builds;                    /* doc_build */
  kr_names known_files, package_names; /* paths of files; names of packages: index + 1 of the first */
  const char *owner, *owner_version; /* the package whose files are being inspected; "" otherwise */
} doc_evidence;

#endif
