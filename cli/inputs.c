/* inputs.c: which recordings an operand stands for and where each result goes. Names only; nothing is opened. */
#define _GNU_SOURCE
#include "inputs.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "args.h"

static const char *const extensions[] = {"wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "aifc", "au", "snd", "caf", "w64", "rf64", "voc", "sph"};
static const char mark[] = ".enhanced.";

static int is_folder(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static char *join(const char *folder, const char *name) {
  char *path = NULL;
  const size_t n = strlen(folder);
  return asprintf(&path, "%s%s%s", folder, n > 0 && folder[n - 1] == '/' ? "" : "/", name) < 0 ? NULL : path;
}

/* a/b.wav -> a/b.enhanced.wav */
static char *beside(const char *in) {
  char *path = NULL;
  const char *name = base_name(in), *dot = strrchr(name, '.');
  const int n = dot && dot != name ? (int)(dot - in) : (int)strlen(in);
  return asprintf(&path, "%.*s%s%s", n, in, dot && dot != name ? ".enhanced" : mark, dot && dot != name ? dot : "wav") < 0 ? NULL : path;
}

static int add(kr_pairs *pairs, char *in) {
  kr_pair *grown = in ? realloc(pairs->pairs, (size_t)(pairs->n + 1) * sizeof *grown) : NULL;
  if (!grown) {
    free(in);
    return -1;
  }
  pairs->pairs = grown;
  pairs->pairs[pairs->n++] = (kr_pair){.in = in};
  return 0;
}

/* Audio files by their extension, without results of earlier runs. */
static int is_recording(const struct dirent *entry) {
  const char *dot = strrchr(entry->d_name, '.');
  if (!dot || entry->d_name[0] == '.' || strstr(entry->d_name, mark)) return 0;
  for (int i = 0; i < KR_N(extensions); i++)
    if (strcasecmp(dot + 1, extensions[i]) == 0) return 1;
  return 0;
}

static int add_folder(const char *verb, const char *folder, kr_pairs *pairs) {
  struct dirent **entries = NULL;
  const int n = scandir(folder, &entries, is_recording, alphasort);
  int failed = 0;
  for (int i = 0; i < n; i++) {
    char *path = join(folder, entries[i]->d_name);
    if (path && is_folder(path)) free(path);
    else failed |= add(pairs, path);
    free(entries[i]);
  }
  free(entries);
  if (n < 0) return kr_usage_error(verb, "cannot read the folder %s: %s", folder, strerror(errno));
  if (failed) return kr_usage_error(verb, "out of memory");
  return -1;
}

static int list_inputs(const char *verb, char **operands, int n_operands, kr_pairs *pairs) {
  for (int i = 0; i < n_operands; i++) {
    const int before = pairs->n;
    if (strcmp(operands[i], "-") == 0 && n_operands > 1) return kr_usage_error(verb, "'-' must be the only input");
    const int status = is_folder(operands[i]) ? add_folder(verb, operands[i], pairs) : add(pairs, strdup(operands[i])) - 1;
    if (status != -1) return status >= 0 ? status : kr_usage_error(verb, "out of memory");
    if (pairs->n == before) return kr_usage_error(verb, "no audio files in the folder %s", operands[i]);
  }
  return -1;
}

static int names_folder(const char *out, int several) {
  const size_t n = strlen(out);
  return is_folder(out) || (n > 0 && out[n - 1] == '/') || several;
}

static int name_outputs(const char *verb, const char *out, int several, kr_pairs *pairs) {
  const int to_folder = out && strcmp(out, "-") != 0 && names_folder(out, several);
  if (out && strcmp(out, "-") == 0 && several) return kr_usage_error(verb, "several inputs cannot all go to standard output; use -o DIR");
  if (to_folder && strcmp(pairs->pairs[0].in, "-") == 0) return kr_usage_error(verb, "standard input has no name; use -o FILE");
  if (to_folder && mkdir(out, 0777) != 0 && errno != EEXIST) return kr_usage_error(verb, "cannot create the folder %s: %s", out, strerror(errno));
  if (to_folder && !is_folder(out)) return kr_usage_error(verb, "several inputs need a folder, and %s is none", out);
  for (int i = 0; i < pairs->n; i++) {
    kr_pair *p = &pairs->pairs[i];
    if (!out && strcmp(p->in, "-") == 0) p->out = strdup("-");
    else p->out = !out ? beside(p->in) : to_folder ? join(out, base_name(p->in)) : strdup(out);
    if (!p->out) return kr_usage_error(verb, "out of memory");
  }
  return -1;
}

static int same_file(const char *a, const char *b) {
  struct stat x, y;
  return strcmp(a, b) == 0 || (stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

static int compare_outputs(const void *a, const void *b) { return strcmp((*(const kr_pair *const *)a)->out, (*(const kr_pair *const *)b)->out); }

static int check_clashes(const char *verb, const kr_pairs *pairs) {
  const kr_pair **sorted = calloc(pairs->n > 0 ? (size_t)pairs->n : 1, sizeof *sorted);
  int status = sorted ? -1 : kr_usage_error(verb, "out of memory");
  for (int i = 0; i < pairs->n && status < 0; i++) {
    sorted[i] = &pairs->pairs[i];
    if (strcmp(sorted[i]->in, "-") != 0 && same_file(sorted[i]->in, sorted[i]->out))
      status = kr_usage_error(verb, "%s would be overwritten by its own result; choose another -o", sorted[i]->in);
  }
  if (status < 0) qsort(sorted, (size_t)pairs->n, sizeof *sorted, compare_outputs);
  for (int i = 1; i < pairs->n && status < 0; i++)
    if (strcmp(sorted[i - 1]->out, sorted[i]->out) == 0)
      status = kr_usage_error(verb, "%s and %s would both become %s", sorted[i - 1]->in, sorted[i]->in, sorted[i]->out);
  free(sorted);
  return status;
}

int kr_pairs_plan(const char *verb, char **operands, int n_operands, const char *out, kr_pairs *pairs) {
  int status = list_inputs(verb, operands, n_operands, pairs);
  if (status < 0) status = name_outputs(verb, out, pairs->n > 1 || is_folder(operands[0]), pairs);
  return status < 0 ? check_clashes(verb, pairs) : status;
}

void kr_pairs_free(kr_pairs *pairs) {
  for (int i = 0; i < pairs->n; i++) {
    free(pairs->pairs[i].in);
    free(pairs->pairs[i].out);
  }
  free(pairs->pairs);
  *pairs = (kr_pairs){0};
}
