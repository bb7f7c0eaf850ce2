/* codec.h: encodes and decodes samples with one of libsndfile's lossy codecs, in memory, as telephones and messengers
 * do. */
#ifndef KR_CODEC_H
#define KR_CODEC_H

#include <stdint.h>

/* Codecs that this build of libsndfile has. */
int kr_codec_count(void);
const char *kr_codec_name(int codec);
/* In place, n samples of one channel, 16 kHz. The codec's delay is removed; samples beyond full scale are clipped. */
int32_t kr_codec_pass(int codec, float *samples, int64_t n);

#endif
