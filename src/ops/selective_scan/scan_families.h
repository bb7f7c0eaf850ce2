/* scan_families.h: the GPU kernel families of the scan and its gradient, best first. */
#ifndef KR_SCAN_FAMILIES_H
#define KR_SCAN_FAMILIES_H

#include "cuda_impl.h"

/* States across lanes, four per lane: packed rows along time; unaligned rows; any rows. Then time across lanes: at most
 * 8 steps; a whole block per channel; any other real call. Both directions as two scans, the second accumulating; and
 * the rest: complex A, constant B or C. */
#define KR_SCAN_FAMILIES(X, op)                                                                              \
  X(op, packed_rows)                                                                                         \
  X(op, unaligned_rows) X(op, states_over_lanes) X(op, few_steps) X(op, few_channels) X(op, time_over_lanes) \
      X(op, both_directions) X(op, general)
#define KR_SCAN_BWD_FAMILIES(X, op) \
  X(op, packed_rows) X(op, unaligned_rows) X(op, states_over_lanes) X(op, time_over_lanes) X(op, general)
/* Channels-last rows by asynchronous copies: ampere tier and up. */
#define KR_SCAN_CHANNELS_LAST_FAMILY(X, op) X(op, channels_last)

KR_SCAN_CHANNELS_LAST_FAMILY(KR_CUDA_FAMILY_DECLARE, selective_scan)
KR_SCAN_FAMILIES(KR_CUDA_FAMILY_DECLARE, selective_scan)
KR_SCAN_CHANNELS_LAST_FAMILY(KR_CUDA_FAMILY_DECLARE, selective_scan_bwd)
KR_SCAN_BWD_FAMILIES(KR_CUDA_FAMILY_DECLARE, selective_scan_bwd)

#endif
