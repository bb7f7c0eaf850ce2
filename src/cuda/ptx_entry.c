/* ptx_entry.c: a text is a head (version, target, variables of the module) and kernels, each from its line with .entry
 * to the next one's: clang writes variables before all kernels, and no functions (tests/cuda/driver.c checks it). */
#include "ptx_entry.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"

static const char entry_line[] = "\n.visible .entry ";
enum { N_ENTRY_LINE = sizeof entry_line - 1 };

static const char *next_entry(const char *from) {
  const char *at = strstr(from, entry_line);
  return at ? at + 1 : NULL;
}

int kr_ptx_next(kr_ptx_part *part) {
  const char *begin = part->begin ? part->end : next_entry(part->end);
  if (!begin || !*begin) return 0;
  part->begin = begin;
  part->name = begin + N_ENTRY_LINE - 1;
  part->n_name = strcspn(part->name, "(");
  part->end = next_entry(part->name);
  if (!part->end) part->end = part->name + strlen(part->name);
  return 1;
}

char *kr_ptx_alone(const char *text, const kr_ptx_part *part, const char *module, const char *tier) {
  const char *first = next_entry(text);
  const size_t n_head = (size_t)(first - text), n_part = (size_t)(part->end - part->begin);
  const size_t n_line = strlen(module) + strlen(tier) + sizeof "// .\n" - 1;
  char *alone = kr_alloc(n_line + n_head + n_part + 1);
  if (!alone) return NULL;
  snprintf(alone, n_line + 1, "// %s.%s\n", module, tier);
  memcpy(alone + n_line, text, n_head);
  memcpy(alone + n_line + n_head, part->begin, n_part);
  alone[n_line + n_head + n_part] = 0;
  return alone;
}
