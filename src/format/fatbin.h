/* fatbin.h: containers of device code and their entries: their position, target and compression.
 *
 *   container: 16-byte header, then entries      entry: header of H >= 64 bytes, then P bytes of payload
 *   .nv_fatbin is containers back to back, aligned to 8; there is no terminator.
 * The walkers allocate nothing; unpacking uses zstd and LZ4 into the caller's buffer. */
#ifndef KR_FATBIN_H
#define KR_FATBIN_H

#include "source.h"

#define KR_FATBIN_MAGIC 0xBA55ED50u
#define KR_FATBIN_MAGIC_OLD 0x1EE55A01u
#define KR_FATBIN_WRAPPER_MAGIC 0x466243B1u

enum { KR_FATBIN_HEADER_BYTES = 16, KR_ENTRY_HEADER_BYTES = 64, KR_FATBIN_MAX_ENTRIES = 4096 };
enum { KR_ENTRY_PTX = 1, KR_ENTRY_CUBIN = 2, KR_ENTRY_LTO = 8 };
enum { KR_PACK_NONE = 0, KR_PACK_OLD = 1, KR_PACK_LZ4 = 2, KR_PACK_ZSTD = 3 };

#define KR_FLAG_64BIT 0x1ull
#define KR_FLAG_DEBUG 0x2ull
#define KR_FLAG_LZ_OLD 0x1000ull
#define KR_FLAG_LZ4 0x2000ull
#define KR_FLAG_ZSTD 0x8000ull
#define KR_FLAG_ARCH 0x100000ull
#define KR_FLAG_FAMILY 0x200000ull

typedef struct kr_fatbin {
  uint64_t offset, size; /* the whole container, in the source */
} kr_fatbin;

typedef struct kr_entry {
  uint16_t kind, unknown; /* unknown: not 0x0101 */
  uint32_t header_bytes, packed_bytes;
  uint64_t offset, payload, payload_bytes, unpacked_bytes; /* offset and payload in the source */
  uint16_t minor, major;
  uint32_t sm;
  uint64_t flags;
  uint32_t options, n_options; /* text of ptxas options, relative to the entry; 0 none */
  uint32_t name, n_name;       /* source file name, relative to the entry; 0 none */
} kr_entry;

/* Reads the container at offset, which must end at or before end. 1 found; 0 no container there (offset at the end, or
 * only padding is left); KRAIT_ERR_FILE_FORMAT for damage. */
int32_t kr_fatbin_at(kr_source *source, uint64_t offset, uint64_t end, kr_fatbin *fatbin);
/* The next container after one (NULL: from start), skipping zeros in between. */
int32_t kr_fatbin_next(kr_source *source, uint64_t start, uint64_t end, const kr_fatbin *previous, kr_fatbin *fatbin);
/* Scans [from, end) in steps of 4 bytes for a plausible header; 1 or 0. */
int32_t kr_fatbin_search(kr_source *source, uint64_t from, uint64_t end, kr_fatbin *fatbin);
/* The entry at *at (begin with fatbin->offset + 16); advances *at. 1, 0 at the end, or damage. */
int32_t kr_entry_next(kr_source *source, const kr_fatbin *fatbin, uint64_t *at, kr_entry *entry);

int kr_entry_pack(const kr_entry *entry);
uint64_t kr_entry_bytes(
    const kr_entry *entry); /* of the unpacked payload; includes padding if it is not compressed */
/* Unpacks the first cap bytes (or all, if fewer) into out; *n_out says how many. Damage, a decompression bomb (more
 * than 2000-fold, or 1 GiB) and the old compression are errors. */
int32_t kr_entry_unpack(kr_source *source, const kr_entry *entry, uint8_t *out, size_t cap, size_t *n_out);
/* 'a', 'f' or 0, from the entry's flags alone. */
char kr_entry_suffix(const kr_entry *entry);

/* The head of PTX text. */
typedef struct kr_ptx {
  int32_t version; /* ten times the ISA: 90 for 9.0; 0 when there is no .version */
  int32_t sm;
  char suffix;
} kr_ptx;
int32_t kr_ptx_read(const char *text, size_t n, kr_ptx *ptx); /* KRAIT_ERR_FILE_FORMAT without .version and .target */
/* The next `.entry NAME` at or after *at; 1 or 0. */
int kr_ptx_kernel(const char *text, size_t n, size_t *at, char *name, size_t cap);

/* Unix archives. */
typedef struct kr_ar_member {
  char name[64];
  uint64_t offset, size;
} kr_ar_member;
int32_t kr_ar_next(kr_source *source, uint64_t *at,
                   kr_ar_member *member); /* *at starts at 0; 1, 0 at the end, or damage */

#endif
