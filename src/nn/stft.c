/* stft.c: see stft.h. Magnitudes and phases as upstream's front end computes them, epsilons included. The forward transform and
 * the window have the very roundings of PyTorch's CPU build, because the model sees the sign of what rounding leaves of an
 * imaginary part (real_fft.h); any other forward transform moves its output for such frames by a percent. */
#include "stft.h"

#include <kiss_fftr.h>
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "real_fft.h"
#include "status.h"

struct kr_stft {
  int64_t n_fft, hop, F;
  kr_real_fft *exact;             /* for lengths that it takes; else NULL */
  kiss_fftr_cfg forward, inverse; /* forward is NULL if exact is there */
  float *window, *frame;          /* (n_fft) each */
  float *re, *im;                 /* (F) each */
  kiss_fft_cpx *spectrum;         /* (F) */
};

/* cos(x), 0 <= x < 7, with the roundings of a float32 polynomial with a compensated end, accurate to 1 ulp: x is brought to
 * [-pi/2, pi/2] around an odd multiple of pi/2; what has two words there is a double here. */
static float cos_of_vectors(float x) {
  const float odd = 2 * rintf(fmaf(x, 0.318309886f, -0.5f)) + 1; /* 0.318... = 1/pi */
  const double t = (double)x + odd * -1.57073974609375f + odd * -5.65797090530395508e-05f + odd * -9.92093629470502945e-10f;
  const double square = t * t;
  const float s = (float)t * (float)t;
  float u = 2.60831598e-06f;
  u = fmaf(u, s, -0.000198106907f);
  u = fmaf(u, s, 0.00833307859f);
  const float value = (float)(t * (1 + ((double)-0.166666597f + (double)(u * s)) * square));
  return (int)odd & 2 ? value : -value;
}

static kiss_fftr_cfg open_kiss(int64_t n, int inverse) {
  size_t bytes = 0;
  kiss_fftr_alloc((int)n, inverse, NULL, &bytes);
  void *memory = kr_alloc(bytes);
  return memory ? kiss_fftr_alloc((int)n, inverse, memory, &bytes) : NULL;
}

static int32_t open_parts(kr_stft *s) {
  const float step = (float)(2 * 3.14159265358979323846 / (double)s->n_fft);
  s->window = kr_alloc_array((size_t)s->n_fft, sizeof *s->window);
  s->frame = kr_alloc_array((size_t)s->n_fft, sizeof *s->frame);
  s->re = kr_alloc_array((size_t)s->F, sizeof *s->re);
  s->im = kr_alloc_array((size_t)s->F, sizeof *s->im);
  s->spectrum = kr_alloc_array((size_t)s->F, sizeof *s->spectrum);
  s->inverse = open_kiss(s->n_fft, 1);
  if (kr_real_fft_fits(s->n_fft)) KR_TRY(kr_real_fft_open(s->n_fft, &s->exact));
  else s->forward = open_kiss(s->n_fft, 0);
  KR_CHECK(s->window && s->frame && s->re && s->im && s->spectrum && s->inverse && (s->exact || s->forward), KRAIT_ERR_NO_MEMORY, "no memory for the transform");
  for (int64_t i = 0; i < s->n_fft; i++) s->window[i] = cos_of_vectors((float)i * step) * -0.5f + 0.5f;
  return KRAIT_OK;
}

int32_t kr_stft_open(int64_t n_fft, int64_t hop, kr_stft **stft) {
  *stft = NULL;
  KR_CHECK(n_fft >= 2 && n_fft % 2 == 0 && n_fft <= 1 << 20 && hop >= 1 && hop <= n_fft, KRAIT_ERR_ARGUMENT, "no transform of %lld samples every %lld", (long long)n_fft, (long long)hop);
  kr_stft *s = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for the transform");
  s->n_fft = n_fft, s->hop = hop, s->F = n_fft / 2 + 1;
  int32_t status = open_parts(s);
  if (status < 0) kr_stft_close(&s);
  *stft = s;
  return status;
}

void kr_stft_close(kr_stft **stft) {
  kr_stft *s = *stft;
  if (!s) return;
  kr_free(s->window);
  kr_free(s->frame);
  kr_free(s->re);
  kr_free(s->im);
  kr_free(s->spectrum);
  kr_real_fft_close(&s->exact);
  kr_free(s->forward);
  kr_free(s->inverse);
  kr_free(s);
  *stft = NULL;
}

int64_t kr_stft_n_frames(const kr_stft *stft, int64_t n_samples) { return 1 + n_samples / stft->hop; }

static int64_t reflect(int64_t i, int64_t n) { return i < 0 ? -i : i >= n ? 2 * n - 2 - i : i; }

/* s->frame -> s->re, s->im */
static void transform_frame(kr_stft *s) {
  if (s->exact) {
    kr_real_fft_run(s->exact, s->frame, s->re, s->im);
    return;
  }
  kiss_fftr(s->forward, s->frame, s->spectrum);
  for (int64_t f = 0; f < s->F; f++) s->re[f] = s->spectrum[f].r, s->im[f] = s->spectrum[f].i;
}

int32_t kr_stft_forward(kr_stft *s, const float *wav, int64_t n_samples, double power, float *com) {
  const int64_t T = kr_stft_n_frames(s, n_samples), half = s->n_fft / 2;
  KR_CHECK(n_samples > half, KRAIT_ERR_SHAPE, "%lld samples are too few for a transform of %lld", (long long)n_samples, (long long)s->n_fft);
  for (int64_t t = 0; t < T; t++) {
    for (int64_t i = 0; i < s->n_fft; i++) s->frame[i] = wav[reflect(t * s->hop + i - half, n_samples)] * s->window[i];
    transform_frame(s);
    for (int64_t f = 0; f < s->F; f++) {
      const float re = s->re[f], im = s->im[f];
      float mag = powf(sqrtf(re * re + im * im + 1e-9f), (float)power), pha = atan2f(im + 1e-10f, re + 1e-5f);
      com[(f * T + t) * 2] = mag * cosf(pha);
      com[(f * T + t) * 2 + 1] = mag * sinf(pha);
    }
  }
  return KRAIT_OK;
}

/* Adds frame t, windowed, to wav, which starts half a frame after the first frame's start. */
static void add_frame(const kr_stft *s, int64_t t, int64_t n_samples, float *wav) {
  const int64_t start = t * s->hop - s->n_fft / 2;
  const float scale = 1.0f / (float)s->n_fft;
  for (int64_t i = 0; i < s->n_fft; i++)
    if (start + i >= 0 && start + i < n_samples) wav[start + i] += s->frame[i] * scale * s->window[i];
}

/* Divides by the sum of the squared windows that cover each sample. */
static void divide_by_windows(const kr_stft *s, int64_t T, int64_t n_samples, float *wav) {
  for (int64_t i = 0; i < n_samples; i++) {
    const int64_t at = i + s->n_fft / 2;
    float sum = 0;
    for (int64_t t = at / s->hop; t >= 0 && at - t * s->hop < s->n_fft; t--)
      if (t < T) sum += s->window[at - t * s->hop] * s->window[at - t * s->hop];
    if (sum > 1e-11f) wav[i] /= sum;
  }
}

int32_t kr_stft_inverse(kr_stft *s, const float *mag, const float *pha, int64_t T, double power, float *wav) {
  const int64_t n_samples = (T - 1) * s->hop;
  KR_CHECK(T >= 1, KRAIT_ERR_SHAPE, "no frames to transform back");
  memset(wav, 0, (size_t)n_samples * sizeof *wav);
  for (int64_t t = 0; t < T; t++) {
    for (int64_t f = 0; f < s->F; f++) {
      float m = powf(mag[f * T + t], (float)(1 / power)), p = pha[f * T + t];
      s->spectrum[f] = (kiss_fft_cpx){m * cosf(p), m * sinf(p)};
    }
    s->spectrum[0].i = s->spectrum[s->F - 1].i = 0; /* a real signal has none there */
    kiss_fftri(s->inverse, s->spectrum, s->frame);
    add_frame(s, t, n_samples, wav);
  }
  divide_by_windows(s, T, n_samples, wav);
  return KRAIT_OK;
}
