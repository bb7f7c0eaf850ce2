/* folder_json.c: describes a model's folder. Upstream's config.json names no model. */
#include "model_folder.h"
#include "status.h"
#include "weights_io.h"

int32_t kr_folder_json(const char *path, char **json) {
  kr_model_folder *folder;
  const kr_weight *item;
  KR_TRY(kr_model_folder_open(path, &folder));
  const json_t *config = kr_model_folder_config(folder);
  kr_description d = {.format = kr_model_folder_format(folder),
                      .model = json_string_value(json_object_get(config, "model_type")),
                      .config = json_deep_copy(config)};
  for (int64_t i = 0; (item = kr_model_folder_at(folder, i)); i++) kr_description_add(&d, item);
  const int32_t status = kr_description_dump(&d, json);
  kr_model_folder_close(&folder);
  return status;
}
