/* zip_file.c: libzip behind the checks of zip_file.h, and a member as a source with a sliding window. */
#define _GNU_SOURCE
#include "zip_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zip.h>

#include "alloc.h"
#include "names.h"
#include "status.h"

enum { MAX_NAMES = 200000, MAX_RATIO = 1000, PIECE_BYTES = 1 << 18, WINDOW_BYTES = KR_ZIP_WINDOW_BYTES, HEAD_BYTES = 2 << 20, MAX_RESTARTS = 16, N_BLOCKS = 64, BLOCK_BYTES = 1 << 16 };
#define MAX_TOTAL_BYTES (64ull << 30)

typedef struct room { /* where a member's bytes lie; of full size, for the next member to take */
  uint8_t *window, *head, *blocks;
} room;

struct kr_zip {
  zip_t *zip;
  room spare; /* of the source that was closed last: system calls and fragments of memory for each member would be many */
  uint64_t total_bytes;
  kr_arena *arena;
  kr_names names; /* how many members have a name */
};

static int32_t check_total(kr_zip *z, const char *path) {
  zip_int64_t n = zip_get_num_entries(z->zip, 0);
  uint64_t packed_bytes = 0;
  struct stat file;
  KR_CHECK(stat(path, &file) == 0, KRAIT_ERR_FILE_READ, "cannot read %s", path);
  KR_CHECK(n >= 0 && n <= MAX_NAMES, KRAIT_ERR_UNSAFE, "%s holds more than %d names", path, MAX_NAMES);
  for (zip_int64_t i = 0; i < n; i++) {
    zip_stat_t info;
    if (zip_stat_index(z->zip, (zip_uint64_t)i, 0, &info) != 0) continue;
    if (info.name) ++*kr_names_put(z->arena, &z->names, info.name);
    if (!(info.valid & ZIP_STAT_SIZE)) continue;
    KR_CHECK(kr_add_u64(z->total_bytes, info.size, &z->total_bytes) && z->total_bytes <= MAX_TOTAL_BYTES, KRAIT_ERR_UNSAFE, "%s unpacks to more than 64 GiB", path);
    KR_CHECK(kr_add_u64(packed_bytes, info.comp_size, &packed_bytes) && packed_bytes <= (uint64_t)file.st_size, KRAIT_ERR_UNSAFE, "the members of %s overlap", path);
  }
  KR_CHECK(!kr_arena_failed(z->arena), KRAIT_ERR_NO_MEMORY, "no memory to open %s", path);
  return KRAIT_OK;
}

int32_t kr_zip_open(const char *path, kr_zip **zip) {
  int code = 0;
  *zip = NULL;
  zip_t *opened = zip_open(path, ZIP_RDONLY | ZIP_CHECKCONS, &code);
  if (!opened) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    int32_t status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is no sound zip archive: %s", path, zip_error_strerror(&error));
    zip_error_fini(&error);
    return status;
  }
  kr_zip *z = kr_zalloc(sizeof *z);
  if (!z || !(z->arena = kr_arena_open())) {
    kr_free(z);
    zip_discard(opened);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to open %s", path);
  }
  z->zip = opened;
  int32_t status = check_total(z, path);
  if (status < 0) kr_zip_close(&z);
  *zip = z;
  return status;
}

static void free_room(room *r) {
  kr_free(r->window);
  kr_free(r->head);
  kr_free(r->blocks);
  *r = (room){0};
}

void kr_zip_close(kr_zip **zip) {
  if (!zip || !*zip) return;
  free_room(&(*zip)->spare);
  zip_discard((*zip)->zip);
  kr_arena_close(&(*zip)->arena);
  kr_free(*zip);
  *zip = NULL;
}

int64_t kr_zip_n(const kr_zip *zip) { return zip_get_num_entries(zip->zip, 0); }
int64_t kr_zip_find(kr_zip *zip, const char *name) { return zip_name_locate(zip->zip, name, 0); }

static int leaves_the_folder(const char *name) {
  if (*name == '/' || *name == '\\' || (name[0] && name[1] == ':')) return 1;
  for (const char *p = name; *p; p++) {
    if ((unsigned char)*p < 32) return 1;
    if (*p == '\\') return 1;
    if ((p == name || p[-1] == '/') && p[0] == '.' && p[1] == '.' && (p[2] == '/' || !p[2])) return 1;
  }
  return 0;
}

static int is_link(zip_t *zip, zip_uint64_t i) {
  zip_uint8_t system;
  zip_uint32_t attributes;
  if (zip_file_get_external_attributes(zip, i, 0, &system, &attributes) != 0 || system != ZIP_OPSYS_UNIX) return 0;
  return (attributes >> 16 & 0170000) == 0120000;
}

int32_t kr_zip_member_at(kr_zip *zip, int64_t i, kr_zip_member *member) {
  zip_stat_t info;
  *member = (kr_zip_member){.name = "?"};
  KR_CHECK(zip_stat_index(zip->zip, (zip_uint64_t)i, 0, &info) == 0 && info.name, KRAIT_ERR_UNSAFE, "zip member %lld cannot be read", (long long)i);
  size_t length = strlen(info.name);
  *member = (kr_zip_member){.name = info.name, .bytes = info.size, .packed_bytes = info.comp_size, .is_folder = length && info.name[length - 1] == '/'};
  KR_CHECK(!leaves_the_folder(info.name), KRAIT_ERR_UNSAFE, "the archive has a member that would leave its folder: %.80s", info.name);
  KR_CHECK(!is_link(zip->zip, (zip_uint64_t)i), KRAIT_ERR_UNSAFE, "the archive has a symbolic link: %.80s", info.name);
  const size_t *n_named = kr_names_find(&zip->names, info.name);
  KR_CHECK(n_named && *n_named == 1, KRAIT_ERR_UNSAFE, "the archive has two members of one name: %.80s", info.name);
  KR_CHECK(info.size / MAX_RATIO <= info.comp_size, KRAIT_ERR_UNSAFE, "a member unpacks more than %d-fold: %.80s", MAX_RATIO, info.name);
  return KRAIT_OK;
}

/* ---- members as sources ---- */
typedef struct stream {
  kr_source source; /* first: the callback gets a pointer to it */
  kr_zip *owner;
  zip_file_t *file;
  zip_uint64_t index;
  uint64_t begin, end; /* the window holds these bytes of the member: a ring of pieces */
  size_t cap;
  int n_starts;
  room at; /* window; head, which stays: headers and string tables are read again and again; blocks, where small reads went lately: section headers, the dynamic table */
  size_t head_bytes, head_cap;
  uint64_t block_at[N_BLOCKS];
  size_t block_bytes[N_BLOCKS];
  int next_block;
} stream;

static int32_t restart(stream *s) {
  if (s->file) zip_fclose(s->file);
  s->file = s->n_starts++ < MAX_RESTARTS ? zip_fopen_index(s->owner->zip, s->index, 0) : NULL;
  s->begin = s->end = 0;
  KR_CHECK(s->file, KRAIT_ERR_FILE_READ, "%s: cannot unpack it%s", s->source.name, s->n_starts > MAX_RESTARTS ? ": it jumps back too often" : "");
  return KRAIT_OK;
}

/* Unpacks one more piece, in the place of the oldest when the window is full. */
static int32_t advance(stream *s) {
  uint64_t left = s->source.size - s->end;
  size_t want = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES, have = 0;
  uint8_t *piece = s->at.window + (size_t)(s->end % s->cap);
  if (s->end - s->begin >= s->cap) s->begin += PIECE_BYTES;
  while (have < want) {
    zip_int64_t got = zip_fread(s->file, piece + have, want - have);
    KR_CHECK(got > 0, KRAIT_ERR_FILE_FORMAT, "%s: the archive's data is damaged at offset %llu", s->source.name, (unsigned long long)s->end + have);
    have += (size_t)got;
  }
  if (s->end == s->head_bytes && s->head_bytes < s->head_cap) {
    size_t n = have < s->head_cap - s->head_bytes ? have : s->head_cap - s->head_bytes;
    memcpy(s->at.head + s->head_bytes, piece, n);
    s->head_bytes += n;
  }
  s->end += have;
  return KRAIT_OK;
}

/* Bytes that the head or a kept block has at offset; *from is where. */
static size_t find_kept(const stream *s, uint64_t offset, const uint8_t **from) {
  if (offset < s->head_bytes) {
    *from = s->at.head + offset;
    return s->head_bytes - (size_t)offset;
  }
  for (int i = 0; s->at.blocks && i < N_BLOCKS; i++) {
    if (offset < s->block_at[i] || offset - s->block_at[i] >= s->block_bytes[i]) continue;
    *from = s->at.blocks + (size_t)i * BLOCK_BYTES + (offset - s->block_at[i]);
    return s->block_bytes[i] - (size_t)(offset - s->block_at[i]);
  }
  return 0;
}

/* Keeps the block around a small read, as far as the window holds it. */
static void keep_block(stream *s, uint64_t offset) {
  const uint8_t *kept;
  if (find_kept(s, offset, &kept)) return;
  uint64_t from = offset / BLOCK_BYTES * BLOCK_BYTES, end = from + BLOCK_BYTES < s->end ? from + BLOCK_BYTES : s->end;
  if (from < s->begin) from = s->begin;
  if (!s->at.blocks && !(s->at.blocks = kr_alloc((size_t)N_BLOCKS * BLOCK_BYTES))) return;
  int i = s->next_block++ % N_BLOCKS;
  memcpy(s->at.blocks + (size_t)i * BLOCK_BYTES, s->at.window + (size_t)(from % s->cap), (size_t)(end - from));
  s->block_at[i] = from;
  s->block_bytes[i] = (size_t)(end - from);
}

static int32_t read_stream(kr_source *source, uint64_t offset, void *out, size_t bytes) {
  stream *s = (stream *)source;
  int is_small = bytes <= 4096;
  for (uint8_t *to = out; bytes;) {
    const uint8_t *from;
    size_t n = offset < s->begin || offset >= s->end ? find_kept(s, offset, &from) : 0;
    if (!n) {
      if (offset < s->begin || !s->file) KR_TRY(restart(s));
      while (s->end <= offset) KR_TRY(advance(s));
      from = s->at.window + (size_t)(offset % s->cap);
      n = PIECE_BYTES - (size_t)(offset % PIECE_BYTES);
      if (n > s->end - offset) n = (size_t)(s->end - offset);
      if (is_small && offset >= s->head_bytes) keep_block(s, offset);
    }
    if (n > bytes) n = bytes;
    memcpy(to, from, n);
    to += n, offset += n, bytes -= n;
  }
  return KRAIT_OK;
}

static int take_room(kr_zip *zip, room *r) {
  *r = zip->spare;
  zip->spare = (room){0};
  if (!r->window) r->window = kr_alloc(WINDOW_BYTES);
  if (!r->head) r->head = kr_alloc(HEAD_BYTES);
  return r->window && r->head;
}

int32_t kr_zip_source_open(kr_zip *zip, int64_t i, kr_source **source) {
  kr_zip_member member;
  room r = {0};
  *source = NULL;
  KR_TRY(kr_zip_member_at(zip, i, &member));
  stream *s = kr_zalloc(sizeof *s);
  if (!s || !take_room(zip, &r)) {
    kr_free(s);
    free_room(&r);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to unpack %s", member.name);
  }
  *s = (stream){.source = {.read = read_stream, .size = member.bytes, .name = member.name, .fd = -1, .is_forward = 1}, .owner = zip, .index = (zip_uint64_t)i,
                .cap = WINDOW_BYTES, .at = r, .head_cap = member.bytes < HEAD_BYTES ? (size_t)member.bytes : HEAD_BYTES};
  *source = &s->source;
  return KRAIT_OK;
}

/* Before the archive. */
void kr_zip_source_close(kr_source **source) {
  if (!source || !*source) return;
  stream *s = (stream *)*source;
  if (s->file) zip_fclose(s->file);
  free_room(&s->owner->spare);
  s->owner->spare = s->at;
  kr_free(s);
  *source = NULL;
}

#ifdef KR_FUZZ
#include <sys/mman.h>
#include <unistd.h>

/* The input as a file: every member is looked at, and read forward and back a little. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[40];
  uint8_t bytes[64];
  kr_zip *zip = NULL;
  const int fd = memfd_create("zip", 0);
  if (fd < 0) return 0;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (write(fd, data, size) == (ssize_t)size && kr_zip_open(path, &zip) == KRAIT_OK) {
    for (int64_t i = 0; i < kr_zip_n(zip) && i < 64; i++) {
      kr_zip_member member;
      kr_source *source = NULL;
      if (kr_zip_member_at(zip, i, &member) < 0 || kr_zip_source_open(zip, i, &source) < 0) continue;
      if (source->size >= sizeof bytes && kr_source_read(source, source->size - sizeof bytes, bytes, sizeof bytes) >= 0)
        kr_source_read(source, 0, bytes, sizeof bytes);
      kr_zip_source_close(&source);
    }
  }
  kr_zip_close(&zip);
  close(fd);
  return 0;
}
#endif
