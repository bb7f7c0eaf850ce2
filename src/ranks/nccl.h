/* nccl.h: NVIDIA's collective library, loaded at run time as a table of function pointers (nccl.def). Nothing links
 * against it. */
#ifndef KR_NCCL_H
#define KR_NCCL_H

#include <stddef.h>
#include <stdint.h>

typedef struct kr_nccl_id {
  char bytes[128];
} kr_nccl_id;

typedef struct kr_nccl {
#define KR_NCCL(name, symbol, parameters) int(*name) parameters;
#include "nccl.def"
#undef KR_NCCL
  const char *(*GetErrorString)(int result);
  int version; /* 22703 for 2.27.3 */
} kr_nccl;

enum { KR_NCCL_FLOAT32 = 7, KR_NCCL_SUM = 0, KR_NCCL_IN_PROGRESS = 7 }; /* part of its ABI */

/* Loads the library (KRAIT_LIBNCCL, else libnccl.so.2) once per process; later calls return the first result. */
int32_t kr_nccl_load(const kr_nccl **nccl);
/* Converts a failed call to a status, with the library's error text. */
int32_t kr_nccl_fail(const kr_nccl *nccl, int result, const char *doing);

#define KR_NCCL_TRY(nccl, call, doing)                                          \
  do {                                                                          \
    const int kr_nccl_result_ = (nccl)->call;                                   \
    if (kr_nccl_result_) return kr_nccl_fail((nccl), kr_nccl_result_, (doing)); \
  } while (0)

#endif
