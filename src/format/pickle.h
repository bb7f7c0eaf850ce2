/* pickle.h: Python's pickle as data. Nothing is imported or called: a call becomes a KR_PICKLE_OBJECT with the
 * callable's name and arguments, and its reader decides which names it understands. Globals that can run code
 * (os.system, builtins.eval ...) are refused anywhere: KRAIT_ERR_UNSAFE. Values may be shared and even cyclic, as in
 * Python; readers must not walk them without a bound. */
#ifndef KR_PICKLE_H
#define KR_PICKLE_H

#include <stddef.h>
#include <stdint.h>

#include "arena.h"

enum {
  KR_PICKLE_NONE,
  KR_PICKLE_BOOL,       /* whole */
  KR_PICKLE_INT,        /* whole */
  KR_PICKLE_BIG_INT,    /* does not fit 64 bits; value not kept */
  KR_PICKLE_FLOAT,      /* real */
  KR_PICKLE_TEXT,       /* text, length; NUL terminated, may hold NULs, not checked to be UTF-8 */
  KR_PICKLE_BYTES,      /* the same */
  KR_PICKLE_LIST,       /* items */
  KR_PICKLE_TUPLE,      /* items */
  KR_PICKLE_SET,        /* items */
  KR_PICKLE_MAP,        /* items: key, value, key, value ... */
  KR_PICKLE_GLOBAL,     /* text: "module.name" */
  KR_PICKLE_PERSISTENT, /* callee: the persistent id */
  KR_PICKLE_OBJECT,     /* callee(args); items: what was set by key afterwards, as in MAP */
};

typedef struct kr_pickle_value kr_pickle_value;
struct kr_pickle_value {
  int32_t kind;
  int64_t whole;
  double real;
  const char *text;
  size_t length;
  kr_pickle_value **items;
  int64_t n_items, capacity;
  const kr_pickle_value *callee, *args;
  const kr_pickle_value *state; /* what an OBJECT was given after the call, often its attributes; or NULL */
};

/* bytes is the whole pickle; *root lives in arena. */
int32_t kr_pickle_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_arena *arena,
                       const kr_pickle_value **root);
/* The value under a text key of a MAP or OBJECT (the last one wins, as in Python), or NULL. */
const kr_pickle_value *kr_pickle_find(const kr_pickle_value *map, const char *key);

#endif
