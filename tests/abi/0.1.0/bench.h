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
  double best_s, median_s, reference_s; /* wall-clock, on a GPU the device's; reference_s: one call of the reference implementation, 0 if not asked for */
  double flops, bytes, exps;            /* what one call must do at least */
  const char *impl;                      /* static: the implementation that ran */
  double host_s;                        /* on a GPU: until a call returns, median; 0 on the CPU */
  int32_t n_copies;                     /* on a GPU: of the tensors, taken in turn, so that no call finds them in the L2 cache; else 0 */
  int32_t from_graph;                   /* on a GPU: 1, calls recorded into a graph; 0: launched one by one, for want of graphs in the driver */
} krait_op_timing;
/* Times an operator on usual values. shape: "B=1,D=1536,L=2048,N=16" over the op's defaults, "last" puts channels innermost; NULL: the
 * defaults. dtype: KRAIT_F32, _F16 or _BF16. Runs for about budget_s. On a GPU without the reference. */
KRAIT_API int32_t krait_op_measure(const krait_ctx *ctx, const char *op, const char *shape, int32_t dtype, double budget_s, int32_t with_reference, krait_op_timing *timing);

typedef struct krait_limits {
  uint32_t size; /* sizeof(krait_limits) */
  uint32_t reserved;
  double copy_bytes_per_s; /* read and written bytes of a large copy */
  double exps_per_s;       /* float32 exponentials over the whole range, 1 ulp */
  double flops_per_s;      /* fused multiply-adds count twice */
} krait_limits;
/* What the context's threads, or its GPU, can do together, measured now (about a tenth of a second). */
KRAIT_API int32_t krait_measure_limits(const krait_ctx *ctx, krait_limits *limits);

#ifdef __cplusplus
}
#endif
#endif
