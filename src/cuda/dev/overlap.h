/* overlap.h: recorded calls whose kernels may start while the previous one still runs (overlap.cuh). A graph's runner
 * sets these bits in kr_call.flags of such a call only while it records: a recording's first kernel starts when
 * everything enqueued before it is done. */
#ifndef KR_OVERLAP_H
#define KR_OVERLAP_H

#define KR_CALL_PDL 0x80000000u       /* no call of the recording writes this call's parameters */
#define KR_CALL_STATE_PDL 0x40000000u /* no earlier call writes its states, nor the indices it reads */

#endif
