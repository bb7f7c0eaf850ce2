/* spectrum.h: the power spectrum of one windowed frame at a time, for metrics and spectrogram images. */
#ifndef KR_SPECTRUM_H
#define KR_SPECTRUM_H

#include <stdint.h>

typedef struct kr_spectrum kr_spectrum;

/* n_fft is even; window has n_window <= n_fft weights, which are copied; the rest of the transform is zeros. */
int32_t kr_spectrum_open(int n_fft, const float *window, int n_window, kr_spectrum **spectrum);
void kr_spectrum_close(kr_spectrum **spectrum);
/* frame has n_window samples; power receives n_fft / 2 + 1 values |X[k]|^2. */
void kr_spectrum_power(kr_spectrum *spectrum, const float *frame, float *power);

#endif
