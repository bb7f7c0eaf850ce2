/* diagnose_libraries.c: L01 to L05, S05, S06: the libraries that a file needs, and those that it would get. */
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"

static int is_torch_library(const char *name) {
  return strncmp(name, "libc10", 6) == 0 || strncmp(name, "libtorch", 8) == 0 || strncmp(name, "libshm", 6) == 0;
}

static int is_base_library(const char *name) {
  static const char *const names[] = {"libc.so.", "libm.so.", "libdl.so.", "libpthread.so.", "librt.so.", "libgcc_s.so.", "libstdc++.so.", "ld-linux",
                                      "libutil.so.", "libcuda.so.", "libgomp.so.", "libpython", "libnvidia-ml.so."};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strncmp(name, names[i], strlen(names[i])) == 0) return 1;
  return 0;
}

/* In the folder where its package puts it: torch preloads these. */
static int is_in_site(doc *d, const kr_row *soname) {
  for (size_t i = 0; i < d->sites.n; i++)
    for (size_t k = 0; k < d->files.n; k++) {
      const doc_file *file = KR_AT(d->files, doc_file, k);
      if (strcmp(file->name, soname->column[0]) == 0 && strncmp(file->path, DOC_TEXT(d->sites, i), strlen(DOC_TEXT(d->sites, i))) == 0) return 1;
    }
  return 0;
}

static int torch_brings(doc *d, const char *name) {
  for (size_t i = 0; i < d->files.n; i++) {
    const doc_file *file = KR_AT(d->files, doc_file, i);
    if (strcmp(file->name, name) == 0 || strcmp(file->soname, name) == 0) return 1;
  }
  return 0;
}

static void check_needed(doc *d, const doc_file *file) {
  int n_torch = 0, n_other = 0;
  for (size_t i = 0; i < file->needed.n; i++) {
    const char *name = DOC_TEXT(file->needed, i);
    if (is_base_library(name) || *doc_find_library(d, file, name)) continue;
    if (is_torch_library(name)) {
      n_torch++;
      continue;
    }
    const kr_row *row = kr_tables_find(d->tables, "soname", name);
    if (torch_brings(d, name) || (row && is_in_site(d, row))) continue;
    if (!row && !file->is_cuda) continue;
    n_other++;
    const char *n = row && *row->column[1] != '0' ? row->column[1] : "unknown";
    const char *keys[] = {"lib", name, "n", n, "package", row ? row->column[2] : name, NULL};
    doc_evidence(d, doc_report(d, "L01", file, "", keys), "NEEDED %s: not found by RUNPATH, LD_LIBRARY_PATH, the system's folders or beside torch", name);
  }
  doc_finding *f = n_torch && !n_other && file->is_extension && *d->torch_lib ? doc_report(d, "L02", file, "", NULL) : NULL;
  if (f) f->hidden = !d->log.given; /* true of every extension: news only to somebody with an error */
}

static const char *newest_needed(doc *d, const doc_file *file, const char *prefix) {
  const char *best = "";
  size_t n = strlen(prefix);
  (void)d;
  for (size_t i = 0; i < file->versions.n; i++) {
    const char *version = KR_AT(file->versions, doc_version, i)->version;
    if (strncmp(version, prefix, n) == 0 && isdigit((unsigned char)version[n]) && kr_compare_versions(version + n, best) > 0) best = version + n;
  }
  return best;
}

static void check_versions(doc *d, const doc_file *file) {
  const char *libc = newest_needed(d, file, "GLIBC_"), *cxx = newest_needed(d, file, "GLIBCXX_");
  const char *have = kr_arena_print(d->arena, "%d.%d", d->glibc / 100, d->glibc % 100);
  if (d->glibc && *libc && kr_compare_versions(libc, have) > 0) {
    const char *keys[] = {"need", libc, "have", have, NULL};
    doc_evidence(d, doc_report(d, "L03", file, "", keys), ".gnu.version_r asks for GLIBC_%s", libc);
  }
  if (*d->libstdcxx && *cxx && kr_compare_versions(cxx, d->libstdcxx) > 0) {
    const char *keys[] = {"need", kr_arena_print(d->arena, "GLIBCXX_%s", cxx), "have", d->libstdcxx, NULL};
    doc_evidence(d, doc_report(d, "L04", file, "", keys), ".gnu.version_r asks for GLIBCXX_%s", cxx);
  }
}

static const char *machine_name(doc *d, int machine) {
  return machine == KR_ELF_X86_64 ? "x86_64" : machine == KR_ELF_AARCH64 ? "aarch64" : kr_arena_print(d->arena, "ELF machine %d", machine);
}

static int check_machine(doc *d, const doc_file *file) {
  if (file->kind != KRAIT_FILE_ELF || !d->machine || (file->machine == d->machine && file->bits == 64)) return 0;
  const char *built = file->bits == 64 ? machine_name(d, file->machine) : kr_arena_print(d->arena, "%s, 32-bit", machine_name(d, file->machine));
  const char *keys[] = {"built", built, "machine", machine_name(d, d->machine), NULL};
  doc_report(d, "L05", file, "", keys);
  return 1;
}

/* ---- S05: LD_LIBRARY_PATH ---- */
static int is_shadowing(const char *name) {
  static const char *const names[] = {"libtorch", "libc10", "libcudart.so", "libnvJitLink.so", "libcublas", "libcudnn.so", "libnccl.so"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strncmp(name, names[i], strlen(names[i])) == 0) return 1;
  return 0;
}

static void check_library_path(doc *d) {
  for (const char *p = d->env_library_path; *p;) {
    size_t n = strcspn(p, ":");
    const char *folder = kr_arena_copy(d->arena, p, n);
    DIR *dir = n && (!*d->torch_lib || strcmp(folder, d->torch_lib) != 0) ? opendir(folder) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
      if (!is_shadowing(entry->d_name) || !torch_brings(d, entry->d_name)) continue;
      const char *keys[] = {"lib", entry->d_name, "where", folder, NULL};
      doc_report(d, "S05", NULL, "", keys);
    }
    if (dir) closedir(dir);
    if (n == 0) doc_add_text(d, &d->notes, "LD_LIBRARY_PATH has an empty element: the current directory is searched");
    p += n + (p[n] == ':');
  }
}

/* ---- S06: what torch's metadata asks for ---- */
static void check_requirement(doc *d, const char *line) {
  static const char *const names[] = {"nvidia-nccl", "nvidia-cudnn"};
  for (int i = 0; i < 2; i++) {
    if (strncmp(line, names[i], strlen(names[i])) != 0) continue;
    size_t n = strcspn(line, " =;(<>!~");
    const char *name = doc_normalise(d, line, n), *equals = strstr(line, "==");
    const char *want = equals ? kr_arena_copy(d->arena, equals + 2, strspn(equals + 2, "0123456789.")) : "";
    const doc_package *p = doc_find_package(d, name);
    if (!p || !*want || kr_compare_versions(p->version, want) >= 0) continue;
    const char *keys[] = {"lib", name, "have", p->version, "want", want, NULL};
    doc_evidence(d, doc_report(d, "S06", NULL, name, keys), "torch's METADATA: Requires-Dist: %s", line);
  }
}

void doc_diagnose_libraries(doc *d) {
  const doc_package *torch = doc_find_package(d, "torch");
  for (size_t i = 0; i < d->files.n; i++) {
    const doc_file *file = KR_AT(d->files, doc_file, i);
    if (!file->is_cuda && !file->is_extension) continue;
    if (check_machine(d, file)) continue;
    check_versions(d, file);
    if (d->is_environment && !file->in_wheel && !file->is_torch) check_needed(d, file);
  }
  if (!d->options.root && d->is_environment) check_library_path(d);
  for (size_t i = 0; torch && i < torch->requires.n; i++) check_requirement(d, DOC_TEXT(torch->requires, i));
}
