/* model_folder.c: an index names a file for each tensor; the shards are its distinct values. A path to an index, a
 * shard or another part of a model stands for its folder. */
#include "model_folder.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc.h"
#include "gguf.h"
#include "mapfile.h"
#include "open_error.h"
#include "status.h"
#include "yaml_tree.h"

enum { MOST_FILES = 1024 };

struct kr_model_folder {
  char *path;
  json_t *config;
  kr_weights **files;
  char **names;
  int n_files;
};

static char *join(const char *folder, size_t n_folder, const char *name) {
  const size_t n = n_folder + strlen(name) + 2;
  char *path = kr_alloc(n);
  if (path)
    snprintf(path, n, "%.*s%s%s", (int)n_folder, folder, n_folder && folder[n_folder - 1] != '/' ? "/" : "", name);
  return path;
}

static int is_folder(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int is_there_for_model_folder(const char *path) {
  struct stat info;
  return path && stat(path, &info) == 0;
}

/* Next to a file, or in a folder. */
static char *beside(const char *path, const char *name) {
  const char *slash = strrchr(path, '/');
  return is_folder(path) ? join(path, strlen(path), name) : join(path, slash ? (size_t)(slash - path) + 1 : 0, name);
}

char *kr_model_folder_file(const char *path, const char *name) {
  char *file = beside(path, name);
  if (is_there_for_model_folder(file)) return file;
  kr_free(file);
  return NULL;
}

static char *folder_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? join(path, (size_t)(slash - path) + 1, "") : kr_strdup(".");
}

/* NAME-00001-of-00003.EXT, with NAME.EXT.index.json beside it. */
static int is_shard(const char *path) {
  static const char digits[] = "0123456789";
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *extension = strrchr(name, '.');
  const size_t n_tail = sizeof "-00001-of-00003" - 1;
  char index[256];
  if (!extension || (size_t)(extension - name) <= n_tail) return 0;
  const char *tail = extension - n_tail;
  if (*tail != '-' || strspn(tail + 1, digits) != 5 || strncmp(tail + 6, "-of-", 4) != 0 ||
      strspn(tail + 10, digits) != 5)
    return 0;
  const int n = snprintf(index, sizeof index, "%.*s%s.index.json", (int)(tail - name), name, extension);
  char *file = n < (int)sizeof index ? kr_model_folder_file(path, index) : NULL;
  kr_free(file);
  return file != NULL;
}

int kr_model_folder_is_part(const char *path) {
  const size_t n = strlen(path);
  return !is_folder(path) && ((n > 5 && strcmp(path + n - 5, ".json") == 0) || is_shard(path));
}

int32_t kr_json_file_read(const char *path, json_t **tree) {
  kr_mapfile file;
  *tree = NULL;
  KR_TRY(kr_mapfile_open(path, &file));
  int32_t status = kr_yaml_read((const char *)file.bytes, file.n_bytes, path, tree);
  if (status >= 0 && !json_is_object(*tree)) status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: not a JSON object", path);
  if (status < 0) json_decref(*tree), *tree = NULL;
  kr_mapfile_close(&file);
  return status;
}

/* An index may be larger than a configuration. */
static int32_t read_index(const char *path, json_t **tree) {
  kr_mapfile file;
  json_error_t error;
  KR_TRY(kr_mapfile_open(path, &file));
  *tree = json_loadb((const char *)file.bytes, file.n_bytes, JSON_REJECT_DUPLICATES, &error);
  kr_mapfile_close(&file);
  KR_CHECK(*tree, KRAIT_ERR_FILE_FORMAT, "%s: line %d: %s", path, error.line, error.text);
  const json_t *map = json_object_get(*tree, "weight_map");
  KR_CHECK(json_is_object(map), KRAIT_ERR_FILE_FORMAT, "%s: it has no weight_map", path);
  KR_CHECK(json_object_size(map) > 0, KRAIT_ERR_FILE_FORMAT, "%s: its weight_map is empty", path);
  return KRAIT_OK;
}

static int32_t add_file(kr_model_folder *f, const char *path, const char *name) {
  KR_CHECK(f->n_files < MOST_FILES, KRAIT_ERR_FILE_FORMAT, "%s: more than %d files of weights", f->path, MOST_FILES);
  char *copy = kr_strdup(name);
  KR_CHECK(path && copy, KRAIT_ERR_NO_MEMORY, "%s: no memory for its list of files", f->path);
  f->names[f->n_files] = copy;
  return kr_weights_open(path, &f->files[f->n_files++]);
}

static int find_file(const kr_model_folder *f, const char *name) {
  int i = 0;
  while (i < f->n_files && strcmp(f->names[i], name) != 0) i++;
  return i;
}

static int32_t add_shard(kr_model_folder *f, const char *index, const char *name) {
  KR_CHECK(name && *name && !strchr(name, '/') && *name != '.', KRAIT_ERR_UNSAFE,
           "%s: it names the file '%.100s', which is outside its folder", index, name ? name : "");
  if (find_file(f, name) < f->n_files) return KRAIT_OK;
  char *path = beside(f->path, name);
  int32_t status = is_there_for_model_folder(path)
                       ? add_file(f, path, name)
                       : kr_fail(KRAIT_ERR_FILE_OPEN,
                                 "%s: it names %s, which is missing; download the whole model again", index, name);
  kr_free(path);
  return status;
}

static int32_t open_shards(kr_model_folder *f, const char *index) {
  json_t *tree = NULL, *file;
  const char *tensor;
  int32_t status = read_index(index, &tree);
  json_t *map = json_object_get(tree, "weight_map");
  if (status >= 0) json_object_foreach(map, tensor, file) {
    const char *name = json_string_value(file);
    if (status >= 0) status = add_shard(f, index, name);
    if (status >= 0 && !kr_weights_find(f->files[find_file(f, name)], tensor))
      status = kr_fail(KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is not in %s", index, tensor, name);
  }
  json_decref(tree);
  return status;
}

static int32_t open_model_folder_weights(kr_model_folder *f) {
  static const struct {
    const char *name;
    int is_index;
  } forms[] = {{"model.safetensors.index.json", 1},
               {"model.safetensors", 0},
               {"pytorch_model.bin.index.json", 1},
               {"pytorch_model.bin", 0}};
  if (!is_folder(f->path)) return add_file(f, f->path, f->path);
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    char *path = kr_model_folder_file(f->path, forms[i].name);
    if (!path) continue;
    const int32_t status = forms[i].is_index ? open_shards(f, path) : add_file(f, path, forms[i].name);
    kr_free(path);
    return status;
  }
  return kr_fail(KRAIT_ERR_FILE_OPEN,
                 "%s contains no model.safetensors or pytorch_model.bin; if its weights have another name, give them",
                 f->path);
}

static int is_gguf(const char *path) {
  struct stat info;
  unsigned char magic[4];
  FILE *file = stat(path, &info) == 0 && S_ISREG(info.st_mode) ? fopen(path, "rb") : NULL;
  const size_t n = file ? fread(magic, 1, sizeof magic, file) : 0;
  if (file) fclose(file);
  return kr_gguf_is(magic, n);
}

/* Says where such folders come from: those that docs/GENERATE.md and docs/VIDEO.md list, by their names. */
static int32_t fail_missing(const char *path) {
  static const char *const published[] = {"state-spaces/mamba-130m-hf", "state-spaces/mamba-370m-hf",
                                          "state-spaces/mamba-790m-hf", "state-spaces/mamba-1.4b-hf",
                                          "state-spaces/mamba-2.8b-hf", "tiiuae/falcon-mamba-7b",
                                          "Qwen/Qwen2-0.5B",            "Qwen/Qwen2-0.5B-Instruct",
                                          "Qwen/Qwen2-1.5B",            "Qwen/Qwen2-1.5B-Instruct",
                                          "Qwen/Qwen2.5-0.5B",          "Qwen/Qwen2.5-0.5B-Instruct",
                                          "Amshaker/Mobile-VideoGPT-0.5B", "Amshaker/Mobile-VideoGPT-1.5B"};
  const char *slash = strrchr(path, '/'), *name = slash && slash[1] ? slash + 1 : path, *from = NULL;
  char similar[4400];
  for (size_t i = 0; i < sizeof published / sizeof *published && !from; i++)
    if (strcmp(strchr(published[i], '/') + 1, name) == 0) from = published[i];
  kr_similar_file(path, similar, sizeof similar);
  if (*similar && !from)
    return kr_fail(KRAIT_ERR_FILE_OPEN, "cannot open %s: there is no such folder or file%s", path, similar);
  return kr_fail(KRAIT_ERR_FILE_OPEN,
                 "cannot open %s: there is no such folder or file; krait downloads nothing: get %s first, with: "
                 "hf download %s --local-dir %s (hf: pip install huggingface_hub)",
                 path, from ? "it" : "a model such as this", from ? from : published[0], from ? path : "mamba-130m-hf");
}

static int32_t open_parts(kr_model_folder *f, const char *path) {
  f->path = is_there_for_model_folder(path) && kr_model_folder_is_part(path) ? folder_of(path) : kr_strdup(path);
  f->files = kr_alloc_array(MOST_FILES, sizeof *f->files);
  f->names = kr_alloc_array(MOST_FILES, sizeof *f->names);
  KR_CHECK(f->path && f->files && f->names, KRAIT_ERR_NO_MEMORY, "%s: no memory for its list of files", path);
  if (!is_there_for_model_folder(path)) return fail_missing(path);
  if (is_gguf(path)) {
    size_t n;
    KR_TRY(add_file(f, path, path));
    const unsigned char *bytes = kr_weights_file(f->files[0], &n);
    return kr_gguf_config(bytes, n, f->path, &f->config);
  }
  if (f->config) return open_model_folder_weights(f);
  char *config = kr_model_folder_file(f->path, "config.json");
  if (!config && is_folder(f->path))
    return kr_fail(KRAIT_ERR_FILE_OPEN, "%s: there is no config.json in it; give a model's folder or a GGUF file",
                   f->path);
  KR_CHECK(config, KRAIT_ERR_FILE_OPEN, "%s: there is no config.json beside it; give a model's folder or a GGUF file",
           f->path);
  const int32_t status = kr_json_file_read(config, &f->config);
  kr_free(config);
  return status < 0 ? status : open_model_folder_weights(f);
}

int32_t kr_model_folder_open(const char *path, kr_model_folder **out) {
  return kr_model_folder_open_configured(path, NULL, out);
}

int32_t kr_model_folder_open_configured(const char *path, json_t *config, kr_model_folder **out) {
  kr_model_folder *f = *out = kr_zalloc(sizeof *f);
  if (!f) json_decref(config);
  KR_CHECK(f, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  f->config = config;
  const int32_t status = open_parts(f, path);
  if (status < 0) kr_model_folder_close(out);
  return status;
}

void kr_model_folder_close(kr_model_folder **folder) {
  kr_model_folder *f = *folder;
  if (!f) return;
  for (int i = 0; i < f->n_files; i++) {
    kr_weights_close(&f->files[i]);
    kr_free(f->names[i]);
  }
  json_decref(f->config);
  kr_free(f->files);
  kr_free(f->names);
  kr_free(f->path);
  kr_free(f);
  *folder = NULL;
}

const unsigned char *kr_model_folder_gguf(const kr_model_folder *f, size_t *n_bytes) {
  *n_bytes = 0;
  return strcmp(kr_weights_format(f->files[0]), "gguf") == 0 ? kr_weights_file(f->files[0], n_bytes) : NULL;
}

const json_t *kr_model_folder_config(const kr_model_folder *f) { return f->config; }
const char *kr_model_folder_label(const kr_model_folder *f) { return f->path; }
const char *kr_model_folder_format(const kr_model_folder *f) { return kr_weights_format(f->files[0]); }

const kr_weight *kr_model_folder_find(const kr_model_folder *f, const char *name) {
  const kr_weight *found = NULL;
  for (int i = 0; i < f->n_files && !found; i++) found = kr_weights_find(f->files[i], name);
  return found;
}

const kr_weight *kr_model_folder_at(const kr_model_folder *f, int64_t i) {
  for (int k = 0; k < f->n_files; k++) {
    const int64_t n = kr_weights_count(f->files[k]);
    if (i < n) return kr_weights_at(f->files[k], i);
    i -= n;
  }
  return NULL;
}

int64_t kr_model_folder_count(const kr_model_folder *f) {
  int64_t n = 0;
  for (int k = 0; k < f->n_files; k++) n += kr_weights_count(f->files[k]);
  return n;
}

int64_t kr_model_folder_number(const kr_model_folder *f, const kr_weight *item) {
  int64_t first = 0;
  for (int k = 0; k < f->n_files; k++) {
    const int64_t n = kr_weights_count(f->files[k]);
    const kr_weight *all = n ? kr_weights_at(f->files[k], 0) : NULL;
    if (all && (uintptr_t)item >= (uintptr_t)all && (uintptr_t)item < (uintptr_t)(all + n)) return first + (item - all);
    first += n;
  }
  return -1;
}
