/* measure_cuda.h: the part of bench.h that needs a GPU. */
#ifndef KR_MEASURE_CUDA_H
#define KR_MEASURE_CUDA_H

#include <krait/bench.h>

#include "measured_call.h"

enum { KR_MEASURE_RUNS = 1000 }; /* the most that are timed */

/* Sorts: times[0] is the best, times[n / 2] the median. */
void kr_sort_times(double *times, int n);

/* c's tensors are on the host; fills in *out except the cost and the implementation. */
int32_t kr_measure_on_device(const krait_ctx *ctx, const kr_op *op, const kr_impl *impl, kr_measured_call *c,
                             double budget_s, krait_op_timing *out);
int32_t kr_measure_device_limits(const krait_ctx *ctx, krait_limits *limits);

#endif
