/* device_case.h: runs an implementation on a case whose tensors are in host memory, through copies on the context's
 * GPU. */
#ifndef KR_DEVICE_CASE_H
#define KR_DEVICE_CASE_H
#include "check.h"
int32_t kr_case_run_on_device(const krait_ctx *ctx, kr_case *c, const kr_impl *impl);
#endif
