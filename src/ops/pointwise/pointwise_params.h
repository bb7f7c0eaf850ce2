/* pointwise_params.h: kernel parameters of pointwise.cu, the same structs for host and device. */
#ifndef KR_POINTWISE_PARAMS_H
#define KR_POINTWISE_PARAMS_H

#include "op_args.h"
#include "rows.h"

enum { KR_POINTWISE_THREADS = 256, KR_POINTWISE_PACK = 8, KR_SUM_BLOCK = 128, KR_SUM_ROWS = 64, KR_SUM_PARTS = 1024 };

typedef struct kr_pointwise_view {
  void *data; /* NULL: absent */
  int64_t stride[4];
  int32_t dtype, packs; /* packs: runs of eight are 16-byte aligned */
} kr_pointwise_view;

typedef struct kr_pointwise_params {
  kr_pointwise_view out, x, y;
  kr_divisor n[4]; /* n[0] is never divided by; n[3] counts packs if threads take packs */
  uint32_t n_threads;
  int32_t activation, product, slope, gate;
  int64_t x_other, out_other; /* of a gate's gradients: from its elements to the factor's; dimension I is 1 */
  float x_scale, y_scale;
} kr_pointwise_params;

/* Sums of `rows` rows each, at least KR_SUM_ROWS per thread, then the sum of these. */
typedef struct kr_sum_params {
  kr_view x, out;
  float *partial; /* (n_parts, M) */
  int64_t R, M, n_parts, rows;
  uint32_t lanes, n_groups; /* columns per block, or packs of eight, a power of two; blocks along M */
} kr_sum_params;

#endif
