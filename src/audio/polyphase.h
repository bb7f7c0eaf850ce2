/* polyphase.h: resamples one channel by a short linear-phase filter, in memory that is allocated when it is opened:
 * output sample k is at time k / out_hz of the input, and depends on the input up to kr_polyphase_after samples after
 * that time, and on a bounded part before it. Before its beginning the input is silent. (resample.h has longer
 * filters.) */
#ifndef KR_POLYPHASE_H
#define KR_POLYPHASE_H

#include "stream.h"

typedef struct kr_polyphase kr_polyphase;

#define KR_POLYPHASE_EDGE 0.95 /* the usual edge: nearly all that the lower rate holds */

/* The filter is down by 6 dB at `edge` of half the lower rate. Nothing is allocated later as long as at most n_waiting
 * samples of input wait. */
int32_t kr_polyphase_open(int32_t in_hz, int32_t out_hz, double edge, int64_t n_waiting, kr_polyphase **p);
void kr_polyphase_close(kr_polyphase **p);
void kr_polyphase_begin(kr_polyphase *p); /* starts again */
int64_t kr_polyphase_after(const kr_polyphase *p);
int32_t kr_polyphase_push(kr_polyphase *p, const float *in, int64_t n);
int64_t kr_polyphase_ready(const kr_polyphase *p);           /* samples that can be pulled */
void kr_polyphase_pull(kr_polyphase *p, float *out, int64_t n); /* n <= ready */

#endif
