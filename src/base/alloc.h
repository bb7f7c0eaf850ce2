/* alloc.h: the only room that asks the system for memory. Blocks are aligned to 64 bytes. */
#ifndef KR_ALLOC_H
#define KR_ALLOC_H

#include <stddef.h>

void *kr_alloc(size_t bytes);  /* NULL when out of memory; never NULL for 0 bytes */
void *kr_zalloc(size_t bytes); /* zeroed */
void *kr_alloc_array(size_t n, size_t element_bytes); /* zeroed; NULL when n * element_bytes overflows */
void *kr_realloc(void *block, size_t old_bytes, size_t bytes); /* keeps block on failure */
void kr_free(void *block);                            /* NULL is fine */
char *kr_strdup(const char *text);

/* Tests: the n-th allocation from now on fails (0 turns this off). */
void kr_alloc_fail_after(long n);

#endif
