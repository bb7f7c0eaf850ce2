/* lm_load.c: every weight by its field, whose key is in the family's table. */
#include "lm_load.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
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

/* The number of beginnings that a key may have; beginning `i` of it, before the rest at *rest. */
static int n_prefixes(const kr_lm_family *f, const char *key) {
  int n = 0;
  if (!f->prefixes || strncmp(key, f->prefixes[0], strlen(f->prefixes[0])) != 0) return 1;
  while (f->prefixes[n]) n++;
  return n;
}
static const char *prefix_of(const kr_lm_family *f, const char *key, int i, const char **rest) {
  const int has = f->prefixes && strncmp(key, f->prefixes[0], strlen(f->prefixes[0])) == 0;
  *rest = has ? key + strlen(f->prefixes[0]) : key;
  return has ? f->prefixes[i] : "";
}

/* A key with beginning `prefix`, and the numbers of a layer and an expert. */
static const char *write_key(char *to, const kr_lm_family *f, const char *key, int prefix, int64_t layer,
                             int64_t expert) {
  const char *rest;
  size_t n = (size_t)snprintf(to, KEY_BYTES, "%s", prefix_of(f, key, prefix, &rest));
  for (; *rest && n < KEY_BYTES; rest++)
    n += (size_t)(*rest == '*'   ? snprintf(to + n, KEY_BYTES - n, "%lld", (long long)layer)
                  : *rest == '#' ? snprintf(to + n, KEY_BYTES - n, "%lld", (long long)expert)
                                 : snprintf(to + n, KEY_BYTES - n, "%c", *rest));
  return to;
}

/* A field's first key that the file has, in some form, or its first, with the numbers of the layer and of an expert;
 * NULL: it is not in the table. *is_there: the file has it. */
static const kr_lm_key *find_any_key(const kr_lm_loader *l, const char *field, int64_t expert, char *name,
                                     int *is_there) {
  const kr_lm_family *f = l->c->family;
  const kr_lm_key *first = NULL;
  const int64_t layer = l->block ? l->block->stored : 0;
  *is_there = 1;
  for (const kr_lm_key *k = f->keys; k->field; k++) {
    if (strcmp(k->field, field) != 0) continue;
    if (!first) first = k;
    for (int i = 0; i < n_prefixes(f, k->key); i++)
      if (kr_loader_has(l->p, write_key(name, f, k->key, i, layer, expert))) return k;
  }
  *is_there = 0;
  if (first) write_key(name, f, first->key, 0, layer, expert);
  return first;
}

static const kr_lm_key *find_key(const kr_lm_loader *l, const char *field, char *name) {
  int is_there;
  return find_any_key(l, field, l->block ? l->block->adapter : 0, name, &is_there);
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

static int fits_key(const kr_lm_family *f, const char *key, const char *name) {
  for (int i = 0; i < n_prefixes(f, key); i++) {
    const char *rest, *prefix = prefix_of(f, key, i, &rest);
    const size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) == 0 && kr_name_fits(rest, name + n)) return 1;
  }
  return 0;
}

int32_t kr_lm_key_flags(const kr_lm_family *family, const char *name, const char **field) {
  *field = NULL;
  for (const kr_lm_key *k = family->keys; k->field; k++) {
    if (!fits_key(family, k->key, name)) continue;
    *field = k->field;
    return k->flags;
  }
  return 0;
}

const kr_weight *kr_lm_find_weight(const kr_lm_family *family, const kr_model_folder *folder, const char *field,
                                   const char **key) {
  char name[KEY_BYTES];
  *key = field;
  for (const kr_lm_key *k = family->keys; k->field; k++) {
    if (strcmp(k->field, field) != 0) continue;
    *key = k->key;
    for (int i = 0; i < n_prefixes(family, k->key); i++) {
      const kr_weight *found = kr_model_folder_find(folder, write_key(name, family, k->key, i, 0, 0));
      if (found) return *key = found->name, found;
    }
  }
  return NULL;
}

const kr_weight *kr_lm_find_in_layer(const kr_lm_family *family, const kr_model_folder *folder, const char *field,
                                     int64_t layer, const char *form) {
  char name[KEY_BYTES], full[KEY_BYTES + 8];
  for (const kr_lm_key *k = family->keys; k->field; k++) {
    if (strcmp(k->field, field) != 0) continue;
    for (int i = 0; i < n_prefixes(family, k->key); i++) {
      snprintf(full, sizeof full, "%s%s", write_key(name, family, k->key, i, layer, 0), form);
      const kr_weight *found = kr_model_folder_find(folder, full);
      if (found) return found;
    }
  }
  return NULL;
}

int kr_lm_has(const kr_lm_loader *l, const char *field) {
  char name[KEY_BYTES];
  int is_there;
  const kr_lm_key *key = find_any_key(l, field, 0, name, &is_there);
  return is_there || (key && !l->p->folder);
}

/* ---- tensors ---- */

/* The blocks of a random matrix. */
static int32_t blocks_of(const kr_lm_loader *l, const kr_lm_key *key) {
  return !(key->flags & KR_LM_PRODUCT)                     ? 0
         : key->flags & KR_LM_DELICATE && l->random_blocks ? KRAIT_Q8_0
                                                           : l->random_blocks;
}

/* Of the first matrix of a layer. */
static void note_dtype(kr_lm_loader *l, const kr_weight_ref *to) {
  if (l->block && l->dtype == NO_DTYPE && to->data) l->dtype = to->dtype == KRAIT_I32 ? KRAIT_F16 : to->dtype;
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
  if (want[0].n == 2) note_dtype(l, to);
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

static int32_t load_each_expert(kr_lm_loader *l, const char *field, int64_t n, kr_sizes want, kr_weight_ref *to) {
  char(*names)[KEY_BYTES] = kr_alloc_array((size_t)n, sizeof *names);
  const char **list = kr_alloc_array((size_t)n, sizeof *list);
  int is_there;
  const kr_lm_key *key = NULL;
  int32_t status = names && list ? KRAIT_OK
                                 : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld experts", (long long)n);
  for (int64_t e = 0; e < n && status >= 0; e++)
    key = find_any_key(l, field, e, names[e], &is_there), list[e] = names[e];
  if (status >= 0 && !key)
    status = kr_fail(KRAIT_ERR_WEIGHTS, "family %s has no key for '%s'", l->c->family->name, field);
  if (status >= 0) l->p->random_blocks = blocks_of(l, key);
  if (status >= 0) status = kr_load_stacked(l->p, n, list, want, to);
  kr_free(names);
  kr_free(list);
  return status;
}

int32_t kr_lm_load_experts(kr_lm_loader *l, const char *field, int64_t n, kr_sizes want, kr_weight_ref *to) {
  char name[KEY_BYTES];
  const kr_lm_key *key = find_key(l, field, name);
  const kr_weight *item = key ? kr_loader_peek(l->p, name) : NULL;
  *to = (kr_weight_ref){0};
  return item && item->n_dims == 3 ? kr_lm_load(l, field, 1, KR_SIZES(n, want.size[0], want.size[1]), to)
                                   : load_each_expert(l, field, n, want, to);
}

int32_t kr_lm_load_values(kr_lm_loader *l, const char *field, kr_sizes want, double (*f)(double), float *values) {
  char name[KEY_BYTES];
  const kr_lm_key *key = find_key(l, field, name);
  KR_CHECK(key, KRAIT_ERR_WEIGHTS, "%s: family %s has no key for '%s'", kr_loader_label(l->p), l->c->family->name,
           field);
  return kr_load_values(l->p, name, want, f, values);
}

int32_t kr_lm_load_made(kr_lm_loader *l, const float *values, int64_t n, kr_weight_ref *to) {
  l->p->bytes += (uint64_t)n * sizeof *values;
  return kr_load_buffer(l->p, values, (uint64_t)n * sizeof *values, KRAIT_F32, to);
}

/* n times over; values has room for them. */
static int32_t repeat_norm(kr_lm_loader *l, const kr_lm_norm_part *part, float *values) {
  KR_TRY(kr_lm_load_values(l, part->field, KR_SIZES(part->size), NULL, values));
  for (int64_t i = 0; i < part->size * part->n; i++)
    values[i] = i < part->size ? (float)((double)values[i] + l->c->norm_offset) : values[i % part->size];
  return KRAIT_OK;
}

int32_t kr_lm_load_norms(kr_lm_loader *l, int n, const kr_lm_norm_part *parts, kr_weight_ref *to) {
  int64_t all = 0, at = 0;
  int32_t status = KRAIT_OK;
  for (int i = 0; i < n; i++) all += parts[i].size * parts[i].n;
  float *values = kr_alloc_array((size_t)all, sizeof *values);
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for a norm of %lld features", (long long)all);
  for (int i = 0; i < n && status >= 0; at += parts[i].size * parts[i].n, i++)
    status = repeat_norm(l, &parts[i], values + at);
  if (status >= 0) status = kr_lm_load_made(l, values, all, to);
  kr_free(values);
  return status;
}

int32_t kr_lm_load_norm(kr_lm_loader *l, const char *field, int64_t size, int64_t n, kr_weight_ref *to) {
  return kr_lm_load_norms(l, 1, &(kr_lm_norm_part){field, size, n}, to);
}

int32_t kr_lm_load_reordered(kr_lm_loader *l, const char *field, kr_sizes want,
                             int64_t (*row_of)(const void *user, int64_t i), const void *user, kr_weight_ref *to) {
  char name[KEY_BYTES];
  const kr_lm_key *key = find_key(l, field, name);
  KR_CHECK(key, KRAIT_ERR_WEIGHTS, "%s: family %s has no key for '%s'", kr_loader_label(l->p), l->c->family->name,
           field);
  KR_TRY(kr_load_reordered(l->p, name, want, row_of, user, to));
  note_dtype(l, to);
  return KRAIT_OK;
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
  if (!head) return l->c->tied != KR_LM_NOT_TIED;
  if (l->c->tied != KR_LM_TIED_IF_ABSENT) return l->c->tied == KR_LM_TIED;
  return embedding && embedding->data == head->data; /* torch stores a shared tensor once */
}

static int32_t load_stream_norm(kr_lm_loader *l, const char *field, int64_t d, kr_weight_ref *to) {
  return l->c->norm_offset != 0 ? kr_lm_load_norm(l, field, d, 1, to) : kr_lm_load(l, field, 1, KR_SIZES(d), to);
}

static int32_t load_ends(kr_lm_loader *l) {
  const kr_lm_config *c = l->c;
  const kr_sizes table = KR_SIZES(c->V, c->d);
  KR_TRY(kr_lm_load(l, "embedding", 1, table, &l->w->embedding));
  l->w->head = l->w->embedding;
  if (is_tied(l)) {
    kr_weight same; /* a copy that the file may have */
    char name[KEY_BYTES];
    if (find_key(l, "head", name) && l->p->folder) KR_TRY(kr_loader_find(l->p, name, 0, table, &same));
  } else {
    const uint64_t looked_up = l->p->bytes;
    KR_TRY(kr_lm_load(l, "head", 1, table, &l->w->head));
    l->p->bytes -= looked_up;
  }
  KR_TRY(load_stream_norm(l, "norm_f", c->d, &l->w->norm_f));
  return kr_lm_load(l, "norm_f_bias", 0, KR_SIZES(c->d), &l->w->norm_f_bias);
}

static int32_t load_block_norm(kr_lm_loader *l, kr_lm_block *b) {
  const int64_t d = kr_lm_read_width(l->c, b);
  char bias[32];
  if (b->shared) b->norm_weight = b->shared->norm_weight, b->norm_bias = b->shared->norm_bias;
  if (!b->norm || b->reads == KR_LM_READS_SAME || b->shared) return KRAIT_OK;
  snprintf(bias, sizeof bias, "%s_bias", b->norm);
  KR_TRY(load_stream_norm(l, b->norm, d, &b->norm_weight));
  return kr_lm_load(l, bias, 0, KR_SIZES(d), &b->norm_bias);
}

static int32_t load_block(kr_lm_loader *l, kr_lm_block *b) {
  l->block = b;
  KR_TRY(load_block_norm(l, b));
  if (b->post) KR_TRY(load_stream_norm(l, b->post, l->c->d, &b->post_weight));
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
                                  .as = folder ? dtype : 0,
                                  .keeps_q8 = c->family->keeps_q8}};
  kr_lm_loader l = {.c = c, .w = w, .random_blocks = has_blocks ? dtype : 0, .dtype = NO_DTYPE};
  KR_TRY(kr_loader_run(&w->loader, take_lm, &l));
  KR_TRY(kr_loader_check_read(&w->loader, c->family->unused));
  w->stored = l.dtype;
  w->dtype = ctx->cuda ? l.dtype : KRAIT_F32;
  w->bytes = w->loader.bytes;
  return KRAIT_OK;
}

void kr_lm_weights_close(kr_lm_weights *w) {
  if (w->loader.ctx) kr_loader_close(&w->loader);
  *w = (kr_lm_weights){0};
}
