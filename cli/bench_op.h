/* bench_op.h: the part of krait bench that times one operator. */
#ifndef KR_BENCH_OP_H
#define KR_BENCH_OP_H
#include "args.h"
int bench_op(const char *op, const char *shape, const char *dtype, int with_reference, int as_json, const kr_run *run); /* the exit status */
#endif
