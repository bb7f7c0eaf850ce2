/* real_fft.h: the forward transform of a real signal of 4^a 5^b samples, with the rounding of FFTPACK (Swarztrauber
 * 1982) in the summation order of PyTorch's CPU build. This matters for symmetric frames: their spectrum is real up to
 * rounding, and the sign of the rounding error decides between the phases +pi and -pi. */
#ifndef KR_REAL_FFT_H
#define KR_REAL_FFT_H

#include <stdint.h>

typedef struct kr_real_fft kr_real_fft;

int kr_real_fft_fits(int64_t n); /* is n a product of fours and fives? */
int32_t kr_real_fft_open(int64_t n, kr_real_fft **fft);
void kr_real_fft_close(kr_real_fft **fft);
/* x (n) is consumed; re, im (n/2 + 1), out of x_f = sum_t x_t exp(-2 pi i f t / n). */
void kr_real_fft_run(kr_real_fft *fft, float *x, float *re, float *im);

#endif
