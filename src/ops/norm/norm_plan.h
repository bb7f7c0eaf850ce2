/* norm_plan.h: what the host tells the norms' kernels. All four ops are one pair of kernels: a gated norm is an add +
 * norm with a gate and with groups. */
#ifndef KR_NORM_PLAN_H
#define KR_NORM_PLAN_H

#include <stdint.h>

/* A row in registers is at most 2 runs of 8 features, or KR_NORM_SINGLES features, for each of KR_NORM_THREADS
 * threads. */
enum {
  KR_NORM_FEW_SINGLES = 8,
  KR_NORM_SINGLES = 16,
  KR_NORM_THREADS = 512,
  KR_NORM_SMALL_THREADS = 256,
  KR_NORM_SUM_THREADS = 256
};
/* Gradients with rows on their way: threads of a block, rows that are, tensors of each; bytes of shared memory that the
 * kernel has beside them. */
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

typedef struct kr_norm_plan {
  int64_t R, M, n;              /* rows, features, features of a group; blocks in y are groups */
  float eps, inverse_n;
  int32_t rms, gate, warps, rows_per_block; /* warps: of a row */
  int32_t row_shift;            /* a thread's row in the block is its number >> row_shift */
  int32_t
      ahead_parts; /* backward: n_parts of the kernel that has rows on their way, 0 where it does not take the call */
  int32_t run, units; /* features of a run: 8 where such are aligned to 16 bytes in every view, else 1, 0 where the row
                         does not lie in registers; runs of a thread */
  int32_t row_types, types;     /* of the tensors of rows, and of all: 1 << dtype */
  int32_t n_parts, n_sums;      /* backward: rows are dealt to n_parts, each sums its own parameter gradients */
  kr_norm_view x, x1, second, rowscale, weight, bias, weight1,
      bias1; /* second: the gate z, or what is added: the residual, backward dresidual_out */
  kr_norm_view out, out1, residual_out;
  kr_norm_view dout, dout1, dx, dx1, dresidual, dz;
  kr_norm_view sums[4];         /* dweight, dbias, dweight1, dbias1 */
  float *part;                  /* (n_parts, n_sums, M) */
} kr_norm_plan;

#endif
