/* primeknet_device.h: windows on a GPU (MODEL.md section 7). */
#ifndef KR_PRIMEKNET_DEVICE_H
#define KR_PRIMEKNET_DEVICE_H

#include <krait/model.h>

#include "primeknet.h"

typedef struct pk_device pk_device;

int32_t pk_device_open(const kr_primeknet *model, pk_device **device);
void pk_device_close(pk_device **device);
/* As kr_pk_forward; seconds receives the time of the kernels alone. */
int32_t pk_device_forward(pk_device *d, int64_t B, int64_t T, const float *com_in, float *mag, float *pha, float *com,
                          double *seconds);
/* The calls of a pass, each kind timed by itself (krait_primeknet_kernels). */
int32_t pk_device_kernels(pk_device *d, int64_t B, int64_t T, const float *com_in, krait_kernel_fn report, void *user);

#endif
