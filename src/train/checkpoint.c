/* checkpoint.c: see checkpoint.h. Values other than tensors are in the metadata, floats in hexadecimal, so that nothing
 * is rounded. */
#include "checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

typedef struct part {
  const char *prefix;
  kr_parameters *parameters;
  float *array;
} part;
enum { N_PARTS = 9 };

static void list_parts(kr_trainer *t, part *parts) {
  kr_parameters *g = kr_trainer_generator(t), *d = kr_trainer_discriminator(t), *s = kr_trainer_statistics(t);
  const part all[N_PARTS] = {
      {"model.", g, g->value}, {"model_m.", g, g->m}, {"model_v.", g, g->v}, {"model_average.", g, g->average},
      {"model.", s, s->value}, {"model_average.", s, s->average},
      {"disc.", d, d->value},  {"disc_m.", d, d->m},  {"disc_v.", d, d->v}};
  memcpy(parts, all, sizeof all);
}

static const char *const u_names[KR_DISC_NORMS] = {"disc_u.0", "disc_u.3",  "disc_u.6",
                                                   "disc_u.9", "disc_u.14", "disc_u.17"};

int32_t kr_checkpoint_add(kr_saver *saver, const char *path, kr_trainer *t, const kr_progress_state *s,
                          const kr_checkpoint_text *text) {
  part parts[N_PARTS];
  char numbers[7][40];
  int64_t n_finite, n = 0, most = KR_DISC_NORMS;
  KR_TRY(kr_trainer_pull(t));
  list_parts(t, parts);
  for (int k = 0; k < N_PARTS; k++) most += parts[k].parameters->n_items;
  kr_weight *items = kr_alloc_array((size_t)most, sizeof *items + 224);
  KR_CHECK(items, KRAIT_ERR_NO_MEMORY, "no memory for a checkpoint");
  char *names = (char *)(items + most);
  for (int k = 0; k < N_PARTS; k++) {
    kr_parameters_items(parts[k].parameters, parts[k].prefix, parts[k].array, names + 224 * n, items + n);
    n += parts[k].parameters->n_items;
  }
  for (int k = 0; k < KR_DISC_NORMS && kr_trainer_discriminator(t)->n_items; k++)
    items[n++] = (kr_weight){.name = u_names[k],
                             .dtype = KRAIT_F32,
                             .n_dims = 1,
                             .shape = {kr_disc_outputs(k)},
                             .data = kr_trainer_u(t, k),
                             .bytes = (uint64_t)kr_disc_outputs(k) * sizeof(float)};
  snprintf(numbers[0], 40, "%lld", (long long)s->step),
      snprintf(numbers[1], 40, "%lld", (long long)kr_trainer_updates(t));
  snprintf(numbers[2], 40, "%a", s->epoch_loss), snprintf(numbers[3], 40, "%a", s->epoch_steps),
      snprintf(numbers[4], 40, "%a", s->best_loss);
  snprintf(numbers[5], 40, "%a", (double)kr_trainer_scale(t, &n_finite)),
      snprintf(numbers[6], 40, "%lld", (long long)n_finite);
  const kr_metadata metadata[] = {
      {"format", "krait training 1"}, {"step", numbers[0]},        {"updates", numbers[1]},
      {"epoch_loss", numbers[2]},     {"epoch_steps", numbers[3]}, {"best_loss", numbers[4]},
      {"gradient_scale", numbers[5]}, {"scale_updates", numbers[6]},
      {"recordings", s->recordings},  {"model", text->model},      {"config", text->config},
      {"recipe", text->recipe}};
  const int32_t status = kr_saver_add(saver, path, items, n, metadata, sizeof metadata / sizeof *metadata);
  kr_free(items);
  return status;
}

static int32_t read_number(const kr_weights *w, const char *path, const char *key, double *value) {
  const char *text = kr_weights_metadata(w, key);
  char *end = NULL;
  KR_CHECK(text, KRAIT_ERR_WEIGHTS, "%s: not a checkpoint of a training run: it has no '%s'", path, key);
  *value = strtod(text, &end);
  KR_CHECK(end && end != text && !*end, KRAIT_ERR_WEIGHTS, "%s: %s is '%s', not a number", path, key, text);
  return KRAIT_OK;
}

static int32_t read_count(const kr_weights *w, const char *path, const char *key, int64_t *count) {
  double value = 0;
  KR_TRY(read_number(w, path, key, &value));
  KR_CHECK(value >= 0 && value < 1e15 && value == floor(value), KRAIT_ERR_WEIGHTS,
           "%s: %s is '%s', not a count: the checkpoint is damaged", path, key, kr_weights_metadata(w, key));
  *count = (int64_t)value;
  return KRAIT_OK;
}

/* Older checkpoints have none, and one of another precision does not apply: the scale keeps its first value. */
static int32_t read_scale(const kr_weights *w, const char *path, kr_trainer *t) {
  const float first = kr_trainer_scale(t, NULL);
  double scale, n_finite;
  if (!kr_weights_metadata(w, "gradient_scale")) return KRAIT_OK;
  KR_TRY(read_number(w, path, "gradient_scale", &scale));
  KR_TRY(read_number(w, path, "scale_updates", &n_finite));
  KR_CHECK(scale >= 1 && n_finite >= 0 && n_finite < 1e15, KRAIT_ERR_WEIGHTS,
           "%s: gradient_scale is %g after %g updates", path, scale, n_finite);
  return scale <= (double)first ? kr_trainer_set_scale(t, (float)scale, (int64_t)n_finite) : KRAIT_OK;
}

static int32_t read_all(const kr_weights *w, const char *path, kr_trainer *t, kr_progress_state *s) {
  part parts[N_PARTS];
  int64_t updates;
  const char *recordings = kr_weights_metadata(w, "recordings");
  KR_TRY(read_count(w, path, "step", &s->step));
  KR_TRY(read_count(w, path, "updates", &updates));
  KR_TRY(read_number(w, path, "epoch_loss", &s->epoch_loss));
  KR_TRY(read_number(w, path, "epoch_steps", &s->epoch_steps));
  KR_TRY(read_number(w, path, "best_loss", &s->best_loss));
  KR_CHECK(isfinite(s->epoch_loss) && s->epoch_steps >= 0 && !isnan(s->best_loss), KRAIT_ERR_WEIGHTS,
           "%s: epoch_loss is %g after %g steps, best_loss %g: the checkpoint is damaged", path, s->epoch_loss,
           s->epoch_steps, s->best_loss);
  snprintf(s->recordings, sizeof s->recordings, "%s", recordings ? recordings : "unknown recordings");
  list_parts(t, parts);
  for (int k = 0; k < N_PARTS; k++) KR_TRY(kr_parameters_read(parts[k].parameters, w, parts[k].prefix, parts[k].array));
  for (int k = 0; k < KR_DISC_NORMS && kr_trainer_discriminator(t)->n_items; k++) {
    const int64_t n = kr_disc_outputs(k);
    const float *u = NULL;
    KR_TRY(kr_weights_take_f32(w, u_names[k], 1, &n, &u));
    memcpy(kr_trainer_u(t, k), u, (size_t)n * sizeof *u);
  }
  KR_TRY(read_scale(w, path, t));
  kr_trainer_set_steps(t, s->step, updates);
  return kr_trainer_push(t);
}

int32_t kr_checkpoint_read(const char *path, kr_trainer *t, kr_progress_state *s) {
  kr_weights *w = NULL;
  KR_TRY(kr_weights_open(path, &w));
  const int32_t status = read_all(w, path, t, s);
  kr_weights_close(&w);
  return status;
}

int32_t kr_checkpoint_add_model(kr_saver *saver, const char *path, kr_trainer *t, int average,
                                const kr_checkpoint_text *text) {
  const kr_parameters *p = kr_trainer_generator(t), *s = kr_trainer_statistics(t);
  const int64_t n = p->n_items + s->n_items;
  KR_TRY(kr_trainer_pull(t));
  kr_weight *items = kr_alloc_array((size_t)n, sizeof *items + 224);
  KR_CHECK(items, KRAIT_ERR_NO_MEMORY, "no memory for a model's list");
  char *const names = (char *)(items + n);
  kr_parameters_items(p, "", average ? p->average : p->value, names, items);
  kr_parameters_items(s, "", average ? s->average : s->value, names + 224 * p->n_items, items + p->n_items);
  const kr_metadata metadata[] = {{"model", text->model}, {"config", text->config}};
  const int32_t status = kr_saver_add(saver, path, items, n, metadata, 2);
  kr_free(items);
  return status;
}
