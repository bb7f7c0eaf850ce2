/* diagnose_images.c: the K rules: what the files' verdicts mean, and what to do. */
#include <string.h>

#include "doc.h"
#include "doc_commands.h"

static const char *nth_cc(const doc *d) { return doc_main_cc(d) ? kr_print_cc(d->arena, doc_main_cc(d)) : "this GPU"; }

/* The library whose code decides whether torch itself runs; old releases split it in two. */
static int is_torch_main(const doc_file *file) {
  return strncmp(file->name, "libtorch_cuda.so", 16) == 0 || strncmp(file->name, "libtorch_cuda_c", 15) == 0;
}

/* Libraries that choose a kernel by GPU: kernels never chosen for a GPU need no code for it. */
static int picks_kernels(const doc *d, const doc_file *file) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "dispatch", &at));)
    if (*row->column[0] && strncmp(file->name, row->column[0], strlen(row->column[0])) == 0) return 1;
  return 0;
}

/* Torch's libraries and NVIDIA's own are the base; everything else with GPU code is an extension, and a possible
 * cause. */
static int is_own_extension(const doc_file *file) {
  return file->is_cuda && !file->is_torch && !doc_comes_with_torch(file->package);
}

static int is_set(const char *variable) { return *variable && strcmp(variable, "0") != 0; }

typedef struct shape { /* of the images that did not fit */
  int n, n_arch, n_family, n_newer_minor, highest_ptx, sm, higher;
} shape;

static shape shape_of(const doc_file *file, int cc) {
  shape s = {0};
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    for (size_t k = 0; k < c->images.n && c->n_kernels; k++) {
      const krait_image *image = KR_AT(c->images, krait_image, k);
      if (image->kind != KRAIT_IMAGE_CUBIN && image->kind != KRAIT_IMAGE_PTX) continue;
      s.n++;
      s.sm = image->sm;
      s.n_arch += image->suffix == 'a';
      s.n_family += image->suffix == 'f';
      if (image->kind == KRAIT_IMAGE_CUBIN && !image->suffix && image->sm / 10 == cc / 10 && image->sm > cc)
        s.n_newer_minor++, s.higher = image->sm;
      if (image->kind == KRAIT_IMAGE_PTX && image->ptx > s.highest_ptx) s.highest_ptx = image->ptx;
    }
  }
  return s;
}

/* Verdicts as a set: those that a finding covers. */
enum {
  NONE = 1 << KRAIT_VERDICT_NONE,
  JIT_BLOCKED = 1 << KRAIT_VERDICT_JIT_BLOCKED,
  ZSTD_BLOCKED = 1 << KRAIT_VERDICT_ZSTD_BLOCKED
};

static int is_lost(const doc_container *c, int verdicts) { return (1 << c->verdict & verdicts) != 0; }

static int count_lost(const doc_file *file, int verdicts) {
  int n = 0;
  for (size_t i = 0; i < file->containers.n; i++) n += is_lost(KR_AT(file->containers, doc_container, i), verdicts);
  return n;
}

static void add_image_evidence(const doc *d, doc_finding *f, const doc_file *file, int verdicts) {
  int shown = 0;
  for (size_t i = 0; f && i < file->containers.n && shown < 3; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    if (!is_lost(c, verdicts)) continue;
    if (f->offset < 0) f->offset = (int64_t)c->offset;
    const char *by =
        c->toolkit ? kr_arena_print(d->arena, ", compiled by CUDA %s", kr_print_tenths(d->arena, c->toolkit)) : "";
    doc_add_evidence(d, f, "%s at offset %llu: %s%s", c->section, (unsigned long long)c->offset,
                     doc_print_container(d, c), by);
    shown++;
  }
  doc_add_evidence(d, f, "%d of %d container%s cannot run on %s", count_lost(file, verdicts), file->n_judged,
               file->n_judged == 1 ? "" : "s", nth_cc(d));
}

/* Template names may fill a page; their beginning is enough. */
static const char *shorten(const doc *d, const char *name) {
  enum { MOST = 100 };
  return strlen(name) > MOST ? kr_arena_print(d->arena, "%.*s...", MOST, name) : name;
}

static const char *lost_kernels(const doc *d, const doc_file *file, int verdicts) {
  kr_text text = kr_text_begin(d->arena);
  int n = 0;
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    if (!is_lost(c, verdicts)) continue;
    for (size_t k = 0; k < c->kernels.n && n < 4; k++, n++)
      kr_text_print(&text, "%s%s", n ? ", " : "", shorten(d, doc_demangle(d, DOC_TEXT(c->kernels, k))));
  }
  return n ? text.at : "";
}

/* The capability that an optional file was written for and what the others use instead, from the tables; or NULL. */
const doc_table_line *doc_optional_row(const doc *d, const doc_file *file) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "optional", &at));)
    if (strcmp(row->column[0], file->package) == 0 && strstr(file->path, row->column[1])) return row;
  return NULL;
}

/* A part for other GPUs is not an error if something else covers this one: shown with --all. */
static int is_served(const doc *d, const char *package) {
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (strcmp(file->package, package) == 0 && file->n_judged && file->verdict <= KRAIT_VERDICT_JIT) return 1;
  }
  return 0;
}

static void set_optional(const doc *d, doc_finding *f, const doc_table_line *row) {
  if (!f || !row || (*row->column[2] && doc_covers(row->column[2], doc_main_cc(d))) ||
      (!*row->column[4] && !is_served(d, row->column[0])))
    return;
  f->severity = KR_INFO, f->hidden = 1;
  doc_add_evidence(d, f, "not an error: this part of %s is for sm %s; other GPUs use %s", row->column[0],
                   row->column[2], row->column[3]);
}

/* General code is never compiled for one GPU only: arch-specific and family images are chosen by checking the GPU. */
static int lost_is_specific(const doc_file *file, int verdicts) {
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    if (!is_lost(c, verdicts)) continue;
    for (size_t k = 0; k < c->images.n; k++)
      if (!KR_AT(c->images, krait_image, k)->suffix) return 0;
  }
  return 1;
}

static void report_partial(const doc *d, const doc_file *file, int verdicts) {
  const char *keys[] = {"cc", nth_cc(d), "names", lost_kernels(d, file, verdicts), NULL};
  doc_finding *f = doc_report(d, "K02", file, "", keys);
  add_image_evidence(d, f, file, verdicts);
  set_optional(d, f, doc_optional_row(d, file));
  if (f && picks_kernels(d, file)) {
    f->severity = KR_INFO, f->hidden = 1;
    doc_add_evidence(d, f, "this library chooses kernels by GPU: code for other GPUs only is not an error");
    if (count_lost(file, verdicts) == file->n_lost)
      doc_add_text(
          d, &d->found->notes,
          kr_arena_print(d->arena, "%s  %d of %d containers run on %s, the others are for GPUs that it tests for",
                         file->name, file->n_judged - file->n_lost, file->n_judged, nth_cc(d)));
  } else if (f && lost_is_specific(file, verdicts)) {
    f->severity = KR_INFO;
    doc_add_evidence(d, f, "arch-specific code only: not an error if %s checks the GPU before it picks these",
                 *file->package ? file->package : file->name);
  }
}

static void report_blocked(const doc *d, const doc_file *file, const shape *s) {
  krait_target target = {.size = sizeof target,
                         .cc = doc_main_cc(d),
                         .driver = d->target.driver_number,
                         .driver_cuda = d->target.driver_cuda};
  int most = kr_tables_ptx_of_driver(d->tables, &target), branch = kr_tables_branch_of_ptx(d->tables, s->highest_ptx);
  const char *keys[] = {"cc",       nth_cc(d),
                        "ptx",      kr_print_tenths(d->arena, s->highest_ptx),
                        "ptx_most", kr_print_tenths(d->arena, most),
                        "branch",   branch ? kr_arena_print(d->arena, "%d", branch) : "newer than these tables",
                        NULL};
  add_image_evidence(d, doc_report(d, "K08", file, "", keys), file, JIT_BLOCKED);
}

static const char *reason_id(const doc_file *file, const shape *s) {
  if (is_torch_main(file)) return "K14";
  if (file->has_relfatbin) return "K09";
  if (s->n && s->n_arch == s->n) return "K05";
  if (s->n && s->n_arch + s->n_family == s->n) return "K06";
  if (s->n_newer_minor) return "K07";
  return "K01";
}

static void report_none(const doc *d, const doc_file *file, const shape *s) {
  int cc = doc_main_cc(d), family = s->sm / 10 == cc / 10 ? s->sm : cc;
  const char *keys[] = {"cc",     nth_cc(d),
                        "set",    doc_print_set(d, file),
                        "sm",     kr_arena_print(d->arena, "%d", cc),
                        "higher", kr_arena_print(d->arena, "%d.%d", s->higher / 10, s->higher % 10),
                        "index",  doc_index_for(d, cc),
                        "family", kr_arena_print(d->arena, "%d%s", family, family >= 100 ? "f" : ""),
                        "name",   nth_cc(d),
                        NULL};
  const char *id = reason_id(file, s);
  doc_finding *f = doc_report(d, id, file, "", keys);
  const doc_table_line *row = kr_tables_find(d->tables, "package", file->package);
  add_image_evidence(d, f, file, NONE);
  set_optional(d, f, doc_optional_row(d, file));
  if (!f || !row || strcmp(row->column[4], "no") != 0) return;
  doc_add_evidence(d, f, "setup.py of %s sets its own targets: TORCH_CUDA_ARCH_LIST changes nothing (B04)",
                   file->package);
  size_t n = 0;
  for (size_t i = 0; i < f->fixes.n; i++)
    if (strncmp(DOC_TEXT(f->fixes, i), "TORCH_CUDA_ARCH_LIST", 20) != 0)
      DOC_TEXT(f->fixes, n++) = DOC_TEXT(f->fixes, i);
  f->fixes.n = n;
}

/* Containers without code for the GPU make one finding, those that a newer driver would run another. */
static void judge_lost(const doc *d, const doc_file *file) {
  shape s = shape_of(file, doc_main_cc(d));
  int n_none = count_lost(file, NONE), has_choice = picks_kernels(d, file) && file->n_lost < file->n_judged,
      unneeded = NONE | (has_choice ? JIT_BLOCKED : 0);
  if (is_set(d->target.env_force_jit) && !s.highest_ptx) return; /* K10 says it */
  if (n_none == file->n_judged) report_none(d, file, &s);
  else if (count_lost(file, unneeded)) report_partial(d, file, unneeded);
  if (!has_choice && count_lost(file, JIT_BLOCKED)) report_blocked(d, file, &s);
  if (count_lost(file, ZSTD_BLOCKED)) add_image_evidence(d, doc_report(d, "K11", file, "", NULL), file, ZSTD_BLOCKED);
}

static void judge_hollow(const doc *d, const doc_file *file) {
  int n = 0, full = 0, has_whole = 0;
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    has_whole |= c->verdict <= KRAIT_VERDICT_JIT && c->n_kernels > c->n_hollow;
    if (c->verdict > KRAIT_VERDICT_JIT || !c->n_hollow) continue;
    n += c->n_hollow;
    for (size_t k = 0; k < c->bodies.n; k++) full = KR_AT(c->bodies, doc_bodies, k)->full_sm;
  }
  if (!n) return;
  const doc_table_line *row = doc_optional_row(d, file);
  const char *number = kr_arena_print(d->arena, "%d kernel%s", n, n == 1 ? "" : "s"),
             *how = file->verdict == KRAIT_VERDICT_JIT ? "the PTX for an older GPU" : "the code for an older GPU";
  const char *keys[] = {
      "cc", nth_cc(d), "hollow", how,
      "n",  number,    "full",   kr_arena_print(d->arena, "%d.%d%s", full / 4 / 10, full / 4 % 10, full % 4 ? "a" : ""),
      NULL};
  doc_finding *f = doc_report(d, "K20", file, "", keys);
  doc_add_evidence(d, f, "their code is at most %d bytes, against kilobytes for %d.%d", 256, full / 4 / 10,
                   full / 4 % 10);
  if (f && row)
    doc_add_evidence(d, f, "this GPU uses %s: a problem only if the program forces this part", row->column[3]);
  else if (has_whole) doc_add_evidence(d, f, "other kernels of the file are whole: it picks those that this GPU has");
  if (f && (row || has_whole)) f->severity = KR_INFO, f->hidden = 1;
}

static int runs_only_across_tegra(const doc *d, const doc_file *file) {
  int cc = doc_main_cc(d), tegra = kr_tables_is_tegra(d->tables, cc), n = 0;
  if (file->verdict != KRAIT_VERDICT_NATIVE_MINOR) return 0;
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    for (size_t k = 0; k < c->images.n; k++) {
      const krait_image *image = KR_AT(c->images, krait_image, k);
      if (image->kind != KRAIT_IMAGE_CUBIN || image->sm / 10 != cc / 10 || image->sm > cc) continue;
      if (kr_tables_is_tegra(d->tables, image->sm) == tegra) return 0;
      n++;
    }
  }
  return n > 0;
}

static void judge_running(const doc *d, const doc_file *file) {
  judge_hollow(d, file);
  const char *keys[] = {"cc", nth_cc(d), "set", doc_print_set(d, file), NULL};
  if (runs_only_across_tegra(d, file)) doc_report(d, "K16", file, "", keys);
  if (file->verdict != KRAIT_VERDICT_JIT) return;
  doc_finding *f = doc_report(d, "K13", file, "", keys);
  if (f) f->hidden = doc_comes_with_torch(file->package);
  if (is_set(d->target.env_no_cache))
    doc_add_evidence(d, f, "CUDA_CACHE_DISABLE is set: it is compiled at every start");
  if (f && is_set(d->target.env_no_cache)) doc_add_text(d, &f->fixes, "unset CUDA_CACHE_DISABLE");
  if (is_set(d->target.env_disable_jit))
    doc_add_evidence(d, doc_report(d, "K19", file, "", keys), "it holds %s", doc_print_set(d, file));
  if (d->target.has_driver && !d->target.has_jit && !d->options.driver && !doc_exists(d, "/dev/dxg"))
    doc_report(d, "K12", file, "", keys);
}

/* A CUDA package without any kernel: its module links CUDA, none of its files holds GPU code, and it is known to have
 * kernels. */
static void judge_empty(const doc *d, const doc_file *file) {
  const doc_table_line *row = kr_tables_find(d->tables, "package", file->package);
  if (!row || !file->is_extension || file->has_fatbin) return;
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *other = KR_AT(d->evidence.files, doc_file, i);
    if (strcmp(other->package, file->package) == 0 && other->n_judged) return;
  }
  const char *skip = strcmp(file->package, "flash-attn") == 0  ? "FLASH_ATTENTION_SKIP_CUDA_BUILD"
                     : strcmp(file->package, "mamba-ssm") == 0     ? "MAMBA_SKIP_CUDA_BUILD"
                     : strcmp(file->package, "causal-conv1d") == 0 ? "CAUSAL_CONV1D_SKIP_CUDA_BUILD"
                                                                   : "";
  const char *keys[] = {"skip", skip, NULL};
  doc_report(d, "K17", file, "", keys);
}

/* An image whose label and content disagree loads, and then crashes. */
static void judge_labels(const doc *d, const doc_file *file) {
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    for (size_t k = 0; k < c->images.n; k++) {
      const krait_image *image = KR_AT(c->images, krait_image, k);
      if (image->kind != KRAIT_IMAGE_CUBIN || image->damaged || !image->sm || image->sm == image->label_sm) continue;
      doc_finding *f = doc_report(d, "R03", file, "", NULL);
      doc_add_evidence(d, f, "the image at offset %llu is labelled sm_%d and says sm_%d itself",
                   (unsigned long long)image->offset, image->label_sm, image->sm);
      return;
    }
  }
}

/* ---- together with a log ---- */
static int log_has(const doc *d, const char *id) {
  for (size_t i = 0; i < d->log.hits.n; i++)
    if (strcmp(KR_AT(d->log.hits, doc_hit, i)->rule->id, id) == 0) return 1;
  return 0;
}

static void report_covered(const doc *d, const doc_file *file) {
  int cc = doc_main_cc(d), best = 0;
  for (size_t i = 0; i < file->containers.n; i++) {
    const doc_container *c = KR_AT(file->containers, doc_container, i);
    for (size_t k = 0; k < c->images.n; k++) {
      const krait_image *image = KR_AT(c->images, krait_image, k);
      if (image->kind == KRAIT_IMAGE_CUBIN && !image->suffix && image->sm / 10 == cc / 10 && image->sm <= cc &&
          image->sm > best)
        best = image->sm;
    }
  }
  const char *keys[] = {"cc", nth_cc(d), "sm", best ? kr_arena_print(d->arena, "sm_%d", best) : "its PTX", NULL};
  doc_add_evidence(d, doc_report(d, "K04", file, "", keys), "it holds %s", doc_print_set(d, file));
}

static void blame(const doc *d) {
  const doc_file *torch = NULL;
  if (!log_has(d, "K01") && !log_has(d, "K04")) return;
  for (size_t i = 0; i < d->evidence.files.n; i++)
    if (is_torch_main(KR_AT(d->evidence.files, doc_file, i))) torch = KR_AT(d->evidence.files, doc_file, i);
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (!is_own_extension(file) || !file->n_judged) continue;
    const char *keys[] = {"ext", file->name, "cc", nth_cc(d), NULL};
    if (file->verdict <= KRAIT_VERDICT_JIT) report_covered(d, file);
    else if (torch && torch->verdict <= KRAIT_VERDICT_JIT && d->log.is_frame_torch)
      doc_add_evidence(d, doc_report(d, "K03", file, "", keys),
                   "the error surfaced in %s, in a call of torch, whose library has code for %s", d->log.last_frame,
                   nth_cc(d));
  }
}

static void judge_device(const doc *d) {
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (!file->n_judged) continue;
    if (file->verdict > KRAIT_VERDICT_JIT) judge_lost(d, file);
    else judge_running(d, file);
  }
  blame(d);
}

static int is_first_of_its_kind(const doc *d, size_t i) {
  const int cc = KR_AT(d->target.gpus, doc_gpu, i)->cc;
  for (size_t k = 0; k < i; k++)
    if (KR_AT(d->target.gpus, doc_gpu, k)->cc == cc) return 0;
  return cc != 0;
}

/* Each kind of device separately; afterwards every file has its worst verdict again. */
void doc_diagnose_images(doc *d) {
  int any = 0;
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    any |= file->n_judged;
    judge_labels(d, file);
    judge_empty(d, file);
  }
  if (any && is_set(d->target.env_force_jit)) doc_report(d, "K10", NULL, "", NULL);
  for (size_t i = 0; i < d->target.gpus.n; i++) {
    if (!is_first_of_its_kind(d, i)) continue;
    d->target.judged_cc = KR_AT(d->target.gpus, doc_gpu, i)->cc;
    doc_judge_for(d, d->target.judged_cc);
    judge_device(d);
  }
  d->target.judged_cc = 0;
  doc_judge_all(d);
}

/* A torch that was named but is not installed: its index says for which GPUs it was built. */
void doc_diagnose_named_torch(const doc *d) {
  const char *tag = strstr(d->target.torch, "+cu");
  const int cc = doc_main_cc(d);
  if (!tag || !cc || *d->target.torch_lib || d->found->n_pins || !d->target.torch_number) return;
  for (size_t i = 0; i < d->found->findings.n; i++)
    if (strcmp(KR_AT(d->found->findings, doc_finding, i)->rule->id, "K14") == 0) return;
  doc any_driver = *d;
  any_driver.target.driver_number = 0; /* D01 reports that */
  const int is_known = doc_torch_index(&any_driver, d->target.torch_number, 0, tag + 1) != NULL,
            has_code = doc_torch_index(&any_driver, d->target.torch_number, cc, tag + 1) != NULL;
  if (!is_known || has_code) return;
  doc_finding *f = doc_report(d, "K14", NULL, "torch", NULL);
  if (!f) return;
  f->from_log = d->log.given;
  f->is_named = 1;
  doc_add_evidence(d, f, "torch %s (from %s); wheels of %s for torch %s are built without %s", d->target.torch,
                   d->target.torch_source, tag + 1, kr_print_torch(d->arena, d->target.torch_number),
                   kr_print_cc(d->arena, cc));
}
