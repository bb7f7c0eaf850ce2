/* scan_any_params.h: parameters of the general scan kernels (selective_scan_general.cu), one struct for host and
 * device. */
#ifndef KR_SCAN_ANY_PARAMS_H
#define KR_SCAN_ANY_PARAMS_H

#include "op_args.h"

typedef struct kr_scan_general_params {
  kr_selective_scan_bwd_args a; /* inputs of either call; the gradients are absent in the forward call */
  kr_view out, last_state;
  int64_t n_rows, parts,
      per_part; /* rows: batch entries or packed sequences; a group's channels are split into parts of per_part */
  /* Scratch. A slab is one step of a (group, part, batch entry); in the forward call, of a (channel, batch entry). */
  float *y, *du, *ddt;             /* (slab) */
  float *x, *dB, *dC;              /* (slab, N, 2) */
  float *dA, *dA_reverse, *constant_dB, *constant_dC; /* (row, D, N, 2) */
  float *dD, *dbias;               /* (row, D) */
} kr_scan_general_params;

#endif
