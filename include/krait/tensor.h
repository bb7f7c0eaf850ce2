/* tensor.h: a tensor that knows its shape, as all operators take it (ops.h). To and from other libraries: dlpack.h. */
#ifndef KRAIT_TENSOR_H
#define KRAIT_TENSOR_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

/* It owns nothing: data must live until the calls that use it are done. In C: krait_tensor x = {.data = p, .dtype =
 * KRAIT_F32, .n_dims = 2, .size = {rows, columns}}. */
typedef struct krait_tensor {
  void *data;        /* NULL: absent; never written through for inputs */
  int32_t dtype;     /* KRAIT_F32, ... */
  int16_t n_dims;    /* 1 to 4 */
  uint16_t flags;    /* 0 or KRAIT_TENSOR_STRIDED */
  int64_t size[4];   /* -1 in a dimension of stride 0: as large as the other tensors of the call make it */
  int64_t stride[4]; /* in elements; all 0: dense, the last dimension fastest */
} krait_tensor;
#define KRAIT_TENSOR_STRIDED 1u /* strides that are all 0 count as well: one element stands for all */

/* A dense tensor of these sizes (n_dims of them); with sizes NULL or n_dims outside 1 to 4 it is absent. */
KRAIT_API krait_tensor krait_tensor_of(void *data, int32_t dtype, int32_t n_dims, const int64_t *sizes);

#ifdef __cplusplus
}
#endif
#endif
