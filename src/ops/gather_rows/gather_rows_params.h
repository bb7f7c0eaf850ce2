/* gather_rows_params.h: kernel parameters of gather_rows.cu. */
#ifndef KR_GATHER_ROWS_PARAMS_H
#define KR_GATHER_ROWS_PARAMS_H

#include "op_args.h"
#include "rows.h"

enum { KR_GATHER_THREADS = 128, KR_GATHER_ROWS = 4 /* per thread, on packs */ };

typedef struct kr_gather_params {
  kr_gather_rows_args a;
  kr_divisor M;
  uint32_t n_threads;
  uint32_t reserved;
} kr_gather_params;

#endif
