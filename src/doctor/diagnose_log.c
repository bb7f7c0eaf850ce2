/* diagnose_log.c: what a pasted error suggests by itself. Text alone is medium evidence at most, unless the rule says
 * that it is conclusive; a diagnosis already made from the files is not repeated. */
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"

enum { MAX_KEYS = 40 };

typedef struct hit_keys {
  const char *at[MAX_KEYS + 1];
  size_t n;
} hit_keys;

static void put_log(hit_keys *keys, const char *name, const char *value) {
  if (keys->n + 2 > MAX_KEYS || !value || !*value) return;
  keys->at[keys->n++] = name;
  keys->at[keys->n++] = value;
}

/* More exact than what was put before. */
static void put_first(hit_keys *keys, const char *name, const char *value) {
  for (size_t i = 0; i + 1 < keys->n; i += 2)
    if (strcmp(keys->at[i], name) == 0) {
      keys->at[i + 1] = value;
      return;
    }
  put_log(keys, name, value);
}

const char *doc_taken(const doc_hit *hit, const char *name) {
  for (size_t i = 0; i + 1 < hit->keys.n; i += 2)
    if (strcmp(DOC_TEXT(hit->keys, i), name) == 0) return DOC_TEXT(hit->keys, i + 1);
  return "";
}

static const char *taken(const doc_hit *hit, const char *name) { return doc_taken(hit, name); }

static int is_for_log(const doc_hit *hit, const char *id) { return strcmp(hit->rule->id, id) == 0; }
static int log_begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static int log_suggests(const doc *d, const char *id) {
  for (size_t i = 0; i < d->log.hits.n; i++)
    if (is_for_log(KR_AT(d->log.hits, doc_hit, i), id)) return 1;
  return 0;
}

static int already_found(const doc *d, const char *ids) {
  for (size_t i = 0; i < d->found->findings.n; i++) {
    const doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    if (!f->from_log && !f->hidden && kr_tables_has_word(ids, f->rule->id)) return 1;
  }
  return 0;
}

/* ---- what the hit is about ---- */
static int is_someone(const char *package) { return *package && strcmp(package, "torch") != 0; }

/* Of several distributions with one import name, the one that the text names with its release: mmcv-full for mmcv. */
static const char *named_twin(const doc *d, const char *package) {
  const doc_table_line *row;
  if (!*package || *doc_version_of(d, package)) return package;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "owner", &at));) {
    if (!kr_tables_has_word(row->column[1], package)) continue;
    for (const char *p = row->column[1]; *p; p += strcspn(p, " "), p += strspn(p, " ")) {
      const char *twin = kr_arena_copy(d->arena, p, strcspn(p, " "));
      if (*doc_version_of(d, twin)) return twin;
    }
  }
  return package;
}

/* The package in its own line, the last one named before it, that of the innermost frame, or of the last library or
 * name in the text. torch only if there is no other: it is in every traceback. */
static const char *package_named(const doc *d, const doc_hit *hit) {
  const char *here = doc_package_in(d, hit->line), *owner = d->log.owner ? d->log.owner : "";
  if (is_someone(here)) return here;
  if (is_someone(hit->near)) return hit->near;
  if (is_someone(owner)) return owner;
  if (!d->log.last_frame && d->log.names.n == 1) return DOC_TEXT(d->log.names, 0); /* a program without Python */
  if (hit->rule->stage != KR_STAGE_IMAGE || *owner) /* only the files' bytes can tell which one fails */
    for (size_t i = d->log.files.n; i-- > 0;)
      if (is_someone(doc_package_in(d, DOC_TEXT(d->log.files, i)))) return doc_package_in(d, DOC_TEXT(d->log.files, i));
  if (hit->rule->stage != KR_STAGE_IMAGE && d->log.names.n) return DOC_TEXT(d->log.names, d->log.names.n - 1);
  return *here ? here : hit->near;
}

static const char *package_of(const doc *d, const doc_hit *hit) { return named_twin(d, package_named(d, hit)); }

static const char *log_base_of(const char *path) {
  const char *slash = strrchr(path, '/'), *other = strrchr(path, '\\');
  if (other && (!slash || other > slash)) slash = other;
  return slash ? slash + 1 : path;
}

/* The library that a line is about: before ": undefined symbol", after "required by", else the last one in the text. */
static const char *library_of(const doc *d, const doc_hit *hit) {
  kr_list keys = KR_LIST(const char *);
  if (doc_match(d, "load library %s{x} with error", hit->line, &keys) ||
      doc_match(d, "dlopen(%s{x},", hit->line, &keys) || doc_match(d, "%s{x}: undefined symbol", hit->line, &keys) ||
      doc_match(d, "(required by %s{x})", hit->line, &keys)) {
    const char *path = DOC_TEXT(keys, 1);
    size_t n = strlen(path);
    return kr_arena_copy(d->arena, path, n && path[n - 1] == ')' ? n - 1 : n);
  }
  return d->log.files.n ? DOC_TEXT(d->log.files, d->log.files.n - 1) : "";
}

/* The text may name an unrelated library: missing GPU code is for the bytes to tell, so there the hit's own line must
 * name it. */
static void put_library(doc *d, const doc_hit *hit, hit_keys *keys) {
  const char *path = library_of(d, hit), *name = log_base_of(path),
             *folder = name - path > 1 ? kr_arena_copy(d->arena, path, (size_t)(name - path - 1)) : "";
  const char *lost = taken(hit, "lib");
  if (*lost && log_begins(name, kr_arena_copy(d->arena, lost, strcspn(lost, ".")))) return; /* it is the missing one */
  if (!*name ||
      !(strstr(hit->line, name) || hit->rule->stage == KR_STAGE_SYMBOL || hit->rule->stage == KR_STAGE_LIBRARY))
    return;
  if (*folder == '/' && !strstr(path, "-packages/") && strrchr(folder, '/') > folder)
    d->log.source =
        kr_arena_copy(d->arena, folder, (size_t)(strrchr(folder, '/') - folder)); /* X/vllm/_C.so: X is a checkout */
  const doc_file file = {.path = path, .name = name};
  const char *shown = doc_shown_name(&file);
  size_t dot = (size_t)(strrchr(shown, '/') ? strrchr(shown, '/') + 1 - shown : 0);
  put_log(keys, "file", shown);
  put_log(keys, "ext",
      kr_arena_copy(d->arena, shown,
                    strncmp(shown + dot, "lib", 3) == 0 ? strlen(shown) : dot + strcspn(shown + dot, ".")));
}

/* ---- symbols ---- */
/* By its own scope: torch's types among the arguments make a function none of torch's. */
static int is_torch_symbol(const doc *d, const char *symbol) {
  const char *scope = doc_scope_of(d, symbol);
  return kr_tables_has_word("c10 at torch caffe2 c10d", scope) || log_begins(scope, "THP") ||
         log_begins(symbol, "THP") || log_begins(symbol, "aoti_torch_") || log_begins(symbol, "torch_");
}

/* pip's wheels: old up to 2.6, except 2.6 with CUDA 12.6; new from 2.7. */
static int abi_of_torch(const doc *d) {
  if (d->target.torch_abi == DOC_ABI_OLD || d->target.torch_abi == DOC_ABI_NEW) return d->target.torch_abi;
  if (!d->target.torch_number || strstr(d->target.torch, "a0")) return DOC_ABI_UNKNOWN;
  if (d->target.torch_number == 206) return strstr(d->target.torch, "cu126") ? DOC_ABI_NEW : DOC_ABI_OLD;
  return d->target.torch_number >= 207 ? DOC_ABI_NEW : DOC_ABI_OLD;
}

static const char *print_first_last(const doc *d, int first, int last) {
  if (first && last)
    return kr_arena_print(d->arena, "%s to %s", kr_print_torch(d->arena, first), kr_print_torch(d->arena, last));
  return kr_arena_print(d->arena, "%s %s", first ? ">=" : "<=", kr_print_torch(d->arena, first ? first : last));
}

/* Why a name is missing: another string ABI, another torch, another libstdc++ or Python. 0: not this rule's reason. */
static int fill_symbol(const doc *d, const doc_hit *hit, hit_keys *keys) {
  const char *symbol = doc_symbol_in(d, hit->line);
  if (!*symbol) symbol = d->log.symbol ? d->log.symbol : "";
  int abi = doc_abi_of_name(symbol), torch = abi_of_torch(d),
      is_named = torch == DOC_ABI_UNKNOWN && abi == DOC_ABI_NEW && strstr(d->log.text, "cxx11abiTRUE") != NULL,
      is_abi = is_torch_symbol(d, symbol) && (is_named || (abi == DOC_ABI_OLD && torch != DOC_ABI_OLD) ||
                                              (abi == DOC_ABI_NEW && torch == DOC_ABI_OLD));
  int first = 0, last = 0;
  if (is_for_log(hit, "S01") && (strstr(hit->line, "undefined symbol") || strstr(hit->line, "Symbol not found"))) {
    if (!is_torch_symbol(d, symbol) || is_abi) return 0;
    kr_list one = {.at = &symbol, .n = 1, .item_bytes = sizeof symbol};
    doc_torch_range(d, &one, &first, &last);
    if (first || last) put_log(keys, "range", print_first_last(d, first, last));
  }
  if (is_for_log(hit, "S02")) {
    if (!is_abi) return 0;
    put_log(keys, "ext_abi", abi == DOC_ABI_OLD ? "old" : "new");
    if (is_named) put_log(keys, "wheel_abi", "TRUE");
    else put_log(keys, "ext_flag", abi == DOC_ABI_OLD ? "_GLIBCXX_USE_CXX11_ABI=0" : "_GLIBCXX_USE_CXX11_ABI=1");
    if (!is_named) put_log(keys, "torch_abi", abi == DOC_ABI_OLD ? "new" : "old");
    put_log(keys, "TRUE", abi == DOC_ABI_OLD ? "TRUE" : "FALSE");
  }
  if (hit->rule->stage == KR_STAGE_SYMBOL || hit->rule->stage == KR_STAGE_LIBRARY)
    put_log(keys, "symbol", doc_function_name(d, symbol));
  if (is_for_log(hit, "S03") && !log_suggests(d, "S01") && !log_suggests(d, "S02")) return 0;
  return 1;
}

/* ---- libraries ---- */
static const char *release_words(const doc *d, const char *section, const char *version) {
  const doc_table_line *row, *found = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, section, &at));)
    if (kr_compare_versions(version, row->column[0]) >= 0) found = row;
  return found ? found->column[1] : "";
}

static void fill_nccl(const doc *d, const doc_hit *hit, hit_keys *keys) {
  const char *name = kr_arena_print(d->arena, "nccl%s", taken(hit, "nccl_symbol"));
  const doc_table_line *row = kr_tables_find(d->tables, "nccl", name),
                       *torch = doc_torch_row(d, d->target.torch_number);
  const char *want = torch && *torch->column[5] ? torch->column[5] : row ? row->column[1] : "";
  if (!*taken(hit, "nccl_symbol")) return;
  put_log(keys, "symbol", name);
  put_log(keys, "nccl",
      kr_parse_tenths(d->target.torch_cuda) >= 130       ? "nvidia-nccl-cu13"
      : kr_parse_tenths(d->target.torch_cuda) / 10 == 11 ? "nvidia-nccl-cu11"
                                                  : "nvidia-nccl-cu12");
  put_log(keys, "nccl_want", want);
}

/* NVIDIA's package for this CUDA of a library whose name is the same for all: -cu12, -cu11, and for 13 without the
 * ending where the toolkit has it. */
static const char *for_cuda(const doc *d, const char *name, int cuda) {
  const size_t n = strlen(name);
  if ((cuda != 11 && cuda != 13) || n < 5 || strcmp(name + n - 5, "-cu12") != 0) return name;
  const int is_toolkit = strstr(name, "curand") || strstr(name, "cusolver") || strstr(name, "cufile");
  return kr_arena_print(d->arena, "%.*s%s", (int)n - 5, name, cuda == 11 ? "-cu11" : is_toolkit ? "" : "-cu13");
}

/* The command that installs a library, or a build of the package for the installed CUDA. */
const char *doc_install_library(const doc *d, const char *lib, const char *package) {
  const doc_table_line *row = kr_tables_find(d->tables, "soname", lib);
  const int have = kr_parse_tenths(d->target.torch_cuda) / 10,
            want = row ? atoi(row->column[1]) : log_begins(lib, "libcudart.so.") ? atoi(lib + 13) : 0;
  if (row && log_begins(row->column[2], "apt:"))
    return kr_arena_print(d->arena, "sudo apt install %s", row->column[2] + 4);
  const char *edition = is_someone(package) && want ? doc_edition_install(d, package, want) : "";
  if (*edition) return edition;
  if (want && have && want != have && is_someone(package))
    return "{rebuild}"; /* it was built for a different CUDA than torch */
  if (!row && want && is_someone(package) && *doc_build_command(d, package)) return "{rebuild}";
  return row ? kr_arena_print(
                   d->arena, "pip install \"%s\"",
                   atoi(row->column[1]) ? row->column[2] : for_cuda(d, row->column[2], doc_cuda_of(d, package)))
             : kr_arena_print(d->arena, "install the package that contains %s; the tables do not know it", lib);
}

static const char *cudnn_major(const char *text) {
  static const char *const numbers[] = {"5", "6", "7", "8", "9"};
  for (const char *p = text; (p = strstr(p, "cudnn")); p++) {
    const char *so = strstr(p, ".so."), *mark = strstr(p, "64_");
    const char digit = so && so - p < 40 ? so[4] : mark && mark - p < 40 ? mark[3] : 0;
    if (digit >= '5' && digit <= '9') return numbers[digit - '5'];
  }
  return "";
}

static void fill_cudnn(const doc *d, const doc_hit *hit, hit_keys *keys, const char *package) {
  const char *major = cudnn_major(hit->line);
  kr_list names = KR_LIST(const char *);
  put_log(keys, "major", major);
  if (doc_match(d, "{%w{x}", hit->line, &names) || doc_match(d, " library libcudnn%w{x}", hit->line, &names) ||
      doc_match(d, "not locate %w{x}", hit->line, &names) || doc_match(d, "library %w{x}. Error", hit->line, &names) ||
      doc_match(d, "%w{x}: cannot open", hit->line, &names))
    put_log(keys, "lib",
        strstr(hit->line, " library libcudnn") == NULL ? DOC_TEXT(names, 1)
                                                       : kr_arena_print(d->arena, "libcudnn%s", DOC_TEXT(names, 1)));
  if (kr_tables_is_tegra(d->tables, doc_main_cc(d))) { /* JetPack's cuDNN, and the torch that was built for it */
    put_log(keys, "cudnn_install", doc_torch_install(d));
    put_log(keys, "cudnn_path", "python3 -c 'import torch'");
    return;
  }
  const int cuda = doc_cuda_of(d, package);
  put_log(keys, "cudnn_install",
      *major && *major < '8'      ? "conda install -y cudnn=7.6" /* older ones are in no channel and on no index */
      : *major != '8' && cuda == 13 ? "pip install \"nvidia-cudnn-cu13>=9,<10\""
      : *major != '8'             ? "pip install \"nvidia-cudnn-cu12>=9,<10\""
      : cuda == 11                ? "pip install \"nvidia-cudnn-cu11>=8.6,<9\""
                                  : "pip install nvidia-cudnn-cu12==8.9.7.29");
  if (d->log.is_windows || (*major && *major < '8'))
    return; /* Python there looks beside the module and in add_dll_directory's folders */
  put_log(keys, "cudnn_path",
      "export LD_LIBRARY_PATH=$(python3 -c 'import os, nvidia.cudnn; print(\":\".join([list(nvidia.cudnn.__path__)[0] "
      "+ "
      "\"/lib\", os.environ.get(\"LD_LIBRARY_PATH\", \"\")]).strip(\":\"))')");
}

static void fill_cudnn_versions(const doc *d, const doc_hit *hit, hit_keys *keys) {
  static const char *const sides[][4] = {{"want", "w1", "w2", "w3"}, {"have", "h1", "h2", "h3"}};
  for (int i = 0; i < 2; i++)
    if (*taken(hit, sides[i][1]))
      put_log(keys, sides[i][0],
          kr_arena_print(d->arena, "cuDNN %s.%s.%s", taken(hit, sides[i][1]), taken(hit, sides[i][2]),
                         taken(hit, sides[i][3])));
}

static void fill_bitsandbytes(const doc *d, const doc_hit *hit, hit_keys *keys) {
  const char *number = taken(hit, "bnb"), *version = doc_version_of(d, "bitsandbytes");
  int is_source =
      strstr(hit->line, ".egg") || strstr(hit->line, "/bitsandbytes/bitsandbytes/") || strstr(version, "dev");
  for (size_t i = 0; i < d->log.files.n; i++)
    is_source |=
        strstr(DOC_TEXT(d->log.files, i), ".egg/") || strstr(DOC_TEXT(d->log.files, i), "/bitsandbytes/bitsandbytes/");
  if (strstr(hit->line, "_nocublaslt") && *number)
    put_log(keys, "bnb", kr_arena_print(d->arena, "%s_nocublaslt", number));
  if (is_source && *number) put_log(keys, "source_build", "source");
  if (is_source && !*number) put_log(keys, "bnb_checkout", ", not from a release");
  if (is_source)
    put_log(keys, "bnb_elsewhere", "and start Python outside of the source folder, or it is imported again");
  if (strlen(number) == 3) put_log(keys, "bnb_cuda", kr_arena_print(d->arena, "%.2s.%s", number, number + 2));
  const char *release = doc_command(d, "release", "bitsandbytes", is_source ? "" : version, "");
  put_log(keys, "bnb_install",
      *release ? release
      : d->target.torch_number && d->target.torch_number < 204
          ? "pip install --force-reinstall --no-deps bitsandbytes==0.45.5"
          : "pip install --force-reinstall --no-deps bitsandbytes==0.50.2"); /* which loads the nearest of its
                                                                                libraries, and requires torch 2.4 */
}

static void fill_libstdcxx(const doc *d, const doc_hit *hit, hit_keys *keys) {
  static const char *const names[][2] = {{"need_cxx", "GLIBCXX"}, {"need_abi", "CXXABI"}, {"need_gcc", "GCC"}};
  const char *gcc = "13";
  for (int i = 0; i < 3; i++) {
    if (!*taken(hit, names[i][0])) continue;
    const char *need = kr_arena_print(d->arena, "%s_%s", names[i][1], taken(hit, names[i][0]));
    const doc_table_line *row = kr_tables_find(d->tables, "gcc", need);
    put_log(keys, "need", need);
    if (row) gcc = row->column[1];
  }
  kr_list where = KR_LIST(const char *);
  if (doc_match(d, "%s{x}: version `", hit->line, &where)) put_log(keys, "where", DOC_TEXT(where, 1));
  put_log(keys, "gcc", gcc);
}

/* The row of a library by its name, or by the beginning of its name in the release for torch's CUDA: libcublas. */
static const doc_table_line *soname_row(const doc *d, const char *lib) {
  const doc_table_line *row, *found = kr_tables_find(d->tables, "soname", lib);
  const int of_torch = kr_parse_tenths(d->target.torch_cuda) / 10;
  const char *begin = kr_arena_print(d->arena, "%s.so.", lib);
  for (size_t at = 0; !found && (row = kr_tables_next(d->tables, "soname", &at));)
    if (log_begins(row->column[0], begin) && (!of_torch || !atoi(row->column[1]) || atoi(row->column[1]) == of_torch))
      found = row;
  return found;
}

/* 90100 and 8907 as cuDNN 9.1.0 and 8.9.7, 12010 as CUDA 12.1; other libraries' numbers unchanged. */
static const char *library_number(const doc *d, const char *what, const char *text) {
  const int n = atoi(text);
  if (strcmp(what, "CUDA") == 0 && n >= 1000) return kr_arena_print(d->arena, "%d.%d", n / 1000, n / 10 % 100);
  if (strcmp(what, "cuDNN") != 0 || n < 1000) return text;
  return n >= 90000 ? kr_arena_print(d->arena, "%d.%d.%d", n / 10000, n / 100 % 100, n % 100)
                    : kr_arena_print(d->arena, "%d.%d.%d", n / 1000, n / 100 % 10, n % 100);
}

static void fill_jax(const doc *d, const doc_hit *hit, hit_keys *keys) {
  const doc_table_line *row = kr_tables_find(d->tables, "holds", "jax-cuda12-plugin");
  put_log(keys, "want", library_number(d, taken(hit, "what"), taken(hit, "jax_want")));
  put_log(keys, "have", library_number(d, taken(hit, "what"), taken(hit, "jax_have")));
  if (row) put_log(keys, "jax_install", kr_arena_print(d->arena, "pip install \"jax[cuda12]==%s\"", row->column[1]));
  if (strcmp(taken(hit, "what"), "CUDA") == 0) /* the system's toolkit: jax's own packages bring a newer one */
    put_log(keys, "jax_first", "pip install --upgrade \"jax[cuda12]\"");
}

static int fill_library(const doc *d, const doc_hit *hit, hit_keys *keys, const char *package) {
  const char *lib = taken(hit, "lib");
  if (is_for_log(hit, "L01")) {
    if (log_begins(lib, "libc10") || log_begins(lib, "libtorch") || log_begins(lib, "libcuda.so") ||
        log_begins(lib, "libcudnn") || log_begins(lib, "libbitsandbytes") || log_begins(lib, "cudnn"))
      return 0;
    if (*taken(hit, "plain_lib")) lib = kr_arena_print(d->arena, "lib%s", taken(hit, "plain_lib"));
    if (soname_row(d, lib)) lib = soname_row(d, lib)->column[0];
    put_log(keys, "lib", lib);
    put_log(keys, "of", doc_major_of(d, kr_tables_find(d->tables, "soname", lib)));
    if (log_begins(lib, "libcudart.so.")) put_log(keys, "of", kr_arena_print(d->arena, " (CUDA %s)", lib + 13));
    put_log(keys, "library_install", doc_install_library(d, lib, package));
  }
  if (is_for_log(hit, "L07")) { /* L03 and L04 have their own texts */
    const char *need = taken(hit, "need");
    if (log_begins(need, "GLIBC") || log_begins(need, "CXXABI") || log_begins(need, "GCC_")) return 0;
    put_log(keys, "lib", log_base_of(lib));
  }
  if (is_for_log(hit, "S05")) {
    static const char *const names[] = {"cublas", "cudnn", "cudart", "cusparse", "cusolver", "nvrtc", "nvJitLink"};
    const char *symbol = doc_symbol_in(d, hit->line);
    if (strstr(hit->line, "not defined in file") && !*lib) return 0;
    if (log_begins(lib, "GLIBC") || log_begins(lib, "CXXABI") || log_begins(lib, "libc.so")) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !*lib; i++)
      if (log_begins(symbol, names[i]) || (i == 2 && log_begins(symbol, "cuda")))
        put_log(keys, "lib", kr_arena_print(d->arena, "lib%s", names[i]));
    if (*taken(hit, "jit")) put_log(keys, "lib", "libnvJitLink.so.12");
    put_log(keys, "user_lib", log_base_of(taken(hit, "user_lib")));
    put_log(keys, "symbol", *taken(hit, "symbol") ? taken(hit, "symbol") : symbol);
  }
  if (is_for_log(hit, "S06")) fill_nccl(d, hit, keys);
  if (is_for_log(hit, "L03")) put_log(keys, "glibc_system", release_words(d, "glibc", taken(hit, "need")));
  if (is_for_log(hit, "L04")) fill_libstdcxx(d, hit, keys);
  if (is_for_log(hit, "L08")) fill_bitsandbytes(d, hit, keys);
  if (is_for_log(hit, "L09")) fill_cudnn(d, hit, keys, package);
  if (is_for_log(hit, "L10")) fill_cudnn_versions(d, hit, keys);
  if (is_for_log(hit, "L11")) fill_jax(d, hit, keys);
  if (is_for_log(hit, "L12"))
    put_log(keys, "newer", doc_command(d, "release", package, doc_version_of(d, package), ""));
  if (is_for_log(hit, "L06")) put_log(keys, "lib", lib);
  return 1;
}

/* ---- packages that go together ---- */
/* A torch other than the installed one. */
static const char *newest_torch(const doc *d) {
  doc without = *d;
  without.target.torch_number = 0;
  return doc_torch_install(&without);
}

/* A name that exists in another release of torch or transformers. */
static int fill_other_release(const doc *d, const doc_hit *hit, hit_keys *keys, const char *package) {
  const char *attribute = taken(hit, "attribute");
  const doc_table_line *row = kr_tables_find(d->tables, "attribute", attribute);
  const int is_torch = strstr(hit->line, "transformers") == NULL || strstr(hit->line, "'torch") != NULL,
            since = row ? kr_parse_torch(row->column[1]) : 0;
  if (kr_tables_has_word("version __version__ Tensor tensor nn device cuda float32 no_grad", attribute))
    return 0; /* that is not a torch at all */
  if (!is_torch) {
    put_log(keys, "partner", "transformers");
    put_log(keys, "attribute_fix",
            strstr(attribute, "DecoderOnlyOutput") ? "pip install \"transformers>=4.39,<5\"" : "");
    return is_someone(package);
  }
  if (row && since) put_log(keys, "since", row->column[1]);
  if (row && !since) put_log(keys, "until", row->column[2]);
  if (d->target.torch_number && since && d->target.torch_number < since) put_log(keys, "have_torch", d->target.torch);
  if (row && !since) put_log(keys, "attribute_fix", doc_command(d, "release", package, "", ""));
  else if (d->target.torch_number < 209) put_log(keys, "attribute_fix", newest_torch(d));
  return 1;
}

static int fill_requirement(const doc *d, const doc_hit *hit, hit_keys *keys, const char **package) {
  const char *asker = taken(hit, "asker"), *have = taken(hit, "have_name");
  if (!strstr(hit->line, asker)) return 0; /* joining wrapped lines may have lengthened a name */
  *package = doc_normalise(d, asker, strlen(asker));
  put_log(keys, "have", kr_arena_print(d->arena, "%s %s", have, taken(hit, "have_version")));
  put_log(keys, "pair",
      strcmp(have, "torch") == 0 ? doc_pair_command(d, *package, NULL)
                                 : kr_arena_print(d->arena, "pip install \"%s\"", taken(hit, "req")));
  return 1;
}

static int fill_pair(const doc *d, const doc_hit *hit, hit_keys *keys, const char **package) {
  const doc_table_line *row, *pair = NULL;
  if (is_for_log(hit, "P01")) return fill_requirement(d, hit, keys, package);
  if (is_for_log(hit, "P06")) return fill_other_release(d, hit, keys, *package);
  if (is_for_log(hit, "P02")) {
    static const char *const members[] = {"torchvision", "torchaudio"};
    for (int i = 0; i < 2; i++)
      if (strstr(hit->line, members[i]) || (i == 1 && strstr(hit->line, "TorchAudio"))) *package = members[i];
    if (strstr(hit->line, "ops") && strstr(hit->line, "C++") && !is_someone(*package)) *package = "torchvision";
    if (strstr(hit->line, "(you have "))
      *package = strstr(hit->line, "xFormers") || !is_someone(*package) ? "xformers" : *package;
    if (strstr(hit->line, "triton.ops")) *package = "bitsandbytes";
    if (!is_someone(*package) || !doc_package_row(d, *package)) return 0;
    for (size_t at = 0; (row = kr_tables_next(d->tables, "pair", &at));)
      if (strcmp(row->column[0], *package) == 0 || strcmp(row->column[3], *package) == 0) pair = row;
    if (pair) put_log(keys, "partner", strcmp(pair->column[0], *package) == 0 ? pair->column[3] : pair->column[0]);
    put_log(keys, "pair",
        strcmp(*package, "dgl") == 0 /* its last wheels */
            ? "pip install --force-reinstall torch==2.4.0 --index-url https://download.pytorch.org/whl/cu124"
            : doc_pair_command(d, *package, pair));
  }
  if (is_for_log(hit, "P03")) {
    const int is_triton = strstr(hit->line, "No module named 'triton'") || strstr(hit->line, "triton installation");
    if (is_triton) *package = "triton";
    if (!is_someone(*package) || !doc_package_row(d, *package) ||
        kr_tables_has_word("torch packaging wheel setuptools", taken(hit, "module")))
      return 0;
    if (strstr(hit->line, "is not defined") && !strstr(taken(hit, "fn"), "cuda") &&
        !doc_package_in(d, taken(hit, "fn"))[0])
      return 0;
    if (strstr(hit->line, "No module named") && !strstr(hit->line, "_cuda") && !is_triton &&
        strcmp(doc_package_in(d, taken(hit, "module")), *package) != 0)
      return 0;
    if (strstr(taken(hit, "module"), ".ops")) return 0;
  }
  return 1;
}

/* ---- driver ---- */
static int fill_hidden(const doc *d, const doc_hit *hit, hit_keys *keys) {
  const int is_false = strstr(hit->line, "is_available() is False") != NULL,
            is_cpu = strstr(d->target.torch, "+cpu") != NULL;
  if (is_for_log(hit, "D07") && *taken(hit, "cpu_torch") && !strstr(hit->line, "+cpu")) return 0;
  if (is_for_log(hit, "D07")) return !is_false || is_cpu;
  if (!is_for_log(hit, "D08")) return 1;
  if (is_false && is_cpu) return 0;
  if (is_false)
    put_log(keys, "unavailable", ": torch.cuda.is_available() is False"),
        put_log(keys, "look", "python3 -c 'import torch; print(torch.__version__, torch.version.cuda)'; nvidia-smi");
  else if (strstr(hit->line, "ordinal") || strstr(hit->line, "INVALID_DEVICE"))
    put_log(keys, "ordinal", "invalid device ordinal"), put_log(keys, "look", "nvidia-smi -L");
  else put_log(keys, "look", "env | grep CUDA_VISIBLE_DEVICES; nvidia-smi -L");
  return 1;
}

static void fill_driver(doc *d, const doc_hit *hit, hit_keys *keys) {
  if (is_for_log(hit, "D01") && *taken(hit, "found")) {
    int found = atoi(taken(hit, "found"));
    put_log(keys, "found_cuda", kr_arena_print(d->arena, "%d.%d", found / 1000, found / 10 % 100));
    d->log.driver_cuda = found / 1000 * 10 + found / 10 % 10;
  }
  if (is_for_log(hit, "D06")) put_log(keys, "branch", "580");
  if (is_for_log(hit, "D10") && d->log.is_wsl)
    put_log(keys, "wsl", "no part of NVIDIA's driver should be installed inside"),
        put_log(keys, "wsl_fix", "wsl --update && wsl --shutdown");
  if (is_for_log(hit, "W01") && *taken(hit, "tag")) {
    krait_wheel_name name = {.size = sizeof name};
    if (krait_wheel_name_parse(taken(hit, "tag"), &name) == KRAIT_OK)
      put_log(keys, "why",
          kr_arena_print(d->arena, "this Python, glibc or machine (it is for %s, %s)", name.python, name.platform));
  }
}

/* ---- builds ---- */
/* The newest torch with code for a target, whose Triton knows it. */
static const char *torch_for_target(const doc *d, const char *arch) {
  doc with_target = *d;
  with_target.target.judged_cc = atoi(arch);
  return newest_torch(&with_target);
}

static const char *fill_words(const doc *d, const char *text, const char *cuda) {
  kr_text out = kr_text_begin(d->arena);
  for (const char *p = text; *p;) {
    if (log_begins(p, "%py%"))
      kr_text_print(
          &out, "%s",
          d->target.python ? kr_arena_print(d->arena, "%d.%d", d->target.python / 100, d->target.python % 100) : "3"),
          p += 4;
    else if (log_begins(p, "%cuda%")) kr_text_print(&out, "%s", cuda), p += 6;
    else kr_text_add(&out, p++, 1);
  }
  return out.at;
}

static const char *dashed(const doc *d, int tenths) {
  return kr_arena_print(d->arena, "%d-%d", tenths / 10, tenths % 10);
}

static void put_need(const doc *d, hit_keys *keys, int need) {
  if (!need) return;
  put_log(keys, "need", kr_print_tenths(d->arena, need));
}

/* The toolkit to install if any works: torch's own, else the oldest that knows the GPU. */
static int usual_toolkit(const doc *d) {
  int of_torch = kr_parse_tenths(d->target.torch_cuda),
      of_gpu = doc_main_cc(d) ? kr_tables_first_cuda_for(d->tables, kr_arena_print(d->arena, "%d", doc_main_cc(d))) : 0;
  return of_torch > of_gpu ? of_torch : of_gpu >= 118 ? of_gpu : of_torch ? of_torch : 128;
}

static int fill_header(const doc *d, const doc_hit *hit, hit_keys *keys) {
  const char *header = taken(hit, "header");
  size_t n = strlen(header);
  while (n && strchr("'\",:", header[n - 1])) n--;
  header = kr_arena_copy(d->arena, header, n);
  const doc_table_line *row = kr_tables_find(d->tables, "header", header);
  if (!row) row = kr_tables_find(d->tables, "header", log_base_of(header));
  put_log(keys, "header", header);
  if (row) put_log(keys, "header_of", kr_arena_print(d->arena, "it belongs to %s", row->column[1]));
  put_log(keys, "header_install", row ? fill_words(d, row->column[2], dashed(d, usual_toolkit(d))) : "");
  return strstr(header, ".so") == NULL;
}

static int fill_nvcc(doc *d, const doc_hit *hit, hit_keys *keys) {
  const char *arch = taken(hit, "arch");
  arch = log_begins(arch, "sm_") ? arch + 3 : arch;
  int sm = atoi(arch), need = kr_tables_first_cuda_for(d->tables, arch), have = kr_parse_tenths(d->log.nvcc);
  if (is_for_log(hit, "B01") && sm && sm < 75) return 0;
  if (is_for_log(hit, "B02") && sm >= 75) return 0;
  if (is_for_log(hit, "B03")) return 1;
  if (is_for_log(hit, "B11") && !doc_main_cc(d) && !d->options.machine && sm &&
      doc_machine_of_gpu(d, kr_print_cc(d->arena, sm)))
    d->target.machine =
        doc_machine_of_gpu(d, kr_print_cc(d->arena, sm)); /* such GPUs come with one kind of processor only */
  if (is_for_log(hit, "B11")) put_log(keys, "arch", kr_arena_print(d->arena, "sm_%s", arch));
  else if (sm)
    put_log(keys, "arch",
        kr_arena_print(d->arena, "%d.%d%s", sm / 10, sm % 10, strpbrk(arch, "af") ? strpbrk(arch, "af") : ""));
  if (have)
    put_log(keys, "nvcc", d->log.nvcc); /* this machine's may not be the one that failed */
  else if (kr_parse_tenths(d->target.nvcc) && kr_parse_tenths(d->target.nvcc) < need)
    put_log(keys, "nvcc", d->target.nvcc);
  put_need(d, keys, need);
  return 1;
}

/* The newest GCC that a toolkit accepts. */
static const char *newest_gcc(const doc *d, const char *cuda) {
  const doc_table_line *row;
  const char *newest = "";
  for (size_t at = 0; (row = kr_tables_next(d->tables, "host", &at));)
    if (kr_parse_tenths(row->column[0]) <= kr_parse_tenths(cuda)) newest = row->column[1];
  return newest;
}

static void fill_host(const doc *d, const doc_hit *hit, hit_keys *keys) {
  const char *cuda = *taken(hit, "host_cuda") ? taken(hit, "host_cuda") : d->log.nvcc, *newest = newest_gcc(d, cuda);
  if (*taken(hit, "gcc_most")) return;
  if (strstr(hit->line, "Visual Studio")) return;
  put_log(keys, "gcc_most", strstr(hit->line, "parameter packs") ? "10" : *newest ? newest : "12");
}

/* What every system of these years has: GCC 11. */
static void fill_old_gcc(const doc *d, const doc_hit *hit, hit_keys *keys) {
  const int year = atoi(taken(hit, "std_year")), named = atoi(taken(hit, "gcc_least")),
            least = named ? named : year >= 20 ? 11 : 9;
  put_log(keys, "std", least >= 11 ? "C++20" : "C++17");
  put_log(keys, "gcc_least", kr_arena_print(d->arena, "%d", least));
  put_log(keys, "gcc_take", kr_arena_print(d->arena, "%d", least > 11 ? least : 11));
}

static int fill_language(const doc *d, const doc_hit *hit, hit_keys *keys) {
  const int year = atoi(taken(hit, "std_year"));
  put_log(keys, "std", kr_arena_print(d->arena, "C++%d", year));
  put_need(d, keys, year >= 20 ? 120 : year >= 17 ? 110 : 0);
  return year == 17 || year == 20;
}

static int fill_build(doc *d, const doc_hit *hit, hit_keys *keys) {
  if (*taken(hit, "arch") && (is_for_log(hit, "B01") || is_for_log(hit, "B02") || is_for_log(hit, "B11")))
    return fill_nvcc(d, hit, keys);
  if (is_for_log(hit, "B28")) put_log(keys, "newer_torch", torch_for_target(d, taken(hit, "arch")));
  if (is_for_log(hit, "B03")) put_log(keys, "arch_cc", kr_print_cc(d->arena, atoi(taken(hit, "arch"))));
  if (is_for_log(hit, "B10")) put_need(d, keys, usual_toolkit(d));
  if (is_for_log(hit, "B07") && !kr_tables_has_word("torch packaging wheel setuptools psutil", taken(hit, "module")))
    return 0;
  if (is_for_log(hit, "B08") && d->log.first_error)
    put_log(keys, "first", kr_arena_print(d->arena, "%.100s", d->log.first_error + strspn(d->log.first_error, " ")));
  if (is_for_log(hit, "B09") && strstr(hit->line, "clang")) return 1;
  if (is_for_log(hit, "B05") && d->log.no_wheel) return 0;
  if (is_for_log(hit, "B09")) fill_host(d, hit, keys);
  if (is_for_log(hit, "B06") && !*taken(hit, "nvcc")) put_log(keys, "nvcc", d->log.nvcc);
  if (is_for_log(hit, "B20")) fill_old_gcc(d, hit, keys);
  if (is_for_log(hit, "B19")) put_log(keys, "nvcc", d->log.nvcc);
  if (is_for_log(hit, "B21")) return fill_language(d, hit, keys);
  if (is_for_log(hit, "B13") && !d->log.is_build) return 0;
  if (is_for_log(hit, "R08") && (d->log.is_build || strstr(hit->line, "Killed signal"))) return 0;
  if (is_for_log(hit, "B14")) return fill_header(d, hit, keys);
  if (is_for_log(hit, "B15") && (strcmp(taken(hit, "plain"), "cuda") == 0 || strcmp(taken(hit, "plain"), "cuda:") == 0))
    return 0;
  if (is_for_log(hit, "B18")) put_log(keys, "arch_name", taken(hit, "arch_name"));
  return 1;
}

/* ---- images ---- */
static int torch_has(const doc *d, int cc) {
  const char *tag = strstr(d->target.torch, "+cu");
  return cc && d->target.torch_number && doc_torch_index(d, d->target.torch_number, cc, tag ? tag + 1 : NULL) != NULL;
}

/* NVRTC is the one that CuPy or JAX finds; torch brings its own. */
static void put_compiler(const doc *d, hit_keys *keys, const char *package) {
  const int cc = doc_main_cc(d);
  const char *version = doc_nearest_release(d, package, doc_version_of(d, package)),
             *nvrtc = doc_command(d, "nvrtc_install", package, "", "");
  kr_list cuda = KR_LIST(const char *);
  put_log(keys, "rtc_pkg", package);
  if (cc && cc < 75 && doc_match(d, "CUDA Runtime Version : %d{v}", d->log.text, &cuda))
    put_log(keys, "rtc_cuda", kr_arena_print(d->arena, "%d", atoi(DOC_TEXT(cuda, 1)) / 1000));
  put_log(keys, "rtc_fix",
      log_begins(package, "cupy") ? kr_arena_print(d->arena, "pip install %s%s%s && %s", package, *version ? "==" : "",
                                               version, nvrtc)
                              : nvrtc);
}

/* What serves a GPU that lacks a number format. */
static void fill_lacking(const doc_hit *hit, hit_keys *keys) {
  static const char *const formats[] = {"bfloat16", "Bfloat16", "BFloat16", "bf16", "16BF"};
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
    if (strstr(hit->line, formats[i])) {
      put_log(keys, "floor", "8.0"), put_log(keys, "lacking", "bfloat16");
      put_log(keys, "lacks_fix", "in your code: torch.float16 instead of torch.bfloat16 (vllm: --dtype half)");
      return;
    }
  if (strstr(hit->line, "efficient float16")) {
    put_log(keys, "floor", "7.0"), put_log(keys, "lacking", "fast float16");
    put_log(keys, "lacks_fix", "in your code: compute_type=\"int8\" or \"float32\" instead of \"float16\"");
  } else if (strstr(hit->line, ".m16n8k16") || strstr(hit->line, ".m16n8k32") || strstr(hit->line, "mma"))
    put_log(keys, "lacks_fix", "in the model's configuration: another quantization, as gptq or bitsandbytes int8");
  else if (strstr(hit->line, "fp8"))
    put_log(keys, "lacks_fix", "in the model's configuration: weights in float16, int8 or int4 instead of fp8");
  else if (strstr(hit->line, "uantiz") || strstr(hit->line, "Minimum capability"))
    put_log(keys, "lacks_fix", "in the program's settings: another quantization, as gptq or bitsandbytes");
}

static int fill_image(const doc *d, const doc_hit *hit, hit_keys *keys, const char **package) {
  int cc = doc_main_cc(d);
  if (is_for_log(hit, "K04")) return 0; /* only the files' bytes can tell */
  if (is_for_log(hit, "K14")) {
    const char *arch = *taken(hit, "arch") ? taken(hit, "arch") : taken(hit, "capability");
    if (*arch) cc = strchr(arch, '.') ? kr_parse_tenths(arch) : atoi(arch);
    if (cc) put_log(keys, "cc", kr_print_cc(d->arena, cc)), put_log(keys, "index", doc_index_for(d, cc));
  }
  if (is_for_log(hit, "K18")) {
    if (cc >= 80 && (strstr(hit->line, "Ampere") || strstr(hit->line, "16BF") || strstr(hit->line, "float16")))
      return 0;
    const char *sm = taken(hit, "floor_sm");
    if (strstr(hit->line, "triton GPU compiler")) put_log(keys, "floor", "7.0");
    if (*sm) put_log(keys, "floor", kr_print_cc(d->arena, atoi(sm)));
    if (*taken(hit, "have_major") && strstr(hit->line, "Flash")) put_log(keys, "floor", "8.0"), *package = "";
    fill_lacking(hit, keys);
    if (!strstr(hit->line, "Ampere")) *package = "";
  }
  if (is_for_log(hit, "K24") && strstr(hit->line, "compute capability"))
    put_log(keys, "kernel_cc", kr_print_cc(d->arena, atoi(taken(hit, "kernel_sm"))));
  if (is_for_log(hit, "K21") && cc < 80) return 0;
  if (is_for_log(hit, "K21") && strstr(hit->line, "(too new)"))
    *package = "xformers", put_log(keys, "newer", doc_pair_command(d, "xformers", NULL));
  if (is_for_log(hit, "K09") && strstr(hit->line, "cudaGetDeviceCount"))
    return 0; /* nothing has been launched yet: D10 */
  if (is_for_log(hit, "K09") && strstr(hit->line, "NCCL")) *package = "nvidia-nccl";
  if (is_for_log(hit, "K01") && strcmp(*package, "torch") == 0 && (torch_has(d, cc) || !log_suggests(d, "K14")))
    *package = ""; /* torch also reports other packages' launches */
  if ((is_for_log(hit, "K22") || is_for_log(hit, "K23")) && !is_someone(*package)) *package = "torch";
  if (is_for_log(hit, "K23") && kr_tables_has_word("cupy-cuda12x jax-cuda12-plugin", *package))
    put_compiler(d, keys, *package);
  return 1;
}

static void fill_fault(const doc_hit *hit, hit_keys *keys) {
  static const char *const faults[][2] = {{" ECC ", "a memory error that cannot be corrected"},
                                          {"ECC_UNCORR", "a memory error that cannot be corrected"},
                                          {"ECCUncorr", "a memory error that cannot be corrected"},
                                          {"off the bus", "it has left the bus"},
                                          {"is lost", "it no longer responds"},
                                          {"device handle", "it no longer responds"}};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    if (strstr(hit->line, faults[i][0])) {
      put_log(keys, "fault", faults[i][1]);
      return;
    }
}

static void fill_use(const doc *d, const doc_hit *hit, hit_keys *keys) {
  if (is_for_log(hit, "R09")) fill_fault(hit, keys);
  static const char *const libs[][2] = {{"cublas", "CUBLAS"}, {"cudnn", "CUDNN"}, {"cusolver", "CUSOLVER"}};
  for (int i = 0; i < 3 && is_for_log(hit, "R06"); i++)
    if (*taken(hit, libs[i][0]))
      put_log(keys, "lib", libs[i][1]),
          put_log(keys, "status", kr_arena_print(d->arena, "%s_STATUS_%s", libs[i][1], taken(hit, libs[i][0])));
  if (is_for_log(hit, "R05"))
    put_log(keys, "resource", strcmp(taken(hit, "resource"), "shared") == 0 ? "shared memory" : taken(hit, "resource"));
}

static const char *check_for(const doc *d, int stage) {
  const char *where = doc_command(d, "environment", "", "", "");
  if (stage == KR_STAGE_IMAGE)
    return kr_arena_print(d->arena, "to be certain: krait doctor %s reads the contents of every library", where);
  if (stage == KR_STAGE_SYMBOL)
    return kr_arena_print(d->arena, "to be certain: krait doctor %s compares the library's names with torch's", where);
  if (stage == KR_STAGE_DRIVER) return "to be certain: run krait doctor on the machine itself";
  return kr_arena_print(d->arena, "to be certain: krait doctor %s", where);
}

/* ---- reporting ---- */
static const char *log_file(const doc *d) {
  return d->options.log_name && *d->options.log_name ? d->options.log_name : "error.txt";
}

static void report_hit(const doc *d, const doc_hit *hit, const hit_keys *keys, const char *package) {
  doc_finding *f = doc_report(d, hit->rule->id, NULL, package, keys->at);
  if (!f) return;
  f->from_log = f->is_named = 1;
  f->confidence = hit->rule->log_confidence;
  if (d->log.is_done) { /* work went on: at most a remark */
    f->confidence = 'M';
    f->severity =
        hit->rule->stage == KR_STAGE_DRIVER || is_for_log(hit, "K14") || is_for_log(hit, "P08") ? KR_WARN : KR_INFO;
  } else if (hit->rule->severity != KR_INFO || is_for_log(hit, "L02"))
    f->severity = hit->rule->is_advice ? KR_WARN : KR_ERROR; /* a crash's message says what went wrong, if not why */
  doc_add_evidence(d, f, "the log: %.300s", hit->line + strspn(hit->line, " "));
  if (d->log.last_frame && is_for_log(hit, "K01"))
    doc_add_evidence(d, f, "its last Python frame: %s", d->log.last_frame);
  if (d->log.is_frame_torch && is_for_log(hit, "K01"))
    doc_add_evidence(d, f, "a call of torch: it also reports launches of other libraries that failed before it (K03)");
  if (!f->fixes.n || (!*f->package && is_for_log(hit, "K01"))) {
    f->fixes.n = 0;
    doc_add_text(
        d, &f->fixes,
        kr_arena_print(d->arena, "krait doctor --log %s %s", log_file(d), doc_command(d, "environment", "", "", "")));
    if (doc_main_cc(d))
      doc_add_text(d, &f->fixes,
                   kr_arena_print(d->arena,
                                  "in the source folder of the library that it names: TORCH_CUDA_ARCH_LIST=\"%s\" pip "
                                  "install --no-build-isolation --no-deps --force-reinstall .",
                                  kr_print_cc(d->arena, doc_main_cc(d))));
    else doc_add_text(d, &f->fixes, "it names the library; then build that again, or take a newer release");
  }
  if (f->confidence == 'M') doc_add_evidence(d, f, "%s", check_for(d, hit->rule->stage));
}

/* B04 is about packages that set their own targets; one finding for each that the line names, or the whole text when
 * the line names none. */
static void report_arch_list(const doc *d, const doc_hit *hit) {
  int is_here = *doc_package_in(d, hit->line) != '\0';
  for (size_t i = 0; i < d->log.names.n; i++) {
    const doc_table_line *row = doc_package_row(d, DOC_TEXT(d->log.names, i));
    hit_keys keys = {.n = 0};
    if (row && strcmp(row->column[4], "no") == 0 && (!is_here || doc_is_named(row, hit->line)))
      report_hit(d, hit, &keys, row->column[0]);
  }
}

/* One sentence per rule and package; missing libraries are reported one by one. */
static int is_said(const doc *d, const doc_hit *hit, const char *package) {
  if (is_for_log(hit, "L01") || is_for_log(hit, "W04") || is_for_log(hit, "R01")) return 0;
  size_t *n = kr_names_put(d->arena, &d->found->said, kr_arena_print(d->arena, "log\1%s\1%s", hit->rule->id, package));
  return (*n)++ != 0;
}

static void judge_hit(doc *d, const doc_hit *hit) {
  static const struct { const char *id, *by;
  } explained[] = {{"K01", "K01 K02 K03 K04 K05 K06 K07 K09 K10 K14 K20"},
                   {"S01", "S01 S02 D07"},
                   {"S02", "S02 S01 D07"},
                   {"S04", "S04"},
                   {"K08", "K08"},
                   {"K09", "K09"},
                   {"K14", "K14"},
                   {"K17", "K17"},
                   {"L01", "L01 D07 P01"},
                   {"L03", "L03"},
                   {"L04", "L04"},
                   {"L05", "L05"},
                   {"D01", "D01"},
                   {"D02", "D02"},
                   {"D03", "D03"},
                   {"D07", "D07"},
                   {"D08", "D08"},
                   {"W06", "W06 F01"},
                   {"K12", "K12"},
                   {"D10", "D01 D02 D03 D04 D05 D08 D09"},
                   {"S05", "S05 L07"},
                   {"S06", "S06"},
                   {"D09", "D09"},
                   {"P02", "P01 P02 D07"},
                   {"L07", "L07"}};
  hit_keys keys = {.n = 0};
  const char *package = kr_tables_has_word("K14 K15 D07 L10", hit->rule->id) ? "torch"
                        : is_for_log(hit, "L08")                             ? "bitsandbytes"
                        : hit->rule->stage == KR_STAGE_DRIVER && !is_for_log(hit, "D01") && !is_for_log(hit, "S11") &&
                                !is_for_log(hit, "D14")
                            ? ""
                            : package_of(d, hit);
  for (size_t i = 0; i < sizeof explained / sizeof *explained; i++)
    if (is_for_log(hit, explained[i].id) && already_found(d, explained[i].by)) return;
  if (is_for_log(hit, "B04")) {
    report_arch_list(d, hit);
    return;
  }
  if (!fill_symbol(d, hit, &keys) || !fill_build(d, hit, &keys) || !fill_library(d, hit, &keys, package) ||
      !fill_image(d, hit, &keys, &package) || !fill_pair(d, hit, &keys, &package) || !fill_hidden(d, hit, &keys))
    return;
  kr_list words = KR_LIST(const char *);
  if (!doc_fill_words(d, hit, &words, &package) || is_said(d, hit, package)) return;
  for (size_t i = 0; i + 1 < words.n; i += 2) put_first(&keys, DOC_TEXT(words, i), DOC_TEXT(words, i + 1));
  fill_driver(d, hit, &keys);
  fill_use(d, hit, &keys);
  put_library(d, hit, &keys);
  for (size_t i = 0; i + 1 < hit->keys.n; i += 2) put_log(&keys, DOC_TEXT(hit->keys, i), DOC_TEXT(hit->keys, i + 1));
  report_hit(d, hit, &keys, package);
}

/* What the bytes say about a file or package that the log names comes first. */
static void mark_named(const doc *d) {
  kr_names named = {0};
  for (size_t i = 0; i < d->log.files.n; i++)
    *kr_names_put(d->arena, &named, log_base_of(DOC_TEXT(d->log.files, i))) = 1;
  for (size_t i = 0; i < d->log.hits.n; i++) {
    const char *package = package_of(d, KR_AT(d->log.hits, doc_hit, i));
    if (is_someone(package)) *kr_names_put(d->arena, &named, package) = 1;
  }
  for (size_t i = 0; i < d->found->findings.n; i++) {
    doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    f->is_named |= kr_names_find(&named, log_base_of(f->file)) || (*f->package && kr_names_find(&named, f->package)) ||
                   f->rule->stage == KR_STAGE_DRIVER;
  }
}

/* K15 is certain only when the scanned torch runs through a lower minor version. */
void doc_diagnose_log(doc *d) {
  for (size_t i = 0; i < d->log.hits.n; i++) judge_hit(d, KR_AT(d->log.hits, doc_hit, i));
  if (d->log.given) mark_named(d);
  for (size_t i = 0; i < d->evidence.files.n && log_suggests(d, "K15"); i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (strncmp(file->name, "libtorch_cuda", 13) != 0 || file->verdict != KRAIT_VERDICT_NATIVE_MINOR) continue;
    for (size_t k = 0; k < d->found->findings.n; k++)
      if (strcmp(KR_AT(d->found->findings, doc_finding, k)->rule->id, "K15") == 0)
        KR_AT(d->found->findings, doc_finding, k)->confidence = 'H';
  }
}
