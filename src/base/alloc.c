/* alloc.c: aligned allocation, with a switch that makes the n-th one fail, so that every error path can be tested. */
#define _DEFAULT_SOURCE
#include "alloc.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN_BYTES = 64, HUGE_BYTES = 2 << 20 };

static atomic_long fail_countdown;

void kr_alloc_fail_after(long n) { atomic_store(&fail_countdown, n); }

static int must_fail(void) {
  if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) == 0) return 0;
  return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

void kr_ask_for_huge_pages(void *block, size_t bytes) {
#ifdef MADV_HUGEPAGE
  const uintptr_t begin = ((uintptr_t)block + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES,
                  end = ((uintptr_t)block + bytes) / HUGE_BYTES * HUGE_BYTES;
  if (end > begin) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
  (void)block, (void)bytes;
#endif
}

uint64_t kr_memory_available(void) {
  char line[256];
  unsigned long long kib = 0;
  FILE *file = fopen("/proc/meminfo", "r");
  while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %llu kB", &kib) != 1) {}
  if (file) fclose(file);
  return kib > 0 ? (uint64_t)kib * 1024 : (uint64_t)4 << 30;
}

void *kr_alloc(size_t bytes) {
  if (must_fail() || bytes > SIZE_MAX - 2 * ALIGN_BYTES) return NULL;
  size_t rounded = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
  void *block = aligned_alloc(ALIGN_BYTES, rounded ? rounded : ALIGN_BYTES);
  if (block && bytes >= 2 * HUGE_BYTES) kr_ask_for_huge_pages(block, bytes);
  return block;
}

void *kr_zalloc(size_t bytes) {
  void *block = kr_alloc(bytes);
  if (block) memset(block, 0, bytes);
  return block;
}

void *kr_alloc_array(size_t n, size_t element_bytes) {
  if (element_bytes && n > SIZE_MAX / element_bytes) return NULL;
  return kr_zalloc(n * element_bytes);
}

void *kr_realloc(void *block, size_t old_bytes, size_t bytes) {
  void *grown = kr_alloc(bytes);
  if (!grown) return NULL;
  if (block) memcpy(grown, block, old_bytes < bytes ? old_bytes : bytes);
  kr_free(block);
  return grown;
}

void kr_free(void *block) { free(block); }

char *kr_strdup(const char *text) {
  size_t bytes = strlen(text) + 1;
  char *copy = kr_alloc(bytes);
  return copy ? memcpy(copy, text, bytes) : NULL;
}

/* For a fenced block: the bytes of its pages and of the two guard pages, and the block's offset in them. */
typedef struct fence {
  size_t page, all, at;
} fence;

static fence fence_of(size_t bytes, size_t phase, int is_at_front) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (phase + bytes + page - 1) / page * page,
               spare = (inside - phase - bytes) / ALIGN_BYTES * ALIGN_BYTES;
  return (fence){page, inside + 2 * page, page + phase + (is_at_front ? 0 : spare)};
}

void *kr_alloc_fenced(size_t bytes, size_t phase, int is_at_front) {
  if (must_fail() || bytes > SIZE_MAX / 2) return NULL;
  const fence f = fence_of(bytes, phase, is_at_front);
  char *pages = mmap(NULL, f.all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return NULL;
  const size_t inside = f.all - 2 * f.page; /* none of no bytes, which qemu's mprotect would refuse */
  if (inside == 0 || mprotect(pages + f.page, inside, PROT_READ | PROT_WRITE) == 0) return pages + f.at;
  munmap(pages, f.all);
  return NULL;
}

void kr_free_fenced(void *block, size_t bytes, size_t phase, int is_at_front) {
  const fence f = fence_of(bytes, phase, is_at_front);
  if (block) munmap((char *)block - f.at, f.all);
}
