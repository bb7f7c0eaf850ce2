/* elf.h: ELF64 little-endian files and cubins, read through a kr_source: sections, dynamic entries, symbols, versions.
 * Nothing is trusted: every offset is checked, every loop is bounded, no allocation. */
#ifndef KR_ELF_H
#define KR_ELF_H

#include "source.h"

enum {
  KR_ELF_CUDA = 190,
  KR_ELF_X86_64 = 62,
  KR_ELF_AARCH64 = 183,
  KR_SHT_SYMTAB = 2,
  KR_SHT_NOTE = 7,
  KR_SHT_NOBITS = 8,
  KR_SHT_DYNSYM = 11,
  KR_SHT_NV_INFO = 0x70000000,
  KR_SHT_NV_COMPAT = 0x70000086,
};

typedef struct kr_elf {
  kr_source *source;
  uint64_t base, size; /* the image's range in the source */
  uint8_t bits, big_endian, osabi,
      abiversion; /* bits: 32 or 64; only 64-bit little-endian images are read further */
  uint16_t type, machine;
  uint32_t version, flags;
  uint64_t shoff, phoff;
  uint32_t n_sections, n_segments, name_section;
  /* Internal: the last section headers that were read. */
  uint32_t cache_first, cache_n;
  uint8_t cache[64 * 64];
} kr_elf;

typedef struct kr_section {
  uint32_t name, type, link, info;
  uint64_t flags, address, offset, size, entry_bytes; /* offset is relative to the image */
} kr_section;

typedef struct kr_segment {
  uint32_t type;
  uint64_t offset, address, file_bytes;
} kr_segment;

/* What the dynamic loader uses. Offsets of tables are relative to the image; 0 when absent. */
typedef struct kr_dynamic {
  uint64_t offset, n_entries;
  uint64_t strings, strings_bytes;
  uint64_t symbols, n_symbols;
  uint64_t verneed, n_verneed, verdef, n_verdef;
} kr_dynamic;

typedef struct kr_symbol {
  uint64_t name; /* offset of the name in the image */
  uint8_t info, other;
  uint16_t section;
  uint64_t value, size;
} kr_symbol;

static inline int kr_symbol_type(const kr_symbol *s) { return s->info & 15; }
static inline int kr_symbol_is_weak(const kr_symbol *s) { return s->info >> 4 == 2; }
static inline int kr_symbol_is_undefined(const kr_symbol *s) { return s->section == 0; }

/* KRAIT_ERR_FILE_FORMAT if it is not an ELF image. A 32-bit or big-endian one opens with n_sections and n_segments
 * 0. */
int32_t kr_elf_open(kr_elf *elf, kr_source *source, uint64_t base, uint64_t size);
int32_t kr_elf_read(const kr_elf *elf, uint64_t offset, void *out, size_t bytes); /* offset in the image */
int32_t kr_elf_section(kr_elf *elf, uint32_t i, kr_section *section);
int32_t kr_elf_segment(const kr_elf *elf, uint32_t i, kr_segment *segment);
/* Copies a NUL-terminated string of at most cap - 1 bytes; longer or unterminated ones are an error. Returns its
 * length. */
int32_t kr_elf_string(const kr_elf *elf, uint64_t offset, char *out, size_t cap);
int32_t kr_elf_section_name(kr_elf *elf, const kr_section *section, char *out, size_t cap);
int32_t kr_elf_offset_of(const kr_elf *elf, uint64_t address, uint64_t *offset); /* through PT_LOAD; 1 or 0 */

int32_t kr_elf_dynamic(kr_elf *elf, kr_dynamic *dynamic); /* 1 when there is one, 0 for static images */
int32_t kr_elf_dynamic_entry(const kr_elf *elf, const kr_dynamic *dynamic, uint64_t i, uint64_t *tag, uint64_t *value);
/* Reads n symbols from first of a table at offset into out: n at most 256. */
int32_t kr_elf_symbols(const kr_elf *elf, uint64_t table, uint64_t first, uint32_t n, uint64_t strings, kr_symbol *out);

/* Walks `.gnu.version_r` (need 1) or `.gnu.version_d` (need 0): calls fn(user, file, version); file is "" for
 * definitions. Weak versions, which are not required, are skipped. */
typedef void (*kr_version_fn)(void *user, const char *file, const char *version);
int32_t kr_elf_versions(const kr_elf *elf, const kr_dynamic *dynamic, int need, kr_version_fn fn, void *user);

/* A cubin's description of itself. */
typedef struct kr_cubin {
  int32_t sm;        /* 90 */
  int32_t virtual_sm;
  char suffix;       /* 'a', 'f' or 0 */
  uint8_t new_abi, relocatable;
  int32_t toolkit;   /* ten times the version: 128; 0 unknown */
  uint64_t symtab, n_symbols, strings; /* image offsets; n_symbols 0 when it has none */
} kr_cubin;

int32_t kr_cubin_read(kr_elf *elf, kr_cubin *cubin);
/* The next kernel at or after *next; 1 and its name, or 0. *next starts at 0. */
int32_t kr_cubin_kernel(const kr_elf *elf, const kr_cubin *cubin, uint64_t *next, char *name, size_t cap);
/* The same, and its size in bytes of instructions. */
int32_t kr_cubin_kernel_sized(const kr_elf *elf, const kr_cubin *cubin, uint64_t *next, char *name, size_t cap,
                              uint64_t *bytes);

#endif
