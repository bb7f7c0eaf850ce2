/* gguf.c: reads the container, versions 2 and 3, little-endian: a header, values, tensor names and offsets, and their
 * data from an aligned byte on. */
#include "gguf.h"

#include <string.h>

#include "half.h"
#include "status.h"

enum { MAX_VALUES = 1 << 16, MAX_TENSORS = 1 << 16, MAX_NAME_BYTES = 1 << 12, MAX_DIMS = 4, USUAL_ALIGNMENT = 32 };
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64, N_TYPES };
static const uint8_t bytes_of_type[N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

#define FORMAT_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_FILE_FORMAT, __VA_ARGS__)
#define WHOLE(condition)                                                                                             \
  KR_CHECK(condition, KRAIT_ERR_FILE_READ, "%s: its header ends at byte %zu; the file is truncated or inconsistent", \
           c->label, c->n)

typedef struct cursor {
  const char *label;
  const unsigned char *bytes;
  size_t n, at;
} cursor;

static uint64_t number_at(const unsigned char *at, int n) {
  uint64_t v = 0;
  for (int i = 0; i < n; i++) v |= (uint64_t)at[i] << (8 * i);
  return v;
}

static int32_t take_gguf_number(cursor *c, int n, uint64_t *v) {
  WHOLE(c->n - c->at >= (size_t)n);
  *v = number_at(c->bytes + c->at, n);
  c->at += (size_t)n;
  return KRAIT_OK;
}

static int32_t take_gguf_text(cursor *c, const char **text, uint64_t *n) {
  KR_TRY(take_gguf_number(c, 8, n));
  WHOLE(*n <= c->n - c->at);
  *text = (const char *)c->bytes + c->at;
  c->at += (size_t)*n;
  return KRAIT_OK;
}

/* ---- values ---- */

static int32_t skip_texts(cursor *c, uint64_t count) {
  const char *text;
  uint64_t n;
  for (uint64_t i = 0; i < count; i++) KR_TRY(take_gguf_text(c, &text, &n));
  return KRAIT_OK;
}

static int32_t take_value(cursor *c, kr_gguf_value *v) {
  uint64_t n, type;
  KR_TRY(take_gguf_text(c, &v->key, &n));
  FORMAT_CHECK(n <= MAX_NAME_BYTES, "%s: a value's name of %llu bytes", c->label, (unsigned long long)n);
  v->n_key = (size_t)n;
  KR_TRY(take_gguf_number(c, 4, &type));
  v->type = v->item_type = (uint32_t)type, v->count = 1;
  if (type == ARRAY) {
    KR_TRY(take_gguf_number(c, 4, &type));
    KR_TRY(take_gguf_number(c, 8, &v->count));
    v->item_type = (uint32_t)type;
  }
  FORMAT_CHECK(type < N_TYPES && type != ARRAY, "%s: value '%.*s' has the unknown type %llu", c->label, (int)v->n_key,
               v->key, (unsigned long long)type);
  v->at = c->bytes + c->at;
  if (type == TEXT) return skip_texts(c, v->count);
  WHOLE(v->count <= (c->n - c->at) / bytes_of_type[type]);
  c->at += (size_t)v->count * bytes_of_type[type];
  return KRAIT_OK;
}

const kr_gguf_value *kr_gguf_find(const kr_gguf *g, const char *key) {
  const size_t n = strlen(key);
  for (size_t i = 0; i < g->values.n; i++) {
    const kr_gguf_value *v = KR_AT(g->values, kr_gguf_value, i);
    if (v->n_key == n && memcmp(v->key, key, n) == 0) return v;
  }
  return NULL;
}

int kr_gguf_whole(const kr_gguf_value *v, int64_t *number) {
  if (!v || v->type == ARRAY || v->type == TEXT || v->type == F32 || v->type == F64) return 0;
  const int n = bytes_of_type[v->type];
  const uint64_t bits = number_at(v->at, n);
  const int has_sign = v->type == I8 || v->type == I16 || v->type == I32 || v->type == I64;
  if (!has_sign && bits > INT64_MAX) return 0;
  *number = has_sign && n < 8 && bits >> (8 * n - 1) ? (int64_t)(bits | ~(uint64_t)0 << (8 * n)) : (int64_t)bits;
  return 1;
}

int kr_gguf_whole_at(const kr_gguf_value *v, uint64_t i, int64_t *number) {
  if (!v || v->type != ARRAY || v->item_type == TEXT || v->item_type == ARRAY || i >= v->count) return 0;
  const kr_gguf_value item = {.type = v->item_type, .at = v->at + i * (uint64_t)bytes_of_type[v->item_type]};
  return kr_gguf_whole(&item, number);
}

int kr_gguf_most(const kr_gguf_value *v, int64_t *number) {
  int64_t one;
  int found = 0;
  if (!v || v->type != ARRAY) return kr_gguf_whole(v, number);
  for (uint64_t i = 0; i < v->count; i++) {
    if (!kr_gguf_whole_at(v, i, &one)) return 0;
    if (!found || one > *number) *number = one;
    found = 1;
  }
  return found;
}

int kr_gguf_real(const kr_gguf_value *v, double *number) {
  if (!v || (v->type != F32 && v->type != F64)) return 0;
  const uint64_t bits = number_at(v->at, bytes_of_type[v->type]);
  if (v->type == F32) *number = kr_bits_float((uint32_t)bits);
  else memcpy(number, &bits, sizeof bits);
  return 1;
}

const char *kr_gguf_text(const kr_gguf_value *v, uint64_t *at, size_t *n) {
  if (!v || v->item_type != TEXT || !v->count) return NULL;
  *n = (size_t)number_at(v->at + *at, 8);
  const char *text = (const char *)v->at + *at + 8;
  *at += 8 + *n;
  return text;
}

/* ---- tensors ---- */

/* offset: relative to the first byte of data, which is not known yet. */
static int32_t take_tensor(cursor *c, kr_arena *arena, kr_gguf_tensor *t, uint64_t *offset) {
  const char *name;
  uint64_t n, n_dims, size, type;
  KR_TRY(take_gguf_text(c, &name, &n));
  FORMAT_CHECK(n >= 1 && n <= MAX_NAME_BYTES && !memchr(name, 0, (size_t)n),
               "%s: a tensor's name is empty, longer than %d bytes, or has a NUL in it", c->label, MAX_NAME_BYTES);
  t->name = kr_arena_copy(arena, name, (size_t)n);
  KR_TRY(take_gguf_number(c, 4, &n_dims));
  FORMAT_CHECK(n_dims >= 1 && n_dims <= MAX_DIMS, "%s: tensor '%s' has %llu dimensions", c->label, t->name,
               (unsigned long long)n_dims);
  t->n_dims = (int32_t)n_dims;
  for (int i = t->n_dims - 1; i >= 0; i--) {
    KR_TRY(take_gguf_number(c, 8, &size));
    FORMAT_CHECK(size >= 1 && size <= 1ull << 40, "%s: tensor '%s' has a size of %llu", c->label, t->name,
                 (unsigned long long)size);
    t->shape[i] = (int64_t)size;
  }
  KR_TRY(take_gguf_number(c, 4, &type));
  t->type = (uint32_t)type;
  return take_gguf_number(c, 8, offset);
}

static int32_t place_tensor(const cursor *c, size_t data, kr_gguf_tensor *t, uint64_t offset) {
  const kr_gguf_type *type = kr_gguf_type_find(t->type);
  uint64_t elements = 1;
  KR_CHECK(type, KRAIT_ERR_UNSUPPORTED,
           "%s: tensor '%s' has ggml type %u; supported are " KR_GGUF_TYPES " : download the model in one of these",
           c->label, t->name, t->type);
  FORMAT_CHECK(t->shape[t->n_dims - 1] % type->weights == 0,
               "%s: tensor '%s' has rows of %lld weights, not a multiple of the block size %u", c->label, t->name,
               (long long)t->shape[t->n_dims - 1], type->weights);
  for (int i = 0; i < t->n_dims; i++) {
    FORMAT_CHECK(elements <= (1ull << 50) / (uint64_t)t->shape[i], "%s: tensor '%s' has more than 2^50 weights",
                 c->label, t->name);
    elements *= (uint64_t)t->shape[i];
  }
  const uint64_t bytes = elements / type->weights * type->bytes;
  KR_CHECK(data <= c->n && offset <= c->n - data && bytes <= c->n - data - offset, KRAIT_ERR_FILE_READ,
           "%s: tensor '%s' extends past the file's %zu bytes; the file is truncated or inconsistent", c->label,
           t->name, c->n);
  t->data = c->bytes + data + offset;
  return KRAIT_OK;
}

/* ---- the whole ---- */

int kr_gguf_is(const unsigned char *bytes, size_t n_bytes) { return n_bytes >= 4 && memcmp(bytes, "GGUF", 4) == 0; }

static int32_t read_values(cursor *c, uint64_t n, kr_gguf *g) {
  FORMAT_CHECK(n <= MAX_VALUES, "%s: %llu values, more than %d", c->label, (unsigned long long)n, MAX_VALUES);
  for (uint64_t i = 0; i < n; i++) {
    kr_gguf_value v = {0};
    KR_TRY(take_value(c, &v));
    *(kr_gguf_value *)kr_list_push(g->arena, &g->values) = v;
  }
  return KRAIT_OK;
}

static int32_t read_gguf_tensors(cursor *c, uint64_t n, kr_gguf *g) {
  kr_list offsets = KR_LIST(uint64_t);
  int64_t alignment = USUAL_ALIGNMENT;
  FORMAT_CHECK(n <= MAX_TENSORS, "%s: %llu tensors, more than %d", c->label, (unsigned long long)n, MAX_TENSORS);
  for (uint64_t i = 0; i < n; i++) {
    kr_gguf_tensor t = {0};
    uint64_t offset;
    KR_TRY(take_tensor(c, g->arena, &t, &offset));
    *(kr_gguf_tensor *)kr_list_push(g->arena, &g->tensors) = t;
    *(uint64_t *)kr_list_push(g->arena, &offsets) = offset;
  }
  KR_CHECK(!kr_arena_failed(g->arena), KRAIT_ERR_NO_MEMORY, "%s: no memory for its list of tensors", c->label);
  kr_gguf_whole(kr_gguf_find(g, "general.alignment"), &alignment);
  FORMAT_CHECK(alignment >= 1 && alignment <= 1 << 16, "%s: general.alignment is %lld", c->label, (long long)alignment);
  const size_t data = g->data = (c->at + (size_t)alignment - 1) / (size_t)alignment * (size_t)alignment;
  for (uint64_t i = 0; i < n; i++)
    KR_TRY(place_tensor(c, data, KR_AT(g->tensors, kr_gguf_tensor, i), *KR_AT(offsets, uint64_t, i)));
  return KRAIT_OK;
}

static int32_t read_gguf_all(cursor *c, kr_gguf *g) {
  uint64_t version, n_tensors, n_values;
  KR_TRY(take_gguf_number(c, 4, &version));
  KR_TRY(take_gguf_number(c, 4, &version));
  FORMAT_CHECK(version == 2 || version == 3, "%s: GGUF version %llu; only 2 and 3, little-endian, are supported",
               c->label, (unsigned long long)version);
  KR_TRY(take_gguf_number(c, 8, &n_tensors));
  KR_TRY(take_gguf_number(c, 8, &n_values));
  KR_TRY(read_values(c, n_values, g));
  return read_gguf_tensors(c, n_tensors, g);
}

int32_t kr_gguf_open(const unsigned char *bytes, size_t n_bytes, const char *label, kr_gguf *g) {
  *g = (kr_gguf){
      .label = label, .arena = kr_arena_open(), .values = KR_LIST(kr_gguf_value), .tensors = KR_LIST(kr_gguf_tensor)};
  KR_CHECK(g->arena, KRAIT_ERR_NO_MEMORY, "%s: no memory for its header", label);
  const int32_t status = read_gguf_all(&(cursor){label, bytes, n_bytes, 0}, g);
  if (status < 0) kr_gguf_close(g);
  return status;
}

void kr_gguf_close(kr_gguf *g) {
  if (g->arena) kr_arena_close(&g->arena);
  g->arena = NULL;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_weights *weights = NULL;
  json_t *tree = NULL;
  if (kr_gguf_is(data, size)) kr_weights_open_memory(data, size, "fuzz", &weights);
  kr_weights_close(&weights);
  if (kr_gguf_config(data, size, "fuzz", &tree) >= 0) json_decref(tree);
  return 0;
}
#endif
