/* diagnose_driver.c: D01 to D09 and the toolkit's B01, B02, B06: driver, device nodes, environment, nvcc. */
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"

static int wants_gpu(const doc *d) {
  for (size_t i = 0; i < d->evidence.files.n; i++)
    if (KR_AT(d->evidence.files, doc_file, i)->is_cuda) return 1;
  return *d->target.torch_cuda != '\0';
}

/* The oldest driver for the GPU itself; 0: unknown. */
static int floor_of(const doc *d) {
  const doc_table_line *row = kr_tables_find(d->tables, "floor", kr_arena_print(d->arena, "%d", doc_main_cc(d)));
  return row ? atoi(row->column[1]) * 1000000 : 0;
}

static void check_gate(const doc *d, int major, const char *who) {
  int gate = kr_tables_gate(d->tables, major), floor = floor_of(d);
  if (!gate || !d->target.driver_number || d->target.driver_number >= gate) return;
  if (gate > d->found->driver_needed) d->found->driver_needed = gate;
  const char *older = d->target.driver_number >= kr_tables_gate(d->tables, 12) ? "cu126" : "cu118";
  const char *need = floor > gate ? kr_arena_print(d->arena, "R%d", floor / 1000000) : kr_print_driver(d->arena, gate);
  const char *keys[] = {"driver", d->target.driver, "need", need, "cuda", kr_arena_print(d->arena, "CUDA %d", major),
                        "older",  older,     NULL};
  doc_add_evidence(d, doc_report(d, "D01", NULL, "", keys), "%s is built with CUDA %d; driver %s is from %s", who,
                   major, d->target.driver, d->target.driver_source);
}

static void check_runtimes(const doc *d) {
  int seen[64] = {0};
  if (*d->target.torch_cuda) {
    int major = kr_parse_tenths(d->target.torch_cuda) / 10;
    check_gate(d, major, "torch");
    if (major < 64) seen[major] = 1;
  }
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (file->is_unused) continue; /* a variant for another CUDA is not loaded */
    for (size_t k = 0; k < file->needed.n; k++) {
      const char *name = DOC_TEXT(file->needed, k);
      int major = strncmp(name, "libcudart.so.", 13) == 0 ? atoi(name + 13) : 0;
      if (major <= 0 || major >= 64 || seen[major]++) continue;
      check_gate(d, major, file->name);
    }
  }
}

static void check_split(const doc *d) {
  if (!*d->target.kernel_driver || !*d->target.user_driver || d->options.driver) return;
  if (kr_parse_driver(d->target.kernel_driver) == kr_parse_driver(d->target.user_driver)) return;
  const char *keys[] = {"kernel", d->target.kernel_driver, "user", d->target.user_driver, NULL};
  doc_add_evidence(d, doc_report(d, "D03", NULL, "", keys), "kernel module %s, libcuda.so.%s", d->target.kernel_driver,
               d->target.user_driver);
}

static void check_environment(const doc *d) {
  const char *compat = strstr(d->target.env_library_path, "compat");
  if (compat && (compat == d->target.env_library_path || compat[-1] == '/')) {
    const char *keys[] = {"where", d->target.env_library_path, NULL};
    doc_report(d, "D04", NULL, "", keys);
  }
  if (d->target.env_visible && (!*d->target.env_visible || strcmp(d->target.env_visible, "-1") == 0))
    doc_add_evidence(
        d,
        doc_report(d, "D08", NULL, "",
                   (const char *[]){"visible", *d->target.env_visible ? d->target.env_visible : "\"\"", NULL}),
        "CUDA_VISIBLE_DEVICES=\"%s\"", d->target.env_visible);
}

static void check_machine_driver(const doc *d) {
  if (d->options.driver || d->options.gpu || d->options.torch || !d->evidence.is_environment) return;
  if (!d->target.has_driver && wants_gpu(d)) {
    const char *keys[] = {"n_pci", kr_arena_print(d->arena, "%d", d->target.n_pci), "driver_install",
                          "to judge for another machine's GPU: krait doctor {environment} --gpu \"RTX 5090\"", NULL};
    doc_add_evidence(d, doc_report(d, "D02", NULL, "", d->target.n_pci && !d->target.gpus.n ? keys : NULL),
                 "no /proc/driver/nvidia, no libcuda.so.1, no /dev/dxg");
    return;
  }
  check_split(d);
  if (d->target.has_nvidia_node && !d->target.has_uvm_node) doc_report(d, "D09", NULL, "", NULL);
}

static void check_floor(const doc *d) {
  int floor = floor_of(d);
  if (!floor || !d->target.driver_number || d->target.driver_number >= floor) return;
  for (size_t i = 0; i < d->found->findings.n; i++)
    if (strcmp(KR_AT(d->found->findings, doc_finding, i)->rule->id, "D01") == 0) return;
  const char *keys[] = {"driver", d->target.driver,
                        "need",   kr_arena_print(d->arena, "R%d", floor / 1000000),
                        "cuda",   kr_arena_print(d->arena, "support for %s", kr_print_cc(d->arena, doc_main_cc(d))),
                        NULL};
  doc_finding *f = doc_report(d, "D01", NULL, "", keys);
  if (f) f->confidence = 'M', f->severity = KR_WARN;
}

/* An old toolkit matters only when something must be compiled. */
static void check_nvcc(const doc *d) {
  int cc = doc_main_cc(d), have = kr_parse_tenths(d->target.nvcc), build = 0;
  for (size_t i = 0; i < d->found->findings.n; i++) {
    const doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    build |= f->severity == KR_ERROR && (f->rule->stage == KR_STAGE_IMAGE || f->rule->stage == KR_STAGE_SYMBOL) &&
             !doc_comes_with_torch(f->package);
  }
  if (!cc || !have || !build || d->log.given) return;
  int need = kr_tables_first_cuda_for(d->tables, kr_arena_print(d->arena, "%d", cc));
  const char *number = kr_print_tenths(d->arena, need);
  const char *keys[] = {"nvcc", d->target.nvcc, "arch",      kr_print_cc(d->arena, cc),
                        "need", number,  "need_dash", kr_arena_print(d->arena, "%d-%d", need / 10, need % 10),
                        NULL};
  if (need && have < need) doc_add_evidence(d, doc_report(d, "B01", NULL, "", keys), "%s", d->target.nvcc_path);
  if (cc < 75 && have >= 130) doc_add_evidence(d, doc_report(d, "B02", NULL, "", keys), "%s", d->target.nvcc_path);
  int torch = kr_parse_tenths(d->target.torch_cuda);
  const char *majors[] = {"nvcc", d->target.nvcc, "cuda", d->target.torch_cuda, NULL};
  if (torch && torch / 10 != have / 10)
    doc_add_evidence(d, doc_report(d, "B06", NULL, "", majors), "%s; torch %s", d->target.nvcc_path, d->target.torch);
}

/* --torch 2.8.0+cpu, and a file that needs torch's CUDA libraries. */
static void report_cpu_option(const doc *d) {
  if (!d->options.torch || !strstr(d->options.torch, "+cpu")) return;
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (!file->is_cuda || !file->is_extension) continue;
    doc_add_evidence(d, doc_report(d, "D07", NULL, "torch", NULL), "%s needs libraries that only a torch with CUDA has",
                 file->name);
    return;
  }
}

void doc_diagnose_driver(const doc *d) {
  check_runtimes(d);
  if (d->evidence.is_environment || d->options.driver) check_floor(d);
  if (d->evidence.is_environment) check_environment(d);
  check_machine_driver(d);
  if (d->evidence.is_environment && *d->target.torch_lib && d->target.torch_is_cpu &&
      !strstr(d->target.torch, "rocm")) {
    const char *keys[] = {"index", doc_index_for(d, doc_main_cc(d)), NULL};
    doc_finding *f = doc_report(d, "D07", NULL, "torch", keys);
    doc_add_evidence(d, f, "%s has no libtorch_cuda.so", d->target.torch_lib);
    if (f && !d->target.gpus.n) f->severity = KR_WARN; /* without a known GPU, this may be intended */
  }
  report_cpu_option(d);
  check_nvcc(d);
}
