/* commands.c: from a package and the target to commands that can be run as printed. Versions are pinned; "" where none
 * is known to work. */
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"

enum { NEWEST_MINOR = 40 };

const doc_table_line *doc_package_row(const doc *d, const char *package) {
  return kr_tables_find(d->tables, "package", package);
}

static const char *source_of(const doc_table_line *row) { return row ? row->column[7] : ""; }

/* ---- targets ---- */
int doc_covers(const char *targets, int cc) {
  for (const char *p = targets; *p; p += strcspn(p, " "), p += strspn(p, " "))
    if (atoi(p) / 10 == cc / 10 && atoi(p) <= cc) return 1;
  return 0;
}

/* The target to build for: the device's own, or the package's newest that runs on it; 0: none. */
static int build_target(const doc_table_line *row, int cc) {
  int best = 0;
  if (!row || !*row->column[6] || !cc) return cc;
  for (const char *p = row->column[6]; *p; p += strcspn(p, " "), p += strspn(p, " "))
    if (atoi(p) / 10 == cc / 10 && atoi(p) <= cc && atoi(p) > best) best = atoi(p);
  return best;
}

/* "A=1 B=%cc%" with the target filled in; words with an unknown value are left out: the build then detects the
 * machine's GPU itself. */
static const char *fill_archs(const doc *d, const char *text, int cc) {
  kr_text out = kr_text_begin(d->arena);
  for (const char *p = text; *p; p += strspn(p, " ")) {
    size_t n = strcspn(p, " ");
    const char *word = kr_arena_copy(d->arena, p, n), *mark = strchr(word, '%');
    p += n;
    if (mark && !cc) continue;
    if (out.length) kr_text_print(&out, " ");
    if (!mark) kr_text_print(&out, "%s", word);
    else
      kr_text_print(&out, "%.*s%s%s", (int)(mark - word), word,
                    mark[1] == 's' ? kr_arena_print(d->arena, "%d", cc) : kr_print_cc(d->arena, cc), mark + 4);
  }
  return out.at;
}

/* ---- releases ---- */
static int commands_serves(const doc *d, const doc_table_line *row, int cc) {
  int first = kr_parse_torch(row->column[5]), last = kr_parse_torch(row->column[6]);
  if (d->target.torch_number && (d->target.torch_number < first || (last && d->target.torch_number > last))) return 0;
  return !cc || doc_covers(row->column[4], cc);
}

/* For packages released as wheels only: the newest release above this version whose wheels were read and have code for
 * the device. */
static const char *holder_of(const doc *d, const char *package, const char *version, int cc) {
  const doc_table_line *row;
  const char *newest = "";
  for (size_t at = 0; cc && (row = kr_tables_next(d->tables, "holds", &at));) {
    const int ptx = atoi(row->column[3]);
    if (strcmp(row->column[0], package) == 0 && (doc_covers(row->column[2], cc) || (ptx && ptx <= cc)) &&
        (!*version || kr_compare_versions(row->column[1], version) > 0))
      newest = row->column[1];
  }
  return newest;
}

/* The release to install: this one if its wheels fit the device and the torch, else the newest that does. "" when the
 * tables know none. */
static const char *release_of(const doc *d, const char *package, const char *version, int cc, int not_this) {
  const doc_table_line *row;
  const char *newest = "";
  for (size_t at = 0; (row = kr_tables_next(d->tables, "wheel", &at));) {
    if (strcmp(row->column[0], package) != 0 || !commands_serves(d, row, cc)) continue;
    const char *last = row->column[8];
    int is_this = *version && kr_compare_versions(version, row->column[1]) >= 0 &&
                  (!*row->column[2] || kr_compare_versions(version, row->column[2]) <= 0);
    if (is_this && !not_this) return version;
    if (*last && (!is_this || !not_this || kr_compare_versions(last, version) > 0)) newest = last;
  }
  return *newest ? newest : holder_of(d, package, version, cc);
}

/* The version without a local build's suffix, as an index would list it. */
static const char *public_version(const doc *d, const char *version) {
  if (strstr(version, "dev") || strstr(version, "git") || strstr(version, "a0")) return "";
  return kr_arena_copy(d->arena, version, strcspn(version, "+"));
}

/* The same, if the package index has it; else "", and the newest is taken. */
static const char *listed_version(const doc *d, const char *package, const char *version) {
  const char *number = doc_nearest_release(d, package, public_version(d, version));
  return *number && doc_fits_python(d, package, number) ? number : "";
}

const doc_table_line *doc_torch_row(const doc *d, int torch) {
  return torch ? kr_tables_find(d->tables, "torch", kr_print_torch(d->arena, torch)) : NULL;
}

/* For a package of which each release needs one torch: its column of [torch]; else 0. */
int doc_companion_column(const char *package) {
  return strcmp(package, "torchvision") == 0  ? 2
         : strcmp(package, "torchaudio") == 0 ? 3
         : strcmp(package, "triton") == 0     ? 4
         : strcmp(package, "xformers") == 0   ? 7
                                              : 0;
}

/* ---- torch ---- */
/* The newest build of this torch for the device whose CUDA the driver supports; its index, or NULL. tag NULL: any. */
const char *doc_torch_index(const doc *d, int torch, int cc, const char *tag) {
  const doc_table_line *row;
  const char *found = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "torchbuild", &at));) {
    int first = kr_parse_torch(row->column[0]), last = kr_parse_torch(row->column[1]),
        gate = kr_tables_gate(d->tables, atoi(row->column[2] + 2) / 10);
    if ((strcmp(row->column[4], "aarch64") == 0) != (d->target.machine == KR_ELF_AARCH64)) continue;
    if (torch < first || (last && torch > last) || (tag && strcmp(row->column[2], tag) != 0) ||
        (cc && !doc_covers(row->column[3], cc)))
      continue;
    if (!d->target.driver_number || d->target.driver_number >= gate) found = row->column[2];
  }
  return found;
}

/* The CUDA of a release on the package index; 0: not known. */
static int cuda_of_release(const doc *d, const char *package, const char *version) {
  const doc_table_line *row;
  for (size_t at = 0; *version && (row = kr_tables_next(d->tables, "cuda", &at));)
    if (strcmp(row->column[0], package) == 0 && kr_compare_versions(version, row->column[1]) >= 0 &&
        (!*row->column[2] || kr_compare_versions(version, row->column[2]) <= 0))
      return atoi(row->column[3]);
  return 0;
}

/* Of what the text's own names end in: mxnet-cu112, nvidia-cublas-cu11; 0: in none. */
static int cuda_of_tags(const doc *d) {
  static const char *const tags[] = {"-cu", "+cu", "_cu"};
  for (size_t i = 0; d->log.text && i < sizeof tags / sizeof *tags; i++)
    for (const char *p = d->log.text; (p = strstr(p, tags[i])); p += 3) {
      const int n = atoi(p + 3), major = n >= 100 ? n / 10 : n;
      if (major >= 10 && major <= 13) return major;
    }
  return 0;
}

/* By the release that the text names; an older TensorFlow by the words of its loader. */
int doc_cuda_of(const doc *d, const char *package) {
  const int cuda = cuda_of_release(d, package, doc_version_of(d, package));
  if (cuda) return cuda;
  if (strcmp(package, "tensorflow") == 0 && d->log.text && strstr(d->log.text, "dso_loader")) return 11;
  return *d->target.torch_cuda ? kr_parse_tenths(d->target.torch_cuda) / 10 : cuda_of_tags(d);
}

const char *doc_index_for(const doc *d, int cc) {
  int cuda = d->target.driver_cuda ? d->target.driver_cuda / 1000 : 0;
  if (cc && cc < 75) return "cu126";
  if (cc >= 103 && cc != 120) return cuda && cuda < 13 ? "cu129" : "cu130";
  return cuda >= 13 ? "cu130" : "cu128";
}

static int is_installed(const doc *d, const char *name) { return doc_find_package(d, name) != NULL; }

/* The release of a companion for exactly this torch, else for the last one of its minor version; "". */
static const char *companion_of(const doc *d, const char *name, const char *torch) {
  static const char *const names[] = {"torchvision", "torchaudio", "xformers"};
  const doc_table_line *exact = kr_tables_find(d->tables, "companion", torch),
                       *minor = doc_torch_row(d, kr_parse_torch(torch));
  for (int i = 0; i < 3 && exact; i++)
    if (strcmp(name, names[i]) == 0) return exact->column[1 + i];
  return minor && doc_companion_column(name) ? minor->column[doc_companion_column(name)] : "";
}

/* From 2.11 on the package index itself has the builds of CUDA 13, but not of xformers. */
static const char *index_option(const doc *d, const char *torch, const char *index, const char *xformers) {
  const int is_13 = strncmp(index, "cu13", 4) == 0, of_xformers = cuda_of_release(d, "xformers", xformers);
  if (d->log.is_mac ||
      (kr_parse_torch(torch) >= 211 && is_13 && !d->log.is_windows && (!of_xformers || of_xformers == 13)))
    return "";
  return kr_arena_print(d->arena, " --index-url https://download.pytorch.org/whl/%s", index);
}

/* torch of this minor version with those of its companions that are installed, or in the log, all pinned. */
static const char *torch_with(const doc *d, int torch, const char *index) {
  const doc_table_line *row = doc_torch_row(d, torch);
  if (!row || !index) return "";
  const char *same = d->target.torch_number == torch ? public_version(d, d->target.torch) : "";
  if (strspn(same, "0123456789.") < 5 || !doc_has_release(d, "torch", same)) same = row->column[1];
  kr_text out = kr_text_begin(d->arena);
  kr_text_print(&out, "pip install --force-reinstall torch==%s", same);
  static const char *const names[] = {"torchvision", "torchaudio", "xformers"};
  const char *xformers = "";
  for (int i = 0; i < 3; i++) {
    const char *version = companion_of(d, names[i], same);
    if ((!is_installed(d, names[i]) && !*doc_version_of(d, names[i])) || !*version) continue;
    kr_text_print(&out, " %s==%s", names[i], version);
    if (i == 2) xformers = version;
  }
  kr_text_print(&out, "%s", index_option(d, same, index, xformers));
  return out.at;
}

/* The newest torch whose build of this index, or of any, has code for the device and a wheel for the Python. */
static const char *newest_torch_of(const doc *d, int cc, const char *wanted) {
  const doc_table_line *row, *best = NULL;
  const char *index = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "torch", &at));) {
    const char *found = doc_torch_index(d, kr_parse_torch(row->column[0]), cc, wanted);
    if (found && doc_fits_python(d, "torch", row->column[1])) best = row, index = found;
  }
  return best ? torch_with(d, kr_parse_torch(best->column[0]), index) : "";
}

static const char *torch_for_driver(const doc *d) {
  int cc = doc_main_cc(d);
  const char *index = d->target.torch_number ? doc_torch_index(d, d->target.torch_number, cc, NULL) : NULL,
             *wanted = doc_index_for(d, cc);
  if (index && doc_torch_index(d, d->target.torch_number, cc, wanted)) index = wanted;
  if (index && doc_torch_row(d, d->target.torch_number)) return torch_with(d, d->target.torch_number, index);
  const char *command = newest_torch_of(d, cc, wanted);
  return *command ? command : newest_torch_of(d, cc, NULL);
}

/* NVIDIA's index for a Jetson; Thor's JetPack 7 takes the builds of every other Arm machine. */
static const char *jetson_index(const doc *d) {
  if (!d->log.is_jetson && doc_main_cc(d) != 87 && doc_main_cc(d) != 72) return "";
  if (doc_main_cc(d) == 110 || d->log.jetpack >= 7) return "";
  return d->log.jetpack == 5 || d->log.jetpack == 4 || doc_main_cc(d) == 72
             ? "--no-cache-dir https://developer.download.nvidia.com/compute/redist/jp/v512/pytorch/"
               "torch-2.1.0a0+41361538.nv23.06-cp38-cp38-linux_aarch64.whl"
             : "torch --index-url https://pypi.jetson-ai-lab.io/jp6/cu126";
}

/* The installed torch's minor version if a build of it supports the device, else the newest that does; for the
 * installed driver, if possible. */
static const char *torch_install(const doc *d) {
  const char *command = torch_for_driver(d);
  doc any_driver = *d;
  any_driver.target.driver_number = 0;
  if (!*command) command = torch_for_driver(&any_driver);
  if (*jetson_index(d)) return kr_arena_print(d->arena, "pip install %s", jetson_index(d));
  if (*command || !doc_main_cc(d)) return command;
  return kr_arena_print(d->arena,
                        "no wheel of torch known to these tables has code for %s on %s: build it from source, with "
                        "TORCH_CUDA_ARCH_LIST=%s",
                        kr_print_cc(d->arena, doc_main_cc(d)),
                        d->target.machine == KR_ELF_AARCH64 ? "aarch64" : "x86_64",
                        kr_print_cc(d->arena, doc_main_cc(d)));
}

static const char *torch_older(const doc *d) {
  doc with_driver = *d;
  if (!d->target.driver_number && d->log.driver_cuda)
    with_driver.target.driver_number = kr_tables_gate(d->tables, d->log.driver_cuda / 10);
  return with_driver.target.driver_number ? newest_torch_of(&with_driver, doc_main_cc(d), NULL) : "";
}

static const char *torch_for_nvcc(const doc *d, const char *nvcc) {
  const doc_table_line *row;
  int have = kr_parse_tenths(nvcc), cc = doc_main_cc(d), torch = 0;
  const char *index = NULL;
  for (size_t at = 0; have && (row = kr_tables_next(d->tables, "torchbuild", &at));) {
    int last = *row->column[1] ? kr_parse_torch(row->column[1]) : 211;
    if (atoi(row->column[2] + 2) / 10 != have / 10 || (cc && !doc_covers(row->column[3], cc)) || last < torch) continue;
    if (doc_torch_row(d, last)) index = row->column[2], torch = last;
  }
  return index ? torch_with(d, torch, index) : "";
}

/* The NVIDIA libraries that torch's metadata names, or torch again with all of them. */
static const char *torch_libraries(const doc *d) {
  const doc_package *torch = doc_find_package(d, "torch");
  kr_text out = kr_text_begin(d->arena);
  for (size_t i = 0; torch && i < torch->requires.n; i++) {
    doc_requirement r;
    if (strncmp(DOC_TEXT(torch->requires, i), "nvidia-", 7) != 0 ||
        !doc_read_requirement(d, DOC_TEXT(torch->requires, i), &r) || !*r.spec)
      continue;
    kr_text_print(&out, " \"%s%s\"", r.name, r.spec);
  }
  if (out.length) return kr_arena_print(d->arena, "pip install --force-reinstall --no-deps%s", out.at);
  return d->target.torch_number && strspn(d->target.torch, "0123456789.") >= 5
             ? torch_with(d, d->target.torch_number,
                          strstr(d->target.torch, "+cu") ? strstr(d->target.torch, "+cu") + 1
                                                  : doc_torch_index(d, d->target.torch_number, doc_main_cc(d), NULL))
             : "";
}

/* ---- packages ---- */
/* Where no release is known: the tables' newest that fits, or the newest of all. */
static const char *pinned(const doc *d, const char *package, const char *version) {
  const doc_table_line *row, *last = NULL;
  if (*version) return version;
  const char *found = release_of(d, package, "", doc_main_cc(d), 0);
  for (size_t at = 0; (row = kr_tables_next(d->tables, "wheel", &at));)
    if (strcmp(row->column[0], package) == 0 && *row->column[8]) last = row;
  if (*found || last) return *found ? found : last->column[8];
  row = kr_tables_find(d->tables, "newest", package);
  return row ? row->column[1] : "";
}

/* krait's drop-in is installed under the package's name: nothing of upstream's is put over it. */
static const char *own_install(const doc *d, const char *package) {
  const doc_package *p = *package ? doc_find_package(d, package) : NULL;
  return p && strstr(p->version, "+krait") ? kr_arena_print(d->arena, "python3 -m krait dropin on %s --force", package)
                                            : "";
}

static const char *build(const doc *d, const char *package, const char *version, int is_forced) {
  if (*own_install(d, package)) return own_install(d, package);
  const doc_table_line *row = doc_package_row(d, package);
  version = pinned(d, package, version);
  const char *source = source_of(row),
             *variables = row && is_forced ? fill_archs(d, row->column[2], build_target(row, doc_main_cc(d))) : "";
  const char *head =
      kr_arena_print(d->arena, "%s%spip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall",
                     variables, *variables ? " " : "");
  if (!row || strcmp(source, "none") == 0 || strcmp(source, "torch") == 0 || strcmp(source, "python") == 0) return "";
  if (strncmp(source, "git+", 4) == 0) return kr_arena_print(d->arena, "%s %s", head, source);
  const char *pin = *version ? kr_arena_print(d->arena, "%s==%s", package, version) : package;
  return kr_arena_print(d->arena, "%s %s%s%s", head,
                        is_forced ? kr_arena_print(d->arena, "--no-binary %s ", package) : "", pin, "");
}

/* A prebuilt release for this torch and device; "" when the tables know none. */
static const char *release(const doc *d, const char *package, const char *version, int not_this) {
  if (*own_install(d, package)) return own_install(d, package);
  const char *found = release_of(d, package, version, doc_main_cc(d), not_this);
  const doc_table_line *row = doc_torch_row(d, d->target.torch_number), *about = doc_package_row(d, package);
  int column = doc_companion_column(package);
  if (d->log.is_mac && !column) return "";
  if (*found && about && strcmp(about->column[7], "none") == 0)
    return kr_arena_print(d->arena, "pip install --no-deps --force-reinstall %s==%s", package, found);
  if (*found && (d->target.torch_number || doc_main_cc(d)))
    return kr_arena_print(
        d->arena, "pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall %s==%s", package, found);
  if (!column || !row || !*row->column[column]) return "";
  const char *index = strstr(d->target.torch, "+cu") ? strstr(d->target.torch, "+cu") + 1
                                                     : doc_torch_index(d, d->target.torch_number, doc_main_cc(d), NULL);
  const char *torch = public_version(d, d->target.torch),
             *version_for = companion_of(d, package, strspn(torch, "0123456789.") >= 5 ? torch : row->column[1]);
  if (!*version_for) return "";
  return kr_arena_print(d->arena, "pip install --no-deps --force-reinstall %s==%s%s", package, version_for,
                        index_option(d, torch, index ? index : "cu128",
                                     strcmp(package, "xformers") == 0 ? version_for : ""));
}

/* The release for the installed torch, if the tables know it; else the same release again, which brings its own
 * torch. */
static const char *wheels_only(const doc *d, const char *package, const char *version) {
  const doc_table_line *row;
  for (size_t at = 0; d->target.torch_number && (row = kr_tables_next(d->tables, "asks", &at));)
    if (strcmp(row->column[0], package) == 0 && kr_parse_torch(row->column[3]) == d->target.torch_number)
      return kr_arena_print(d->arena, "pip install --force-reinstall %s==%s", package, row->column[2]);
  row = kr_tables_find(d->tables, "newest", package);
  if (!*version && row) version = row->column[1];
  return kr_arena_print(d->arena, "pip install --force-reinstall %s%s%s", package, *version ? "==" : "", version);
}

/* For an extension that does not fit the torch to be kept: a prebuilt release, else its source, built here. */
static const char *rebuild(const doc *d, const char *package, const char *version) {
  const char *ready = release(d, package, listed_version(d, package, version), 0),
             *built = build(d, package, listed_version(d, package, version), 1);
  const doc_table_line *row = doc_package_row(d, package);
  if (*ready && (d->target.torch_number || !doc_companion_column(package))) return ready;
  if (*d->log.source && *package)
    return kr_arena_print(d->arena, "cd %s && pip install --no-build-isolation --no-deps --force-reinstall -e .",
                          d->log.source);
  if (*built) return built;
  const doc_table_line *source = kr_tables_find(d->tables, "source", package);
  const int is_release = !*d->target.torch || *public_version(d, d->target.torch);
  if (source && doc_companion_column(package) && !is_release) return source->column[1];
  if (row && strcmp(source_of(row), "torch") == 0) return torch_install(d);
  if (row && strcmp(source_of(row), "none") == 0)
    return wheels_only(d, package,
                       public_version(d, version)); /* its metadata requires the torch that it was built for */
  const char *library = d->log.files.n ? DOC_TEXT(d->log.files, d->log.files.n - 1) : "",
             *slash = strrchr(library, '/');
  if (!*package && *d->log.source && slash) /* built in its own folder */
    package = kr_arena_copy(d->arena, slash + 1, strcspn(slash + 1, "."));
  return *package ? kr_arena_print(
                        d->arena,
                        "in the source folder of %s: pip install --no-build-isolation --no-deps --force-reinstall .",
                        package)
                  : "";
}

static const char *reinstall(const doc *d, const char *package, const char *version) {
  const doc_table_line *row = doc_package_row(d, package);
  const char *number = listed_version(d, package, version);
  if (row && strcmp(source_of(row), "pypi") == 0 && *number) return build(d, package, number, 0);
  if (doc_comes_with_torch(package) && strncmp(package, "nvidia-", 7) != 0 && strcmp(package, "triton") != 0)
    return torch_install(d);
  if (row && strncmp(source_of(row), "git+", 4) == 0) return build(d, package, "", 1);
  if (row && strcmp(source_of(row), "pypi") == 0) return rebuild(d, package, number);
  if (*number)
    return kr_arena_print(d->arena, "pip install --force-reinstall --no-cache-dir --no-deps %s==%s", package, number);
  return row ? kr_arena_print(d->arena, "pip install --force-reinstall --no-cache-dir %s", package) : "";
}

/* The tables know what some release of it holds. */
static int is_known_holder(const doc *d, const char *package) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "wheel", &at));)
    if (strcmp(row->column[0], package) == 0) return 1;
  return kr_tables_find(d->tables, "holds", package) != NULL || doc_companion_column(package);
}

const char *doc_no_build(const doc *d, const char *package) {
  const doc_table_line *row = doc_package_row(d, package);
  int cc = doc_main_cc(d);
  if (!cc || !row) return "";
  for (size_t i = 0; i < d->evidence.files.n; i++) { /* one of its libraries has */
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (strcmp(file->package, package) == 0 && file->n_judged && file->verdict <= KRAIT_VERDICT_JIT) return "";
  }
  if (strcmp(source_of(row), "none") == 0 && !is_known_holder(d, package))
    return ""; /* nothing is known of its releases */
  if (strcmp(source_of(row), "none") == 0)
    return kr_arena_print(
        d->arena, "no release of %s known to these tables has code for %s, and there is no source release to build",
        package, kr_print_cc(d->arena, cc));
  if (build_target(row, cc)) return "";
  return kr_arena_print(d->arena, "no release of %s has code for %s, and its source builds for sm %s only", package,
                        kr_print_cc(d->arena, cc), row->column[6]);
}

int doc_comes_with_torch(const char *package) {
  return strcmp(package, "torch") == 0 || strcmp(package, "triton") == 0 || strncmp(package, "nvidia-", 7) == 0;
}

/* "" when krait does not replace the package, or has no wheel for that system. */
const char *doc_own_dropin(const doc *d, const char *package) {
  const doc_table_line *row = doc_package_row(d, package);
  return row && strcmp(row->column[5], "yes") == 0 && !d->log.is_windows && !d->log.is_mac
             ? kr_arena_print(d->arena,
                              "or krait's own %s, which needs no build and runs on every GPU and CPU: python -m krait "
                              "dropin on %s --force",
                              package, package)
             : "";
}

const char *doc_build_command(const doc *d, const char *package) { return build(d, package, "", 1); }

static void add_commands(const doc *d, kr_list *fixes, const char *text) {
  if (*text && !doc_has_text(fixes, text)) doc_add_text(d, fixes, text);
}

/* nvcc must have the CUDA major version that torch was built with: if that is too old for the device, torch is replaced
 * first. */
static void add_toolkit(const doc *d, kr_list *fixes, int cc) {
  int need = cc ? kr_tables_first_cuda_for(d->tables, kr_arena_print(d->arena, "%d", cc)) : 0,
      major = kr_parse_tenths(d->target.torch_cuda) / 10;
  if (!need) return;
  const char *found = *d->target.nvcc ? kr_arena_print(d->arena, " (found %s%s)", d->target.nvcc,
                                                kr_parse_tenths(d->target.nvcc) < need ? ", too old: see B01" : "")
                      : d->target.is_elsewhere || *d->root ? ""
                                                    : " (none found here: see B10)";
  add_commands(d, fixes,
      kr_arena_print(d->arena, "needs nvcc >= %s%s, some minutes and memory", kr_print_tenths(d->arena, need), found));
  if (major && need / 10 > major)
    add_commands(d, fixes,
        kr_arena_print(d->arena, "torch is built with CUDA %s: for that nvcc it must be replaced first: %s",
                       d->target.torch_cuda, torch_install(d)));
}

void doc_add_build_fixes(const doc *d, kr_list *fixes, const char *package, const char *version) {
  int cc = doc_main_cc(d), must_change = cc && *version;
  const doc_table_line *row = doc_package_row(d, package);
  if (doc_comes_with_torch(package)) {
    add_commands(d, fixes, torch_install(d));
    if (cc)
      add_commands(d, fixes,
          kr_arena_print(d->arena, "which installs its own torch, triton and nvidia packages%s",
                         cc < 75 ? "; the last that support this GPU" : ""));
    return;
  }
  if (!*package && cc) {
    add_commands(d, fixes,
        kr_arena_print(
            d->arena, "build it again with -gencode arch=compute_%d,code=sm_%d (nvcc >= %s)", cc, cc,
            kr_print_tenths(d->arena, kr_tables_first_cuda_for(d->tables, kr_arena_print(d->arena, "%d", cc)))));
    return;
  }
  const char *ready = release(d, package, public_version(d, version), must_change), *none = doc_no_build(d, package);
  const doc_table_line *source = kr_tables_find(d->tables, "source", package);
  add_commands(d, fixes, ready);
  const doc_table_line *gpu = kr_tables_find(d->tables, "gpubuild", package);
  if (gpu && !*ready && !is_known_holder(d, package))
    add_commands(d, fixes, gpu->column[d->log.is_windows && *gpu->column[2] ? 2 : 1]);
  if (source && !*ready && !doc_companion_column(package) && (!cc || build_target(row, cc)))
    add_commands(d, fixes, source->column[1]);
  if (*none && !*ready) {
    add_commands(d, fixes, none);
    add_commands(d, fixes, *row->column[8] ? kr_arena_print(d->arena, "use instead %s", row->column[8]) : "");
  } else if (!*none) {
    const char *built = build(d, package, *ready ? "" : public_version(d, version), 1);
    add_commands(d, fixes, *built || *ready || !*package ? built : rebuild(d, package, version));
    if (*built) add_toolkit(d, fixes, cc);
  }
  add_commands(d, fixes, doc_own_dropin(d, package));
}

/* Both of a pair in compatible releases, or a package in the release for the installed torch. */
const char *doc_pair_command(const doc *d, const char *package, const doc_table_line *pair) {
  const doc_table_line *row = doc_package_row(d, package);
  const char *ready =
      doc_companion_column(package) || strcmp(package, "bitsandbytes") == 0 ? release(d, package, "", 0) : "";
  if (*ready) return ready;
  if (!pair && doc_companion_column(package)) {
    const doc_table_line *torch = doc_torch_row(d, 210);
    return !torch
               ? ""
               : kr_arena_print(
                     d->arena,
                     "pip install --force-reinstall torch==%s %s==%s --index-url https://download.pytorch.org/whl/%s",
                     torch->column[1], package, torch->column[doc_companion_column(package)],
                     doc_index_for(d, doc_main_cc(d)));
  }
  if (!pair) return row && strcmp(source_of(row), "pypi") == 0 && !*row->column[3] ? build(d, package, "", 0) : "";
  const char *first = release_of(d, pair->column[0], "", doc_main_cc(d), 0),
             *second = release_of(d, pair->column[3], "", doc_main_cc(d), 0);
  if (!*first || !*second) return "";
  return kr_arena_print(d->arena,
                        "pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall %s==%s %s==%s",
                        pair->column[0], first, pair->column[3], second);
}

/* ---- by key ---- */
/* The branch that serves all GPUs; where it does not suffice, being there, the newest that the tables know. */
static const char *driver_branch(const doc *d) {
  const doc_table_line *row = kr_tables_find(d->tables, "driver", "branch");
  const char *branch = row ? row->column[1] : "580", *newest = branch;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "toolkit", &at));) newest = row->column[2];
  return d->target.driver_number < kr_parse_driver(branch) || (doc_main_cc(d) && doc_main_cc(d) < 75) ? branch : newest;
}

static const char *driver_install(const doc *d) {
  const char *branch = driver_branch(d);
  if (d->log.is_jetson) return "sudo apt update && sudo apt install nvidia-jetpack && sudo reboot";
  if (d->log.is_wsl)
    return kr_arena_print(
        d->arena, "in Windows: install driver %s or newer from https://www.nvidia.com/drivers, then wsl --shutdown",
        branch);
  if (d->log.is_windows)
    return kr_arena_print(d->arena, "install driver %s or newer from https://www.nvidia.com/drivers and restart",
                          branch);
  const int is_old = doc_main_cc(d) && doc_main_cc(d) < 75; /* which the open modules do not support */
  if (d->log.is_rpm)
    return kr_arena_print(d->arena, "%s && sudo dnf install -y %s && sudo reboot", doc_rpm_repository(d),
                          is_old ? "cuda-drivers" : "nvidia-open");
  if (d->log.is_arch)
    return kr_arena_print(d->arena, "sudo pacman -S %s nvidia-utils && sudo reboot",
                          is_old ? "nvidia-dkms" : "nvidia-open");
  return kr_arena_print(d->arena, "sudo apt install nvidia-driver-%s%s && sudo reboot", branch,
                        doc_main_cc(d) >= 100 ? "-open" : "");
}

/* Nothing where that driver, or a newer one, is there. */
static const char *driver_newer(const doc *d) {
  const int is_there = d->target.driver_number >= kr_parse_driver(driver_branch(d));
  return is_there && !d->log.is_jetson ? "" : driver_install(d);
}

/* The folder of the environment that a log or the command line named, quoted for a shell. */
static const char *environment(const doc *d) {
  return d->evidence.sites.n ? DOC_TEXT(d->evidence.sites, 0) : d->log.site && *d->log.site ? d->log.site
                                                           : "\"$(python3 -c 'import sysconfig; "
                                                             "print(sysconfig.get_path(\"purelib\"))')\"";
}

static const char *compiler_install(const doc *d) {
  return d->log.is_windows ? "winget install Microsoft.VisualStudio.2022.BuildTools --override \"--add "
                             "Microsoft.VisualStudio.Workload.VCTools\""
                           : "sudo apt install build-essential";
}

static const char *build_here(const doc *d, const char *package, const char *version) {
  const char *built = build(d, package, listed_version(d, package, version), 0);
  if (*built) return built;
  return *package ? rebuild(d, package, version) : "pip install --no-build-isolation --no-cache-dir .";
}

const char *doc_torch_install(const doc *d) { return torch_install(d); }

const char *doc_command(const doc *d, const char *key, const char *package, const char *version, const char *nvcc) {
  const char *machine = d->target.machine == KR_ELF_AARCH64 ? "aarch64-linux-gnu" : "x86_64-linux-gnu";
  if (strcmp(key, "driver_install") == 0) return driver_install(d);
  if (strcmp(key, "driver_newer") == 0) return driver_newer(d);
  if (strcmp(key, "torch_install") == 0) return torch_install(d);
  if (strcmp(key, "torch_older") == 0) return torch_older(d);
  if (strcmp(key, "torch_libraries") == 0) return torch_libraries(d);
  if (strcmp(key, "torch_for_nvcc") == 0) return torch_for_nvcc(d, nvcc);
  if (strcmp(key, "rebuild") == 0) return rebuild(d, package, version);
  if (strcmp(key, "own") == 0) return doc_own_dropin(d, package);
  if (strcmp(key, "reinstall") == 0) return reinstall(d, package, version);
  if (strcmp(key, "release") == 0) return release(d, package, listed_version(d, package, version), 0);
  if (strcmp(key, "build_here") == 0) return build_here(d, package, version);
  if (strcmp(key, "nvrtc_install") == 0) return doc_library_command(d, "libnvrtc.so.12", package);
  if (strcmp(key, "build_forced") == 0 && strcmp(source_of(doc_package_row(d, package)), "none") == 0) {
    const doc_table_line *source = kr_tables_find(d->tables, "source", package); /* its wheels again would not help */
    return source ? source->column[1] : "";
  }
  if (strcmp(key, "build_forced") == 0)
    return *build(d, package, "", 1) ? build(d, package, listed_version(d, package, version), 1)
                                     : build_here(d, package, version);
  if (strcmp(key, "build_jobs") == 0)
    return *build(d, package, "", 1)
               ? kr_arena_print(d->arena, "MAX_JOBS=2 %s", build(d, package, listed_version(d, package, version), 1))
               : "export MAX_JOBS=2";
  if (strcmp(key, "companion") == 0) return companion_of(d, package, public_version(d, d->target.torch));
  if (strcmp(key, "clean_build") == 0)
    return *d->log.source
               ? kr_arena_print(
                     d->arena,
                     "cd %s && rm -rf build && %s%spip install --no-build-isolation --no-deps "
                     "--force-reinstall -e .",
                     d->log.source, doc_main_cc(d) ? "TORCH_CUDA_ARCH_LIST=" : "",
                     doc_main_cc(d) ? kr_arena_print(d->arena, "%s ", kr_print_cc(d->arena, doc_main_cc(d))) : "")
               : "";
  if (strcmp(key, "fresh_build") == 0)
    return *build(d, package, "", 1) && *package
               ? kr_arena_print(d->arena, "pip uninstall -y %s && %s", package, build(d, package, "", 1))
               : "";
  if (strcmp(key, "compiler_install") == 0) return compiler_install(d);
  if (strcmp(key, "environment") == 0) return environment(d);
  if (strcmp(key, "multiarch") == 0) return machine;
  return "";
}
