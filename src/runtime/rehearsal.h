/* rehearsal.h: kernels loaded before they are launched, by all threads of a context: what would be launched is found by
 * running the same calls with launches noted instead of run. */
#ifndef KR_REHEARSAL_H
#define KR_REHEARSAL_H

#include <krait/krait.h>

/* run: enqueues launches and does nothing else that lasts. On a CPU, and within another rehearsal, nothing happens. A
 * failure of run is not reported: it will fail again. */
void kr_rehearse(const krait_ctx *ctx, int32_t (*run)(void *user), void *user);

#endif
