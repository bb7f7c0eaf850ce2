/* argmax_rows_plan.h: what the kernels of argmax_rows.cu are told; host and device read the same struct. */
#ifndef KR_ARGMAX_ROWS_PLAN_H
#define KR_ARGMAX_ROWS_PLAN_H

#include <krait/ops.h>

/* A block's threads; elements that are worth a block; parts of a row at most, and blocks of few rows. */
enum { KR_ARGMAX_THREADS = 256, KR_ARGMAX_PART = 1024, KR_ARGMAX_PARTS = 64, KR_ARGMAX_BLOCKS = 256 };

typedef struct kr_argmax_plan {
  krait_argmax_rows_args a;
  float *values; /* (R,n_parts): the largest of each part, where there are several */
  int32_t *places;
  int64_t part; /* elements, a multiple of four */
  int32_t n_parts;
} kr_argmax_plan;

#endif
