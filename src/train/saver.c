/* saver.c: see saver.h. A thread for each save; the copies' memory is kept. */
#include "saver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "safetensors.h"
#include "status.h"

enum { MOST_FILES = 2 };

typedef struct saved_file {
  char *block; /* items, metadata, path and their texts, tensors */
  size_t bytes;
  const char *path;
  kr_weight *items;
  kr_metadata *metadata;
  int64_t n_items, n_metadata;
} saved_file;

struct kr_saver {
  saved_file files[MOST_FILES];
  int n_files;
  pthread_t thread;
  int has_thread;
  atomic_int is_busy;
  int32_t status; /* of what was written since the last wait, and its sentence */
  char why[600];
};

int32_t kr_saver_open(kr_saver **saver) {
  *saver = kr_zalloc(sizeof **saver);
  KR_CHECK(*saver, KRAIT_ERR_NO_MEMORY, "no memory for checkpoints");
  return KRAIT_OK;
}

static void join_writer(kr_saver *s) {
  if (s->has_thread) pthread_join(s->thread, NULL);
  s->has_thread = 0;
}

void kr_saver_close(kr_saver **saver) {
  kr_saver *s = *saver;
  if (!s) return;
  join_writer(s);
  for (int i = 0; i < MOST_FILES; i++) kr_free(s->files[i].block);
  kr_free(s);
  *saver = NULL;
}

static const char *keep_text(char **at, const char *text) {
  const size_t bytes = strlen(text) + 1;
  char *const kept = memcpy(*at, text, bytes);
  *at += bytes;
  return kept;
}

int32_t kr_saver_add(kr_saver *s, const char *path, const kr_weight *items, int64_t n_items,
                     const kr_metadata *metadata, int64_t n_metadata) {
  size_t data = 0, texts = strlen(path) + 1;
  join_writer(s);
  KR_CHECK(s->n_files < MOST_FILES, KRAIT_ERR_ARGUMENT, "%s: a save has at most %d files", path, MOST_FILES);
  for (int64_t i = 0; i < n_items; i++) data += items[i].bytes, texts += strlen(items[i].name) + 1;
  for (int64_t i = 0; i < n_metadata; i++) texts += strlen(metadata[i].key) + strlen(metadata[i].value) + 2;
  const size_t lists = (size_t)n_items * sizeof *items + (size_t)n_metadata * sizeof *metadata;
  saved_file *f = &s->files[s->n_files];
  if (f->bytes < lists + data + texts) {
    kr_free(f->block);
    f->bytes = lists + data + texts, f->block = kr_alloc(f->bytes);
    if (!f->block) f->bytes = 0;
  }
  KR_CHECK(f->block, KRAIT_ERR_NO_MEMORY, "no memory to write %s", path);
  f->items = (kr_weight *)f->block, f->metadata = (kr_metadata *)(f->items + n_items);
  f->n_items = n_items, f->n_metadata = n_metadata;
  char *at = f->block + lists, *text = at + data;
  f->path = keep_text(&text, path);
  for (int64_t i = 0; i < n_items; at += items[i++].bytes) {
    f->items[i] = items[i];
    f->items[i].name = keep_text(&text, items[i].name), f->items[i].data = memcpy(at, items[i].data, items[i].bytes);
  }
  for (int64_t i = 0; i < n_metadata; i++)
    f->metadata[i].key = keep_text(&text, metadata[i].key), f->metadata[i].value = keep_text(&text, metadata[i].value);
  s->n_files++;
  return KRAIT_OK;
}

static void *write_files(void *user) {
  kr_saver *s = user;
  for (int i = 0; i < s->n_files && s->status >= 0; i++) {
    const saved_file *f = &s->files[i];
    s->status = kr_safetensors_write(f->path, f->items, f->n_items, f->metadata, f->n_metadata);
    if (s->status < 0) snprintf(s->why, sizeof s->why, "%s", krait_error_detail());
  }
  s->n_files = 0;
  atomic_store(&s->is_busy, 0);
  return NULL;
}

int32_t kr_saver_begin(kr_saver *s) {
  join_writer(s);
  atomic_store(&s->is_busy, 1);
  s->has_thread = pthread_create(&s->thread, NULL, write_files, s) == 0;
  if (!s->has_thread) write_files(s);
  return KRAIT_OK;
}

int kr_saver_is_busy(const kr_saver *s) { return atomic_load(&s->is_busy); }

int32_t kr_saver_wait(kr_saver *s) {
  join_writer(s);
  const int32_t status = s->status;
  s->status = KRAIT_OK;
  return status < 0 ? kr_fail(status, "%s", s->why) : KRAIT_OK;
}
