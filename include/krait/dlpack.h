/* dlpack.h: tensors to and from libraries that exchange them as DLPack (PyTorch, NumPy, CuPy, JAX), without copying.
 * The structs are DLPack's own in memory (versions 0.2 to 1.x): cast pointers to DLTensor and the like to them. */
#ifndef KRAIT_DLPACK_H
#define KRAIT_DLPACK_H

#include <krait/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_dl_tensor { /* DLTensor */
  void *data;
  int32_t device_type, device_id; /* 1: CPU, 2: CUDA, 3: pinned host memory, 13: managed memory */
  int32_t n_dims;
  uint8_t code, bits; /* 0 int, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool */
  uint16_t lanes;
  int64_t *shape, *strides; /* n_dims each; strides in elements, NULL: dense */
  uint64_t byte_offset;
} krait_dl_tensor;

typedef struct krait_dl_managed { /* DLManagedTensor, capsules "dltensor" */
  krait_dl_tensor tensor;
  void *manager;
  void (*deleter)(struct krait_dl_managed *self); /* may be NULL */
} krait_dl_managed;

typedef struct krait_dl_versioned { /* DLManagedTensorVersioned, capsules "dltensor_versioned" */
  uint32_t major, minor;
  void *manager;
  void (*deleter)(struct krait_dl_versioned *self); /* may be NULL */
  uint64_t flags;                                   /* 1: read only */
  krait_dl_tensor tensor;
} krait_dl_versioned;

/* *to describes the same memory; call the deleter of the struct that holds *from when no call uses *to any more.
 * Refused: other devices, types that krait has not, more than 4 dimensions. */
KRAIT_API int32_t krait_tensor_from_dlpack(const krait_dl_tensor *from, krait_tensor *to);
/* *to describes the same memory, which must live until its deleter is called; the deleter frees the description alone.
 * device: KRAIT_DEVICE_CPU or KRAIT_DEVICE_CUDA(i). */
KRAIT_API int32_t krait_tensor_to_dlpack(const krait_tensor *from, int32_t device, krait_dl_managed **to);
KRAIT_API int32_t krait_tensor_to_dlpack_versioned(const krait_tensor *from, int32_t device, krait_dl_versioned **to);

#ifdef __cplusplus
}
#endif
#endif
