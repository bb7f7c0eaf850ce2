/* diagnose_symbols.c: S01 to S04: the C++ names, string ABI and Python that an extension was built for. */
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"

static const char *abi_name(int abi) {
  return abi == DOC_ABI_NEW ? "new" : abi == DOC_ABI_OLD ? "old" : "unknown";
}

static int concerns_strings(const char *name) { return strstr(name, "__cxx11") != NULL || strstr(name, "Ss") != NULL; }

static const char *print_range(const doc *d, int first, int last) {
  if (first && last && first == last) return kr_print_torch(d->arena, first);
  if (first && last)
    return kr_arena_print(d->arena, "%s to %s", kr_print_torch(d->arena, first), kr_print_torch(d->arena, last));
  if (first) return kr_arena_print(d->arena, ">= %s", kr_print_torch(d->arena, first));
  return last ? kr_arena_print(d->arena, "<= %s", kr_print_torch(d->arena, last)) : "another release";
}

static void report_isolation(const doc *d, const doc_file *file, int first) {
  const doc_package *p = doc_find_package(d, file->package);
  const doc_table_line *row = doc_package_row(d, file->package);
  const int has_source = row && strcmp(row->column[7], "none") != 0 && strcmp(row->column[7], "torch") != 0;
  if (!p || !p->built_here || (row && !has_source) || /* a publisher's wheel may be tagged linux_x86_64 inside */
       (first && d->target.torch_number && first <= d->target.torch_number)) return;
  const char *keys[] = {"torch", d->target.torch, NULL};
  doc_add_evidence(d, doc_report(d, "S03", file, file->package, keys),
               "%s %s was built on this machine, not downloaded as a wheel", p->name, p->version);
}

static void report_missing(const doc *d, const doc_file *file) {
  int first, last;
  size_t n_strings = 0, n = file->missing.n;
  for (size_t i = 0; i < n; i++) n_strings += (size_t)concerns_strings(DOC_TEXT(file->missing, i));
  int abi_differs = (file->abi == DOC_ABI_OLD || file->abi == DOC_ABI_NEW) &&
                    (d->target.torch_abi == DOC_ABI_OLD || d->target.torch_abi == DOC_ABI_NEW) &&
                    file->abi != d->target.torch_abi;
  if (abi_differs) {
    const char *keys[] = {"ext_abi",   abi_name(file->abi),
                          "torch_abi", abi_name(d->target.torch_abi),
                          "TRUE",      d->target.torch_abi == DOC_ABI_NEW ? "TRUE" : "FALSE",
                          NULL};
    doc_add_evidence(d, doc_report(d, "S02", file, "", keys), "%zu of its %zu missing names contain a std::string",
                 n_strings, n);
    if (n_strings == n) return;
  }
  doc_torch_range(d, &file->missing, &first, &last);
  int n_unknown, floor = file->uses_torch_cxx ? 0 : doc_stable_floor(d, &file->undefined, &n_unknown);
  if (floor > first) first = floor; /* the lowest torch that has all its names, not only the ones missing here */
  const char *symbol = DOC_TEXT(file->missing, 0);
  const char *keys[] = {"range",  print_range(d, first, last),
                        "torch",  d->target.torch,
                        "n",      kr_arena_print(d->arena, "%zu name%s", n, n > 1 ? "s" : ""),
                        "symbol", doc_function_name(d, symbol),
                        NULL};
  doc_finding *f = doc_report(d, "S01", file, "", keys);
  doc_add_evidence(d, f, "undefined in the file, exported by no library in %s: %s", d->target.torch_lib, symbol);
  const char *near = doc_near_match(d, symbol);
  if (*near) doc_add_evidence(d, f, "this torch has %s instead", doc_demangle(d, near));
  report_isolation(d, file, first);
}

/* A file that uses torch's C interface but none of its C++ names runs on every torch from some release on. */
static void note_stable(const doc *d, const doc_file *file) {
  int n_unknown, floor = doc_stable_floor(d, &file->undefined, &n_unknown);
  if (file->uses_torch_cxx || !file->undefined.n || (!floor && !n_unknown)) return;
  doc_add_text(
      d, &d->found->notes,
      kr_arena_print(d->arena, "%s  uses torch's stable C interface only: torch %s%s", file->name,
                     floor ? kr_arena_print(d->arena, ">= %s", kr_print_torch(d->arena, floor)) : "of any release",
                     n_unknown ? kr_arena_print(d->arena, ", and %d name%s newer than these tables", n_unknown,
                                                n_unknown > 1 ? "s" : "")
                               : ""));
}

/* --torch without an installed torch: only the table of symbols can tell. */
static void compare_with_table(const doc *d, const doc_file *file) {
  int first, last, torch = d->target.torch_number;
  if (!torch || !file->undefined.n || *d->target.torch_lib) return;
  doc_torch_range(d, &file->undefined, &first, &last);
  if ((!first || torch >= first) && (!last || torch <= last)) return;
  const char *keys[] = {"range",  print_range(d, first, last), "torch", d->target.torch, "n", "a name",
                        "symbol", "one of the table's names",  NULL};
  doc_finding *f = doc_report(d, "S01", file, "", keys);
  if (f) f->confidence = 'H';
  for (size_t i = 0; i < file->undefined.n && f; i++) {
    kr_list one = {.at = KR_AT(file->undefined, const char *, i), .n = 1, .item_bytes = sizeof(const char *)};
    doc_torch_range(d, &one, &first, &last);
    if ((first && torch < first) || (last && torch > last))
      doc_add_evidence(d, f, "%s: torch %s", DOC_TEXT(file->undefined, i), print_range(d, first, last));
  }
}

/* ---- Python ---- */
static int python_of_name(const char *name) {
  const char *at = strstr(name, ".cpython-3");
  return at && !strstr(name, ".abi3.") ? 300 + atoi(at + 10) : 0;
}

static const char *print_python(const doc *d, int python) {
  return kr_arena_print(d->arena, "%d.%d", python / 100, python % 100);
}

static const char *module_key(const doc *d, const doc_file *file, int python) {
  return kr_arena_print(d->arena, "%.*s\1%d", (int)((size_t)(file->name - file->path) + strcspn(file->name, ".")),
                        file->path, python);
}

/* A second module for another Python next to the right one is fine. */
static int has_right_module(const doc *d, const kr_names *modules, const doc_file *file) {
  return kr_names_find(modules, module_key(d, file, d->target.python)) != NULL;
}

static void check_python(const doc *d, const kr_names *modules, const doc_file *file) {
  int built = python_of_name(file->name);
  if (!built || !d->target.python || built == d->target.python || file->in_wheel ||
      (!file->is_cuda && !file->is_extension) || has_right_module(d, modules, file))
    return;
  const char *keys[] = {"built", print_python(d, built), "python", print_python(d, d->target.python), NULL};
  doc_add_evidence(d, doc_report(d, "S04", file, "", keys),
                   "the name says cpython-%d, the environment is Python %s (%s)", built,
                   print_python(d, d->target.python), d->target.python_source);
}

void doc_diagnose_symbols(const doc *d) {
  kr_names modules = {0};
  for (size_t i = 0; i < d->evidence.files.n; i++)
    if (python_of_name(KR_AT(d->evidence.files, doc_file, i)->name))
      kr_names_put(d->arena, &modules,
                   module_key(d, KR_AT(d->evidence.files, doc_file, i),
                              python_of_name(KR_AT(d->evidence.files, doc_file, i)->name)));
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (file->is_unused) continue;
    if (file->missing.n) report_missing(d, file);
    else note_stable(d, file);
    compare_with_table(d, file);
    check_python(d, &modules, file);
  }
}
