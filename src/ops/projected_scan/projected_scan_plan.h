/* projected_scan_plan.h: what the kernels of projected_scan.cu take; host and device read the same struct. */
#ifndef KR_PROJECTED_SCAN_PLAN_H
#define KR_PROJECTED_SCAN_PLAN_H

#include <stdint.h>

/* Rows (b, l) follow each other; so many floats from row to row, those of proj X. Channels lie side by side. */
typedef struct kr_projected_scan_plan {
  const float *u, *z, *proj, *dt_weight, *dt_bias, *A, *Dvec;
  float *out;
  int64_t B;
  int32_t L, D, R, N, X, u_row, z_row, out_row;
  int32_t dt_rank; /* from rank to rank of dt_weight */
} kr_projected_scan_plan;

#endif
