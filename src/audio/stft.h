/* stft.h: the spectral front end: frames of n_fft samples, hop apart, periodic Hann window, centred with reflection;
 * and the power-law compressed spectrum that PrimeKnet takes (MODEL.md section 1). */
#ifndef KR_STFT_H
#define KR_STFT_H

#include <stdint.h>

#include "pool.h"

typedef struct kr_stft kr_stft;

/* n_fft even. Distributes frames over the pool's threads; has working memory: one caller at a time. Results do not
 * depend on the number of threads. */
int32_t kr_stft_open(int64_t n_fft, int64_t hop, kr_pool *pool, kr_stft **stft);
void kr_stft_close(kr_stft **stft);
int64_t kr_stft_n_frames(const kr_stft *stft, int64_t n_samples); /* 1 + n_samples / hop */

/* wav (n) with n > n_fft / 2 -> com (F, T, 2): magnitude^power and phase as a complex number. */
int32_t kr_stft_forward(kr_stft *stft, const float *wav, int64_t n_samples, double power, float *com);
/* The n frames from `first` on alone, at their places in com. */
int32_t kr_stft_forward_some(kr_stft *stft, const float *wav, int64_t n_samples, int64_t first, int64_t n,
                             double power, float *com);
/* The uncompressed transform of frame t of wav: re, im (F). */
int32_t kr_stft_frame(kr_stft *stft, const float *wav, int64_t n_samples, int64_t t, float *re, float *im);
/* Magnitude^power and phase (F, T) -> wav ((T - 1) hop). */
int32_t kr_stft_inverse(kr_stft *stft, const float *mag, const float *pha, int64_t n_frames, double power, float *wav);

#endif
