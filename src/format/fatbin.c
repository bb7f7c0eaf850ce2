/* fatbin.c: walks containers and entries, and unpacks payloads within stated bounds. */
#include "fatbin.h"

#include <lz4.h>
#include <string.h>
#include <zstd.h>

#include "alloc.h"
#include "status.h"

enum { SEARCH_BYTES = 65536, MAX_RATIO = 2000 };
#define MAX_UNPACKED (1ull << 30)

static int32_t fatbin_damage(const kr_source *source, uint64_t offset, const char *what) {
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: %s at offset %llu", source->name, what, (unsigned long long)offset);
}

int32_t kr_fatbin_at(kr_source *source, uint64_t offset, uint64_t end, kr_fatbin *fatbin) {
  uint8_t h[KR_FATBIN_HEADER_BYTES];
  if (end > source->size) end = source->size;
  if (offset >= end || end - offset < KR_FATBIN_HEADER_BYTES) return 0;
  KR_TRY(kr_source_read(source, offset, h, sizeof h));
  uint32_t magic = kr_le32(h);
  if (magic == 0) return 0;
  if (magic == KR_FATBIN_MAGIC_OLD) return fatbin_damage(source, offset, "a fatbin older than CUDA 4");
  if (magic != KR_FATBIN_MAGIC) return fatbin_damage(source, offset, "not a fatbin container");
  if (kr_le16(h + 4) != 1 || kr_le16(h + 6) != KR_FATBIN_HEADER_BYTES)
    return fatbin_damage(source, offset, "a fatbin container of unknown version");
  uint64_t body = kr_le64(h + 8);
  if (body > end - offset - KR_FATBIN_HEADER_BYTES)
    return fatbin_damage(source, offset, "a fatbin container that is larger than the space for it");
  *fatbin = (kr_fatbin){.offset = offset, .size = body + KR_FATBIN_HEADER_BYTES};
  return 1;
}

static uint64_t align8(uint64_t offset) { return offset > UINT64_MAX - 7 ? offset : (offset + 7) & ~7ull; }

/* Linkers align a section's parts, to 256 bytes on AArch64: the first offset from this one with nonzero data, or the
 * end. */
static int32_t skip_zeros(kr_source *source, uint64_t *offset, uint64_t end) {
  uint8_t words[512];
  static const uint8_t zeros[8];
  if (end > source->size) end = source->size;
  while (*offset < end) {
    const size_t n = end - *offset < sizeof words ? (size_t)(end - *offset) : sizeof words;
    size_t i = 0;
    KR_TRY(kr_source_read(source, *offset, words, n));
    while (i + 8 <= n && memcmp(words + i, zeros, 8) == 0) i += 8;
    *offset += i;
    if (i < sizeof words) break;
  }
  return KRAIT_OK;
}

int32_t kr_fatbin_next(kr_source *source, uint64_t start, uint64_t end, const kr_fatbin *previous, kr_fatbin *fatbin) {
  uint64_t offset = previous ? align8(previous->offset + previous->size) : start;
  if (previous) KR_TRY(skip_zeros(source, &offset, end));
  return kr_fatbin_at(source, offset, end, fatbin);
}

int32_t kr_fatbin_search(kr_source *source, uint64_t from, uint64_t end, kr_fatbin *fatbin) {
  uint8_t *window = kr_alloc(SEARCH_BYTES);
  int32_t found = window ? 0 : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to search %s", source->name);
  if (end > source->size) end = source->size;
  for (uint64_t at = (from + 3) & ~3ull; found == 0 && at < end && end - at >= KR_FATBIN_HEADER_BYTES;) {
    size_t n = end - at < SEARCH_BYTES ? (size_t)(end - at) : SEARCH_BYTES;
    if ((found = kr_source_read(source, at, window, n)) < 0) break;
    for (size_t i = 0; i + KR_FATBIN_HEADER_BYTES <= n && found == 0; i += 4)
      if (kr_le32(window + i) == KR_FATBIN_MAGIC && kr_fatbin_at(source, at + i, end, fatbin) == 1) found = 1;
    at += (n - KR_FATBIN_HEADER_BYTES + 4) & ~(size_t)3;
  }
  kr_free(window);
  return found;
}

static void fill_entry(const uint8_t *h, uint64_t at, kr_entry *e) {
  *e = (kr_entry){.kind = kr_le16(h),
                  .unknown = kr_le16(h + 2) != 0x0101,
                  .header_bytes = kr_le32(h + 4),
                  .packed_bytes = kr_le32(h + 16),
                  .offset = at,
                  .payload = at + kr_le32(h + 4),
                  .payload_bytes = kr_le64(h + 8),
                  .unpacked_bytes = kr_le64(h + 56),
                  .minor = kr_le16(h + 24),
                  .major = kr_le16(h + 26),
                  .sm = kr_le32(h + 28),
                  .flags = kr_le64(h + 40),
                  .name = kr_le32(h + 32),
                  .n_name = kr_le32(h + 36)};
}

static int32_t read_options(kr_source *source, uint32_t block, kr_entry *e) {
  uint8_t h[8];
  if (!block) return KRAIT_OK;
  if (block < KR_ENTRY_HEADER_BYTES || e->header_bytes < 8 || block > e->header_bytes - 8)
    return fatbin_damage(source, e->offset, "an option block outside its header");
  KR_TRY(kr_source_read(source, e->offset + block, h, sizeof h));
  if (!kr_range_fits(kr_le32(h), kr_le32(h + 4), e->header_bytes)) return KRAIT_OK; /* hints only */
  e->options = kr_le32(h);
  e->n_options = kr_le32(h + 4);
  return KRAIT_OK;
}

int32_t kr_entry_next(kr_source *source, const kr_fatbin *fatbin, uint64_t *at, kr_entry *e) {
  uint8_t h[KR_ENTRY_HEADER_BYTES];
  uint64_t end = fatbin->offset + fatbin->size;
  if (*at >= end) return 0;
  if (end - *at < KR_ENTRY_HEADER_BYTES) return fatbin_damage(source, *at, "a container ends inside an entry header");
  KR_TRY(kr_source_read(source, *at, h, sizeof h));
  fill_entry(h, *at, e);
  uint64_t left = end - *at;
  if (e->header_bytes < KR_ENTRY_HEADER_BYTES || e->header_bytes > left)
    return fatbin_damage(source, *at, "an entry with an impossible header size");
  if (e->payload_bytes > left - e->header_bytes)
    return fatbin_damage(source, *at, "an entry that is larger than its container");
  if (e->packed_bytes > e->payload_bytes)
    return fatbin_damage(source, *at, "an entry with more packed bytes than payload");
  if (e->n_name && !kr_range_fits(e->name, e->n_name, e->header_bytes))
    return fatbin_damage(source, *at, "a source name outside its header");
  KR_TRY(read_options(source, kr_le32(h + 20), e));
  *at += e->header_bytes + e->payload_bytes;
  return 1;
}

int kr_entry_pack(const kr_entry *e) {
  if (!e->packed_bytes) return KR_PACK_NONE;
  if (e->kind == KR_ENTRY_LTO) return KR_PACK_OLD; /* opaque, and not a zstd frame although flagged as one */
  if (e->flags & KR_FLAG_ZSTD) return KR_PACK_ZSTD;
  if (e->flags & KR_FLAG_LZ4) return KR_PACK_LZ4;
  return KR_PACK_OLD;
}

uint64_t kr_entry_bytes(const kr_entry *e) { return e->packed_bytes ? e->unpacked_bytes : e->payload_bytes; }

char kr_entry_suffix(const kr_entry *e) { return e->flags & KR_FLAG_ARCH ? 'a' : e->flags & KR_FLAG_FAMILY ? 'f' : 0; }

static int32_t unpack_zstd(kr_source *source, const kr_entry *e, uint8_t *out, size_t cap, size_t *n_out) {
  size_t piece_bytes = ZSTD_DStreamInSize();
  uint8_t *piece = kr_alloc(piece_bytes);
  ZSTD_DCtx *ctx = ZSTD_createDCtx();
  int32_t status = piece && ctx ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to unpack %s", source->name);
  ZSTD_outBuffer to = {.dst = out, .size = cap};
  if (ctx) ZSTD_DCtx_setParameter(ctx, ZSTD_d_windowLogMax, 27);
  for (uint64_t at = 0; status == KRAIT_OK && at < e->packed_bytes && to.pos < to.size;) {
    size_t n = e->packed_bytes - at < piece_bytes ? (size_t)(e->packed_bytes - at) : piece_bytes;
    if ((status = kr_source_read(source, e->payload + at, piece, n)) < 0) break;
    ZSTD_inBuffer from = {.src = piece, .size = n};
    while (from.pos < from.size && to.pos < to.size) {
      size_t left = ZSTD_decompressStream(ctx, &to, &from);
      if (ZSTD_isError(left)) {
        status = fatbin_damage(source, e->payload, "a zstd frame that cannot be unpacked");
        break;
      }
      if (left == 0) at = e->packed_bytes - n; /* the frame ended; the rest is padding */
      if (left == 0) break;
    }
    at += n;
  }
  *n_out = to.pos;
  ZSTD_freeDCtx(ctx);
  kr_free(piece);
  if (status == KRAIT_OK && to.pos < cap)
    status = fatbin_damage(source, e->payload, "a zstd frame that is shorter than its header announces");
  return status;
}

static int32_t unpack_lz4(kr_source *source, const kr_entry *e, uint8_t *out, size_t cap, size_t *n_out) {
  /* Only as much of the block as cap bytes can need: LZ4 never grows data by more than 1/255. */
  uint64_t need = (uint64_t)cap + cap / 255 + 64;
  size_t n = e->packed_bytes < need ? e->packed_bytes : (size_t)need;
  uint8_t *packed = kr_alloc(n);
  KR_CHECK(packed, KRAIT_ERR_NO_MEMORY, "no memory to unpack %s", source->name);
  int32_t status = kr_source_read(source, e->payload, packed, n);
  int got = -1;
  if (status == KRAIT_OK && n <= INT32_MAX && cap <= INT32_MAX)
    got = LZ4_decompress_safe_partial((const char *)packed, (char *)out, (int)n, (int)cap, (int)cap);
  kr_free(packed);
  KR_TRY(status);
  if (got < 0 || (size_t)got != cap) return fatbin_damage(source, e->payload, "an LZ4 block that cannot be unpacked");
  *n_out = (size_t)got;
  return KRAIT_OK;
}

int32_t kr_entry_unpack(kr_source *source, const kr_entry *e, uint8_t *out, size_t cap, size_t *n_out) {
  uint64_t bytes = kr_entry_bytes(e);
  int pack = kr_entry_pack(e);
  *n_out = 0;
  if (cap > bytes) cap = (size_t)bytes;
  if (pack == KR_PACK_OLD)
    return fatbin_damage(source, e->offset, "an entry compressed in a way that only old drivers support");
  if (pack != KR_PACK_NONE && (bytes > MAX_UNPACKED || bytes / MAX_RATIO > e->packed_bytes))
    return fatbin_damage(source, e->offset, "an entry that unpacks to an implausible size");
  if (cap == 0) return KRAIT_OK;
  if (pack == KR_PACK_ZSTD) return unpack_zstd(source, e, out, cap, n_out);
  if (pack == KR_PACK_LZ4) return unpack_lz4(source, e, out, cap, n_out);
  KR_TRY(kr_source_read(source, e->payload, out, cap));
  *n_out = cap;
  return KRAIT_OK;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t unpacked[1 << 16];
  kr_source source = kr_source_memory(data, size, "fuzz");
  kr_fatbin fatbin, found;
  size_t n;
  for (int status = kr_fatbin_next(&source, 0, size, NULL, &fatbin); status == 1;) {
    kr_entry entry;
    for (uint64_t at = fatbin.offset + KR_FATBIN_HEADER_BYTES; kr_entry_next(&source, &fatbin, &at, &entry) == 1;)
      kr_entry_unpack(&source, &entry, unpacked, sizeof unpacked, &n);
    const kr_fatbin previous = fatbin;
    status = kr_fatbin_next(&source, 0, size, &previous, &fatbin);
  }
  kr_fatbin_search(&source, 0, size, &found);
  return 0;
}
#endif
