/* primeknet_device.h: PrimeKnet's weights on a GPU, and the forward pass of a batch there (MODEL.md section 7). */
#ifndef KR_PRIMEKNET_DEVICE_H
#define KR_PRIMEKNET_DEVICE_H

#include <krait/model.h>

#include "primeknet_packed.h"

/* The table of layers that weights are packed with for a device: widths and packing alone. */
extern const kr_layers kr_layers_device;

typedef struct pk_device pk_device;

/* KRAIT_ERR_UNSUPPORTED, saying why, for sizes that the kernels do not take. */
int32_t pk_device_check(const kr_pk_config *config);
/* Copies what storage holds. */
int32_t pk_device_open(const krait_ctx *ctx, int32_t precision, const struct pk_chunk *storage, pk_device **device);
void pk_device_close(pk_device **device);

typedef struct pk_device_session pk_device_session;
int32_t pk_device_session_open(const kr_primeknet *model, pk_device_session **session);
void pk_device_session_close(pk_device_session **session);
/* As kr_pk_forward; seconds receives the time of the kernels alone. */
int32_t pk_device_forward(pk_device_session *session, int64_t B, int64_t T, const float *com_in, float *mag, float *pha,
                          float *com, double *seconds);

/* A pass with every kernel timed (krait_primeknet_kernels). */
int32_t pk_device_kernels(pk_device_session *session, int64_t B, int64_t T, const float *com_in, krait_kernel_fn report,
                          void *user);

int64_t pk_panel_columns(const kr_panels *w); /* as packed for a device */

#endif
