/* inspect.c: one file into a doc_file, and the verdict over its containers. */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "doc.h"
#include "forward.h"
#include "sha256.h"
#include "status.h"

int doc_is_torch_library(const char *name) {
  return strncmp(name, "libc10", 6) == 0 || (strncmp(name, "libtorch", 8) == 0 && (name[8] == '.' || name[8] == '_'));
}

enum {
  MAX_CONTAINERS_KEPT = 100000,
  MAX_COUNTED_KERNELS = 100000,
  HASH_LIMIT_BYTES = 32 << 20,
  MAX_KERNEL_NAME = 2048,
  MAX_VERSIONS = 2048
};

int doc_has_text(const kr_list *list, const char *text) {
  for (size_t i = 0; i < list->n; i++)
    if (strcmp(DOC_TEXT(*list, i), text) == 0) return 1;
  return 0;
}

static doc_finding *report_as_damaged(const doc *d, doc_file *file, const char *why) {
  const char *keys[] = {"why", why, NULL};
  doc_finding *f = doc_report(d, "F01", file, file->package, keys);
  if (f && !file->damage) file->damage = d->found->findings.n;
  return f;
}

static void report_damage(const doc *d, doc_file *file) {
  report_as_damaged(d, file, kr_arena_print(d->arena, "%s", krait_error_detail()));
}

/* One walk over a file's containers. A trial reports nothing: it fails at the first damage, and another method is
 * tried. */
typedef struct body { /* one kernel's code in one image */
  uint64_t name;
  uint32_t bytes;
  int sm;
} body;

typedef struct walk {
  doc *d;
  krait_scan *scan;
  doc_file *file;
  int is_trial, is_damaged;
  doc_image_fn fn; /* instead of counting kernels */
  void *user;
  body *bodies; /* of this container, from all its images */
  size_t n_bodies, cap_bodies;
} walk;

static void damaged(walk *w) {
  w->is_damaged = 1;
  if (!w->is_trial && !w->file->damage_says)
    w->file->damage_says = kr_arena_print(w->d->arena, "%s", krait_error_detail());
  if (!w->is_trial && !w->fn) report_damage(w->d, w->file);
}

/* ---- hollow kernels ---- */
enum { HOLLOW_BYTES = 256, FULL_BYTES = 1024, MAX_BODIES = 1 << 20 };

static void keep_body(walk *w, const char *name, const krait_image *image) {
  if (w->n_bodies == w->cap_bodies) {
    size_t cap = w->cap_bodies ? w->cap_bodies * 2 : 256;
    body *larger = w->n_bodies < MAX_BODIES ? kr_alloc_array(cap, sizeof *larger) : NULL;
    if (!larger) return;
    if (w->n_bodies) memcpy(larger, w->bodies, w->n_bodies * sizeof *larger);
    kr_free(w->bodies);
    w->bodies = larger, w->cap_bodies = cap;
  }
  uint64_t h = 1469598103934665603ull, bytes = kr_scan_kernel_bytes(w->scan);
  for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211ull;
  w->bodies[w->n_bodies++] =
      (body){h, bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX, image->sm * 4 + (image->suffix == 'a')};
}

static int compare_bodies(const void *a, const void *b) {
  const body *x = a, *y = b;
  return x->name != y->name ? x->name < y->name ? -1 : 1 : x->sm - y->sm;
}

static doc_bodies *bodies_of(const doc *d, doc_container *c, int sm) {
  for (size_t i = 0; i < c->bodies.n; i++)
    if (KR_AT(c->bodies, doc_bodies, i)->sm == sm) return KR_AT(c->bodies, doc_bodies, i);
  doc_bodies *made = kr_list_push(d->arena, &c->bodies);
  *made = (doc_bodies){.sm = sm};
  return made;
}

/* A body of a few instructions means nothing by itself; if the same kernel has hundreds for another GPU, an #if removed
 * it. */
static void find_hollow(walk *w, doc_container *c) {
  if (w->n_bodies) qsort(w->bodies, w->n_bodies, sizeof(body), compare_bodies);
  for (size_t i = 0, end; i < w->n_bodies; i = end) {
    const body *full = &w->bodies[i];
    for (end = i; end < w->n_bodies && w->bodies[end].name == w->bodies[i].name; end++)
      if (w->bodies[end].bytes > full->bytes) full = &w->bodies[end];
    /* full ones for an arch-specific newer GPU only: code that only older GPUs need, newer ones using another kernel,
     * is empty on purpose */
    for (size_t k = i; k < end && full->bytes >= FULL_BYTES && full->sm % 4; k++) {
      if (w->bodies[k].sm / 4 >= full->sm / 4) continue;
      if (w->bodies[k].bytes > HOLLOW_BYTES || w->bodies[k].bytes * 8 > full->bytes) continue;
      doc_bodies *b = bodies_of(w->d, c, w->bodies[k].sm / 4);
      b->n_hollow++, b->full_sm = full->sm;
    }
  }
  w->n_bodies = 0;
}

/* Stubs and verdicts need to know whether there is any kernel; names are for the report. */
static void read_inspect_kernels(walk *w, doc_container *c, const krait_image *image) {
  char name[MAX_KERNEL_NAME];
  doc *d = w->d;
  int32_t status = 0;
  int n = 0, is_first = c->n_kernels == 0;
  while (n < MAX_COUNTED_KERNELS && (status = krait_scan_next_kernel(w->scan, name, sizeof name)) == 1) {
    if (is_first && n < DOC_KEPT_KERNELS) doc_add_text(d, &c->kernels, kr_arena_copy(d->arena, name, strlen(name)));
    keep_body(w, name, image);
    n++;
  }
  if (is_first) c->n_kernels = status < 0 ? -1 : n;
  if (kr_scan_toolkit(w->scan)) c->toolkit = kr_scan_toolkit(w->scan);
}

/* Compressed images are unpacked until one kernel is found; uncompressed ones are read for every GPU. */
static int wants_kernels(const doc_container *c, const krait_image *image) {
  return image->kind == KRAIT_IMAGE_CUBIN && !image->damaged &&
         (c->n_kernels == 0 || image->compression == KRAIT_COMPRESSION_NONE);
}

static void report_image(walk *w, const krait_image *image) {
  doc *d = w->d;
  w->is_damaged = 1;
  if (w->is_trial || w->fn) return;
  doc_finding *f =
      report_as_damaged(d, w->file,
                        kr_arena_print(d->arena, "the image for sm_%d at offset %llu is not what its header says",
                                       image->label_sm, (unsigned long long)image->offset));
  if (f) f->offset = (int64_t)image->offset;
}

static void read_images(walk *w, doc_container *c) {
  doc *d = w->d;
  krait_image image = {.size = sizeof image};
  int32_t status;
  int has_ptx = 0, n_cubins = 0;
  while ((status = krait_scan_next_image(w->scan, &image)) == 1 && !kr_arena_failed(d->arena)) {
    *(krait_image *)kr_list_push(d->arena, &c->images) = image;
    has_ptx |= image.kind == KRAIT_IMAGE_PTX;
    n_cubins += image.kind == KRAIT_IMAGE_CUBIN;
    if (image.damaged) report_image(w, &image);
    if (w->fn) w->fn(d, w->scan, &image, c, w->user);
    else if (wants_kernels(c, &image)) read_inspect_kernels(w, c, &image);
    if (image.toolkit > c->toolkit) c->toolkit = image.toolkit;
  }
  if (w->fn) w->fn(d, w->scan, NULL, c, w->user);
  if (c->n_kernels == 0 && (has_ptx || (c->images.n && !n_cubins)))
    c->n_kernels = -1; /* only cubins can be recognised as stubs */
  find_hollow(w, c);
  if (c->toolkit > w->file->toolkit) w->file->toolkit = c->toolkit;
  if (status < 0) damaged(w);
}

static void walk_containers(walk *w) {
  krait_container container = {.size = sizeof container};
  doc *d = w->d;
  doc_file *file = w->file;
  int32_t status = 0;
  file->containers = KR_LIST(doc_container);
  while (!(w->is_trial && w->is_damaged) && (status = krait_scan_next_container(w->scan, &container)) == 1 &&
         file->containers.n < MAX_CONTAINERS_KEPT && !kr_arena_failed(d->arena)) {
    doc_container *c = kr_list_push(d->arena, &file->containers);
    *c = (doc_container){.section = kr_arena_copy(d->arena, container.section, strlen(container.section)),
                         .offset = container.offset,
                         .bytes = container.bytes,
                         .relocatable = container.relocatable,
                         .images = KR_LIST(krait_image),
                         .kernels = KR_LIST(const char *),
                         .bodies = KR_LIST(doc_bodies),
                         .verdict = KRAIT_VERDICT_STUB};
    read_images(w, c);
  }
  if (status < 0) damaged(w);
}

static uint64_t end_of(const doc_container *c) { return (c->offset + c->bytes + 7) & ~7ull; }

/* Compares the containers found by a search with the section table: 1 when they fill its sections without a gap, so
 * that a walk over the sections would find the same. Those outside were bytes that look like a container. */
static int place_containers(const doc *d, krait_scan *scan, doc_file *file) {
  int n;
  size_t n_loaded = 0, k = 0;
  const kr_scan_region *regions = kr_scan_regions(scan, &n);
  if (n && regions[0].find) return 1; /* no section table: the search stands */
  for (int i = 0; i < n; i++) {
    uint64_t at = regions[i].offset;
    if (i && regions[i].offset < regions[i - 1].end) return 0;
    while (k < file->containers.n && KR_AT(file->containers, doc_container, k)->offset < at) k++;
    for (; k < file->containers.n && at < regions[i].end; k++) {
      doc_container *c = KR_AT(file->containers, doc_container, k);
      if (c->offset != at || c->bytes > regions[i].end - at) break;
      at = end_of(c);
      c->section = kr_arena_copy(d->arena, regions[i].section, strlen(regions[i].section));
      c->relocatable = regions[i].relocatable;
      *KR_AT(file->containers, doc_container, n_loaded++) = *c;
    }
    if (at < regions[i].end && regions[i].end - at >= KR_FATBIN_HEADER_BYTES) return 0;
  }
  file->containers.n = n_loaded;
  return 1;
}

/* Sections are named at the end of a file. If that is far away, search first and check later; if in doubt, walk again
 * by sections. */
static void read_containers(doc *d, krait_scan *scan, doc_file *file, doc_image_fn fn, void *user) {
  walk trial = {.d = d, .scan = scan, .file = file, .is_trial = 1, .fn = fn, .user = user},
       whole = {.d = d, .scan = scan, .file = file, .fn = fn, .user = user};
  int is_done = 0;
  if (kr_scan_source(scan)->is_forward && kr_scan_set_forward(scan)) {
    walk_containers(&trial);
    is_done = kr_scan_begin_sections(scan) == KRAIT_OK && !trial.is_damaged && place_containers(d, scan, file);
  }
  if (!is_done) walk_containers(&whole);
  kr_free(trial.bodies);
  kr_free(whole.bodies);
  file->has_fatbin = file->containers.n > 0;
  file->has_relfatbin = kr_scan_has_relfatbin(scan);
  for (size_t i = 0; file->has_relfatbin && i < file->containers.n; i++) {
    doc_container *c = KR_AT(file->containers, doc_container, i);
    c->linked = kr_scan_is_linked(scan, c->offset) == 1;
  }
}

typedef struct version_user {
  doc *d;
  doc_file *file;
} version_user;

static void add_version(void *user, const char *file, const char *version) {
  version_user *u = user;
  if (u->file->versions.n >= MAX_VERSIONS) return;
  doc_version *v = kr_list_push(u->d->arena, &u->file->versions);
  *v = (doc_version){kr_arena_copy(u->d->arena, file, strlen(file)),
                     kr_arena_copy(u->d->arena, version, strlen(version))};
}

static const char *dynamic_string(const doc *d, krait_scan *scan, uint64_t value) {
  char text[4096];
  int32_t n = kr_elf_string(kr_scan_elf(scan), kr_scan_dynamic(scan)->strings + value, text, sizeof text);
  return n < 0 ? "" : kr_arena_copy(d->arena, text, (size_t)n);
}

static void read_dynamic(doc *d, krait_scan *scan, doc_file *file) {
  enum { DT_NEEDED = 1, DT_SONAME = 14, DT_RPATH = 15, DT_RUNPATH = 29 };
  const kr_dynamic *dynamic = kr_scan_dynamic(scan);
  kr_elf *elf = kr_scan_elf(scan);
  for (uint64_t i = 0; i < dynamic->n_entries && file->needed.n < 4096 && !kr_arena_failed(d->arena); i++) {
    uint64_t tag, value;
    if (kr_elf_dynamic_entry(elf, dynamic, i, &tag, &value) < 0) break;
    if (tag == DT_NEEDED) doc_add_text(d, &file->needed, dynamic_string(d, scan, value));
    if (tag == DT_SONAME) file->soname = dynamic_string(d, scan, value);
    if (tag == DT_RPATH) file->rpath = dynamic_string(d, scan, value);
    if (tag == DT_RUNPATH) file->runpath = dynamic_string(d, scan, value);
  }
  version_user user = {d, file};
  kr_elf_versions(elf, dynamic, 1, add_version, &user);
}

static void classify(doc_file *file) {
  for (size_t i = 0; i < file->needed.n; i++) {
    const char *name = DOC_TEXT(file->needed, i);
    if (strncmp(name, "libcudart", 9) == 0 || strncmp(name, "libcublas", 9) == 0 ||
        strncmp(name, "libcuda.so", 10) == 0)
      file->is_cuda = 1;
    if (doc_is_torch_library(name)) file->is_extension = 1;
    if (strncmp(name, "libc10_cuda", 11) == 0 || strncmp(name, "libtorch_cuda", 13) == 0) file->is_cuda = 1;
  }
  if (doc_is_torch_library(file->name))
    file->is_torch = 1, file->is_extension = 0;
  if (file->has_fatbin) file->is_cuda = 1;
}

static doc_file *add_file(doc *d, const char *path) {
  doc_file *file = kr_list_push(d->arena, &d->evidence.files);
  const char *slash = strrchr(path, '/');
  *file = (doc_file){.path = path,
                     .name = slash ? slash + 1 : path,
                     .package = d->evidence.owner,
                     .package_version = d->evidence.owner_version,
                     .sha256 = "",
                     .soname = "",
                     .rpath = "",
                     .runpath = "",
                     .containers = KR_LIST(doc_container),
                     .needed = KR_LIST(const char *),
                     .versions = KR_LIST(doc_version),
                     .undefined = KR_LIST(const char *),
                     .missing = KR_LIST(const char *),
                     .abi = DOC_ABI_UNKNOWN,
                     .verdict = KRAIT_VERDICT_STUB};
  return file;
}

/* A file whose name suggests a format read here, but whose bytes are neither that, nor text such as a linker script,
 * nor another system's program. */
static int is_garbage(const doc_file *file, const char *head, size_t n) {
  static const char *const ends[] = {".cubin", ".fatbin", ".a"}, *const others[] = {"MZ", "\xcf\xfa\xed\xfe",
                                                                                    "\xfe\xed\xfa\xcf",
                                                                                    "\xca\xfe\xba\xbe"};
  const char *dot = strrchr(file->name, '.'), *so = strstr(file->name, ".so");
  int promises = so && so[3 + strspn(so + 3, ".0123456789")] == '\0';
  for (int i = 0; i < 3; i++) promises |= dot && strcmp(dot, ends[i]) == 0;
  for (int i = 0; i < 4; i++) promises &= n < 4 || memcmp(head, others[i], strlen(others[i])) != 0;
  for (size_t i = 0; i < n && promises; i++)
    if ((unsigned char)head[i] < 9 || ((unsigned char)head[i] > 13 && (unsigned char)head[i] < 32) ||
        (unsigned char)head[i] > 126)
      return 1;
  return 0;
}

doc_file *doc_inspect_source(doc *d, kr_source *source, const char *path) {
  krait_scan *scan;
  if (kr_arena_failed(d->arena)) return NULL;
  doc_file *file = add_file(d, path);
  file->bytes = source->size;
  char head[64] = "";
  size_t n_head = source->size < sizeof head ? (size_t)source->size : sizeof head;
  if (n_head) kr_source_read(source, 0, head, n_head);
  if (source->size == 0 || strncmp(head, "version https://git-lfs", 23) == 0) {
    const char *keys[] = {"why", source->size ? "it is a Git LFS pointer, not the file itself" : "it is empty", NULL};
    doc_report(d, "W06", file, "", keys);
    return file;
  }
  if (kr_scan_open_source(source, &scan) < 0) {
    report_damage(d, file);
    return file;
  }
  file->kind = krait_scan_kind(scan);
  if (strncmp(file->name, "libnvrtc.so", 11) == 0 || strncmp(file->name, "libnvrtc-", 9) == 0)
    doc_read_compiler(d, source, file);
  if (file->kind == KRAIT_FILE_OTHER && is_garbage(file, head, n_head)) {
    report_as_damaged(d, file,
                      "it does not begin like a library, archive or GPU code (Python would say: invalid ELF header)");
  }
  if (d->options.deep) kr_scan_set_deep(scan);
  if (kr_scan_elf(scan)) {
    file->machine = kr_scan_elf(scan)->machine;
    file->bits = kr_scan_elf(scan)->bits;
  }
  read_containers(d, scan, file, NULL, NULL);
  if (kr_scan_elf(scan) && kr_scan_read_dynamic(scan) < 0) {
    report_damage(d, file);
  } else if (kr_scan_elf(scan)) {
    read_dynamic(d, scan, file);
    doc_collect_symbols(d, file, scan);
  }
  classify(file);
  krait_scan_close(&scan);
  char hex[65];
  const uint64_t most =
      source->is_forward ? KR_FORWARD_WINDOW_BYTES : HASH_LIMIT_BYTES; /* can be read again at no cost */
  if ((source->size <= most || d->options.deep) && kr_sha256_source(source, hex) == KRAIT_OK)
    file->sha256 = kr_arena_copy(d->arena, hex, 64);
  return file;
}

int32_t doc_walk_source(doc *d, kr_source *source, const char *path, doc_image_fn fn, void *user,
                        const kr_list **containers) {
  krait_scan *scan;
  doc_file *file = add_file(d, path);
  *containers = &file->containers;
  KR_TRY(kr_scan_open_source(source, &scan));
  read_containers(d, scan, file, fn, user);
  krait_scan_close(&scan);
  KR_CHECK(!file->damage_says, KRAIT_ERR_FILE_FORMAT, "%s", file->damage_says);
  return KRAIT_OK;
}

doc_file *doc_inspect_path(doc *d, const char *path) {
  kr_source source;
  if (kr_source_open(&source, path) < 0) {
    doc_add_text(d, &d->found->unreadable, kr_arena_print(d->arena, "%s", krait_error_detail()));
    return NULL;
  }
  doc_file *file = doc_inspect_source(d, &source, path);
  kr_source_close(&source);
  return file;
}

/* ---- verdicts ---- */
static krait_target target_of(const doc *d, int cc) {
  return (krait_target){.size = sizeof(krait_target),
                        .cc = cc,
                        .driver = d->target.driver_number,
                        .driver_cuda = d->target.driver_cuda,
                        .force_ptx_jit = *d->target.env_force_jit && strcmp(d->target.env_force_jit, "0") != 0};
}

static int best_image(const doc *d, const doc_container *c, const krait_target *target, int want_relocatable, int *sm) {
  int best = KRAIT_VERDICT_NONE;
  for (size_t i = 0; i < c->images.n; i++) {
    const krait_image *image = KR_AT(c->images, krait_image, i);
    if (image->kind == KRAIT_IMAGE_CUBIN && image->relocatable && !want_relocatable) continue;
    int verdict = krait_rule(d->tables, image, target);
    if (verdict < best || (sm && verdict == best && best < KRAIT_VERDICT_NONE && image->sm > *sm)) {
      best = verdict;
      if (sm) *sm = image->sm;
    }
  }
  return best;
}

/* Kernels without code in the image that the device uses; PTX comes from the same source as the machine code for its
 * capability. */
static int count_hollow(const doc_container *c, int sm) {
  for (size_t i = 0; i < c->bodies.n; i++)
    if (KR_AT(c->bodies, doc_bodies, i)->sm == sm) return KR_AT(c->bodies, doc_bodies, i)->n_hollow;
  return 0;
}

/* PTX of relocatable containers is what the driver links when the linked container has nothing. */
static int best_relocatable_ptx(const doc *d, const doc_file *file, const krait_target *target) {
  int best = KRAIT_VERDICT_NONE;
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    int verdict = c->relocatable ? best_image(d, c, target, 0, NULL) : KRAIT_VERDICT_NONE;
    if (verdict < best) best = verdict;
  }
  return best;
}

static int has_final_container(const doc_file *file) {
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    if (!c->relocatable && c->n_kernels) return 1;
  }
  return 0;
}

static int has_linked_container(const doc_file *file) {
  for (size_t i = 0; i < file->containers.n; i++)
    if (KR_AT(file->containers, doc_container, i)->linked) return 1;
  return 0;
}

static void judge_file(const doc *d, doc_file *file, int cc) {
  krait_target target = target_of(d, cc);
  int final = has_final_container(file),
      from_ptx = file->has_relfatbin ? best_relocatable_ptx(d, file, &target) : KRAIT_VERDICT_NONE;
  int any_linked = has_linked_container(file);
  file->n_judged = file->n_lost = 0;
  file->verdict = KRAIT_VERDICT_STUB;
  if (file->is_unused) return;
  if (file->kind == KRAIT_FILE_ELF && d->target.machine && file->machine != d->target.machine)
    return; /* its host code does not run there: reported by L05 */
  for (size_t i = 0; i < file->containers.n; i++) {
    doc_container *c = KR_AT(file->containers, doc_container, i);
    if (c->n_kernels == 0 || (c->relocatable && final)) continue;
    int sm = 0, verdict = best_image(d, c, &target, c->relocatable, &sm);
    c->n_hollow = count_hollow(c, sm);
    if (verdict > from_ptx && (c->linked || !any_linked)) verdict = from_ptx;
    c->verdict = verdict;
    file->n_judged++;
    if (verdict > KRAIT_VERDICT_JIT) file->n_lost++;
    if (file->verdict == KRAIT_VERDICT_STUB || verdict > file->verdict) file->verdict = verdict;
  }
}

void doc_judge_for(doc *d, int cc) {
  for (size_t i = 0; i < d->evidence.files.n; i++) judge_file(d, KR_AT(d->evidence.files, doc_file, i), cc);
}

/* Several devices: the file keeps the worst verdict. */
void doc_judge_all(doc *d) {
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    int worst = -1, worst_cc = 0;
    for (size_t g = 0; g < d->target.gpus.n; g++) {
      int cc = KR_AT(d->target.gpus, doc_gpu, g)->cc;
      if (!cc) continue;
      judge_file(d, file, cc);
      if (file->verdict != KRAIT_VERDICT_STUB && file->verdict > worst) worst = file->verdict, worst_cc = cc;
    }
    if (worst_cc) judge_file(d, file, worst_cc);
  }
}

/* ---- printing sets ---- */
static int compare_inspect_ints(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* Distinct targets of one kind as keys sm * 4 + suffix. */
static int collect(const kr_list *images, int kind, int *keys, int n, int cap, int *ptx) {
  for (size_t i = 0; i < images->n; i++) {
    const krait_image *image = KR_AT(*images, krait_image, i);
    int key = image->sm * 4 + (image->suffix == 'a' ? 1 : image->suffix == 'f' ? 2 : 0), seen = 0;
    if (image->kind != kind || image->damaged) continue;
    if (ptx && image->ptx > *ptx) *ptx = image->ptx;
    for (int k = 0; k < n; k++) seen |= keys[k] == key;
    if (!seen && n < cap) keys[n++] = key;
  }
  return n;
}

static void print_keys(kr_text *text, int *keys, int n) {
  qsort(keys, (size_t)n, sizeof *keys, compare_inspect_ints);
  for (int i = 0; i < n; i++)
    kr_text_print(text, " %d%s", keys[i] / 4, keys[i] % 4 == 1 ? "a" : keys[i] % 4 == 2 ? "f" : "");
}

static const char *print_images(const doc *d, const kr_list *const *lists, size_t n_lists) {
  int cubins[64], ptxs[64], others[8], n_cubins = 0, n_ptxs = 0, n_others = 0, version = 0;
  for (size_t i = 0; i < n_lists; i++) {
    n_cubins = collect(lists[i], KRAIT_IMAGE_CUBIN, cubins, n_cubins, 64, NULL);
    n_ptxs = collect(lists[i], KRAIT_IMAGE_PTX, ptxs, n_ptxs, 64, &version);
    n_others = collect(lists[i], KRAIT_IMAGE_LTO, others, n_others, 8, NULL);
  }
  kr_text text = kr_text_begin(d->arena);
  if (n_cubins) kr_text_print(&text, "sm"), print_keys(&text, cubins, n_cubins);
  if (n_ptxs)
    kr_text_print(&text, "%sPTX %d.%d for", n_cubins ? ", " : "", version / 10, version % 10),
        print_keys(&text, ptxs, n_ptxs);
  if (n_cubins && !n_ptxs) kr_text_print(&text, ", no PTX");
  if (n_others) kr_text_print(&text, "%sLTO", text.length ? ", " : "");
  if (!text.length) kr_text_print(&text, "nothing that can run");
  return text.at;
}

const char *doc_print_container(const doc *d, const doc_container *container) {
  const kr_list *list = &container->images;
  return print_images(d, &list, 1);
}

/* The union is only for display; verdicts never use it. */
const char *doc_print_set(const doc *d, const doc_file *file) {
  size_t n = 0;
  const kr_list **lists = kr_arena_alloc(d->arena, (file->containers.n + 1) * sizeof *lists);
  if (!lists || kr_arena_failed(d->arena)) return "";
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    if (c->n_kernels) lists[n++] = &c->images;
  }
  return print_images(d, lists, n);
}
