/* bench.h: how long an operator takes here, and what this machine can do at most. */
#ifndef KRAIT_BENCH_H
#define KRAIT_BENCH_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_op_timing {
  uint32_t size; /* sizeof(krait_op_timing) */
  int32_t n_runs;
  double best_s, median_s, reference_s; /* wall-clock; reference_s: one call of the reference row, 0 if not asked for */
  double flops, bytes, exps;            /* what one call must do at least */
  const char *row;                      /* static: the row that ran */
} krait_op_timing;
/* Times an operator on usual values. shape: "B=1,D=1536,L=2048,N=16" over the op's defaults, "last" puts channels innermost; NULL: the
 * defaults. Runs for about budget_s. CPU contexts only. */
KRAIT_API int32_t krait_op_measure(const krait_ctx *ctx, const char *op, const char *shape, int32_t dtype, double budget_s, int32_t with_reference, krait_op_timing *timing);

typedef struct krait_limits {
  uint32_t size; /* sizeof(krait_limits) */
  uint32_t reserved;
  double copy_bytes_per_s; /* read and written bytes of a large copy */
  double exps_per_s;       /* float32 exponentials over the whole range, 1 ulp */
  double flops_per_s;      /* fused multiply-adds count twice */
} krait_limits;
/* What the context's threads can do together, measured now (about a tenth of a second). CPU contexts only. */
KRAIT_API int32_t krait_measure_limits(const krait_ctx *ctx, krait_limits *limits);

#ifdef __cplusplus
}
#endif
#endif
