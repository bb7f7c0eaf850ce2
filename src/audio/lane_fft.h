/* lane_fft.h: complex transforms of several signals side by side: element k of signal l is at [k lanes + l], real and
 * imaginary parts apart, so that the loops over signals become vector instructions of any processor. */
#ifndef KR_LANE_FFT_H
#define KR_LANE_FFT_H

#include <stdint.h>

typedef struct kr_lane_fft {
  int64_t n;            /* a power of two */
  float *re, *im;       /* (n, lanes): in and out */
  float *re_next, *im_next; /* as large: for the caller between transforms, and overwritten by them */
  float *w_re, *w_im;   /* exp (-2 pi i k / n) */
} kr_lane_fft;

int32_t kr_lane_fft_open(int64_t n, int most_lanes, kr_lane_fft *fft);
void kr_lane_fft_close(kr_lane_fft *fft);
/* X_f = sum_t x_t exp (-2 pi i f t / n). With re and im exchanged before and after: n times the inverse. */
void kr_lane_fft_run(kr_lane_fft *fft, int lanes);
/* re_next and im_next become re and im, and the other way round. */
void kr_lane_fft_turn(kr_lane_fft *fft);

#endif
