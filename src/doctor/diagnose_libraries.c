/* diagnose_libraries.c: L01 to L05, L07, S05 to S07: the libraries that a file needs, and those that would be
 * loaded. */
#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"

static int is_torch_library(const char *name) { return doc_is_torch_library(name) || strncmp(name, "libshm", 6) == 0; }

static int is_base_library(const char *name) {
  static const char *const names[] = {
      "libc.so.", "libm.so.",    "libdl.so.",   "libpthread.so.", "librt.so.", "libgcc_s.so.",    "libstdc++.so.",
      "ld-linux", "libutil.so.", "libcuda.so.", "libgomp.so.",    "libpython", "libnvidia-ml.so."};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strncmp(name, names[i], strlen(names[i])) == 0) return 1;
  return 0;
}

static int is_below(const char *path, const char *folder, const char *rest) {
  size_t n = strlen(folder), m = strlen(rest);
  return n && strncmp(path, folder, n) == 0 && strncmp(path + n, rest, m) == 0;
}

/* The library of this name that `import torch` loads: from its own folder or from the nvidia packages. A loaded name
 * takes precedence over every path. */
static const doc_file *loaded_with_torch(const doc *d, const char *name) {
  const size_t *at = kr_names_find(&d->lookups->loaded, name);
  return at && *at ? KR_AT(d->evidence.files, doc_file, *at - 1) : NULL;
}

static void index_loaded(const doc *d) {
  for (size_t i = d->evidence.files.n; i-- > 0;) { /* the first of a name is kept */
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    int is_loaded = is_below(file->path, d->target.torch_lib, "/");
    for (size_t k = 0; k < d->evidence.sites.n; k++)
      is_loaded |= is_below(file->path, DOC_TEXT(d->evidence.sites, k), "/nvidia/");
    if (file->in_wheel || !is_loaded) continue;
    *kr_names_put(d->arena, &d->lookups->loaded, file->name) = i + 1;
    if (*file->soname) *kr_names_put(d->arena, &d->lookups->loaded, file->soname) = i + 1;
  }
}

/* There, but where the loader does not look. */
static void add_nearby(const doc *d, doc_finding *f, const char *name) {
  static const char *const folders[] = {"/usr/local/cuda/lib64", "/opt/cuda/lib64", "/usr/local/lib"};
  for (size_t i = 0; f && i < sizeof folders / sizeof *folders; i++) {
    if (!doc_exists(d, kr_arena_print(d->arena, "%s/%s", folders[i], name))) continue;
    doc_add_evidence(d, f, "there is one in %s, where the loader does not look", folders[i]);
    doc_add_text(d, &f->fixes, kr_arena_print(d->arena, "or: export LD_LIBRARY_PATH=%s", folders[i]));
    return;
  }
}

const char *doc_major_of(const doc *d, const doc_table_line *soname) {
  return soname && *soname->column[1] != '0' ? kr_arena_print(d->arena, " (CUDA %s)", soname->column[1]) : "";
}

/* A companion of a torch with CUDA beside one without: a very common pair. */
static int report_cpu_pair(const doc *d, const doc_file *file, const char *name) {
  if (!d->target.torch_is_cpu || strstr(d->target.torch, "rocm") ||
      (strncmp(name, "libc10_cuda", 11) != 0 && strncmp(name, "libtorch_cuda", 13) != 0))
    return 0;
  const char *version = doc_companion_column(file->package) ? doc_command(d, "companion", file->package, "", "") : "",
             *for_cpu = *version ? kr_arena_print(d->arena,
                                                  "pip install --no-deps --force-reinstall %s==%s --index-url "
                                                  "https://download.pytorch.org/whl/cpu",
                                                  file->package, version)
                                 : "";
  const int is_first = !d->target.gpus.n; /* without a GPU, the torch for the CPU is meant */
  const char *keys[] = {"lost", name, is_first ? "cpu_first" : "cpu_companion",
                        is_first || !*for_cpu ? for_cpu : kr_arena_print(d->arena, "or, for the CPU: %s", for_cpu),
                        NULL};
  doc_finding *f = doc_report(d, "P10", file, file->package, keys);
  doc_add_evidence(d, f, "NEEDED %s, which only a torch with CUDA has; torch is %s", name, d->target.torch);
  return 1;
}

/* --torch names the CUDA that a wheel's libraries will meet. */
static void check_wheel_cuda(const doc *d, const doc_file *file) {
  const int of_torch = kr_parse_tenths(d->target.torch_cuda) / 10;
  for (size_t i = 0; i < file->needed.n && of_torch && d->options.torch; i++) {
    const char *name = DOC_TEXT(file->needed, i);
    const doc_table_line *row = kr_tables_find(d->tables, "soname", name);
    int is_inside = 0;
    for (size_t k = 0; k < d->evidence.files.n && !is_inside; k++)
      is_inside = KR_AT(d->evidence.files, doc_file, k)->in_wheel &&
                  strcmp(KR_AT(d->evidence.files, doc_file, k)->name, name) == 0;
    if (!row || !atoi(row->column[1]) || atoi(row->column[1]) == of_torch || is_inside) continue;
    const char *keys[] = {
        "lib", name, "of", doc_major_of(d, row), "library_install", doc_install_library(d, name, file->package), NULL};
    doc_finding *f = doc_report(d, "L01", file, "", keys);
    doc_add_evidence(d, f, "NEEDED %s; torch %s brings the libraries of CUDA %d", name, d->target.torch, of_torch);
    if (f) f->confidence = 'H';
    return;
  }
}

static void check_needed(const doc *d, const doc_file *file) {
  int n_torch = 0, n_other = 0;
  for (size_t i = 0; i < file->needed.n; i++) {
    const char *name = DOC_TEXT(file->needed, i);
    if (is_base_library(name) || *doc_find_library(d, file, name)) continue;
    if (is_torch_library(name)) {
      if (report_cpu_pair(d, file, name)) return;
      n_torch++;
      continue;
    }
    const doc_table_line *row = kr_tables_find(d->tables, "soname", name);
    if (loaded_with_torch(d, name)) continue;
    if (!row && !file->is_cuda) continue;
    n_other++;
    const char *keys[] = {
        "lib", name, "of", doc_major_of(d, row), "library_install", doc_install_library(d, name, file->package), NULL};
    doc_finding *f = doc_report(d, "L01", file, "", keys);
    doc_add_evidence(
        d, f,
        "NEEDED %s: not found by RPATH, LD_LIBRARY_PATH, RUNPATH, ld.so.cache, in the system's folders or beside torch",
        name);
    add_nearby(d, f, name);
    const doc_table_line *optional = doc_optional_row(d, file);
    if (f && optional && !*optional->column[2])
      f->severity = KR_INFO, f->hidden = 1,
      doc_add_evidence(d, f, "not an error: %s works without it", optional->column[3]);
  }
  doc_finding *f =
      n_torch && !n_other && file->is_extension && *d->target.torch_lib ? doc_report(d, "L02", file, "", NULL) : NULL;
  if (f) f->hidden = !d->log.given; /* true of every extension: worth saying only if there is an error */
}

static const char *newest_needed(const doc *d, const doc_file *file, const char *prefix) {
  const char *best = "";
  size_t n = strlen(prefix);
  (void)d;
  for (size_t i = 0; i < file->versions.n; i++) {
    const char *version = KR_AT(file->versions, doc_version, i)->version;
    if (strncmp(version, prefix, n) == 0 && isdigit((unsigned char)version[n]) &&
        kr_compare_versions(version + n, best) > 0)
      best = version + n;
  }
  return best;
}

static void add_provided(void *user, const char *file, const char *version) {
  const doc *d = *(const doc *const *)user;
  (void)file;
  doc_add_text(d, &KR_AT(d->lookups->provided, doc_provided, d->lookups->provided.n - 1)->versions,
               kr_arena_copy(d->arena, version, strlen(version)));
}

/* The versions that a library defines; each library is read once. */
static const kr_list *versions_of(const doc *d, const char *path) {
  krait_scan *scan;
  for (size_t i = 0; i < d->lookups->provided.n; i++)
    if (strcmp(KR_AT(d->lookups->provided, doc_provided, i)->path, path) == 0)
      return &KR_AT(d->lookups->provided, doc_provided, i)->versions;
  doc_provided *kept = kr_list_push(d->arena, &d->lookups->provided);
  *kept = (doc_provided){.path = path, .versions = KR_LIST(const char *)};
  if (krait_scan_open(path, &scan) == KRAIT_OK) {
    if (kr_scan_elf(scan)) kr_elf_versions(kr_scan_elf(scan), kr_scan_dynamic(scan), 0, add_provided, &d);
    krait_scan_close(&scan);
  }
  return &KR_AT(d->lookups->provided, doc_provided, d->lookups->provided.n - 1)->versions;
}

static const char *number_of(const char *version) {
  const char *mark = strrchr(version, '_');
  return mark ? mark + 1 : version;
}

/* Of one family, as CXXABI_1.3.13 and CXXABI_1.3.9, the newest. */
static const char *newest_like(const kr_list *versions, const char *like) {
  const char *best = "";
  size_t n = (size_t)(number_of(like) - like);
  for (size_t i = 0; i < versions->n; i++) {
    const char *version = DOC_TEXT(*versions, i);
    if (strncmp(version, like, n) == 0 && isdigit((unsigned char)version[n]) &&
        (!*best || kr_compare_versions(version + n, best + n) > 0))
      best = version;
  }
  return best;
}

static void report_version(const doc *d, const doc_file *file, const doc_version *v, const char *path,
                           const kr_list *has) {
  int is_gcc = strncmp(v->file, "libstdc++.", 10) == 0 || strncmp(v->file, "libgcc_s.", 9) == 0;
  const char *best = newest_like(has, v->version),
             *folder = kr_arena_copy(d->arena, path, (size_t)(strrchr(path, '/') ? strrchr(path, '/') - path : 0));
  const doc_package *p = NULL;
  for (size_t i = 0; i < d->evidence.files.n; i++)
    if (strcmp(KR_AT(d->evidence.files, doc_file, i)->path, path) == 0)
      p = doc_find_package(d, KR_AT(d->evidence.files, doc_file, i)->package);
  const char *fixed = p ? kr_arena_print(d->arena, "pip install --upgrade %s", p->name)
                        : kr_arena_print(d->arena, "install a newer %s, or a build made for this one", v->file);
  const char *keys[] = {"need",  v->version, "have", *best ? best : "no such version", "lib", v->file,
                        "fixed", fixed,      NULL};
  doc_finding *f = doc_report(d, is_gcc ? "L04" : strncmp(v->file, "libc.so.", 8) == 0 ? "L03" : "L07", file, "", keys);
  doc_add_evidence(d, f, ".gnu.version_r requires %s of %s; .gnu.version_d of %s has %s", v->version, v->file, path,
               *best ? best : "no such version");
  if (f && !*d->root && *folder && strstr(d->target.env_library_path, folder)) {
    doc_add_evidence(d, f, "LD_LIBRARY_PATH leads there");
    f->fixes.n = 0;
    doc_add_text(d, &f->fixes, "unset LD_LIBRARY_PATH");
  }
}

/* Every version that the file asks for, against the library that the loader would take; only the newest missing one of
 * a library is reported. A library without versions is accepted. */
static void check_each_version(const doc *d, const doc_file *file) {
  for (size_t i = 0; i < file->versions.n; i++) {
    const doc_version *v = KR_AT(file->versions, doc_version, i);
    const doc_file *loaded = loaded_with_torch(d, v->file);
    if (strncmp(v->version, "GLIBC_", 6) == 0 && isdigit((unsigned char)v->version[6]))
      continue; /* L03 compares these with the running C library */
    const char *path = loaded ? loaded->path : doc_find_library(d, file, v->file);
    const kr_list *has = *path ? versions_of(d, path) : NULL;
    if (!has || !has->n || doc_has_text(has, v->version)) continue;
    int is_newest = 1;
    for (size_t k = 0; k < file->versions.n; k++) {
      const doc_version *other = KR_AT(file->versions, doc_version, k);
      if (k == i || strcmp(other->file, v->file) != 0 || doc_has_text(has, other->version)) continue;
      is_newest &= kr_compare_versions(number_of(other->version), number_of(v->version)) < 0 ||
                   (k > i && strcmp(number_of(other->version), number_of(v->version)) == 0);
    }
    if (is_newest) report_version(d, file, v, path, has);
  }
}

static void check_versions(const doc *d, const doc_file *file) {
  const char *libc = newest_needed(d, file, "GLIBC_");
  const char *have = kr_arena_print(d->arena, "%d.%d", d->target.glibc / 100, d->target.glibc % 100);
  if (d->target.glibc && *libc && kr_compare_versions(libc, have) > 0) {
    const char *keys[] = {"need", libc, "have", have, NULL};
    doc_add_evidence(d, doc_report(d, "L03", file, "", keys), ".gnu.version_r requires GLIBC_%s", libc);
  }
  check_each_version(d, file);
}

static const char *machine_name(const doc *d, int machine) {
  return machine == KR_ELF_X86_64    ? "x86_64"
         : machine == KR_ELF_AARCH64 ? "aarch64"
                                     : kr_arena_print(d->arena, "ELF machine %d", machine);
}

static int is_foreign(const doc *d, const doc_file *file) {
  return file->kind == KRAIT_FILE_ELF && d->target.machine && (file->machine != d->target.machine || file->bits != 64);
}

/* What pip has to fetch again, on the right machine. */
static const char *fetch_again(const doc *d, const kr_list *files) {
  kr_text out = kr_text_begin(d->arena);
  kr_names seen = {0};
  int has_torch = 0;
  for (size_t i = 0; i < files->n; i++) {
    const doc_file *file = *KR_AT(*files, const doc_file *, i);
    if (!*file->package || !*file->package_version || file->in_wheel ||
        (*kr_names_put(d->arena, &seen, file->package))++)
      continue;
    if (strcmp(file->package, "torch") == 0) has_torch = 1;
    else
{
      const char *version = doc_nearest_release(
          d, file->package, kr_arena_copy(d->arena, file->package_version, strcspn(file->package_version, "+")));
      kr_text_print(&out, " %s%s%s", file->package, *version ? "==" : "", version);
    }
  }
  const char *torch = has_torch ? doc_torch_install(d) : "";
  if (!out.length) return torch;
  return kr_arena_print(d->arena, "%s%spip install --force-reinstall --no-deps%s", torch, *torch ? " && " : "", out.at);
}

/* Files for another processor make one finding, however many there are. */
static void check_machines(const doc *d) {
  kr_list foreign = KR_LIST(const doc_file *);
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if ((file->is_cuda || file->is_extension) && is_foreign(d, file))
      *(const doc_file **)kr_list_push(d->arena, &foreign) = file;
  }
  if (!foreign.n) return;
  const doc_file *file = *KR_AT(foreign, const doc_file *, 0);
  const char *built = file->bits == 64 ? machine_name(d, file->machine)
                                       : kr_arena_print(d->arena, "%s, 32-bit", machine_name(d, file->machine)),
             *again = fetch_again(d, &foreign);
  const int by_gpu =
      d->options.gpu && !d->options.machine && doc_machine_of_gpu(d, d->options.gpu) == d->target.machine;
  const char *keys[] = {
      "by_gpu",
      by_gpu ? machine_name(d, d->target.machine) : "",
      "built",
      built,
      "machine",
      machine_name(d, d->target.machine),
      "machine_fix",
      *again ? again : kr_arena_print(d->arena, "take the wheel tagged %s", machine_name(d, d->target.machine)),
      NULL};
  doc_finding *f = doc_report(d, "L05", file, "", keys);
  for (size_t i = 1; i < foreign.n && i < 6; i++)
    doc_add_evidence(d, f, "also %s", (*KR_AT(foreign, const doc_file *, i))->name);
  if (foreign.n > 6) doc_add_evidence(d, f, "and %zu more", foreign.n - 6);
}

/* ---- S05: LD_LIBRARY_PATH ---- */
static int is_shadowing(const char *name) {
  static const char *const names[] = {"libtorch",  "libc10",      "libcudart.so", "libnvJitLink.so",
                                      "libcublas", "libcudnn.so", "libnccl.so"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strncmp(name, names[i], strlen(names[i])) == 0) return 1;
  return 0;
}

static void check_library_path(const doc *d) {
  for (const char *p = d->target.env_library_path; *p;) {
    size_t n = strcspn(p, ":");
    const char *folder = kr_arena_copy(d->arena, p, n);
    DIR *dir = n && (!*d->target.torch_lib || strcmp(folder, d->target.torch_lib) != 0) ? opendir(folder) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
      if (!is_shadowing(entry->d_name) || !loaded_with_torch(d, entry->d_name)) continue;
      const char *keys[] = {"lib", entry->d_name, "where", folder, NULL};
      doc_report(d, "S05", NULL, "", keys);
    }
    if (dir) closedir(dir);
    p += n + (p[n] == ':');
  }
}

/* ---- S07: the current directory ---- */
static void check_elements(const doc *d, const doc_file *file, const char *paths, const char *what) {
  kr_text clean = kr_text_begin(d->arena);
  if (!doc_has_empty_element(paths)) return;
  for (const char *p = paths; *p; p += strcspn(p, ":"), p += *p == ':')
    if (*p != ':') kr_text_print(&clean, "%s%.*s", clean.length ? ":" : "", (int)strcspn(p, ":"), p);
  const char *fixed = file ? kr_arena_print(d->arena, "patchelf --set-rpath '%s' %s", clean.at, file->path)
                           : kr_arena_print(d->arena, "export LD_LIBRARY_PATH=%s", clean.at);
  const char *keys[] = {"what", what, "fixed", clean.length ? fixed : "unset LD_LIBRARY_PATH", NULL};
  doc_finding *f = doc_report(d, "S07", file, "", keys);
  doc_add_evidence(d, f, "%s=\"%s\"", what, paths);
  if (f && file && doc_comes_with_torch(file->package))
    f->severity = KR_INFO, f->hidden = 1; /* set by the publisher, and the same in every working environment */
}

/* ---- S06: what torch's metadata requires ---- */
static void check_requirement(const doc *d, const char *line) {
  static const char *const names[] = {"nvidia-nccl", "nvidia-cudnn"};
  for (int i = 0; i < 2; i++) {
    if (strncmp(line, names[i], strlen(names[i])) != 0) continue;
    size_t n = strcspn(line, " =;(<>!~");
    const char *name = doc_normalise(d, line, n), *equals = strstr(line, "==");
    const char *want = equals ? kr_arena_copy(d->arena, equals + 2, strspn(equals + 2, "0123456789.")) : "";
    const doc_package *p = doc_find_package(d, name);
    if (!p || !*want || kr_compare_versions(p->version, want) >= 0) continue;
    const char *keys[] = {"lib", name, "have", p->version, "want", want, NULL};
    doc_add_evidence(d, doc_report(d, "S06", NULL, name, keys), "torch's METADATA: Requires-Dist: %s", line);
  }
}

void doc_diagnose_libraries(const doc *d) {
  const doc_package *torch = doc_find_package(d, "torch");
  index_loaded(d);
  check_machines(d);
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (!file->is_cuda && !file->is_extension) continue;
    if (is_foreign(d, file) || file->is_unused) continue;
    check_versions(d, file);
    check_elements(d, file, *file->runpath ? file->runpath : file->rpath, *file->runpath ? "RUNPATH" : "RPATH");
    if (d->evidence.is_environment && !file->in_wheel && !file->is_torch) check_needed(d, file);
    if (file->in_wheel) check_wheel_cuda(d, file);
  }
  if (!d->options.root && d->evidence.is_environment)
    check_library_path(d), check_elements(d, NULL, d->target.env_library_path, "LD_LIBRARY_PATH");
  for (size_t i = 0; torch && i < torch->requires.n; i++) check_requirement(d, DOC_TEXT(torch->requires, i));
}
