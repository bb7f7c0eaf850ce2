/* weights.c: detects the format of a weights file, and stores its tensors and metadata. */
#include "weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"
#include "gguf.h"
#include "safetensors.h"
#include "status.h"
#include "torch_file.h"
#include "view.h"
#include "weights_build.h"

enum { MAX_NAME_BYTES = 4096 };

/* ---- building --------------------------------------------------------------------------------------------------- */

int32_t kr_shape_bytes(int32_t n_dims, const int64_t *shape, int32_t dtype, uint64_t *bytes) {
  uint64_t product = krait_dtype_bytes(dtype);
  int is_empty = 0;
  for (int32_t i = 0; i < n_dims; i++) {
    KR_CHECK(shape[i] >= 0, KRAIT_ERR_FILE_FORMAT, "a negative size");
    if (shape[i] == 0) is_empty = 1;
    else
      KR_CHECK(product <= (uint64_t)INT64_MAX / (uint64_t)shape[i], KRAIT_ERR_FILE_FORMAT,
               "a shape of more than 2^63 bytes");
    if (shape[i]) product *= (uint64_t)shape[i];
  }
  *bytes = is_empty ? 0 : product;
  return KRAIT_OK;
}

/* Length in bytes of the well-formed UTF-8 character at s (no surrogates, no overlong forms); 0 if there is none. */
static int utf8_length(const unsigned char *s) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  int n = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
  uint32_t code = n == 1 ? *s : *s & (0x7fu >> n);
  for (int i = 1; i < n; i++) {
    if (s[i] >> 6 != 2) return 0;
    code = code << 6 | (s[i] & 63u);
  }
  int is_good = n && code >= least[n] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return is_good ? n : 0;
}

static int is_utf8(const char *text) {
  const unsigned char *s = (const unsigned char *)text;
  for (int n; *s; s += n)
    if ((n = utf8_length(s)) == 0) return 0;
  return 1;
}

/* Makes room for one more element in an array that grows by doubling. */
static void *grow(void *array, int64_t n, int64_t *capacity, size_t element_bytes) {
  if (n < *capacity) return array;
  int64_t wanted = *capacity ? 2 * *capacity : 64;
  void *grown = kr_realloc(array, (size_t)n * element_bytes, (size_t)wanted * element_bytes);
  if (grown) *capacity = wanted;
  return grown;
}

int32_t kr_weights_add(kr_weights *weights, const kr_weight *item) {
  size_t length = strlen(item->name);
  KR_CHECK(length <= MAX_NAME_BYTES, KRAIT_ERR_FILE_FORMAT, "a tensor name of %zu bytes", length);
  KR_CHECK(is_utf8(item->name), KRAIT_ERR_FILE_FORMAT, "a tensor name that is not UTF-8");
  const char *name = kr_arena_copy(weights->owned, item->name, length);
  kr_weight *items = !kr_arena_failed(weights->owned)
                         ? grow(weights->items, weights->n_items, &weights->capacity, sizeof *items)
                         : NULL;
  KR_CHECK(items, KRAIT_ERR_NO_MEMORY, "no memory for the list of tensors");
  weights->items = items;
  items[weights->n_items] = *item;
  items[weights->n_items++].name = name;
  return KRAIT_OK;
}

int32_t kr_weights_add_metadata(kr_weights *weights, const char *key, const char *value) {
  kr_metadata pair = {kr_arena_copy(weights->owned, key, strlen(key)),
                      kr_arena_copy(weights->owned, value, strlen(value))};
  kr_metadata *list = !kr_arena_failed(weights->owned)
                          ? grow(weights->metadata, weights->n_metadata, &weights->metadata_capacity, sizeof *list)
                          : NULL;
  KR_CHECK(list, KRAIT_ERR_NO_MEMORY, "no memory for metadata");
  weights->metadata = list;
  list[weights->n_metadata++] = pair;
  return KRAIT_OK;
}

int32_t kr_weights_add_blocks(kr_weights *weights, const kr_weight_blocks *blocks) {
  *(kr_weight_blocks *)kr_list_push(weights->owned, &weights->blocks) = *blocks;
  KR_CHECK(!kr_arena_failed(weights->owned), KRAIT_ERR_NO_MEMORY, "no memory for the list of tensors");
  return KRAIT_OK;
}

static int compare_names(const void *a, const void *b) {
  return strcmp((*(const kr_weight *const *)a)->name, (*(const kr_weight *const *)b)->name);
}

static int32_t align_data(kr_weights *weights, kr_weight *item) {
  size_t alignment = krait_dtype_bytes(item->dtype);
  if (item->bytes == 0 || (uintptr_t)item->data % alignment == 0) return KRAIT_OK;
  void *copy = kr_arena_try(weights->owned, (size_t)item->bytes);
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", item->name);
  item->data = memcpy(copy, item->data, (size_t)item->bytes);
  return KRAIT_OK;
}

int32_t kr_weights_finish(kr_weights *weights, const char *label) {
  weights->by_name = kr_alloc_array((size_t)weights->n_items, sizeof *weights->by_name);
  KR_CHECK(weights->by_name, KRAIT_ERR_NO_MEMORY, "no memory for the list of tensors");
  for (int64_t i = 0; i < weights->n_items; i++) {
    if (!weights->is_header_only) KR_TRY(align_data(weights, &weights->items[i]));
    weights->by_name[i] = &weights->items[i];
  }
  qsort(weights->by_name, (size_t)weights->n_items, sizeof *weights->by_name, compare_names);
  for (int64_t i = 1; i < weights->n_items; i++)
    KR_CHECK(strcmp(weights->by_name[i - 1]->name, weights->by_name[i]->name) != 0, KRAIT_ERR_FILE_FORMAT,
             "%s: tensor '%s' appears twice", label, weights->by_name[i]->name);
  return KRAIT_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static int32_t read_any(kr_weights *weights, const unsigned char *bytes, size_t n_bytes, const char *label) {
  if (kr_torch_file_is(bytes, n_bytes)) {
    weights->format = "pytorch";
    KR_TRY(kr_torch_file_read(bytes, n_bytes, label, weights));
  } else if (kr_gguf_is(bytes, n_bytes)) {
    weights->format = "gguf";
    KR_TRY(kr_gguf_read(bytes, n_bytes, label, weights));
  } else {
    weights->format = "safetensors";
    KR_TRY(kr_safetensors_read(bytes, n_bytes, label, weights));
  }
  return kr_weights_finish(weights, label);
}

enum { READ_ALL, READ_HEADER, READ_PARTS };

static int32_t read_weights_file(kr_weights *weights, const char *path, int how) {
  if (how == READ_PARTS) {
    KR_TRY(kr_mapfile_open_parts(path, &weights->file, &weights->fd));
    weights->is_in_parts = 1;
    return KRAIT_OK;
  }
  return (how == READ_HEADER ? kr_mapfile_open_header : kr_mapfile_open)(path, &weights->file);
}

static int32_t open_weights_file(const char *path, int how, const void *bytes, size_t n_bytes, const char *label,
                                 kr_weights **handle) {
  *handle = NULL;
  kr_weights *weights = kr_zalloc(sizeof *weights);
  KR_CHECK(weights, KRAIT_ERR_NO_MEMORY, "no memory for weights");
  weights->owned = kr_arena_open(), weights->blocks = KR_LIST(kr_weight_blocks);
  int32_t status = weights->owned ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for weights");
  if (status == KRAIT_OK && path) status = read_weights_file(weights, path, how);
  weights->is_header_only = how != READ_ALL;
  if (status == KRAIT_OK)
    status = path ? read_any(weights, weights->file.bytes, weights->file.n_bytes, label)
                  : read_any(weights, bytes, n_bytes, label);
  if (status < 0) kr_weights_close(&weights);
  *handle = weights;
  return status;
}

int32_t kr_weights_open(const char *path, kr_weights **weights) {
  return open_weights_file(path, READ_ALL, NULL, 0, path, weights);
}
int32_t kr_weights_open_header(const char *path, kr_weights **weights) {
  return open_weights_file(path, READ_HEADER, NULL, 0, path, weights);
}

/* What cannot be read so is read whole, which then says what is wrong with it. */
int32_t kr_weights_open_in_parts(const char *path, kr_weights **weights) {
  const char *dot = strrchr(path, '.');
  const int is_gguf = dot && strcmp(dot, ".gguf") == 0, is_safe = dot && strcmp(dot, ".safetensors") == 0;
  if (!is_gguf && !is_safe) return kr_weights_open(path, weights);
  const int32_t status = open_weights_file(path, READ_PARTS, NULL, 0, path, weights);
  if (status < 0) return kr_weights_open(path, weights);
  if (strcmp((*weights)->format, is_gguf ? "gguf" : "safetensors") == 0) return KRAIT_OK;
  kr_weights_close(weights);
  return kr_weights_open(path, weights);
}

int kr_weights_are_in_parts(const kr_weights *weights) { return weights->is_in_parts; }

static const kr_weight_blocks *blocks_of(const kr_weights *weights, const kr_weight *item) {
  for (size_t i = 0; i < weights->blocks.n; i++) {
    const kr_weight_blocks *b = KR_AT(weights->blocks, kr_weight_blocks, i);
    if (weights->items[b->item].name == item->name) return b;
  }
  return NULL;
}

typedef struct blocks_reading {
  int fd;
  const kr_weight_blocks *blocks;
  size_t from;
  int64_t n, piece; /* blocks */
  uint16_t *to;
  atomic_int error;
} blocks_reading;
enum { BLOCKS_BYTES = 32 << 10 }; /* of a piece, which stays in its thread's cache */

static void read_block_pieces(void *user, int64_t begin, int64_t end, int worker) {
  blocks_reading *r = user;
  const kr_weight_blocks *b = r->blocks;
  unsigned char bytes[BLOCKS_BYTES];
  (void)worker;
  for (int64_t i = begin; i < end && !r->error; i++) {
    const int64_t first = i * r->piece, n = r->n - first < r->piece ? r->n - first : r->piece;
    const int error =
        kr_mapfile_read_bytes(r->fd, r->from + (size_t)first * b->bytes, (size_t)n * b->bytes, bytes);
    if (error) r->error = error;
    else b->widen(b->type, bytes, n, r->to + first * b->weights);
  }
}

static int32_t read_blocks(const kr_weights *weights, const kr_weight *item, const kr_weight_blocks *blocks,
                           size_t from, kr_pool *pool, void *to) {
  enum { GRAIN = 4 };
  blocks_reading r = {
      .fd = weights->fd, .blocks = blocks, .from = from, .piece = BLOCKS_BYTES / blocks->bytes, .to = to};
  r.n = (int64_t)(item->bytes / sizeof(uint16_t) / blocks->weights);
  kr_pool_run_long(pool, (r.n + r.piece - 1) / r.piece, GRAIN, read_block_pieces, &r);
  return kr_mapfile_check_read(r.error);
}

int32_t kr_weights_read(const kr_weights *weights, const kr_weight *item, kr_pool *pool, void *to) {
  if (!kr_weights_are_in_parts(weights)) {
    memcpy(to, item->data, (size_t)item->bytes);
    return KRAIT_OK;
  }
  const size_t from = (size_t)((const unsigned char *)item->data - weights->file.bytes);
  const kr_weight_blocks *blocks = blocks_of(weights, item);
  return blocks ? read_blocks(weights, item, blocks, from, pool, to)
                : kr_mapfile_read_part(weights->fd, from, (size_t)item->bytes, pool, to);
}

int32_t kr_weights_open_memory(const void *bytes, size_t n_bytes, const char *label, kr_weights **weights) {
  return open_weights_file(NULL, READ_ALL, bytes, n_bytes, label, weights);
}

int32_t kr_weights_open_items(const kr_weight *items, int64_t n_items, kr_weights **handle) {
  kr_weights *weights = *handle = kr_zalloc(sizeof *weights);
  KR_CHECK(weights, KRAIT_ERR_NO_MEMORY, "no memory for weights");
  weights->format = "tensors", weights->owned = kr_arena_open();
  int32_t status = weights->owned ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for weights");
  for (int64_t i = 0; i < n_items && status >= 0; i++) status = kr_weights_add(weights, &items[i]);
  if (status >= 0) status = kr_weights_finish(weights, "the tensors");
  if (status < 0) kr_weights_close(handle);
  return status;
}

void kr_weights_close(kr_weights **handle) {
  kr_weights *weights = *handle;
  if (!weights) return;
  kr_arena_close(&weights->owned);
  kr_mapfile_close(&weights->file);
  if (weights->is_in_parts) close(weights->fd);
  kr_free(weights->items);
  kr_free(weights->by_name);
  kr_free(weights->metadata);
  kr_free(weights);
  *handle = NULL;
}

/* ---- asking ----------------------------------------------------------------------------------------------------- */

const char *kr_weights_format(const kr_weights *weights) { return weights->format; }
const unsigned char *kr_weights_file(const kr_weights *weights, size_t *n_bytes) {
  *n_bytes = weights->file.n_bytes;
  return weights->file.bytes;
}
int64_t kr_weights_count(const kr_weights *weights) { return weights->n_items; }
const kr_weight *kr_weights_at(const kr_weights *weights, int64_t i) { return &weights->items[i]; }
int64_t kr_weights_n_metadata(const kr_weights *weights) { return weights->n_metadata; }
const kr_metadata *kr_weights_metadata_at(const kr_weights *weights, int64_t i) { return &weights->metadata[i]; }

const kr_weight *kr_weights_find(const kr_weights *weights, const char *name) {
  const kr_weight wanted = {.name = name}, *key = &wanted;
  const kr_weight **found =
      bsearch(&key, weights->by_name, (size_t)weights->n_items, sizeof *weights->by_name, compare_names);
  return found ? *found : NULL;
}

const char *kr_weights_metadata(const kr_weights *weights, const char *key) {
  for (int64_t i = 0; i < weights->n_metadata; i++)
    if (strcmp(weights->metadata[i].key, key) == 0) return weights->metadata[i].value;
  return NULL;
}

int32_t kr_weights_widen(kr_weights *weights) {
  for (int64_t i = 0; i < weights->n_items; i++) {
    kr_weight *item = &weights->items[i];
    if (item->dtype == KRAIT_F32 || !kr_is_float_dtype(item->dtype)) continue;
    const kr_view view = {.data = (void *)item->data, .dtype = item->dtype};
    const uint64_t n = item->bytes / krait_dtype_bytes(item->dtype);
    float *wide = n <= SIZE_MAX / sizeof *wide ? kr_arena_try(weights->owned, (size_t)n * sizeof *wide) : NULL;
    KR_CHECK(wide, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s' in float32", item->name);
    for (uint64_t k = 0; k < n; k++) wide[k] = (float)kr_get(&view, (int64_t)k);
    item->data = wide;
    item->dtype = KRAIT_F32;
    item->bytes = n * sizeof *wide;
  }
  return KRAIT_OK;
}

int32_t kr_weights_check_finite(const kr_weights *weights) {
  for (int64_t i = 0; i < weights->n_items; i++) {
    const kr_weight *item = &weights->items[i];
    const float *values = item->data;
    const uint64_t n = item->dtype == KRAIT_F32 ? item->bytes / sizeof *values : 0;
    for (uint64_t k = 0; k < n; k++)
      KR_CHECK(isfinite(values[k]), KRAIT_ERR_WEIGHTS,
               "tensor '%s' has %s at element %" PRIu64 "; the file is damaged, or its training diverged", item->name,
               isnan(values[k]) ? "NaN" : "an infinity", k);
  }
  return KRAIT_OK;
}

int32_t kr_weights_take_f32(const kr_weights *weights, const char *name, int32_t n_dims, const int64_t *shape,
                            const float **data) {
  char wanted[192], found[192];
  const kr_weight *item = kr_weights_find(weights, name);
  kr_shape_format(n_dims, shape, wanted, sizeof wanted);
  KR_CHECK(item, KRAIT_ERR_WEIGHTS, "tensor '%s' of shape %s is missing", name, wanted);
  int is_same = item->n_dims == n_dims;
  for (int32_t i = 0; is_same && i < n_dims; i++) is_same = item->shape[i] == shape[i];
  KR_CHECK(is_same, KRAIT_ERR_WEIGHTS, "tensor '%s' has shape %s, the configuration requires %s", name,
           kr_shape_format(item->n_dims, item->shape, found, sizeof found), wanted);
  KR_CHECK(item->dtype == KRAIT_F32, KRAIT_ERR_WEIGHTS, "tensor '%s' is %s, not float32", name,
           krait_dtype_name(item->dtype));
  *data = item->data;
  return KRAIT_OK;
}
