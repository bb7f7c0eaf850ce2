/* overlap.h: calls of a recording whose kernels may start while the kernel before them still runs (overlap.cuh). The
 * runner of a graph puts these bits into krait_call.flags of such a call, while it records and only then: a recording's
 * first kernel starts when all that was enqueued before it is done. */
#ifndef KR_OVERLAP_H
#define KR_OVERLAP_H

#define KR_CALL_AHEAD 0x80000000u       /* no call of the recording writes this one's parameters */
#define KR_CALL_STATE_AHEAD 0x40000000u /* no call before it writes its states, nor the indices that it reads */

#endif
