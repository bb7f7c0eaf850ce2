/* torch_write.c: writes what torch.load reads: an uncompressed zip of one pickle ({"model": a state_dict}), one entry
 * per tensor and two small entries. Every entry begins at a multiple of 64 bytes, as torch.save does, so that it can be
 * mapped. */
#include <errno.h>
#include <libdeflate.h>
#include <stdio.h>
#include <string.h>

#include "arena.h"
#include "outfile.h"
#include "status.h"
#include "torch_file.h"

enum { ALIGN = 64, DATE = 1 << 5 | 1 /* 1980-01-01: the same bytes every time */, MAX_ENTRIES = 65000 };

/* ---- the pickle, protocol 2 ---- */

static void add_torch_write(kr_text *to, const char *bytes) { kr_text_add(to, bytes, strlen(bytes)); }
static void add_bytes(kr_text *to, uint64_t value, int n) { /* little endian */
  for (int i = 0; i < n; i++) kr_text_add(to, &(char[]){(char)(unsigned char)(value >> 8 * i)}[0], 1);
}
static void add_word(kr_text *to, const char *word) {
  add_torch_write(to, "X"), add_bytes(to, strlen(word), 4), add_torch_write(to, word);
}
static void add_whole(kr_text *to, int64_t value) {
  if (value <= INT32_MAX) add_torch_write(to, "J"), add_bytes(to, (uint64_t)value, 4);
  else add_torch_write(to, "\x8a\x08"), add_bytes(to, (uint64_t)value, 8);
}
static void add_empty_dictionary(kr_text *to) { add_torch_write(to, "ccollections\nOrderedDict\n)R"); }

static void add_torch_write_tensor(kr_text *to, const kr_weight *item, int64_t number) {
  char key[24];
  int64_t n = 1, stride = 1, strides[KR_WEIGHT_MAX_DIMS];
  for (int i = item->n_dims - 1; i >= 0; i--) strides[i] = stride, stride *= item->shape[i] ? item->shape[i] : 1;
  for (int i = 0; i < item->n_dims; i++) n *= item->shape[i];
  snprintf(key, sizeof key, "%lld", (long long)number);
  add_word(to, item->name);
  add_torch_write(to, "ctorch._utils\n_rebuild_tensor_v2\n((");
  add_word(to, "storage"), add_torch_write(to, "ctorch\n"), add_torch_write(to, kr_torch_storage(item->dtype)),
      add_torch_write(to, "Storage\n");
  add_word(to, key), add_word(to, "cpu"), add_whole(to, n), add_torch_write(to, "tQ");
  add_whole(to, 0), add_torch_write(to, "(");
  for (int i = 0; i < item->n_dims; i++) add_whole(to, item->shape[i]);
  add_torch_write(to, "t(");
  for (int i = 0; i < item->n_dims; i++) add_whole(to, strides[i]);
  add_torch_write(to, "t\x89"), add_empty_dictionary(to), add_torch_write(to, "tR");
}

static kr_text pickle_of(kr_arena *arena, const kr_weight *items, int64_t n_items) {
  kr_text to = kr_text_begin(arena);
  add_torch_write(&to, "\x80\x02}"), add_word(&to, "model"), add_empty_dictionary(&to), add_torch_write(&to, "(");
  for (int64_t i = 0; i < n_items; i++) add_torch_write_tensor(&to, items + i, i);
  add_torch_write(&to, "us.");
  return to;
}

/* ---- the zip ---- */

typedef struct kr_zip_out {
  FILE *file;
  kr_arena *arena;
  kr_text directory;
  uint64_t at;
  int n, failed;
} kr_zip_out;

static void put(kr_zip_out *z, const void *bytes, uint64_t n) {
  z->failed |= fwrite(bytes, 1, (size_t)n, z->file) != (size_t)n;
  z->at += n;
}

/* The fields shared by both headers of an entry, in the same order. */
static void add_entry(kr_text *to, const char *name, uint32_t crc, uint64_t bytes, uint64_t extra) {
  add_bytes(to, 20, 2), add_bytes(to, 0, 2), add_bytes(to, 0, 2), add_bytes(to, 0, 2), add_bytes(to, DATE, 2);
  add_bytes(to, crc, 4), add_bytes(to, bytes, 4), add_bytes(to, bytes, 4);
  add_bytes(to, strlen(name), 2), add_bytes(to, extra, 2);
}

static void put_torch_write_entry(kr_zip_out *z, const char *name, const void *data, uint64_t bytes) {
  const uint64_t begin = z->at, reached = begin + 30 + strlen(name) + 4, padding = (ALIGN - reached % ALIGN) % ALIGN;
  const uint32_t crc = libdeflate_crc32(0, data, (size_t)bytes);
  kr_text header = kr_text_begin(z->arena);
  add_torch_write(&header, "PK\3\4"), add_entry(&header, name, crc, bytes, 4 + padding), add_torch_write(&header, name);
  add_torch_write(&header, "FB"), add_bytes(&header, padding, 2);
  for (uint64_t i = 0; i < padding; i++) add_torch_write(&header, "Z");
  put(z, header.at, header.length), put(z, data, bytes);
  add_torch_write(&z->directory, "PK\1\2"), add_bytes(&z->directory, 20, 2),
      add_entry(&z->directory, name, crc, bytes, 0);
  add_bytes(&z->directory, 0, 8), add_bytes(&z->directory, 0, 2), add_bytes(&z->directory, begin, 4),
      add_torch_write(&z->directory, name);
  z->n++;
}

static void put_all(kr_zip_out *z, const kr_weight *items, int64_t n_items) {
  char name[64];
  const kr_text pickle = pickle_of(z->arena, items, n_items);
  put_torch_write_entry(z, "archive/data.pkl", pickle.at, pickle.length);
  put_torch_write_entry(z, "archive/byteorder", "little", 6);
  for (int64_t i = 0; i < n_items; i++) {
    snprintf(name, sizeof name, "archive/data/%lld", (long long)i);
    put_torch_write_entry(z, name, items[i].data, items[i].bytes);
  }
  put_torch_write_entry(z, "archive/version", "3\n", 2);
  kr_text end = kr_text_begin(z->arena);
  add_torch_write(&end, "PK\5\6"), add_bytes(&end, 0, 4), add_bytes(&end, (uint64_t)z->n, 2),
      add_bytes(&end, (uint64_t)z->n, 2);
  add_bytes(&end, z->directory.length, 4), add_bytes(&end, z->at, 4), add_bytes(&end, 0, 2);
  put(z, z->directory.at, z->directory.length), put(z, end.at, end.length);
}

static int32_t write_torch_write_file(const char *path, kr_arena *arena, const kr_weight *items, int64_t n_items) {
  kr_outfile out;
  KR_TRY(kr_outfile_begin(&out, path));
  errno = 0;
  kr_zip_out z = {.file = fopen(out.temp_path, "wb"), .arena = arena, .directory = kr_text_begin(arena)};
  if (z.file) put_all(&z, items, n_items);
  int failed = !z.file || z.failed || kr_arena_failed(arena), os_errno = errno;
  if (z.file && fclose(z.file) != 0 && !failed) failed = 1, os_errno = errno;
  if (!failed) return kr_outfile_commit(&out);
  kr_outfile_abandon(&out);
  KR_CHECK(!kr_arena_failed(arena), KRAIT_ERR_NO_MEMORY, "%s: no memory for its list of tensors", path);
  return kr_fail_os(KRAIT_ERR_FILE_WRITE, os_errno, "cannot write %s", path);
}

int32_t kr_torch_file_write(const char *path, const kr_weight *items, int64_t n_items) {
  uint64_t all = 1 << 20;
  for (int64_t i = 0; i < n_items; i++) {
    KR_CHECK(kr_torch_storage(items[i].dtype), KRAIT_ERR_DTYPE,
             "%s: tensor '%s' is %s, for which PyTorch has no storage", path, items[i].name,
             krait_dtype_name(items[i].dtype));
    all += items[i].bytes + strlen(items[i].name) + 1024;
  }
  KR_CHECK(n_items <= MAX_ENTRIES && all < UINT32_MAX, KRAIT_ERR_UNSUPPORTED,
           "%s: %lld tensors of %llu bytes are too much for one file; write safetensors", path, (long long)n_items,
           (unsigned long long)all);
  kr_arena *arena = kr_arena_open();
  KR_CHECK(arena, KRAIT_ERR_NO_MEMORY, "%s: no memory for its list of tensors", path);
  const int32_t status = write_torch_write_file(path, arena, items, n_items);
  kr_arena_close(&arena);
  return status;
}
