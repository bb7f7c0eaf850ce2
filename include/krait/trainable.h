/* trainable.h: a whole model as a framework's autograd calls it: forward and gradient by krait's graph, on parameters
 * that the framework keeps, changes and learns. Nothing is copied: a run reads and writes the caller's tensors,
 * row-major float32 on the context's device. krait.accelerate (docs/ACCELERATE.md) is made of it.
 *
 *   krait_trainable_open(ctx, &options, &trainable);
 *   for (i = 0; i < krait_trainable_n_tensors(trainable); i++) krait_trainable_tensor_at(trainable, i, &tensor);
 *   krait_trainable_run_open(trainable, memory, &run);      // krait_trainable_bytes of memory on the device
 *   krait_trainable_forward(run, addresses, stream);
 *   krait_trainable_backward(run, stream);                  // the gradients of the last forward
 *
 * A trainable is immutable: any number of runs, each used by one thread at a time. The context must outlive it, it its
 * runs, and the memory its run. */
#ifndef KRAIT_TRAINABLE_H
#define KRAIT_TRAINABLE_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_trainable krait_trainable;
typedef struct krait_trainable_run krait_trainable_run;

#define KRAIT_TRAINABLE_GRADIENT 1u       /* forward and gradient; without it forward alone, in less memory and time */
#define KRAIT_TRAINABLE_INPUT_GRADIENT 2u /* also of the input */
#define KRAIT_TRAINABLE_TF32 4u           /* products on a GPU may round their factors to 11 significant bits */
#define KRAIT_TRAINABLE_RECOMPUTE 8u      /* a third of the memory for a third more time */

typedef struct krait_trainable_options {
  uint32_t size;
  uint32_t flags;     /* KRAIT_TRAINABLE_* */
  const char *config; /* "model=primeknet_mamba,dense_channel=64,...": a PrimeKnet that does not stream */
  int64_t B, T;       /* windows, and frames of each */
  int32_t halves;     /* KRAIT_F16, KRAIT_BF16: the type of activations and of their gradients between operators; 0:
                         float32 */
  int32_t n_frozen;
  const char *const *frozen; /* parameters that get no gradient */
} krait_trainable_options;

#define KRAIT_TRAINABLE_INPUT 0
#define KRAIT_TRAINABLE_OUTPUT 1
#define KRAIT_TRAINABLE_PARAMETER 2
#define KRAIT_TRAINABLE_GRADIENT_OF_OUTPUT 3 /* read by backward */
#define KRAIT_TRAINABLE_GRADIENT_OF_INPUT 4  /* this and the next: written by it */
#define KRAIT_TRAINABLE_GRADIENT_OF_PARAMETER 5
typedef struct krait_trainable_tensor {
  uint32_t size;
  int32_t role;     /* KRAIT_TRAINABLE_* above */
  const char *name; /* of a parameter and its gradient: its key in the state_dict; valid while the trainable is open */
  int64_t shape[4];
  int32_t n_dims, reserved;
} krait_trainable_tensor;

KRAIT_API int32_t krait_trainable_open(const krait_ctx *ctx, const krait_trainable_options *options,
                                       krait_trainable **trainable);
KRAIT_API void krait_trainable_close(krait_trainable **trainable);
KRAIT_API int64_t krait_trainable_n_tensors(const krait_trainable *trainable);
KRAIT_API int32_t krait_trainable_tensor_at(const krait_trainable *trainable, int64_t i,
                                            krait_trainable_tensor *tensor);
/* What a run's memory has between its forward and its backward. */
KRAIT_API uint64_t krait_trainable_bytes(const krait_trainable *trainable);

/* memory: on the device, aligned to 256. */
KRAIT_API int32_t krait_trainable_run_open(const krait_trainable *trainable, void *memory, krait_trainable_run **run);
KRAIT_API void krait_trainable_run_close(krait_trainable_run **run);
/* tensors: the addresses of all, in order, in use until the backward. On a CPU it is finished when it returns; on a GPU
 * it is enqueued, and with the addresses of the last call replayed as a CUDA graph. */
KRAIT_API int32_t krait_trainable_forward(krait_trainable_run *run, void *const *tensors, void *stream);
/* Of the last forward, once; parameters, input and outputs must not have changed since. */
KRAIT_API int32_t krait_trainable_backward(krait_trainable_run *run, void *stream);

#ifdef __cplusplus
}
#endif
#endif
