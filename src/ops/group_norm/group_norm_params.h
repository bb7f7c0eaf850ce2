/* group_norm_params.h: kernel parameters of the norm over groups; the same struct for host and device. */
#ifndef KR_GROUP_NORM_PARAMS_H
#define KR_GROUP_NORM_PARAMS_H

#include "op_args.h"
#include "rows.h"

enum { KR_GROUP_NORM_THREADS = 256, KR_GROUP_NORM_MOST_CHUNKS = 1024 };

typedef struct kr_group_norm_params {
  kr_view x, weight, bias, out;
  float *sums;          /* (B, n_chunks, C, 2): mean, squares around it */
  float *scale, *shift; /* (B, C) */
  int64_t S;
  int32_t C, G, each, n_chunks, chunk; /* each: channels of a group; chunk: positions */
  int32_t n_runs, n_rows, n_blocks;        /* of a block: runs of channels, positions at once; blocks of an item */
  int32_t activation;
  float eps;
  kr_divisor by_runs;
} kr_group_norm_params;

#endif
