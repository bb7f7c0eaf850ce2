/* bench_op.h: the part of krait bench that times one operator. */
#ifndef KR_BENCH_OP_H
#define KR_BENCH_OP_H
#include "args.h"
/* rows: NULL for the best row, "all", or the name of one. The exit status. */
int bench_op(const char *op, const char *shape, const char *dtype, const char *rows, int with_reference, int as_json, const kr_run *run);
#endif
