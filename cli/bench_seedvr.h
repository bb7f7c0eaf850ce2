/* bench_seedvr.h: what krait bench seedvr times. */
#ifndef CLI_BENCH_SEEDVR_H
#define CLI_BENCH_SEEDVR_H

#include "args.h"

typedef struct cli_bench_seedvr {
  const char *variant; /* "3b" or "7b"; NULL: both */
  int32_t dtype;
  int64_t n_frames;    /* 0: 1, 21 and 121; on a CPU 1 */
  int as_json, by_kernel;
} cli_bench_seedvr;

int cli_bench_seedvr_run(const cli_run *run, const cli_bench_seedvr *bench); /* the exit status */

#endif
