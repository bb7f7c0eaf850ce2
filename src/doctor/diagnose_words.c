/* diagnose_words.c: what a log's line and its neighbourhood tell beyond the pattern: values for the sentences of rules
 * about own symbols, drivers, systems, frameworks and builds. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"

/* Puts the folders of a Python expression before what is there, which may be nothing: an empty element of the path
 * would be the current folder. */
#define LIBRARY_PATH(folders)                                                                                         \
  "export LD_LIBRARY_PATH=$(python3 -c 'import glob, os, sysconfig; print(\":\".join(" folders                        \
  " + [os.environ.get(\"LD_LIBRARY_PATH\", \"\")]).strip(\":\"))')"

static void put_words(const doc *d, kr_list *keys, const char *name, const char *value) {
  if (!value || !*value) return;
  doc_add_text(d, keys, name), doc_add_text(d, keys, value);
}

static int is_for_words(const doc_hit *hit, const char *id) { return strcmp(hit->rule->id, id) == 0; }
static int words_begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }
static int has(const doc *d, const char *word) { return strstr(d->log.text, word) != NULL; }

static int is_one_of(const char *text, const char *const *words) {
  for (; *words; words++)
    if (strcmp(text, *words) == 0) return 1;
  return 0;
}

static const char *words_base_of(const char *path) {
  const char *slash = path;
  for (const char *p = path; *p; p++)
    if (*p == '/' || *p == '\\') slash = p + 1;
  return slash;
}

/* The first version after a word in the whole text; "". */
static const char *version_after(const doc *d, const char *word) {
  kr_list keys = KR_LIST(const char *);
  return doc_match(d, kr_arena_print(d->arena, "%s%%d{v}", word), d->log.text, &keys) ? DOC_TEXT(keys, 1) : "";
}

/* ---- symbols ---- */
/* Names of the libraries that many share; a name of none of these is the package's own. */
static int is_foreign_symbol(const char *symbol, const char *scope) {
  static const char *const scopes[] = {"c10", "at",  "torch",     "caffe2",    "std",  "c10d",
                                       "fmt", "__cxxabiv1", "pybind11", "google", "absl", NULL};
  static const char *const begin[] = {"cuda",    "cublas", "cudnn", "cusparse", "cusolver", "cufft",     "curand",
                                      "nccl",    "pnccl",  "nvrtc", "nvJitLink", "__nv",    "__cuda",    "Py",
                                      "_Py",     "iJIT",   "torch_", "aoti_",    "hip",     "omp_",      "GOMP_",
                                      "__kmpc",  "mkl_",   "MKL_",  "__",        "XML_",    "SSL_",      "EVP_",
                                      "cget_",   "cquant", "THP",   "THC",       "GLIBC",   "nvml",      "nvtx",
                                      "_ZT",     "_ZdlPv", "_Znw",  "_ZGV",      "ffi_",    "PyInit",    NULL};
  if (words_begins(symbol, "cu") && isupper((unsigned char)symbol[2])) return 1;
  for (int i = 0; begin[i]; i++)
    if (words_begins(symbol, begin[i])) return 1;
  return words_begins(symbol, "_Z") ? !*scope || is_one_of(scope, scopes) || words_begins(scope, "THP") : 0;
}

/* "sm100" of cutlass_moe_mm_sm100; "". */
static const char *part_of(const doc *d, const char *name) {
  const char *at = strstr(name, "sm");
  for (; at; at = strstr(at + 1, "sm")) {
    const size_t skip = at[2] == '_' ? 3 : 2, n = strspn(at + skip, "0123456789");
    if (n >= 2) return kr_arena_print(d->arena, "sm%.*s", (int)n, at + skip);
  }
  return strstr(name, "cuda") || strstr(name, "cublas") || strstr(name, "gpu") ? "CUDA" : "";
}

static int fill_own_symbol(const doc *d, const doc_hit *hit, kr_list *keys) {
  const char *symbol = doc_symbol_in(d, hit->line), *scope;
  if (!*symbol) symbol = d->log.symbol ? d->log.symbol : "";
  scope = doc_scope_of(d, symbol);
  if (!*symbol || is_foreign_symbol(symbol, scope) || strstr(hit->line, ", version ")) return 0;
  put_words(d, keys, "symbol", doc_function_name(d, symbol));
  put_words(d, keys, "part", part_of(d, symbol));
  return 1;
}

static int fill_numpy(const doc *d, const doc_hit *hit, kr_list *keys) {
  static const char *const gone[] = {"bool", "int",  "float",   "object",   "complex",
                                     "str",  "long", "unicode", "typeDict", NULL};
  if (is_for_words(hit, "S12")) return is_one_of(doc_taken(hit, "np_name"), gone);
  if (has(d, "import torch") && (!d->target.torch_number || d->target.torch_number < 203))
    put_words(d, keys, "np_pkg", "this torch");
  return 1;
}

/* ---- GPUs ---- */
static int fill_own_kernels(const doc *d, const char **package) {
  if (!**package && has(d, "sageattn")) *package = "sageattention";
  return 1;
}

static int fill_one_kind(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  const int is_hopper = strstr(hit->line, "opper") || strstr(hit->line, "FA3") || strstr(hit->line, "3 ") ||
                        strstr(hit->line, "-3"),
            is_flash = strstr(hit->line, "lash") || strstr(hit->line, "FA3");
  const char *product = strstr(hit->line, "MLA")      ? "FlashMLA"
                        : strstr(hit->line, "Gemm") || strstr(hit->line, "GEMM") ? "DeepGEMM"
                        : is_flash                    ? "FlashAttention 3"
                                                      : "kernel";
  put_words(d, keys, "only", is_hopper ? "9.0" : "10.0");
  put_words(d, keys, "only_name", is_hopper ? "Hopper" : "Blackwell");
  put_words(d, keys, "product", product);
  if (is_flash) put_words(d, keys, "other_product", doc_command(d, "rebuild", "flash-attn", "", ""));
  *package = "";
  return 1;
}

/* JetPack's driver is of one CUDA: what a newer toolkit made does not run on it. */
static void fill_jetson(const doc *d, kr_list *keys, const char *package) {
  static const char *const cuda_of[] = {"", "", "", "", "10.2", "11.4", "12.6", "13.0"};
  const int jetpack = d->log.jetpack;
  const char *cuda = jetpack > 3 && jetpack < 8 ? cuda_of[jetpack] : *d->target.torch_cuda ? d->target.torch_cuda : "";
  if (!d->log.is_jetson) return;
  put_words(d, keys, "jetpack", jetpack ? kr_arena_print(d->arena, "JetPack %d", jetpack) : "its JetPack");
  if (!*cuda) return;
  put_words(d, keys, "jet_cuda", kr_arena_print(d->arena, "CUDA %s", cuda));
  if (kr_parse_tenths(d->log.nvcc) > kr_parse_tenths(cuda))
    put_words(d, keys, "jet_built", kr_print_tenths(d->arena, kr_parse_tenths(d->log.nvcc)));
  put_words(d, keys, "jet_rebuild", *package ? doc_command(d, "build_forced", package, "", "") : "");
  put_words(d, keys, "jet_build",
      kr_arena_print(d->arena,
                     "sudo apt install cuda-toolkit-%d-%d && export CUDA_HOME=/usr/local/cuda-%s "
                     "PATH=/usr/local/cuda-%s/bin:$PATH",
                     kr_parse_tenths(cuda) / 10, kr_parse_tenths(cuda) % 10, cuda, cuda));
}

/* ---- libraries ---- */
/* "CUDA 10.1's runtime" of cudart64_101.dll; "". */
static const char *print_dll(const doc *d, const char *name, const char **cuda) {
  const doc_table_line *row;
  *cuda = "";
  for (size_t at = 0; (row = kr_tables_next(d->tables, "dll", &at));) {
    if (!words_begins(name, row->column[0])) continue;
    const char *digits = name + strlen(row->column[0]);
    const size_t n = strspn(digits, "0123456789");
    if (strcmp(row->column[2], "cudnn") == 0) return kr_arena_print(d->arena, "cuDNN %.*s", (int)n, digits);
    *cuda = n > 2 ? kr_arena_print(d->arena, "%.*s.%c", (int)(n - 1), digits, digits[n - 1])
                  : kr_arena_copy(d->arena, digits, n);
    return kr_arena_print(d->arena, "CUDA %s's %s", *cuda, row->column[1]);
  }
  return "";
}

/* A toolkit's DLL: the toolkit, in the form that this Windows has. */
static void put_toolkit(const doc *d, kr_list *keys, const char *cuda) {
  const char *whole = strchr(cuda, '.')         ? cuda
                      : strcmp(cuda, "11") == 0 ? "11.8"
                      : strcmp(cuda, "10") == 0 ? "10.1"
                      : strcmp(cuda, "13") == 0 ? "13.0"
                                                : "12.8";
  if (kr_parse_tenths(whole) < 120 && d->log.is_conda)
    put_words(d, keys, "library_install", kr_arena_print(d->arena, "conda install -y cudatoolkit=%s", whole));
  else
    put_words(d, keys, "library_install",
        kr_arena_print(d->arena,
                       "winget install -e --id Nvidia.CUDA --version %s && export PATH=\"C:\\Program Files\\NVIDIA GPU "
                       "Computing Toolkit\\CUDA\\v%s\\bin\":$PATH",
                       whole, whole));
}

/* Programs that do not import torch first find NVIDIA's packages by the loader's path only. */
static int needs_path(const doc *d, const char *package) {
  static const char *const packages[] = {"cupy-cuda12x", "onnxruntime-gpu", "ctranslate2", "faiss-gpu-cu12",
                                         "llama-cpp-python", "tensorflow", NULL};
  return is_one_of(package, packages) || (!*package && !*d->target.torch && !has(d, "torch"));
}

const char *doc_library_command(const doc *d, const char *lib, const char *package) {
  static const char every[] =
      "pip install nvidia-cublas-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-nvrtc-cu12 \"nvidia-cudnn-cu12>=9,<10\" "
      "nvidia-cufft-cu12 nvidia-curand-cu12 && " LIBRARY_PATH("glob.glob(sysconfig.get_path(\"purelib\") + "
                                                              "\"/nvidia/*/lib\")");
  const doc_table_line *row = kr_tables_find(d->tables, "soname", lib), *other;
  const char *begin = kr_arena_print(d->arena, "%s.", lib);
  for (size_t at = 0; !row && strstr(lib, ".so") && (other = kr_tables_next(d->tables, "soname", &at));)
    if (words_begins(other->column[0], begin) && atoi(other->column[1]) == 12)
      row = other; /* libnvrtc.so, without a number */
  const char *plain = doc_install_library(d, row ? row->column[0] : lib, package);
  if (!row || !*row->column[3] || !needs_path(d, package) || !words_begins(plain, "pip install ")) return plain;
  if (atoi(row->column[1]) == 12 && (strcmp(package, "onnxruntime-gpu") == 0 || has(d, "onnxruntime"))) return every;
  return kr_arena_print(d->arena,
                        "%s && " LIBRARY_PATH("[sysconfig.get_path(\"purelib\") + \"/%s\"]"), plain, row->column[3]);
}

static int fill_missing_library(const doc *d, const doc_hit *hit, kr_list *keys, const char *package) {
  const char *lib = words_base_of(*doc_taken(hit, "lib") ? doc_taken(hit, "lib") : doc_taken(hit, "lib_path")), *cuda;
  const char *dll = print_dll(d, lib, &cuda);
  kr_list needer = KR_LIST(const char *);
  if (*doc_taken(hit, "lib_path") && !strstr(lib, ".dll") && !strstr(lib, ".so") && !strstr(lib, ".dylib")) return 0;
  if (strstr(lib, ".json") || strstr(lib, ".txt") || strstr(lib, ".py") ||
      (!strchr(lib, '.') && !*dll && !words_begins(lib, "lib") && !*doc_taken(hit, "plain_lib")))
    return *doc_taken(hit, "plain_lib") != '\0';
  if (words_begins(lib, "fbgemm") || words_begins(lib, "c10.dll") || words_begins(lib, "torch_")) return 0;
  if (*dll) {
    if (!words_begins(lib, "cudart") && has(d, "cudart64_1"))
      return 0; /* of the same toolkit, whose runtime says it better */
    put_words(d, keys, "dll_of", dll), put_words(d, keys, "lib", lib);
    if (*cuda) put_toolkit(d, keys, cuda);
    else
      put_words(d, keys, "library_install",
          strstr(dll, "cuDNN 7") ? "conda install -y cudnn=7.6"
          : strstr(dll, "8")     ? "pip install \"nvidia-cudnn-cu12>=8.9,<9\""
                                 : "pip install \"nvidia-cudnn-cu12>=9,<10\"");
    return 1;
  }
  if (doc_match(d, "load library %s{needer} with error", hit->line, &needer))
    put_words(d, keys, "needer", words_base_of(DOC_TEXT(needer, 1)));
  if (kr_tables_find(d->tables, "soname", lib) || strcmp(lib + (strlen(lib) > 3 ? strlen(lib) - 3 : 0), ".so") == 0)
    put_words(d, keys, "library_install", doc_library_command(d, lib, package));
  return 1;
}

static const char *jax_command(const doc *d) {
  const char *version = version_after(d, "jaxlib==");
  const int is_11 = has(d, "cuda11") && !has(d, "cuda12");
  if (!*version) version = version_after(d, "jax==");
  if (!*version) version = version_after(d, "jax[cpu]==");
  if (!*version) version = version_after(d, "jax version ");
  if (is_11 || !*version || kr_compare_versions(version, "0.4.26") < 0) return "pip install --upgrade \"jax[cuda12]\"";
  return kr_arena_print(d->arena, "pip install --upgrade \"jax[cuda12]==%s\"", version);
}

static int fill_xla(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  const int is_jax = has(d, "jax"), cuda = has(d, "cuda11") || has(d, "-cu11") || has(d, "CUDA 11") ? 11 : 12;
  const char *want = doc_taken(hit, "want");
  *package = "";
  put_words(d, keys, "xla", is_jax ? "jaxlib" : "TensorFlow");
  if (*want) {
    const int major = atoi(want);
    put_words(d, keys, "xla_cudnn",
        kr_arena_print(
            d->arena, "pip install --upgrade \"nvidia-cudnn-cu%d>=%s,<%d\"", cuda,
            kr_arena_copy(d->arena, want, strcspn(want, ".") + 1 + strspn(want + strcspn(want, ".") + 1, "0123456789")),
            major + 1));
  } else put_words(d, keys, "xla_cudnn", is_jax ? jax_command(d) : "pip install --upgrade \"tensorflow[and-cuda]\"");
  return 1;
}

static int fill_sgl(const doc *d, kr_list *keys, const char **package) {
  const int is_found = has(d, "found files: ['") || has(d, "libnuma");
  *package = "sgl-kernel";
  kr_list variant = KR_LIST(const char *);
  if (!is_found && doc_match(d, "Expected variant: %w{v}", d->log.text, &variant))
    put_words(d, keys, "variant", DOC_TEXT(variant, 1));
  put_words(d, keys, "sgl_fix",
            is_found ? "sudo apt install libnuma1" : "pip install --force-reinstall sgl-kernel==0.3.21");
  return 1;
}

/* A module of which Windows says only that something is missing. */
static int fill_dll(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  const char *module = doc_taken(hit, "dll"), *path = doc_taken(hit, "torch_dll");
  if (strstr(hit->line, "procedure") || strstr(hit->line, "程序") || strstr(hit->line, "Win32")) return 0;
  const char *owner = *module ? doc_package_in(d, module) : "";
  if (strstr(hit->line, "LoadLibrary failed")) {
    if (strstr(hit->line, "onnxruntime")) *package = "onnxruntime-gpu";
    put_words(d, keys, "dll_fix",
        strcmp(*package, "onnxruntime-gpu") == 0
            ? "pip install --force-reinstall \"onnxruntime-gpu[cuda,cudnn]==1.22.0\""
            : doc_command(d, "rebuild", *package, doc_version_of(d, *package), ""));
    return *doc_taken(hit, "provider_dll") != '\0';
  }
  if (*module && (strstr(hit->line, "initialization routine") || strstr(hit->line, "1114"))) {
    put_words(d, keys, "dll_init", module);
    put_words(d, keys, "dll_fix", "winget install -e --id Microsoft.VCRedist.2015+.x64");
    return 1;
  }
  while (*path && strchr("\"'.,", path[strlen(path) - 1])) path = kr_arena_copy(d->arena, path, strlen(path) - 1);
  if (*path && (strstr(hit->line, "\\lib\\") || words_begins(words_base_of(path), "fbgemm") ||
                words_begins(words_base_of(path), "c10"))) {
    *package = "torch";
    put_words(d, keys, "torch_dll", words_base_of(path));
    put_words(d, keys, "dll_fix", "winget install -e --id Microsoft.VCRedist.2015+.x64");
    return 1;
  }
  if (*owner) *package = owner;
  if (strcmp(*package, "torch") == 0 && strcmp(module, "_C") != 0) *package = "";
  const doc_table_line *index = kr_tables_find(d->tables, "wheels", *package);
  if (strcmp(module, "_C") == 0 && **package) module = kr_arena_print(d->arena, "%s's _C", *package);
  put_words(d, keys, "dll", *module ? module : *package);
  put_words(d, keys, "dll_fix",
      index ? kr_arena_print(d->arena, "pip install --force-reinstall --no-deps %s", index->column[1])
            : doc_command(d, "rebuild", *package, doc_version_of(d, *package), ""));
  if (!**package) put_words(d, keys, "dll_fix", "winget install -e --id Microsoft.VCRedist.2015+.x64");
  return 1;
}

/* ---- systems ---- */
static const char *gfx_in(const doc *d) {
  for (const char *p = d->log.text; (p = strstr(p, "gfx")); p++) {
    const size_t n = strspn(p + 3, "0123456789abcdef");
    if (isdigit((unsigned char)p[3]) && n >= 3 && n <= 5) return kr_arena_copy(d->arena, p, n + 3);
  }
  return "";
}

static int fill_amd(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  const char *gfx = gfx_in(d);
  const doc_table_line *row = kr_tables_find(d->tables, "gfx", gfx);
  *package = "";
  if (is_for_words(hit, "A01")) {
    put_words(d, keys, "gfx", gfx);
    put_words(d, keys, "gfx_as", row ? row->column[1] : "");
    if (!*gfx)
      put_words(d, keys, "gfx_ask",
          "case $(rocminfo | grep -om1 'gfx[0-9]*') in gfx10*) export HSA_OVERRIDE_GFX_VERSION=10.3.0;; gfx11*) export "
          "HSA_OVERRIDE_GFX_VERSION=11.0.0;; gfx12*) export HSA_OVERRIDE_GFX_VERSION=12.0.0;; esac");
  }
  if (is_for_words(hit, "A03")) {
    kr_list lib = KR_LIST(const char *);
    if (doc_match(d, "%w{lib}: cannot open", hit->line, &lib)) put_words(d, keys, "rocm_lib", DOC_TEXT(lib, 1));
    put_words(d, keys, "rocm_fix",
        has(d, "NVIDIA") || has(d, "GeForce") || has(d, "nvidia") || !has(d, "AMD") ? doc_torch_install(d)
                                                                                    : "sudo apt install rocm");
  }
  return 1;
}

static int fill_mac(const doc *d, const doc_hit *hit, const char **package) {
  if (!d->log.is_mac || (strstr(hit->line, "File \"") && !strstr(hit->line, "rror"))) return 0;
  for (size_t i = 0; i < d->log.hits.n; i++)
    if (strcmp(KR_AT(d->log.hits, doc_hit, i)->rule->id, "S01") == 0) return 0;
  if (strcmp(*package, "torch") == 0) *package = "";
  return 1;
}

/* Where the text says that libcuda.so.1 is; WSL keeps it in a folder of Windows. */
static void fill_driver_library(const doc *d, kr_list *keys) {
  kr_list at = KR_LIST(const char *);
  if (doc_match(d, "['%s{x}/libcuda.so.1'", d->log.text, &at))
    put_words(d, keys, "libcuda_at", kr_arena_print(d->arena, "%s/libcuda.so.1", DOC_TEXT(at, 1)));
  else if (d->log.is_wsl) put_words(d, keys, "libcuda_at", "/usr/lib/wsl/lib/libcuda.so.1");
}

static int is_torch_base(const char *lib) {
  static const char *const names[] = {"libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so", NULL};
  return is_one_of(lib, names);
}

/* A hook that fails before the container starts speaks of its host; WSL's library is in a folder of Windows. */
static int fill_no_driver(const doc *d, const doc_hit *hit, kr_list *keys) {
  const doc_table_line *place;
  if (d->log.is_wsl && strstr(hit->line, "libcuda.so")) {
    put_words(d, keys, "wsl_library", strstr(hit->line, "libcuda.so.1") ? "libcuda.so.1" : "libcuda.so");
    put_words(d, keys, "wsl_path",
        "sudo sh -c \"echo /usr/lib/wsl/lib > /etc/ld.so.conf.d/wsl.conf; ldconfig\"");
    return 1;
  }
  if (strstr(hit->line, "nvidia-container-cli") || has(d, "nvidia-container-cli: initialization error")) {
    put_words(d, keys, "host_reason",
              has(d, "driver not loaded") ? "NVML cannot reach it" : "libnvidia-ml.so.1 is not found there");
    return 1;
  }
  for (size_t at = 0; (place = kr_tables_next(d->tables, "place", &at));) {
    if (!has(d, place->column[0])) continue;
    put_words(d, keys, "place", place->column[1]), put_words(d, keys, "place_gpus", place->column[2]);
    return 1;
  }
  if (!d->log.is_container || d->log.is_wsl || d->log.is_windows || has(d, "could not select device driver")) return 1;
  put_words(d, keys, "without_gpus", "without --gpus all");
  put_words(d, keys, "container_gpus", "--gpus all added to docker run (in a compose file: gpus: all)");
  return 1;
}

static void fill_shared_memory(const doc *d, kr_list *keys) {
  static const char more[] = "sudo mount -o remount,size=16G /dev/shm",
                    docker[] = "--shm-size=16g added to docker run, or --ipc=host";
  const int is_host = !d->log.is_container && (d->log.has_home || d->log.is_conda);
  put_words(d, keys, "shm_fix", is_host ? more : docker);
  put_words(d, keys, "shm_more", is_host ? kr_arena_print(d->arena, "in a container: %s", docker)
                                   : kr_arena_print(d->arena, "outside of a container: %s", more));
}

/* ---- packages ---- */
static int fill_slow(const doc *d, kr_list *keys, const char **package) {
  const doc_table_line *row, *pair = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "pair", &at));) pair = row;
  *package = "";
  put_words(d, keys, "slow", "mamba-ssm and causal-conv1d are not installed, or do not load");
  put_words(d, keys, "slow_fix", d->log.is_windows || d->log.is_mac ? "" : doc_pair_command(d, "mamba-ssm", pair));
  return 1;
}

static int fill_deepspeed(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  const char *op = *doc_taken(hit, "ds_op") ? doc_taken(hit, "ds_op") : "cpu_adam";
  char *name = kr_arena_print(d->arena, "%s", op);
  const doc_table_line *row = kr_tables_find(d->tables, "newest", "deepspeed");
  const char *version = doc_version_of(d, "deepspeed");
  for (char *p = name; *p; p++) *p = (char)toupper((unsigned char)*p);
  *package = "deepspeed";
  put_words(d, keys, "ds_op", op), put_words(d, keys, "ds_name", name);
  put_words(d, keys, "ds_release", *version ? version : row ? row->column[1] : "");
  return 1;
}

/* FlashAttention 3's module has the name of a file of FlashAttention 2. */
static int fill_module(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  static const char *const built[] = {"flash-attn", "mamba-ssm", "causal-conv1d", "apex", NULL};
  if (words_begins(doc_taken(hit, "module"), "flash_attn_interface") || strstr(hit->line, "FlashAttention3") ||
      strstr(hit->line, "FlashAttention-3") || strstr(hit->line, "flash_attn_interface is not"))
    *package = "flash-attn-3";
  if (strstr(hit->line, "xFormers w")) *package = "xformers";
  if (d->log.is_windows && strcmp(*package, "triton") == 0)
    put_words(d, keys, "elsewhere_install", "pip install triton-windows");
  if (d->log.is_windows && is_one_of(*package, built))
    put_words(d, keys, "no_wheels", "which Windows has no wheel for");
  return 1;
}

/* ---- builds ---- */
/* The last toolkit that builds for a target; 0: none known. */
static int last_with(const doc *d, int sm) {
  const doc_table_line *row;
  int last = 0;
  char word[16] = {(char)('0' + sm / 10 % 10), (char)('0' + sm % 10)};
  for (size_t at = 0; (row = kr_tables_next(d->tables, "toolkit", &at));)
    if (kr_tables_has_word(row->column[3], word)) last = kr_parse_tenths(row->column[0]);
  return last;
}

static void fill_old_target(const doc *d, const doc_hit *hit, kr_list *keys) {
  const char *arch = doc_taken(hit, "arch");
  const int sm = atoi(words_begins(arch, "sm_") ? arch + 3 : arch), cc = doc_main_cc(d),
            last = sm == 20   ? 80
                   : sm < 100 ? last_with(d, sm)
                              : 0;
  if (last) put_words(d, keys, "last_with", kr_print_tenths(d->arena, last));
  if (sm && sm < 50)
    put_words(d, keys, "target_change",
        cc ? kr_arena_print(d->arena, "export TORCH_CUDA_ARCH_LIST=\"%s\"", kr_print_cc(d->arena, cc))
           : "export TORCH_CUDA_ARCH_LIST=\"7.5+PTX\"");
}

static int fill_builds(const doc *d, const doc_hit *hit, kr_list *keys) {
  if (is_for_words(hit, "B02")) fill_old_target(d, hit, keys);
  if (is_for_words(hit, "B12")) {
    const char *driver = strstr(hit->line, "-lcuda");
    if (driver && isalnum((unsigned char)driver[6])) return 0; /* -lcudart */
    fill_driver_library(d, keys);
  }
  if (is_for_words(hit, "B27")) { /* the same toolkit, whole */
    const char *found = version_after(d, "found version \"");
    put_words(d, keys, "need", *found ? kr_print_tenths(d->arena, kr_parse_tenths(found)) : "12.8");
  }
  if (is_for_words(hit, "B07") &&
      strcmp(doc_taken(hit, "module"), "torch") == 0)
    put_words(d, keys, "module_install",
              *d->target.torch                           ? ""
              : doc_main_cc(d) || *d->log.nvcc ? doc_torch_install(d) /* which must match the GPU or the toolkit */
                                               : "pip install torch"); /* keeps the one that is there */
  else if (is_for_words(hit, "B07"))
    put_words(d, keys, "module_install", kr_arena_print(d->arena, "pip install %s", doc_taken(hit, "module")));
  if (is_for_words(hit, "B09") && strstr(hit->line, "Visual Studio")) {
    put_words(d, keys, "msvc", "this Visual Studio");
    put_words(d, keys, "msvc_fix", "export NVCC_APPEND_FLAGS=-allow-unsupported-compiler");
  }
  if (is_for_words(hit, "B15"))
    put_words(d, keys, "plain",
              kr_arena_copy(d->arena, doc_taken(hit, "plain"), strcspn(doc_taken(hit, "plain"), ":"))),
        put_words(d, keys, "link_fix",
                  strcmp(doc_taken(hit, "lnk"), "aio") == 0 || strcmp(doc_taken(hit, "lnk"), "cufile") == 0
                      ? "export DS_BUILD_AIO=0 DS_BUILD_GDS=0 && pip install --no-build-isolation deepspeed"
                      : "export LIBRARY_PATH=/usr/local/cuda/lib64");
  if (is_for_words(hit, "B22")) put_words(d, keys, "need", doc_taken(hit, "floor_cuda"));
  if (is_for_words(hit, "S13"))
    put_words(d, keys, "what_missing",
        strstr(hit->line, "distutils")     ? "distutils"
        : strstr(hit->line, "'packaging'") ? "packaging"
                                           : "pkg_resources");
  return 1;
}

/* What rules for NVIDIA's GPUs say of a log from an AMD GPU or a Mac is never true. */
static int is_of_other_maker(const doc *d, const doc_hit *hit) {
  if (d->log.is_rocm &&
      (*hit->rule->id == 'K' || *hit->rule->id == 'D' || kr_tables_has_word("R06 R10 L09 L10 S06", hit->rule->id)))
    return 1;
  return d->log.is_mac &&
         (*hit->rule->id == 'K' || kr_tables_has_word("D01 D02 D03 D08 D10 B10 B01 B02 B11", hit->rule->id));
}

/* A companion of torch that wants its CUDA libraries, beside a torch for the CPU. */
static int fill_companion(const doc *d, const doc_hit *hit, kr_list *keys, const char *package) {
  const char *lost = doc_taken(hit, "lost");
  if (!words_begins(lost, "libc10_cuda") && strcmp(lost, "libtorch_cuda.so") != 0) return 0;
  const char *version =
      doc_companion_column(package) && *d->target.torch ? doc_command(d, "companion", package, "", "") : "";
  put_words(d, keys, "cpu_companion",
      *version ? kr_arena_print(d->arena,
                                "or, for the CPU: pip install --no-deps --force-reinstall %s==%s --index-url "
                                "https://download.pytorch.org/whl/cpu",
                                package, version)
               : "");
  return 1;
}

/* The library is there: what it needs is not. */
static int is_library_of_cudnn(const doc *d, const doc_hit *hit) {
  kr_list lost = KR_LIST(const char *);
  return !doc_match(d, "Error: %w{x}: cannot open", hit->line, &lost) || words_begins(DOC_TEXT(lost, 1), "libcudnn");
}

/* A process that was forked after CUDA began. */
static int fill_spawn(const doc *d, const doc_hit *hit, kr_list *keys) {
  if (strstr(hit->line, "initialization error") && !has(d, "fork") && !has(d, "ultiprocess")) return 0;
  put_words(d, keys, "spawn", has(d, "vllm") ? "export VLLM_WORKER_MULTIPROC_METHOD=spawn"
                                       : "in your code, first: torch.multiprocessing.set_start_method(\"spawn\")");
  return 1;
}

int doc_fill_words(const doc *d, const doc_hit *hit, kr_list *keys, const char **package) {
  if (is_of_other_maker(d, hit)) return 0;
  if (*hit->rule->id == 'A') return fill_amd(d, hit, keys, package);
  if (kr_tables_has_word("B25 B26", hit->rule->id) || *hit->rule->id == 'P' ||
      kr_tables_has_word("K26 L19 D16 R20", hit->rule->id)) {
    if (!doc_fill_install(d, hit, keys, package)) return 0;
  }
  if (*hit->rule->id == 'B') return fill_builds(d, hit, keys);
  if (is_for_words(hit, "S10")) return fill_own_symbol(d, hit, keys);
  if (is_for_words(hit, "S11"))
    put_words(d, keys, "symbol", kr_arena_print(d->arena, "cu%s", doc_taken(hit, "driver_symbol")));
  if (is_for_words(hit, "S11")) return isupper((unsigned char)*doc_taken(hit, "driver_symbol"));
  if (is_for_words(hit, "L05") && *doc_taken(hit, "machine"))
    put_words(d, keys, "machine_fix",
        kr_arena_print(d->arena, "arch -%s pip install --force-reinstall --no-cache-dir %s", doc_taken(hit, "machine"),
                       **package ? *package : "torch"));
  if (is_for_words(hit, "S09") || is_for_words(hit, "S12")) return fill_numpy(d, hit, keys);
  if (is_for_words(hit, "S13")) return fill_builds(d, hit, keys);
  if (is_for_words(hit, "K24")) return fill_own_kernels(d, package);
  if (is_for_words(hit, "K25")) return fill_one_kind(d, hit, keys, package);
  if (is_for_words(hit, "K08")) fill_jetson(d, keys, *package);
  if (is_for_words(hit, "L01")) return fill_missing_library(d, hit, keys, *package);
  if (is_for_words(hit, "L13") || is_for_words(hit, "L17"))
    *package = "", put_words(d, keys, "jax_install", jax_command(d));
  if (is_for_words(hit, "L14")) return fill_xla(d, hit, keys, package);
  if (is_for_words(hit, "L15")) return fill_sgl(d, keys, package);
  if (is_for_words(hit, "L16")) return fill_dll(d, hit, keys, package);
  if (is_for_words(hit, "L18"))
    put_words(d, keys, "libdevice",
        has(d, "conda") ? "conda install -y -c nvidia cuda-nvcc && export XLA_FLAGS=--xla_gpu_cuda_data_dir=$(dirname "
                          "$(dirname $(which ptxas)))"
                        : "export XLA_FLAGS=--xla_gpu_cuda_data_dir=/usr/local/cuda");
  if (is_for_words(hit, "D10") && strstr(hit->line, "blocked")) {
    put_words(d, keys, "blocked", d->log.is_container && !d->log.is_wsl ? "this container" : "WSL");
    put_words(d, keys, "wsl_fix", "wsl --update && wsl --shutdown");
  }
  if (is_for_words(hit, "D02")) return fill_no_driver(d, hit, keys);
  if (is_for_words(hit, "D14")) return fill_mac(d, hit, package);
  if (is_for_words(hit, "P08")) return fill_slow(d, keys, package);
  if (is_for_words(hit, "P10")) return fill_companion(d, hit, keys, *package);
  if (is_for_words(hit, "L09")) return is_library_of_cudnn(d, hit);
  if (is_for_words(hit, "R11") && strcmp(*package, "tensorflow") == 0) put_words(d, keys, "any_cpu", "tensorflow");
  if (is_for_words(hit, "P09")) return fill_deepspeed(d, hit, keys, package);
  if (is_for_words(hit, "P03")) return fill_module(d, hit, keys, package);
  if (is_for_words(hit, "L02")) return *doc_taken(hit, "thp") || is_torch_base(doc_taken(hit, "lost"));
  if (is_for_words(hit, "R13")) fill_shared_memory(d, keys);
  if (is_for_words(hit, "R16")) return fill_spawn(d, hit, keys);
  return 1;
}
