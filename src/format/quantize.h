/* quantize.h: quantized weights. q8_0: 32 weights share a scale, the largest magnitude / 127 as float16, and each is
 * the nearest multiple of it. In a file, a matrix NAME of (rows, 32 S) is NAME.q8_0, (rows, 8 S) int32 of four bytes
 * each, the first weight lowest, and NAME.q8_0.scales, (rows, S) float16. q4_k: 256 weights share two float16 factors,
 * 32 of them a scale and a minimum of six bits (see gemm_q4k_ref.c for the bit layout): NAME of (rows, 256 S) is
 * NAME.q4_k, (rows, 36 S) int32. */
#ifndef KR_QUANTIZE_H
#define KR_QUANTIZE_H

#include "weights.h"

int kr_q8_fits(const kr_weight *item); /* a matrix of floats whose rows are whole blocks */
/* Rows [from, to); words, rows * S * 8, and scales, rows * S, are those of the whole matrix. */
void kr_q8_quantize(const kr_weight *item, int64_t from, int64_t to, int32_t *words, uint16_t *scales);
/* Rows [from, to), of S blocks each, dequantized to float16; all three pointers are those of the whole matrix. */
void kr_q8_widen(const int32_t *words, const uint16_t *scales, int64_t S, int64_t from, int64_t to, uint16_t *halves);

int kr_q4k_fits(const kr_weight *item); /* a matrix of floats whose rows are whole super-blocks */
/* Rows [from, to); words are those of the whole matrix, rows * S * 36. */
void kr_q4k_quantize(const kr_weight *item, int64_t from, int64_t to, int32_t *words);
/* Dequantizes one row of S super-blocks. */
void kr_q4k_row(const int32_t *words, int64_t S, float *to);

#endif
