/* lm_json.c: what readers of config.json share. */
#include <stdio.h>
#include <string.h>

#include "lm_config.h"
#include "status.h"

int32_t kr_lm_json_whole(const char *label, const json_t *from, const char *key, int64_t fallback, int64_t low,
                         int64_t high, int64_t *value) {
  const json_t *item = json_object_get(from, key);
  *value = fallback;
  if (!item || json_is_null(item)) return KRAIT_OK;
  KR_CHECK(json_is_integer(item) && json_integer_value(item) >= low && json_integer_value(item) <= high,
           KRAIT_ERR_WEIGHTS, "%s: config.json: %s is not a whole number from %lld to %lld", label, key, (long long)low,
           (long long)high);
  *value = json_integer_value(item);
  return KRAIT_OK;
}

double kr_lm_json_real(const json_t *from, const char *key, double fallback) {
  const json_t *item = json_object_get(from, key);
  return json_is_number(item) ? json_number_value(item) : fallback;
}

const char *kr_lm_json_text(const json_t *from, const char *key, const char *fallback) {
  const char *text = json_string_value(json_object_get(from, key));
  return text ? text : fallback;
}

int32_t kr_lm_json_eos(const char *label, const json_t *root, int64_t *eos, int32_t *n_eos) {
  const json_t *all = json_object_get(root, "eos_token_id");
  const size_t n = json_is_array(all) ? json_array_size(all) : all && !json_is_null(all);
  KR_CHECK(n <= KR_LM_MOST_EOS, KRAIT_ERR_WEIGHTS, "%s: config.json: more than %d eos_token_id", label, KR_LM_MOST_EOS);
  for (size_t i = 0; i < n; i++) {
    const json_t *item = json_is_array(all) ? json_array_get(all, i) : all;
    KR_CHECK(json_is_integer(item), KRAIT_ERR_WEIGHTS, "%s: config.json: eos_token_id is not a whole number", label);
    eos[(*n_eos)++] = json_integer_value(item);
  }
  return KRAIT_OK;
}

int32_t kr_lm_check_last(const kr_model_folder *folder, const char *key, int64_t n_layers) {
  char name[160];
  const int before = (int)strcspn(key, "*");
  snprintf(name, sizeof name, "%.*s%lld%s", before, key, (long long)n_layers, key + before + 1);
  KR_CHECK(!kr_model_folder_find(folder, name), KRAIT_ERR_WEIGHTS,
           "%s: config.json says %lld layers, but there is a tensor '%s'", kr_model_folder_label(folder),
           (long long)n_layers, name);
  return KRAIT_OK;
}
