/* facts.c: the machine: GPUs, driver, toolkit, C library, each with its source. The first answer is used. Nothing needs
 * root or network access. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include "dlib.h"
#include "doc.h"
#include "env.h"
#include "status.h"

enum { CHILD_LIMIT_MS = 10000, CHILD_TEXT_BYTES = 65536 };

const char *doc_path(const doc *d, const char *path) {
  return *d->root ? kr_arena_print(d->arena, "%s%s", d->root, path) : path;
}
int doc_exists(const doc *d, const char *path) { return access(doc_path(d, path), F_OK) == 0; }

const char *doc_read_text(const doc *d, const char *path, size_t max_bytes) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return NULL;
  kr_text text = kr_text_begin(d->arena);
  char piece[4096];
  ssize_t n;
  while (text.length < max_bytes && (n = read(fd, piece, sizeof piece)) > 0) kr_text_add(&text, piece, (size_t)n);
  close(fd);
  return text.at;
}

static const char *facts_first_line(const doc *d, const char *path) {
  const char *text = doc_read_text(d, doc_path(d, path), 4096);
  return text ? kr_arena_copy(d->arena, text, strcspn(text, "\n")) : "";
}

/* ---- child processes: a driver library that hangs or crashes must not stop the doctor ---- */
static const char *run_child(const doc *d, void (*child)(int out)) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  pid_t pid = fork();
  if (pid < 0) {
    close(ends[0]);
    close(ends[1]);
    return "";
  }
  if (pid == 0) {
    close(ends[0]);
    child(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  kr_text text = kr_text_begin(d->arena);
  struct pollfd wait = {.fd = ends[0], .events = POLLIN};
  char piece[4096];
  ssize_t n = 1;
  while (n > 0 && text.length < CHILD_TEXT_BYTES && poll(&wait, 1, CHILD_LIMIT_MS) > 0)
    if ((n = read(ends[0], piece, sizeof piece)) > 0) kr_text_add(&text, piece, (size_t)n);
  if (n > 0) kill(pid, SIGKILL);
  close(ends[0]);
  waitpid(pid, NULL, 0);
  return text.at;
}

static void ask_driver(int out) {
  const char *why;
  kr_dlib *lib = kr_dlib_open("libcuda.so.1", &why);
  if (!lib) return;
  int (*init)(unsigned) = NULL, (*version)(int *) = NULL, (*count)(int *) = NULL, (*get)(int *, int) = NULL,
      (*name)(char *, int, int) = NULL, (*attribute)(int *, int, int) = NULL;
  *(void **)&init = kr_dlib_find(lib, "cuInit");
  *(void **)&version = kr_dlib_find(lib, "cuDriverGetVersion");
  *(void **)&count = kr_dlib_find(lib, "cuDeviceGetCount");
  *(void **)&get = kr_dlib_find(lib, "cuDeviceGet");
  *(void **)&name = kr_dlib_find(lib, "cuDeviceGetName");
  *(void **)&attribute = kr_dlib_find(lib, "cuDeviceGetAttribute");
  int n = 0, cuda = 0;
  if (!init || !version || !count || !get || !name || !attribute) return;
  if (version(&cuda) == 0) dprintf(out, "cuda %d\n", cuda);
  int status = init(0);
  dprintf(out, "init %d\n", status);
  if (status != 0 || count(&n) != 0) return;
  for (int i = 0; i < n && i < 64; i++) {
    char text[128] = "";
    int device, major, minor;
    if (get(&device, i) != 0 || name(text, sizeof text, device) != 0 || attribute(&major, 75, device) != 0 ||
        attribute(&minor, 76, device) != 0)
      continue;
    dprintf(out, "gpu %d %s\n", major * 10 + minor, text);
  }
}

static void run_nvidia_smi(int out) {
  int null = open("/dev/null", O_RDWR);
  dup2(out, 1);
  dup2(null, 2);
  dup2(null, 0);
  execlp("nvidia-smi", "nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader",
         (char *)NULL);
  _exit(127);
}

/* ---- GPUs ---- */
static void add_gpu(doc *d, const char *name, int cc, const char *source) {
  doc_gpu *gpu = kr_list_push(d->arena, &d->target.gpus);
  *gpu = (doc_gpu){.name = name, .cc = cc ? cc : krait_tables_find_gpu(d->tables, name), .source = source};
}

static void gpus_from_driver(doc *d) {
  const char *text = run_child(d, ask_driver);
  for (const char *line = text; *line;) {
    size_t n = strcspn(line, "\n");
    if (strncmp(line, "cuda ", 5) == 0) {
      d->target.driver_cuda = atoi(line + 5);
    } else if (strncmp(line, "gpu ", 4) == 0) {
      const char *blank = strchr(line + 4, ' ');
      if (blank)
        add_gpu(d, kr_arena_copy(d->arena, blank + 1, n - (size_t)(blank + 1 - line)), atoi(line + 4), "libcuda");
    }
    line += n + (line[n] == '\n');
  }
}

static void gpus_from_smi(doc *d) {
  const char *text = run_child(d, run_nvidia_smi);
  for (const char *line = text; *line;) {
    size_t n = strcspn(line, "\n");
    const char *comma = memchr(line, ',', n),
               *second = comma ? memchr(comma + 1, ',', n - (size_t)(comma + 1 - line)) : NULL;
    if (second) {
      add_gpu(d, kr_arena_copy(d->arena, line, (size_t)(comma - line)), kr_parse_tenths(comma + 2), "nvidia-smi");
      if (!*d->target.driver)
        d->target.driver = kr_arena_copy(d->arena, second + 2, n - (size_t)(second + 2 - line)),
        d->target.driver_source = "nvidia-smi";
    }
    line += n + (line[n] == '\n');
  }
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Calls fn with the path of each entry of a folder, sorted by name. */
static void each_entry(doc *d, const char *folder, void (*fn)(doc *d, const char *path)) {
  kr_list paths = KR_LIST(const char *);
  DIR *dir = opendir(doc_path(d, folder));
  if (!dir) return;
  for (struct dirent *entry; (entry = readdir(dir));)
    if (entry->d_name[0] != '.') doc_add_text(d, &paths, kr_arena_print(d->arena, "%s/%s", folder, entry->d_name));
  closedir(dir);
  if (paths.n) qsort(paths.at, paths.n, sizeof(const char *), compare_names);
  for (size_t i = 0; i < paths.n; i++) fn(d, DOC_TEXT(paths, i));
}

static void gpu_from_proc(doc *d, const char *path) {
  const char *text = doc_read_text(d, doc_path(d, kr_arena_print(d->arena, "%s/information", path)), 4096);
  const char *model = text ? strstr(text, "Model:") : NULL;
  if (!model) return;
  model += 6 + strspn(model + 6, " \t");
  add_gpu(d, kr_arena_copy(d->arena, model, strcspn(model, "\n")), 0, "/proc/driver/nvidia");
}

static void gpu_from_pci(doc *d, const char *path) {
  const char *vendor = facts_first_line(d, kr_arena_print(d->arena, "%s/vendor", path)),
             *class = facts_first_line(d, kr_arena_print(d->arena, "%s/class", path));
  d->target.n_pci += *vendor != 0;
  if (strcmp(vendor, "0x10de") != 0 || strncmp(class, "0x03", 4) != 0) return;
  const char *device = facts_first_line(d, kr_arena_print(d->arena, "%s/device", path));
  add_gpu(d, kr_arena_print(d->arena, "PCI device 10de:%s", strncmp(device, "0x", 2) == 0 ? device + 2 : device),
          kr_tables_pci(d->tables, (int)strtol(device, NULL, 16)), "PCI id");
}

static void collect_gpus(doc *d) {
  if (d->options.gpu) {
    add_gpu(d, d->options.gpu, krait_tables_find_gpu(d->tables, d->options.gpu), "--gpu");
    return;
  }
  if (!*d->root) gpus_from_driver(d);
  if (!d->target.gpus.n && !*d->root) gpus_from_smi(d);
  if (!d->target.gpus.n) each_entry(d, "/proc/driver/nvidia/gpus", gpu_from_proc);
  if (!d->target.gpus.n) each_entry(d, "/sys/bus/pci/devices", gpu_from_pci);
  const char *model = d->target.gpus.n ? "" : facts_first_line(d, "/proc/device-tree/model");
  if (krait_tables_find_gpu(d->tables, model)) add_gpu(d, model, 0, "device tree");
}

/* ---- driver ---- */
/* The version in the name of the file that libcuda.so.1 points to. */
static const char *user_driver(const doc *d) {
  char target[512];
  const char *path = doc_system_library(d, "libcuda.so.1");
  ssize_t n = *path ? readlink(path, target, sizeof target - 1) : -1;
  if (n <= 0) return "";
  target[n] = '\0';
  const char *at = strstr(target, "libcuda.so.");
  return at && isdigit((unsigned char)at[11]) && strchr(at + 11, '.') ? kr_arena_print(d->arena, "%s", at + 11) : "";
}

static const char *kernel_driver(const doc *d) {
  const char *version = facts_first_line(d, "/sys/module/nvidia/version");
  if (*version) return version;
  const char *line = facts_first_line(d, "/proc/driver/nvidia/version"), *at = strstr(line, "Kernel Module");
  for (; at && *at; at++)
    if (at[-1] == ' ' && isdigit((unsigned char)*at)) return kr_arena_copy(d->arena, at, strspn(at, "0123456789."));
  return "";
}

static void collect_driver(doc *d) {
  d->target.kernel_driver = kernel_driver(d);
  d->target.user_driver = user_driver(d);
  d->target.has_nvidia_node = doc_exists(d, "/dev/nvidia0") || doc_exists(d, "/dev/nvidiactl");
  d->target.has_uvm_node = doc_exists(d, "/dev/nvidia-uvm");
  d->target.has_jit = *doc_system_library(d, "libnvidia-ptxjitcompiler.so.1") != '\0';
  d->target.has_driver =
      *d->target.kernel_driver || *doc_system_library(d, "libcuda.so.1") || doc_exists(d, "/dev/dxg");
  if (d->options.driver) d->target.driver = d->options.driver, d->target.driver_source = "--driver";
  else if (*d->target.kernel_driver)
    d->target.driver = d->target.kernel_driver, d->target.driver_source = "kernel module";
}

static void settle_driver(doc *d) {
  d->target.driver_number = kr_parse_driver(d->target.driver);
  if (d->options.driver && !strchr(d->options.driver, '.'))
    d->target.driver_number += 999999; /* a branch: it counts as able to do whatever any of its releases can */
  if (d->options.driver || !d->target.driver_cuda) {
    int cuda = d->target.driver_number ? kr_tables_cuda_of_driver(d->tables, d->target.driver_number) : 0;
    d->target.driver_cuda = cuda / 10 * 1000 + cuda % 10 * 10;
  }
}

/* ---- C library ---- */
typedef struct newest_user {
  doc *d;
  const char *prefix, *best;
} newest_user;

static void keep_newest(void *user, const char *file, const char *version) {
  newest_user *u = user;
  size_t n = strlen(u->prefix);
  (void)file;
  if (strncmp(version, u->prefix, n) != 0 || !isdigit((unsigned char)version[n])) return;
  if (kr_compare_versions(version + n, u->best) > 0) u->best = kr_arena_print(u->d->arena, "%s", version + n);
}

/* The newest version with this prefix that a library defines; "" when it cannot be read. */
static const char *newest_defined(doc *d, const char *path, const char *prefix) {
  krait_scan *scan;
  newest_user user = {d, prefix, ""};
  if (!*path || krait_scan_open(path, &scan) < 0) return "";
  if (kr_scan_elf(scan)) kr_elf_versions(kr_scan_elf(scan), kr_scan_dynamic(scan), 0, keep_newest, &user);
  krait_scan_close(&scan);
  return user.best;
}

static int glibc_number(const char *text) {
  int major = atoi(text);
  const char *dot = strchr(text, '.');
  return major * 100 + (dot ? atoi(dot + 1) : 0);
}

static void collect_libc(doc *d) {
  const char *text = newest_defined(d, doc_system_library(d, "libc.so.6"), "GLIBC_");
#ifdef __GLIBC__
  if (!*text && !*d->root) text = gnu_get_libc_version();
#endif
  d->target.glibc = *text ? glibc_number(text) : 0;
}

/* ---- the machine around a GPU ---- */
/* Boards sold with only one kind of processor: GH200, GB200, GB10 and Jetsons with Arm. 0: any. */
int doc_machine_of_gpu(const doc *d, const char *name) {
  const doc_table_line *row = kr_tables_find(d->tables, "machine", "aarch64");
  int cc = krait_tables_find_gpu(d->tables, name);
  if (!row) return 0;
  for (const char *p = row->column[1]; *p; p += strspn(p, ", ")) {
    size_t n = strcspn(p, ",");
    const char *word = kr_arena_copy(d->arena, p, n);
    if (strcasestr(name, word) || (strspn(word, "0123456789.") == n && cc == kr_parse_tenths(word)))
      return KR_ELF_AARCH64;
    p += n;
  }
  return 0;
}

/* ---- toolkit ---- */
static const char *toolkit_version(const doc *d, const char *folder) {
  const char *text = doc_read_text(d, kr_arena_print(d->arena, "%s/version.json", folder), 65536);
  const char *at = text ? strstr(text, "\"cuda\"") : NULL;
  at = at ? strstr(at, "\"version\"") : NULL;
  if (at) {
    at += 9 + strcspn(at + 9, "0123456789");
    return kr_print_tenths(d->arena, kr_parse_tenths(at));
  }
  text = doc_read_text(d, kr_arena_print(d->arena, "%s/include/cuda.h", folder), 1 << 20);
  at = text ? strstr(text, "#define CUDA_VERSION ") : NULL;
  int number = at ? atoi(at + 21) : 0;
  return number ? kr_arena_print(d->arena, "%d.%d", number / 1000, number / 10 % 100) : "";
}

static int try_toolkit(doc *d, const char *folder) {
  const char *nvcc = kr_arena_print(d->arena, "%s/bin/nvcc", folder);
  if (!*folder || *d->target.nvcc || access(nvcc, F_OK) != 0) return 0;
  d->target.nvcc = toolkit_version(d, folder);
  if (*d->target.nvcc) d->target.nvcc_path = nvcc;
  return *d->target.nvcc != '\0';
}

static const char *foreign(const char *name) {
  const char *text = kr_env_foreign(name);
  return text ? text : "";
}

static void collect_toolkit(doc *d) {
  char real[4096];
  try_toolkit(d, foreign("CUDA_HOME"));
  try_toolkit(d, foreign("CUDA_PATH"));
  for (const char *p = *d->root ? "" : foreign("PATH"); *p && !*d->target.nvcc;) {
    size_t n = strcspn(p, ":");
    const char *nvcc = kr_arena_print(d->arena, "%.*s/nvcc", (int)n, p);
    if (n && realpath(nvcc, real)) {
      char *bin = strstr(real, "/bin/nvcc");
      if (bin) *bin = '\0', try_toolkit(d, kr_arena_print(d->arena, "%s", real));
    }
    p += n + (p[n] == ':');
  }
  try_toolkit(d, doc_path(d, "/usr/local/cuda"));
  try_toolkit(d, foreign("CONDA_PREFIX"));
  for (size_t i = 0; i < d->evidence.sites.n; i++)
    try_toolkit(d, kr_arena_print(d->arena, "%s/nvidia/cu13", DOC_TEXT(d->evidence.sites, i)));
}

/* A target was named: a log, a GPU, a torch, a wheel or requirements. This machine's compiler, driver and environment
 * variables are no evidence about it; what lies below --root is. */
static int is_elsewhere(const doc *d) {
  static const char *const ends[] = {".whl", ".txt", ".toml", ".in"};
  const krait_doctor_options *o = &d->options;
  if (*d->root) return 0;
  for (uint32_t i = 0; i < o->n_paths; i++)
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
      const size_t n = strlen(o->paths[i]), m = strlen(ends[k]);
      if (n > m && strcmp(o->paths[i] + n - m, ends[k]) == 0) return 1;
    }
  return o->log || o->gpu || o->torch;
}

/* Of a log that came with an environment, the GPUs and the driver are those that the environment is used with. */
static void forget_machine(doc *d) {
  const int is_used_here = d->options.log && d->evidence.is_environment && !d->options.gpu && !d->options.torch;
  d->target.nvcc = d->target.nvcc_path = d->target.env_library_path = "";
  d->target.env_visible = NULL;
  if (!d->options.gpu && d->options.log && !d->evidence.is_environment) d->target.gpus.n = 0;
  if (is_used_here) return;
  d->target.kernel_driver = d->target.user_driver = "";
  if (d->options.driver) return;
  d->target.driver = d->target.driver_source = "";
  d->target.driver_number = d->target.driver_cuda = 0;
}

void doc_collect_facts(doc *d) {
  struct utsname name;
  if (uname(&name) == 0) d->target.machine = strcmp(name.machine, "aarch64") == 0 ? KR_ELF_AARCH64 : KR_ELF_X86_64;
  if (d->options.machine)
    d->target.machine = strcmp(d->options.machine, "aarch64") == 0 ? KR_ELF_AARCH64 : KR_ELF_X86_64;
  else if (d->options.gpu && doc_machine_of_gpu(d, d->options.gpu))
    d->target.machine = doc_machine_of_gpu(d, d->options.gpu);
  d->target.env_library_path = foreign("LD_LIBRARY_PATH");
  d->target.env_visible = kr_env_foreign("CUDA_VISIBLE_DEVICES");
  d->target.env_force_jit = foreign("CUDA_FORCE_PTX_JIT");
  d->target.env_disable_jit = foreign("CUDA_DISABLE_PTX_JIT");
  d->target.env_no_cache = foreign("CUDA_CACHE_DISABLE");
  collect_driver(d);
  collect_gpus(d);
  settle_driver(d);
  collect_libc(d);
  if (d->options.glibc) d->target.glibc = glibc_number(d->options.glibc);
  collect_toolkit(d);
  d->target.is_elsewhere = is_elsewhere(d);
  if (d->target.is_elsewhere) forget_machine(d);
}
