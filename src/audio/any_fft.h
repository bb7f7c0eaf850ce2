/* any_fft.h: transforms of real signals of any even length, with kissfft. Not in libkrait-ops, which does
 * without that library (bundled.c). */
#ifndef KR_ANY_FFT_H
#define KR_ANY_FFT_H

#include <stdint.h>

typedef struct kr_any_fft kr_any_fft;

int32_t kr_any_fft_open(int64_t n, kr_any_fft **fft);
void kr_any_fft_close(kr_any_fft **fft);
/* x (n); re, im (n/2 + 1), out of x_f = sum_t x_t exp(-2 pi i f t / n). */
void kr_any_fft_forward(kr_any_fft *fft, const float *x, float *re, float *im);
/* n times the signal of that spectrum; im is taken as 0 at both ends. */
void kr_any_fft_inverse(kr_any_fft *fft, const float *re, const float *im, float *x);

#endif
