/* site.c: Python environments and wheels: dist-info folders, RECORD, torch, and the shared libraries to inspect. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "doc.h"
#include "env.h"
#include "sha256.h"
#include "status.h"
#include "zip_file.h"

enum {
  MAX_META_BYTES = 8 << 20,
  MAX_RECORD_BYTES = 64 << 20,
  MAX_DEPTH = 12,
  MAX_FILES = 20000,
  HASH_LIMIT_BYTES = 4 << 20
};

const char *doc_normalise(const doc *d, const char *name, size_t n) {
  char *out = kr_arena_copy(d->arena, name, n);
  size_t k = 0;
  if (kr_arena_failed(d->arena)) return out; /* one shared byte */
  for (size_t i = 0; i < n && name[i]; i++) {
    char c = (char)tolower((unsigned char)name[i]);
    if (c == '_' || c == '.') c = '-';
    if (c == '-' && k && out[k - 1] == '-') continue;
    out[k++] = c;
  }
  if (n) out[k] = '\0';
  return out;
}

const doc_package *doc_find_package(const doc *d, const char *name) {
  const size_t *first = kr_names_find(&d->evidence.package_names, name);
  return first && *first ? KR_AT(d->evidence.packages, doc_package, *first - 1) : NULL;
}

const doc_package *doc_twin_package(const doc *d, const doc_package *p) {
  return p->next ? KR_AT(d->evidence.packages, doc_package, p->next - 1) : NULL;
}

/* The first file of a name, and from each the next with the same name. */
void doc_index_package(doc *d, size_t i) {
  doc_package *p = KR_AT(d->evidence.packages, doc_package, i);
  size_t *first = kr_names_put(d->arena, &d->evidence.package_names, p->name);
  if (!*first) *first = i + 1;
  else
    p->next = KR_AT(d->evidence.packages, doc_package, *first - 1)->next,
    KR_AT(d->evidence.packages, doc_package, *first - 1)->next = i + 1;
}

const char *doc_header(const doc *d, const char *text, const char *key) {
  size_t n = strlen(key);
  for (const char *line = text; line && *line;) {
    size_t length = strcspn(line, "\r\n");
    if (length == 0) break; /* the body follows */
    if (length > n && strncasecmp(line, key, n) == 0 && line[n] == ':') {
      const char *value = line + n + 1 + strspn(line + n + 1, " ");
      return kr_arena_copy(d->arena, value, (size_t)(line + length > value ? line + length - value : 0));
    }
    line += length;
    line += strspn(line, "\r");
    line += *line == '\n';
  }
  return "";
}

static void add_headers(const doc *d, const char *text, const char *key, kr_list *list) {
  size_t n = strlen(key);
  for (const char *line = text; line && *line;) {
    size_t length = strcspn(line, "\n");
    if (length > n + 2 && strncmp(line, key, n) == 0 && line[n] == ':') {
      size_t end = length - (line[length - 1] == '\r');
      doc_add_text(d, list, kr_arena_copy(d->arena, line + n + 2, end > n + 2 ? end - n - 2 : 0));
    }
    line += length + (line[length] == '\n');
  }
}

/* ---- RECORD ---- */
int doc_is_library_name(const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *so = strstr(name, ".so");
  return so && (so[3] == '\0' || so[3] == '.');
}

/* sha256 of RECORD is base64 for URLs without padding; ours is hexadecimal. */
static int same_hash(const char *base64, const char *hex) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  uint32_t bits = 0;
  int n_bits = 0, at = 0;
  for (const char *p = base64; *p && *p != '=' && at < 64; p++) {
    const char *found = strchr(letters, *p);
    if (!found) return 0;
    bits = bits << 6 | (uint32_t)(found - letters);
    for (n_bits += 6; n_bits >= 4 && at < 64; n_bits -= 4)
      if ("0123456789abcdef"[bits >> (n_bits - 4) & 15] != hex[at++]) return 0;
  }
  return at == 64;
}

/* For a file already found damaged, RECORD is further evidence. */
static void report_record(const doc *d, const doc_file *file, const char *why) {
  const char *keys[] = {"why", why, NULL};
  if (file->damage) {
    doc_add_evidence(d, KR_AT(d->found->findings, doc_finding, file->damage - 1), "%s", why);
    return;
  }
  doc_report(d, "W06", file, "", keys);
}

static void check_record(const doc *d, const doc_file *file, const doc_package *p, const char *hash, const char *size) {
  uint64_t bytes = strtoull(size, NULL, 10);
  if (file->bytes == 0 || p->by_distribution) return; /* already reported, or stripped by a distribution */
  if (*size && bytes != file->bytes)
    report_record(d, file,
                  kr_arena_print(d->arena, "RECORD says %s bytes, it has %llu", size, (unsigned long long)file->bytes));
  else if (strncmp(hash, "sha256=", 7) == 0 && hash[7] && *file->sha256 && !same_hash(hash + 7, file->sha256))
    report_record(d, file, "its content differs from the hash in RECORD");
}

/* Splits one CSV line in place; quotes occur only if a path contains a comma. */
static int split_record(char *line, const char *field[3]) {
  char *p = line;
  field[0] = field[1] = field[2] = "";
  if (*p == '"') {
    field[0] = ++p;
    p = strchr(p, '"');
    if (!p) return 0;
    *p++ = '\0';
    if (*p == ',') p++;
  } else {
    field[0] = p;
    p = strchr(p, ',');
    if (!p) return 1;
    *p++ = '\0';
  }
  field[1] = p;
  p = strchr(p, ',');
  if (!p) return 1;
  *p++ = '\0';
  field[2] = p;
  return 1;
}

static int is_known_file(doc *d, const char *path) {
  size_t *seen = kr_names_put(d->arena, &d->evidence.known_files, path);
  return (*seen)++ != 0;
}

static doc_file *inspect_once(doc *d, const char *path, const doc_package *p) {
  if (d->evidence.files.n >= MAX_FILES || is_known_file(d, path)) return NULL;
  if (p) d->evidence.owner = p->name, d->evidence.owner_version = p->version;
  doc_file *file = doc_inspect_path(d, path);
  d->evidence.owner = d->evidence.owner_version = "";
  return file;
}

/* The import names that several distributions may provide: which one owns which. */
static void own_folder(doc *d, const doc_package *p, const char *path) {
  size_t n = strcspn(path, "/");
  if (!path[n] || strstr(path, ".dist-info/") || n > 64) return;
  const doc_table_line *row = kr_tables_find(d->tables, "owner", kr_arena_copy(d->arena, path, n));
  if (!row || !kr_tables_has_word(row->column[1], p->name)) return;
  size_t *seen =
      kr_names_put(d->arena, &d->found->said, kr_arena_print(d->arena, "owner\1%s\1%s", row->column[0], p->name));
  if ((*seen)++) return;
  doc_owner *owner = kr_list_push(d->arena, &d->evidence.owners);
  *owner = (doc_owner){row, p->name, p->version, p->site};
}

/* A file that may not be read is not missing; reported once per package. */
static void refuse_package(const doc *d, const doc_package *p, const char *path, int os_errno) {
  if ((*kr_names_put(d->arena, &d->found->said, kr_arena_print(d->arena, "refused\1%s\1%s", p->site, p->name)))++)
    return;
  doc_add_text(d, &d->found->unreadable, kr_arena_print(d->arena, "cannot open %s: %s", path, strerror(os_errno)));
}

static void read_record(doc *d, const doc_package *p) {
  char *text = (char *)doc_read_text(d, kr_arena_print(d->arena, "%s/RECORD", p->dist_info), MAX_RECORD_BYTES);
  for (char *line = text; line && *line && !kr_arena_failed(d->arena);) {
    char *end = strchr(line, '\n');
    const char *field[3];
    if (end) *end = '\0';
    size_t n = strlen(line);
    if (n && line[n - 1] == '\r') line[n - 1] = '\0';
    if (!split_record(line, field)) field[0] = "";
    own_folder(d, p, field[0]);
    if (doc_is_library_name(field[0]) && field[0][0] != '/') {
      const char *path = kr_arena_print(d->arena, "%s/%s", p->site, field[0]);
      const int is_there = access(path, F_OK) == 0, os_errno = errno;
      if (!is_there && os_errno != ENOENT && os_errno != ENOTDIR) refuse_package(d, p, path, os_errno);
      else if (!is_there)
        report_record(d, &(doc_file){.path = path, .name = path, .package = p->name, .package_version = p->version},
                      "RECORD lists it, but it does not exist");
      doc_file *file = is_there ? inspect_once(d, path, p) : NULL;
      if (file) check_record(d, file, p, field[1], field[2]);
    }
    line = end ? end + 1 : NULL;
  }
}

/* ---- packages ---- */
doc_package *doc_add_package(doc *d, const char *metadata, const char *wheel, const char *direct_url) {
  doc_package *p = kr_list_push(d->arena, &d->evidence.packages);
  const char *name = doc_header(d, metadata, "Name");
  *p = (doc_package){.name = doc_normalise(d, name, strlen(name)),
                     .version = doc_header(d, metadata, "Version"),
                     .dist_info = "",
                     .site = "",
                     .tags = KR_LIST(const char *),
                     .requires = KR_LIST(const char *)};
  add_headers(d, metadata, "Requires-Dist", &p->requires);
  add_headers(d, wheel, "Tag", &p->tags);
  int local_tag = 0;
  for (size_t i = 0; i < p->tags.n; i++) local_tag |= strstr(DOC_TEXT(p->tags, i), "-linux_") != NULL;
  p->built_here =
      (*direct_url && !strstr(direct_url, ".whl\"")) || (local_tag && !strchr(p->version, '+') && !*direct_url);
  return p;
}

static const char *read_or_empty(const doc *d, const char *folder, const char *name) {
  const char *text = doc_read_text(d, kr_arena_print(d->arena, "%s/%s", folder, name), MAX_META_BYTES);
  return text ? text : "";
}

static void read_dist_info(doc *d, const char *site, const char *folder) {
  const char *path = kr_arena_print(d->arena, "%s/%s", site, folder);
  doc_package *p = doc_add_package(d, read_or_empty(d, path, "METADATA"), read_or_empty(d, path, "WHEEL"),
                                   read_or_empty(d, path, "direct_url.json"));
  p->dist_info = path;
  p->site = site;
  const char *installer = read_or_empty(d, path, "INSTALLER");
  p->by_distribution = strstr(path, "/usr/lib/python3") != NULL || strncmp(installer, "debian", 6) == 0 ||
                       strncmp(installer, "rpm", 3) == 0;
  if (!*p->name) { /* METADATA is missing: the folder's name is NAME-VERSION.dist-info */
    size_t n = strcspn(folder, "-");
    p->name = doc_normalise(d, folder, n);
    const char *version = folder[n] ? folder + n + 1 : "", *end = strstr(version, ".dist-info");
    p->version = kr_arena_copy(d->arena, version, end ? (size_t)(end - version) : strlen(version));
  }
  doc_index_package(d, d->evidence.packages.n - 1);
}

/* "x = 'y'" of a Python file. */
static const char *assigned(const doc *d, const char *text, const char *name) {
  size_t n = strlen(name);
  for (const char *at = strstr(text, name); at; at = strstr(at + 1, name)) {
    if (at != text && at[-1] != '\n') continue;
    const char *p = at + n;
    p += strcspn(p, "=\n");
    if (*p != '=') continue;
    p += 1 + strspn(p + 1, " ");
    if (*p != '\'' && *p != '"') return "";
    return kr_arena_copy(d->arena, p + 1, strcspn(p + 1, "'\"\n"));
  }
  return "";
}

static int tenths_of_tag(const char *version) {
  const char *cu = strstr(version, "+cu");
  return cu ? atoi(cu + 3) : 0;
}

static void set_torch(doc *d, const char *version, const char *cuda, const char *source) {
  d->target.torch = version;
  d->target.torch_number = kr_parse_torch(version);
  d->target.torch_source = source;
  int tag = tenths_of_tag(version);
  d->target.torch_cuda = *cuda ? cuda : tag ? kr_print_tenths(d->arena, tag) : "";
}

static int has_prefix_in(const char *folder, const char *prefix) {
  DIR *dir = opendir(folder);
  int found = 0;
  if (!dir) return 0;
  for (struct dirent *entry; !found && (entry = readdir(dir));)
    found = strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
  closedir(dir);
  return found;
}

static void read_torch(doc *d, const char *site) {
  const char *lib = kr_arena_print(d->arena, "%s/torch/lib", site);
  const char *text = doc_read_text(d, kr_arena_print(d->arena, "%s/torch/version.py", site), 65536);
  if (!text || *d->target.torch_lib) return;
  d->target.torch_lib = lib;
  const int is_known = access(lib, R_OK) == 0 || errno == ENOENT;
  d->target.torch_is_cpu = is_known && !has_prefix_in(lib, "libtorch_cuda") && !has_prefix_in(lib, "libtorch_hip");
  if (!d->options.torch) set_torch(d, assigned(d, text, "__version__"), assigned(d, text, "cuda"), "torch/version.py");
}

/* ---- folders ---- */
static void read_ptxas(doc *d, const char *path) {
  kr_source source;
  const doc_file about = {.path = path, .name = "ptxas", .package = strstr(path, "/triton/") ? "triton" : ""};
  if (kr_source_open(&source, path) < 0) return;
  doc_read_compiler(d, &source, &about);
  kr_source_close(&source);
}

static void walk_libraries(doc *d, const char *folder, int depth) {
  DIR *dir = opendir(folder);
  if (!dir) {
    if (depth == 0)
      doc_add_text(d, &d->found->unreadable, kr_arena_print(d->arena, "cannot read the folder %s", folder));
    return;
  }
  for (struct dirent *entry; !kr_arena_failed(d->arena) && (entry = readdir(dir));) {
    struct stat info;
    if (entry->d_name[0] == '.' || entry->d_name[0] == '~') continue; /* what pip left behind belongs to no package */
    const char *path = kr_arena_print(d->arena, "%s/%s", folder, entry->d_name);
    if (lstat(path, &info) != 0) continue;
    if (S_ISDIR(info.st_mode) && depth < MAX_DEPTH) walk_libraries(d, path, depth + 1);
    if (S_ISREG(info.st_mode) && doc_is_library_name(entry->d_name)) inspect_once(d, path, NULL);
    if (S_ISREG(info.st_mode) && strcmp(entry->d_name, "ptxas") == 0) read_ptxas(d, path);
  }
  closedir(dir);
}

static int python_of_path(const char *path) {
  const char *at = strstr(path, "python3.");
  return at && isdigit((unsigned char)at[8]) ? 300 + atoi(at + 8) : 0;
}

/* A line of a .pth file is a folder on Python's path: torch may be there. */
static void read_path_files(doc *d, const char *site) {
  const size_t n = strlen(site);
  for (size_t i = 0; i < d->evidence.path_files.n && i < 200 && !*d->target.torch_lib; i++) {
    const char *pth = DOC_TEXT(d->evidence.path_files, i),
               *text = strncmp(pth, site, n) == 0 ? doc_read_text(d, pth, 65536) : NULL;
    for (const char *line = text; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
      const char *folder = kr_arena_copy(d->arena, line, strcspn(line, "\r\n"));
      if (*folder && strncmp(folder, "import ", 7) != 0 && *folder != '#')
        read_torch(d, *folder == '/' ? folder : kr_arena_print(d->arena, "%s/%s", site, folder));
    }
  }
}

void doc_read_site(doc *d, const char *site) {
  DIR *dir = opendir(site);
  if (!dir || doc_has_text(&d->evidence.sites, site)) {
    if (dir) closedir(dir);
    else doc_add_text(d, &d->found->unreadable, kr_arena_print(d->arena, "cannot read the folder %s", site));
    return;
  }
  doc_add_text(d, &d->evidence.sites, site);
  d->evidence.is_environment = 1;
  size_t first = d->evidence.packages.n;
  for (struct dirent *entry; (entry = readdir(dir));) {
    size_t n = strlen(entry->d_name);
    if (n > 10 && strcmp(entry->d_name + n - 10, ".dist-info") == 0 && *entry->d_name != '~')
      read_dist_info(d, site, kr_arena_print(d->arena, "%s", entry->d_name));
    if (*entry->d_name == '~')
      doc_add_text(d, &d->evidence.left_overs, kr_arena_print(d->arena, "%s/%s", site, entry->d_name));
    if (n > 4 && strcmp(entry->d_name + n - 4, ".pth") == 0)
      doc_add_text(d, &d->evidence.path_files, kr_arena_print(d->arena, "%s/%s", site, entry->d_name));
  }
  closedir(dir);
  if (!d->target.python) d->target.python = python_of_path(site), d->target.python_source = "the folder's name";
  if (!*d->target.prefix) {
    const char *lib = strstr(site, "/lib/python3.");
    if (lib) d->target.prefix = kr_arena_copy(d->arena, site, (size_t)(lib - site));
  }
  read_torch(d, site);
  read_path_files(d, site);
  for (size_t i = first; i < d->evidence.packages.n; i++) {
    doc_package copy = *KR_AT(d->evidence.packages, doc_package, i); /* the list may be reallocated */
    read_record(d, &copy);
  }
  walk_libraries(d, site, 0);
}

static int is_site(const doc *d, const char *path) {
  const char *name = strrchr(path, '/');
  name = name ? name + 1 : path;
  if (strcmp(name, "site-packages") == 0 || strcmp(name, "dist-packages") == 0) return 1;
  DIR *dir = opendir(path);
  int found = 0;
  if (!dir) return 0;
  for (struct dirent *entry; !found && (entry = readdir(dir));) found = strstr(entry->d_name, ".dist-info") != NULL;
  closedir(dir);
  (void)d;
  return found;
}

/* "key = value" of pyvenv.cfg; "" without it. */
static const char *setting(const doc *d, const char *text, const char *key) {
  size_t n = strlen(key);
  for (const char *line = text; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
    if (strncmp(line, key, n) != 0 || (line[n] != ' ' && line[n] != '=')) continue;
    const char *value = line + n + strspn(line + n, " =");
    return kr_arena_copy(d->arena, value, strcspn(value, "\r\n"));
  }
  return "";
}

static int read_prefix(doc *d, const char *prefix);

/* What a virtual environment takes from its base interpreter: the version, and the packages if configured. */
static void read_base(doc *d, const char *prefix) {
  const char *text = doc_read_text(d, kr_arena_print(d->arena, "%s/pyvenv.cfg", prefix), 65536),
             *home = setting(d, text, "home"), *slash = strrchr(home, '/');
  const char *version = setting(d, text, "version");
  if (!*version) version = setting(d, text, "version_info");
  if (strncmp(version, "3.", 2) == 0 && atoi(version + 2) > 0 && !d->target.has_pyvenv)
    d->target.python = 300 + atoi(version + 2), d->target.python_source = "pyvenv.cfg";
  if (text && d->target.has_pyvenv++) return; /* one level: a base is not a virtual environment */
  if (strncasecmp(setting(d, text, "include-system-site-packages"), "true", 4) == 0 && slash)
    read_prefix(d, doc_path(d, kr_arena_copy(d->arena, home, (size_t)(slash - home))));
}

/* The site-packages of an environment's lib/python3.*; 1 when there was one. */
static int read_prefix(doc *d, const char *prefix) {
  const char *lib = kr_arena_print(d->arena, "%s/lib", prefix);
  DIR *dir = opendir(lib);
  int found = 0;
  if (!dir) return 0;
  for (struct dirent *entry; (entry = readdir(dir));) {
    if (strncmp(entry->d_name, "python3", 7) != 0) continue;
    static const char *const names[] = {"site-packages", "dist-packages"};
    for (int i = 0; i < 2; i++) {
      const char *site = kr_arena_print(d->arena, "%s/%s/%s", lib, entry->d_name, names[i]);
      if (access(site, R_OK) != 0) continue;
      if (!*d->target.prefix) d->target.prefix = prefix;
      doc_read_site(d, site);
      found = 1;
    }
  }
  closedir(dir);
  if (found) read_base(d, prefix);
  return found;
}

/* A project's folder: the environment inside, by its usual names. */
static int read_project(doc *d, const char *folder) {
  static const char *const names[] = {".venv", "venv", "env"};
  for (int i = 0; i < 3; i++) {
    const char *inside = kr_arena_print(d->arena, "%s/%s", folder, names[i]);
    if (access(kr_arena_print(d->arena, "%s/pyvenv.cfg", inside), F_OK) == 0 && read_prefix(d, inside)) return 1;
  }
  return 0;
}

void doc_read_folder(doc *d, const char *path) {
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  const char *folder = kr_arena_copy(d->arena, path, n);
  if (is_site(d, folder)) doc_read_site(d, folder);
  else if (!read_prefix(d, folder) && !read_project(d, folder)) walk_libraries(d, folder, 0);
}

static const char *python_prefix_on_path(const doc *d) {
  const char *path = kr_env_foreign("PATH");
  char real[4096];
  for (const char *p = path ? path : ""; *p;) {
    size_t n = strcspn(p, ":");
    if (n && realpath(kr_arena_print(d->arena, "%.*s/python3", (int)n, p), real)) {
      char *bin = strstr(real, "/bin/python3");
      if (bin) return kr_arena_copy(d->arena, real, (size_t)(bin - real));
    }
    p += n + (p[n] == ':');
  }
  return "";
}

void doc_find_environment(doc *d) {
  const char *venv = kr_env_foreign("VIRTUAL_ENV"), *conda = kr_env_foreign("CONDA_PREFIX");
  if (venv && *venv && read_prefix(d, venv)) return;
  if (conda && *conda && read_prefix(d, conda)) return;
  if (access(".venv", F_OK) == 0 && read_prefix(d, ".venv")) return;
  if (*d->root) {
    read_prefix(d, doc_path(d, "/usr"));
    read_prefix(d, doc_path(d, "/usr/local"));
    return;
  }
  const char *prefix = python_prefix_on_path(d);
  if (*prefix && read_prefix(d, prefix)) return;
}

/* ---- wheels ---- */
static const char *site_member_text(const doc *d, kr_zip *zip, int64_t i) {
  kr_source *source;
  if (i < 0 || kr_zip_source_open(zip, i, &source) < 0) return "";
  size_t n = source->size < MAX_META_BYTES ? (size_t)source->size : MAX_META_BYTES;
  char *text = kr_arena_alloc(d->arena, n + 1);
  if (!text || kr_source_read(source, 0, text, n) < 0) text = NULL;
  kr_zip_source_close(&source);
  return text ? text : "";
}

/* Of the first .dist-info folder. */
static int64_t find_member(kr_zip *zip, const char *suffix) {
  size_t length = strlen(suffix);
  for (int64_t i = 0; i < kr_zip_n(zip); i++) {
    kr_zip_member member;
    if (kr_zip_member_at(zip, i, &member) < 0) continue;
    size_t n = strlen(member.name);
    if (n >= length && strcmp(member.name + n - length, suffix) == 0) return i;
  }
  return -1;
}

/* Where each path's line begins in RECORD. */
static kr_names index_record(const doc *d, const char *record) {
  kr_names lines = {0};
  for (const char *line = record; *line && !kr_arena_failed(d->arena);) {
    size_t length = strcspn(line, "\n"), n = strcspn(line, ",\n");
    if (doc_is_library_name(kr_arena_copy(d->arena, line, n)))
      *kr_names_put(d->arena, &lines, kr_arena_copy(d->arena, line, n)) = (size_t)(line - record) + 1;
    line += length + (line[length] == '\n');
  }
  return lines;
}

static void check_member(const doc *d, const char *record, const kr_names *lines, const char *member,
                         const doc_file *file, const doc_package *p) {
  const size_t *at = kr_names_find(lines, member);
  const char *field[3];
  if (!at) return;
  const char *line = record + *at - 1;
  size_t length = strcspn(line, "\n");
  if (split_record(kr_arena_copy(d->arena, line, length - (length && line[length - 1] == '\r')), field))
    check_record(d, file, p, field[1], field[2]);
}

typedef struct wheel_reader {
  const char *path;
  doc_package package;
} wheel_reader;

static void read_site_member(doc *own, kr_source *source, const char *name, void *user) {
  const wheel_reader *r = user;
  const char *path = kr_arena_print(own->arena, "%s/%s", r->path, name), *slash = strrchr(name, '/');
  if (!doc_is_library_name(name)) {
    doc_read_compiler(own, source,
                      &(doc_file){.path = path, .name = slash ? slash + 1 : name, .package = r->package.name});
    return;
  }
  own->evidence.owner = r->package.name, own->evidence.owner_version = r->package.version;
  doc_file *file = doc_inspect_source(own, source, path);
  if (file) file->in_wheel = 1;
}

void doc_read_wheel(doc *d, const char *path) {
  kr_zip *zip;
  if (kr_zip_open(path, &zip) < 0) {
    const char *keys[] = {"why", kr_arena_print(d->arena, "%s", krait_error_detail()), NULL};
    doc_report(d, "F01", &(doc_file){.path = path, .name = path, .package = "", .package_version = ""}, "", keys);
    return;
  }
  const char *metadata = site_member_text(d, zip, find_member(zip, ".dist-info/METADATA")),
             *wheel = site_member_text(d, zip, find_member(zip, ".dist-info/WHEEL"));
  const char *record = site_member_text(d, zip, find_member(zip, ".dist-info/RECORD"));
  wheel_reader r = {.path = path, .package = *doc_add_package(d, metadata, wheel, "")};
  const size_t first = d->evidence.files.n, n = strlen(path) + 1;
  KR_AT(d->evidence.packages, doc_package, d->evidence.packages.n - 1)->site = r.package.site = path;
  doc_index_package(d, d->evidence.packages.n - 1);
  const kr_names lines = index_record(d, record);
  doc_each_member(d, path, zip, read_site_member, &r);
  kr_zip_close(&zip);
  for (size_t i = first; i < d->evidence.files.n; i++)
    check_member(d, record, &lines, KR_AT(d->evidence.files, doc_file, i)->path + n,
                 KR_AT(d->evidence.files, doc_file, i), &r.package);
}
