/* doc_packages.h: what the doctor knows about Python packages: installed ones, a source release's build, the owner of
 * an import name. */
#ifndef KR_DOC_PACKAGES_H
#define KR_DOC_PACKAGES_H

#include "arena.h"
#include "tables.h"

typedef struct doc_package {
  const char *name, *version; /* normalised name: flash-attn */
  const char *dist_info;      /* folder */
  const char *site;           /* the site-packages folder */
  kr_list tags, requires;     /* const char * */
  int by_distribution;        /* Debian and others: the distribution owns the files */
  size_t next;                /* of the same name: index + 1; 0 */
  int built_here;             /* an sdist, folder or VCS checkout, not a downloaded wheel */
} doc_package;

typedef struct doc_build { /* what a source release's own files say about its build, and conda's index about a
                              package */
  const char *path, *package, *version;
  int targets[64], n_targets; /* GPUs named in it */
  int ptx;                    /* the oldest capability that it has PTX for; 0 */
  const char *named_at;       /* "setup.py, line 12: …": where the last of them is named; "" */
  int uses_torch, sets_own;   /* uses torch's builder; sets its own flags, so that torch's builder adds none */
  const char *variable;       /* NAME_CUDA_ARCHS: what sets the targets; "" */
  const char *python;         /* Requires-Python; "" */
  const char *platform;       /* conda: linux-64; "" */
  kr_list torch_pins;         /* const char *: "torch==2.3.0", of the build or the package */
} doc_build;

typedef struct doc_owner { /* of an import name that several distributions provide */
  const doc_table_line *row;
  const char *package, *version, *site;
} doc_owner;

#endif
