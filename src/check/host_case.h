/* host_case.h: runs a CPU's implementation on a case. */
#ifndef KR_HOST_CASE_H
#define KR_HOST_CASE_H
#include "check.h"
int32_t kr_case_run_on_host(const krait_ctx *ctx, kr_case *c, const kr_impl *impl);
#endif
