/* torch_file.c: a zip of one pickle (NAME/data.pkl), one entry per storage (NAME/data/KEY) and NAME/byteorder. The
 * pickle is read as data (pickle.h); this file has the complete list of calls that are understood. torch.save stores
 * without compression, so storages are used where they lie in the file, and nothing may expand: entries do not overlap,
 * and all copies of strided tensors are together at most as large as the file. */
#include "torch_file.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>
#include <zlib.h>

#include "alloc.h"
#include "pickle.h"
#include "pool.h"
#include "status.h"
#include "weights_build.h"

enum {
  MAX_ENTRIES = 1 << 20,
  MAX_ENTRY_NAME = 512,
  MAX_NESTED = 4,
  STORAGE_ALIGN = 8, /* of the widest element type */
  CRC_PIECE_BYTES = 1 << 20,
  CRC_THREAD_BYTES = 8 << 20, /* less is not worth a thread */
  CRC_MAX_THREADS = 32
};

typedef struct kr_entry {
  const char *name;
  const unsigned char *place; /* in the file; NULL: not used yet */
  const unsigned char *bytes; /* a storage's: place, or an aligned copy of it */
  uint64_t n_bytes;
  uint32_t crc;
  int is_checked;
} kr_entry;

/* The file as libzip reads it. libzip does not tell where the data of an entry begin, but reads them from there. */
typedef struct kr_torch_bytes {
  const unsigned char *bytes;
  uint64_t n_bytes, at, last_read;
  zip_error_t error;
} kr_torch_bytes;

typedef struct kr_torch {
  const char *label;
  kr_torch_bytes file;
  zip_t *zip;
  char prefix[MAX_ENTRY_NAME]; /* "archive", the folder of data.pkl */
  kr_entry *entries;           /* by zip index */
  uint64_t read_budget_bytes, copy_budget_bytes;
  kr_weights *weights;
} kr_torch;

/* ---- zip -------------------------------------------------------------------------------------------------------- */

int kr_torch_file_is(const unsigned char *bytes, size_t n_bytes) {
  /* A safetensors header of 640 bytes begins like a pickle; its ninth byte does not. */
  int is_pickle = n_bytes >= 9 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5 && bytes[8] != '{';
  return is_pickle || (n_bytes >= 4 && memcmp(bytes, "PK\3\4", 4) == 0);
}

static zip_int64_t read_torch_bytes(kr_torch_bytes *file, void *out, zip_uint64_t n) {
  if (n > file->n_bytes - file->at) n = file->n_bytes - file->at;
  if (n) memcpy(out, file->bytes + file->at, (size_t)n);
  file->last_read = file->at;
  file->at += n;
  return (zip_int64_t)n;
}

static zip_int64_t seek_torch_bytes(kr_torch_bytes *file, void *seek, zip_uint64_t n) {
  const zip_int64_t at = zip_source_seek_compute_offset(file->at, file->n_bytes, seek, n, &file->error);
  if (at < 0) return -1;
  file->at = (uint64_t)at;
  return 0;
}

static zip_int64_t serve_libzip(void *user, void *data, zip_uint64_t n, zip_source_cmd_t command) {
  kr_torch_bytes *file = user;
  switch (command) {
    case ZIP_SOURCE_OPEN: file->at = 0; return 0;
    case ZIP_SOURCE_READ: return read_torch_bytes(file, data, n);
    case ZIP_SOURCE_SEEK: return seek_torch_bytes(file, data, n);
    case ZIP_SOURCE_TELL: return (zip_int64_t)file->at;
    case ZIP_SOURCE_STAT:
      zip_stat_init(data);
      ((zip_stat_t *)data)->size = file->n_bytes;
      ((zip_stat_t *)data)->valid = ZIP_STAT_SIZE;
      return sizeof(zip_stat_t);
    case ZIP_SOURCE_ERROR: return zip_error_to_data(&file->error, data, n);
    case ZIP_SOURCE_SUPPORTS:
      return zip_source_make_command_bitmap(ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL,
                                            ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR, ZIP_SOURCE_CLOSE, ZIP_SOURCE_FREE,
                                            ZIP_SOURCE_SUPPORTS, -1);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE: return 0;
    default: zip_error_set(&file->error, ZIP_ER_OPNOTSUPP, 0); return -1;
  }
}

static int32_t open_zip(kr_torch *torch) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t *source = zip_source_function_create(serve_libzip, &torch->file, &error);
  torch->zip = source ? zip_open_from_source(source, ZIP_RDONLY, &error) : NULL;
  if (!torch->zip) {
    kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: not a readable zip (%s); the file is truncated or damaged", torch->label,
            zip_error_strerror(&error));
    zip_source_free(source);
  }
  zip_error_fini(&error);
  return torch->zip ? KRAIT_OK : KRAIT_ERR_FILE_FORMAT;
}

/* Where libzip reads the first of the entry's bytes as they lie in the file; 0 if it cannot, as a file begins with a
 * header. */
static uint64_t locate_entry(kr_torch *torch, zip_uint64_t index) {
  unsigned char first;
  zip_file_t *file = zip_fopen_index(torch->zip, index, ZIP_FL_COMPRESSED);
  if (!file) return 0;
  const int is_read = zip_fread(file, &first, 1) == 1;
  zip_fclose(file);
  return is_read ? torch->file.last_read : 0;
}

/* Finds the entry in the file; its bytes are not looked at. */
static int32_t place_entry(kr_torch *torch, zip_uint64_t index, kr_entry **entry) {
  zip_stat_t info;
  kr_entry *e = *entry = &torch->entries[index];
  if (e->place) return KRAIT_OK;
  const uint64_t wanted = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_CRC | ZIP_STAT_NAME;
  KR_CHECK(zip_stat_index(torch->zip, index, 0, &info) == 0 && (info.valid & wanted) == wanted, KRAIT_ERR_FILE_FORMAT,
           "%s: an entry of the zip is damaged", torch->label);
  KR_CHECK(info.comp_method == ZIP_CM_STORE && info.encryption_method == ZIP_EM_NONE && info.comp_size == info.size,
           KRAIT_ERR_FILE_FORMAT,
           "%s: entry %s is compressed or encrypted, which torch.save does not do; save it again with torch.save",
           torch->label, info.name);
  KR_CHECK(info.size <= torch->read_budget_bytes, KRAIT_ERR_FILE_FORMAT,
           "%s: the entries of the zip have more bytes than the file (at %s)", torch->label, info.name);
  torch->read_budget_bytes -= info.size;
  const uint64_t begin = info.size ? locate_entry(torch, index) : 0;
  KR_CHECK(!info.size || begin, KRAIT_ERR_FILE_READ, "%s: entry %s is truncated or damaged; copy the file again",
           torch->label, info.name);
  KR_CHECK(info.size <= torch->file.n_bytes - begin, KRAIT_ERR_FILE_READ,
           "%s: entry %s is truncated: it ends beyond the file; copy the file again", torch->label, info.name);
  *e = (kr_entry){.name = info.name, .place = torch->file.bytes + begin, .n_bytes = info.size, .crc = info.crc};
  return KRAIT_OK;
}

/* ---- checksums --------------------------------------------------------------------------------------------------- */

typedef struct kr_crc_piece {
  const unsigned char *bytes;
  uint32_t n_bytes, crc;
} kr_crc_piece;

/* libdeflate's checksum is more than twice as fast as zlib's, which has what joins them. */
static void check_pieces(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (kr_crc_piece *p = (kr_crc_piece *)user + begin; p < (kr_crc_piece *)user + end; p++)
    p->crc = libdeflate_crc32(0, p->bytes, p->n_bytes);
}

static int64_t count_pieces(const kr_entry *e) {
  return (int64_t)(e->n_bytes / CRC_PIECE_BYTES + (e->n_bytes % CRC_PIECE_BYTES != 0));
}

static void split_entry(const kr_entry *e, kr_crc_piece *pieces) {
  for (uint64_t at = 0; at < e->n_bytes; at += CRC_PIECE_BYTES) {
    const uint64_t rest = e->n_bytes - at;
    *pieces++ = (kr_crc_piece){.bytes = e->place + at,
                               .n_bytes = rest < CRC_PIECE_BYTES ? (uint32_t)rest : CRC_PIECE_BYTES};
  }
}

static int32_t compare_crc(const kr_torch *torch, kr_entry *e, const kr_crc_piece *pieces) {
  uLong crc = 0;
  for (int64_t i = 0; i < count_pieces(e); i++) crc = crc32_combine(crc, pieces[i].crc, (z_off_t)pieces[i].n_bytes);
  e->is_checked = 1;
#ifdef KR_FUZZ
  crc = e->crc; /* otherwise no mutation would get past the checksum */
#endif
  KR_CHECK(crc == e->crc, KRAIT_ERR_FILE_READ, "%s: the checksum of entry %s is wrong; copy the file again",
           torch->label, e->name);
  return KRAIT_OK;
}

/* All threads in one loop over pieces of all entries: a file may be one large entry or thousands of small ones. */
static int32_t check_crcs(const kr_torch *torch, kr_entry *const *entries, int64_t n) {
  int64_t n_pieces = 0;
  uint64_t n_bytes = 0;
  int32_t status = KRAIT_OK;
  for (int64_t i = 0; i < n; i++) n_pieces += count_pieces(entries[i]), n_bytes += entries[i]->n_bytes;
  kr_crc_piece *pieces = kr_alloc_array((size_t)n_pieces, sizeof *pieces), *next = pieces;
  KR_CHECK(pieces, KRAIT_ERR_NO_MEMORY, "%s: no memory for its checksums", torch->label);
  for (int64_t i = 0; i < n; next += count_pieces(entries[i++])) split_entry(entries[i], next);
  const int n_cores = kr_usable_cores(), most = n_cores < CRC_MAX_THREADS ? n_cores : CRC_MAX_THREADS;
  const uint64_t n_useful = n_bytes / CRC_THREAD_BYTES;
  const int n_threads = n_useful < (uint64_t)most ? (int)n_useful : most;
  kr_pool *pool = n_threads > 1 ? kr_pool_open(n_threads) : NULL; /* without one it is slower */
  kr_pool_run_long(pool, n_pieces, 1, check_pieces, pieces);
  kr_pool_close(&pool);
  next = pieces;
  for (int64_t i = 0; i < n && status == KRAIT_OK; next += count_pieces(entries[i++]))
    status = compare_crc(torch, entries[i], next);
  kr_free(pieces);
  return status;
}

static int compare_entries(const void *a, const void *b) {
  const kr_entry *x = *(const kr_entry *const *)a, *y = *(const kr_entry *const *)b;
  return (x->place > y->place) - (x->place < y->place);
}

static int32_t check_overlap(const kr_torch *torch, kr_entry **used, int64_t n) {
  qsort(used, (size_t)n, sizeof *used, compare_entries);
  for (int64_t i = 1; i < n; i++)
    KR_CHECK((uint64_t)(used[i]->place - used[i - 1]->place) >= used[i - 1]->n_bytes, KRAIT_ERR_FILE_FORMAT,
             "%s: entries %s and %s of the zip overlap; the file is damaged", torch->label, used[i - 1]->name,
             used[i]->name);
  return KRAIT_OK;
}

/* Of all entries that were used. What was made of damaged bytes until now is thrown away with the weights. */
static int32_t check_entries(kr_torch *torch) {
  const int64_t n = zip_get_num_entries(torch->zip, 0);
  int64_t n_used = 0, n_open = 0;
  kr_entry **used = kr_alloc_array((size_t)n, sizeof(kr_entry *));
  KR_CHECK(used, KRAIT_ERR_NO_MEMORY, "%s: no memory for its list of storages", torch->label);
  for (int64_t i = 0; i < n; i++)
    if (torch->entries[i].n_bytes) used[n_used++] = &torch->entries[i];
  int32_t status = check_overlap(torch, used, n_used);
  for (int64_t i = 0; i < n_used; i++)
    if (!used[i]->is_checked) used[n_open++] = used[i];
  if (status == KRAIT_OK) status = check_crcs(torch, used, n_open);
  kr_free(used);
  return status;
}

/* Of an entry that is not a storage: its bytes, checked. */
static int32_t read_entry(kr_torch *torch, zip_uint64_t index, const unsigned char **bytes, uint64_t *n_bytes) {
  kr_entry *e;
  KR_TRY(place_entry(torch, index, &e));
  *bytes = e->place;
  *n_bytes = e->n_bytes;
  return check_crcs(torch, &e, 1);
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

static int32_t check_byte_order(kr_torch *torch) {
  zip_int64_t index = find_entry(torch, "byteorder");
  const unsigned char *bytes;
  uint64_t n_bytes;
  if (index < 0) return KRAIT_OK; /* older than torch 2.1: written on little-endian machines */
  KR_TRY(read_entry(torch, (zip_uint64_t)index, &bytes, &n_bytes));
  KR_CHECK(n_bytes == 6 && memcmp(bytes, "little", 6) == 0, KRAIT_ERR_FILE_FORMAT,
           "%s: byteorder is '%.*s'; load it with PyTorch and save it on a little-endian machine", torch->label,
           n_bytes < 16 ? (int)n_bytes : 16, (const char *)bytes);
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

/* torch.save begins every storage at a multiple of 64 bytes; other programs may not. Once for each storage, since many
 * tensors may lie in one. */
static int32_t align_storage(kr_torch *torch, kr_entry *storage) {
  storage->bytes = storage->place;
  if ((uintptr_t)storage->place % STORAGE_ALIGN == 0 || !storage->n_bytes) return KRAIT_OK;
  void *copy = kr_arena_try(torch->weights->owned, (size_t)storage->n_bytes);
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "%s: no memory for entry %s", torch->label, storage->name);
  storage->bytes = memcpy(copy, storage->place, (size_t)storage->n_bytes);
  return KRAIT_OK;
}

static int32_t load_storage(kr_torch *torch, const kr_pickle_value *key, kr_entry **storage) {
  char name[128];
  KR_CHECK(key->length < 100 && strlen(key->text) == key->length, KRAIT_ERR_FILE_FORMAT,
           "%s: a storage with an invalid name", torch->label);
  snprintf(name, sizeof name, "data/%s", key->text);
  zip_int64_t index = find_entry(torch, name);
  KR_CHECK(index >= 0, KRAIT_ERR_FILE_READ, "%s: entry %s/%s is missing; the file is damaged", torch->label,
           torch->prefix, name);
  KR_TRY(place_entry(torch, (zip_uint64_t)index, storage));
  return (*storage)->bytes ? KRAIT_OK : align_storage(torch, *storage);
}

/* ('storage', torch.FloatStorage, '0', 'cpu', n_elements) */
static int32_t find_storage(kr_torch *torch, const kr_pickle_value *value, int32_t *dtype, kr_entry **storage) {
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
  kr_entry *storage = NULL;
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

/* The name of the model that a training script (DeiT's and its heirs') kept beside the tensors: args.model. */
static int32_t read_model_name(kr_torch *torch, const kr_pickle_value *root) {
  const kr_pickle_value *args = is_map(root) ? kr_pickle_find(root, "args") : NULL,
                        *attributes = args && calls(args, "argparse.Namespace") ? args->state : NULL,
                        *name = attributes ? kr_pickle_find(attributes, "model") : NULL;
  if (!name || name->kind != KR_PICKLE_TEXT || strlen(name->text) != name->length || !name->length) return KRAIT_OK;
  for (size_t i = 0; i < name->length; i++)
    if (name->text[i] < ' ' || name->text[i] > '~') return KRAIT_OK;
  return kr_weights_add_metadata(torch->weights, "model", name->text);
}

static int32_t read_root(kr_torch *torch, const kr_pickle_value *root) {
  const kr_pickle_value *state;
  root = unwrap(root);
  if (root && root->kind == KR_PICKLE_OBJECT && is_tensor(root)) return read_bare_tensor(torch, root);
  KR_CHECK(root, KRAIT_ERR_FILE_FORMAT, "%s: its content is not a dictionary of tensors; save model.state_dict()",
           torch->label);
  KR_TRY(find_state(torch, root, &state));
  KR_TRY(read_model_name(torch, root));
  return read_state(torch, state);
}

static int32_t read_archive(kr_torch *torch, kr_arena *arena) {
  const unsigned char *bytes;
  const kr_pickle_value *root;
  uint64_t n_bytes;
  zip_uint64_t index = 0;
  KR_TRY(find_pickle(torch, &index));
  torch->entries = kr_alloc_array((size_t)zip_get_num_entries(torch->zip, 0), sizeof *torch->entries);
  KR_CHECK(torch->entries, KRAIT_ERR_NO_MEMORY, "%s: no memory for its list of storages", torch->label);
  KR_TRY(check_byte_order(torch));
  KR_TRY(read_entry(torch, index, &bytes, &n_bytes));
  KR_TRY(kr_pickle_read(bytes, (size_t)n_bytes, torch->label, arena, &root));
  KR_TRY(read_root(torch, root));
  return check_entries(torch);
}

int32_t kr_torch_file_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights) {
  KR_CHECK(memcmp(bytes, "PK\3\4", 4) == 0, KRAIT_ERR_FILE_FORMAT,
           "%s: a bare pickle, as written by PyTorch before 1.6; load it with PyTorch and save it again: "
           "torch.save(torch.load(f, weights_only=True), g)",
           label);
  kr_torch torch = {.label = label,
                    .file = {.bytes = bytes, .n_bytes = n_bytes},
                    .weights = weights,
                    .read_budget_bytes = n_bytes,
                    .copy_budget_bytes = n_bytes};
  zip_error_init(&torch.file.error);
  int32_t status = open_zip(&torch);
  kr_arena *arena = status == KRAIT_OK ? kr_arena_open() : NULL;
  if (status == KRAIT_OK)
    status = arena ? read_archive(&torch, arena) : kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory to read it", label);
  kr_arena_close(&arena);
  kr_free(torch.entries);
  if (torch.zip) zip_discard(torch.zip);
  zip_error_fini(&torch.file.error);
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
