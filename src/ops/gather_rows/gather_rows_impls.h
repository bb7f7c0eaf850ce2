/* gather_rows_impls.h: the implementations of gather_rows that have files of their own. */
#ifndef KR_GATHER_ROWS_IMPLS_H
#define KR_GATHER_ROWS_IMPLS_H

#include "op_args.h"

const char *kr_gather_rows_copies_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_gather_rows_copies(const krait_ctx *ctx, const void *args);

#endif
