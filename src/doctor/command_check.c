/* command_check.c: every command passes here before it is printed: it installs something, of releases that exist for
 * the target's Python, uses no variable that may be unset, names NVIDIA's repository where apt needs it, and is one of
 * the target's own shell. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"
#include "report.h"

/* ---- releases ---- */
/* Packages without rows are not known, so nothing is held against them. 2.6.* is there when one of its releases is. */
int doc_has_release(const doc *d, const char *package, const char *version) {
  const doc_table_line *row;
  const char *star = strstr(version, ".*");
  const size_t n = star ? (size_t)(star - version) : strcspn(version, "+");
  int is_known = 0;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "release", &at));) {
    if (strcmp(row->column[0], package) != 0) continue;
    is_known = 1;
    for (const char *p = row->column[1]; *p; p += strcspn(p, " "), p += strspn(p, " "))
      if (strncmp(p, version, n) == 0 && (!p[n] || p[n] == ' ' || (star && p[n] == '.'))) return 1;
  }
  return !is_known;
}

/* This release, or its newest post-release: 2.7.4.post1 for 2.7.4; "" when the index has neither. */
const char *doc_nearest_release(const doc *d, const char *package, const char *version) {
  const doc_table_line *row;
  const char *begin = kr_arena_print(d->arena, "%s.post", version);
  if (!*version || doc_has_release(d, package, version)) return version;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "release", &at));)
    for (const char *p = row->column[1]; *p && strcmp(row->column[0], package) == 0;
         p += strcspn(p, " "), p += strspn(p, " "))
      if (strncmp(p, begin, strlen(begin)) == 0) return kr_arena_copy(d->arena, p, strcspn(p, " "));
  return "";
}

int doc_fits_python(const doc *d, const char *package, const char *version) {
  const doc_table_line *row;
  for (size_t at = 0; d->target.python && (row = kr_tables_next(d->tables, "python", &at));)
    if (strcmp(row->column[0], package) == 0 && kr_compare_versions(version, row->column[1]) >= 0 &&
        (!*row->column[2] || kr_compare_versions(version, row->column[2]) <= 0))
      return d->target.python >= 300 + atoi(row->column[3] + 2) &&
             (!*row->column[4] || d->target.python <= 300 + atoi(row->column[4] + 2));
  return 1;
}

static int is_requirement_good(const doc *d, const char *word, size_t n) {
  const char *text = kr_arena_copy(d->arena, word, n), *equals = strstr(text, "==");
  if (!equals || strstr(text, "://") || strchr(equals, ',')) return 1;
  const size_t name_bytes = strcspn(text, "[=<>!~ ");
  const char *name = doc_normalise(d, text, name_bytes), *version = equals + 2;
  return doc_has_release(d, name, version) && (strchr(version, '*') || doc_fits_python(d, name, version));
}

/* ---- one command ---- */
static int takes_argument(const char *option, size_t n) {
  static const char *const options[] = {"--index-url", "--extra-index-url", "--no-binary",    "--only-binary", "-f",
                                        "-i",          "--find-links",      "--config-settings"};
  for (size_t i = 0; i < sizeof options / sizeof *options; i++)
    if (strlen(options[i]) == n && strncmp(option, options[i], n) == 0) return 1;
  return 0;
}

static int is_install_good(const doc *d, const char *part) {
  const char *p = strstr(part, "pip install");
  int n_requirements = 0, is_argument = 0;
  if (!p) return 1;
  for (p += 11, p += strspn(p, " "); *p && !strchr("&|;", *p); p += strspn(p, " ")) {
    const char quote = *p == '"' || *p == '\'' ? *p : 0;
    const size_t skip = quote != 0, n = quote ? strcspn(p + 1, quote == '"' ? "\"" : "'") : strcspn(p, " ");
    const char *word = p + skip;
    p += n + 2 * skip;
    if (is_argument) is_argument = 0;
    else if (*word == '-') {
      is_argument = takes_argument(word, n);
      n_requirements += strncmp(word, "-r", 2) == 0 || strncmp(word, "-e", 2) == 0;
    } else {
      n_requirements++;
      if (!is_requirement_good(d, word, n)) return 0;
    }
  }
  return n_requirements > 0;
}

/* $PATH and $HOME are set, and what /etc/os-release sets; ${X:+...} and ${X:-} ask. */
static int are_variables_set(const doc *d, const char *command) {
  static const char known[] = "PATH HOME PWD ID VERSION_ID";
  int is_quoted = 0;
  for (const char *p = command; *p; p++) {
    is_quoted ^= *p == '\'';
    if (*p != '$' || is_quoted) continue;
    const char *name = p + 1 + (p[1] == '{');
    size_t n = 0;
    while (isalnum((unsigned char)name[n]) || name[n] == '_') n++;
    if (!n || (p[1] == '{' && name[n] != '}')) continue;
    const char *text = kr_arena_copy(d->arena, name, n);
    if (kr_tables_has_word(known, text) || strstr(command, kr_arena_print(d->arena, "${%s:", text))) continue;
    return 0;
  }
  return 1;
}

/* ---- NVIDIA's repository ---- */
static int needs_repository(const char *command) {
  static const char *const packages[] = {"apt install cuda-toolkit-", "apt install libcudnn", "apt install libnccl"};
  for (size_t i = 0; i < sizeof packages / sizeof *packages; i++)
    if (strstr(command, packages[i])) return 1;
  return 0;
}

/* "sudo apt install cuda-toolkit-12-8 && export CUDA_HOME=..." for a system where apt may not know the package yet. */
static const char *with_repository(const doc *d, const char *command) {
  const char *toolkit = strstr(command, "cuda-toolkit-");
  if (d->log.is_windows)
    return toolkit && atoi(toolkit + 13)
               ? kr_arena_print(d->arena, "winget install -e --id Nvidia.CUDA --version %d.%d", atoi(toolkit + 13),
                                atoi(toolkit + 13 + strcspn(toolkit + 13, "-") + 1))
               : NULL;
  if (d->log.is_jetson || d->log.is_mac || d->log.is_arch) return command; /* their own repositories have it */
  if (d->log.is_rpm) return kr_arena_print(d->arena, "%s && %s", doc_rpm_repository(d), command);
  const char *machine = d->target.machine == KR_ELF_AARCH64 ? "sbsa" : "x86_64",
             *system = d->log.is_wsl ? "wsl-ubuntu" : "$ID$(echo $VERSION_ID | tr -d .)";
  return kr_arena_print(
      d->arena,
      "%swget https://developer.download.nvidia.com/compute/cuda/repos/%s/%s/"
      "cuda-keyring_1.1-1_all.deb && sudo dpkg -i cuda-keyring_1.1-1_all.deb && sudo apt update && %s",
      d->log.is_wsl ? "" : ". /etc/os-release && ", system, machine, command);
}

/* A new environment has the Python that it is made with. */
static int makes_environment(const char *command) {
  return strstr(command, " -m venv ") != NULL || strncmp(command, "conda create ", 13) == 0;
}

static int are_installs_good(const doc *d, const char *command) {
  doc as = *d;
  int are_good = 1;
  if (makes_environment(command)) as.target.python = 0;
  for (const char *p = command; p; p = strstr(p, " && ") ? strstr(p, " && ") + 4 : NULL) {
    const char *end = strstr(p, " && ");
    are_good &= is_install_good(&as, end ? kr_arena_copy(d->arena, p, (size_t)(end - p)) : p);
  }
  return are_good;
}

static const char *checked_command(const doc *d, const char *command) {
  if (!are_installs_good(d, command) || !are_variables_set(d, command)) return NULL;
  if (needs_repository(command) && !strstr(command, "cuda-keyring")) command = with_repository(d, command);
  return command ? doc_for_system(d, command) : NULL;
}

/* "or a torch for this driver: pip install ...": a sentence that ends in a command. */
static const char *checked_sentence(const doc *d, const char *fix) {
  const char *colon = fix;
  while ((colon = strstr(colon, ": ")) && !doc_is_command(colon + 2)) colon += 2;
  if (!colon) return are_variables_set(d, fix) ? fix : NULL;
  const char *command = checked_command(d, colon + 2);
  return command ? kr_arena_print(d->arena, "%.*s: %s", (int)(colon - fix), fix, command) : NULL;
}

const char *doc_checked(const doc *d, const char *fix) {
  return doc_is_command(fix) ? checked_command(d, fix) : checked_sentence(d, fix);
}
