/* system.c: which system a log comes from, and a command in the words of that system's shell. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"

static int system_holds_any(const char *text, const char *const *words) {
  for (; *words; words++)
    if (strstr(text, *words)) return 1;
  return 0;
}

static int system_begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* ---- which system ---- */
/* A path into a user's folder: the folder of users with a name below it. */
static int has_home(const char *text) {
  for (const char *p = text; (p = strstr(p, "/home")); p += 5)
    if (p[5] == '/' && (p == text || !isalnum((unsigned char)p[-1])) && (isalnum((unsigned char)p[6]) || p[6] == '_'))
      return 1;
  return 0;
}

/* JetPack's major version by its own name, its L4T release or its kernel; 0: not told. */
static int jetpack_of(const char *text) {
  static const struct { const char *word; int jetpack; } words[] = {
      {"JetPack 4", 4}, {"JetPack 5", 5}, {"JetPack 6", 6}, {"JetPack 7", 7}, {"Jetpack 4", 4}, {"Jetpack 5", 5},
      {"Jetpack 6", 6}, {"Jetpack 7", 7}, {"L4T R32", 4},   {"L4T R35", 5},   {"L4T R36", 6},   {"L4T R38", 7},
      {"R32 (", 4},     {"R35 (", 5},     {"R36 (", 6},     {"R38 (", 7},     {"L4T 32", 4},    {"L4T 35", 5},
      {"L4T 36", 6},    {"L4T 38", 7},    {"jp/v4", 4},     {"jp/v5", 5},     {"jp/v6", 6},     {"4.9.", 4},
      {"5.10.", 5},     {"5.15.", 6},     {"6.8.", 7}};
  const int has_kernel = strstr(text, "-tegra") != NULL;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strstr(text, words[i].word) && (!isdigit((unsigned char)*words[i].word) || has_kernel)) return words[i].jetpack;
  return 0;
}

/* "rhel8", "fedora42": NVIDIA's name for the repository of a system with dnf; NULL: it is not one. */
static const char *rpm_system(const doc *d, const char *text) {
  static const char *const rhel[] = {"Red Hat", "CentOS", "Rocky Linux", "AlmaLinux", "Oracle Linux", "Amazon Linux",
                                     "Scientific Linux", "rhel", NULL};
  const char *fedora = strstr(text, "Fedora"), *el = strstr(text, ".el");
  while (el && !isdigit((unsigned char)el[3])) el = strstr(el + 3, ".el");
  if (!fedora && (fedora = strstr(text, ".fc")) && !isdigit((unsigned char)fedora[3])) fedora = NULL;
  if (fedora) {
    const char *number = fedora + strcspn(fedora, "0123456789\n");
    return kr_arena_print(d->arena, "fedora%d", atoi(number) >= 39 && atoi(number) < 60 ? atoi(number) : 42);
  }
  if (!el && !system_holds_any(text, rhel)) return NULL;
  return el && el[3] >= '7' ? kr_arena_print(d->arena, "rhel%c", el[3]) : "rhel9";
}

static int is_powershell(const char *text) {
  for (const char *p = text; (p = strstr(p, "PS ")); p++)
    if (isalpha((unsigned char)p[3]) && p[4] == ':' && p[5] == '\\') return 1;
  return 0;
}

void doc_read_system(doc *d, const char *text) {
  static const char *const windows[] = {"C:\\",       "C:/",        "D:/",       "D:\\", "E:\\", "F:\\",
                                        "G:\\",       ".pyd",       "win_amd64", ".dll", ".bat", "cl.exe",
                                        "Windows 10", "Windows 11", "Windows-1", NULL};
  static const char *const wsl[] = {"WSL", "/lib/wsl", "microsoft-standard", "/mnt/c/", NULL};
  static const char *const mac[] = {"-darwin", "Mac OSX", "macOS", "Darwin", "apple-darwin", "arm64-apple", "macosx_",
                                    "Expected in: flat namespace", "/Users/", "@rpath/", ".dylib", NULL};
  static const char *const jetson[] = {"-tegra", "L4T", "JetPack", "Jetpack", "Jetson", "+nv2", "nvgpu", "jp/v",
                                       "nv_tegra", NULL};
  static const char *const rocm[] = {"HIP error", "+rocm", "hipError", "rocBLAS", "rocblas", "HIP out of memory",
                                     "MIOpen", "libamdhip", "HIP GPUs", "/opt/rocm", "hsa_", "TensileLibrary", NULL};
  static const char *const arch[] = {"-arch1", "Arch Linux", "Manjaro", "pacman ", "EndeavourOS", NULL};
  static const char *const conda[] = {"conda", "miniforge", "mambaforge", "micromamba", NULL};
  static const char *const container[] = {"docker", "Docker", "nvidia-container-cli", "/.dockerenv", "kubernetes",
                                          "podman", "container", NULL};
  doc_log *log = &d->log;
  log->is_wsl = system_holds_any(text, wsl);
  log->is_windows = !log->is_wsl && system_holds_any(text, windows);
  log->is_powershell = log->is_windows && is_powershell(text);
  log->is_mac = !log->is_windows && !log->is_wsl && system_holds_any(text, mac);
  log->is_jetson = system_holds_any(text, jetson) || kr_tables_is_tegra(d->tables, doc_main_cc(d));
  log->jetpack = log->is_jetson ? jetpack_of(text) : 0;
  log->has_home = has_home(text);
  log->is_rpm = log->is_windows || log->is_mac ? NULL : rpm_system(d, text);
  log->is_arch = !log->is_windows && system_holds_any(text, arch);
  log->is_rocm = system_holds_any(text, rocm);
  log->is_conda = system_holds_any(text, conda);
  log->is_container = system_holds_any(text, container);
  if (log->is_jetson && !d->options.machine && !log->is_windows) d->target.machine = KR_ELF_AARCH64;
}

/* ---- the words of its shell ---- */
static int is_assignment(const char *word) {
  const size_t n = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
  return n > 1 && word[n] == '=';
}

/* The length of the word at p, with its quotes. */
static size_t word_length(const char *p) {
  size_t n = 0;
  for (char quote = 0; p[n] && (quote || p[n] != ' '); n++)
    if (quote ? p[n] == quote : p[n] == '"' || p[n] == '\'') quote = quote ? 0 : p[n];
  return n;
}

/* NAME=value:$NAME as `set "NAME=value;%NAME%"` or `$env:NAME="value;$env:NAME"`. */
static void set_variable(const doc *d, kr_text *out, const char *word, size_t n) {
  const size_t name = strcspn(word, "=");
  kr_text_print(out, d->log.is_powershell ? "$env:%.*s=\"" : "set \"%.*s=", (int)name, word);
  for (const char *p = word + name + 1; p < word + n; p++) {
    if (*p == '"') continue;
    if (*p == ':' && p[1] == '$') kr_text_print(out, ";");
    else if (system_begins(p, "$PATH")) kr_text_print(out, d->log.is_powershell ? "$env:PATH" : "%%PATH%%"), p += 4;
    else kr_text_add(out, p, 1);
  }
  kr_text_print(out, "\"");
}

/* One command between && signs; 0: it has no counterpart there. */
static int windows_part(const doc *d, kr_text *out, const char *part) {
  static const char *const foreign[] = {"sudo ", "apt ", "ldconfig", "/usr/", "patchelf", "$(", "docker ", "grep ",
                                        "free ", "sed ", "rm -r", "/dev/", ". /etc", "${", "chmod", "mount ", NULL};
  const char *and = d->log.is_powershell ? "; " : " && ";
  int n_parts = 0;
  if (system_holds_any(part, foreign) || system_begins(part, "ln ") || system_begins(part, "free")) return 0;
  const int is_unset = system_begins(part, "unset "), is_export = system_begins(part, "export ");
  const char *p = part + (is_unset ? 6 : is_export ? 7 : 0);
  for (size_t n; *p && (is_unset || is_assignment(p)); p += n, p += strspn(p, " ")) {
    n = word_length(p);
    if (n_parts++) kr_text_print(out, "%s", and);
    if (!is_unset) set_variable(d, out, p, n);
    else if (d->log.is_powershell) kr_text_print(out, "$env:%.*s=\"\"", (int)n, p);
    else kr_text_print(out, "set \"%.*s=\"", (int)n, p);
  }
  if (!*p) return 1;
  if (n_parts) kr_text_print(out, "%s", and);
  kr_text_print(out, "%s", system_begins(p, "python3 ") ? kr_arena_print(d->arena, "python %s", p + 8) : p);
  return 1;
}

static const char *for_windows(const doc *d, const char *command) {
  kr_text out = kr_text_begin(d->arena);
  for (const char *p = command; *p;) {
    const char *end = strstr(p, " && ");
    if (out.length) kr_text_print(&out, d->log.is_powershell ? "; " : " && ");
    if (!windows_part(d, &out, end ? kr_arena_copy(d->arena, p, (size_t)(end - p)) : p)) return NULL;
    p = end ? end + 4 : "";
  }
  return out.at;
}

const char *doc_rpm_repository(const doc *d) {
  return kr_arena_print(d->arena,
                        "sudo curl -o /etc/yum.repos.d/cuda.repo https://developer.download.nvidia.com/compute/cuda/"
                        "repos/%s/%s/cuda-%s.repo",
                        d->log.is_rpm, d->target.machine == KR_ELF_AARCH64 ? "sbsa" : "x86_64", d->log.is_rpm);
}

/* The packages of `sudo apt install ...` under their names of dnf or pacman; NULL: one of them has none there. */
static const char *packages_for(const doc *d, const char *names) {
  kr_text out = kr_text_begin(d->arena);
  for (const char *p = names; *p; p += strspn(p, " ")) {
    const size_t n = strcspn(p, " ");
    const char *name = kr_arena_copy(d->arena, p, n), *there = name;
    p += n;
    const doc_table_line *row = kr_tables_find(d->tables, "rpm", system_begins(name, "python3") ? "python3-dev" : name);
    if (*name == '-') continue;
    if (system_begins(name, "cuda-toolkit-")) there = d->log.is_arch ? "cuda" : name;
    else there = row ? row->column[d->log.is_arch ? 2 : 1] : "";
    if (!*there) return NULL;
    kr_text_print(&out, "%s%s", out.length ? " " : "", there);
  }
  return out.at;
}

/* Compilers of a given age are in Red Hat's toolsets, and in conda-forge for every other system. */
static const char *compiler_for(const doc *d, const char *command) {
  const int gcc = atoi(strstr(command, "install gcc-") + 12);
  if (d->log.is_rpm && system_begins(d->log.is_rpm, "rhel"))
    return kr_arena_print(d->arena, "sudo dnf install -y gcc-toolset-%d && . /opt/rh/gcc-toolset-%d/enable", gcc, gcc);
  return kr_arena_print(d->arena, "conda install -y -c conda-forge gxx_linux-64=%d", gcc);
}

static const char *for_distribution(const doc *d, const char *command) {
  const char *end = strstr(command, " && "), *rest = end ? end : "";
  const char *part = end ? kr_arena_copy(d->arena, command, (size_t)(end - command)) : command;
  if (system_begins(command, "sudo curl ")) { /* NVIDIA's repository, then its package */
    const char *next = end ? for_distribution(d, end + 4) : NULL;
    return next ? kr_arena_print(d->arena, "%s && %s", part, next) : NULL;
  }
  if (system_begins(part, "sudo apt install gcc-")) return compiler_for(d, part);
  if (!system_begins(part, "sudo apt install ")) return strstr(command, "apt install") ? NULL : command;
  const char *names = packages_for(d, part + 17);
  return names ? kr_arena_print(d->arena, "%s %s%s", d->log.is_arch ? "sudo pacman -S" : "sudo dnf install -y", names,
                                d->log.is_arch && strstr(rest, "/usr/local/cuda") ? "" : rest)
               : NULL;
}

/* The command as the log's system takes it; NULL when it has none like it. */
const char *doc_for_system(const doc *d, const char *command) {
  static const char *const linux_only[] = {"sudo apt", "apt install", "cuda-toolkit", "LD_LIBRARY_PATH", "nvidia-smi",
                                           "modprobe", "/proc/", "/whl/cu", NULL};
  if (d->log.is_windows && !system_begins(command, "wsl ")) return for_windows(d, command);
  if (d->log.is_rpm || d->log.is_arch) return for_distribution(d, command);
  if (d->log.is_mac && system_holds_any(command, linux_only)) return NULL;
  return command;
}
