/* norm_params.h: kernel parameters of the norms. All four ops share one pair of kernels: a gated norm is an add + norm
 * with a gate and groups. */
#ifndef KR_NORM_PARAMS_H
#define KR_NORM_PARAMS_H

#include <stdint.h>

/* A row in registers has at most 2 runs of 8 features, or KR_NORM_SINGLES features, per thread of KR_NORM_THREADS. */
enum {
  KR_NORM_FEW_SINGLES = 8,
  KR_NORM_SINGLES = 16,
  KR_NORM_FOURS = 4, /* kr_norm_stream: runs of four features per thread */
  KR_NORM_THREADS = 512,
  KR_NORM_SMALL_THREADS = 256,
  KR_NORM_SUM_THREADS = 1024
};
/* Prefetching gradient: threads per block, stages, tensors per stage; bytes of the kernel's other shared memory. */
enum {
  KR_NORM_AHEAD_THREADS = 1024,
  KR_NORM_AHEAD_STAGES = 3,
  KR_NORM_AHEAD_TENSORS = 3,
  KR_NORM_AHEAD_BESIDE = 16 * (KR_NORM_AHEAD_THREADS / 32)
};
enum { KR_NORM_NO_GATE, KR_NORM_GATE_LAST, KR_NORM_GATE_FIRST };

typedef struct kr_norm_view {
  void *data;           /* NULL: absent */
  int64_t row, col;     /* strides in elements */
  int32_t dtype, reserved;
} kr_norm_view;

typedef struct kr_norm_params {
  int64_t R, M, n;              /* rows, features, features per group; blocks in y are groups */
  float eps, inverse_n;
  int32_t rms, gate, warps, rows_per_block; /* warps: per row */
  int32_t row_shift;            /* a thread's row in the block is its index >> row_shift */
  int32_t
      ahead_parts; /* backward: n_parts of the kernel with asynchronous prefetch, 0 where it does not accept the call */
  int32_t run, units; /* features per run: 8 where all views are 16-byte aligned for it, else 1; 0 where the row
                         does not fit in registers; runs per thread */
  int32_t row_types, types;     /* bit sets of 1 << dtype: row tensors, all tensors */
  int32_t n_parts, n_sums;      /* backward: rows are divided among n_parts, each with its own parameter sums */
  kr_norm_view x, x1, second, rowscale, weight, bias, weight1,
      bias1; /* second: the gate z, or the residual added; backward: dresidual_out */
  kr_norm_view out, out1, residual_out;
  kr_norm_view dout, dout1, dx, dx1, dresidual, dz;
  kr_norm_view sums[4];         /* dweight, dbias, dweight1, dbias1 */
  float *part;                  /* (n_parts, n_sums, M) */
} kr_norm_params;

#endif
