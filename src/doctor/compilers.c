/* compilers.c: what packages contain besides kernels: ptxas and NVRTC, which must know the GPU, and sets of libraries
 * of which one is loaded, chosen by CUDA version. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "doc.h"
#include "doc_commands.h"
#include "status.h"

enum { PIECE_BYTES = 1 << 16, MARK_CAPACITY = 32 };

/* "Build cuda_12.4.r12.4/compiler.33961263_0" is in every NVIDIA compiler. */
static int find_release(kr_source *source) {
  static const char mark[] = "Build cuda_";
  char *piece = kr_alloc(PIECE_BYTES + 1);
  int found = 0;
  for (uint64_t at = 0; piece && !found && at + MARK_CAPACITY < source->size; at += PIECE_BYTES - MARK_CAPACITY) {
    size_t n = source->size - at < PIECE_BYTES ? (size_t)(source->size - at) : PIECE_BYTES;
    if (kr_source_read(source, at, piece, n) < 0) break;
    piece[n] = '\0';
    const char *hit = memmem(piece, n, mark, sizeof mark - 1);
    if (hit) found = kr_parse_tenths(hit + sizeof mark - 1);
  }
  kr_free(piece);
  return found;
}

void doc_read_compiler(doc *d, kr_source *source, const doc_file *about) {
  int cuda = find_release(source);
  if (!cuda) return;
  doc_compiler *c = kr_list_push(d->arena, &d->evidence.compilers);
  *c = (doc_compiler){.path = about->path,
                      .package = about->package,
                      .cuda = cuda,
                      .is_nvrtc = strncmp(about->name, "libnvrtc", 8) == 0};
}

void doc_diagnose_compilers(const doc *d) {
  int cc = doc_main_cc(d), need = cc ? kr_tables_first_cuda_for(d->tables, kr_arena_print(d->arena, "%d", cc)) : 0;
  for (size_t i = 0; i < d->evidence.compilers.n && need; i++) {
    const doc_compiler *c = KR_AT(d->evidence.compilers, doc_compiler, i);
    if (c->cuda >= need || kr_tables_first_cuda_for(d->tables, "90") > c->cuda) continue;
    const doc_table_line *newest = kr_tables_find(d->tables, "capabilities", kr_print_tenths(d->arena, c->cuda));
    const char *slash = strrchr(c->path, '/'), *version = kr_print_tenths(d->arena, c->cuda);
    const doc_file about = {.path = c->path,
                            .name = slash ? slash + 1 : c->path,
                            .package = c->package,
                            .package_version = doc_version_of(d, c->package)};
    const char *keys[] = {"nvcc",   version,
                          "cuda",   version,
                          "arch",   kr_arena_print(d->arena, "sm_%d", cc),
                          "need",   kr_print_tenths(d->arena, need),
                          "newest", newest ? newest->column[1] : "",
                          NULL};
    doc_finding *f = doc_report(d, c->is_nvrtc ? "K23" : "B11", &about, c->package, keys);
    doc_add_evidence(d, f, "%s says that it is from CUDA %s; %s is supported since CUDA %s", about.name, version,
                 kr_arena_print(d->arena, "sm_%d", cc), kr_print_tenths(d->arena, need));
    if (f && c->is_nvrtc)
      f->severity = KR_WARN; /* some callers then compile for an older GPU and leave the rest to the driver */
  }
}

/* ---- variants ---- */
static int variant_of(const doc_table_line *row, const doc_file *file) {
  size_t n = strlen(row->column[1]);
  return strcmp(file->package, row->column[0]) == 0 && strncmp(file->name, row->column[1], n) == 0
             ? atoi(file->name + n)
             : 0;
}

static int serves_target(const doc *d, const doc_file *file) {
  int cc = doc_main_cc(d);
  for (size_t i = 0; i < file->containers.n && cc; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    int best = KRAIT_VERDICT_NONE;
    const krait_target target = {
        .size = sizeof target, .cc = cc, .driver = d->target.driver_number, .driver_cuda = d->target.driver_cuda};
    for (size_t k = 0; k < c->images.n; k++) {
      int verdict = krait_rule(d->tables, KR_AT(c->images, krait_image, k), &target);
      if (verdict < best) best = verdict;
    }
    if (c->n_kernels && best > KRAIT_VERDICT_JIT) return 0;
  }
  return file->containers.n > 0;
}

/* The one for torch's CUDA; without a torch, the newest that supports the GPU. */
static int chosen_variant(const doc *d, const doc_table_line *row) {
  int want = kr_parse_tenths(d->target.torch_cuda), best = 0, newest = 0, lower = 0;
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    int n = variant_of(row, file);
    if (!n || strstr(file->name, "nocublaslt")) continue;
    if (want && n == want) return n;
    if (want && n / 10 == want / 10 && n < want && n > lower) lower = n;
    if (n > newest) newest = n;
    if (!want && n > best && serves_target(d, file)) best = n;
  }
  return want ? lower : best ? best : newest;
}

static void report_no_variant(const doc *d, const doc_table_line *row, int chosen) {
  const doc_package *p = doc_find_package(d, row->column[0]);
  int want = kr_parse_tenths(d->target.torch_cuda);
  if (!p || !want || chosen == want || (chosen && kr_compare_versions(p->version, "0.49") >= 0))
    return; /* later versions load the nearest */
  const doc_file about = {.path = *p->dist_info ? p->dist_info : p->site,
                          .name = p->name,
                          .package = p->name,
                          .package_version = p->version};
  const char *release = doc_command(d, "release", p->name, p->version, ""),
             *keys[] = {"bnb",
                        kr_arena_print(d->arena, "%d", want),
                        "bnb_cuda",
                        d->target.torch_cuda,
                        "bnb_install",
                        *release && !strstr(release, p->version)
                            ? release
                            : "pip install --no-deps --force-reinstall bitsandbytes==0.50.2",
                        NULL};
  doc_report(d, "L08", &about, p->name, keys);
}

void doc_choose_variants(doc *d) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "variant", &at));) {
    int chosen = chosen_variant(d, row), n = 0;
    for (size_t i = 0; i < d->evidence.files.n; i++) {
      doc_file *file = KR_AT(d->evidence.files, doc_file, i);
      int is_other = strncmp(file->name, "libbitsandbytes_", 16) == 0 && !variant_of(row, file) &&
                     strcmp(file->package, row->column[0]) == 0; /* other makers' GPUs, and the CPU */
      file->is_unused |= is_other || (variant_of(row, file) && variant_of(row, file) != chosen) ||
                         (variant_of(row, file) && strstr(file->name, "nocublaslt") && doc_main_cc(d) >= 75);
      n += variant_of(row, file) && file->is_unused;
    }
    if (n)
      doc_add_text(d, &d->found->notes,
                   kr_arena_print(d->arena, "%s: %s%d.so is loaded; %d others are for other CUDA releases",
                                  row->column[0], row->column[1], chosen, n));
    if (chosen || n) report_no_variant(d, row, chosen);
  }
}
