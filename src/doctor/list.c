/* list.c: what is in a file: its containers, images and kernels, as text and as JSON. */
#include "public_names.h"

#include <string.h>

#include "doc.h"
#include "report.h"
#include "status.h"
#include "zip_file.h"

enum { MAX_TEXT_BYTES = 64 << 20, MAX_NAME = 512, MAX_LISTS = 64 };

typedef struct lister {
  doc *d;
  doc scratch; /* for names, image by image */
  kr_text out;
  int is_json;
  uint64_t lists[MAX_LISTS]; /* of this container: hashes of the kernel lists already shown */
  int shown_at[MAX_LISTS], n_lists;
  size_t n_bytes; /* of the text of all containers */
} lister;

static int is_wheel(const char *path) {
  const size_t n = strlen(path);
  return n > 4 && strcmp(path + n - 4, ".whl") == 0;
}

static void json_text(lister *l, const char *text) {
  kr_text_add(&l->out, "\"", 1);
  for (const char *p = doc_printable(&l->scratch, text); *p; p++) {
    if (*p == '"' || *p == '\\') kr_text_add(&l->out, "\\", 1);
    kr_text_add(&l->out, p, 1);
  }
  kr_text_add(&l->out, "\"", 1);
}

/* ---- one image ---- */
static const char *image_name(const doc *d, const krait_image *image) {
  const char *suffix = image->suffix == 'a' ? "a" : image->suffix == 'f' ? "f" : "";
  if (image->kind == KRAIT_IMAGE_PTX)
    return kr_arena_print(d->arena, "ptx   compute_%d%s  version %d.%d", image->sm, suffix, image->ptx / 10,
                          image->ptx % 10);
  if (image->kind == KRAIT_IMAGE_CUBIN)
    return kr_arena_print(d->arena, "cubin sm_%d%s%s", image->sm, suffix, image->relocatable ? "  relocatable" : "");
  if (image->kind == KRAIT_IMAGE_LTO) return kr_arena_print(d->arena, "lto   %d", image->sm);
  return kr_arena_print(d->arena, "kind %d  %d", image->raw_kind, image->sm);
}

/* The kernels of an image in file order; their number, and a hash of their names. */
static kr_list read_list_kernels(lister *l, krait_scan *scan, uint64_t *hash) {
  kr_list names = KR_LIST(const char *);
  char name[MAX_NAME];
  *hash = 1469598103934665603ull;
  while (l->n_bytes < MAX_TEXT_BYTES && krait_scan_next_kernel(scan, name, sizeof name) == 1) {
    for (const char *p = name; p == name || p[-1]; p++) *hash = (*hash ^ (unsigned char)*p) * 1099511628211ull;
    doc_add_text(&l->scratch, &names, kr_arena_copy(l->scratch.arena, name, strlen(name)));
  }
  return names;
}

/* If the next GPU has the same kernels, they are not listed again. */
static int shown_before(lister *l, uint64_t hash, int image) {
  for (int i = 0; i < l->n_lists; i++)
    if (l->lists[i] == hash) return l->shown_at[i];
  if (l->n_lists < MAX_LISTS) l->lists[l->n_lists] = hash, l->shown_at[l->n_lists++] = image;
  return 0;
}

static void text_image(lister *l, krait_scan *scan, const krait_image *image, int number) {
  static const char *const packs[] = {"", "  old packing", "  lz4", "  zstd"};
  uint64_t hash;
  kr_text_print(&l->out, "  %llu: %s  %llu bytes%s", (unsigned long long)image->offset, image_name(&l->scratch, image),
                (unsigned long long)image->unpacked_bytes, packs[image->compression]);
  if (image->toolkit) kr_text_print(&l->out, "  CUDA %d.%d", image->toolkit / 10, image->toolkit % 10);
  kr_text_print(&l->out, "%s\n", image->damaged ? "  DAMAGED" : "");
  if (image->damaged) return;
  const kr_list names = read_list_kernels(l, scan, &hash);
  const int before = names.n > 1 ? shown_before(l, hash, number) : 0;
  if (before) kr_text_print(&l->out, "      the %zu kernels of this container's image %d\n", names.n, before);
  for (size_t i = 0; i < names.n && !before; i++)
    kr_text_print(&l->out, "      %s\n", doc_printable(&l->scratch, doc_demangle(&l->scratch, DOC_TEXT(names, i))));
}

static void json_image(lister *l, krait_scan *scan, const krait_image *image, int number) {
  static const char *const packs[] = {"none", "old", "lz4", "zstd"};
  const char *kind = image->kind == KRAIT_IMAGE_PTX     ? "ptx"
                     : image->kind == KRAIT_IMAGE_CUBIN ? "cubin"
                     : image->kind == KRAIT_IMAGE_LTO   ? "lto"
                                                        : "other",
             *suffix = image->suffix == 'a'   ? "a"
                       : image->suffix == 'f' ? "f"
                                              : "";
  /* A damaged image may claim more than the 63 bits that JSON readers accept. */
  const uint64_t bytes = image->unpacked_bytes < INT64_MAX ? image->unpacked_bytes : INT64_MAX;
  uint64_t hash;
  kr_text_print(&l->out,
                "%s{\"kind\": \"%s\", \"sm\": %d, \"suffix\": \"%s\", \"ptx\": %d, \"compression\": \"%s\", "
                "\"toolkit\": %d, \"offset\": %llu, \"bytes\": %llu, \"damaged\": %s, \"kernels\": [",
                number > 1 ? ", " : "", kind, image->sm, suffix, image->ptx, packs[image->compression], image->toolkit,
                (unsigned long long)image->offset, (unsigned long long)bytes,
                image->damaged ? "true" : "false");
  const kr_list names = image->damaged ? KR_LIST(const char *) : read_list_kernels(l, scan, &hash);
  for (size_t i = 0; i < names.n; i++) {
    if (i) kr_text_add(&l->out, ", ", 2);
    json_text(l, doc_demangle(&l->scratch, DOC_TEXT(names, i)));
  }
  kr_text_add(&l->out, "]}", 2);
}

/* ---- one file ---- */
/* The text is kept per container, because another walk may follow. */
static void end_container(lister *l, doc_container *container) {
  if (l->out.length) container->listing = kr_arena_copy(l->d->arena, l->out.at, l->out.length);
  l->n_bytes += l->out.length;
  l->out.length = 0;
  l->n_lists = 0;
}

/* The names of an image's kernels are freed with it. */
static void list_image(doc *d, krait_scan *scan, const krait_image *image, doc_container *container, void *user) {
  lister *l = user;
  if (!image) {
    end_container(l, container);
    return;
  }
  l->scratch = *d;
  l->scratch.arena = kr_arena_open();
  if (!l->scratch.arena) {
    kr_arena_fail(d->arena);
    return;
  }
  (l->is_json ? json_image : text_image)(l, scan, image, (int)container->images.n);
  kr_arena_close(&l->scratch.arena);
  l->scratch = *d;
}

/* The pieces of the text, joined once for all members. */
static void add_piece(const doc *d, const char *text) {
  if (*text) doc_add_text(d, &d->found->notes, text);
}

static void head_of_container(lister *l, const doc_container *c, int number) {
  const unsigned long long offset = c->offset, bytes = c->bytes;
  l->out.length = 0;
  if (l->is_json) {
    kr_text_print(&l->out, "%s{\"section\": ", number ? "]}, " : "");
    json_text(l, c->section);
    kr_text_print(&l->out, ", \"offset\": %llu, \"bytes\": %llu, \"relocatable\": %s, \"images\": [", offset, bytes,
                  c->relocatable ? "true" : "false");
  } else {
    kr_text_print(&l->out, "container at %llu in %s, %llu bytes%s\n", offset, doc_printable(l->d, c->section), bytes,
                  c->relocatable ? ", relocatable" : "");
  }
  add_piece(l->d, kr_arena_copy(l->d->arena, l->out.at, l->out.length));
}

static int32_t list_source(doc *d, kr_source *source, const char *name, int is_json) {
  lister *l = kr_arena_alloc(d->arena, sizeof *l);
  const kr_list *containers;
  kr_arena *build = kr_arena_open();
  KR_CHECK(build, KRAIT_ERR_NO_MEMORY, "no memory to list %s", name);
  *l = (lister){.d = d, .scratch = *d, .out = kr_text_begin(build), .is_json = is_json};
  int32_t status = doc_walk_source(d, source, name, list_image, l, &containers);
  l->scratch = *d;
  if (is_json) {
    kr_text_print(&l->out, "{\"file\": ");
    json_text(l, name);
    kr_text_print(&l->out, ", \"containers\": [");
    add_piece(d, kr_arena_copy(d->arena, l->out.at, l->out.length));
  }
  for (size_t i = 0; i < containers->n; i++) {
    const doc_container *c = KR_AT(*containers, doc_container, i);
    head_of_container(l, c, (int)i);
    if (c->listing) add_piece(d, c->listing);
  }
  if (is_json) add_piece(d, containers->n ? "]}]}" : "]}");
  if (kr_arena_failed(build)) kr_arena_fail(d->arena);
  kr_arena_close(&build);
  return status;
}

/* ---- wheels ---- */
static void list_member(doc *own, kr_source *source, const char *name, void *user) {
  const int is_json = *(const int *)user;
  if (!doc_is_library_name(name) || (is_json && !source->size)) return;
  add_piece(own, is_json ? ",\n " : kr_arena_print(own->arena, "%s\n", doc_printable(own, name)));
  if (source->size && list_source(own, source, name, is_json) < 0)
    doc_add_text(own, &own->found->unreadable, kr_arena_print(own->arena, "%s", krait_error_detail()));
}

static int32_t list_wheel(doc *d, const char *path, int is_json) {
  kr_zip *zip;
  KR_TRY(kr_zip_open(path, &zip));
  doc_each_member(d, path, zip, list_member, &is_json);
  kr_zip_close(&zip);
  KR_CHECK(!d->found->unreadable.n, KRAIT_ERR_FILE_FORMAT, "%s", DOC_TEXT(d->found->unreadable, 0));
  return KRAIT_OK;
}

static int32_t list_file(doc *d, const char *path, int is_json) {
  kr_source source;
  KR_TRY(kr_source_open(&source, path));
  if (is_json) add_piece(d, ",\n ");
  int32_t status = list_source(d, &source, path, is_json);
  kr_source_close(&source);
  return status;
}

/* All pieces joined; the comma before an array's first member is left out. */
static const char *join_pieces(const doc *d, int is_json) {
  size_t n = 4, at = 0;
  for (size_t i = 0; i < d->found->notes.n; i++) n += strlen(DOC_TEXT(d->found->notes, i));
  char *text = kr_arena_try(d->arena, n);
  if (!text) return "";
  if (is_json) text[at++] = '[';
  for (size_t i = is_json; i < d->found->notes.n; i++) {
    const size_t length = strlen(DOC_TEXT(d->found->notes, i));
    memcpy(text + at, DOC_TEXT(d->found->notes, i), length);
    at += length;
  }
  if (is_json) memcpy(text + at, "]\n", 2);
  return at || is_json ? text : "no GPU code\n";
}

static int32_t list(const char *path, int is_json, krait_report **report, const char **out) {
  KR_CHECK(path && report && out, KRAIT_ERR_ARGUMENT, "path, report and text must not be NULL");
  KR_TRY(doc_open_report(NULL, report));
  doc *d = *report;
  int32_t status = is_wheel(path) ? list_wheel(d, path, is_json) : list_file(d, path, is_json);
  *out = join_pieces(d, is_json);
  if (status >= 0 && kr_arena_failed(d->arena)) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to list %s", path);
  if (status < 0) krait_report_close(report), *out = NULL;
  return status < 0 ? status : KRAIT_OK;
}

int32_t krait_doctor_list(const char *path, krait_report **report, const char **text) {
  return list(path, 0, report, text);
}
int32_t krait_doctor_list_json(const char *path, krait_report **report, const char **text) {
  return list(path, 1, report, text);
}
