/* code_cache.h: the driver's cache of translated device code: a folder, which the driver alone reads and writes. */
#ifndef KR_CODE_CACHE_H
#define KR_CODE_CACHE_H

#include <stdint.h>

enum { KR_CACHE_PATH = 4096 };
typedef struct kr_code_cache {
  char path[KR_CACHE_PATH]; /* empty: none */
  int64_t most_bytes;       /* CUDA_CACHE_MAXSIZE, else -1: the driver's own limit */
  char why[KR_CACHE_PATH + 128]; /* why nothing can be kept there; empty: it can */
} kr_code_cache;

void kr_code_cache_find(kr_code_cache *cache);
/* Says once in a process's life, on standard error, if translated code cannot be kept. */
void kr_code_cache_check(void);

#endif
