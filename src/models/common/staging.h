/* staging.h: host memory into a device's, through two page-locked pieces: the context's threads fill one while the
 * other is on its way. */
#ifndef KR_STAGING_H
#define KR_STAGING_H

#include <krait/krait.h>

typedef struct kr_staging kr_staging;

/* Of a context on a GPU. Without page-locked memory the driver copies, which is slower. */
int32_t kr_staging_open(const krait_ctx *ctx, kr_staging **staging);
void kr_staging_close(kr_staging **staging); /* what is not sent yet is dropped */
/* The host's bytes may change when it returns. Fastest in order of the device's addresses. */
int32_t kr_staging_put(kr_staging *staging, void *to, const void *from, uint64_t bytes);
int32_t kr_staging_finish(kr_staging *staging); /* all bytes have arrived */

#endif
