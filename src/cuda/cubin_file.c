/* cubin_file.c: "KRCUBIN1", the architecture, the number of kernels, a row for each in order of their hashes, and each
 * kernel's cubin as an LZMA stream (lzma.h). The table is read once; a kernel when it is needed. */
#define _POSIX_C_SOURCE 200809L
#include "cubin_file.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "dlib.h"
#include "env.h"
#include "log.h"
#include "lzma.h"

static const char magic[] = "KRCUBIN1";

int64_t kr_cubin_rows(const uint8_t head[KR_CUBIN_HEAD], int capability) {
  uint32_t of[2];
  memcpy(of, head + 8, sizeof of);
  if (memcmp(head, magic, 8) != 0 || of[0] != (uint32_t)capability || of[1] > KR_MOST_CUBINS) return -1;
  return of[1];
}

uint64_t kr_cubin_hash(const char *text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 0x100000001b3ull;
  return hash;
}

/* The file that was opened last: a process rarely has GPUs of two architectures. */
static struct {
  FILE *file;
  int capability; /* 0: none was looked for */
  kr_cubin_row *rows;
  int64_t n;
} opened;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static FILE *open_named(const char *folder, const char *below, int capability) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s%s/sm_%d.cubins", folder, below, capability) >= (int)sizeof path) return NULL;
  return fopen(path, "rb");
}

static FILE *open_file(int capability) {
  char folder[4096];
  const char *given = kr_env_cubins();
  if (given) {
    FILE *file = open_named(given, "", capability);
    return file ? file : fopen(given, "rb");
  }
  return kr_dlib_own_folder(folder, sizeof folder) ? open_named(folder, "/krait-cubins", capability) : NULL;
}

static int read_rows(FILE *file, int capability, kr_cubin_row **rows, int64_t *n) {
  uint8_t head[KR_CUBIN_HEAD];
  *rows = NULL;
  if (fread(head, 1, sizeof head, file) != sizeof head || (*n = kr_cubin_rows(head, capability)) < 0) return 0;
  *rows = kr_alloc_array((size_t)*n, sizeof **rows);
  return *rows && fread(*rows, sizeof **rows, (size_t)*n, file) == (size_t)*n;
}

static void open_for(int capability) {
  if (opened.capability == capability) return;
  if (opened.file) fclose(opened.file);
  kr_free(opened.rows);
  opened.rows = NULL, opened.n = 0;
  opened.capability = capability;
  opened.file = open_file(capability);
  if (opened.file && read_rows(opened.file, capability, &opened.rows, &opened.n)) return;
  if (opened.file || kr_env_cubins())
    kr_log("no machine code for compute capability %d.%d in %s: PTX is translated instead", capability / 10,
           capability % 10, kr_env_cubins() ? kr_env_cubins() : "the file beside the library");
  opened.n = 0;
}

static const kr_cubin_row *kernel_row(uint64_t hash) {
  int64_t low = 0, high = opened.n;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (opened.rows[middle].hash < hash) low = middle + 1;
    else high = middle;
  }
  return low < opened.n && opened.rows[low].hash == hash ? &opened.rows[low] : NULL;
}

static void *unpack_row(const kr_cubin_row *row) {
  if (row->n_bytes > KR_MOST_CUBIN_BYTES || row->n_packed > KR_MOST_CUBIN_BYTES || row->at > INT64_MAX / 2) return NULL;
  uint8_t *packed = kr_alloc((size_t)row->n_packed + 1), *bytes = kr_alloc((size_t)row->n_bytes + 1);
  kr_lzma *lzma = kr_alloc(sizeof *lzma);
  const int is_whole = packed && bytes && lzma && fseek(opened.file, (long)row->at, SEEK_SET) == 0 &&
                       fread(packed, 1, row->n_packed, opened.file) == row->n_packed &&
                       kr_lzma_begin(lzma, packed, row->n_packed, bytes, row->n_bytes) &&
                       kr_lzma_unpack(lzma, row->n_bytes);
  kr_free(packed);
  kr_free(lzma);
  if (is_whole) return bytes;
  kr_free(bytes);
  return NULL;
}

void *kr_cubin_find(int capability, const char *text) {
  pthread_mutex_lock(&lock);
  open_for(capability);
  const kr_cubin_row *row = kernel_row(kr_cubin_hash(text));
  void *image = row ? unpack_row(row) : NULL;
  pthread_mutex_unlock(&lock);
  return image;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  opened.file = size ? fmemopen((void *)data, size, "rb") : NULL;
  if (opened.file && read_rows(opened.file, 90, &opened.rows, &opened.n))
    for (int64_t i = 0; i < opened.n && i < 4; i++) {
      const kr_cubin_row *row = kernel_row(opened.rows[i].hash);
      if (row) kr_free(unpack_row(row));
    }
  if (opened.file) fclose(opened.file);
  kr_free(opened.rows);
  opened.rows = NULL, opened.n = 0;
  return 0;
}
#endif
