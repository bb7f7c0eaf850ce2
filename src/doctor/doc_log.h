/* doc_log.h: what the doctor extracts from a log: names, versions, symbols, and the diagnoses that it suggests. */
#ifndef KR_DOC_LOG_H
#define KR_DOC_LOG_H

#include "arena.h"
#include "tables.h"

typedef struct doc_hit { /* a diagnosis that the log's text suggests */
  const kr_rule *rule;
  const char *line;
  const char *near; /* the package named last before it; "" */
  kr_list keys;     /* const char *: pairs name, value */
} doc_hit;

typedef struct doc_log {
  int given;
  kr_list hits;        /* doc_hit */
  kr_list names;       /* const char *: packages, modules and .so names that it mentions */
  kr_list wheels;      /* const char *: wheel file names */
  kr_list files;       /* const char *: shared libraries with their path */
  kr_list modules;     /* const char *: top-level Python modules in its frames and imports */
  const char *symbol;  /* the last undefined symbol; "" */
  const char *last_frame, *first_error, *last_exception;
  const char *text;    /* all of it, lines joined */
  const char *nvcc;    /* the version that it names; "" */
  const char *site;    /* its site-packages folder; "" */
  const char *source;  /* the folder in which a library outside site-packages was built; "" */
  const char *owner;   /* the package of its last frame that is not torch's; "" */
  kr_list versions;    /* const char *: pairs package, version */
  int is_windows, is_powershell, is_wsl, is_mac, is_jetson, is_rocm, is_conda, is_container; /* its system */
  const char *is_rpm;  /* NVIDIA's name of a system with dnf: rhel9, fedora42; NULL */
  int is_arch;         /* a system with pacman */
  int has_home;        /* a path of it is in a user's folder: a container's user is root most often */
  int jetpack;         /* the major version; 0 */
  int wants_gpu;       /* while lines are read: no GPU is known yet */
  int is_build, is_crash, is_done,
      no_wheel;        /* crash: it contains an error; done: work went on to its end in spite of warnings; no_wheel: a
                          prebuilt wheel was looked for and not found */
  int driver_cuda;     /* ten times the CUDA version of the driver that it names; 0 */
  int is_frame_open,
      is_frame_torch;  /* the last frame's code line follows; the frame is in torch, or its code calls torch */
  int arch_list;       /* TORCH_CUDA_ARCH_LIST is mentioned */
  const char *near;    /* while lines are read: the package named last */
} doc_log;

#endif
