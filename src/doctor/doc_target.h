/* doc_target.h: facts about the machine and environment that a report is about; a field with `source` in its name says
 * where a fact came from. Written while inputs, this machine and the log are read; the diagnoses only read it. */
#ifndef KR_DOC_TARGET_H
#define KR_DOC_TARGET_H

#include "arena.h"

typedef struct doc_gpu {
  const char *name, *source;
  int cc; /* 0: unknown */
} doc_gpu;

typedef struct doc_target {
  kr_list gpus;  /* doc_gpu */
  int n_pci;     /* devices seen on the bus, used only if no GPU was known before */
  int judged_cc; /* the device for which files are being judged; 0: none now */
  const char *driver, *driver_source, *kernel_driver, *user_driver;
  int driver_number,
      driver_cuda; /* as krait_target; of a branch, as --driver 580, the number is that of its last release */
  const char *torch, *torch_cuda, *torch_source, *torch_lib; /* torch_lib: its lib folder; "" */
  int torch_number, torch_abi, torch_is_cpu;
  int python; /* 311; 0 unknown */
  const char *python_source, *prefix;
  int has_pyvenv;
  int glibc; /* 236 for 2.36; 0 unknown */
  int machine;
  const char *nvcc, *nvcc_path;
  int is_elsewhere; /* the target is not this machine: its driver, compiler and variables are no evidence */
  int has_nvidia_node, has_uvm_node, has_driver, has_jit;
  const char *env_library_path, *env_visible, *env_force_jit, *env_disable_jit, *env_no_cache;
} doc_target;

#endif
