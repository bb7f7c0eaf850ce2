/* recipe.h: the configuration of a training run: the built-in defaults (recipes/train.yaml), then a file, then
 * settings; later ones override earlier ones value by value.
 *
 * Settings are as upstream's command line has them: "+model=primeknet_mamba_masking" and "+dset=taps" put shipped
 * sections in (of a path ending in .yaml, that file), "batch_size=8" and "train_noise.snr_range=[-5,20]" replace values
 * that are there, "+name=value" adds one.
 *
 * Names with dots reach into sections. Typed getters: null or a missing name gives the fallback; a wrong type or range
 * is KRAIT_ERR_ARGUMENT and a sentence with the name. */
#ifndef KR_RECIPE_H
#define KR_RECIPE_H

#include "data.h"

typedef struct kr_recipe kr_recipe;

/* path: a YAML file, a run's folder (its .hydra/config.yaml), or NULL. */
int32_t kr_recipe_open(const char *path, const char *const *settings, int32_t n_settings, kr_recipe **recipe);
void kr_recipe_close(kr_recipe **recipe);

int kr_recipe_has(const kr_recipe *recipe, const char *name); /* present and not null */
int32_t kr_recipe_int(const kr_recipe *recipe, const char *name, int64_t fallback, int64_t low, int64_t high,
                      int64_t *value);
int32_t kr_recipe_float(const kr_recipe *recipe, const char *name, double fallback, double low, double high,
                        double *value);
int32_t kr_recipe_text(const kr_recipe *recipe, const char *name, const char *fallback,
                       const char **value); /* lives with the recipe */
/* A list of numbers; *n is the capacity on entry and the number of values on return; a missing list leaves both
 * unchanged. */
int32_t kr_recipe_floats(const kr_recipe *recipe, const char *name, double *values, int32_t *n);
/* "" for everything: as JSON, which is also YAML and what kr_config_open reads; free with kr_free. NULL if out of
 * memory or not present. */
char *kr_recipe_json(const kr_recipe *recipe, const char *name);

enum { KR_RECIPE_TRAIN, KR_RECIPE_VALID, KR_RECIPE_TEST };
/* Fills config for one split; its strings live with the recipe; batch, ranks and report are set by the caller. For
 * KR_RECIPE_TEST the ratio is the first of test_noise.snr_step. KRAIT_ERR_ARGUMENT if the split has no speech. */
int32_t kr_recipe_data(const kr_recipe *recipe, int split, kr_data_config *config);

#endif
