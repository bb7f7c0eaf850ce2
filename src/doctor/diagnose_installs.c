/* diagnose_installs.c: what the messages of pip, conda, CMake and packages about their own installation tell: releases,
 * Pythons, builds for the CPU or for another CUDA, and what to install instead. */
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"

static void put_value(const doc *d, kr_list *keys, const char *name, const char *value) {
  if (!value || !*value) return;
  doc_add_text(d, keys, name), doc_add_text(d, keys, value);
}

static int is_for_install(const doc_hit *hit, const char *id) { return strcmp(hit->rule->id, id) == 0; }
static int install_begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static const char *version_in(const doc *d, const char *word) {
  kr_list keys = KR_LIST(const char *);
  return doc_match(d, kr_arena_print(d->arena, "%s%%d{v}", word), d->log.text, &keys) ? DOC_TEXT(keys, 1) : "";
}

/* ---- Python ---- */
/* An environment of this Python, in the words of the system. */
static const char *environment_of(const doc *d, int minor) {
  if (d->log.is_conda)
    return kr_arena_print(d->arena, "conda create -y -n py3%d python=3.%d && conda activate py3%d", minor, minor,
                          minor);
  return d->log.is_windows
             ? kr_arena_print(d->arena, "py -3.%d -m venv .venv && .venv\\Scripts\\activate", minor)
             : kr_arena_print(d->arena, "python3.%d -m venv .venv && . .venv/bin/activate", minor);
}

/* The newest Python with wheels of a release, or of the newest one for ""; 0: the tables do not know. */
static int newest_python(const doc *d, const char *package, const char *version) {
  const doc_table_line *row;
  int newest = 0;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "python", &at));) {
    const int is_in = !*version || (kr_compare_versions(version, row->column[1]) >= 0 &&
                                    (!*row->column[2] || kr_compare_versions(version, row->column[2]) <= 0));
    if (strcmp(row->column[0], package) == 0 && *row->column[4] && is_in) newest = atoi(row->column[4] + 2);
  }
  return newest;
}

/* ">=3.8", ">=3.10,<3.13": the newest that an upper bound leaves, else the lower bound, but none that is about to
 * end. */
static void fill_python(const doc *d, const doc_hit *hit, kr_list *keys) {
  const char *want = doc_taken(hit, "python_want"), *least = strstr(want, ">=3."), *below = strstr(want, "<3.");
  const int lower = least ? atoi(least + 4) : 0, upper = below ? atoi(below + 3) - 1 : 0;
  put_value(d, keys, "python_new", environment_of(d, upper ? upper : lower > 11 ? lower : 11));
}

/* ---- releases ---- */
/* Of the listed releases a post-release of the requested one, else the next newer one, else the last. */
static const char *nearest_listed(const doc *d, const char *list, const char *asked, const char **last) {
  const char *newer = "", *post = "";
  *last = "";
  for (const char *p = list; *p && *p != ')'; p += strspn(p, ", ")) {
    const size_t n = strcspn(p, ",)"), plain = strspn(p, "0123456789.");
    const char *version = kr_arena_copy(d->arena, p, n);
    p += n + !n;
    if (!n || (version[plain] && !install_begins(version + plain, "post"))) continue; /* a pre-release, or a variant */
    *last = version;
    if (!*asked) continue;
    if (install_begins(version, asked) && install_begins(version + strlen(asked), ".post")) post = version;
    if (!*newer && kr_compare_versions(version, asked) >= 0) newer = version;
  }
  return *post ? post : *newer ? newer : *last;
}

/* Where a package that the index lacks for this system is; NULL: not told. */
static const char *found_elsewhere(const doc *d, const char *name, const char **where) {
  const doc_table_line *row;
  const char *system = d->log.is_windows ? "windows" : d->log.is_mac ? "mac" : "";
  for (size_t at = 0; *system && (row = kr_tables_next(d->tables, "elsewhere", &at));)
    if (strcmp(row->column[0], name) == 0 && strcmp(row->column[1], system) == 0) {
      *where = d->log.is_windows ? "Windows" : "macOS";
      return row->column[2];
    }
  if (!d->log.is_jetson || !kr_tables_find(d->tables, "jetson", name)) return NULL;
  *where = "the Jetson's aarch64";
  return strcmp(name, "torch") == 0
             ? doc_torch_install(d)
             : kr_arena_print(d->arena, "pip install %s --index-url https://pypi.jetson-ai-lab.io/jp6/cu126", name);
}

/* No release at all: another system, or another Python. */
static void fill_none(const doc *d, kr_list *keys, const char *name) {
  const char *where = "", *instead = found_elsewhere(d, name, &where);
  const int newest = newest_python(d, name, "");
  if (strstr(d->log.text, "32 bit (Intel)")) {
    put_value(d, keys, "not_for", "a Python of 32 bit");
    put_value(d, keys, "nearest_install", "winget install -e --id Python.Python.3.11 --architecture x64");
    return;
  }
  const char *index = strstr(d->log.text, "/whl/cu");
  if (!instead && index && d->target.python && (strcmp(name, "torch") == 0 || doc_companion_column(name))) {
    put_value(d, keys, "not_for",
              kr_arena_print(d->arena, "Python 3.%d on the index %.*s", d->target.python - 300,
                             (int)strcspn(index + 5, "/ \n"), index + 5));
    put_value(d, keys, "nearest_install", doc_torch_install(d));
    return;
  }
  if (instead) {
    put_value(d, keys, "not_for", where), put_value(d, keys, "nearest_install", instead);
    return;
  }
  if (d->target.python && newest && d->target.python > 300 + newest) {
    put_value(d, keys, "not_for", kr_arena_print(d->arena, "Python 3.%d", d->target.python - 300));
    put_value(d, keys, "nearest_install",
              kr_arena_print(d->arena, "%s && pip install %s", environment_of(d, newest), name));
  }
  put_value(d, keys, "which_python", "python3 -m pip --version && uname -m");
}

/* "torch==2.1.0+cu118" is on PyTorch's own index only. */
static const char *tagged_install(const doc *d, const char *name, const char *asked) {
  const char *tag = strchr(asked, '+');
  if (tag && install_begins(tag, "+cuda")) return "pip install --upgrade \"jax[cuda12]\""; /* jaxlib's until 0.4.29 */
  if (!tag || !(install_begins(tag, "+cu") || install_begins(tag, "+cpu") || install_begins(tag, "+rocm"))) return "";
  return kr_arena_print(d->arena, "pip install %s==%s --index-url https://download.pytorch.org/whl/%s", name, asked,
                        tag + 1);
}

/* A release that has wheels for older Pythons only. */
static int fill_other_python(const doc *d, kr_list *keys, const char *name, const char *asked, const char *install) {
  const char *plain = kr_arena_copy(d->arena, asked, strcspn(asked, "+"));
  const int newest = *plain && !doc_fits_python(d, name, plain) ? newest_python(d, name, plain) : 0;
  if (!newest || d->target.python <= 300 + newest) return 0;
  put_value(d, keys, "not_for", kr_arena_print(d->arena, "Python 3.%d", d->target.python - 300));
  put_value(d, keys, "nearest_install", kr_arena_print(d->arena, "%s && %s", environment_of(d, newest), install));
  return 1;
}

/* "Could not find a version that satisfies the requirement X (from versions: 2.2.0, 2.2.1, 2.3.0)" */
static int fill_no_release(const doc *d, const doc_hit *hit, kr_list *keys) {
  const char *req = doc_taken(hit, "req"), *at = strstr(hit->line, "(from versions: "), *last;
  const size_t n = strcspn(req, "=<>!~;[");
  const char *name = doc_normalise(d, req, n), *asked = install_begins(req + n, "==") ? req + n + 2 : "";
  const char *tagged = tagged_install(d, name, asked);
  if (*asked && !strstr(d->log.text, "32 bit (Intel)") &&
      fill_other_python(d, keys, name, asked,
                                  *tagged ? tagged : kr_arena_print(d->arena, "pip install %s==%s", name, asked)))
    return 1;
  if (*tagged) {
    put_value(d, keys, "tagged_req", req), put_value(d, keys, "nearest_install", tagged);
    return 1;
  }
  if (strcmp(doc_taken(hit, "first_listed"), "none") == 0) {
    fill_none(d, keys, name);
    return 1;
  }
  const char *nearest = nearest_listed(d, at ? at + 16 : "", asked, &last);
  if (!*last) return 0;
  put_value(d, keys, "first_release", doc_taken(hit, "first_listed"));
  put_value(d, keys, "last_release", last);
  put_value(d, keys, "nearest_install", kr_arena_print(d->arena, "pip install %s==%s", name, nearest));
  return 1;
}

/* ---- builds for the CPU ---- */
static int fill_cpu_build(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  static const char *const named[][2] = {{"CUDAExecutionProvider", "onnxruntime-gpu"},
                                         {"Tree Learner", "lightgbm"},
                                         {"Device API cuda", "dgl"},
                                         {"CPU only version", "paddlepaddle-gpu"},
                                         {"USE_CUDA=1 to enable", "mxnet"},
                                         {"GPU offload", "llama-cpp-python"},
                                         {"StandardGpuResources", "faiss-gpu-cu12"},
                                         {"index_cpu_to_all", "faiss-gpu-cu12"},
                                         {"torchvision::", "torchvision"},
                                         {"xformers::", "xformers"}};
  static const char *const others[] = {"orch not compiled", "orch was not", "orch is not compiled", "kernel binaries",
                                       "itsandbytes", "TensorRT", "flash", NULL};
  for (int i = 0; others[i]; i++)
    if (strstr(hit->line, others[i])) return 0;
  for (size_t i = 0; i < sizeof named / sizeof *named; i++)
    if (strstr(hit->line, named[i][0])) *package = named[i][1];
  if (strstr(hit->line, "' backend") && !*doc_package_in(d, hit->line)) return 0; /* an operator that has no kernel */
  if (strstr(hit->line, "opencv") || strstr(d->log.text, "cv2.error")) *package = "opencv-python";
  if (strcmp(*package, "torch") == 0) *package = "";
  const doc_table_line *row = kr_tables_find(d->tables, "gpubuild", *package);
  if (row) put_value(d, keys, "gpu_build", row->column[1]);
  else if (doc_companion_column(*package)) put_value(d, keys, "gpu_build", doc_command(d, "release", *package, "", ""));
  return 1;
}

/* ---- TensorFlow, conda ---- */
static const char *tensorflow_install(const doc *d) {
  const char *version = version_in(d, "tensorflow==");
  if (!*version) version = version_in(d, "tf.__version__) ");
  if (!*version) version = version_in(d, "tensorflow ");
  if (!*version || !strchr(version, '.')) return "pip install --upgrade \"tensorflow[and-cuda]\"";
  if (kr_compare_versions(version, "2.14") >= 0)
    return kr_arena_print(d->arena, "pip install --upgrade \"tensorflow[and-cuda]==%s\"", version);
  const int is_118 = kr_compare_versions(version, "2.12") >= 0;
  return kr_arena_print(d->arena, "conda install -y -c conda-forge cudatoolkit=%s cudnn=%s", is_118 ? "11.8" : "11.2",
                        is_118 ? "8.8" : "8.1");
}

/* The CUDA that conda's package is built for: "cuda126" in its build string, or what it asks of __cuda. */
static const char *conda_cuda(const doc *d) {
  for (const char *p = d->log.text; (p = strstr(p, "cuda")); p += 4) {
    const int n = atoi(p + 4);
    if (n >= 100 && n < 1000) return kr_print_tenths(d->arena, n);
  }
  const char *asked = version_in(d, "__cuda >=");
  if (!*asked) asked = version_in(d, "pytorch-cuda=");
  return *asked ? asked : "12.6";
}

/* ---- sources older than torch ---- */
static int fill_gone(const doc *d, const doc_hit *hit, kr_list *keys) {
  const char *gone = doc_taken(hit, "gone");
  if (strcmp(gone, "AT_CHECK") == 0)
    put_value(d, keys, "newer_source", "grep -rl AT_CHECK . | xargs sed -i s/AT_CHECK/TORCH_CHECK/g");
  else if (strcmp(gone, "DeprecatedTypeProperties") == 0)
    put_value(d, keys, "newer_source",
              "grep -rl 'type()' --include='*.c*' . | xargs sed -i 's/\\.type()/.scalar_type()/g'");
  else if (!install_begins(gone, "THC") && !install_begins(gone, "THCuda")) return 0;
  else
    put_value(d, keys, "old_torch",
              "pip install --force-reinstall torch==1.10.2 torchvision==0.11.3 --index-url "
              "https://download.pytorch.org/whl/cu113");
  return 1;
}

/* ---- Visual Studio ---- */
/* The toolkit's rules, copied to where the text says that Visual Studio is. */
static int fill_toolset(const doc *d, kr_list *keys) {
  const char *cuda = version_in(d, "CUDA/v"), *year = version_in(d, "Visual Studio/");
  if (!*cuda) cuda = version_in(d, "CUDA\\v");
  if (!*year) year = version_in(d, "Visual Studio\\");
  if (!*cuda) cuda = "12.8";
  const int is_2019 = strcmp(year, "2019") == 0, is_tools = strstr(d->log.text, "BuildTools") != NULL;
  put_value(d, keys, "vs_copy",
      kr_arena_print(d->arena,
                     "copy \"C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA\\v%s\\extras\\"
                     "visual_studio_integration\\MSBuildExtensions\\*\" \"C:\\Program Files%s\\Microsoft Visual "
                     "Studio\\%s\\%s\\MSBuild\\Microsoft\\VC\\v1%d0\\BuildCustomizations\"",
                     cuda, is_tools || is_2019 ? " (x86)" : "", is_2019 ? "2019" : "2022",
                     is_tools ? "BuildTools" : "Community", is_2019 ? 6 : 7));
  return d->log.is_windows;
}

/* ---- modules ---- */
/* By its name: the part of a package that a compiler makes. */
static int is_compiled_module(const char *name) {
  static const char *const ends[] = {"_cuda",    "_ext",      "_C",       "_cpp",    "_ops",
                                     "_kernels", "_cuda_lib", "_backend", "_engine", NULL};
  const char *last = strrchr(name, '.') ? strrchr(name, '.') + 1 : name;
  const size_t n = strlen(last);
  for (int i = 0; ends[i]; i++) {
    const size_t end = strlen(ends[i]);
    if (n >= end && strcmp(last + n - end, ends[i]) == 0) return 1;
  }
  return strncmp(last, "_C", 2) == 0 || strstr(last, "cuda_") == last;
}

/* Names without a table are nobody's to install: another package of that name may be anything. */
static int fill_absent(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  const char *module = doc_taken(hit, "module"), *of = doc_taken(hit, "of_module");
  const doc_table_line *row = *of ? NULL : kr_tables_find(d->tables, "import", module);
  const int is_compiled = is_compiled_module(module);
  const char *owner = *of ? of : module;
  const char *project = kr_arena_copy(d->arena, owner, strcspn(owner, "."));
  if (!is_compiled && !row) return 0;
  if (row) {
    put_value(d, keys, "absent", module),
        put_value(d, keys, "module_pip", kr_arena_print(d->arena, "pip install %s", row->column[1]));
  } else {
    const char *built = doc_build_command(d, doc_package_in(d, project));
    put_value(d, keys, "compiled", module);
    put_value(d, keys, "module_build",
              *built ? built
                     : kr_arena_print(
                           d->arena,
                           "in the source folder of %s: pip install --no-build-isolation --no-deps --force-reinstall .",
                           project));
  }
  *package = "";
  return 1;
}

static int fill_argument(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  const doc_table_line *row = kr_tables_find(d->tables, "argument", doc_taken(hit, "argument"));
  if (!row || !(strcmp(*package, row->column[1]) == 0 || doc_is_named(doc_package_row(d, row->column[1]), d->log.text)))
    return 0;
  *package = row->column[1];
  put_value(d, keys, "argument_known", row->column[2]);
  put_value(d, keys, "argument_fix", *row->column[3] ? row->column[3] : doc_command(d, "release", *package, "", ""));
  return 1;
}

static void fill_limit(const doc *d, const doc_hit *hit, kr_list *keys) {
  const char *multiple = doc_taken(hit, "multiple"), *head = doc_taken(hit, "head_most"),
             *state = doc_taken(hit, "state_most"), *width = doc_taken(hit, "width_most");
  const int is_stride = strstr(hit->line, "stride") != NULL || strstr(hit->line, "contiguous") != NULL;
  const char *limit =
      *head       ? kr_arena_print(d->arena, "head dimension up to %s", head)
      : *state    ? kr_arena_print(d->arena, "state dimension up to %s", state)
      : *width    ? kr_arena_print(d->arena, "widths up to %s", width)
      : *multiple ? kr_arena_print(d->arena, "%s that are multiples of %s", is_stride ? "strides" : "sizes", multiple)
                  : "a contiguous last dimension";
  put_value(d, keys, "limit", limit);
  put_value(d, keys, "limit_fix",
      *head       ? "attn_implementation=\"sdpa\", PyTorch's own attention, for this model"
      : is_stride ? "x = x.contiguous() before the call, and channels that are a multiple of 8"
      : *multiple ? kr_arena_print(d->arena, "pad the sizes to a multiple of %s", multiple)
                  : "other sizes, or the reference implementation beside the kernel");
}

/* ---- by rule ---- */
int doc_fill_install(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  if (is_for_install(hit, "P17")) return fill_absent(d, hit, keys, package);
  if (is_for_install(hit, "P18")) return fill_argument(d, hit, keys, package);
  if (is_for_install(hit, "R20")) fill_limit(d, hit, keys);
  if (is_for_install(hit, "P07")) return fill_no_release(d, hit, keys);
  if (is_for_install(hit, "K26")) return fill_cpu_build(d, hit, keys, package);
  if (is_for_install(hit, "P11")) put_value(d, keys, "apex_build", doc_command(d, "build_forced", "apex", "", ""));
  if (is_for_install(hit, "P12")) {
    fill_python(d, hit, keys);
    return *doc_taken(hit, "python_asker") != '\0';
  }
  if (is_for_install(hit, "P13"))
    return strstr(d->log.text, "onflict") != NULL && install_begins(doc_taken(hit, "req"), "torch");
  if (is_for_install(hit, "L19")) put_value(d, keys, "tf_install", tensorflow_install(d)), *package = "";
  if (is_for_install(hit, "D16")) put_value(d, keys, "override_cuda", conda_cuda(d));
  if (is_for_install(hit, "B25")) return fill_gone(d, hit, keys);
  if (is_for_install(hit, "B26")) return fill_toolset(d, keys);
  return 1;
}

/* A package's build for the CUDA that torch, or the driver, has; "" when it has none of its own. */
const char *doc_edition_install(const doc *d, const char *package, int wanted) {
  const doc_table_line *row;
  const int of_torch = kr_parse_tenths(d->target.torch_cuda) / 10, of_driver = d->target.driver_cuda / 1000,
            have = of_torch ? of_torch : of_driver;
  if (!have || have == wanted) return "";
  for (size_t at = 0; (row = kr_tables_next(d->tables, "edition", &at));)
    if (strcmp(row->column[0], package) == 0 && atoi(row->column[1]) == have)
      return kr_arena_print(d->arena, "pip install --force-reinstall --no-deps%s \"%s\"",
                            strchr(row->column[2], ',') ? " --no-build-isolation" : "", row->column[2]);
  return "";
}
