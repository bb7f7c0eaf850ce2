/* ssd_halves.h: sizes of the SSD's walk by float16 parts of float32 (ssd_chunks_f32.cu); the same for host and device.
 */
#ifndef KR_SSD_HALVES_H
#define KR_SSD_HALVES_H

#include "ssd_params.h"

#define KR_SSD_FLOAT_WALKERS 256
#define KR_SSD_FLOAT_P_BYTES (2 * KR_SSD_CHUNK * KR_SSD_CHUNK * 2)
/* What all heads of a group read of a chunk, of N states (64 or 128) in `parts` parts; and a block's shared memory. */
#define KR_SSD_HALVES_BYTES(N, parts) (2 * (parts) * KR_SSD_CHUNK * (N) * 2 + 3 * KR_SSD_CHUNK * 4)
#define KR_SSD_HALVES_SHARED(N, parts)                                                                       \
  (KR_SSD_CHUNK * KR_SSD_P * 4 + KR_SSD_HALVES_BYTES(N, parts) + KR_SSD_FLOAT_P_BYTES + KR_SSD_STEPS_BYTES + \
   4 * KR_SSD_CHUNK * 4)

#endif
