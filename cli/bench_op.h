/* bench_op.h: the part of krait bench that times one operator. */
#ifndef CLI_BENCH_OP_H
#define CLI_BENCH_OP_H
#include "args.h"
/* implementations: NULL for the best implementation, "all", or the name of one. Returns the exit status. */
int cli_bench_dtype(const char *text, int32_t *dtype); /* -1: valid; otherwise the exit status 2. NULL is float32 */
int bench_op(const char *op, const char *shape, const char *dtype, const char *impls, int with_reference, int as_json,
             const cli_run *run);
#endif
