/* quantize.h: q8_0: 32 weights share a scale, the largest magnitude / 127 as float16, and each is the nearest multiple of it. In a file, a matrix NAME of
 * (rows, 32 S) is NAME.q8_0, (rows, 8 S) int32 of four bytes each, the first weight lowest, and NAME.q8_0.scales, (rows, S) float16. */
#ifndef KR_QUANTIZE_H
#define KR_QUANTIZE_H

#include "weights.h"

int kr_q8_fits(const kr_weight *item); /* a matrix of floats whose rows are whole blocks */
/* words: rows * S * 8; scales: rows * S. */
void kr_q8_quantize(const kr_weight *item, int32_t *words, uint16_t *scales);
/* One row of S blocks back, as floats. */
void kr_q8_row(const int32_t *words, const uint16_t *scales, int64_t S, float *to);

#endif
