/* lm_load.c: every weight by its field, whose key is in the family's table. */
#include "lm_load.h"

#include <stdio.h>
#include <string.h>

#include "ctx.h"
#include "lm.h"
#include "status.h"

struct kr_lm_loader {
  kr_loader *p;
  kr_lm_config *c;
  kr_lm_weights *w;
  const kr_lm_block *block; /* NULL: of no layer */
  int32_t random_blocks;    /* KRAIT_Q8_0, KRAIT_Q4_K: of large random matrices; else 0 */
  int32_t dtype;            /* of the first matrix of a layer; NO_DTYPE: none yet */
};

/* ---- keys ---- */

enum { KEY_BYTES = 144, NO_DTYPE = -1 };

static const char *write_key(char *to, const char *key, int64_t layer) {
  const int before = (int)strcspn(key, "*");
  if (!key[before])
    snprintf(to, KEY_BYTES, "%s", key);
  else
    snprintf(to, KEY_BYTES, "%.*s%lld%s", before, key, (long long)layer, key + before + 1);
  return to;
}

/* A field's first key that the file has, in some form, or its first; NULL: it is not in the table. */
static const kr_lm_key *find_key(const kr_lm_loader *l, const char *field, char *name) {
  const kr_lm_key *first = NULL;
  const int64_t layer = l->block ? l->block->layer : 0;
  for (const kr_lm_key *k = l->c->family->keys; k->field; k++) {
    if (strcmp(k->field, field) != 0) continue;
    if (!first) first = k;
    if (kr_loader_peek(l->p, write_key(name, k->key, layer))) return k;
  }
  if (first) write_key(name, first->key, layer);
  return first;
}

int kr_lm_has_key(const kr_lm_loader *l, const char *field) {
  char name[KEY_BYTES];
  return find_key(l, field, name) != NULL;
}

const kr_weight *kr_lm_peek(const kr_lm_loader *l, const char *field) {
  char name[KEY_BYTES];
  return find_key(l, field, name) ? kr_loader_peek(l->p, name) : NULL;
}

int kr_lm_is_on_gpu(const kr_lm_loader *l) { return l->p->ctx->cuda != NULL; }

/* name with a number at '*'. */
static int fits_key(const char *key, const char *name) {
  const size_t before = strcspn(key, "*");
  if (!key[before]) return strcmp(key, name) == 0;
  const size_t digits = strncmp(key, name, before) == 0 ? strspn(name + before, "0123456789") : 0;
  return digits > 0 && strcmp(key + before + 1, name + before + digits) == 0;
}

int32_t kr_lm_key_flags(const kr_lm_family *family, const char *name, const char **field) {
  *field = NULL;
  for (const kr_lm_key *k = family->keys; k->field; k++) {
    if (!fits_key(k->key, name)) continue;
    *field = k->field;
    return k->flags;
  }
  return 0;
}

const kr_weight *kr_lm_find_weight(const kr_lm_family *family, const kr_model_folder *folder, const char *field,
                                   const char **key) {
  *key = field;
  for (const kr_lm_key *k = family->keys; k->field; k++) {
    if (strcmp(k->field, field) != 0) continue;
    *key = k->key;
    const kr_weight *found = kr_model_folder_find(folder, k->key);
    if (found) return found;
  }
  return NULL;
}

/* ---- tensors ---- */

/* The blocks of a random matrix. */
static int32_t blocks_of(const kr_lm_loader *l, const kr_lm_key *key) {
  return !(key->flags & KR_LM_PRODUCT)                     ? 0
         : key->flags & KR_LM_DELICATE && l->random_blocks ? KRAIT_Q8_0
                                                           : l->random_blocks;
}

int32_t kr_lm_load_rows(kr_lm_loader *l, int n, const char *const *fields, int is_needed, const kr_sizes *want,
                        kr_weight_ref *to) {
  enum { MOST = 4 };
  char names[MOST][KEY_BYTES];
  const char *list[MOST];
  const kr_lm_key *key = NULL;
  for (int i = 0; i < n; i++) {
    to[i] = (kr_weight_ref){0};
    key = find_key(l, fields[i], names[i]);
    KR_CHECK(key || !is_needed, KRAIT_ERR_WEIGHTS, "%s: family %s has no key for '%s'", kr_loader_label(l->p),
             l->c->family->name, fields[i]);
    list[i] = names[i];
  }
  if (!key) return KRAIT_OK;
  l->p->random_blocks = blocks_of(l, key);
  KR_TRY(kr_load_rows(l->p, n, list, is_needed, want, to));
  if (l->block && l->dtype == NO_DTYPE && want[0].n == 2) l->dtype = to[0].dtype == KRAIT_I32 ? KRAIT_F16 : to[0].dtype;
  return KRAIT_OK;
}

int32_t kr_lm_load(kr_lm_loader *l, const char *field, int is_needed, kr_sizes want, kr_weight_ref *to) {
  return kr_lm_load_rows(l, 1, &field, is_needed, &want, to);
}

int32_t kr_lm_load_f32(kr_lm_loader *l, const char *field, kr_sizes want, double (*f)(double), kr_weight_ref *to) {
  char name[KEY_BYTES];
  const kr_lm_key *key = find_key(l, field, name);
  KR_CHECK(key, KRAIT_ERR_WEIGHTS, "%s: family %s has no key for '%s'", kr_loader_label(l->p), l->c->family->name,
           field);
  return kr_load_f32(l->p, name, want, f, to);
}

/* ---- all of them ---- */

/* Whether the embedding is also the output matrix: a quantized model keeps its embedding for looking up tokens. */
static int is_tied(const kr_lm_loader *l) {
  char name[KEY_BYTES], in_blocks[KEY_BYTES + 8];
  const kr_lm_key *key = find_key(l, "head", name);
  if (!key || blocks_of(l, key)) return !key;
  for (int i = 0; i < 2; i++) {
    snprintf(in_blocks, sizeof in_blocks, "%s.%s", name, i ? "q4_k" : "q8_0");
    if (kr_loader_peek(l->p, in_blocks)) return 0;
  }
  const kr_weight *head = kr_loader_peek(l->p, name), *embedding = kr_lm_peek(l, "embedding");
  if (l->c->tied != KR_LM_TIED_IF_ABSENT) return l->c->tied == KR_LM_TIED;
  return !head || (embedding && embedding->data == head->data); /* torch stores a shared tensor once */
}

static int32_t load_ends(kr_lm_loader *l) {
  const kr_lm_config *c = l->c;
  const kr_sizes table = KR_SIZES(c->V, c->d);
  KR_TRY(kr_lm_load(l, "embedding", 1, table, &l->w->embedding));
  l->w->head = l->w->embedding;
  if (!is_tied(l)) {
    const uint64_t looked_up = l->p->bytes;
    KR_TRY(kr_lm_load(l, "head", 1, table, &l->w->head));
    l->p->bytes -= looked_up;
  }
  KR_TRY(kr_lm_load(l, "norm_f", 1, KR_SIZES(c->d), &l->w->norm_f));
  return kr_lm_load(l, "norm_f_bias", 0, KR_SIZES(c->d), &l->w->norm_f_bias);
}

static int32_t load_block(kr_lm_loader *l, kr_lm_block *b) {
  char bias[32];
  snprintf(bias, sizeof bias, "%s_bias", b->norm);
  l->block = b;
  KR_TRY(kr_lm_load(l, b->norm, 1, KR_SIZES(l->c->d), &b->norm_weight));
  KR_TRY(kr_lm_load(l, bias, 0, KR_SIZES(l->c->d), &b->norm_bias));
  return b->kind->load(l, b);
}

static int32_t take_lm(kr_loader *p, void *user) {
  kr_lm_loader *l = user;
  l->p = p, l->block = NULL;
  KR_TRY(load_ends(l));
  for (int64_t i = 0; i < l->c->n_blocks; i++) KR_TRY(load_block(l, &l->c->blocks[i]));
  l->block = NULL;
  return KRAIT_OK;
}

int32_t kr_lm_weights_open(const krait_ctx *ctx, const kr_model_folder *folder, kr_lm_config *c, int32_t dtype,
                           kr_lm_weights *w) {
  const int has_blocks = dtype == KRAIT_Q8_0 || dtype == KRAIT_Q4_K;
  *w = (kr_lm_weights){.loader = {.ctx = ctx,
                                  .folder = folder,
                                  .random_type = has_blocks ? KRAIT_F16 : dtype,
                                  .keeps_q8 = c->family->keeps_q8}};
  kr_lm_loader l = {.c = c, .w = w, .random_blocks = has_blocks ? dtype : 0, .dtype = NO_DTYPE};
  KR_TRY(kr_loader_run(&w->loader, take_lm, &l));
  w->dtype = ctx->cuda ? l.dtype : KRAIT_F32;
  w->bytes = w->loader.bytes;
  return KRAIT_OK;
}

void kr_lm_weights_close(kr_lm_weights *w) {
  if (w->loader.ctx) kr_loader_close(&w->loader);
  *w = (kr_lm_weights){0};
}
