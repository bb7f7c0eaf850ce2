/* inputs.c: expands operands to recordings, names each output, and checks that it may be written. Only headers are
 * read, and only if the name does not tell which formats can be written. */
#define _GNU_SOURCE
#include "inputs.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <krait/enhance.h>

#include "args.h"
#include "interrupt.h"

enum { MAX_DEPTH = 64 };
static const char *const extensions[] = {"wav", "flac", "ogg", "oga", "opus", "mp3", "mp2", "aif", "aiff", "aifc",
                                         "au",  "snd",  "caf", "w64", "rf64", "voc", "sph", "gsm", "m4a",  "mp4",
                                         "aac", "webm", "mkv", "mka", "mov",  "avi", "wma", "amr"};
/* The extensions whose recordings can always be written back in the same format. */
static const char *const sure[] = {"wav", "flac", "aif", "aiff", "au", "snd", "caf", "w64", "rf64"};
static const char mark[] = ".enhanced.";

static int is_folder_for_inputs(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int is_file(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static const char *inputs_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static int has_extension(const char *name, const char *const *list, int n) {
  const char *dot = strrchr(inputs_base_name(name), '.');
  for (int i = 0; dot && i < n; i++)
    if (strcasecmp(dot + 1, list[i]) == 0) return 1;
  return 0;
}

static char *join(const char *folder, const char *name) {
  char *path = NULL;
  const size_t n = strlen(folder);
  return asprintf(&path, "%s%s%s", folder, n > 0 && folder[n - 1] != '/' ? "/" : "", name) < 0 ? NULL : path;
}

/* a/b.wav, ".enhanced", NULL -> a/b.enhanced.wav; a/b.mp2, "", "wav" -> a/b.wav */
static char *renamed(const char *in, const char *middle, const char *extension) {
  char *path = NULL;
  const char *name = inputs_base_name(in), *dot = strrchr(name, '.');
  const int has_dot = dot && dot != name, n = has_dot ? (int)(dot - in) : (int)strlen(in);
  const char *last = extension && *extension ? extension : has_dot ? dot + 1 : "wav";
  return asprintf(&path, "%.*s%s.%s", n, in, middle, last) < 0 ? NULL : path;
}

static int inputs_no_memory(const char *verb) { return cli_usage_error(verb, "out of memory"); }

/* ---- inputs ---- */
/* Takes both strings, also when it fails. */
static int add_inputs(cli_pairs *pairs, char *in, char *inside) {
  if (in && pairs->n == pairs->capacity) {
    const int capacity = pairs->capacity ? 2 * pairs->capacity : 16;
    cli_pair *grown = realloc(pairs->pairs, (size_t)capacity * sizeof *grown);
    if (grown) pairs->pairs = grown, pairs->capacity = capacity;
  }
  if (!in || pairs->n == pairs->capacity) {
    free(in);
    free(inside);
    return -1;
  }
  pairs->pairs[pairs->n++] = (cli_pair){.in = in, .inside = inside};
  return 0;
}

typedef struct walk {
  const char *verb;
  cli_pairs *pairs;
  struct stat out; /* the output folder, if any: earlier results in it are not inputs */
  int has_out;
} walk;

/* Everything except hidden files and results of earlier runs; whether it is audio is found out later. */
static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.' && !strstr(entry->d_name, mark); }

static int walk_folder(walk *w, const char *folder, const char *inside, int depth);

/* Links to folders are not followed: they may form a loop. */
static int walk_entry(walk *w, const char *folder, const char *inside, const char *name, int depth) {
  struct stat info;
  char *path = join(folder, name), *below = *inside ? join(inside, name) : strdup(name);
  if (!path || !below || lstat(path, &info) != 0) {
    const int status = path && below ? -1 : inputs_no_memory(w->verb); /* removed in the meantime */
    free(path);
    free(below);
    return status;
  }
  const int is_own = w->has_out && info.st_dev == w->out.st_dev && info.st_ino == w->out.st_ino;
  int status = -1;
  if (!S_ISDIR(info.st_mode) && is_file(path) && has_extension(name, extensions, CLI_N(extensions)))
    return add_inputs(w->pairs, path, below) == 0 ? -1 : inputs_no_memory(w->verb);
  if (S_ISDIR(info.st_mode) && !is_own) status = walk_folder(w, path, below, depth + 1);
  free(path);
  free(below);
  return status;
}

static int walk_folder(walk *w, const char *folder, const char *inside, int depth) {
  struct dirent **entries = NULL;
  if (depth > MAX_DEPTH) return cli_usage_error(w->verb, "%s is more than %d folders deep", folder, MAX_DEPTH);
  const int n = scandir(folder, &entries, is_visible, alphasort);
  if (n < 0) return cli_usage_error(w->verb, "cannot read the folder %s: %s", folder, strerror(errno));
  int status = -1;
  for (int i = 0; i < n; i++) {
    if (status < 0) status = walk_entry(w, folder, inside, entries[i]->d_name, depth);
    free(entries[i]);
  }
  free(entries);
  return status;
}

static int list_inputs(const char *verb, char **operands, int n_operands, const char *out, cli_pairs *pairs) {
  walk w = {.verb = verb, .pairs = pairs};
  w.has_out = out && stat(out, &w.out) == 0;
  for (int i = 0; i < n_operands; i++) {
    const int before = pairs->n;
    if (strcmp(operands[i], "-") == 0 && n_operands > 1) return cli_usage_error(verb, "'-' must be the only input");
    const int status = is_folder_for_inputs(operands[i])                       ? walk_folder(&w, operands[i], "", 0)
                       : add_inputs(pairs, strdup(operands[i]), NULL) == 0 ? -1
                                                                    : inputs_no_memory(verb);
    if (status >= 0) return status;
    if (pairs->n == before) return cli_usage_error(verb, "no audio files in the folder %s", operands[i]);
  }
  return -1;
}

/* ---- outputs ---- */
/* For a recording whose format may not be writable: the extension of its output, "" to keep its own. */
static void other_extension(const char *in, char *extension, size_t bytes) {
  *extension = 0;
  if (!has_extension(in, sure, CLI_N(sure)) && is_file(in))
    krait_audio_extension(in, extension, bytes); /* unreadable files are reported at their turn */
}

static char *name_output(const cli_pair *p, const char *out, int to_folder) {
  char extension[16];
  if (!out && strcmp(p->in, "-") == 0) return strdup("-");
  if (out && !to_folder) return strdup(out);
  other_extension(p->in, extension, sizeof extension);
  if (!out) return renamed(p->in, ".enhanced", extension);
  char *path = join(out, p->inside ? p->inside : inputs_base_name(p->in));
  if (!path || !*extension) return path;
  char *other = renamed(path, "", extension);
  free(path);
  return other;
}

/* The name of the one output selects its format: an extension of no format is probably a slip. An input may have
 * any. */
static int check_extension(const char *verb, const char *in, const char *out) {
  struct stat info;
  const char *name = inputs_base_name(out), *dot = strrchr(name, '.'), *own = strrchr(inputs_base_name(in), '.');
  if (!dot || dot == name || !dot[1] || has_extension(out, extensions, CLI_N(extensions))) return -1;
  if ((own && strcasecmp(own, dot) == 0) || (stat(out, &info) == 0 && !S_ISREG(info.st_mode))) return -1;
  return cli_usage_error(verb,
                         "%s: no format has the extension %s; use .wav, .flac, .ogg, .opus, .mp3, .aiff, .au, .caf, "
                         ".w64 or .rf64",
                         out, dot);
}

static int name_outputs(const char *verb, const char *out, int several, cli_pairs *pairs) {
  const size_t n = out ? strlen(out) : 0;
  const int is_stdout = out && strcmp(out, "-") == 0;
  const int to_folder = out && !is_stdout && (several || is_folder_for_inputs(out) || (n > 0 && out[n - 1] == '/'));
  struct stat info;
  if (is_stdout && several) return cli_usage_error(verb, "several inputs cannot all go to standard output; use -o DIR");
  if (to_folder && strcmp(pairs->pairs[0].in, "-") == 0)
    return cli_usage_error(verb, "standard input has no name; use -o FILE");
  if (to_folder && stat(out, &info) == 0 && !S_ISDIR(info.st_mode))
    return cli_usage_error(verb, "several inputs need an output folder, and %s is not a folder", out);
  if (out && !is_stdout && !to_folder) {
    const int status = check_extension(verb, pairs->pairs[0].in, out);
    if (status >= 0) return status;
  }
  pairs->is_default = !out;
  for (int i = 0; i < pairs->n; i++)
    if (!(pairs->pairs[i].out = name_output(&pairs->pairs[i], out, to_folder))) return inputs_no_memory(verb);
  return -1;
}

/* ---- whether it may ---- */
/* A file as the system identifies it. place: its folder's real path and its name; NULL when out of memory. */
typedef struct known {
  dev_t device;
  ino_t inode;
  const char *name; /* as given */
  const char *also; /* outputs: the input whose result it is, or NULL */
  char *place;
} known;

typedef struct checklist {
  known *read, *written;
  int n_read, n_written;
} checklist;

/* The real path of a file that may not exist yet: that of its nearest existing folder, plus the rest. */
static char *place_of(const char *path) {
  char *real = realpath(path, NULL);
  if (real) return real;
  char *copy = strdup(path), *rest = strdup(inputs_base_name(path));
  char *folder = copy && strchr(copy, '/') ? dirname(copy) : NULL;
  char *above = !copy || !rest              ? NULL
                : !folder                   ? realpath(".", NULL)
                : strcmp(folder, path) != 0 ? place_of(folder)
                                            : NULL;
  real = above ? join(above, rest) : NULL;
  free(above);
  free(copy);
  free(rest);
  return real;
}

static void add_read(checklist *list, const char *name) {
  struct stat info;
  if (name && strcmp(name, "-") != 0 && stat(name, &info) == 0 && S_ISREG(info.st_mode))
    list->read[list->n_read++] = (known){info.st_dev, info.st_ino, name, NULL, NULL};
}

/* Anything that is not a regular file (a pipe, /dev/null) may be written any number of times. */
static int add_written(checklist *list, const char *name, const char *also) {
  struct stat info;
  known *k = &list->written[list->n_written];
  const int exists = name && strcmp(name, "-") != 0 && stat(name, &info) == 0;
  if (!name || strcmp(name, "-") == 0 || (exists && !S_ISREG(info.st_mode))) return 0;
  *k = (known){exists ? info.st_dev : 0, exists ? info.st_ino : 0, name, also, place_of(name)};
  list->n_written++;
  return k->place ? 0 : -1;
}

static int compare_files(const void *a, const void *b) {
  const known *x = a, *y = b;
  return x->device != y->device ? (x->device > y->device) - (x->device < y->device)
                                : (x->inode > y->inode) - (x->inode < y->inode);
}

static int compare_places(const void *a, const void *b) {
  return strcmp(((const known *)a)->place, ((const known *)b)->place);
}

static int check_stdout(const cli_outputs_rule *rule, checklist *list) {
  struct stat info;
  if (fstat(STDOUT_FILENO, &info) != 0 || !S_ISREG(info.st_mode)) return -1;
  const known standard = {info.st_dev, info.st_ino, NULL, NULL, NULL};
  const known *read = bsearch(&standard, list->read, (size_t)list->n_read, sizeof *list->read, compare_files);
  if (read) return cli_usage_error(rule->verb, "standard output goes to %s, which is an input", read->name);
  for (int i = 0; i < list->n_written; i++)
    if (compare_files(&standard, &list->written[i]) == 0)
      return cli_usage_error(rule->verb, "standard output goes to %s, which is also an output", list->written[i].name);
  return -1;
}

static int check_written(const cli_outputs_rule *rule, checklist *list) {
  qsort(list->read, (size_t)list->n_read, sizeof *list->read, compare_files);
  for (int i = 0; i < list->n_written; i++) {
    const known *w = &list->written[i],
                *read =
                    w->inode ? bsearch(w, list->read, (size_t)list->n_read, sizeof *list->read, compare_files) : NULL;
    if (read && w->also && strcmp(read->name, w->also) == 0)
      return cli_usage_error(rule->verb, "%s would be overwritten by its own result; name another output", read->name);
    if (read)
      return cli_usage_error(rule->verb,
                             "%s would be overwritten: it is the same file as %s, which is read; choose another name",
                             w->name, read->name);
  }
  qsort(list->written, (size_t)list->n_written, sizeof *list->written, compare_places);
  for (int i = 1; i < list->n_written; i++) {
    const known *x = &list->written[i - 1], *y = &list->written[i];
    if (strcmp(x->place, y->place) != 0) continue;
    if (!x->also || !y->also)
      return cli_usage_error(rule->verb, "%s would be written twice; choose another -o", x->name);
    return cli_usage_error(rule->verb, "%s and %s would both become %s", x->also, y->also, x->name);
  }
  return check_stdout(rule, list);
}

static int check_all(const cli_outputs_rule *rule, const cli_pairs *pairs) {
  const size_t n = (size_t)pairs->n + (size_t)rule->n_read_too + 1;
  checklist list = {calloc(n, sizeof *list.read), calloc(n, sizeof *list.written), 0, 0};
  int failed = !list.read || !list.written;
  for (int i = 0; i < pairs->n && !failed; i++) {
    add_read(&list, pairs->pairs[i].in);
    failed = add_written(&list, pairs->pairs[i].out, pairs->pairs[i].in);
  }
  for (int i = 0; i < rule->n_read_too && !failed; i++) add_read(&list, rule->read_too[i]);
  if (!failed) failed = add_written(&list, rule->write_too, NULL);
  const int status = failed ? inputs_no_memory(rule->verb) : check_written(rule, &list);
  for (int i = 0; i < list.n_written; i++) free(list.written[i].place);
  free(list.read);
  free(list.written);
  return status;
}

/* Existing files are not replaced without -f, except those with the default name of an earlier run. */
static int check_existing(const cli_outputs_rule *rule, cli_pairs *pairs) {
  const char *first = rule->write_too && !rule->force && is_file(rule->write_too) ? rule->write_too : NULL;
  int n = first != NULL;
  for (int i = 0; i < pairs->n; i++) {
    cli_pair *p = &pairs->pairs[i];
    p->out_exists = strcmp(p->out, "-") != 0 && is_file(p->out);
    p->is_skipped = p->out_exists && rule->skip_existing;
    pairs->n_skipped += p->is_skipped;
    if (!p->out_exists || p->is_skipped || pairs->is_default || rule->force) continue;
    if (!first) first = p->out;
    n++;
  }
  if (n == 0) return -1;
  if (n == 1) return cli_usage_error(rule->verb, "%s exists; -f replaces it", first);
  return cli_usage_error(rule->verb, "%d outputs exist, such as %s; -f replaces them, --skip-existing keeps them", n,
                         first);
}

/* In a folder, the names of src/format/model_folder.h; shards begin like the file that they replace. Beside a single
 * file only configuration and tokenizer are read. */
static int is_model_file(const char *name, int is_in_folder) {
  return strcmp(name, "config.json") == 0 || strcmp(name, "tokenizer.json") == 0 ||
         (is_in_folder && (strncmp(name, "model.", 6) == 0 || strncmp(name, "model-", 6) == 0 ||
                           strncmp(name, "pytorch_model", 13) == 0));
}

static int is_same_file(const char *folder, const char *name, const struct stat *out) {
  struct stat info;
  char *path = join(folder, name);
  const int is_same = path && stat(path, &info) == 0 && info.st_dev == out->st_dev && info.st_ino == out->st_ino;
  free(path);
  return is_same;
}

/* A shard or an index stands for its folder. */
static int is_part_of_folder(const char *model) {
  const char *name = inputs_base_name(model), *extension = strrchr(name, '.');
  return strstr(name, "-of-") || (extension && strcmp(extension, ".json") == 0);
}

/* An output is none of the files of the model that is read. */
static int check_model(const cli_outputs_rule *rule, const char *out) {
  struct stat info;
  const struct dirent *entry;
  if (!rule->model || stat(out, &info) != 0 || !S_ISREG(info.st_mode)) return -1;
  char *copy = strdup(rule->model);
  const int is_whole = is_folder_for_inputs(rule->model), is_in_folder = is_whole || is_part_of_folder(rule->model);
  const char *folder = !copy ? NULL : is_whole ? copy : dirname(copy);
  DIR *files = folder ? opendir(folder) : NULL;
  int status = copy ? -1 : inputs_no_memory(rule->verb);
  while (files && status < 0 && (entry = readdir(files)) != NULL)
    if (is_model_file(entry->d_name, is_in_folder) && is_same_file(folder, entry->d_name, &info))
      status = cli_usage_error(rule->verb,
                               "%s would be overwritten: it is the model's %s, which is read; choose another name", out,
                               entry->d_name);
  if (files) closedir(files);
  free(copy);
  return status;
}

/* Checked before the work starts: one more output can be written. Without -f nobody else may write it meanwhile. The
 * trial may have a name for a moment, which a signal must not leave. */
static int check_place(const cli_outputs_rule *rule, const char *out) {
  const size_t n = rule->makes ? strlen(rule->makes) : 0;
  struct stat info;
  if (!out || strcmp(out, "-") == 0) return -1;
  if (is_folder_for_inputs(out)) return cli_usage_error(rule->verb, "%s is a folder; name a file", out);
  const int exists = stat(out, &info) == 0;
  if (!exists && n && strncmp(out, rule->makes, n) == 0 && (out[n] == '/' || rule->makes[n - 1] == '/')) return -1;
  char *copy = strdup(out);
  const char *folder = copy ? dirname(copy) : NULL;
  int status = folder ? -1 : inputs_no_memory(rule->verb);
  if (folder && !is_folder_for_inputs(folder))
    status = cli_usage_error(rule->verb, "cannot create %s: the folder %s does not exist", out, folder);
  free(copy);
  if (status < 0) cli_catch_signals(rule->verb, "");
  if (status < 0 && krait_output_claim(out, !exists && !rule->force) < 0)
    status = cli_usage_error(rule->verb, "%s", krait_error_detail());
  return status;
}

/* ---- folders ---- */
static int make_folders(const char *verb, const char *path) {
  char *copy = strdup(path);
  int status = copy ? -1 : inputs_no_memory(verb);
  for (char *slash = copy ? strchr(copy + 1, '/') : NULL; slash && status < 0; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    const int reason = mkdir(copy, 0777) == 0 ? 0 : errno;
    if (reason && reason != EEXIST && !is_folder_for_inputs(copy))
      status = cli_usage_error(verb, "cannot create the folder %s: %s", copy, strerror(reason));
    *slash = '/';
  }
  free(copy);
  return status;
}

/* Only -o DIR creates folders: a FILE in a folder that does not exist is probably a typing mistake. */
static int make_all_folders(const char *verb, const char *out, const cli_pairs *pairs) {
  const size_t n = out ? strlen(out) : 0;
  int status = -1;
  for (int i = 0; n > 0 && i < pairs->n && status < 0; i++)
    if (strncmp(pairs->pairs[i].out, out, n) == 0 && pairs->pairs[i].out[n])
      status = make_folders(verb, pairs->pairs[i].out);
  return status;
}

int cli_pairs_plan(const cli_outputs_rule *rule, char **operands, int n_operands, const char *out, cli_pairs *pairs) {
  int status = list_inputs(rule->verb, operands, n_operands, out, pairs);
  if (status < 0) status = name_outputs(rule->verb, out, pairs->n > 1 || is_folder_for_inputs(operands[0]), pairs);
  if (status < 0) status = check_all(rule, pairs);
  if (status < 0) status = check_existing(rule, pairs);
  if (status < 0) status = check_place(rule, rule->write_too);
  if (status < 0) status = make_all_folders(rule->verb, out, pairs);
  return status < 0 && out && pairs->n == 1 ? check_place(rule, pairs->pairs[0].out) : status;
}

int cli_inputs_list(const char *verb, char **operands, int n_operands, cli_pairs *pairs) {
  return list_inputs(verb, operands, n_operands, NULL, pairs);
}

void cli_pairs_free(cli_pairs *pairs) {
  for (int i = 0; i < pairs->n; i++) {
    free(pairs->pairs[i].in);
    free(pairs->pairs[i].out);
    free(pairs->pairs[i].inside);
  }
  free(pairs->pairs);
  *pairs = (cli_pairs){0};
}

int cli_output_check(const cli_outputs_rule *rule, const char *in, const char *out) {
  cli_pair pair = {.in = (char *)in, .out = (char *)out}; /* only read */
  cli_pairs pairs = {.pairs = &pair, .n = 1};
  if (strcmp(out, "-") == 0)
    return cli_usage_error(rule->verb, "'-' is no file's name; standard output is /dev/stdout");
  int status = check_all(rule, &pairs);
  if (status < 0) status = check_model(rule, out);
  if (status < 0) status = check_existing(rule, &pairs);
  return status < 0 ? check_place(rule, out) : status;
}

int cli_png_check(const char *verb, const char *option, const char *path) {
  struct stat info;
  const char *const extension = strrchr(inputs_base_name(path), '.');
  if (extension && strcasecmp(extension, ".png") == 0) return -1;
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) return -1; /* a device or a pipe has any name */
  return cli_usage_error(verb, "--%s %s: the picture is a PNG; give a name that ends in .png", option, path);
}
