/* names.h: a hash map from strings to numbers, to avoid quadratic comparisons. Allocated in an arena. */
#ifndef KR_NAMES_H
#define KR_NAMES_H

#include "arena.h"

typedef struct kr_names {
  struct kr_name *slots;
  size_t n, cap;
} kr_names;

/* The number stored for a name, 0 for a new one; never NULL. The text must outlive the map. */
size_t *kr_names_put(kr_arena *arena, kr_names *names, const char *name);
const size_t *kr_names_find(const kr_names *names, const char *name); /* NULL: not in it */

#endif
