/* resample.h: resamples one channel, block by block, without delay: output sample k is at time k / out_hz of the input,
 * and the caller gives the total number. */
#ifndef KR_RESAMPLE_H
#define KR_RESAMPLE_H

#include "stream.h"

typedef struct kr_resampler kr_resampler;

/* Samples at out_hz that cover n_in samples at in_hz: rounded up. */
int64_t kr_resampled_length(int64_t n_in, int32_t in_hz, int32_t out_hz);

int32_t kr_resampler_open(int32_t in_hz, int32_t out_hz, kr_sink sink, kr_resampler **resampler);
void kr_resampler_close(kr_resampler **resampler);
int32_t kr_resampler_push(kr_resampler *resampler, const float *samples, int64_t n);
/* Ends the input; afterwards exactly n_out samples have reached the sink since the start. */
int32_t kr_resampler_finish(kr_resampler *resampler, int64_t n_out);

#endif
