/* arena.h: many small blocks with one lifetime, for reports and tables. Running out of memory is remembered instead of
 * returned: a reserve of 256 KiB, and after it one shared spare block, let callers continue to the next place where
 * they check kr_arena_failed. */
#ifndef KR_ARENA_H
#define KR_ARENA_H

#include <stdarg.h>
#include <stddef.h>

enum { KR_ARENA_SPARE_BYTES = 8192 };

typedef struct kr_arena kr_arena;

kr_arena *kr_arena_open(void); /* NULL when out of memory */
void kr_arena_close(kr_arena **arena);
int kr_arena_failed(const kr_arena *arena);
void kr_arena_fail(kr_arena *arena); /* as if memory had run out */
void kr_arena_join(kr_arena *arena, kr_arena **other); /* arena takes over other's blocks, and its failure */
void *kr_arena_alloc(kr_arena *arena, size_t bytes); /* zeroed; never NULL up to KR_ARENA_SPARE_BYTES */
void *kr_arena_try(kr_arena *arena, size_t bytes); /* the same, but NULL on failure, whatever the size */
char *kr_arena_copy(kr_arena *arena, const char *text, size_t length); /* adds the NUL; "" on failure */
char *kr_arena_print(kr_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *kr_arena_vprint(kr_arena *arena, const char *format, va_list args) __attribute__((format(printf, 2, 0)));

/* A growing array; items move when it grows. */
typedef struct kr_list {
  void *at;
  size_t n, cap, item_bytes;
} kr_list;

#define KR_LIST(type) ((kr_list){.item_bytes = sizeof(type)})
#define KR_AT(list, type, i) ((type *)(list).at + (i))
void *kr_list_push(kr_arena *arena, kr_list *list); /* a new zeroed item; the spare block on failure */

/* Text that grows by appending. */
typedef struct kr_text {
  kr_arena *arena;
  char *at; /* NUL-terminated; never NULL after kr_text_begin */
  size_t length, cap;
} kr_text;

kr_text kr_text_begin(kr_arena *arena);
void kr_text_add(kr_text *text, const char *bytes, size_t length);
void kr_text_print(kr_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
