/* argmax_rows_params.h: kernel parameters of argmax_rows.cu, the same struct for host and device. */
#ifndef KR_ARGMAX_ROWS_PARAMS_H
#define KR_ARGMAX_ROWS_PARAMS_H

#include "op_args.h"

/* Threads per block; elements worth a block; most parts per row, and of a row in a cluster, with the bytes that they
 * send; most blocks when rows are few. */
enum {
  KR_ARGMAX_THREADS = 256,
  KR_ARGMAX_PART = 1024,
  KR_ARGMAX_PARTS = 64,
  KR_ARGMAX_CLUSTER = 8,
  KR_ARGMAX_SENT_BYTES = 16 * KR_ARGMAX_CLUSTER,
  KR_ARGMAX_BLOCKS = 256
};

typedef struct kr_argmax_params {
  kr_argmax_rows_args a;
  float *values; /* (R,n_parts): maximum of each part, if there are several and no cluster */
  int32_t *places;
  int64_t part;                /* elements, a multiple of four */
  int32_t n_parts, in_cluster; /* in_cluster: a row's blocks are one */
} kr_argmax_params;

#endif
