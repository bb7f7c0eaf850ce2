/* elf.c: the bounded ELF64 reader. */
#include "elf.h"

#include <string.h>

#include "status.h"

enum {
  EHDR_BYTES = 64,
  SHDR_BYTES = 64,
  PHDR_BYTES = 56,
  SYM_BYTES = 24,
  DYN_BYTES = 16,
  MAX_DYNAMIC = 65536,
  MAX_CHAIN = 65536,
  MAX_SECTIONS = 1 << 18
};
enum { PT_LOAD = 1, PT_DYNAMIC = 2, SHT_DYNAMIC = 6 };
enum { DT_NULL = 0, DT_HASH = 4, DT_STRTAB = 5, DT_SYMTAB = 6, DT_STRSZ = 10 };
#define DT_GNU_HASH 0x6ffffef5u
#define DT_VERDEF 0x6ffffffcu
#define DT_VERDEFNUM 0x6ffffffdu
#define DT_VERNEED 0x6ffffffeu
#define DT_VERNEEDNUM 0x6fffffffu

int32_t kr_elf_read(const kr_elf *elf, uint64_t offset, void *out, size_t bytes) {
  KR_CHECK(kr_range_fits(offset, bytes, elf->size), KRAIT_ERR_FILE_FORMAT,
           "%s: ELF image of %llu bytes is too short for offset %llu", elf->source->name, (unsigned long long)elf->size,
           (unsigned long long)offset);
  return kr_source_read(elf->source, elf->base + offset, out, bytes);
}

/* Counts that do not fit their fields are in section 0, which is read only for that, because it is at the end of the
 * file. */
static int32_t read_long_counts(kr_elf *elf) {
  uint8_t h[SHDR_BYTES];
  if (!elf->shoff || !kr_range_fits(elf->shoff, SHDR_BYTES, elf->size)) {
    elf->n_sections = 0;
    return KRAIT_OK;
  }
  if (elf->n_sections == 0 || elf->name_section == 0xffff) KR_TRY(kr_elf_read(elf, elf->shoff, h, sizeof h));
  if (elf->n_sections == 0) elf->n_sections = kr_le64(h + 32) > UINT32_MAX ? 0 : (uint32_t)kr_le64(h + 32);
  if (elf->name_section == 0xffff) elf->name_section = kr_le32(h + 40);
  uint64_t capacity = (elf->size - elf->shoff) / SHDR_BYTES;
  if (elf->n_sections > capacity || elf->n_sections > MAX_SECTIONS)
    elf->n_sections = 0; /* a table that extends past the end of the file is ignored */
  return KRAIT_OK;
}

int32_t kr_elf_open(kr_elf *elf, kr_source *source, uint64_t base, uint64_t size) {
  uint8_t h[EHDR_BYTES];
  *elf = (kr_elf){.source = source, .base = base, .size = size};
  KR_CHECK(kr_range_fits(base, size, source->size), KRAIT_ERR_FILE_FORMAT,
           "%s: ELF image extends past the end of the file", source->name);
  KR_CHECK(size >= EHDR_BYTES, KRAIT_ERR_FILE_FORMAT, "%s: %llu bytes are too few for an ELF image", source->name,
           (unsigned long long)size);
  KR_TRY(kr_source_read(source, base, h, sizeof h));
  KR_CHECK(memcmp(h, "\177ELF", 4) == 0, KRAIT_ERR_FILE_FORMAT, "%s: no ELF magic at offset %llu", source->name,
           (unsigned long long)base);
  elf->bits = h[4] == 2 ? 64 : 32;
  elf->big_endian = h[5] != 1;
  elf->osabi = h[7];
  elf->abiversion = h[8];
  elf->machine = elf->big_endian ? (uint16_t)(h[18] << 8 | h[19]) : kr_le16(h + 18);
  if (elf->bits != 64 || elf->big_endian) return KRAIT_OK;
  elf->type = kr_le16(h + 16);
  elf->version = kr_le32(h + 20);
  elf->phoff = kr_le64(h + 32);
  elf->shoff = kr_le64(h + 40);
  elf->flags = kr_le32(h + 48);
  elf->n_segments = kr_le16(h + 54) == PHDR_BYTES ? kr_le16(h + 56) : 0;
  elf->n_sections = kr_le16(h + 60);
  elf->name_section = kr_le16(h + 62);
  if (kr_le16(h + 58) != SHDR_BYTES) elf->shoff = 0;
  if (!kr_range_fits(elf->phoff, (uint64_t)elf->n_segments * PHDR_BYTES, size)) elf->n_segments = 0;
  return read_long_counts(elf);
}

static int32_t fill_section_cache(kr_elf *elf, uint32_t i) {
  uint32_t n = elf->n_sections - i < 64 ? elf->n_sections - i : 64;
  elf->cache_n = 0;
  KR_TRY(kr_elf_read(elf, elf->shoff + (uint64_t)i * SHDR_BYTES, elf->cache, (size_t)n * SHDR_BYTES));
  elf->cache_first = i;
  elf->cache_n = n;
  return KRAIT_OK;
}

int32_t kr_elf_section(kr_elf *elf, uint32_t i, kr_section *section) {
  KR_CHECK(i < elf->n_sections, KRAIT_ERR_FILE_FORMAT, "%s: no section %u", elf->source->name, i);
  if (i < elf->cache_first || i - elf->cache_first >= elf->cache_n) KR_TRY(fill_section_cache(elf, i));
  const uint8_t *h = elf->cache + (size_t)(i - elf->cache_first) * SHDR_BYTES;
  *section = (kr_section){.name = kr_le32(h),
                          .type = kr_le32(h + 4),
                          .flags = kr_le64(h + 8),
                          .address = kr_le64(h + 16),
                          .offset = kr_le64(h + 24),
                          .size = kr_le64(h + 32),
                          .link = kr_le32(h + 40),
                          .info = kr_le32(h + 44),
                          .entry_bytes = kr_le64(h + 56)};
  return KRAIT_OK;
}

int32_t kr_elf_segment(const kr_elf *elf, uint32_t i, kr_segment *segment) {
  uint8_t h[PHDR_BYTES];
  KR_CHECK(i < elf->n_segments, KRAIT_ERR_FILE_FORMAT, "%s: no segment %u", elf->source->name, i);
  KR_TRY(kr_elf_read(elf, elf->phoff + (uint64_t)i * PHDR_BYTES, h, sizeof h));
  *segment = (kr_segment){
      .type = kr_le32(h), .offset = kr_le64(h + 8), .address = kr_le64(h + 16), .file_bytes = kr_le64(h + 32)};
  return KRAIT_OK;
}

int32_t kr_elf_string(const kr_elf *elf, uint64_t offset, char *out, size_t cap) {
  size_t have = 0;
  while (have < cap) {
    size_t piece = cap - have < 128 ? cap - have : 128;
    if (offset >= elf->size) break;
    if (piece > elf->size - offset) piece = (size_t)(elf->size - offset);
    KR_TRY(kr_elf_read(elf, offset, out + have, piece));
    const char *end = memchr(out + have, 0, piece);
    if (end) return (int32_t)(end - out);
    have += piece;
    offset += piece;
  }
  if (cap) out[0] = '\0';
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: a name before offset %llu is not terminated", elf->source->name,
                 (unsigned long long)offset);
}

int32_t kr_elf_section_name(kr_elf *elf, const kr_section *section, char *out, size_t cap) {
  kr_section names;
  uint64_t offset;
  out[0] = '\0';
  KR_TRY(kr_elf_section(elf, elf->name_section, &names));
  KR_CHECK(section->name < names.size && kr_add_u64(names.offset, section->name, &offset), KRAIT_ERR_FILE_FORMAT,
           "%s: a section's name is outside the name table", elf->source->name);
  return kr_elf_string(elf, offset, out, cap);
}

int32_t kr_elf_offset_of(const kr_elf *elf, uint64_t address, uint64_t *offset) {
  for (uint32_t i = 0; i < elf->n_segments; i++) {
    kr_segment s;
    KR_TRY(kr_elf_segment(elf, i, &s));
    if (s.type != PT_LOAD || address < s.address || address - s.address >= s.file_bytes) continue;
    return kr_add_u64(s.offset, address - s.address, offset);
  }
  return 0;
}

static int32_t find_dynamic(kr_elf *elf, uint64_t *offset, uint64_t *bytes) {
  for (uint32_t i = 0; i < elf->n_segments; i++) {
    kr_segment s;
    KR_TRY(kr_elf_segment(elf, i, &s));
    if (s.type != PT_DYNAMIC) continue;
    *offset = s.offset;
    *bytes = s.file_bytes;
    return 1;
  }
  for (uint32_t i = 0; i < elf->n_sections; i++) {
    kr_section s;
    KR_TRY(kr_elf_section(elf, i, &s));
    if (s.type != SHT_DYNAMIC) continue;
    *offset = s.offset;
    *bytes = s.size;
    return 1;
  }
  return 0;
}

/* DT_GNU_HASH has no count: the last chain that starts from a bucket ends the table. */
static uint64_t count_by_gnu_hash(const kr_elf *elf, uint64_t offset) {
  uint8_t h[16], word[4];
  if (kr_elf_read(elf, offset, h, sizeof h) < 0) return 0;
  uint32_t n_buckets = kr_le32(h), first = kr_le32(h + 4), n_bloom = kr_le32(h + 8), last = 0;
  uint64_t buckets = offset + 16 + (uint64_t)n_bloom * 8, chains = buckets + (uint64_t)n_buckets * 4;
  if (!kr_range_fits(buckets, (uint64_t)n_buckets * 4, elf->size)) return 0;
  for (uint32_t i = 0; i < n_buckets;) {
    uint8_t many[1024];
    uint32_t n = n_buckets - i < 256 ? n_buckets - i : 256;
    if (kr_elf_read(elf, buckets + (uint64_t)i * 4, many, (size_t)n * 4) < 0) return 0;
    for (uint32_t k = 0; k < n; k++)
      if (kr_le32(many + k * 4) > last) last = kr_le32(many + k * 4);
    i += n;
  }
  if (last < first) return first;
  for (uint32_t step = 0; step < MAX_CHAIN; step++, last++)
    if (kr_elf_read(elf, chains + (uint64_t)(last - first) * 4, word, 4) < 0 || (kr_le32(word) & 1)) break;
  return (uint64_t)last + 1;
}

static uint64_t count_by_hash(const kr_elf *elf, uint64_t offset) {
  uint8_t h[8];
  return kr_elf_read(elf, offset, h, sizeof h) < 0 ? 0 : kr_le32(h + 4);
}

static int32_t count_by_section(kr_elf *elf, uint64_t table, uint64_t *n) {
  for (uint32_t i = 0; i < elf->n_sections; i++) {
    kr_section s;
    KR_TRY(kr_elf_section(elf, i, &s));
    if (s.type == KR_SHT_DYNSYM && s.offset == table) *n = s.size / SYM_BYTES;
  }
  return KRAIT_OK;
}

int32_t kr_elf_dynamic_entry(const kr_elf *elf, const kr_dynamic *dynamic, uint64_t i, uint64_t *tag, uint64_t *value) {
  uint8_t entry[DYN_BYTES];
  KR_TRY(kr_elf_read(elf, dynamic->offset + i * DYN_BYTES, entry, sizeof entry));
  *tag = kr_le64(entry);
  *value = kr_le64(entry + 8);
  return KRAIT_OK;
}

int32_t kr_elf_dynamic(kr_elf *elf, kr_dynamic *d) {
  uint64_t bytes = 0, hash = 0, gnu_hash = 0, symbols = 0, strings = 0, verneed = 0, verdef = 0;
  *d = (kr_dynamic){0};
  int32_t found = find_dynamic(elf, &d->offset, &bytes);
  if (found <= 0) return found;
  KR_CHECK(kr_range_fits(d->offset, bytes, elf->size), KRAIT_ERR_FILE_FORMAT,
           "%s: the dynamic table extends past the end of the file", elf->source->name);
  uint64_t most = bytes / DYN_BYTES < MAX_DYNAMIC ? bytes / DYN_BYTES : MAX_DYNAMIC;
  for (; d->n_entries < most; d->n_entries++) {
    uint64_t tag, value;
    KR_TRY(kr_elf_dynamic_entry(elf, d, d->n_entries, &tag, &value));
    if (tag == DT_NULL) break;
    if (tag == DT_HASH) hash = value;
    if (tag == DT_GNU_HASH) gnu_hash = value;
    if (tag == DT_STRTAB) strings = value;
    if (tag == DT_SYMTAB) symbols = value;
    if (tag == DT_STRSZ) d->strings_bytes = value;
    if (tag == DT_VERNEED) verneed = value;
    if (tag == DT_VERNEEDNUM) d->n_verneed = value;
    if (tag == DT_VERDEF) verdef = value;
    if (tag == DT_VERDEFNUM) d->n_verdef = value;
  }
  if (strings) kr_elf_offset_of(elf, strings, &d->strings);
  if (symbols) kr_elf_offset_of(elf, symbols, &d->symbols);
  if (verneed) kr_elf_offset_of(elf, verneed, &d->verneed);
  if (verdef) kr_elf_offset_of(elf, verdef, &d->verdef);
  uint64_t at;
  if (d->symbols) KR_TRY(count_by_section(elf, d->symbols, &d->n_symbols));
  if (d->symbols && !d->n_symbols && hash && kr_elf_offset_of(elf, hash, &at) == 1)
    d->n_symbols = count_by_hash(elf, at);
  if (d->symbols && !d->n_symbols && gnu_hash && kr_elf_offset_of(elf, gnu_hash, &at) == 1)
    d->n_symbols = count_by_gnu_hash(elf, at);
  uint64_t capacity = d->symbols < elf->size ? (elf->size - d->symbols) / SYM_BYTES : 0;
  if (d->n_symbols > capacity) d->n_symbols = capacity;
  if (d->strings && d->strings_bytes > elf->size - d->strings) d->strings_bytes = elf->size - d->strings;
  return 1;
}

int32_t kr_elf_symbols(const kr_elf *elf, uint64_t table, uint64_t first, uint32_t n, uint64_t strings,
                       kr_symbol *out) {
  uint8_t bytes[256 * SYM_BYTES];
  uint64_t skip, at;
  KR_CHECK(n <= 256 && kr_mul_u64(first, SYM_BYTES, &skip) && kr_add_u64(table, skip, &at), KRAIT_ERR_FILE_FORMAT,
           "%s: symbol table out of range", elf->source->name);
  KR_TRY(kr_elf_read(elf, at, bytes, (size_t)n * SYM_BYTES));
  for (uint32_t i = 0; i < n; i++) {
    const uint8_t *s = bytes + (size_t)i * SYM_BYTES;
    out[i] = (kr_symbol){.name = strings + kr_le32(s), .info = s[4], .other = s[5], .section = kr_le16(s + 6),
                         .value = kr_le64(s + 8), .size = kr_le64(s + 16)};
  }
  return KRAIT_OK;
}

enum { MAX_VERSIONS = 4096, VER_FLG_WEAK = 2 };

static int32_t walk_aux(const kr_elf *elf, const kr_dynamic *d, uint64_t at, uint32_t n, int need, const char *file,
                        kr_version_fn fn, void *user, uint32_t *budget) {
  char name[256];
  for (uint32_t k = 0; k < n && *budget; k++, --*budget) {
    uint8_t aux[16];
    KR_TRY(kr_elf_read(elf, at, aux, need ? 16 : 8));
    uint32_t offset = kr_le32(aux + (need ? 8 : 0)), next = kr_le32(aux + (need ? 12 : 4)),
             is_weak = need && (kr_le16(aux + 4) & VER_FLG_WEAK);
    KR_TRY(kr_elf_string(elf, d->strings + offset, name, sizeof name));
    if (!is_weak) fn(user, file, name);
    if (!next || !need) break; /* a definition's further names are its parents */
    at += next;
  }
  return KRAIT_OK;
}

int32_t kr_elf_versions(const kr_elf *elf, const kr_dynamic *d, int need, kr_version_fn fn, void *user) {
  uint64_t at = need ? d->verneed : d->verdef, n = need ? d->n_verneed : d->n_verdef;
  char file[256] = "";
  uint32_t budget = MAX_VERSIONS; /* chains of offsets may form loops */
  if (!at) return KRAIT_OK;
  for (uint64_t i = 0; i < n && budget; i++, budget--) {
    uint8_t h[20];
    KR_TRY(kr_elf_read(elf, at, h, need ? 16 : 20));
    uint32_t n_aux = kr_le16(h + (need ? 2 : 6)), aux = kr_le32(h + (need ? 8 : 12)),
             next = kr_le32(h + (need ? 12 : 16));
    if (need) KR_TRY(kr_elf_string(elf, d->strings + kr_le32(h + 4), file, sizeof file));
    KR_TRY(walk_aux(elf, d, at + aux, n_aux, need, file, fn, user, &budget));
    if (!next) break;
    at += next;
  }
  return KRAIT_OK;
}

#ifdef KR_FUZZ
static void ignore_version(void *user, const char *file, const char *version) {
  (void)user;
  (void)file;
  (void)version;
}

static void walk_dynamic(kr_elf *elf) {
  kr_dynamic d;
  kr_symbol symbols[256];
  char name[64];
  uint64_t tag, value;
  if (kr_elf_dynamic(elf, &d) != 1) return;
  for (uint64_t i = 0; i < d.n_entries && i < 256 && kr_elf_dynamic_entry(elf, &d, i, &tag, &value) >= 0; i++)
    kr_elf_offset_of(elf, value, &tag);
  uint32_t n = d.n_symbols < 256 ? (uint32_t)d.n_symbols : 256;
  if (n && kr_elf_symbols(elf, d.symbols, 0, n, d.strings, symbols) >= 0)
    for (uint32_t i = 0; i < n; i++) kr_elf_string(elf, symbols[i].name, name, sizeof name);
  kr_elf_versions(elf, &d, 1, ignore_version, NULL);
  kr_elf_versions(elf, &d, 0, ignore_version, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_source source = kr_source_memory(data, size, "fuzz");
  kr_elf elf;
  kr_section section;
  kr_segment segment;
  char name[64];
  if (kr_elf_open(&elf, &source, 0, size) < 0) return 0;
  for (uint32_t i = 0; i < elf.n_sections && i < 512; i++)
    if (kr_elf_section(&elf, i, &section) >= 0) kr_elf_section_name(&elf, &section, name, sizeof name);
  for (uint32_t i = 0; i < elf.n_segments && i < 512; i++) kr_elf_segment(&elf, i, &segment);
  walk_dynamic(&elf);
  return 0;
}
#endif
