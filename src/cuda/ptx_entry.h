/* ptx_entry.h: one kernel of a PTX text by itself: the driver then translates it alone. */
#ifndef KR_PTX_ENTRY_H
#define KR_PTX_ENTRY_H

#include <stddef.h>
#include <stdint.h>

/* A kernel's name and text within a text of tools/device_code.py. */
typedef struct kr_ptx_part {
  const char *name, *begin, *end;
  size_t n_name;
} kr_ptx_part;

/* The kernel after part in its text, or the text's first one (part->end: its beginning); returns 0 past the last. */
int kr_ptx_next(kr_ptx_part *part);
/* A text of that kernel alone, which begins with the line "// MODULE.TIER", to be freed with kr_free; NULL without
 * memory. text: of the whole module. */
char *kr_ptx_alone(const char *text, const kr_ptx_part *part, const char *module, const char *tier);

#endif
