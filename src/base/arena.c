/* arena.c: chunks of doubling size that hold the blocks of arena.h. */
#include "arena.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"

enum { FIRST_CHUNK_BYTES = 16384, MAX_CHUNK_BYTES = 1 << 20, RESERVE_BYTES = 1 << 18, ALIGN_BYTES = 16 };

typedef struct chunk {
  struct chunk *next;
  size_t used, cap;
} chunk;

struct kr_arena {
  chunk *chunks;
  size_t next_bytes;
  int failed;
  struct kr_arena *joined; /* arenas that are freed with this one */
  chunk *reserve;          /* lets a caller that has not checked yet reach its check */
  _Alignas(16) unsigned char spare[KR_ARENA_SPARE_BYTES];
};

static size_t head_bytes(void) { return (sizeof(chunk) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES; }

kr_arena *kr_arena_open(void) {
  kr_arena *arena = kr_zalloc(sizeof *arena);
  chunk *reserve = arena ? kr_alloc(head_bytes() + RESERVE_BYTES) : NULL;
  if (!reserve) {
    kr_free(arena);
    return NULL;
  }
  *reserve = (chunk){.cap = RESERVE_BYTES};
  arena->reserve = reserve;
  arena->next_bytes = FIRST_CHUNK_BYTES;
  return arena;
}

void kr_arena_fail(kr_arena *arena) { arena->failed = 1; }

void kr_arena_join(kr_arena *arena, kr_arena **other) {
  kr_arena *last = *other;
  if (!last) return;
  arena->failed |= last->failed;
  while (last->joined) last = last->joined;
  last->joined = arena->joined;
  arena->joined = *other;
  *other = NULL;
}

static void close_one(kr_arena **arena) {
  for (chunk *c = (*arena)->chunks; c;) {
    chunk *next = c->next;
    kr_free(c);
    c = next;
  }
  kr_free((*arena)->reserve);
  kr_free(*arena);
  *arena = NULL;
}

void kr_arena_close(kr_arena **arena) {
  while (arena && *arena) {
    kr_arena *next = (*arena)->joined;
    close_one(arena);
    *arena = next;
  }
}

int kr_arena_failed(const kr_arena *arena) { return arena->failed; }

static chunk *add_chunk(kr_arena *arena, size_t bytes) {
  size_t cap = bytes > arena->next_bytes ? bytes : arena->next_bytes;
  if (cap > SIZE_MAX / 2) return NULL;
  chunk *c = kr_alloc(head_bytes() + cap);
  if (!c) return NULL;
  *c = (chunk){.next = arena->chunks, .cap = cap};
  arena->chunks = c;
  if (arena->next_bytes < MAX_CHUNK_BYTES) arena->next_bytes *= 2;
  return c;
}

void *kr_arena_alloc(kr_arena *arena, size_t bytes) {
  size_t rounded = bytes > SIZE_MAX / 2 ? bytes : (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
  chunk *c = arena->chunks;
  if (!c || c->cap - c->used < rounded) c = add_chunk(arena, rounded);
  if (!c) {
    arena->failed = 1;
    c = arena->reserve->cap - arena->reserve->used < rounded ? NULL : arena->reserve;
  }
  if (!c) {
    if (bytes > sizeof arena->spare) return NULL;
    return memset(arena->spare, 0, sizeof arena->spare);
  }
  void *block = (unsigned char *)c + head_bytes() + c->used;
  c->used += rounded;
  return memset(block, 0, rounded);
}

void *kr_arena_try(kr_arena *arena, size_t bytes) {
  void *block = kr_arena_alloc(arena, bytes);
  return arena->failed ? NULL : block;
}

static int is_spare(const kr_arena *arena, const void *block) { return block == (const void *)arena->spare; }

static char empty_text[1];

char *kr_arena_copy(kr_arena *arena, const char *text, size_t length) {
  char *copy = kr_arena_alloc(arena, length + 1);
  if (!copy || is_spare(arena, copy)) return empty_text;
  if (length) memcpy(copy, text, length);
  return copy;
}

char *kr_arena_vprint(kr_arena *arena, const char *format, va_list args) {
  va_list again;
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  char *text = length < 0 ? NULL : kr_arena_alloc(arena, (size_t)length + 1);
  if (!text || is_spare(arena, text)) return empty_text;
  vsnprintf(text, (size_t)length + 1, format, args);
  return text;
}

char *kr_arena_print(kr_arena *arena, const char *format, ...) {
  va_list args;
  va_start(args, format);
  char *text = kr_arena_vprint(arena, format, args);
  va_end(args);
  return text;
}

void *kr_list_push(kr_arena *arena, kr_list *list) {
  if (!list->item_bytes) return memset(arena->spare, 0, sizeof arena->spare); /* a list inside the spare block */
  if (list->n == list->cap) {
    size_t cap = list->cap ? list->cap * 2 : 8;
    void *grown = cap > SIZE_MAX / 2 / list->item_bytes ? NULL : kr_arena_alloc(arena, cap * list->item_bytes);
    if (!grown || is_spare(arena, grown)) {
      arena->failed = 1;
      return memset(arena->spare, 0, sizeof arena->spare);
    }
    if (list->n) memcpy(grown, list->at, list->n * list->item_bytes);
    list->at = grown;
    list->cap = cap;
  }
  return (unsigned char *)list->at + list->n++ * list->item_bytes;
}

kr_text kr_text_begin(kr_arena *arena) { return (kr_text){.arena = arena, .at = empty_text}; }

static int reserve(kr_text *text, size_t more) {
  if (text->cap - text->length > more) return 1;
  size_t cap = (text->length + more + 1) * 2;
  char *grown = kr_arena_alloc(text->arena, cap);
  if (!grown || is_spare(text->arena, grown)) return 0;
  memcpy(grown, text->at, text->length + 1);
  text->at = grown;
  text->cap = cap;
  return 1;
}

void kr_text_add(kr_text *text, const char *bytes, size_t length) {
  if (!length || !reserve(text, length)) return;
  memcpy(text->at + text->length, bytes, length);
  text->length += length;
  text->at[text->length] = '\0';
}

void kr_text_print(kr_text *text, const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const size_t capacity = text->cap - text->length;
  int length = vsnprintf(capacity ? text->at + text->length : NULL, capacity, format, again);
  va_end(again);
  if (length > 0 && (size_t)length >= capacity) {
    if (capacity) text->at[text->length] = '\0';
    if (!reserve(text, (size_t)length)) length = 0;
    else vsnprintf(text->at + text->length, (size_t)length + 1, format, args);
  }
  if (length > 0) text->length += (size_t)length;
  va_end(args);
}
