/* diagnose_packages.c: W01 to W05: what names and tags claim, against the target, the metadata inside, and the
 * bytes. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doc.h"
#include "doc_commands.h"

static const char *packages_base_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* ---- W01: tags ---- */
static int any_part(const char *set, int (*fits)(const doc *d, const char *part), const doc *d) {
  char part[64];
  for (const char *p = set; *p;) {
    size_t n = strcspn(p, ".");
    if (n < sizeof part) {
      memcpy(part, p, n);
      part[n] = '\0';
      if (fits(d, part)) return 1;
    }
    p += n + (p[n] == '.');
  }
  return 0;
}

/* in linux platforms, dots only separate the tags of a set; versions use underscores */
static int platform_fits(const doc *d, const char *part) {
  const char *machine = d->target.machine == KR_ELF_AARCH64 ? "aarch64" : "x86_64";
  size_t n = strlen(part), m = strlen(machine);
  if (strcmp(part, "any") == 0) return 1;
  if (n < m || strcmp(part + n - m, machine) != 0) return 0;
  if (strncmp(part, "linux_", 6) == 0 || !d->target.glibc) return strncmp(part, "musllinux", 9) != 0;
  int need = strncmp(part, "manylinux1_", 11) == 0      ? 205
             : strncmp(part, "manylinux2010_", 14) == 0 ? 212
             : strncmp(part, "manylinux2014_", 14) == 0 ? 217
                                                        : 0;
  if (strncmp(part, "manylinux_2_", 12) == 0) need = 200 + atoi(part + 12);
  return need && need <= d->target.glibc;
}

static int python_fits(const doc *d, const char *part) {
  if (strncmp(part, "py3", 3) == 0) return !part[3] || 300 + atoi(part + 3) <= d->target.python;
  return strncmp(part, "cp3", 3) == 0 && 300 + atoi(part + 3) == d->target.python;
}

static int python_is_older(const doc *d, const char *part) {
  return strncmp(part, "cp3", 3) == 0 && 300 + atoi(part + 3) <= d->target.python;
}

static const char *tag_complaint(const doc *d, const char *python, const char *abi, const char *platform) {
  int limited = strstr(abi, "abi3") != NULL;
  if (d->target.python && !any_part(python, limited ? python_is_older : python_fits, d))
    return kr_arena_print(d->arena, "Python %d.%d", d->target.python / 100, d->target.python % 100);
  if (!limited && strcmp(abi, "none") != 0 && d->target.python && !any_part(abi, python_fits, d))
    return kr_arena_print(d->arena, "the ABI of Python %d.%d", d->target.python / 100, d->target.python % 100);
  if (strstr(abi, "cp3") && abi[strlen(abi) - 1] == 't') return "a Python with the global interpreter lock";
  if (any_part(platform, platform_fits, d)) return NULL;
  if (d->target.glibc && strstr(platform, "manylinux") &&
      strstr(platform, d->target.machine == KR_ELF_AARCH64 ? "aarch64" : "x86_64"))
    return kr_arena_print(d->arena, "glibc %d.%d", d->target.glibc / 100, d->target.glibc % 100);
  return d->target.machine == KR_ELF_AARCH64 ? "an aarch64 Linux with glibc" : "an x86_64 Linux with glibc";
}

static void check_tag(const doc *d, const doc_file *about, const char *package, const char *python, const char *abi,
                      const char *platform) {
  const char *why = tag_complaint(d, python, abi, platform);
  if (!why) return;
  const char *machine = d->target.machine == KR_ELF_AARCH64 ? "aarch64" : "x86_64";
  const char *best = d->target.python
                         ? kr_arena_print(d->arena, "cp%d-cp%d-linux_%s", d->target.python, d->target.python, machine)
                         : machine;
  const char *keys[] = {"tag",   kr_arena_print(d->arena, "%s-%s-%s", python, abi, platform), "why", why, "best", best,
                        "other", kr_arena_print(d->arena, "3.%d", atoi(python + 3)),          NULL};
  doc_report(d, "W01", about, package, keys);
}

static void check_installed_tags(const doc *d, const doc_package *p) {
  char part[3][160];
  if (!p->tags.n || !*p->dist_info) return;
  for (size_t i = 0; i < p->tags.n; i++) {
    const char *tag = DOC_TEXT(p->tags, i);
    size_t a = strcspn(tag, "-"), b = tag[a] ? strcspn(tag + a + 1, "-") : 0;
    if (!tag[a] || !tag[a + 1 + b] || a >= 160 || b >= 160 || strlen(tag + a + 2 + b) >= 160) return;
    memcpy(part[0], tag, a), part[0][a] = '\0';
    memcpy(part[1], tag + a + 1, b), part[1][b] = '\0';
    memcpy(part[2], tag + a + 2 + b, strlen(tag + a + 2 + b) + 1);
    if (!tag_complaint(d, part[0], part[1], part[2])) return;
  }
  check_tag(d, &(doc_file){.path = p->dist_info, .name = packages_base_of(p->dist_info), .package = p->name}, p->name,
            part[0], part[1], part[2]);
}

/* ---- W02, W03 ---- */
/* The same tag, or linux_x86_64 inside where auditwheel or a publisher put manylinux in the name. */
static int is_repaired(const char *inside, const char *outside) {
  const char *a = strrchr(inside, '-'), *b = strrchr(outside, '-');
  if (!a || !b || a - inside != b - outside || strncmp(inside, outside, (size_t)(a - inside)) != 0) return 0;
  size_t n = strlen(a), m = strlen(b);
  if (strcmp(a, b) == 0) return 1;
  return strncmp(a, "-linux_", 7) == 0 && strncmp(b, "-manylinux", 10) == 0 && n > 7 && m >= n - 7 &&
         strcmp(a + 7, b + m - (n - 7)) == 0;
}

static void check_renamed(const doc *d, const doc_file *about, const krait_wheel_name *name,
                          const doc_package *inside) {
  const char *dist = doc_normalise(d, name->dist, strlen(name->dist));
  const char *version = kr_arena_print(d->arena, "%s%s%s", name->version, *name->local ? "+" : "", name->local);
  const char *tag = kr_arena_print(d->arena, "%s-%s-%s", name->python, name->abi, name->platform);
  int tag_differs = inside->tags.n == 1 && !strchr(tag, '.') && !is_repaired(DOC_TEXT(inside->tags, 0), tag);
  int version_differs = *inside->version && strcmp(doc_normalise(d, version, strlen(version)),
                                                   doc_normalise(d, inside->version, strlen(inside->version))) != 0;
  if (!*inside->name || (strcmp(dist, inside->name) == 0 && !version_differs && !tag_differs)) return;
  const char *keys[] = {"inside",
                        kr_arena_print(d->arena, "%s %s%s%s", inside->name, inside->version, inside->tags.n ? ", " : "",
                                       inside->tags.n ? DOC_TEXT(inside->tags, 0) : ""),
                        NULL};
  doc_report(d, "W02", about, inside->name, keys);
}

static int cudart_major(const doc_file *file) {
  for (size_t i = 0; i < file->needed.n; i++)
    if (strncmp(DOC_TEXT(file->needed, i), "libcudart.so.", 13) == 0) return atoi(DOC_TEXT(file->needed, i) + 13);
  return 0;
}

static void report_claim(const doc *d, const doc_file *file, const char *claim, const char *bytes) {
  const char *keys[] = {"claim", claim, "bytes", bytes, NULL};
  doc_report(d, "W03", file, "", keys);
}

static void check_claims(const doc *d, const doc_file *file, const krait_wheel_name *name) {
  int first, last, cuda = cudart_major(file);
  if ((file->abi == DOC_ABI_OLD || file->abi == DOC_ABI_NEW) && name->cxx11abi >= 0 && name->cxx11abi != file->abi)
    report_claim(d, file, name->cxx11abi ? "cxx11abiTRUE" : "cxx11abiFALSE",
                 file->abi ? "the new std::string" : "the old std::string");
  if (cuda && name->cuda && name->cuda / 10 != cuda)
    report_claim(d, file, kr_arena_print(d->arena, "CUDA %d", name->cuda / 10),
                 kr_arena_print(d->arena, "CUDA %d (libcudart)", cuda));
  doc_torch_range(d, &file->undefined, &first, &last);
  if (name->torch && ((first && name->torch < first) || (last && name->torch > last)))
    report_claim(d, file, kr_arena_print(d->arena, "torch %s", kr_print_torch(d->arena, name->torch)),
                 first ? kr_arena_print(d->arena, "torch %s or newer", kr_print_torch(d->arena, first))
                       : kr_arena_print(d->arena, "torch %s or older", kr_print_torch(d->arena, last)));
}

/* ---- W04: names of no known release ---- */
static const doc_table_line *wheel_row(const doc *d, const char *package, const char *version) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "wheel", &at));)
    if (strcmp(row->column[0], package) == 0 && kr_compare_versions(version, row->column[1]) >= 0 &&
        (!*row->column[2] || kr_compare_versions(version, row->column[2]) <= 0))
      return row;
  return NULL;
}

static const char *cuda_word(const doc *d, const char *local) {
  size_t n = strncmp(local, "cu", 2) == 0 ? 2 + strspn(local + 2, "0123456789.") : 0;
  return kr_arena_copy(d->arena, local, n);
}

static const char *best_bucket(const doc *d, const char *buckets, const char *word) {
  const char *best = "";
  for (const char *p = buckets; *p; p += strspn(p, " ")) {
    size_t n = strcspn(p, " ");
    const char *bucket = kr_arena_copy(d->arena, p, n);
    if (!*best || strncmp(bucket, word, 4) == 0) best = bucket;
    p += n;
  }
  return best;
}

static void check_published(const doc *d, const char *file) {
  krait_wheel_name name = {.size = sizeof name};
  if (krait_wheel_name_parse(file, &name) < 0 || !name.torch || name.cxx11abi < 0) return;
  const char *package = doc_normalise(d, name.dist, strlen(name.dist)), *word = cuda_word(d, name.local);
  const doc_table_line *row = wheel_row(d, package, name.version),
                       *about = kr_tables_find(d->tables, "package", package);
  int first = row ? kr_parse_torch(row->column[5]) : 0, last = row ? kr_parse_torch(row->column[6]) : 0;
  if (!row || !about || !*word) return;
  if (kr_tables_has_word(row->column[7], word) && name.torch >= first && (!last || name.torch <= last)) return;
  int torch = name.torch < first ? first : last && name.torch > last ? last : name.torch;
  const char *nearest = kr_arena_print(d->arena, "%s-%s+%storch%scxx11abi%s-%s-%s-%s.whl", name.dist, name.version,
                                       best_bucket(d, row->column[7], word), kr_print_torch(d->arena, torch),
                                       name.cxx11abi ? "TRUE" : "FALSE", name.python, name.abi, name.platform);
  const char *keys[] = {"name", packages_base_of(file), "nearest", nearest,        "repo", about->column[3],
                        "ver",  name.version,  "buckets", row->column[7], NULL};
  doc_finding *f = doc_report(d, "W04", NULL, package, keys);
  doc_add_evidence(d, f, "releases of %s %s use %s, for torch %s to %s", package, name.version, row->column[7],
               row->column[5], *row->column[6] ? row->column[6] : "newer");
}

/* ---- W05 ---- */
/* Compares the first of the name with each of the others; the newest is kept. */
static void check_copies(const doc *d, const doc_package *p) {
  if (doc_find_package(d, p->name) != p) return;
  const doc_package *newest = p;
  for (const doc_package *other = p; other; other = doc_twin_package(d, other))
    if (kr_compare_versions(newest->version, other->version) < 0) newest = other;
  for (const doc_package *other = p; other; other = doc_twin_package(d, other)) {
    if (!*p->dist_info || !*other->dist_info || strcmp(newest->version, other->version) == 0) continue;
    const char *single =
        kr_arena_print(d->arena, "pip uninstall -y %s && rm -rf %s && pip install --no-deps %s==%.*s", p->name,
                       other->dist_info, p->name, (int)strcspn(newest->version, "+"), newest->version);
    const char *keys[] = {
        "where",
        kr_arena_print(d->arena, "%s and %s", packages_base_of(newest->dist_info), packages_base_of(other->dist_info)),
        "single", single, NULL};
    doc_report(d, "W05", NULL, p->name, keys);
  }
}

/* The path below its site-packages folder, which is the module's name for Python. */
static const char *module_path(const doc *d, const doc_file *file) {
  for (size_t i = 0; i < d->evidence.sites.n; i++) {
    size_t n = strlen(DOC_TEXT(d->evidence.sites, i));
    if (strncmp(file->path, DOC_TEXT(d->evidence.sites, i), n) == 0 && file->path[n] == '/') return file->path + n + 1;
  }
  return file->path;
}

/* mod.so beside mod.cpython-311-….so, or one module in two site-packages. Modules for different Pythons may coexist. */
static int is_twin(const doc *d, const doc_file *a, const doc_file *b) {
  const char *x = module_path(d, a), *y = module_path(d, b);
  size_t n = (size_t)(strrchr(x, '/') ? strrchr(x, '/') + 1 - x : 0) + strcspn(a->name, ".");
  if (strncmp(x, y, n) != 0 || y[n] != '.' || strchr(y + n, '/')) return 0;
  int tagged = (strstr(a->name, ".cpython-") != NULL) + (strstr(b->name, ".cpython-") != NULL);
  return tagged == 1 || strcmp(a->name, b->name) == 0;
}

static void check_twin_modules(const doc *d, kr_names *modules, size_t index) {
  const doc_file *file = KR_AT(d->evidence.files, doc_file, index);
  if (file->in_wheel || strncmp(file->name, "lib", 3) == 0) return;
  const char *path = module_path(d, file), *slash = strrchr(path, '/');
  size_t *seen =
      kr_names_put(d->arena, modules,
                   kr_arena_copy(d->arena, path, (size_t)(slash ? slash + 1 - path : 0) + strcspn(file->name, ".")));
  if (*seen) {
    const doc_file *other = file;
    file = KR_AT(d->evidence.files, doc_file, *seen - 1);
    if ((!file->is_extension && !file->is_cuda && !other->is_extension && !other->is_cuda) || !is_twin(d, file, other))
      return;
    const char *keys[] = {
        "pkg",    *file->package ? file->package : *other->package ? other->package : file->name,
        "where",  kr_arena_print(d->arena, "%s and %s", file->path, other->path),
        "single", kr_arena_print(d->arena, "rm %s", *other->package && !*file->package ? file->path : other->path),
        NULL};
    doc_report(d, "W05", file, file->package, keys);
  } else {
    *seen = index + 1;
  }
}

/* ---- all ---- */
static void check_wheel(const doc *d, const doc_package *inside) {
  krait_wheel_name name = {.size = sizeof name};
  const char *path = inside->site;
  doc_file about = {.path = path, .name = packages_base_of(path), .package = inside->name};
  if (krait_wheel_name_parse(path, &name) < 0) return;
  check_tag(d, &about, inside->name, name.python, name.abi, name.platform);
  check_renamed(d, &about, &name, inside);
  check_published(d, path);
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (file->in_wheel && strncmp(file->path, path, strlen(path)) == 0) check_claims(d, file, &name);
  }
}

/* An installed wheel keeps its local version: mamba-ssm 2.2.2+cu122torch2.2cxx11abiFALSE. */
static void check_installed_claims(const doc *d, const doc_package *p) {
  if (!strstr(p->version, "torch") || !p->tags.n) return;
  krait_wheel_name name = {.size = sizeof name};
  if (krait_wheel_name_parse(kr_arena_print(d->arena, "%s-%s-%s.whl", "x", p->version, DOC_TEXT(p->tags, 0)), &name) <
      0)
    return;
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (strcmp(file->package, p->name) == 0) check_claims(d, file, &name);
  }
}

/* ---- W07 to W09: owners, left-overs, .pth files ---- */
static size_t place_of(const char *words, const char *word) {
  const size_t n = strlen(word);
  for (const char *p = words; *p; p += strspn(p, " ")) {
    size_t length = strcspn(p, " ");
    if (length == n && memcmp(p, word, n) == 0) return (size_t)(p - words);
    p += length;
  }
  return strlen(words);
}

static void check_owners(const doc *d) {
  for (size_t i = 0; i < d->evidence.owners.n; i++) {
    const doc_owner *first = KR_AT(d->evidence.owners, doc_owner, i), *best = first;
    kr_text names = kr_text_begin(d->arena);
    int n = 0;
    for (size_t k = 0; k < d->evidence.owners.n; k++) {
      const doc_owner *other = KR_AT(d->evidence.owners, doc_owner, k);
      if (other->row != first->row || strcmp(other->site, first->site) != 0) continue;
      if (k < i) n = -100; /* already reported */
      if (place_of(first->row->column[1], other->package) < place_of(first->row->column[1], best->package))
        best = other;
      kr_text_print(&names, "%s%s %s", names.length ? " and " : "", other->package, other->version);
      n++;
    }
    if (n < 2) continue;
    kr_text command = kr_text_begin(d->arena);
    kr_text_print(&command, "pip uninstall -y");
    for (size_t k = 0; k < d->evidence.owners.n; k++)
      if (KR_AT(d->evidence.owners, doc_owner, k)->row == first->row)
        kr_text_print(&command, " %s", KR_AT(d->evidence.owners, doc_owner, k)->package);
    kr_text_print(&command, " && pip install --no-deps %s==%.*s", best->package, (int)strcspn(best->version, "+"),
                  best->version);
    const char *keys[] = {"owners", names.at, "folder", first->row->column[0], "single", command.at, NULL};
    doc_report(d, "W07", NULL, best->package, keys);
  }
}

static void check_left_overs(const doc *d) {
  for (size_t i = 0; i < d->evidence.left_overs.n; i++) {
    const char *path = DOC_TEXT(d->evidence.left_overs, i);
    const char *keys[] = {"folder", packages_base_of(path), "left", path, NULL};
    doc_report(d, "W08", NULL, "", keys);
  }
}

/* A folder added by a .pth file that holds a module which is also installed. */
static void check_path_line(const doc *d, const char *pth, const char *folder) {
  for (size_t i = 0; i < d->evidence.packages.n; i++) {
    const doc_package *p = KR_AT(d->evidence.packages, doc_package, i);
    const doc_table_line *row = strcmp(p->name, "torch") == 0 ? NULL : doc_package_row(d, p->name);
    const char *modules = row ? row->column[1] : strcmp(p->name, "torch") == 0 ? "torch" : "";
    const char *module = kr_arena_copy(d->arena, modules, strcspn(modules, " "));
    if (!*module || !*p->dist_info || access(kr_arena_print(d->arena, "%s/%s", folder, module), F_OK) != 0 ||
        access(kr_arena_print(d->arena, "%s/%s", p->site, module), F_OK) != 0)
      continue;
    const char *keys[] = {"where",   kr_arena_print(d->arena, "%s/%s", folder, module),
                          "pth",     packages_base_of(pth),
                          "pth_fix", kr_arena_print(d->arena, "rm %s", pth),
                          NULL};
    doc_report(d, "W09", NULL, p->name, keys);
  }
}

static void check_path_files(const doc *d) {
  for (size_t i = 0; i < d->evidence.path_files.n && i < 200; i++) {
    const char *pth = DOC_TEXT(d->evidence.path_files, i), *text = doc_read_text(d, pth, 65536);
    for (const char *line = text; line && *line; line += strcspn(line, "\n"), line += *line == '\n')
      if (*line == '/') check_path_line(d, pth, kr_arena_copy(d->arena, line, strcspn(line, "\r\n")));
  }
}

void doc_diagnose_packages(const doc *d) {
  check_owners(d);
  check_left_overs(d);
  check_path_files(d);
  for (size_t i = 0; i < d->evidence.packages.n; i++) {
    const doc_package *p = KR_AT(d->evidence.packages, doc_package, i);
    if (*p->dist_info) check_installed_tags(d, p), check_copies(d, p), check_installed_claims(d, p);
    else check_wheel(d, p);
  }
  kr_names modules = {0};
  for (size_t i = 0; i < d->evidence.files.n; i++) check_twin_modules(d, &modules, i);
  for (size_t i = 0; i < d->log.wheels.n; i++) check_published(d, DOC_TEXT(d->log.wheels, i));
}
