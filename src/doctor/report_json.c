/* report_json.c: the JSON report, as specified by docs/doctor.schema.json: keys in a fixed order and no times, so that
 * reports can be compared. */
#include <jansson.h>
#include <string.h>

#include "alloc.h"
#include "doc.h"
#include "json_text.h"
#include "report.h"

static json_t *text_json(const doc *d, const char *text) {
  return text && *text ? json_string(doc_printable(d, text)) : json_null();
}

static json_t *texts_json(const doc *d, const kr_list *list) {
  json_t *array = json_array();
  for (size_t i = 0; i < list->n; i++) json_array_append_new(array, json_string(doc_printable(d, DOC_TEXT(*list, i))));
  return array;
}


static json_t *target_json(const doc *d) {
  json_t *gpus = json_array();
  for (size_t i = 0; i < d->target.gpus.n; i++) {
    const doc_gpu *gpu = KR_AT(d->target.gpus, doc_gpu, i);
    json_array_append_new(
        gpus, json_pack("{s:o, s:o, s:s, s:o}", "name", text_json(d, gpu->name), "cc",
                        text_json(d, gpu->cc ? kr_print_cc(d->arena, gpu->cc) : ""), "source", gpu->source, "tier",
                        text_json(d, doc_tier_name(d, gpu->cc))));
  }
  json_t *driver =
      json_pack("{s:o, s:o, s:o}", "version", text_json(d, d->target.driver), "cuda",
                text_json(d, d->target.driver_cuda ? kr_arena_print(d->arena, "%d.%d", d->target.driver_cuda / 1000,
                                                                    d->target.driver_cuda / 10 % 100)
                                                   : ""),
                "source", text_json(d, d->target.driver_source));
  json_t *torch = json_pack("{s:o, s:o, s:o}", "version", text_json(d, d->target.torch), "cuda",
                            text_json(d, d->target.torch_cuda), "cxx11abi",
                            d->target.torch_abi == DOC_ABI_NEW   ? json_true()
                            : d->target.torch_abi == DOC_ABI_OLD ? json_false()
                                                                 : json_null());
  return json_pack(
      "{s:o, s:o, s:o, s:o, s:o}", "gpus", gpus, "driver", driver, "torch", torch, "python",
      text_json(
          d, d->target.python ? kr_arena_print(d->arena, "%d.%d", d->target.python / 100, d->target.python % 100) : ""),
      "glibc",
      text_json(
          d, d->target.glibc ? kr_arena_print(d->arena, "%d.%d", d->target.glibc / 100, d->target.glibc % 100) : ""));
}

static json_t *image_json(const doc *d, const krait_image *image) {
  static const char *const packs[] = {"none", "old", "lz4", "zstd"};
  const char *kind = image->kind == KRAIT_IMAGE_PTX     ? "ptx"
                     : image->kind == KRAIT_IMAGE_CUBIN ? "cubin"
                     : image->kind == KRAIT_IMAGE_LTO   ? "lto"
                                                        : "other";
  const char *suffix = image->suffix == 'a' ? "a" : image->suffix == 'f' ? "f" : "";
  return json_pack("{s:s, s:i, s:s, s:o, s:s, s:o, s:I, s:I}", "kind", kind, "sm", image->sm, "suffix", suffix, "ptx",
                   text_json(d, image->ptx ? kr_print_tenths(d->arena, image->ptx) : ""), "compression",
                   packs[image->compression], "toolkit",
                   text_json(d, image->toolkit ? kr_print_tenths(d->arena, image->toolkit) : ""), "offset",
                   (json_int_t)image->offset, "size", (json_int_t)image->payload_bytes);
}

static json_t *container_json(const doc *d, const doc_container *c, int is_judged) {
  json_t *images = json_array();
  for (size_t i = 0; i < c->images.n; i++)
    json_array_append_new(images, image_json(d, KR_AT(c->images, krait_image, i)));
  return json_pack("{s:o, s:I, s:o, s:o, s:o}", "section", text_json(d, c->section), "offset", (json_int_t)c->offset,
                   "verdict", is_judged ? json_string(krait_verdict_name(c->verdict)) : json_null(), "kernels",
                   c->n_kernels < 0 ? json_null() : json_integer(c->n_kernels), "images", images);
}

static json_t *versions_json(const doc *d, const doc_file *file) {
  json_t *object = json_object();
  static const char *const prefixes[] = {"GLIBC_", "GLIBCXX_", "CXXABI_", "GCC_"};
  for (int k = 0; k < 4; k++) {
    const char *best = "";
    size_t n = strlen(prefixes[k]);
    for (size_t i = 0; i < file->versions.n; i++) {
      const char *version = KR_AT(file->versions, doc_version, i)->version;
      if (strncmp(version, prefixes[k], n) == 0 && kr_compare_versions(version + n, best) > 0) best = version + n;
    }
    if (*best)
      json_object_set_new(object, kr_arena_copy(d->arena, prefixes[k], n - 1), json_string(doc_printable(d, best)));
  }
  int n_unknown, floor = file->uses_torch_cxx ? 0 : doc_stable_floor(d, &file->undefined, &n_unknown);
  if (floor) json_object_set_new(object, "TORCH", json_string(kr_print_torch(d->arena, floor)));
  return object;
}

static json_t *file_json(const doc *d, const doc_file *file) {
  static const char *const kinds[] = {"other", "elf", "fatbin", "cubin", "ptx", "archive", "wheel"};
  json_t *containers = json_array();
  int is_judged = doc_main_cc(d) != 0;
  for (size_t i = 0; i < file->containers.n; i++)
    json_array_append_new(containers, container_json(d, KR_AT(file->containers, doc_container, i), is_judged));
  return json_pack(
      "{s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "path", text_json(d, file->path), "sha256",
      text_json(d, file->sha256), "kind", kinds[file->kind], "containers", containers, "needed",
      texts_json(d, &file->needed), "missing_symbols", texts_json(d, &file->missing), "versions",
      versions_json(d, file), "verdict",
      is_judged && file->n_judged
          ? json_string(file->n_lost && file->n_lost < file->n_judged ? "partial" : krait_verdict_name(file->verdict))
          : json_null());
}

static json_t *fixes_json(const doc *d, const kr_list *fixes) {
  json_t *array = json_array();
  for (size_t i = 0; i < fixes->n; i++)
    json_array_append_new(array, json_string(doc_printable(d, doc_addressed(d, DOC_TEXT(*fixes, i)))));
  return array;
}

static json_t *finding_json(const doc *d, const doc_finding *f) {
  static const char *const severities[] = {"error", "warn", "info"};
  const char confidence[2] = {f->confidence, 0};
  return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "id", f->rule->id, "severity",
                   severities[f->severity], "confidence", confidence, "package", text_json(d, f->package),
                   "package_version", text_json(d, f->version), "file", text_json(d, f->file), "offset",
                   f->offset >= 0 ? json_integer(f->offset) : json_null(), "evidence", texts_json(d, &f->evidence),
                   "explain", text_json(d, f->says), "fix", fixes_json(d, &f->fixes), "source",
                   text_json(d, f->rule->source));
}

/* Files without GPU code and without torch's names are left out without --all. */
static int is_shown(const doc *d, const doc_file *file) {
  return d->options.all || file->is_cuda || file->is_extension || file->kind != KRAIT_FILE_ELF ||
         !d->evidence.is_environment;
}

const char *krait_report_json(krait_report *d, int32_t strict) {
  if (!d) return "";
  json_t *files = json_array(), *findings = json_array();
  for (size_t i = 0; i < d->evidence.files.n; i++)
    if (is_shown(d, KR_AT(d->evidence.files, doc_file, i)))
      json_array_append_new(files, file_json(d, KR_AT(d->evidence.files, doc_file, i)));
  for (size_t i = 0; i < d->found->findings.n; i++)
    if (doc_is_shown(d, KR_AT(d->found->findings, doc_finding, i)))
      json_array_append_new(findings, finding_json(d, KR_AT(d->found->findings, doc_finding, i)));
  json_t *root = json_pack("{s:i, s:{s:s, s:s}, s:o, s:o, s:o, s:o, s:o, s:i}", "schema", 1, "tool", "version",
                           krait_version(), "tables_date", krait_tables_date(d->tables), "target", target_json(d),
                           "files", files, "findings", findings, "unreadable", texts_json(d, &d->found->unreadable),
                           "unjudged", texts_json(d, &d->found->unjudged), "exit", krait_report_exit(d, strict));
  char *text = root ? kr_json_dump(root, JSON_INDENT(1)) : NULL;
  const char *copy = text ? kr_arena_copy(d->arena, text, strlen(text)) : "";
  kr_free(text);
  json_decref(root);
  return copy;
}
