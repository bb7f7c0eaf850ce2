/* recipe.c: merges the configuration of a training run, and reads data.h's part of it. */
#define _GNU_SOURCE
#include "recipe.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc.h"
#include "distance.h"
#include "json_text.h"
#include "mapfile.h"
#include "status.h"
#include "yaml_tree.h"

struct kr_recipe {
  json_t *values;
};

/* ---- built-in files ---- */
#define KR_SHIPPED(symbol, name)                    \
  extern const unsigned char kr_embed_##symbol[];   \
  extern const size_t kr_embed_##symbol##_bytes;
#include "recipes.def"
#undef KR_SHIPPED

typedef struct shipped {
  const char *name;
  const unsigned char *bytes;
  const size_t *n_bytes;
} shipped;
static const shipped files[] = {
#define KR_SHIPPED(symbol, name) {name, kr_embed_##symbol, &kr_embed_##symbol##_bytes},
#include "recipes.def"
#undef KR_SHIPPED
};
enum { N_FILES = sizeof files / sizeof *files };

static const shipped *find_shipped(const char *group, const char *name) {
  const size_t n = strlen(group);
  for (int i = 0; i < N_FILES; i++)
    if (strncmp(files[i].name, group, n) == 0 && (n == 0 || files[i].name[n] == '/') &&
        strcmp(files[i].name + n + (n > 0), name) == 0)
      return &files[i];
  return NULL;
}

static void list_shipped(const char *group, char *text, size_t bytes) {
  size_t n = 0;
  text[0] = 0;
  for (int i = 0; i < N_FILES; i++)
    if (strncmp(files[i].name, group, strlen(group)) == 0 && files[i].name[strlen(group)] == '/' && n < bytes)
      n += (size_t)snprintf(text + n, bytes - n, "%s%s", n ? ", " : "", files[i].name + strlen(group) + 1);
}

static int32_t no_memory(void) { return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a configuration"); }

static int32_t read_yaml(const char *path, json_t **tree) {
  kr_mapfile file;
  KR_TRY(kr_mapfile_open(path, &file));
  const int32_t status = kr_yaml_read((const char *)file.bytes, file.n_bytes, path, tree);
  kr_mapfile_close(&file);
  KR_TRY(status);
  if (json_is_object(*tree)) return KRAIT_OK;
  json_decref(*tree);
  *tree = NULL;
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is not a configuration (expected lines of name: value)", path);
}

/* Keys of upstream's configurations that krait does not need. */
static int is_without_meaning(const char *key) {
  static const char *const keys[] = {"hydra",
                                     "defaults",
                                     "device",
                                     "log_dir",
                                     "save_code",
                                     "eval_stt",
                                     "eval_stt_every",
                                     "valid_start_epoch",
                                     "finetune",
                                     "deterministic",
                                     "bcs_gain_perturbation_db",
                                     "scheduler",
                                     "num_examples",
                                     "verbose",
                                     "ddp",
                                     "model_lib",
                                     "pesq"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (strcmp(keys[i], key) == 0) return 1;
  return 0;
}

static void list_names(json_t *section, char *text, size_t bytes) {
  const char *key;
  json_t *value;
  size_t n = 0;
  text[0] = 0;
  json_object_foreach(section, key, value) if (n < bytes) n +=
      (size_t)snprintf(text + n, bytes - n, "%s%s", n ? ", " : "", key);
}

static int32_t refuse_name(json_t *section, const char *key, const char *label) {
  char known[1024];
  list_names(section, known, sizeof known);
  return kr_fail(KRAIT_ERR_ARGUMENT, "%s: '%s' is unknown there; known are %s", label, key, known);
}

/* Sections are merged value by value, everything else is replaced. A new name is an error, except in the model's
 * section. */
static int32_t merge(json_t *into, json_t *from, const char *label) {
  const char *key;
  json_t *value;
  json_object_foreach(from, key, value) {
    json_t *old = json_object_get(into, key);
    if (!old && label && strcmp(key, "model") != 0 && !is_without_meaning(key)) return refuse_name(into, key, label);
    if (json_is_object(old) && json_is_object(value))
      KR_TRY(merge(old, value, strcmp(key, "model") == 0 ? NULL : label));
    else if (json_object_set(into, key, value) != 0) return no_memory();
  }
  return KRAIT_OK;
}

/* ---- settings ---- */
typedef struct guess {
  const char *written;
  char meant[128];
  int32_t slips;
} guess;

/* Of all dotted names, the one nearest to the written name or to its last part. */
static void look_for_name(json_t *section, const char *prefix, guess *g) {
  const char *key;
  json_t *value;
  json_object_foreach(section, key, value) {
    char name[128];
    snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", key);
    const int32_t whole = kr_text_distance(g->written, name), last = kr_text_distance(g->written, key);
    const int32_t slips = whole < last ? whole : last;
    if (slips < g->slips) {
      g->slips = slips;
      snprintf(g->meant, sizeof g->meant, "%s", name);
    }
    if (json_is_object(value)) look_for_name(value, name, g);
  }
}

static int32_t refuse_setting(const kr_recipe *r, const char *name, const char *text) {
  guess g = {.written = name, .slips = INT32_MAX};
  look_for_name(r->values, "", &g);
  if (*g.meant)
    return kr_fail(KRAIT_ERR_ARGUMENT, "there is no '%s' in the configuration; did you mean %s=%s?", name, g.meant,
                   text);
  return kr_fail(KRAIT_ERR_ARGUMENT, "there is no '%s' in the configuration; use +%s=%s to add it", name, name, text);
}

/* A section of a model may bring settings for the whole run, under this key. */
static int32_t take_settings(kr_recipe *r, json_t *section, const char *label) {
  json_t *settings = json_incref(json_object_get(section, "settings"));
  json_object_del(section, "settings");
  const int32_t status = json_is_object(settings) ? merge(r->values, settings, label) : KRAIT_OK;
  json_decref(settings);
  return status;
}

/* +model=NAME: the built-in section of that name, or a file. */
static int32_t add_section(kr_recipe *r, const char *group, const char *name) {
  char known[512];
  json_t *tree = NULL;
  const shipped *file = find_shipped(group, name);
  const size_t length = strlen(name);
  if (file) KR_TRY(kr_yaml_read((const char *)file->bytes, *file->n_bytes, name, &tree));
  else if (length > 5 && strcmp(name + length - 5, ".yaml") == 0) KR_TRY(read_yaml(name, &tree));
  list_shipped(group, known, sizeof known);
  KR_CHECK(tree, KRAIT_ERR_ARGUMENT, "there is no %s '%s'; built in are %s, or give a path ending in .yaml", group,
           name, known);
  json_t *section = json_object_get(r->values, group);
  int32_t status = take_settings(r, tree, name);
  if (status < 0) {
    json_decref(tree);
    return status;
  }
  if (strcmp(group, "model") != 0 && json_is_object(section)) status = merge(section, tree, name);
  else if (json_object_set(r->values, group, tree) != 0) status = no_memory();
  json_decref(tree);
  return status;
}

/* The section that contains the last part of a dotted name, NULL if there is none; *last is that part. */
static json_t *reach(json_t *values, const char *name, const char **last) {
  for (const char *dot; (dot = strchr(name, '.')); name = dot + 1) {
    values = json_object_getn(values, name, (size_t)(dot - name));
    if (!json_is_object(values)) return NULL;
  }
  *last = name;
  return values;
}

static int32_t set_value(kr_recipe *r, const char *name, const char *text, int is_new) {
  const char *last = NULL;
  json_t *value = NULL, *section = reach(r->values, name, &last);
  if (!section || !*last || (!is_new && !json_object_get(section, last))) return refuse_setting(r, name, text);
  if (*text) KR_TRY(kr_yaml_read(text, strlen(text), name, &value));
  if (!value) value = json_null();
  const int failed = json_object_set_new(section, last, value) != 0;
  return failed ? no_memory() : KRAIT_OK;
}

/* Sections first, then single values, whatever their order on the command line: values belong to their sections. */
static int is_section(const char *setting) {
  const char *from = setting + (setting[0] == '+');
  return strncmp(from, "model=", 6) == 0 || strncmp(from, "dset=", 5) == 0;
}

static int32_t apply(kr_recipe *r, const char *setting) {
  char name[128];
  const int is_new = setting[0] == '+';
  const char *from = setting + is_new, *equals = strchr(from, '=');
  KR_CHECK(equals && equals > from && (size_t)(equals - from) < sizeof name, KRAIT_ERR_ARGUMENT,
           "'%s' is not name=value", setting);
  snprintf(name, sizeof name, "%.*s", (int)(equals - from), from);
  if (strcmp(name, "model") == 0 || strcmp(name, "dset") == 0) return add_section(r, name, equals + 1);
  return set_value(r, name, equals + 1, is_new);
}

/* ---- open ---- */
static int32_t merge_file(kr_recipe *r, const char *path) {
  struct stat info;
  char *inside = NULL;
  json_t *tree = NULL;
  if (stat(path, &info) == 0 && S_ISDIR(info.st_mode) && asprintf(&inside, "%s/.hydra/config.yaml", path) < 0)
    return no_memory();
  int32_t status = read_yaml(inside ? inside : path, &tree);
  if (status == KRAIT_OK) status = merge(r->values, tree, path);
  if (tree) json_decref(tree);
  free(inside);
  return status;
}

int32_t kr_recipe_open(const char *path, const char *const *settings, int32_t n_settings, kr_recipe **recipe) {
  kr_recipe *r = kr_zalloc(sizeof *r);
  if (!r) return no_memory();
  const shipped *base = find_shipped("", "train");
  int32_t status = kr_yaml_read((const char *)base->bytes, *base->n_bytes, "train.yaml", &r->values);
  if (status == KRAIT_OK && path) status = merge_file(r, path);
  for (int pass = 0; pass < 2; pass++)
    for (int32_t i = 0; status == KRAIT_OK && i < n_settings; i++)
      if (is_section(settings[i]) == !pass) status = apply(r, settings[i]);
  if (status < 0) kr_recipe_close(&r);
  else *recipe = r;
  return status;
}

void kr_recipe_close(kr_recipe **recipe) {
  if (!*recipe) return;
  json_decref((*recipe)->values);
  kr_free(*recipe);
  *recipe = NULL;
}

/* ---- values ---- */
static json_t *find(const kr_recipe *r, const char *name) {
  const char *last = NULL;
  json_t *section = reach(r->values, name, &last), *value = section ? json_object_get(section, last) : NULL;
  return json_is_null(value) ? NULL : value;
}

int kr_recipe_has(const kr_recipe *r, const char *name) { return find(r, name) != NULL; }

int32_t kr_recipe_int(const kr_recipe *r, const char *name, int64_t fallback, int64_t low, int64_t high,
                      int64_t *value) {
  const json_t *v = find(r, name);
  *value = json_is_integer(v) ? json_integer_value(v) : json_is_boolean(v) ? json_is_true(v) : fallback;
  KR_CHECK(!v || ((json_is_integer(v) || json_is_boolean(v)) && *value >= low && *value <= high), KRAIT_ERR_ARGUMENT,
           "%s must be a whole number from %lld to %lld", name, (long long)low, (long long)high);
  return KRAIT_OK;
}

int32_t kr_recipe_float(const kr_recipe *r, const char *name, double fallback, double low, double high, double *value) {
  const json_t *v = find(r, name);
  *value = json_is_number(v) ? json_number_value(v) : fallback;
  KR_CHECK(!v || (json_is_number(v) && *value >= low && *value <= high), KRAIT_ERR_ARGUMENT,
           "%s must be a number from %g to %g", name, low, high);
  return KRAIT_OK;
}

int32_t kr_recipe_text(const kr_recipe *r, const char *name, const char *fallback, const char **value) {
  const json_t *v = find(r, name);
  KR_CHECK(!v || json_is_string(v), KRAIT_ERR_ARGUMENT, "%s must be a string", name);
  *value = v ? json_string_value(v) : fallback;
  return KRAIT_OK;
}

int32_t kr_recipe_floats(const kr_recipe *r, const char *name, double *values, int32_t *n) {
  const json_t *v = find(r, name);
  if (!v) return KRAIT_OK;
  const size_t count = json_array_size(v);
  KR_CHECK(json_is_array(v) && count > 0 && count <= (size_t)*n, KRAIT_ERR_ARGUMENT,
           "%s must be a list of one to %d numbers", name, *n);
  for (size_t i = 0; i < count; i++) {
    KR_CHECK(json_is_number(json_array_get(v, i)), KRAIT_ERR_ARGUMENT, "%s must be a list of numbers", name);
    values[i] = json_number_value(json_array_get(v, i));
  }
  *n = (int32_t)count;
  return KRAIT_OK;
}

char *kr_recipe_json(const kr_recipe *r, const char *name) {
  const json_t *v = *name ? find(r, name) : r->values;
  return v ? kr_json_dump(v, JSON_INDENT(2) | JSON_ENCODE_ANY) : NULL;
}

/* ---- the data ---- */
static const char *const split_names[] = {"train", "valid", "test"};

/* dset.PART_SPLIT and dset.PART_dir; the folder alone means all files in it. */
static int32_t take_source(const kr_recipe *r, const char *part, int split, const char **source, const char **dir) {
  char name[64];
  snprintf(name, sizeof name, "dset.%s_dir", part);
  KR_TRY(kr_recipe_text(r, name, NULL, dir));
  snprintf(name, sizeof name, "dset.%s_%s", part, split_names[split]);
  return kr_recipe_text(r, name, *dir, source);
}

static int32_t take_sources(const kr_recipe *r, int split, kr_data_config *c) {
  const char *input;
  KR_TRY(kr_recipe_text(r, "model.input_type", "acs", &input));
  KR_CHECK(strcmp(input, "acs") == 0 || strcmp(input, "bcs") == 0, KRAIT_ERR_ARGUMENT,
           "model.input_type is '%s'; only acs (acoustic) and bcs (throat microphone) can be trained", input);
  c->own_levels = strcmp(input, "bcs") == 0;
  KR_TRY(take_source(r, "speech", split, &c->speech, &c->speech_dir));
  KR_TRY(take_source(r, c->own_levels ? "throat" : "noisy", split, &c->noisy, &c->noisy_dir));
  KR_TRY(take_source(r, "noise", split, &c->noise, &c->noise_dir));
  KR_TRY(take_source(r, "rir", split, &c->rir, &c->rir_dir));
  KR_CHECK(c->speech, KRAIT_ERR_ARGUMENT,
           "dset.speech_%s: give a folder, a list or a safetensors file of clean recordings", split_names[split]);
  KR_CHECK(!c->own_levels || c->noisy, KRAIT_ERR_ARGUMENT,
           "dset.throat_%s: model.input_type=bcs needs the throat microphone's recordings", split_names[split]);
  return KRAIT_OK;
}

static int32_t take_int(const kr_recipe *r, const char *section, const char *key, int32_t *value, int64_t low,
                        int64_t high) {
  char name[64];
  int64_t found;
  snprintf(name, sizeof name, "%s%s%s", section, *section ? "." : "", key);
  KR_TRY(kr_recipe_int(r, name, *value, low, high, &found));
  *value = (int32_t)found;
  return KRAIT_OK;
}

static int32_t take_share(const kr_recipe *r, const char *section, const char *key, double *value, double high) {
  char name[64];
  snprintf(name, sizeof name, "%s.%s", section, key);
  return kr_recipe_float(r, name, *value, 0, high, value);
}

static int32_t take_ratios(const kr_recipe *r, int split, kr_data_config *c) {
  double values[64] = {c->snr_low_db, c->snr_high_db};
  int32_t n = split == KR_RECIPE_TEST ? 64 : 2;
  const char *name = split == KR_RECIPE_TEST    ? "test_noise.snr_step"
                     : split == KR_RECIPE_VALID ? "valid_noise.snr_range"
                                                : "train_noise.snr_range";
  KR_TRY(kr_recipe_floats(r, name, values, &n));
  for (int32_t i = 0; i < n; i++)
    KR_CHECK(values[i] == rint(values[i]) && fabs(values[i]) <= 100, KRAIT_ERR_ARGUMENT,
             "%s: %g is not a whole number of decibels within 100", name, values[i]);
  KR_CHECK(split == KR_RECIPE_TEST || n == 2, KRAIT_ERR_ARGUMENT, "%s must be [low, high]", name);
  c->snr_low_db = (int32_t)values[0];
  c->snr_high_db = (int32_t)values[split == KR_RECIPE_TEST ? 0 : 1];
  return KRAIT_OK;
}

static int32_t take_mixing(const kr_recipe *r, int split, kr_data_config *c) {
  static const char *const sections[] = {"train_noise", "valid_noise", "test_noise"};
  const char *section = sections[split];
  int32_t level = -25;
  KR_TRY(take_ratios(r, split, c));
  KR_TRY(take_share(r, section, "reverb_proportion", &c->reverb_proportion, 1));
  KR_TRY(take_share(r, section, "reverb_early", &c->reverb_early_s, 9));
  KR_TRY(take_share(r, section, "silence_length", &c->silence_s, 59));
  KR_TRY(take_int(r, section, "target_dB_FS", &level, -100, 0));
  KR_TRY(take_int(r, section, "target_dB_FS_floating_value", &c->level_float_db, 0, 100));
  c->part_level_db = c->level_db = level;
  char name[64];
  snprintf(name, sizeof name, "%s.noise_proportion", section);
  return kr_recipe_float(r, name, c->noise_proportion, 0, 1, &c->noise_proportion);
}

static int32_t take_augmentation(const kr_recipe *r, kr_data_config *c) {
  KR_TRY(take_int(r, "train_noise", "most_noises", &c->most_noises, 1, 16));
  KR_TRY(take_share(r, "augment", "babble", &c->babble_proportion, 1));
  KR_TRY(take_share(r, "augment", "colours", &c->colour_proportion, 1));
  KR_TRY(take_share(r, "augment", "curves", &c->curve_proportion, 1));
  KR_TRY(take_share(r, "augment", "gain", &c->gain_proportion, 1));
  KR_TRY(take_share(r, "augment", "speed", &c->speed_proportion, 1));
  KR_TRY(take_share(r, "augment", "rumble", &c->rumble_proportion, 1));
  KR_TRY(take_share(r, "augment", "tilt", &c->tilt_proportion, 1));
  KR_TRY(take_share(r, "augment", "bands", &c->band_proportion, 1));
  KR_TRY(take_share(r, "augment", "clipping", &c->clip_proportion, 1));
  return take_share(r, "augment", "codecs", &c->codec_proportion, 1);
}

int32_t kr_recipe_data(const kr_recipe *r, int split, kr_data_config *c) {
  int64_t rate, seed;
  kr_data_defaults(c);
  KR_TRY(kr_recipe_int(r, "sampling_rate", 16000, 16000, 16000, &rate));
  KR_TRY(kr_recipe_int(r, "seed", (int64_t)c->seed, 0, INT64_MAX, &seed));
  c->seed = (uint64_t)seed;
  KR_TRY(kr_recipe_int(r, "segment", c->segment, 1, 1 << 28, &c->segment));
  KR_TRY(kr_recipe_int(r, "stride", c->stride, 1, 1 << 28, &c->stride));
  KR_TRY(kr_recipe_int(r, "shift", c->shift, 0, 1 << 28, &c->shift));
  KR_TRY(kr_recipe_int(r, "batch_size", c->batch, 1, 65536, &c->batch));
  KR_TRY(take_int(r, "", "num_workers", &c->n_workers, 0, 256));
  if (split != KR_RECIPE_TRAIN) kr_data_for_validation(c);
  KR_TRY(take_sources(r, split, c));
  KR_TRY(take_mixing(r, split, c));
  if (split == KR_RECIPE_TRAIN) return take_augmentation(r, c);
  return split == KR_RECIPE_TEST ? take_int(r, "dset", "test_augment_numb", &c->repeats, 1, 1000) : KRAIT_OK;
}

#ifdef KR_FUZZ
/* Fuzz target: the first line is a setting, the rest a section's file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char setting[256];
  const uint8_t *end = memchr(data, '\n', size);
  const size_t n = end ? (size_t)(end - data) : size;
  snprintf(setting, sizeof setting, "%.*s", (int)(n < 255 ? n : 255), (const char *)data);
  kr_recipe *r = NULL;
  kr_data_config config;
  json_t *tree = NULL;
  if (kr_recipe_open(NULL, NULL, 0, &r) == KRAIT_OK && end &&
      kr_yaml_read((const char *)end + 1, size - n - 1, "the file", &tree) == KRAIT_OK) {
    if (json_is_object(tree)) merge(r->values, tree, "the file");
    json_decref(tree);
  }
  if (r) apply(r, setting);
  for (int split = 0; r && split < 3; split++) kr_recipe_data(r, split, &config);
  kr_recipe_close(&r);
  return 0;
}
#endif
