/* tar_file.c: headers of POSIX and GNU tar over a stream that gzip, bzip2 or zstd unpack. */
#define _POSIX_C_SOURCE 200809L
#include "tar_file.h"

#include <bzlib.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "alloc.h"
#include "forward.h"
#include "status.h"

enum {
  BLOCK_BYTES = 512,
  PIECE_BYTES = 1 << 16,
  MAX_MEMBERS = 200000,
  MAX_NAME = 4096,
  MAX_EXTRA_BYTES = 1 << 16,
  MAX_RATIO = 1000,
  MAX_RESTARTS = 16,
  GZIP_WINDOW = 16 + MAX_WBITS,
  ZSTD_WINDOW_LOG = 27
};
#define MAX_TOTAL_BYTES (64ull << 30)

typedef enum packing { PLAIN, GZIP, BZIP2, ZSTD } packing;

struct kr_tar {
  kr_source *packed;
  packing packing;
  uint64_t packed_at, at; /* bytes read from packed, and unpacked bytes delivered */
  uint8_t *in;            /* a piece of packed, from in_at to in_end */
  size_t in_at, in_end;
  z_stream z;
  bz_stream bz;
  int has_z, has_bz, n_starts, n_members, is_open; /* open: a frame began and has not ended */
  ZSTD_DCtx *zstd;
  uint64_t next, member_at, member_bytes; /* unpacked offsets: of the next header, of the member's bytes */
  char name[MAX_NAME + 1];
  kr_forward_memory spare;
};

/* ---- unpacking ---- */
static int32_t tar_file_damage(const kr_tar *t, const char *what) {
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: %s at offset %llu", t->packed->name, what,
                 (unsigned long long)t->packed_at - (t->in_end - t->in_at));
}

/* bzip2 can only go back by starting again. */
static int32_t begin_bzip2(kr_tar *t) {
  if (t->has_bz) BZ2_bzDecompressEnd(&t->bz);
  t->bz = (bz_stream){0};
  t->has_bz = BZ2_bzDecompressInit(&t->bz, 0, 0) == BZ_OK;
  KR_CHECK(t->has_bz, KRAIT_ERR_NO_MEMORY, "no memory to unpack %s", t->packed->name);
  return KRAIT_OK;
}

static int32_t restart_tar_file(kr_tar *t) {
  KR_CHECK(t->n_starts++ < MAX_RESTARTS, KRAIT_ERR_FILE_READ, "%s: cannot unpack it: it jumps back too often",
           t->packed->name);
  t->packed_at = t->at = t->in_at = t->in_end = 0;
  t->is_open = 0;
  if (t->packing == GZIP && t->has_z && inflateReset(&t->z) != Z_OK)
    return tar_file_damage(t, "a gzip stream that cannot begin again");
  if (t->packing == BZIP2) KR_TRY(begin_bzip2(t));
  if (t->packing == ZSTD) ZSTD_DCtx_reset(t->zstd, ZSTD_reset_session_only);
  return KRAIT_OK;
}

static int32_t refill(kr_tar *t) {
  const uint64_t left = t->packed->size - t->packed_at;
  const size_t n = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
  if (t->in_at < t->in_end) return KRAIT_OK;
  if (!n) return tar_file_damage(t, "the archive ends in the middle");
  KR_TRY(kr_source_read(t->packed, t->packed_at, t->in, n));
  t->packed_at += n, t->in_at = 0, t->in_end = n;
  return KRAIT_OK;
}

/* For each compression: one call on the available bytes; another stream may follow the first. */
static int32_t take_gzip(kr_tar *t, uint8_t *out, size_t capacity, size_t *n) {
  t->z.next_in = t->in + t->in_at, t->z.avail_in = (uInt)(t->in_end - t->in_at), t->z.next_out = out,
  t->z.avail_out = (uInt)capacity;
  const int status = inflate(&t->z, Z_NO_FLUSH);
  if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
    return tar_file_damage(t, "a gzip stream that does not unpack");
  t->in_at = t->in_end - t->z.avail_in, *n = capacity - t->z.avail_out;
  t->is_open = status != Z_STREAM_END;
  if (status == Z_STREAM_END && inflateReset(&t->z) != Z_OK)
    return tar_file_damage(t, "a gzip stream that does not unpack");
  return KRAIT_OK;
}

static int32_t take_bzip2(kr_tar *t, uint8_t *out, size_t capacity, size_t *n) {
  t->bz.next_in = (char *)t->in + t->in_at, t->bz.avail_in = (unsigned)(t->in_end - t->in_at),
  t->bz.next_out = (char *)out, t->bz.avail_out = (unsigned)capacity;
  const int status = BZ2_bzDecompress(&t->bz);
  KR_CHECK(status != BZ_MEM_ERROR, KRAIT_ERR_NO_MEMORY, "no memory to unpack %s", t->packed->name);
  if (status != BZ_OK && status != BZ_STREAM_END) return tar_file_damage(t, "a bzip2 stream that does not unpack");
  t->in_at = t->in_end - t->bz.avail_in, *n = capacity - t->bz.avail_out;
  t->is_open = status != BZ_STREAM_END;
  return status == BZ_STREAM_END ? begin_bzip2(t) : KRAIT_OK;
}

static int32_t take_zstd(kr_tar *t, uint8_t *out, size_t capacity, size_t *n) {
  ZSTD_inBuffer from = {.src = t->in + t->in_at, .size = t->in_end - t->in_at};
  ZSTD_outBuffer to = {.dst = out, .size = capacity};
  const size_t left = ZSTD_decompressStream(t->zstd, &to, &from);
  if (ZSTD_isError(left)) return tar_file_damage(t, "a zstd frame that does not unpack");
  t->is_open = left != 0;
  t->in_at += from.pos, *n = to.pos;
  return KRAIT_OK;
}

/* Some bytes, if the stream has any yet. */
static int32_t take_some(kr_tar *t, uint8_t *out, size_t capacity, size_t *n) {
  KR_TRY(refill(t));
  const size_t have = t->in_end - t->in_at;
  if (t->packing == GZIP) return take_gzip(t, out, capacity, n);
  if (t->packing == BZIP2) return take_bzip2(t, out, capacity, n);
  if (t->packing == ZSTD) return take_zstd(t, out, capacity, n);
  *n = have < capacity ? have : capacity;
  memcpy(out, t->in + t->in_at, *n);
  t->in_at += *n;
  return KRAIT_OK;
}

static int32_t take_tar_file(kr_tar *t, void *out, size_t bytes) {
  for (size_t have = 0; have < bytes;) {
    size_t n;
    const size_t capacity = bytes - have < PIECE_BYTES ? bytes - have : PIECE_BYTES;
    const size_t before = t->in_at;
    KR_TRY(take_some(t, (uint8_t *)out + have, capacity, &n));
    if (!n && t->in_at == before && t->in_at < t->in_end) return tar_file_damage(t, "a stream that does not go on");
    have += n, t->at += n;
    KR_CHECK(t->at <= MAX_TOTAL_BYTES && t->at / MAX_RATIO <= t->packed_at, KRAIT_ERR_FILE_FORMAT,
             "%s unpacks to an absurd size", t->packed->name);
  }
  return KRAIT_OK;
}

/* What follows the last member: its checksum is the archive's. */
static int32_t finish(kr_tar *t) {
  uint8_t scrap[4096];
  size_t n;
  while (t->in_at < t->in_end || t->packed_at < t->packed->size) {
    KR_TRY(take_some(t, scrap, sizeof scrap, &n));
    t->at += n;
    KR_CHECK(t->at <= MAX_TOTAL_BYTES && t->at / MAX_RATIO <= t->packed_at, KRAIT_ERR_FILE_FORMAT,
             "%s unpacks to an absurd size", t->packed->name);
  }
  return t->is_open ? tar_file_damage(t, "the archive ends in the middle") : KRAIT_OK;
}

static int32_t go_to(kr_tar *t, uint64_t offset) {
  uint8_t scrap[4096];
  if (offset < t->at) KR_TRY(restart_tar_file(t));
  while (t->at < offset)
    KR_TRY(take_tar_file(t, scrap, offset - t->at < sizeof scrap ? (size_t)(offset - t->at) : sizeof scrap));
  return KRAIT_OK;
}

/* ---- opening ---- */
static int32_t detect(kr_tar *t) {
  uint8_t head[4] = {0};
  KR_TRY(kr_source_read(t->packed, 0, head, t->packed->size < sizeof head ? (size_t)t->packed->size : sizeof head));
  KR_CHECK(memcmp(head, "\3757z", 3) != 0, KRAIT_ERR_UNSUPPORTED,
           "%s is packed with xz, which is not read here: unpack it and name the folder: mkdir unpacked && tar -xJf %s "
           "-C unpacked",
           t->packed->name, t->packed->name);
  t->packing = head[0] == 0x1f && head[1] == 0x8b ? GZIP
               : memcmp(head, "BZh", 3) == 0      ? BZIP2
               : kr_le32(head) == 0xFD2FB528      ? ZSTD
                                                  : PLAIN;
  if (t->packing == GZIP) t->has_z = inflateInit2(&t->z, GZIP_WINDOW) == Z_OK;
  if (t->packing == ZSTD && (t->zstd = ZSTD_createDCtx()))
    ZSTD_DCtx_setParameter(t->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG);
  if (t->packing == BZIP2) KR_TRY(begin_bzip2(t));
  KR_CHECK(t->packing == PLAIN || t->has_z || t->has_bz || t->zstd, KRAIT_ERR_NO_MEMORY, "no memory to unpack %s",
           t->packed->name);
  return KRAIT_OK;
}

int32_t kr_tar_open(kr_source *packed, kr_tar **tar) {
  kr_tar *t = kr_zalloc(sizeof *t);
  *tar = t;
  KR_CHECK(t, KRAIT_ERR_NO_MEMORY, "no memory to open %s", packed->name);
  t->packed = packed;
  int32_t status =
      (t->in = kr_alloc(PIECE_BYTES)) ? detect(t) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to open %s", packed->name);
  if (status < 0) kr_tar_close(tar);
  return status;
}

void kr_tar_close(kr_tar **tar) {
  if (!tar || !*tar) return;
  kr_tar *t = *tar;
  if (t->has_z) inflateEnd(&t->z);
  if (t->has_bz) BZ2_bzDecompressEnd(&t->bz);
  ZSTD_freeDCtx(t->zstd);
  kr_forward_free_memory(&t->spare);
  kr_free(t->in);
  kr_free(t);
  *tar = NULL;
}

/* ---- headers ---- */
/* Octal digits, or base 256 with the first bit set. */
static uint64_t number(const uint8_t *p, size_t n) {
  uint64_t v = 0;
  if (*p & 0x80) {
    for (size_t i = n > 8 ? n - 8 : 0; i < n; i++) v = v << 8 | p[i];
    return v;
  }
  for (size_t i = 0; i < n && p[i]; i++)
    if (p[i] >= '0' && p[i] <= '7') v = v << 3 | (uint64_t)(p[i] - '0');
  return v;
}

static int is_sound(const uint8_t *h) {
  uint64_t sum = 0;
  for (int i = 0; i < BLOCK_BYTES; i++) sum += i >= 148 && i < 156 ? ' ' : h[i];
  return sum == number(h + 148, 8);
}

static int tar_file_leaves_the_folder(const char *name) {
  if (*name == '/' || *name == '\\' || (name[0] && name[1] == ':')) return 1;
  for (const char *p = name; *p; p++) {
    if ((unsigned char)*p < 32 || *p == '\\') return 1;
    if ((p == name || p[-1] == '/') && p[0] == '.' && p[1] == '.' && (p[2] == '/' || !p[2])) return 1;
  }
  return 0;
}

/* "27 path=a/long/name\n", "20 size=123\n" */
static void read_pax(kr_tar *t, const char *text, size_t n, uint64_t *size) {
  for (size_t at = 0; at < n;) {
    char *end;
    const unsigned long length = strtoul(text + at, &end, 10);
    if (length < 5 || length > n - at || *end != ' ') return;
    const char *word = end + 1, *last = text + at + length - 1;
    if (word < last && strncmp(word, "path=", 5) == 0 && (size_t)(last - word - 5) < sizeof t->name)
      memcpy(t->name, word + 5, (size_t)(last - word - 5)), t->name[last - word - 5] = '\0';
    if (word < last && strncmp(word, "size=", 5) == 0) *size = strtoull(word + 5, NULL, 10);
    at += length;
  }
}

/* A block with more about the next one: its long name, its size. */
static int32_t read_extra(kr_tar *t, char type, uint64_t bytes, uint64_t *size) {
  char *text = bytes <= MAX_EXTRA_BYTES ? kr_alloc((size_t)bytes + 1) : NULL;
  KR_CHECK(text, KRAIT_ERR_FILE_FORMAT, "%s: a header of %llu bytes", t->packed->name, (unsigned long long)bytes);
  int32_t status = take_tar_file(t, text, (size_t)bytes);
  text[bytes] = '\0';
  if (status >= 0 && type == 'x') read_pax(t, text, (size_t)bytes, size);
  if (status >= 0 && type == 'L' && bytes < sizeof t->name) memcpy(t->name, text, (size_t)bytes + 1);
  kr_free(text);
  return status;
}

static void read_tar_file_name(kr_tar *t, const uint8_t *h) {
  const size_t n_prefix = memcmp(h + 257, "ustar", 5) == 0 && h[263] == '0' ? strnlen((const char *)h + 345, 155) : 0,
               n = strnlen((const char *)h, 100);
  if (n_prefix) memcpy(t->name, h + 345, n_prefix), t->name[n_prefix] = '/';
  memcpy(t->name + n_prefix + (n_prefix > 0), h, n);
  t->name[n_prefix + (n_prefix > 0) + n] = '\0';
}

int32_t kr_tar_next(kr_tar *t, kr_tar_member *member) {
  uint8_t h[BLOCK_BYTES];
  uint64_t long_size = UINT64_MAX;
  t->name[0] = '\0';
  for (;;) {
    KR_CHECK(t->n_members++ < MAX_MEMBERS, KRAIT_ERR_FILE_FORMAT, "%s has more than %d members", t->packed->name,
             MAX_MEMBERS);
    KR_TRY(go_to(t, t->next));
    KR_TRY(take_tar_file(t, h, sizeof h));
    if (h[0] == 0 && number(h + 148, 8) == 0) return finish(t);
    KR_CHECK(is_sound(h), KRAIT_ERR_FILE_FORMAT,
             "%s is not a valid tar archive: the header at offset %llu has a wrong checksum", t->packed->name,
             (unsigned long long)t->next);
    const char type = (char)h[156];
    const int is_extra = type == 'x' || type == 'L' || type == 'K' || type == 'g',
              is_file = type == '0' || type == '\0' || type == '7';
    const uint64_t size = !is_extra && long_size != UINT64_MAX ? long_size : number(h + 124, 12);
    KR_CHECK(size <= MAX_TOTAL_BYTES, KRAIT_ERR_FILE_FORMAT, "%s: a member of %llu bytes", t->packed->name,
             (unsigned long long)size);
    t->member_at = t->next + BLOCK_BYTES, t->member_bytes = size;
    t->next = t->member_at + (size + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    if (is_extra) {
      if (type == 'x' || type == 'L') KR_TRY(read_extra(t, type, size, &long_size));
      continue;
    }
    if (!t->name[0]) read_tar_file_name(t, h);
    if (is_file) break;
    t->name[0] = '\0', long_size = UINT64_MAX;
  }
  *member = (kr_tar_member){.name = t->name, .bytes = t->member_bytes};
  KR_CHECK(!tar_file_leaves_the_folder(t->name), KRAIT_ERR_UNSAFE,
           "the archive has a member that would leave its folder: %.80s", t->name);
  return 1;
}

/* ---- members as sources ---- */
static int32_t begin_tar_file(void *user) { return go_to(user, ((kr_tar *)user)->member_at); }
static int32_t unpack_tar_file(void *user, void *out, size_t bytes) { return take_tar_file(user, out, bytes); }

int32_t kr_tar_source_open(kr_tar *t, kr_source **source) {
  const kr_forward_feed feed = {.user = t, .begin = begin_tar_file, .read = unpack_tar_file};
  return kr_forward_open(&t->spare, &feed, t->member_bytes, t->name, source);
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_source packed = kr_source_memory(data, size, "fuzz");
  kr_tar *tar;
  kr_tar_member member;
  uint8_t bytes[64];
  if (kr_tar_open(&packed, &tar) < 0) return 0;
  for (int32_t status, i = 0; i < 64 && ((status = kr_tar_next(tar, &member)) == 1 || status == KRAIT_ERR_UNSAFE);
       i++) {
    kr_source *source;
    if (status != 1 || kr_tar_source_open(tar, &source) < 0) continue;
    if (source->size >= sizeof bytes && source->size < 1 << 24 &&
        kr_source_read(source, source->size - sizeof bytes, bytes, sizeof bytes) >= 0)
      kr_source_read(source, 0, bytes, sizeof bytes);
    kr_forward_close(&source);
  }
  kr_tar_close(&tar);
  return 0;
}
#endif
