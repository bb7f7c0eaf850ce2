/* lm_config.c: lists of blocks. */
#include "lm_config.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

int32_t kr_lm_config_open(const kr_lm_family *family, int64_t most_blocks, kr_lm_config **config) {
  kr_lm_config *c = *config = kr_zalloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  c->family = family;
  c->arena = kr_arena_open();
  c->blocks = c->arena ? kr_arena_try(c->arena, (size_t)most_blocks * sizeof *c->blocks) : NULL;
  if (c->blocks) return KRAIT_OK;
  kr_lm_config_close(config);
  return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)most_blocks);
}

void kr_lm_config_close(kr_lm_config **config) {
  kr_lm_config *c = *config;
  if (!c) return;
  if (c->arena) kr_arena_close(&c->arena);
  kr_free(c);
  *config = NULL;
}

int32_t kr_lm_config_add(kr_lm_config *c, const kr_lm_block_kind *kind, int64_t layer, const char *norm,
                         const void *sizes) {
  void *own = kr_arena_try(c->arena, kind->sizes_bytes), *weights = kr_arena_try(c->arena, kind->weights_bytes);
  KR_CHECK(own && weights, KRAIT_ERR_NO_MEMORY, "no memory for layer %lld", (long long)layer);
  kr_lm_block *b = &c->blocks[c->n_blocks++];
  *b = (kr_lm_block){.kind = kind,
                     .layer = layer,
                     .stored = layer,
                     .norm = norm,
                     .sizes = memcpy(own, sizes, kind->sizes_bytes),
                     .weights = weights,
                     .nth = c->n_stateful};
  b->n_states = kind->list_states ? kind->list_states(b, b->states) : 0;
  for (int k = 0; k < b->n_states; k++)
    for (int i = 0; i < b->states[k].n_dims; i++)
      KR_CHECK(b->states[k].size[i] >= 1, KRAIT_ERR_WEIGHTS, "layer %lld: the state '%s' would have no elements",
               (long long)layer, b->states[k].name);
  for (int k = 0; k < b->n_states; k++)
    if (b->states[k].is_per_token) b->states[k].nth = c->n_per_token++;
  c->n_stateful += b->n_states > 0;
  return KRAIT_OK;
}

void kr_lm_config_divide_stream(kr_lm_config *config, double by) {
  if (by == 0) return;
  config->embedding_scale = (config->embedding_scale != 0 ? config->embedding_scale : 1) / by;
  config->eps = (float)((double)config->eps / (by * by));
}

kr_lm_block *kr_lm_config_last(const kr_lm_config *c) { return &c->blocks[c->n_blocks - 1]; }

int32_t kr_lm_config_add_rope(kr_lm_config *c, int64_t n, const double *frequencies, double factor, int64_t *at) {
  double *own = kr_arena_try(c->arena, (size_t)n * sizeof *own);
  KR_CHECK(own, KRAIT_ERR_NO_MEMORY, "no memory for a rope table");
  KR_CHECK(c->n_ropes < KR_LM_MOST_ROPES, KRAIT_ERR_UNSUPPORTED, "more than %d rope tables", KR_LM_MOST_ROPES);
  *at = c->n_ropes++;
  c->ropes[*at] = (kr_rope){n, memcpy(own, frequencies, (size_t)n * sizeof *own), factor};
  return KRAIT_OK;
}

int32_t kr_lm_config_add_plain_rope(kr_lm_config *c, int64_t n, double base, int64_t *at) {
  double frequencies[KR_LM_MOST_PAIRS];
  KR_CHECK(n <= KR_LM_MOST_PAIRS, KRAIT_ERR_UNSUPPORTED, "a rope table of %lld pairs; at most %d", (long long)n,
           KR_LM_MOST_PAIRS);
  for (int64_t r = 0; r < n; r++) frequencies[r] = pow(base, -(double)r / (double)n);
  return kr_lm_config_add_rope(c, n, frequencies, 1, at);
}
