/* bench_seedvr.h: what krait bench seedvr times. */
#ifndef KR_BENCH_SEEDVR_H
#define KR_BENCH_SEEDVR_H

#include "args.h"

typedef struct kr_bench_seedvr {
  const char *variant; /* "3b" or "7b"; NULL: both */
  int32_t dtype;
  int64_t n_frames;    /* 0: 1, 21 and 121; on a CPU 1 */
  int as_json;
} kr_bench_seedvr;

int kr_bench_seedvr_run(const kr_run *run, const kr_bench_seedvr *bench); /* the exit status */

#endif
