/* bench_restore.h: what krait bench restore times. */
#ifndef CLI_BENCH_RESTORE_H
#define CLI_BENCH_RESTORE_H

#include "args.h"

typedef struct cli_bench_restore {
  const char *variant; /* "3b" or "7b"; NULL: 3b */
  const char *size;    /* WIDTHxHEIGHT; NULL: 1280x720 */
  uint64_t memory_bytes; /* at most; 0: what is free */
  int32_t dtype;
  int64_t n_frames, n_runs;
  int as_json, by_kernel;
} cli_bench_restore;

int cli_bench_restore_run(const cli_run *run, const cli_bench_restore *bench); /* the exit status */

#endif
