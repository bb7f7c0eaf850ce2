/* alloc.h: the only room that asks the system for memory. Blocks are aligned to 64 bytes. */
#ifndef KR_ALLOC_H
#define KR_ALLOC_H

#include <stddef.h>
#include <stdint.h>

uint64_t kr_memory_available(void); /* of the machine, without swapping; 4 GiB if it does not say */
void *kr_alloc(size_t bytes);  /* NULL when out of memory; never NULL for 0 bytes */
void *kr_zalloc(size_t bytes); /* zeroed */
void *kr_alloc_array(size_t n, size_t element_bytes); /* zeroed; NULL when n * element_bytes overflows */
void *kr_realloc(void *block, size_t old_bytes, size_t bytes); /* block stays valid on failure */
void kr_free(void *block);                            /* NULL is allowed */
char *kr_strdup(const char *text);

/* Requests 2 MB huge pages for memory of more than 2 MB that will be read repeatedly, so that sequential reads do not
 * stall at every 4 KB page. Large blocks above request them by themselves. */
void kr_ask_for_huge_pages(void *block, size_t bytes);

/* Tests: a block between two guard pages, phase bytes after a multiple of 64: it ends less than 64 bytes before the
 * second one, or begins less than 64 after the first. Freed with the same numbers. */
void *kr_alloc_fenced(size_t bytes, size_t phase, int is_at_front);
void kr_free_fenced(void *block, size_t bytes, size_t phase, int is_at_front);

/* Tests: the n-th allocation from now on fails (0 disables this). */
void kr_alloc_fail_after(long n);

#endif
