/* cubin.c: which GPU a device ELF image was made for. Two layouts of e_flags exist; EI_OSABI distinguishes them, never
 * the SM. */
#include <string.h>

#include "elf.h"
#include "status.h"

enum { OSABI_OLD = 0x33, OSABI_NEW = 0x41, OSABI_LLVM = 0x29, ET_REL = 1, STT_FUNC = 2, KERNEL_BIT = 0x10 };
enum { COMPAT_ARCH_SPECIFIC = 0x09, CUINFO = 0x3e8, TKINFO = 0x7d0, MAX_HEAD_SECTIONS = 64 };

/* One attribute of .nv.compat or .nv.info: u8 format, u8 attribute, then by format. Returns its bytes, 0 at the end. */
static uint32_t read_attribute(const uint8_t *at, uint32_t capacity, uint32_t *attribute, uint32_t *value) {
  if (capacity < 4) return 0;
  *attribute = at[1];
  *value = at[0] == 2 ? at[2] : kr_le16(at + 2);
  if (at[0] != 4) return 4;
  uint32_t bytes = 4u + kr_le16(at + 2);
  if (bytes > capacity) return 0;
  *value = bytes >= 8 ? kr_le32(at + 4) : 0;
  return bytes;
}

static int32_t read_compat(kr_elf *elf, const kr_section *s, kr_cubin *cubin) {
  uint8_t bytes[1024];
  uint32_t n = s->size < sizeof bytes ? (uint32_t)s->size : (uint32_t)sizeof bytes, attribute, value;
  KR_TRY(kr_elf_read(elf, s->offset, bytes, n));
  for (uint32_t at = 0, step; at < n && (step = read_attribute(bytes + at, n - at, &attribute, &value)) != 0;
       at += step)
    if (attribute == COMPAT_ARCH_SPECIFIC && value == 1 && !cubin->suffix) cubin->suffix = 'a';
  return KRAIT_OK;
}

/* Notes: cuinfo holds the toolkit; tkinfo the command line, the only place in an ELF that shows a family target. */
static int32_t read_note(kr_elf *elf, const kr_section *s, kr_cubin *cubin) {
  uint8_t bytes[1024];
  uint32_t n = s->size < sizeof bytes - 1 ? (uint32_t)s->size : (uint32_t)sizeof bytes - 1;
  KR_TRY(kr_elf_read(elf, s->offset, bytes, n));
  if (n < 12) return KRAIT_OK;
  uint32_t name_bytes = (kr_le32(bytes) + 3) & ~3u, type = kr_le32(bytes + 8);
  if (name_bytes > n - 12) return KRAIT_OK;
  const uint8_t *data = bytes + 12 + name_bytes;
  uint32_t capacity = n - 12 - name_bytes;
  if (type == CUINFO && capacity >= 6 && kr_le16(data + 4) >= 50 && kr_le16(data + 4) < 1000)
    cubin->toolkit = kr_le16(data + 4);
  if (type != TKINFO) return KRAIT_OK;
  for (uint32_t i = 0; i + 9 < capacity; i++) {
    if (memcmp(data + i, "-arch sm_", 9) != 0) continue;
    uint32_t k = i + 9;
    while (k < capacity && data[k] >= '0' && data[k] <= '9') k++;
    if (k < capacity && (data[k] == 'a' || data[k] == 'f')) cubin->suffix = (char)data[k];
  }
  return KRAIT_OK;
}

static int32_t read_symtab(kr_elf *elf, const kr_section *s, kr_cubin *cubin) {
  kr_section strings;
  if (s->link >= elf->n_sections || !kr_range_fits(s->offset, s->size, elf->size)) return KRAIT_OK;
  KR_TRY(kr_elf_section(elf, s->link, &strings));
  cubin->symtab = s->offset;
  cubin->n_symbols = s->size / 24;
  cubin->strings = strings.offset;
  return KRAIT_OK;
}

int32_t kr_cubin_read(kr_elf *elf, kr_cubin *cubin) {
  *cubin = (kr_cubin){.relocatable = elf->type == ET_REL};
  KR_CHECK(elf->machine == KR_ELF_CUDA && elf->bits == 64 && !elf->big_endian, KRAIT_ERR_FILE_FORMAT,
           "%s: the ELF image at offset %llu is for machine %u, not for a GPU", elf->source->name,
           (unsigned long long)elf->base, elf->machine);
  cubin->new_abi = elf->osabi == OSABI_NEW || elf->osabi == OSABI_LLVM;
  if (cubin->new_abi) {
    cubin->sm = elf->flags >> 8 & 0xff;
    if (elf->flags & 0x8) cubin->suffix = 'a';
  } else {
    cubin->sm = elf->flags & 0xff;
    cubin->virtual_sm = elf->flags >> 16 & 0xff;
    if (elf->flags & 0x800) cubin->suffix = 'a';
    cubin->toolkit = elf->version > 1 && elf->version < 1000 ? (int32_t)elf->version : 0;
  }
  for (uint32_t i = 1; i < elf->n_sections; i++) {
    kr_section s;
    if (i > MAX_HEAD_SECTIONS && cubin->n_symbols) break; /* the tables of interest come first in every file seen */
    KR_TRY(kr_elf_section(elf, i, &s));
    if (!kr_range_fits(s.offset, s.size, elf->size)) continue;
    if (s.type == KR_SHT_SYMTAB && !cubin->n_symbols) KR_TRY(read_symtab(elf, &s, cubin));
    if (s.type == KR_SHT_NV_COMPAT) KR_TRY(read_compat(elf, &s, cubin));
    if (s.type == KR_SHT_NOTE) KR_TRY(read_note(elf, &s, cubin));
  }
  return KRAIT_OK;
}

/* A kernel counts even if its name cannot be read; names of templates may be longer than any buffer. */
static void read_cubin_name(const kr_elf *elf, uint64_t offset, char *name, size_t cap) {
  if (!cap || kr_elf_string(elf, offset, name, cap) >= 0) return;
  size_t n = offset < elf->size && elf->size - offset < cap - 1 ? (size_t)(elf->size - offset) : cap - 1;
  if (offset >= elf->size || kr_elf_read(elf, offset, name, n) < 0) n = 0;
  name[n] = '\0';
}

int32_t kr_cubin_kernel(const kr_elf *elf, const kr_cubin *cubin, uint64_t *next, char *name, size_t cap) {
  uint64_t bytes;
  return kr_cubin_kernel_sized(elf, cubin, next, name, cap, &bytes);
}

int32_t kr_cubin_kernel_sized(const kr_elf *elf, const kr_cubin *cubin, uint64_t *next, char *name, size_t cap,
                              uint64_t *bytes) {
  while (*next < cubin->n_symbols) {
    kr_symbol many[64];
    uint32_t n = cubin->n_symbols - *next < 64 ? (uint32_t)(cubin->n_symbols - *next) : 64;
    KR_TRY(kr_elf_symbols(elf, cubin->symtab, *next, n, cubin->strings, many));
    for (uint32_t i = 0; i < n; i++) {
      ++*next;
      if (kr_symbol_type(&many[i]) != STT_FUNC || !(many[i].other & KERNEL_BIT)) continue;
      read_cubin_name(elf, many[i].name, name, cap);
      *bytes = many[i].size;
      return 1;
    }
  }
  return 0;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_source source = kr_source_memory(data, size, "fuzz");
  kr_elf elf;
  kr_cubin cubin;
  uint64_t next = 0;
  char name[64];
  if (kr_elf_open(&elf, &source, 0, size) < 0 || kr_cubin_read(&elf, &cubin) < 0) return 0;
  for (int i = 0; i < 1000 && kr_cubin_kernel(&elf, &cubin, &next, name, sizeof name) == 1; i++) continue;
  return 0;
}
#endif
