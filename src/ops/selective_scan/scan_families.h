/* scan_families.h: the families of GPU kernels of the scan and of its gradient, best first. */
#ifndef KR_SCAN_FAMILIES_H
#define KR_SCAN_FAMILIES_H

#include "cuda_row.h"

/* States over lanes, four on each: rows along time in whole packs; unaligned rows; any rows. Then time over
 * lanes: all of 8 steps or less; all lanes of a block along a channel; any call that follows. Two scans of which the
 * second adds; and what none of these takes: complex A, constant B or C. */
#define KR_SCAN_FAMILIES(X, op)                                                                              \
  X(op, packed_rows)                                                                                         \
  X(op, unaligned_rows) X(op, states_over_lanes) X(op, few_steps) X(op, few_channels) X(op, time_over_lanes) \
      X(op, both_directions) X(op, general)
/* A thread for each channel, with all its states; the others as above. */
#define KR_SCAN_BWD_FAMILIES(X, op) \
  X(op, few_states)                 \
  X(op, packed_rows) X(op, unaligned_rows) X(op, states_over_lanes) X(op, time_over_lanes) X(op, general)
/* Channels-last rows, by copies past the registers: from the ampere tier on. */
#define KR_SCAN_LAST_FAMILY(X, op) X(op, channels_last)

KR_SCAN_LAST_FAMILY(KR_CUDA_FAMILY_DECLARE, selective_scan)
KR_SCAN_FAMILIES(KR_CUDA_FAMILY_DECLARE, selective_scan)
KR_SCAN_LAST_FAMILY(KR_CUDA_FAMILY_DECLARE, selective_scan_bwd)
KR_SCAN_BWD_FAMILIES(KR_CUDA_FAMILY_DECLARE, selective_scan_bwd)

#endif
