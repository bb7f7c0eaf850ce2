/* torch_file.c: a zip of one pickle (NAME/data.pkl), one entry per storage (NAME/data/KEY) and NAME/byteorder. The
 * pickle is read as data (pickle.h); this file has the complete list of calls that are understood. torch.save stores
 * without compression, so nothing may expand: all data read from the zip are together at most as large as the file, and
 * so are all copies of strided tensors. */
#include "torch_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zip.h>

#include "alloc.h"
#include "pickle.h"
#include "status.h"
#include "weights_build.h"

enum { MAX_ENTRIES = 1 << 20, MAX_ENTRY_NAME = 512, MAX_NESTED = 4 };

typedef struct kr_storage {
  const unsigned char *bytes; /* NULL: not loaded yet */
  uint64_t n_bytes;
} kr_storage;

typedef struct kr_torch {
  const char *label;
  zip_t *zip;
  char prefix[MAX_ENTRY_NAME]; /* "archive", the folder of data.pkl */
  kr_storage *storages;        /* by zip index */
  uint64_t read_budget_bytes, copy_budget_bytes;
  kr_weights *weights;
} kr_torch;

/* ---- zip -------------------------------------------------------------------------------------------------------- */

int kr_torch_file_is(const unsigned char *bytes, size_t n_bytes) {
  /* A safetensors header of 640 bytes begins like a pickle; its ninth byte does not. */
  int is_pickle = n_bytes >= 9 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5 && bytes[8] != '{';
  return is_pickle || (n_bytes >= 4 && memcmp(bytes, "PK\3\4", 4) == 0);
}

static int32_t open_zip(kr_torch *torch, const unsigned char *bytes, size_t n_bytes) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t *source = zip_source_buffer_create(bytes, n_bytes, 0, &error);
  torch->zip = source ? zip_open_from_source(source, ZIP_RDONLY, &error) : NULL;
  if (!torch->zip) {
    kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: not a readable zip (%s); the file is truncated or damaged", torch->label,
            zip_error_strerror(&error));
    zip_source_free(source);
  }
  zip_error_fini(&error);
  return torch->zip ? KRAIT_OK : KRAIT_ERR_FILE_FORMAT;
}

/* The whole entry in memory of the weights (or of arena, where given). */
static int32_t read_entry(kr_torch *torch, zip_uint64_t index, kr_arena *arena, const unsigned char **bytes,
                          uint64_t *n_bytes) {
  zip_stat_t info;
  KR_CHECK(zip_stat_index(torch->zip, index, 0, &info) == 0 && info.valid & ZIP_STAT_SIZE && info.name,
           KRAIT_ERR_FILE_FORMAT, "%s: an entry of the zip is damaged", torch->label);
  KR_CHECK(info.comp_method == ZIP_CM_STORE && info.encryption_method == ZIP_EM_NONE, KRAIT_ERR_FILE_FORMAT,
           "%s: entry %s is compressed or encrypted, which torch.save does not do; save it again with torch.save",
           torch->label, info.name);
  KR_CHECK(info.size <= torch->read_budget_bytes, KRAIT_ERR_FILE_FORMAT,
           "%s: the entries of the zip have more bytes than the file (at %s)", torch->label, info.name);
  torch->read_budget_bytes -= info.size;
  unsigned char *copy = kr_arena_try(arena, (size_t)info.size + 1);
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "%s: no memory for entry %s", torch->label, info.name);
  zip_file_t *file = zip_fopen_index(torch->zip, index, 0);
  zip_int64_t got = file ? zip_fread(file, copy, info.size) : -1;
  int is_whole = got >= 0 && (zip_uint64_t)got == info.size;
  /* At the end libzip compares the checksum; reading one more byte makes sure that it got there. */
  if (is_whole) is_whole = zip_fread(file, copy + info.size, 1) == 0;
  if (file) zip_fclose(file);
#ifdef KR_FUZZ
  is_whole = 1; /* otherwise no mutation would get past the checksum */
#endif
  KR_CHECK(is_whole, KRAIT_ERR_FILE_READ, "%s: entry %s is truncated or its checksum is wrong; copy the file again",
           torch->label, info.name);
  *bytes = copy;
  *n_bytes = info.size;
  return KRAIT_OK;
}

/* Index of prefix/name, or -1. */
static zip_int64_t find_entry(const kr_torch *torch, const char *name) {
  char path[2 * MAX_ENTRY_NAME];
  snprintf(path, sizeof path, "%s/%s", torch->prefix, name);
  return zip_name_locate(torch->zip, path, 0);
}

static int32_t find_pickle(kr_torch *torch, zip_uint64_t *index) {
  const char tail[] = "/data.pkl";
  zip_int64_t n = zip_get_num_entries(torch->zip, 0);
  KR_CHECK(n <= MAX_ENTRIES, KRAIT_ERR_FILE_FORMAT, "%s: a zip of more than %d entries", torch->label, MAX_ENTRIES);
  for (zip_int64_t i = 0; i < n; i++) {
    const char *name = zip_get_name(torch->zip, (zip_uint64_t)i, 0);
    size_t length = name ? strlen(name) : 0, folder = length - (sizeof tail - 1);
    if (length < sizeof tail || length >= MAX_ENTRY_NAME || strcmp(name + folder, tail) != 0 ||
        memchr(name, '/', folder))
      continue;
    memcpy(torch->prefix, name, folder);
    torch->prefix[folder] = 0;
    *index = (zip_uint64_t)i;
    return KRAIT_OK;
  }
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: a zip without NAME/data.pkl; it was not written by torch.save",
                 torch->label);
}

static int32_t check_byte_order(kr_torch *torch, kr_arena *arena) {
  zip_int64_t index = find_entry(torch, "byteorder");
  const unsigned char *bytes;
  uint64_t n_bytes;
  if (index < 0) return KRAIT_OK; /* older than torch 2.1: written on little-endian machines */
  KR_TRY(read_entry(torch, (zip_uint64_t)index, arena, &bytes, &n_bytes));
  KR_CHECK(n_bytes == 6 && memcmp(bytes, "little", 6) == 0, KRAIT_ERR_FILE_FORMAT,
           "%s: byteorder is '%.16s'; load it with PyTorch and save it on a little-endian machine", torch->label,
           (const char *)bytes);
  return KRAIT_OK;
}

/* ---- what calls in the pickle mean ------------------------------------------------------------------------------ */

static const char *callee_of(const kr_pickle_value *value) {
  if (value->kind != KR_PICKLE_OBJECT) return "";
  return value->callee->kind == KR_PICKLE_GLOBAL ? value->callee->text : "a computed function";
}

static int calls(const kr_pickle_value *value, const char *name) { return strcmp(callee_of(value), name) == 0; }

static int is_map(const kr_pickle_value *value) {
  return value->kind == KR_PICKLE_MAP || calls(value, "collections.OrderedDict");
}

static const kr_pickle_value *argument(const kr_pickle_value *call, int64_t i) {
  return i < call->args->n_items ? call->args->items[i] : NULL;
}

/* Looks through nn.Parameter and torch.Size: both wrap their first argument. */
static const kr_pickle_value *unwrap(const kr_pickle_value *value) {
  for (int depth = 0; depth < MAX_NESTED && value; depth++) {
    if (!calls(value, "torch._utils._rebuild_parameter") &&
        !calls(value, "torch._utils._rebuild_parameter_with_state") && !calls(value, "torch.Size"))
      break;
    value = argument(value, 0);
  }
  return value;
}

static int is_tensor(const kr_pickle_value *value) {
  value = unwrap(value);
  return value && (calls(value, "torch._utils._rebuild_tensor_v2") || calls(value, "torch._utils._rebuild_tensor"));
}

static int32_t refuse_call(const kr_torch *torch, const char *where, const kr_pickle_value *value) {
  return kr_fail(KRAIT_ERR_UNSAFE,
                 "%s: %s is made by calling %s, which krait does not do; save model.state_dict() instead", torch->label,
                 where, callee_of(value));
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  int32_t dtype;
} storages[] = {{"Float", KRAIT_F32}, {"Half", KRAIT_F16},  {"BFloat16", KRAIT_BF16},   {"Double", KRAIT_F64},
                {"Long", KRAIT_I64},  {"Int", KRAIT_I32},   {"Short", KRAIT_I16},       {"Char", KRAIT_I8},
                {"Byte", KRAIT_U8},   {"Bool", KRAIT_BOOL}, {"ComplexFloat", KRAIT_C64}};

const char *kr_torch_storage(int32_t dtype) {
  for (size_t i = 0; i < sizeof storages / sizeof *storages; i++)
    if (storages[i].dtype == dtype) return storages[i].name;
  return NULL;
}

static int32_t dtype_of_storage(const char *name) {
  char full[64];
  for (size_t i = 0; i < sizeof storages / sizeof *storages; i++) {
    snprintf(full, sizeof full, "torch.%sStorage", storages[i].name);
    if (strcmp(full, name) == 0) return storages[i].dtype;
  }
  return -1;
}

static int32_t load_storage(kr_torch *torch, const kr_pickle_value *key, kr_storage **storage) {
  char name[128];
  KR_CHECK(key->length < 100 && strlen(key->text) == key->length, KRAIT_ERR_FILE_FORMAT,
           "%s: a storage with an invalid name", torch->label);
  snprintf(name, sizeof name, "data/%s", key->text);
  zip_int64_t index = find_entry(torch, name);
  KR_CHECK(index >= 0, KRAIT_ERR_FILE_READ, "%s: entry %s/%s is missing; the file is damaged", torch->label,
           torch->prefix, name);
  *storage = &torch->storages[index];
  if ((*storage)->bytes) return KRAIT_OK;
  return read_entry(torch, (zip_uint64_t)index, torch->weights->owned, &(*storage)->bytes, &(*storage)->n_bytes);
}

/* ('storage', torch.FloatStorage, '0', 'cpu', n_elements) */
static int32_t find_storage(kr_torch *torch, const kr_pickle_value *value, int32_t *dtype, kr_storage **storage) {
  const kr_pickle_value *id = value && value->kind == KR_PICKLE_PERSISTENT ? value->callee : NULL;
  int is_id = id && id->kind == KR_PICKLE_TUPLE && id->n_items >= 5 && id->items[0]->kind == KR_PICKLE_TEXT &&
              strcmp(id->items[0]->text, "storage") == 0 && id->items[1]->kind == KR_PICKLE_GLOBAL &&
              id->items[2]->kind == KR_PICKLE_TEXT;
  KR_CHECK(is_id, KRAIT_ERR_FILE_FORMAT, "%s: a tensor without a storage", torch->label);
  *dtype = dtype_of_storage(id->items[1]->text);
  KR_CHECK(*dtype >= 0, KRAIT_ERR_FILE_FORMAT, "%s: a tensor of type %s, which krait does not support", torch->label,
           id->items[1]->text);
  return load_storage(torch, id->items[2], storage);
}

static int32_t read_sizes(const kr_torch *torch, const kr_pickle_value *value, int64_t sizes[KR_WEIGHT_MAX_DIMS],
                          int32_t *n) {
  value = value ? unwrap(value) : NULL;
  KR_CHECK(value && value->kind == KR_PICKLE_TUPLE && value->n_items <= KR_WEIGHT_MAX_DIMS, KRAIT_ERR_FILE_FORMAT,
           "%s: a tensor without a shape, or of more than %d dimensions", torch->label, KR_WEIGHT_MAX_DIMS);
  for (int64_t i = 0; i < value->n_items; i++) {
    KR_CHECK(value->items[i]->kind == KR_PICKLE_INT && value->items[i]->whole >= 0, KRAIT_ERR_FILE_FORMAT,
             "%s: a tensor with a size or stride that is not a count", torch->label);
    sizes[i] = value->items[i]->whole;
  }
  *n = (int32_t)value->n_items;
  return KRAIT_OK;
}

typedef struct kr_strided {
  const unsigned char *storage;
  int64_t stride[KR_WEIGHT_MAX_DIMS], offset;
} kr_strided;

/* The last element that a tensor reaches must lie in its storage; sizes and strides may be any number up to 2^63. */
static int is_within(const kr_weight *item, const kr_strided *view, uint64_t storage_bytes) {
  int64_t last = view->offset, step, width = (int64_t)krait_dtype_bytes(item->dtype), end;
  for (int32_t i = 0; i < item->n_dims; i++)
    if (__builtin_mul_overflow(item->shape[i] - 1, view->stride[i], &step) || __builtin_add_overflow(last, step, &last))
      return 0;
  if (view->offset < 0 || __builtin_add_overflow(last, 1, &end) || __builtin_mul_overflow(end, width, &end)) return 0;
  return (uint64_t)end <= storage_bytes;
}

static int is_contiguous(const kr_weight *item, const int64_t *stride) {
  int64_t expected = 1;
  for (int32_t i = item->n_dims - 1; i >= 0; i--) {
    if (item->shape[i] != 1 && stride[i] != expected) return 0;
    expected *= item->shape[i];
  }
  return 1;
}

/* Row-major copy with an index counter. Every position is inside the storage; it never steps beyond (a stride may be
 * any number below 2^63). */
static void copy_strided(const kr_weight *item, const kr_strided *view, unsigned char *out) {
  size_t width = krait_dtype_bytes(item->dtype);
  int64_t index[KR_WEIGHT_MAX_DIMS] = {0}, at = view->offset, n = (int64_t)(item->bytes / width);
  for (int64_t i = 0; i < n; i++) {
    memcpy(out + (size_t)i * width, view->storage + (size_t)at * width, width);
    for (int32_t d = item->n_dims - 1; d >= 0; d--) {
      if (++index[d] < item->shape[d]) {
        at += view->stride[d];
        break;
      }
      at -= (item->shape[d] - 1) * view->stride[d];
      index[d] = 0;
    }
  }
}

static int32_t make_contiguous(kr_torch *torch, kr_weight *item, const kr_strided *view) {
  KR_CHECK(item->bytes <= torch->copy_budget_bytes, KRAIT_ERR_FILE_FORMAT,
           "%s: tensor '%s' is an expanded view, or strided copies need more memory than the file has; call "
           ".contiguous() before saving",
           torch->label, item->name);
  torch->copy_budget_bytes -= item->bytes;
  unsigned char *copy = kr_arena_try(torch->weights->owned, (size_t)item->bytes);
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "%s: no memory for tensor '%s'", torch->label, item->name);
  copy_strided(item, view, copy);
  item->data = copy;
  return KRAIT_OK;
}

/* _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks, ...) */
static int32_t read_torch_file_tensor(kr_torch *torch, const char *name, const kr_pickle_value *call, kr_weight *item) {
  const kr_pickle_value *offset = argument(call, 1);
  kr_storage *storage = NULL;
  kr_strided view = {0};
  int32_t n_strides;
  *item = (kr_weight){.name = name};
  KR_TRY(find_storage(torch, argument(call, 0), &item->dtype, &storage));
  KR_TRY(read_sizes(torch, argument(call, 2), item->shape, &item->n_dims));
  KR_TRY(read_sizes(torch, argument(call, 3), view.stride, &n_strides));
  KR_CHECK(offset && offset->kind == KR_PICKLE_INT && n_strides == item->n_dims, KRAIT_ERR_FILE_FORMAT,
           "%s: tensor '%s' has no offset, or not one stride per size", torch->label, name);
  int32_t status = kr_shape_bytes(item->n_dims, item->shape, item->dtype, &item->bytes);
  if (status < 0) return kr_fail(status, "%s: tensor '%s' has %s", torch->label, name, krait_error_detail());
  view.storage = storage->bytes;
  view.offset = offset->whole;
  item->data = storage->bytes;
  if (item->bytes == 0) return KRAIT_OK;
  KR_CHECK(is_within(item, &view, storage->n_bytes), KRAIT_ERR_FILE_FORMAT,
           "%s: tensor '%s' reaches outside its storage of %" PRIu64 " bytes", torch->label, name, storage->n_bytes);
  if (!is_contiguous(item, view.stride)) return make_contiguous(torch, item, &view);
  item->data = storage->bytes + (size_t)view.offset * krait_dtype_bytes(item->dtype);
  return KRAIT_OK;
}

/* ---- the state_dict --------------------------------------------------------------------------------------------- */

/* The map of tensors: under one of the usual names, or the root itself. */
static int32_t find_state(const kr_torch *torch, const kr_pickle_value *root, const kr_pickle_value **state) {
  static const char *const names[] = {"model", "state_dict", "model_state_dict", "generator"};
  if (root->kind == KR_PICKLE_OBJECT && !is_map(root)) return refuse_call(torch, "its content", root);
  KR_CHECK(is_map(root), KRAIT_ERR_FILE_FORMAT,
           "%s: its content is not a dictionary of tensors; save model.state_dict()", torch->label);
  *state = root;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const kr_pickle_value *inner = kr_pickle_find(root, names[i]);
    if (!inner || is_tensor(inner)) continue;
    if (inner->kind == KR_PICKLE_OBJECT && !is_map(inner)) return refuse_call(torch, names[i], inner);
    if (!is_map(inner)) continue;
    *state = inner;
    break;
  }
  return KRAIT_OK;
}

/* Plain values among the tensors (a step count, a list) are skipped; calls are refused. */
static int32_t read_state(kr_torch *torch, const kr_pickle_value *state) {
  for (int64_t i = 0; i + 1 < state->n_items; i += 2) {
    const kr_pickle_value *key = state->items[i], *value = unwrap(state->items[i + 1]);
    KR_CHECK(key->kind == KR_PICKLE_TEXT && strlen(key->text) == key->length, KRAIT_ERR_FILE_FORMAT,
             "%s: a tensor without a name", torch->label);
    if (!value || value->kind != KR_PICKLE_OBJECT || is_map(value)) continue;
    if (!is_tensor(value)) return refuse_call(torch, key->text, value);
    kr_weight item;
    KR_TRY(read_torch_file_tensor(torch, key->text, value, &item));
    KR_TRY(kr_weights_add(torch->weights, &item));
  }
  KR_CHECK(torch->weights->n_items, KRAIT_ERR_FILE_FORMAT,
           "%s: no tensors under 'model', 'state_dict', 'model_state_dict', 'generator' or at the top", torch->label);
  return KRAIT_OK;
}

/* A file that is one tensor: it gets the name "tensor". */
static int32_t read_bare_tensor(kr_torch *torch, const kr_pickle_value *root) {
  kr_weight item;
  KR_TRY(read_torch_file_tensor(torch, "tensor", root, &item));
  return kr_weights_add(torch->weights, &item);
}

static int32_t read_archive(kr_torch *torch, kr_arena *arena) {
  const unsigned char *bytes;
  const kr_pickle_value *root, *state;
  uint64_t n_bytes;
  zip_uint64_t index = 0;
  KR_TRY(find_pickle(torch, &index));
  KR_TRY(check_byte_order(torch, arena));
  KR_TRY(read_entry(torch, index, arena, &bytes, &n_bytes));
  KR_TRY(kr_pickle_read(bytes, (size_t)n_bytes, torch->label, arena, &root));
  torch->storages = kr_alloc_array((size_t)zip_get_num_entries(torch->zip, 0), sizeof *torch->storages);
  KR_CHECK(torch->storages, KRAIT_ERR_NO_MEMORY, "%s: no memory for its list of storages", torch->label);
  root = unwrap(root);
  if (root && root->kind == KR_PICKLE_OBJECT && is_tensor(root)) return read_bare_tensor(torch, root);
  KR_CHECK(root, KRAIT_ERR_FILE_FORMAT, "%s: its content is not a dictionary of tensors; save model.state_dict()",
           torch->label);
  KR_TRY(find_state(torch, root, &state));
  return read_state(torch, state);
}

int32_t kr_torch_file_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights) {
  KR_CHECK(memcmp(bytes, "PK\3\4", 4) == 0, KRAIT_ERR_FILE_FORMAT,
           "%s: a bare pickle, as written by PyTorch before 1.6; load it with PyTorch and save it again: "
           "torch.save(torch.load(f, weights_only=True), g)",
           label);
  kr_torch torch = {.label = label, .weights = weights, .read_budget_bytes = n_bytes, .copy_budget_bytes = n_bytes};
  KR_TRY(open_zip(&torch, bytes, n_bytes));
  kr_arena *arena = kr_arena_open();
  int32_t status =
      arena ? read_archive(&torch, arena) : kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory to read it", label);
  kr_arena_close(&arena);
  kr_free(torch.storages);
  zip_discard(torch.zip);
  return status;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_weights *weights = NULL;
  if (kr_torch_file_is(data, size)) kr_weights_open_memory(data, size, "fuzz", &weights);
  kr_weights_close(&weights);
  return 0;
}
#endif
