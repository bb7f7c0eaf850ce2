/* projected_scan_params.h: kernel parameters of projected_scan.cu, the same struct for host and device. */
#ifndef KR_PROJECTED_SCAN_PARAMS_H
#define KR_PROJECTED_SCAN_PARAMS_H

#include <stdint.h>

/* Rows (b, l) are evenly spaced by these many floats, those of proj by X. Contiguous channels. */
typedef struct kr_projected_scan_params {
  const float *u, *z, *proj, *dt_weight, *dt_bias, *A, *Dvec;
  float *out;
  int64_t B;
  int32_t L, D, R, N, X, u_row, z_row, out_row;
  int32_t dt_rank; /* rank stride of dt_weight */
} kr_projected_scan_params;

#endif
