/* dlpack.c: krait_tensors from and to DLPack's structs. */
#include "public_names.h"

#include <krait/dlpack.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

enum { DL_CPU = 1, DL_CUDA = 2, DL_PINNED = 3, DL_MANAGED = 13, DL_MAJOR = 1, DL_MINOR = 0 };
enum { DL_INT, DL_UINT, DL_FLOAT, DL_BFLOAT = 4, DL_COMPLEX, DL_BOOL };

/* DLPack's code and bits of each KRAIT_*. */
static const struct {
  uint8_t code, bits;
} types[] = {[KRAIT_F32] = {DL_FLOAT, 32},   [KRAIT_F16] = {DL_FLOAT, 16}, [KRAIT_BF16] = {DL_BFLOAT, 16},
             [KRAIT_F64] = {DL_FLOAT, 64},   [KRAIT_I32] = {DL_INT, 32},   [KRAIT_I64] = {DL_INT, 64},
             [KRAIT_C64] = {DL_COMPLEX, 64}, [KRAIT_I16] = {DL_INT, 16},   [KRAIT_I8] = {DL_INT, 8},
             [KRAIT_U8] = {DL_UINT, 8},      [KRAIT_BOOL] = {DL_BOOL, 8},  [KRAIT_U16] = {DL_UINT, 16},
             [KRAIT_U32] = {DL_UINT, 32},    [KRAIT_U64] = {DL_UINT, 64}};
enum { N_TYPES = sizeof types / sizeof *types };

krait_tensor krait_tensor_of(void *data, int32_t dtype, int32_t n_dims, const int64_t *sizes) {
  krait_tensor t = {.dtype = dtype};
  if (!sizes || n_dims < 1 || n_dims > 4) return t;
  t.data = data, t.n_dims = (int16_t)n_dims;
  memcpy(t.size, sizes, (size_t)n_dims * sizeof *sizes);
  return t;
}

static int32_t find_dtype(const krait_dl_tensor *from, int32_t *dtype) {
  for (*dtype = 0; *dtype < N_TYPES; ++*dtype)
    if (types[*dtype].bits == from->bits && types[*dtype].code == from->code && from->lanes == 1) return KRAIT_OK;
  return kr_fail(KRAIT_ERR_DTYPE, "a DLPack tensor of code %d with %d bits and %d lanes has no type here", from->code,
                 from->bits, from->lanes);
}

static int32_t check_dlpack(const krait_dl_tensor *from) {
  const int32_t device = from->device_type;
  KR_CHECK(device == DL_CPU || device == DL_CUDA || device == DL_PINNED || device == DL_MANAGED, KRAIT_ERR_ARGUMENT,
           "a DLPack tensor of device type %d is neither on the CPU (1) nor on a CUDA GPU (2, 3, 13)", device);
  KR_CHECK(from->n_dims >= 0 && from->n_dims <= 4, KRAIT_ERR_SHAPE,
           "a DLPack tensor has %d dimensions, must have at most 4", from->n_dims);
  KR_CHECK(from->shape || !from->n_dims, KRAIT_ERR_ARGUMENT, "a DLPack tensor has no shape");
  for (int32_t d = 0; d < from->n_dims; d++)
    KR_CHECK(from->shape[d] >= 0, KRAIT_ERR_SHAPE, "a DLPack tensor has size %lld in dimension %d",
             (long long)from->shape[d], d + 1);
  return KRAIT_OK;
}

/* A tensor without dimensions is one of a single element. */
int32_t krait_tensor_from_dlpack(const krait_dl_tensor *from, krait_tensor *to) {
  int32_t dtype;
  KR_CHECK(from && to, KRAIT_ERR_ARGUMENT, "from and to must not be NULL");
  KR_TRY(check_dlpack(from));
  KR_TRY(find_dtype(from, &dtype));
  *to = (krait_tensor){.dtype = dtype, .n_dims = 1, .size = {1}};
  if (from->data) to->data = (char *)from->data + from->byte_offset;
  if (!from->n_dims) return KRAIT_OK;
  to->n_dims = (int16_t)from->n_dims;
  memcpy(to->size, from->shape, (size_t)from->n_dims * sizeof *to->size);
  if (!from->strides) return KRAIT_OK;
  memcpy(to->stride, from->strides, (size_t)from->n_dims * sizeof *to->stride);
  to->flags = KRAIT_TENSOR_STRIDED;
  return KRAIT_OK;
}

/* Both forms with the numbers that their tensor points to. */
typedef struct described {
  union {
    krait_dl_managed managed;
    krait_dl_versioned versioned;
  } as;
  int64_t shape[4], strides[4];
} described;

static void free_managed(krait_dl_managed *self) { kr_free(self->manager); }
static void free_versioned(krait_dl_versioned *self) { kr_free(self->manager); }

static int32_t check_exported(const krait_tensor *from, int32_t device) {
  KR_CHECK(from && from->data, KRAIT_ERR_ARGUMENT, "from must be a tensor with data");
  KR_CHECK(from->n_dims >= 1 && from->n_dims <= 4, KRAIT_ERR_SHAPE, "a tensor has %d dimensions, must have 1 to 4",
           from->n_dims);
  KR_CHECK(from->dtype >= 0 && from->dtype < N_TYPES, KRAIT_ERR_DTYPE, "DLPack has no type %d", from->dtype);
  for (int d = 0; d < from->n_dims; d++)
    KR_CHECK(from->size[d] >= 0, KRAIT_ERR_SHAPE, "a tensor has size %lld in dimension %d", (long long)from->size[d],
             d + 1);
  KR_CHECK(device == KRAIT_DEVICE_CPU || device >= KRAIT_DEVICE_CUDA(0), KRAIT_ERR_ARGUMENT,
           "device is %d, not KRAIT_DEVICE_CPU or KRAIT_DEVICE_CUDA(i)", device);
  return KRAIT_OK;
}

static int32_t describe(const krait_tensor *from, int32_t device, described **made, krait_dl_tensor *to) {
  KR_TRY(check_exported(from, device));
  described *d = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory for a DLPack tensor");
  int is_strided = from->flags & KRAIT_TENSOR_STRIDED;
  uint64_t n = 1;
  for (int i = 0; i < from->n_dims; i++) is_strided |= from->stride[i] != 0;
  for (int i = from->n_dims - 1; i >= 0; i--) {
    d->shape[i] = from->size[i];
    d->strides[i] = is_strided ? from->stride[i] : (int64_t)n;
    n *= (uint64_t)from->size[i];
  }
  *to = (krait_dl_tensor){
      .data = from->data, .n_dims = from->n_dims, .lanes = 1, .shape = d->shape, .strides = d->strides};
  to->code = types[from->dtype].code, to->bits = types[from->dtype].bits;
  to->device_type = device == KRAIT_DEVICE_CPU ? DL_CPU : DL_CUDA;
  to->device_id = device == KRAIT_DEVICE_CPU ? 0 : device - KRAIT_DEVICE_CUDA(0);
  *made = d;
  return KRAIT_OK;
}

int32_t krait_tensor_to_dlpack(const krait_tensor *from, int32_t device, krait_dl_managed **to) {
  described *d;
  krait_dl_tensor tensor;
  KR_CHECK(to, KRAIT_ERR_ARGUMENT, "to must not be NULL");
  *to = NULL;
  KR_TRY(describe(from, device, &d, &tensor));
  d->as.managed = (krait_dl_managed){.tensor = tensor, .manager = d, .deleter = free_managed};
  *to = &d->as.managed;
  return KRAIT_OK;
}

int32_t krait_tensor_to_dlpack_versioned(const krait_tensor *from, int32_t device, krait_dl_versioned **to) {
  described *d;
  krait_dl_tensor tensor;
  KR_CHECK(to, KRAIT_ERR_ARGUMENT, "to must not be NULL");
  *to = NULL;
  KR_TRY(describe(from, device, &d, &tensor));
  d->as.versioned = (krait_dl_versioned){
      .major = DL_MAJOR, .minor = DL_MINOR, .manager = d, .deleter = free_versioned, .tensor = tensor};
  *to = &d->as.versioned;
  return KRAIT_OK;
}
