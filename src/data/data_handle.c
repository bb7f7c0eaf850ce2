/* data_handle.c: krait_data_*: data.h and recipe.h with one handle. */
#include "public_names.h"

#include <krait/data.h>
#include <string.h>

#include "alloc.h"
#include "recipe.h"
#include "status.h"

struct krait_data {
  kr_recipe *recipe;
  kr_data *data;
  int64_t batch;
};

static int32_t open_parts(krait_data *d, const char *path, const char *const *settings, int32_t n_settings,
                          const char *split, krait_report_fn report, void *user) {
  static const char *const splits[] = {"train", "valid", "test"};
  int which = -1;
  for (int i = 0; i < 3; i++)
    if (strcmp(splits[i], split) == 0) which = i;
  KR_CHECK(which >= 0, KRAIT_ERR_ARGUMENT, "split '%s' is not train, valid or test", split);
  kr_data_config config;
  KR_TRY(kr_recipe_open(path, settings, n_settings, &d->recipe));
  KR_TRY(kr_recipe_data(d->recipe, which, &config));
  config.report = report;
  config.user = user;
  d->batch = config.batch;
  return kr_data_open(&config, &d->data);
}

int32_t krait_data_open(const char *config_path, const char *const *settings, int32_t n_settings, const char *split,
                        krait_report_fn report, void *user, krait_data **data) {
  KR_CHECK(split && data && (settings || n_settings == 0) && n_settings >= 0, KRAIT_ERR_ARGUMENT,
           "split, data and settings must not be NULL");
  *data = NULL;
  krait_data *d = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory for training data");
  const int32_t status = open_parts(d, config_path, settings, n_settings, split, report, user);
  if (status < 0) krait_data_close(&d);
  else *data = d;
  return status;
}

void krait_data_close(krait_data **data) {
  if (!data || !*data) return;
  kr_data_close(&(*data)->data);
  kr_recipe_close(&(*data)->recipe);
  kr_free(*data);
  *data = NULL;
}

int64_t krait_data_n_items(const krait_data *d) { return d ? kr_data_n_items(d->data) : 0; }
int64_t krait_data_n_steps(const krait_data *d) { return d ? kr_data_n_steps(d->data) : 0; }
int64_t krait_data_batch(const krait_data *d) { return d ? d->batch : 0; }
int64_t krait_data_samples(const krait_data *d) { return d ? kr_data_samples(d->data) : 0; }

int32_t krait_data_item(krait_data *d, int64_t epoch, int64_t index, float *noisy, float *clean, int64_t *n_samples) {
  KR_CHECK(d && noisy && clean && n_samples && epoch >= 0, KRAIT_ERR_ARGUMENT,
           "data, noisy, clean and n_samples must not be NULL, epoch not negative");
  return kr_data_item(d->data, epoch, index, noisy, clean, n_samples);
}

const char *krait_data_item_name(const krait_data *d, int64_t index) {
  return d && index >= 0 && index < kr_data_n_items(d->data) ? kr_data_item_name(d->data, index) : NULL;
}

int32_t krait_data_begin(krait_data *d, int64_t step) {
  KR_CHECK(d, KRAIT_ERR_ARGUMENT, "data must not be NULL");
  return kr_data_begin(d->data, step);
}

int32_t krait_data_next(krait_data *d, float *noisy, float *clean) {
  KR_CHECK(d && noisy && clean, KRAIT_ERR_ARGUMENT, "data, noisy and clean must not be NULL");
  return kr_data_next(d->data, noisy, clean);
}

double krait_data_waited_s(const krait_data *d) { return d ? kr_data_waited_s(d->data) : 0; }
