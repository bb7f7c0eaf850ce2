/* convolve.h: two real signals multiplied spectrum by spectrum: convolution, correlation at every shift, and filters
 * given by their gain. */
#ifndef KR_CONVOLVE_H
#define KR_CONVOLVE_H

#include <stdint.h>

typedef struct kr_convolver kr_convolver;

/* The least power of two that is at least n. */
int64_t kr_power_of_two(int64_t n);

/* n_fft is a power of two; everything is circular over it. One caller at a time. */
int32_t kr_convolver_open(int64_t n_fft, kr_convolver **convolver);
void kr_convolver_close(kr_convolver **convolver);
int64_t kr_convolver_size(const kr_convolver *convolver);
/* a[0, n_a) and b[0, n_b), zero-padded, to out (n_fft floats, valid until the next run). */
const float *kr_convolver_convolve(kr_convolver *convolver, const float *a, int64_t n_a, const float *b,
                                   int64_t n_b); /* out[k] = sum_i a[i] b[k - i] */
const float *kr_convolver_correlate(kr_convolver *convolver, const float *a, int64_t n_a, const float *b,
                                    int64_t n_b); /* out[k] = sum_i a[i] b[i + k] */
/* Each bin k of n_fft / 2 + 1 times gain(user, k). */
const float *kr_convolver_filter(kr_convolver *convolver, const float *a, int64_t n_a,
                                 double (*gain)(const void *user, int64_t bin), const void *user);

#endif
