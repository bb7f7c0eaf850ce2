/* codec.h: samples through a lossy codec of libsndfile's and back, in memory: what telephones and messengers do to
 * speech. */
#ifndef KR_CODEC_H
#define KR_CODEC_H

#include <stdint.h>

/* Codecs that this build of libsndfile has. */
int kr_codec_count(void);
const char *kr_codec_name(int codec);
/* In place, n samples of one channel, 16 kHz. What a codec adds in front is taken away; samples beyond full scale are
 * clipped. */
int32_t kr_codec_pass(int codec, float *samples, int64_t n);

#endif
