/* live_pipewire.c: see live_pipewire.h. */
#define _GNU_SOURCE
#include "live_pipewire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "output.h"

extern const unsigned char kr_embed_pipewire_conf[];
extern const size_t kr_embed_pipewire_conf_bytes;

enum { PATH_BYTES = 4096 };
static const char *const plugin_name = "krait_ladspa";

/* ~/.config/pipewire/pipewire.conf.d/krait-denoise.conf; `makes` its folders. 0: there is no home. */
static int conf_path(char *path, int makes) {
  static const char *const parts[] = {"", "/pipewire", "/pipewire.conf.d", "/krait-denoise.conf"};
  const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
  const int is_own = config && *config == '/';
  int n =
      is_own ? snprintf(path, PATH_BYTES, "%s", config) : snprintf(path, PATH_BYTES, "%s/.config", home ? home : "");
  if ((!is_own && (!home || !*home)) || n >= PATH_BYTES - 64) return 0;
  for (int i = 0; i < CLI_N(parts); i++) {
    n += snprintf(path + n, (size_t)(PATH_BYTES - n), "%s", parts[i]);
    if (makes && i < CLI_N(parts) - 1) mkdir(path, 0777); /* what fails here, fails when the file is opened */
  }
  return 1;
}

static int has_plugin(const char *folder, size_t n, char *path) {
  return n && *folder == '/' && snprintf(path, PATH_BYTES, "%.*s/%s.so", (int)n, folder, plugin_name) < PATH_BYTES &&
         access(path, R_OK) == 0;
}

/* Beside this program, too: PREFIX/bin/krait has its plug-in in PREFIX/lib/ladspa. */
static int has_plugin_beside(char *path) {
  char program[PATH_BYTES], folder[PATH_BYTES + 16];
  const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
  if (n <= 0) return 0;
  program[n] = 0;
  for (int i = 0; i < 2 && strrchr(program, '/'); i++) *strrchr(program, '/') = 0;
  snprintf(folder, sizeof folder, "%s/lib/ladspa", program);
  return has_plugin(folder, strlen(folder), path);
}

static int find_plugin(char *path) {
  const char *own = getenv("LADSPA_PATH");
  for (const char *at = own; at && *at; at += strcspn(at, ":"), at += *at == ':')
    if (has_plugin(at, strcspn(at, ":"), path)) return 1;
  static const char *const folders[] = {"/usr/local/lib/ladspa", "/usr/lib/ladspa", "/usr/lib64/ladspa"};
  if (has_plugin_beside(path)) return 1;
  for (int i = 0; i < CLI_N(folders); i++)
    if (has_plugin(folders[i], strlen(folders[i]), path)) return 1;
  return 0;
}

static int report_path(const char *what, const char *path) {
  fprintf(cli_err(), "krait live: %s %s: %s\n", what, path, strerror(errno));
  return 1;
}

/* The file with the plug-in's path, whole or not at all. */
static int write_conf(const char *path, const char *plugin) {
  const char *text = (const char *)kr_embed_pipewire_conf, *name = strstr(text, plugin_name);
  char part[PATH_BYTES + 8];
  snprintf(part, sizeof part, "%s.part", path);
  FILE *file = fopen(part, "we");
  if (!file) return report_path("cannot write", path);
  int failed = !name || fwrite(text, 1, (size_t)(name - text), file) != (size_t)(name - text) ||
               fputs(plugin, file) < 0 || fputs(name + strlen(plugin_name), file) < 0;
  failed |= fclose(file) != 0;
  failed = failed || rename(part, path) != 0;
  if (!failed) return 0;
  const int because = errno;
  unlink(part);
  errno = because;
  return report_path("cannot write", path);
}

int live_pipewire_setup(void) {
  char path[PATH_BYTES], plugin[PATH_BYTES];
  if (!find_plugin(plugin))
    return cli_usage_error("live", "--setup-pipewire needs the LADSPA plug-in %s.so, which is in none of the usual "
                                   "folders; install it (krait-ladspa), or name its folder in LADSPA_PATH",
                           plugin_name);
  if (!conf_path(path, 1)) return cli_usage_error("live", "--setup-pipewire needs HOME, which is not set");
  if (write_conf(path, plugin)) return 1;
  printf("%s\nWhen PipeWire has started again (systemctl --user restart pipewire), programs can choose the microphone "
         "\"Krait denoised microphone\". krait live --remove undoes this.\n",
         path);
  return 0;
}

int live_pipewire_remove(void) {
  char path[PATH_BYTES];
  if (!conf_path(path, 0)) return cli_usage_error("live", "--remove needs HOME, which is not set");
  const int is_missing = unlink(path) != 0;
  if (is_missing && errno != ENOENT) return report_path("cannot remove", path);
  printf("%s %s\n", path, is_missing ? "is not there" : "is removed");
  return 0;
}
