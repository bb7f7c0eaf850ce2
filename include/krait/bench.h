/* bench.h: how long an operator takes here, and the limits of this machine. */
#ifndef KRAIT_BENCH_H
#define KRAIT_BENCH_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_op_timing {
  uint32_t size; /* sizeof(krait_op_timing) */
  int32_t n_runs;
  double best_s, median_s, reference_s; /* wall-clock time, on a GPU device time; reference_s: one call of the reference
                                           implementation, 0 if not requested */
  double flops, bytes, exps;            /* the minimum that one call must do */
  const char *impl;                      /* static: the implementation that ran */
  double host_s;                        /* on a GPU: until a call returns, median; 0 on the CPU */
  int32_t n_copies;   /* on a GPU: copies of the tensors, used in turn, so that none is found in L2; else 0 */
  int32_t from_graph; /* on a GPU: 1, calls captured in a graph; 0: launched one by one (the driver has no graphs) */
} krait_op_timing;
/* Times an operator on typical values. shape: "B=1,D=1536,L=2048,N=16" on top of the op's defaults, "last" makes
 * tensors channels-last; NULL: the defaults. dtype: KRAIT_F32, _F16 or _BF16. Runs for about budget_s. On a GPU the
 * reference is not run. */
KRAIT_API int32_t krait_op_measure(const krait_ctx *ctx, const char *op, const char *shape, int32_t dtype,
                                   double budget_s, int32_t with_reference, krait_op_timing *timing);

/* The same for one implementation, by its name (krait_op_impl_name). KRAIT_ERR_UNSUPPORTED: it refuses this call, or
 * needs a capability that the context lacks. */
KRAIT_API int32_t krait_op_measure_impl(const krait_ctx *ctx, const char *op, const char *impl, const char *shape,
                                       int32_t dtype, double budget_s, krait_op_timing *timing);

typedef struct krait_limits {
  uint32_t size; /* sizeof(krait_limits) */
  uint32_t reserved;
  double copy_bytes_per_s; /* read and written bytes of a large copy */
  double exps_per_s;       /* float32 exponentials over the whole range, 1 ulp */
  double flops_per_s;      /* fused multiply-adds count twice */
} krait_limits;
/* The combined limits of the context's threads, or of its GPU, measured now (takes about a tenth of a second). */
KRAIT_API int32_t krait_measure_limits(const krait_ctx *ctx, krait_limits *limits);

#ifdef __cplusplus
}
#endif
#endif
