/* scan.c: finds the device code in a file, wherever it is, and identifies each image. */
#include "public_names.h"

#include "scan.h"

#include <string.h>

#include "alloc.h"
#include "status.h"

enum { MAX_REGIONS = 64, HEAD_BYTES = 65536, MAX_UNPACK_BYTES = 32 << 20, MAX_WRAPPERS = 4096 };
enum { FIND_BACK_TO_BACK, FIND_SEARCH, FIND_CUBIN };

struct krait_scan {
  kr_source *source, own;
  int32_t kind;
  int deep, has_elf;
  kr_elf elf;
  kr_dynamic dynamic;
  int32_t dynamic_status; /* 1: not read yet */
  kr_scan_region regions[MAX_REGIONS];
  int n_regions, current, is_forward;
  uint64_t ar_at;      /* archives: where the next member starts */
  kr_fatbin fatbin;    /* the last container returned */
  int have_fatbin, is_bare;
  uint64_t entry_at, n_entries;
  kr_entry entry; /* the last image returned */
  int have_entry;
  uint64_t wrappers, n_wrappers; /* the section table, not read yet */
  uint64_t *linked;              /* where linked containers are, according to the wrappers */
  size_t n_linked;
  int knows_linked; /* the wrappers could be read */
  /* Kernels of the last image returned. */
  int kernels_open;
  uint8_t *unpacked;
  size_t unpacked_bytes;
  kr_source unpacked_source;
  kr_elf cubin_elf;
  kr_cubin cubin;
  uint64_t next_kernel, kernel_bytes;
  size_t ptx_at;
};

static void add_region(krait_scan *s, const char *section, uint64_t offset, uint64_t bytes, int find, int relocatable) {
  if (s->n_regions == MAX_REGIONS || !kr_range_fits(offset, bytes, s->source->size) || !bytes) return;
  kr_scan_region *r = &s->regions[s->n_regions++];
  *r = (kr_scan_region){.offset = offset, .end = offset + bytes, .find = find, .relocatable = relocatable};
  size_t n = strlen(section) < sizeof r->section - 1 ? strlen(section) : sizeof r->section - 1;
  memcpy(r->section, section, n);
}

/* Read on first use, because most files have none and seeking back in a source may be expensive. If the linker left no
 * addend, nothing is known. */
static void read_wrappers(krait_scan *s) {
  const uint64_t at = s->wrappers, n = s->n_wrappers < MAX_WRAPPERS ? s->n_wrappers : MAX_WRAPPERS;
  s->n_wrappers = 0;
  if (s->linked || n == 0) return;
  s->linked = kr_alloc_array((size_t)n, sizeof *s->linked);
  for (uint64_t i = 0; s->linked && i < n; i++) {
    uint8_t w[24];
    if (kr_elf_read(&s->elf, at + i * 24, w, sizeof w) < 0 || kr_le32(w) != KR_FATBIN_WRAPPER_MAGIC ||
        kr_le64(w + 8) == 0)
      return;
    if (kr_le32(w + 4) == 2 && kr_elf_offset_of(&s->elf, kr_le64(w + 8), &s->linked[s->n_linked]) == 1) s->n_linked++;
  }
  s->knows_linked = s->linked != NULL;
}

/* Section by section when there are names; else whatever the loader maps. */
static int32_t add_elf_regions(krait_scan *s, kr_elf *elf) {
  char name[64];
  kr_section section;
  int named = 0;
  for (uint32_t i = 1; i < elf->n_sections; i++) {
    KR_TRY(kr_elf_section(elf, i, &section));
    if (section.type == KR_SHT_NOBITS || kr_elf_section_name(elf, &section, name, sizeof name) < 0) continue;
    if (strcmp(name, ".text") == 0 || strcmp(name, ".dynsym") == 0 || strcmp(name, ".symtab") == 0) named = 1;
    if (strcmp(name, ".nv_fatbin") == 0)
      add_region(s, name, elf->base + section.offset, section.size, FIND_BACK_TO_BACK, 0);
    if (strcmp(name, "__nv_relfatbin") == 0)
      add_region(s, name, elf->base + section.offset, section.size, FIND_BACK_TO_BACK, 1);
    if (strcmp(name, ".nvFatBinSegment") == 0 && elf == &s->elf)
      s->wrappers = section.offset, s->n_wrappers = section.size / 24;
    if (s->deep && strcmp(name, ".cask_resource") == 0)
      add_region(s, name, elf->base + section.offset, section.size, FIND_SEARCH, 0); /* cuBLAS */
    if (s->deep && (strcmp(name, ".rodata") == 0 || strcmp(name, ".data") == 0))
      add_region(s, name, elf->base + section.offset, section.size, FIND_CUBIN, 0);
  }
  if (s->n_regions || named) return KRAIT_OK;
  for (uint32_t i = 0; i < elf->n_segments; i++) {
    kr_segment segment;
    KR_TRY(kr_elf_segment(elf, i, &segment));
    if (segment.type == 1) add_region(s, "search", elf->base + segment.offset, segment.file_bytes, FIND_SEARCH, 0);
  }
  return KRAIT_OK;
}

static int is_ptx(const char *head, size_t n) {
  kr_ptx ptx;
  return memchr(head, 0, n) == NULL && kr_ptx_read(head, n, &ptx) == KRAIT_OK;
}

static int32_t detect(krait_scan *s) {
  uint8_t head[4096];
  size_t n = s->source->size < sizeof head ? (size_t)s->source->size : sizeof head;
  KR_TRY(kr_source_read(s->source, 0, head, n));
  if (n >= 4 && memcmp(head, "\177ELF", 4) == 0) {
    KR_TRY(kr_elf_open(&s->elf, s->source, 0, s->source->size));
    if (s->elf.machine == KR_ELF_CUDA) {
      s->kind = KRAIT_FILE_CUBIN;
      return KRAIT_OK;
    }
    s->kind = KRAIT_FILE_ELF;
    s->has_elf = 1;
    return KRAIT_OK;
  }
  if (n >= 4 && (kr_le32(head) == KR_FATBIN_MAGIC || kr_le32(head) == KR_FATBIN_MAGIC_OLD)) s->kind = KRAIT_FILE_FATBIN;
  else if (n >= 8 && memcmp(head, "!<arch>\n", 8) == 0) s->kind = KRAIT_FILE_ARCHIVE;
  else if (n >= 4 && memcmp(head, "PK\3\4", 4) == 0) s->kind = KRAIT_FILE_WHEEL;
  else if (n && is_ptx((const char *)head, head[n - 1] ? n : n - 1)) s->kind = KRAIT_FILE_PTX;
  return KRAIT_OK;
}

int32_t kr_scan_open_source(kr_source *source, krait_scan **scan) {
  *scan = NULL;
  krait_scan *s = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory to scan %s", source->name);
  s->source = source;
  s->own.fd = -1;
  s->current = -1;
  s->dynamic_status = 1;
  int32_t status = detect(s);
  if (status < 0) {
    krait_scan_close(&s);
    return status;
  }
  *scan = s;
  return KRAIT_OK;
}

static int32_t open_own(kr_source own, krait_scan **scan) {
  krait_scan *s;
  kr_source *source = kr_alloc(sizeof *source);
  if (!source) {
    kr_source_close(&own);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to scan %s", own.name);
  }
  *source = own;
  int32_t status = kr_scan_open_source(source, &s);
  if (status < 0) {
    kr_source_close(source);
    kr_free(source);
    return status;
  }
  s->own = *source; /* marks the source as owned here */
  *scan = s;
  return KRAIT_OK;
}

int32_t krait_scan_open(const char *path, krait_scan **scan) {
  KR_CHECK(path && scan, KRAIT_ERR_ARGUMENT, "path and scan must not be NULL");
  kr_source own;
  *scan = NULL;
  KR_TRY(kr_source_open(&own, path));
  return open_own(own, scan);
}

int32_t krait_scan_open_bytes(const void *bytes, size_t n, krait_scan **scan) {
  KR_CHECK((bytes || n == 0) && scan, KRAIT_ERR_ARGUMENT, "bytes and scan must not be NULL");
  *scan = NULL;
  return open_own(kr_source_memory(bytes, n, "bytes"), scan);
}

void krait_scan_close(krait_scan **scan) {
  if (!scan || !*scan) return;
  krait_scan *s = *scan;
  if (s->own.read) {
    kr_source_close(s->source);
    kr_free(s->source);
  }
  kr_free(s->unpacked);
  kr_free(s->linked);
  kr_free(s);
  *scan = NULL;
}

int32_t krait_scan_kind(const krait_scan *scan) { return scan ? scan->kind : 0; }
void kr_scan_set_deep(krait_scan *scan) { scan->deep = 1; }
kr_elf *kr_scan_elf(krait_scan *scan) { return scan->has_elf ? &scan->elf : NULL; }

int32_t kr_scan_read_dynamic(krait_scan *s) {
  if (!s->has_elf || s->dynamic_status <= 0) return s->has_elf ? s->dynamic_status : KRAIT_OK;
  s->dynamic_status = kr_elf_dynamic(&s->elf, &s->dynamic);
  if (s->dynamic_status < 0) s->dynamic = (kr_dynamic){0};
  if (s->dynamic_status > 0) s->dynamic_status = KRAIT_OK;
  return s->dynamic_status;
}

const kr_dynamic *kr_scan_dynamic(krait_scan *scan) {
  kr_scan_read_dynamic(scan);
  return &scan->dynamic;
}

kr_source *kr_scan_source(krait_scan *scan) { return scan->source; }

/* ---- containers ---- */
/* The end of the dynamic table, if the loader finds it in this segment, or the segment's own end. */
static uint64_t dynamic_end(const krait_scan *s, const kr_segment *load) {
  for (uint32_t i = 0; i < s->elf.n_segments; i++) {
    kr_segment segment;
    if (kr_elf_segment(&s->elf, i, &segment) < 0 || segment.type != 2 || segment.file_bytes > s->source->size) continue;
    uint64_t end = segment.offset + segment.file_bytes;
    if (segment.offset >= load->offset && end > segment.offset && end < load->offset + load->file_bytes) return end;
  }
  return load->offset + load->file_bytes;
}

int kr_scan_set_forward(krait_scan *s) {
  if (s->kind != KRAIT_FILE_ELF || s->deep || s->current >= 0 || !s->elf.n_segments) return 0;
  for (uint32_t i = 0; i < s->elf.n_segments; i++) {
    kr_segment segment;
    if (kr_elf_segment(&s->elf, i, &segment) < 0) return 0;
    if (segment.type != 1 || !segment.file_bytes) continue;
    if (!kr_range_fits(segment.offset, segment.file_bytes, s->source->size) || s->n_regions + 2 > MAX_REGIONS) return 0;
    uint64_t middle = dynamic_end(s, &segment), end = segment.offset + segment.file_bytes;
    add_region(s, "search", segment.offset, middle - segment.offset, FIND_SEARCH, 0);
    add_region(s, "search", middle, end - middle, FIND_SEARCH, 0);
  }
  s->current = 0;
  return s->is_forward = s->n_regions > 0;
}

/* The source has just passed a part of the file: what is at its end may be needed later, when it can no longer be
 * read. */
static void touch_end(krait_scan *s, const kr_scan_region *r) {
  uint8_t bytes[64];
  for (uint64_t back = sizeof bytes; back <= 8192 && back <= r->end - r->offset; back *= 2)
    kr_source_read(s->source, r->end - back, bytes, sizeof bytes);
}

int32_t kr_scan_begin_sections(krait_scan *s) {
  s->n_regions = s->current = s->have_fatbin = s->is_forward = 0;
  return add_elf_regions(s, &s->elf);
}

const kr_scan_region *kr_scan_regions(const krait_scan *s, int *n) {
  *n = s->n_regions;
  return s->regions;
}

static int32_t begin_regions(krait_scan *s) {
  s->current = 0;
  switch (s->kind) {
    case KRAIT_FILE_ELF: return add_elf_regions(s, &s->elf);
    case KRAIT_FILE_FATBIN: add_region(s, "file", 0, s->source->size, FIND_BACK_TO_BACK, 0); return KRAIT_OK;
    default: return KRAIT_OK;
  }
}

/* Regions of the next archive member that is a host object; 1, or 0 at the end. */
static int32_t next_member(krait_scan *s) {
  kr_ar_member member;
  int32_t status;
  while ((status = kr_ar_next(s->source, &s->ar_at, &member)) == 1) {
    kr_elf elf;
    s->n_regions = s->current = 0;
    s->have_fatbin = 0;
    if (kr_elf_open(&elf, s->source, member.offset, member.size) < 0 || elf.machine == KR_ELF_CUDA) continue;
    KR_TRY(add_elf_regions(s, &elf));
    for (int i = 0; i < s->n_regions; i++)
      if (!s->regions[i].relocatable) memcpy(s->regions[i].section, member.name, sizeof s->regions[i].section - 1);
    if (s->n_regions) return 1;
  }
  return status;
}

/* A cubin without a container in a section: the next ELF header for machine 190 at a multiple of 4. */
static int32_t find_bare_cubin(krait_scan *s, uint64_t from, const kr_scan_region *r, kr_fatbin *found) {
  uint8_t window[4096];
  for (uint64_t at = (from + 3) & ~3ull; at < r->end && r->end - at >= 64;) {
    size_t n = r->end - at < sizeof window ? (size_t)(r->end - at) : sizeof window;
    KR_TRY(kr_source_read(s->source, at, window, n));
    for (size_t i = 0; i + 64 <= n; i += 4) {
      if (memcmp(window + i, "\177ELF\2\1\1", 7) != 0 || kr_le16(window + i + 18) != KR_ELF_CUDA) continue;
      uint64_t sections = kr_le64(window + i + 40) + (uint64_t)kr_le16(window + i + 60) * 64,
               left = r->end - at - i;
      *found = (kr_fatbin){.offset = at + i, .size = sections > 64 && sections <= left ? sections : left};
      return 1;
    }
    at += n < 64 ? n : (n - 60) & ~(size_t)3;
  }
  return 0;
}

static int32_t next_in_region(krait_scan *s, const kr_scan_region *r, kr_fatbin *found) {
  uint64_t from = s->have_fatbin ? s->fatbin.offset + s->fatbin.size : r->offset;
  if (r->find == FIND_CUBIN) return find_bare_cubin(s, from, r, found);
  if (r->find == FIND_SEARCH) {
    if (s->have_fatbin && kr_fatbin_next(s->source, r->offset, r->end, &s->fatbin, found) == 1)
      return 1; /* usual, and cheaper than a search */
    int32_t status = kr_fatbin_search(s->source, from, r->end, found);
    if (status == 0 && s->is_forward) touch_end(s, r);
    return status;
  }
  return kr_fatbin_next(s->source, r->offset, r->end, s->have_fatbin ? &s->fatbin : NULL, found);
}

static int32_t bare_file(krait_scan *s, kr_fatbin *found) {
  if (s->have_fatbin) return 0;
  *found = (kr_fatbin){.offset = 0, .size = s->source->size};
  return 1;
}

static int32_t find_next(krait_scan *s, kr_fatbin *found, const kr_scan_region **where) {
  static const kr_scan_region whole = {.section = "file"};
  *where = &whole;
  s->is_bare = s->kind == KRAIT_FILE_CUBIN || s->kind == KRAIT_FILE_PTX;
  if (s->is_bare) return bare_file(s, found);
  for (;;) {
    for (; s->current < s->n_regions; s->current++, s->have_fatbin = 0) {
      const kr_scan_region *r = &s->regions[s->current];
      int32_t status = next_in_region(s, r, found);
      if (status == 0) continue;
      if (status < 0) s->current++, s->have_fatbin = 0; /* the rest of this region is lost */
      s->is_bare = r->find == FIND_CUBIN;
      *where = r;
      return status;
    }
    if (s->kind != KRAIT_FILE_ARCHIVE) return 0;
    int32_t status = next_member(s);
    if (status <= 0) return status;
  }
}

int32_t krait_scan_next_container(krait_scan *s, krait_container *container) {
  KR_CHECK(s && container, KRAIT_ERR_ARGUMENT, "scan and container must not be NULL");
  const kr_scan_region *where;
  kr_fatbin found = {0};
  KR_CHECK(container->size >= sizeof *container, KRAIT_ERR_STRUCT_SIZE, "container: size is not set");
  if (s->current < 0) KR_TRY(begin_regions(s));
  s->have_entry = s->kernels_open = 0;
  int32_t status = find_next(s, &found, &where);
  if (status <= 0) return status;
  s->fatbin = found;
  s->have_fatbin = 1;
  s->entry_at = found.offset + KR_FATBIN_HEADER_BYTES;
  s->n_entries = 0;
  container->offset = found.offset;
  container->bytes = found.size;
  container->relocatable = where->relocatable;
  memcpy(container->section, where->section, sizeof container->section);
  return 1;
}

int kr_scan_has_relfatbin(const krait_scan *s) {
  for (int i = 0; i < s->n_regions; i++)
    if (s->regions[i].relocatable) return 1;
  return 0;
}

int kr_scan_is_linked(krait_scan *s, uint64_t container_offset) {
  read_wrappers(s);
  if (!s->knows_linked) return -1;
  for (size_t i = 0; i < s->n_linked; i++)
    if (s->linked[i] == container_offset) return 1;
  return 0;
}

/* ---- images ---- */
static char stronger(char a, char b) { return a == 'a' || b == 'a' ? 'a' : a == 'f' || b == 'f' ? 'f' : 0; }

static void describe_ptx(krait_scan *s, krait_image *image) {
  uint8_t *head = kr_alloc(HEAD_BYTES);
  size_t n = 0;
  kr_ptx ptx;
  image->damaged = 1;
  if (head && kr_entry_unpack(s->source, &s->entry, head, HEAD_BYTES, &n) == KRAIT_OK &&
      kr_ptx_read((const char *)head, n, &ptx) == KRAIT_OK) {
    image->damaged = 0;
    image->ptx = ptx.version;
    image->sm = ptx.sm;
    image->suffix = stronger((char)image->suffix, ptx.suffix);
  }
  kr_free(head);
}

static void copy_cubin(const kr_cubin *cubin, krait_image *image) {
  image->sm = cubin->sm;
  image->suffix = stronger((char)image->suffix, cubin->suffix);
  image->toolkit = cubin->toolkit;
  image->relocatable = cubin->relocatable;
  image->new_abi = cubin->new_abi;
}

/* Reads a compressed cubin's header; its sections are decompressed only when kernels are requested. */
static void describe_cubin(krait_scan *s, krait_image *image) {
  uint8_t head[64];
  size_t n = 0;
  kr_elf elf;
  kr_cubin cubin;
  image->damaged = 1;
  if (image->compression == KRAIT_COMPRESSION_NONE) {
    if (kr_elf_open(&elf, s->source, s->entry.payload, s->entry.payload_bytes) < 0 || kr_cubin_read(&elf, &cubin) < 0)
      return;
  } else {
    if (kr_entry_unpack(s->source, &s->entry, head, sizeof head, &n) < 0) return;
    kr_source memory = kr_source_memory(head, n, s->source->name);
    if (kr_elf_open(&elf, &memory, 0, n) < 0) return;
    elf.n_sections = 0;
    if (kr_cubin_read(&elf, &cubin) < 0) return;
  }
  image->damaged = 0;
  copy_cubin(&cubin, image);
}

/* A file, or a range of a section, that is a single image without container or entry. */
static int32_t bare_image(krait_scan *s) {
  if (s->n_entries++) return 0;
  s->entry = (kr_entry){.kind = s->kind == KRAIT_FILE_PTX ? KR_ENTRY_PTX : KR_ENTRY_CUBIN,
                        .offset = s->fatbin.offset,
                        .payload = s->fatbin.offset,
                        .payload_bytes = s->fatbin.size};
  return 1;
}

int32_t krait_scan_next_image(krait_scan *s, krait_image *image) {
  KR_CHECK(s && image, KRAIT_ERR_ARGUMENT, "scan and image must not be NULL");
  KR_CHECK(image->size >= sizeof *image, KRAIT_ERR_STRUCT_SIZE, "image: size is not set");
  s->have_entry = s->kernels_open = 0;
  if (!s->have_fatbin) return 0;
  KR_CHECK(s->n_entries < KR_FATBIN_MAX_ENTRIES, KRAIT_ERR_FILE_FORMAT, "%s: a container with more than %d entries",
           s->source->name, KR_FATBIN_MAX_ENTRIES);
  int32_t status = s->is_bare ? bare_image(s) : kr_entry_next(s->source, &s->fatbin, &s->entry_at, &s->entry);
  if (status < 0) s->n_entries = KR_FATBIN_MAX_ENTRIES;
  if (status <= 0) return status;
  if (!s->is_bare) s->n_entries++;
  s->have_entry = 1;
  const kr_entry *e = &s->entry;
  *image = (krait_image){.size = sizeof *image,
                         .raw_kind = e->kind,
                         .sm = (int32_t)(e->sm & 0xffff),
                         .label_sm = (int32_t)(e->sm & 0xffff),
                         .suffix = kr_entry_suffix(e),
                         .compression = kr_entry_pack(e),
                         .flags = e->flags,
                         .offset = e->offset,
                         .payload = e->payload,
                         .payload_bytes = e->payload_bytes,
                         .unpacked_bytes = kr_entry_bytes(e)};
  if (e->kind == KR_ENTRY_PTX || e->kind == KR_ENTRY_CUBIN || e->kind == KR_ENTRY_LTO) image->kind = e->kind;
  if (image->kind == KRAIT_IMAGE_PTX) describe_ptx(s, image);
  if (image->kind == KRAIT_IMAGE_CUBIN) describe_cubin(s, image);
  if (s->is_bare) image->label_sm = image->sm;
  return 1;
}

/* ---- kernels ---- */
static int32_t unpack_all(krait_scan *s) {
  uint64_t bytes = kr_entry_bytes(&s->entry);
  KR_CHECK(bytes <= MAX_UNPACK_BYTES, KRAIT_ERR_UNSUPPORTED, "%s: an image of %llu bytes is too large to read",
           s->source->name, (unsigned long long)bytes);
  if (s->unpacked_bytes < bytes) {
    kr_free(s->unpacked);
    s->unpacked = kr_alloc((size_t)bytes);
    s->unpacked_bytes = s->unpacked ? (size_t)bytes : 0;
    KR_CHECK(s->unpacked, KRAIT_ERR_NO_MEMORY, "no memory to unpack %s", s->source->name);
  }
  size_t n;
  KR_TRY(kr_entry_unpack(s->source, &s->entry, s->unpacked, (size_t)bytes, &n));
  s->unpacked_source = kr_source_memory(s->unpacked, n, s->source->name);
  return KRAIT_OK;
}

static int32_t open_kernels(krait_scan *s) {
  s->next_kernel = s->ptx_at = 0;
  s->cubin = (kr_cubin){0};
  if (kr_entry_pack(&s->entry) != KR_PACK_NONE || s->entry.kind == KR_ENTRY_PTX) {
    KR_TRY(unpack_all(s));
    if (s->entry.kind == KR_ENTRY_CUBIN)
      KR_TRY(kr_elf_open(&s->cubin_elf, &s->unpacked_source, 0, s->unpacked_source.size));
  } else {
    KR_TRY(kr_elf_open(&s->cubin_elf, s->source, s->entry.payload, s->entry.payload_bytes));
  }
  if (s->entry.kind == KR_ENTRY_CUBIN) KR_TRY(kr_cubin_read(&s->cubin_elf, &s->cubin));
  s->kernels_open = 1;
  return KRAIT_OK;
}

int32_t krait_scan_next_kernel(krait_scan *s, char *name, size_t cap) {
  KR_CHECK(s && (name || cap == 0), KRAIT_ERR_ARGUMENT, "scan and name must not be NULL");
  if (!s->have_entry || (s->entry.kind != KR_ENTRY_CUBIN && s->entry.kind != KR_ENTRY_PTX)) return 0;
  if (!s->kernels_open) KR_TRY(open_kernels(s));
  s->kernel_bytes = 0;
  if (s->entry.kind == KR_ENTRY_CUBIN)
    return kr_cubin_kernel_sized(&s->cubin_elf, &s->cubin, &s->next_kernel, name, cap, &s->kernel_bytes);
  return kr_ptx_kernel((const char *)s->unpacked_source.memory, (size_t)s->unpacked_source.size, &s->ptx_at, name, cap);
}

uint64_t kr_scan_kernel_bytes(const krait_scan *s) { return s->kernel_bytes; }

int32_t kr_scan_toolkit(const krait_scan *s) { return s->kernels_open ? s->cubin.toolkit : 0; }

int32_t krait_scan_decode(krait_scan *s, void *out, size_t cap, size_t *n) {
  KR_CHECK(s && n && (out || cap == 0), KRAIT_ERR_ARGUMENT, "scan, out and n must not be NULL");
  KR_CHECK(s->have_entry, KRAIT_ERR_ARGUMENT, "scan: no image was read yet");
  return kr_entry_unpack(s->source, &s->entry, out, cap, n);
}

/* ---- what the loader reads ---- */
int32_t krait_scan_next_needed(krait_scan *s, uint64_t *cursor, char *name, size_t cap) {
  KR_CHECK(s && cursor && (name || cap == 0), KRAIT_ERR_ARGUMENT, "scan, cursor and name must not be NULL");
  KR_TRY(kr_scan_read_dynamic(s));
  while (*cursor < s->dynamic.n_entries) {
    uint64_t tag, value, i = (*cursor)++;
    KR_TRY(kr_elf_dynamic_entry(&s->elf, &s->dynamic, i, &tag, &value));
    if (tag != 1) continue;
    KR_TRY(kr_elf_string(&s->elf, s->dynamic.strings + value, name, cap));
    return 1;
  }
  return 0;
}

int32_t krait_scan_next_symbol(krait_scan *s, int32_t defined, uint64_t *cursor, char *name, size_t cap) {
  KR_CHECK(s && cursor && (name || cap == 0), KRAIT_ERR_ARGUMENT, "scan, cursor and name must not be NULL");
  KR_TRY(kr_scan_read_dynamic(s));
  if (*cursor == 0) *cursor = 1; /* the first symbol is always empty */
  while (*cursor < s->dynamic.n_symbols) {
    kr_symbol symbol;
    KR_TRY(kr_elf_symbols(&s->elf, s->dynamic.symbols, (*cursor)++, 1, s->dynamic.strings, &symbol));
    if (kr_symbol_is_undefined(&symbol) == !!defined || (!defined && kr_symbol_is_weak(&symbol))) continue;
    if (kr_elf_string(&s->elf, symbol.name, name, cap) > 0) return 1;
  }
  return 0;
}
