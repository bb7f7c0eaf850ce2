/* names.c: open addressing over FNV hashes. */
#include "names.h"

#include <stdint.h>
#include <string.h>

struct kr_name {
  const char *text; /* NULL: empty */
  uint64_t hash;
  size_t value;
};

static uint64_t hash_of(const char *text) {
  uint64_t h = 1469598103934665603ull;
  for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211ull;
  return h ^ h >> 29;
}

static struct kr_name *slot_of(const kr_names *names, const char *name, uint64_t hash) {
  size_t at = hash & (names->cap - 1);
  while (names->slots[at].text && (names->slots[at].hash != hash || strcmp(names->slots[at].text, name) != 0))
    at = (at + 1) & (names->cap - 1);
  return &names->slots[at];
}

static int grow(kr_arena *arena, kr_names *names) {
  kr_names larger = {.cap = names->cap ? names->cap * 2 : 64, .n = names->n};
  larger.slots = kr_arena_try(arena, larger.cap * sizeof *larger.slots);
  if (!larger.slots) return 0;
  for (size_t i = 0; i < names->cap; i++)
    if (names->slots[i].text) *slot_of(&larger, names->slots[i].text, names->slots[i].hash) = names->slots[i];
  *names = larger;
  return 1;
}

size_t *kr_names_put(kr_arena *arena, kr_names *names, const char *name) {
  if (names->n * 2 >= names->cap && !grow(arena, names))
    return kr_arena_alloc(arena, sizeof(size_t)); /* out of memory: the arena remembers it */
  uint64_t hash = hash_of(name);
  struct kr_name *slot = slot_of(names, name, hash);
  if (!slot->text) *slot = (struct kr_name){.text = name, .hash = hash}, names->n++;
  return &slot->value;
}

const size_t *kr_names_find(const kr_names *names, const char *name) {
  if (!names->cap) return NULL;
  const struct kr_name *slot = slot_of(names, name, hash_of(name));
  return slot->text ? &slot->value : NULL;
}
