/* kernels.h: a device's kernels, found by name and loaded at their first use, or ahead of it by several threads. A
 * kernel is loaded alone: the driver translates its entry of the module's PTX and nothing else. */
#ifndef KR_KERNELS_H
#define KR_KERNELS_H

#include "cuda.h"

typedef struct kr_kernels kr_kernels;

/* cuda: of an open device, which outlives them. */
int32_t kr_kernels_open(const kr_cuda *cuda, kr_kernels **kernels);
void kr_kernels_close(kr_kernels **kernels); /* the device's context must be current */
/* Loads the kernel at its first use. The device's context must be current. */
int32_t kr_kernels_find(kr_kernels *kernels, uint64_t tier, const kr_kernel *kernel, void **function);
int kr_kernels_have(kr_kernels *kernels, uint64_t tier, const kr_kernel *kernel);

#endif
