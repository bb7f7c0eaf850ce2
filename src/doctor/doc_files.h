/* doc_files.h: what the doctor knows about a file with GPU or native code: its images, what it needs and what it
 * exports. */
#ifndef KR_DOC_FILES_H
#define KR_DOC_FILES_H

#include <krait/doctor.h>

#include "arena.h"

enum { DOC_KEPT_KERNELS = 6, DOC_MAX_SYMBOLS = 1 << 22 };

typedef struct doc_bodies { /* of one image's kernels, if another image of the container has fuller ones */
  int sm, n, n_hollow; /* hollow: only an exit, while another image has a full body */
  int full_sm;
} doc_bodies;

typedef struct doc_container {
  const char *section;
  uint64_t offset, bytes;
  int relocatable, linked;
  kr_list images;  /* krait_image */
  kr_list kernels; /* const char *, the first DOC_KEPT_KERNELS */
  kr_list bodies;  /* doc_bodies: only of images with hollow kernels */
  int n_hollow;    /* of the image that the device would use */
  int n_kernels;   /* -1: could not be counted, but there are some */
  int toolkit;
  int verdict;     /* the worst over all devices */
  const char *listing; /* of its images, if requested; else NULL */
} doc_container;

typedef struct doc_version {
  const char *file, *version;
} doc_version;

typedef struct doc_provided { /* the symbol versions that a library defines */
  const char *path;
  kr_list versions; /* const char * */
} doc_provided;

enum { DOC_ABI_UNKNOWN = -1, DOC_ABI_OLD = 0, DOC_ABI_NEW = 1, DOC_ABI_MIXED = 2 };

typedef struct doc_file {
  const char *path, *name; /* name: the last part */
  const char *package;     /* normalised; "" unknown */
  const char *package_version;
  int kind, machine, bits;
  int has_relfatbin, has_fatbin, is_torch, is_extension; /* extension: uses torch's C++ names */
  int is_cuda;             /* GPU code, or needs a CUDA library */
  uint64_t bytes;
  const char *sha256;      /* "" when it was not computed */
  kr_list containers;      /* doc_container */
  kr_list needed;          /* const char * */
  kr_list versions;        /* doc_version: symbol versions that it needs */
  const char *soname, *rpath, *runpath;
  kr_list undefined;       /* const char *: names of torch */
  kr_list missing;         /* of these, not exported by the installed torch */
  int abi, uses_torch_cxx, python_symbols;
  int toolkit;             /* newest that compiled an image */
  int verdict, n_judged, n_lost;
  int in_wheel;
  size_t damage;           /* the finding that reports it as damaged: index + 1; 0 */
  const char *damage_says;
  int is_unused;           /* a variant for another CUDA, not loaded */
} doc_file;

typedef struct doc_compiler { /* ptxas or NVRTC in a package */
  const char *path, *package;
  int cuda, is_nvrtc;
} doc_compiler;

typedef struct doc_need { /* of a library: the files that need it, as a linked list */
  size_t file, next; /* next: index + 1; 0 */
} doc_need;

#endif
