/* gguf_model.c: the tensors of a language model in a GGUF file, in the form of Hugging Face's folders. Data in that
 * form already are used in place; q8_0's scales are stored separately, blocks that no operator supports become
 * float16, and A is converted back to its logarithm. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gguf_names.h"
#include "half.h"
#include "pool.h"
#include "quantize.h"
#include "status.h"
#include "weights_build.h"

#define FORMAT_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_FILE_FORMAT, __VA_ARGS__)

static const char embedding[] = "token_embd.weight";

typedef struct maker {
  const kr_gguf *g;
  kr_weights *to;
  const kr_gguf_arch *arch;
  int is_tied; /* the embedding is the output matrix too */
  kr_pool *pool; /* or NULL */
} maker;

static int32_t reserve_tensor(const maker *m, const kr_gguf_tensor *t, uint64_t bytes, void *place) {
  void *made = kr_arena_try(m->to->owned, (size_t)bytes + 1);
  KR_CHECK(made, KRAIT_ERR_NO_MEMORY, "%s: no memory for tensor '%s'", m->g->label, t->name);
  memcpy(place, &made, sizeof made);
  return KRAIT_OK;
}

/* n blocks as float16. */
static void widen_to_halves(uint32_t number, const unsigned char *blocks, int64_t n, uint16_t *to) {
  const kr_gguf_type *type = kr_gguf_type_find(number);
  float values[KR_GGUF_MOST_WEIGHTS];
  for (int64_t i = 0; i < n; i++) {
    kr_gguf_widen(number, blocks + (uint64_t)i * type->bytes, values);
    for (uint32_t k = 0; k < type->weights; k++) to[(uint64_t)i * type->weights + k] = kr_float_to_f16(values[k]);
  }
}

typedef struct widening {
  const unsigned char *blocks;
  const kr_gguf_type *type;
  uint16_t *halves;
} widening;

static void widen_blocks(void *user, int64_t begin, int64_t end, int worker) {
  const widening *w = user;
  (void)worker;
  widen_to_halves(w->type->type, w->blocks + (uint64_t)begin * w->type->bytes, end - begin,
                  w->halves + (uint64_t)begin * w->type->weights);
}

static int32_t add_halves(const maker *m, const kr_gguf_tensor *t, const kr_weight *as) {
  enum { GRAIN = 1 << 12 }; /* blocks */
  kr_weight item = *as;
  uint16_t *halves;
  const kr_gguf_type *type = kr_gguf_type_find(t->type);
  item.dtype = KRAIT_F16;
  KR_TRY(kr_shape_bytes(item.n_dims, item.shape, item.dtype, &item.bytes));
  if (m->to->is_in_parts) {
    KR_TRY(kr_weights_add(m->to, &item));
    return kr_weights_add_blocks(m->to, &(kr_weight_blocks){m->to->n_items - 1, t->type, type->weights, type->bytes,
                                                            widen_to_halves});
  }
  KR_TRY(reserve_tensor(m, t, item.bytes, &halves));
  if (!m->to->is_header_only)
    kr_pool_run(m->pool, (int64_t)(item.bytes / 2 / type->weights), GRAIN, widen_blocks,
                &(widening){t->data, type, halves});
  item.data = halves;
  return kr_weights_add(m->to, &item);
}

static int32_t add_q8(const maker *m, const kr_gguf_tensor *t, const char *name) {
  const uint64_t blocks = (uint64_t)(t->shape[0] * (t->shape[1] / 32));
  char own[224];
  int8_t *words;
  uint16_t *scales;
  const kr_gguf_type *type = kr_gguf_type_find(t->type);
  KR_TRY(reserve_tensor(m, t, blocks * 32, &words));
  KR_TRY(reserve_tensor(m, t, blocks * 2, &scales));
  for (uint64_t i = 0; i < blocks && !m->to->is_header_only; i++)
    scales[i] = kr_gguf_as_q8(t->type, t->data + i * type->bytes, words + 32 * i);
  snprintf(own, sizeof own, "%.200s.q8_0", name);
  KR_TRY(kr_weights_add(m->to, &(kr_weight){own, KRAIT_I32, 2, {t->shape[0], t->shape[1] / 4}, words, blocks * 32}));
  snprintf(own, sizeof own, "%.200s.q8_0.scales", name);
  return kr_weights_add(m->to, &(kr_weight){own, KRAIT_F16, 2, {t->shape[0], t->shape[1] / 32}, scales, blocks * 2});
}

static int32_t add_q4k(const maker *m, const kr_gguf_tensor *t, const char *name) {
  const uint64_t blocks = (uint64_t)(t->shape[0] * (t->shape[1] / 256));
  char own[224];
  snprintf(own, sizeof own, "%.200s.q4_k", name);
  return kr_weights_add(m->to,
                        &(kr_weight){own, KRAIT_I32, 2, {t->shape[0], t->shape[1] / 256 * 36}, t->data, blocks * 144});
}

/* ln -A, as in the original files. */
static int32_t add_log(const maker *m, const kr_gguf_tensor *t, const kr_weight *as) {
  kr_weight item = *as;
  float *values;
  FORMAT_CHECK(t->type == KR_GGUF_F32, "%s: tensor '%s' is not of type F32", m->g->label, t->name);
  KR_TRY(reserve_tensor(m, t, item.bytes, &values));
  for (uint64_t i = 0; i < item.bytes / 4 && !m->to->is_header_only; i++) {
    float a;
    memcpy(&a, t->data + 4 * i, sizeof a);
    values[i] = (float)log(-(double)a);
  }
  item.data = values;
  return kr_weights_add(m->to, &item);
}

static int32_t add_named(const maker *m, const kr_gguf_tensor *t, const char *name, int how) {
  const int as = kr_gguf_type_find(t->type)->as, is_block = as != KR_GGUF_PLAIN;
  kr_weight item = {.name = name,
                    .dtype = t->type == KR_GGUF_F32    ? KRAIT_F32
                             : t->type == KR_GGUF_BF16 ? KRAIT_BF16
                                                       : KRAIT_F16,
                    .n_dims = t->n_dims,
                    .data = t->data};
  memcpy(item.shape, t->shape, sizeof t->shape);
  FORMAT_CHECK(!is_block || (t->n_dims == 2 && how == KR_GGUF_AS_IS),
               "%s: tensor '%s' is block-quantized, but not a matrix", m->g->label, t->name);
  if (how == KR_GGUF_TAPS && t->n_dims == 2) item.n_dims = 3, item.shape[2] = t->shape[1], item.shape[1] = 1;
  if (how == KR_GGUF_ROW && t->n_dims == 1) item.n_dims = 2, item.shape[1] = t->shape[0], item.shape[0] = 1;
  if (how == KR_GGUF_FLAT || how == KR_GGUF_FLAT_DECAY) {
    item.n_dims = 1;
    for (int i = 1; i < t->n_dims; i++) item.shape[0] *= t->shape[i];
  }
  KR_TRY(kr_shape_bytes(item.n_dims, item.shape, item.dtype, &item.bytes));
  if (how == KR_GGUF_DECAY || how == KR_GGUF_FLAT_DECAY) return add_log(m, t, &item);
  if (!is_block) return kr_weights_add(m->to, &item);
  const int is_embedding = strcmp(t->name, embedding) == 0;
  if (is_embedding || as == KR_GGUF_AS_HALF) KR_TRY(add_halves(m, t, &item));
  if ((is_embedding && !m->is_tied) || as == KR_GGUF_AS_HALF) return KRAIT_OK;
  const char *own =
      is_embedding ? "lm_head.weight" : name; /* tied: looked up in float16, multiplied in its stored form */
  return as == KR_GGUF_AS_Q8 ? add_q8(m, t, own) : add_q4k(m, t, own);
}

/* One tensor of all experts' matrices as one for each. */
static int32_t add_experts(const maker *m, const kr_gguf_tensor *t, const char *pattern) {
  const kr_gguf_type *type = kr_gguf_type_find(t->type);
  const char *at = strchr(pattern, '#');
  char name[208];
  FORMAT_CHECK(t->n_dims == 3, "%s: tensor '%s' has %d dimensions, not 3", m->g->label, t->name, t->n_dims);
  const int64_t each = t->shape[1] * t->shape[2] / type->weights * type->bytes;
  for (int64_t e = 0; e < t->shape[0]; e++) {
    kr_gguf_tensor one = *t;
    one.n_dims = 2, one.shape[0] = t->shape[1], one.shape[1] = t->shape[2], one.shape[2] = 0;
    one.data = t->data + e * each;
    snprintf(name, sizeof name, "%.*s%lld%s", (int)(at - pattern), pattern, (long long)e, at + 1);
    KR_TRY(add_named(m, &one, name, KR_GGUF_AS_IS));
  }
  return KRAIT_OK;
}

static int32_t add_gguf_tensor(const maker *m, const kr_gguf_tensor *t) {
  char name[200];
  const int how = kr_gguf_name(m->arch, t->name, name, sizeof name);
  if (strcmp(t->name, "rope_freqs.weight") == 0) return KRAIT_OK; /* in the configuration */
  return how == KR_GGUF_EXPERTS ? add_experts(m, t, name) : add_named(m, t, name, how);
}

/* ---- other models: names as they are ---- */

/* The shape before the tensor was made of whole blocks, if there is a note of it. */
static int32_t take_noted_shape(const maker *m, const kr_gguf_tensor *t, kr_weight *item) {
  char key[256];
  int64_t n_noted = 1, n = 1;
  snprintf(key, sizeof key, "comfy.gguf.orig_shape.%s", t->name);
  const kr_gguf_value *noted = kr_gguf_find(m->g, key);
  for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
  if (!noted) return KRAIT_OK;
  int is_good = noted->count >= 1 && noted->count <= KR_WEIGHT_MAX_DIMS;
  for (uint64_t i = 0; is_good && i < noted->count; i++) {
    is_good = kr_gguf_whole_at(noted, i, &item->shape[i]) && item->shape[i] >= 1 && item->shape[i] <= n / n_noted;
    if (is_good) n_noted *= item->shape[i];
  }
  FORMAT_CHECK(is_good && n_noted == n, "%s: %s is no shape of the tensor's %lld values", m->g->label, key,
               (long long)n);
  item->n_dims = (int32_t)noted->count;
  return KRAIT_OK;
}

static int32_t add_as_named(const maker *m, const kr_gguf_tensor *t) {
  static const char prefix[] = "model.diffusion_model.";
  const size_t n_prefix = strlen(prefix);
  const int is_block = kr_gguf_type_find(t->type)->as != KR_GGUF_PLAIN;
  kr_weight item = {.name = strncmp(t->name, prefix, n_prefix) == 0 ? t->name + n_prefix : t->name,
                    .dtype = t->type == KR_GGUF_F32    ? KRAIT_F32
                             : t->type == KR_GGUF_BF16 ? KRAIT_BF16
                                                       : KRAIT_F16,
                    .n_dims = t->n_dims,
                    .data = t->data};
  memcpy(item.shape, t->shape, sizeof t->shape);
  KR_TRY(take_noted_shape(m, t, &item));
  KR_TRY(kr_shape_bytes(item.n_dims, item.shape, item.dtype, &item.bytes));
  return is_block ? add_halves(m, t, &item) : kr_weights_add(m->to, &item);
}

static int32_t add_text(const kr_gguf *g, const char *key, kr_weights *to) {
  const kr_gguf_value *value = kr_gguf_find(g, key);
  uint64_t at = 0;
  size_t n = 0;
  const char *text = value && value->count == 1 ? kr_gguf_text(value, &at, &n) : NULL;
  const char *copy = text ? kr_arena_copy(to->owned, text, n) : NULL;
  return copy ? kr_weights_add_metadata(to, key, copy) : KRAIT_OK;
}

static int32_t read_as_named(const kr_gguf *g, kr_pool *pool, kr_weights *to) {
  const maker m = {.g = g, .to = to, .pool = pool};
  for (size_t i = 0; i < g->tensors.n; i++) KR_TRY(add_as_named(&m, KR_AT(g->tensors, kr_gguf_tensor, i)));
  KR_TRY(add_text(g, "model", to)); /* krait's own configuration, if it has one */
  return add_text(g, "config", to);
}

/* The conversions of block types, as metadata. */
static int32_t tell_types(const kr_gguf *g, kr_weights *to) {
  static const char *const became[] = {[KR_GGUF_AS_Q8] = "q8_0, of the same values",
                                       [KR_GGUF_AS_Q4K] = "q4_k, as they are",
                                       [KR_GGUF_AS_HALF] = "float16"};
  for (int i = 0; i < KR_GGUF_N_TYPES; i++) {
    const kr_gguf_type *type = &kr_gguf_types[i];
    char key[32], value[64];
    size_t n = 0;
    for (size_t k = 0; k < g->tensors.n; k++) n += KR_AT(g->tensors, kr_gguf_tensor, k)->type == type->type;
    if (!n || type->as == KR_GGUF_PLAIN) continue;
    snprintf(key, sizeof key, "gguf.%s", type->name);
    snprintf(value, sizeof value, "%zu tensor%s read as %s", n, n == 1 ? "" : "s", became[type->as]);
    KR_TRY(kr_weights_add_metadata(to, key, value));
  }
  return KRAIT_OK;
}

static int32_t read_gguf_model_tensors(const kr_gguf *g, kr_pool *pool, kr_weights *to) {
  maker m = {.g = g, .to = to, .pool = pool, .is_tied = !kr_gguf_has_tensor(g, "output.weight")};
  int64_t n_files = 1;
  KR_TRY(kr_gguf_find_arch(g, &m.arch));
  kr_gguf_whole(kr_gguf_find(g, "split.count"), &n_files);
  KR_CHECK(n_files <= 1, KRAIT_ERR_UNSUPPORTED,
           "%s: this is one of the %lld files of a model; join them first (llama-gguf-split --merge)", g->label,
           (long long)n_files);
  for (size_t i = 0; i < g->tensors.n; i++) KR_TRY(add_gguf_tensor(&m, KR_AT(g->tensors, kr_gguf_tensor, i)));
  KR_TRY(tell_types(g, to));
  return kr_weights_add_metadata(to, "general.architecture", m.arch->name);
}

enum { BYTES_FOR_THREADS = 64 << 20 };

int32_t kr_gguf_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights) {
  kr_gguf g;
  KR_TRY(kr_gguf_open(bytes, n_bytes, label, &g));
  const int is_language_model = g.tensors.n == 0 || kr_gguf_has_tensor(&g, embedding);
  if (weights->is_in_parts && (is_language_model || g.data > KR_MAPFILE_GGUF_HEAD)) {
    kr_gguf_close(&g);
    return kr_fail(KRAIT_ERR_UNSUPPORTED, "%s: a file that must be read whole", label);
  }
  kr_pool *pool = n_bytes >= BYTES_FOR_THREADS && !weights->is_header_only ? kr_pool_open(kr_usable_cores()) : NULL;
  const int32_t status = (is_language_model ? read_gguf_model_tensors : read_as_named)(&g, pool, weights);
  kr_pool_close(&pool);
  kr_gguf_close(&g);
  return status;
}
