/* bench_tower.h: what krait bench videomamba and clip time. */
#ifndef CLI_BENCH_TOWER_H
#define CLI_BENCH_TOWER_H

#include "args.h"

typedef struct cli_bench_tower {
  const char *family, *sizes; /* "videomamba" or "clip"; NULL: those of Mobile-VideoGPT */
  int32_t dtype;
  int64_t n_frames, n_runs;   /* n_frames 0: 8 of a clip, 16 pictures */
  int as_json, by_kernel;
} cli_bench_tower;

int cli_bench_tower_run(const cli_run *run, const cli_bench_tower *bench); /* the exit status */

#endif
