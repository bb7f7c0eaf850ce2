/* metrics.h: scores of speech against its clean version, computed block by block. Blocks of both signals are pushed
 * together.
 *
 *   SI-SDR   10 log10(|a c|^2 / |x - a c|^2), a = <x, c> / <c, c>: any rate, no mean removed
 *   SegSNR   16 kHz; frames of 30 ms (480), hop 120, window 0.5 (1 - cos(2 pi n / 481)); 10 log10(|c|^2 / |c - x|^2)
 *            per frame, clipped to [-10, 35] dB; mean. As in the usual scripts, the last full frame is left out.
 *   STOI     the classic measure (Taal 2011) at 10 kHz: 256-sample frames, 50 % overlap, frames 40 dB below the loudest
 *            clean one are removed; 512-point FFT; 15 third-octave bands from 150 Hz; segments of 30 frames; clipped at
 *              -15 dB. */
#ifndef KR_METRICS_H
#define KR_METRICS_H

#include <stdint.h>

typedef struct kr_si_sdr {
  double cc, cx, xx;
} kr_si_sdr;
void kr_si_sdr_push(kr_si_sdr *sums, const float *clean, const float *other, int64_t n);
double kr_si_sdr_db(const kr_si_sdr *sums); /* NaN for a silent clean signal */
/* The shortfall from 30 dB, smoothed: 10 log10(1 + 1000 |x - a c|^2 / |a c|^2), and `scale` times its gradient (n) with
 * respect to the other signal's samples. 0 if the two are uncorrelated. */
double kr_si_sdr_lack(const float *clean, const float *other, int64_t n, double scale, float *gradient);

enum { KR_SEGSNR_HZ = 16000, KR_SEGSNR_FRAME = 480, KR_SEGSNR_HOP = 120, KR_STOI_HZ = 10000 };
typedef struct kr_segsnr {
  float clean[KR_SEGSNR_FRAME + KR_SEGSNR_HOP], other[KR_SEGSNR_FRAME + KR_SEGSNR_HOP];
  int n_kept;
  double sum_db;
  int64_t n_frames;
} kr_segsnr;
void kr_segsnr_push(kr_segsnr *state, const float *clean, const float *other, int64_t n);
double kr_segsnr_db(const kr_segsnr *state); /* NaN when shorter than a frame */

/* Two passes: the whole clean signal through kr_stoi_scan, then both signals from the start through kr_stoi_push. */
typedef struct kr_stoi kr_stoi;
int32_t kr_stoi_open(kr_stoi **stoi);
void kr_stoi_close(kr_stoi **stoi);
void kr_stoi_scan(kr_stoi *stoi, const float *clean, int64_t n);
void kr_stoi_push(kr_stoi *stoi, const float *clean, const float *other, int64_t n);
double kr_stoi_value(const kr_stoi *stoi); /* NaN with less than 30 frames (0.4 s) of speech */

#endif
