/* safetensors.c: reads and writes safetensors. The header is not trusted: lengths, shapes and byte ranges must agree
 * with each other and with the file, and the ranges must cover the data exactly once, as the format requires. */
#include "safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "json_text.h"
#include "outfile.h"
#include "status.h"
#include "weights_build.h"

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 16 << 20, MAX_TENSORS = 1 << 20 };

static const struct {
  const char *name;
  int32_t dtype;
} dtypes[] = {
    {"F32", KRAIT_F32},   {"F16", KRAIT_F16}, {"BF16", KRAIT_BF16}, {"F64", KRAIT_F64}, {"I32", KRAIT_I32},
    {"I64", KRAIT_I64},   {"C64", KRAIT_C64}, {"I16", KRAIT_I16},   {"I8", KRAIT_I8},   {"U8", KRAIT_U8},
    {"F8_E4M3", KRAIT_U8}, /* widened to float16 afterwards */
    {"BOOL", KRAIT_BOOL}, {"U16", KRAIT_U16}, {"U32", KRAIT_U32},   {"U64", KRAIT_U64},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

/* ---- reading ---------------------------------------------------------------------------------------------------- */

typedef struct kr_header {
  const char *label;
  const unsigned char *data; /* after the header */
  uint64_t data_bytes;
} kr_header;

static int32_t read_shape(const kr_header *header, const char *name, const json_t *shape, kr_weight *item) {
  size_t n = json_array_size(shape);
  KR_CHECK(json_is_array(shape), KRAIT_ERR_FILE_FORMAT, "%s: tensor '%s' has no list 'shape'", header->label, name);
  KR_CHECK(n <= KR_WEIGHT_MAX_DIMS, KRAIT_ERR_FILE_FORMAT, "%s: tensor '%s' has %zu dimensions, more than %d",
           header->label, name, n, KR_WEIGHT_MAX_DIMS);
  item->n_dims = (int32_t)n;
  for (size_t i = 0; i < n; i++) {
    const json_t *size = json_array_get(shape, i);
    KR_CHECK(json_is_integer(size) && json_integer_value(size) >= 0, KRAIT_ERR_FILE_FORMAT,
             "%s: tensor '%s' has a size that is not a count", header->label, name);
    item->shape[i] = json_integer_value(size);
  }
  return KRAIT_OK;
}

static int32_t read_dtype(const kr_header *header, const char *name, const json_t *dtype, kr_weight *item) {
  const char *text = json_string_value(dtype);
  KR_CHECK(text, KRAIT_ERR_FILE_FORMAT, "%s: tensor '%s' has no 'dtype'", header->label, name);
  for (int i = 0; i < N_DTYPES; i++) {
    if (strcmp(dtypes[i].name, text) != 0) continue;
    item->dtype = dtypes[i].dtype;
    return KRAIT_OK;
  }
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: tensor '%s' has data type '%.16s', which krait does not support",
                 header->label, name, text);
}

static int32_t read_range(const kr_header *header, const json_t *offsets, kr_weight *item) {
  const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
  KR_CHECK(json_array_size(offsets) == 2 && json_is_integer(first) && json_is_integer(last), KRAIT_ERR_FILE_FORMAT,
           "%s: tensor '%s' has no pair 'data_offsets'", header->label, item->name);
  int64_t begin = json_integer_value(first), end = json_integer_value(last);
  KR_CHECK(begin >= 0 && begin <= end, KRAIT_ERR_FILE_FORMAT,
           "%s: tensor '%s' has the invalid byte range %" PRId64 " to %" PRId64, header->label, item->name, begin, end);
  KR_CHECK((uint64_t)end <= header->data_bytes, KRAIT_ERR_FILE_READ,
           "%s: tensor '%s' ends at byte %" PRId64 " of %" PRIu64 "; the file is truncated or inconsistent",
           header->label, item->name, end, header->data_bytes);
  KR_CHECK((uint64_t)(end - begin) == item->bytes, KRAIT_ERR_FILE_FORMAT,
           "%s: tensor '%s' has %" PRId64 " bytes, its shape and type need %" PRIu64, header->label, item->name,
           end - begin, item->bytes);
  item->data = header->data + begin;
  return KRAIT_OK;
}

static int32_t read_safetensors_tensor(const kr_header *header, const char *name, const json_t *entry,
                                       kr_weights *weights) {
  kr_weight item = {.name = name};
  KR_CHECK(json_is_object(entry), KRAIT_ERR_FILE_FORMAT, "%s: the entry of tensor '%s' is not an object", header->label,
           name);
  KR_TRY(read_dtype(header, name, json_object_get(entry, "dtype"), &item));
  KR_TRY(read_shape(header, name, json_object_get(entry, "shape"), &item));
  int32_t status = kr_shape_bytes(item.n_dims, item.shape, item.dtype, &item.bytes);
  if (status < 0) return kr_fail(status, "%s: tensor '%s' has %s", header->label, name, krait_error_detail());
  KR_TRY(read_range(header, json_object_get(entry, "data_offsets"), &item));
  return kr_weights_add(weights, &item);
}

static int32_t read_metadata(const kr_header *header, json_t *entry, kr_weights *weights) {
  const char *key;
  json_t *value;
  KR_CHECK(json_is_object(entry), KRAIT_ERR_FILE_FORMAT, "%s: __metadata__ is not an object", header->label);
  json_object_foreach(entry, key, value) {
    KR_CHECK(json_is_string(value), KRAIT_ERR_FILE_FORMAT, "%s: metadata '%s' is not a string", header->label, key);
    KR_TRY(kr_weights_add_metadata(weights, key, json_string_value(value)));
  }
  return KRAIT_OK;
}

static int compare_places(const void *a, const void *b) {
  const kr_weight *x = *(const kr_weight *const *)a, *y = *(const kr_weight *const *)b;
  if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The byte ranges, in order of place, must follow each other without overlap or gap. */
static int32_t check_cover(const kr_header *header, const kr_weights *weights, const kr_weight **places) {
  const unsigned char *reached = header->data;
  for (int64_t i = 0; i < weights->n_items; i++) places[i] = &weights->items[i];
  qsort(places, (size_t)weights->n_items, sizeof *places, compare_places);
  for (int64_t i = 0; i < weights->n_items; i++) {
    const unsigned char *begin = places[i]->data;
    KR_CHECK(begin >= reached, KRAIT_ERR_FILE_FORMAT, "%s: tensors '%s' and '%s' overlap", header->label,
             places[i - (i > 0)]->name, places[i]->name);
    KR_CHECK(begin == reached, KRAIT_ERR_FILE_FORMAT, "%s: %td bytes before tensor '%s' belong to no tensor",
             header->label, begin - reached, places[i]->name);
    reached = begin + places[i]->bytes;
  }
  uint64_t rest = header->data_bytes - (uint64_t)(reached - header->data);
  KR_CHECK(rest == 0, KRAIT_ERR_FILE_FORMAT, "%s: %" PRIu64 " bytes after the last tensor belong to no tensor",
           header->label, rest);
  return KRAIT_OK;
}

/* A byte of 4 bits of exponent and 3 of fraction, without infinities, exactly. */
static uint16_t widen_f8(unsigned char byte) {
  const uint16_t sign = (uint16_t)((byte & 0x80) << 8);
  int exponent = byte >> 3 & 15, fraction = byte & 7;
  if ((byte & 0x7f) == 0x7f) return sign | 0x7e00;
  if (exponent == 0 && fraction == 0) return sign;
  for (exponent += exponent == 0; (byte >> 3 & 15) == 0 && !(fraction & 8);) fraction *= 2, exponent--;
  return (uint16_t)(sign | (exponent + 8) << 10 | (fraction & 7) << 7);
}

static void widen_f8_bytes(uint32_t type, const unsigned char *from, int64_t n, uint16_t *to) {
  uint16_t of_byte[256];
  (void)type;
  for (int i = 0; i < 256; i++) of_byte[i] = widen_f8((unsigned char)i);
  for (int64_t i = 0; i < n; i++) to[i] = of_byte[from[i]];
}

static int32_t widen_f8_tensor(const kr_header *header, kr_weights *weights, kr_weight *item) {
  const unsigned char *from = item->data;
  item->dtype = KRAIT_F16, item->bytes *= 2;
  if (weights->is_in_parts)
    return kr_weights_add_blocks(weights, &(kr_weight_blocks){item - weights->items, 0, 1, 1, widen_f8_bytes});
  if (weights->is_header_only) return KRAIT_OK;
  uint16_t *to = kr_arena_try(weights->owned, (size_t)item->bytes + 1);
  KR_CHECK(to, KRAIT_ERR_NO_MEMORY, "%s: no memory to widen tensor '%s'", header->label, item->name);
  widen_f8_bytes(0, from, (int64_t)(item->bytes / 2), to);
  item->data = to;
  return KRAIT_OK;
}

/* Items are in the order of the header's entries. */
static int32_t widen_f8_entries(const kr_header *header, json_t *root, kr_weights *weights) {
  const char *name;
  json_t *entry;
  int64_t i = 0;
  json_object_foreach(root, name, entry) {
    if (strcmp(name, "__metadata__") == 0) continue;
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (dtype && strcmp(dtype, "F8_E4M3") == 0) KR_TRY(widen_f8_tensor(header, weights, &weights->items[i]));
    i++;
  }
  return KRAIT_OK;
}

static int32_t read_entries(const kr_header *header, json_t *root, kr_weights *weights) {
  const char *name;
  json_t *entry;
  KR_CHECK(json_object_size(root) <= MAX_TENSORS, KRAIT_ERR_FILE_FORMAT, "%s: more than %d tensors", header->label,
           MAX_TENSORS);
  json_object_foreach(root, name, entry) {
    if (strcmp(name, "__metadata__") == 0) KR_TRY(read_metadata(header, entry, weights));
    else KR_TRY(read_safetensors_tensor(header, name, entry, weights));
  }
  const kr_weight **places = kr_alloc_array((size_t)weights->n_items, sizeof *places);
  KR_CHECK(places, KRAIT_ERR_NO_MEMORY, "no memory for the list of tensors");
  int32_t status = check_cover(header, weights, places);
  kr_free(places);
  return status < 0 ? status : widen_f8_entries(header, root, weights);
}

/* What is often found in the place of weights, told by how it begins. */
static int32_t fail_as_other(const unsigned char *bytes, size_t n_bytes, const char *label) {
  static const struct {
    const char *begin, *what;
  } others[] = {{"<!", "a web page, not weights; download the file itself"},
                {"<html", "a web page, not weights; download the file itself"},
                {"{", "JSON text, not weights; give the weights file itself"}};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    const size_t n = strlen(others[i].begin);
    if (n_bytes >= n && memcmp(bytes, others[i].begin, n) == 0)
      return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is %s", label, others[i].what);
  }
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is neither safetensors nor a PyTorch or GGUF file", label);
}

int32_t kr_safetensors_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights) {
  KR_CHECK(n_bytes > LENGTH_BYTES, KRAIT_ERR_FILE_READ, "%s: %zu bytes are too few for a weights file", label, n_bytes);
  uint64_t header_bytes = 0;
  for (int i = LENGTH_BYTES - 1; i >= 0; i--) header_bytes = header_bytes << 8 | bytes[i];
  if (bytes[LENGTH_BYTES] != '{' || header_bytes < 2 || header_bytes > MAX_HEADER_BYTES)
    return fail_as_other(bytes, n_bytes, label);
  KR_CHECK(header_bytes <= n_bytes - LENGTH_BYTES, KRAIT_ERR_FILE_READ,
           "%s: the header has %" PRIu64 " bytes, the file only %zu; it is truncated", label, header_bytes, n_bytes);
  json_error_t error;
  json_t *root = json_loadb((const char *)bytes + LENGTH_BYTES, (size_t)header_bytes, JSON_REJECT_DUPLICATES, &error);
  KR_CHECK(root, KRAIT_ERR_FILE_FORMAT, "%s: the header is not JSON: %s (byte %d)", label, error.text, error.position);
  const kr_header header = {label, bytes + LENGTH_BYTES + header_bytes, n_bytes - LENGTH_BYTES - header_bytes};
  int32_t status = json_is_object(root) ? read_entries(&header, root, weights)
                                        : kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: the header is not an object", label);
  json_decref(root);
  return status;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static const char *dtype_name(int32_t dtype) {
  for (int i = 0; i < N_DTYPES; i++)
    if (dtypes[i].dtype == dtype) return dtypes[i].name;
  return NULL;
}

/* NULL when out of memory. */
static json_t *entry_of(const kr_weight *item, uint64_t begin) {
  json_t *shape = json_array();
  int failed = 0;
  for (int32_t i = 0; i < item->n_dims; i++) failed |= json_array_append_new(shape, json_integer(item->shape[i]));
  if (failed) {
    json_decref(shape);
    return NULL;
  }
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(item->dtype), "shape", shape, "data_offsets",
                   (json_int_t)begin, (json_int_t)(begin + item->bytes));
}

/* Wide elements first, otherwise in the given order, so that every tensor is aligned. Calls put for each; returns the
 * total. */
typedef int (*kr_put_tensor_fn)(void *user, const kr_weight *item, uint64_t begin);
static int place_all(const kr_weight *items, int64_t n_items, kr_put_tensor_fn put, void *user) {
  uint64_t begin = 0;
  for (size_t width = 8; width; width /= 2)
    for (int64_t i = 0; i < n_items; i++) {
      if (krait_dtype_bytes(items[i].dtype) != width) continue;
      if (put(user, &items[i], begin) != 0) return -1;
      begin += items[i].bytes;
    }
  return 0;
}

static int put_safetensors_entry(void *user, const kr_weight *item, uint64_t begin) {
  return json_object_set_new(user, item->name, entry_of(item, begin));
}

static int put_data(void *user, const kr_weight *item, uint64_t begin) {
  (void)begin;
  return fwrite(item->data, 1, (size_t)item->bytes, user) == item->bytes ? 0 : -1;
}

/* The header's text. NULL when out of memory or a name is not UTF-8. */
static char *header_text(const kr_weight *items, int64_t n_items, const kr_metadata *metadata, int64_t n_metadata) {
  json_t *root = json_object(), *entry = json_object();
  int failed = 0;
  for (int64_t i = 0; i < n_metadata; i++)
    failed |= json_object_set_new(entry, metadata[i].key, json_string(metadata[i].value));
  if (n_metadata) failed |= json_object_set(root, "__metadata__", entry);
  failed |= place_all(items, n_items, put_safetensors_entry, root);
  char *text = failed ? NULL : kr_json_dump(root, JSON_COMPACT);
  json_decref(entry);
  json_decref(root);
  return text;
}

static int write_all(FILE *file, const char *header, const kr_weight *items, int64_t n_items) {
  size_t length = strlen(header), padding = (LENGTH_BYTES - length % LENGTH_BYTES) % LENGTH_BYTES;
  unsigned char prefix[LENGTH_BYTES];
  for (int i = 0; i < LENGTH_BYTES; i++) prefix[i] = (unsigned char)((uint64_t)(length + padding) >> 8 * i);
  int failed = fwrite(prefix, 1, LENGTH_BYTES, file) != LENGTH_BYTES || fwrite(header, 1, length, file) != length ||
               fwrite("        ", 1, padding, file) != padding || place_all(items, n_items, put_data, file) != 0;
  return failed || fflush(file) != 0;
}

static int32_t write_safetensors_file(const char *path, const char *header, const kr_weight *items, int64_t n_items) {
  kr_outfile out;
  KR_TRY(kr_outfile_begin(&out, path));
  errno = 0;
  FILE *file = fopen(out.temp_path, "wb");
  int failed = !file || write_all(file, header, items, n_items);
  int os_errno = errno;
  if (file && fclose(file) != 0 && !failed) {
    failed = 1;
    os_errno = errno;
  }
  if (!failed) return kr_outfile_commit(&out);
  kr_outfile_abandon(&out);
  return kr_fail_os(KRAIT_ERR_FILE_WRITE, os_errno, "cannot write %s", path);
}

int32_t kr_safetensors_write(const char *path, const kr_weight *items, int64_t n_items, const kr_metadata *metadata,
                             int64_t n_metadata) {
  for (int64_t i = 0; i < n_items; i++)
    KR_CHECK(dtype_name(items[i].dtype), KRAIT_ERR_DTYPE, "tensor '%s' is %s, which safetensors does not hold",
             items[i].name, krait_dtype_name(items[i].dtype));
  char *header = header_text(items, n_items, metadata, n_metadata);
  KR_CHECK(header, KRAIT_ERR_NO_MEMORY, "%s: no memory for the header, or a name is not UTF-8", path);
  int32_t status = write_safetensors_file(path, header, items, n_items);
  kr_free(header);
  return status;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_weights *weights;
  kr_weights_open_memory(data, size, "fuzz", &weights);
  kr_weights_close(&weights);
  return 0;
}
#endif
