/* stft.c: see stft.h. Magnitudes and phases as in upstream's front end, including epsilons. The forward transform and
 * the window round exactly like PyTorch's CPU build, because the model depends on the sign of the rounding error in an
 * imaginary part (real_fft.h); any other forward transform changes its output for such frames by a percent. */
#include "stft.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "any_fft.h"
#include "real_fft.h"
#include "status.h"

/* The working memory of one thread. */
typedef struct bench {
  kr_real_fft *exact; /* for supported lengths; else NULL */
  kr_any_fft *any;    /* for the others */
  float *frame;       /* (n_fft) */
  float *re, *im;     /* (F) each */
} bench;

struct kr_stft {
  int64_t n_fft, hop, F;
  kr_pool *pool;
  float *window; /* (n_fft) */
  int n_benches; /* one per thread of the pool */
  bench *benches;
};

enum { SEGMENT = 32 }; /* frames that a thread takes at a time */

/* cos(x), 0 <= x < 7, with the roundings of a float32 polynomial with a compensated end, accurate to 1 ulp: x is
 * brought to
 * [-pi/2, pi/2] around an odd multiple of pi/2; what has two words there is a double here. */
static float cos_of_vectors(float x) {
  const float odd = 2 * rintf(fmaf(x, 0.318309886f, -0.5f)) + 1; /* 0.318... = 1/pi */
  const double t =
      (double)x + odd * -1.57073974609375f + odd * -5.65797090530395508e-05f + odd * -9.92093629470502945e-10f;
  const double square = t * t;
  const float s = (float)t * (float)t;
  float u = 2.60831598e-06f;
  u = fmaf(u, s, -0.000198106907f);
  u = fmaf(u, s, 0.00833307859f);
  const float value = (float)(t * (1 + ((double)-0.166666597f + (double)(u * s)) * square));
  return (int)odd & 2 ? value : -value;
}

static int32_t open_bench(const kr_stft *s, bench *b) {
  b->frame = kr_alloc_array((size_t)s->n_fft, sizeof *b->frame);
  b->re = kr_alloc_array((size_t)s->F, sizeof *b->re);
  b->im = kr_alloc_array((size_t)s->F, sizeof *b->im);
  KR_CHECK(b->frame && b->re && b->im, KRAIT_ERR_NO_MEMORY, "no memory for the transform");
  return kr_real_fft_fits(s->n_fft) ? kr_real_fft_open(s->n_fft, &b->exact) : kr_any_fft_open(s->n_fft, &b->any);
}

static void close_bench(bench *b) {
  kr_free(b->frame);
  kr_free(b->re);
  kr_free(b->im);
  kr_real_fft_close(&b->exact);
  kr_any_fft_close(&b->any);
}

static int32_t open_stft_parts(kr_stft *s) {
  const float step = (float)(2 * 3.14159265358979323846 / (double)s->n_fft);
  s->window = kr_alloc_array((size_t)s->n_fft, sizeof *s->window);
  s->benches = kr_alloc_array((size_t)s->n_benches, sizeof *s->benches);
  KR_CHECK(s->window && s->benches, KRAIT_ERR_NO_MEMORY, "no memory for the transform");
  for (int i = 0; i < s->n_benches; i++) KR_TRY(open_bench(s, &s->benches[i]));
  for (int64_t i = 0; i < s->n_fft; i++) s->window[i] = cos_of_vectors((float)i * step) * -0.5f + 0.5f;
  return KRAIT_OK;
}

int32_t kr_stft_open(int64_t n_fft, int64_t hop, kr_pool *pool, kr_stft **stft) {
  *stft = NULL;
  KR_CHECK(n_fft >= 2 && n_fft % 2 == 0 && n_fft <= 1 << 20 && hop >= 1 && hop <= n_fft, KRAIT_ERR_ARGUMENT,
           "a transform of %lld samples every %lld is not supported", (long long)n_fft, (long long)hop);
  kr_stft *s = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for the transform");
  s->n_fft = n_fft, s->hop = hop, s->F = n_fft / 2 + 1;
  s->pool = pool;
  s->n_benches = kr_pool_size(pool);
  int32_t status = open_stft_parts(s);
  if (status < 0) kr_stft_close(&s);
  *stft = s;
  return status;
}

void kr_stft_close(kr_stft **stft) {
  kr_stft *s = *stft;
  if (!s) return;
  for (int i = 0; s->benches && i < s->n_benches; i++) close_bench(&s->benches[i]);
  kr_free(s->benches);
  kr_free(s->window);
  kr_free(s);
  *stft = NULL;
}

int64_t kr_stft_n_frames(const kr_stft *stft, int64_t n_samples) { return 1 + n_samples / stft->hop; }

static int64_t reflect(int64_t i, int64_t n) { return i < 0 ? -i : i >= n ? 2 * n - 2 - i : i; }

/* frame -> re, im */
static void transform_frame(bench *b) {
  if (b->exact) kr_real_fft_run(b->exact, b->frame, b->re, b->im);
  else kr_any_fft_forward(b->any, b->frame, b->re, b->im);
}

/* re, im -> n_fft times the frame. The signal of a spectrum is Re H + Im H, where H is the forward transform of Re + Im
 * over all n_fft bins: an even and an odd sequence, whose transforms are real and imaginary. */
static void transform_back(const kr_stft *s, bench *b) {
  const int64_t half = s->n_fft / 2;
  if (!b->exact) {
    kr_any_fft_inverse(b->any, b->re, b->im, b->frame);
    return;
  }
  b->frame[0] = b->re[0], b->frame[half] = b->re[half];
  for (int64_t f = 1; f < half; f++) b->frame[f] = b->re[f] + b->im[f], b->frame[s->n_fft - f] = b->re[f] - b->im[f];
  kr_real_fft_run(b->exact, b->frame, b->re, b->im);
  b->frame[0] = b->re[0], b->frame[half] = b->re[half];
  for (int64_t t = 1; t < half; t++) b->frame[t] = b->re[t] + b->im[t], b->frame[s->n_fft - t] = b->re[t] - b->im[t];
}

/* Frame t of wav -> b's re, im. */
static void take_stft_frame(const kr_stft *s, bench *b, const float *wav, int64_t n_samples, int64_t t) {
  for (int64_t i = 0; i < s->n_fft; i++)
    b->frame[i] = wav[reflect(t * s->hop + i - s->n_fft / 2, n_samples)] * s->window[i];
  transform_frame(b);
}

typedef struct forward_job {
  const kr_stft *s;
  const float *wav;
  int64_t n_samples, T, first;
  float power, *com;
} forward_job;

/* com: (re + i im), its size to a power, times cos and sin of the angle that the model is given; without them but next
 * to -pi and pi, where the rounded angle decides the sign. */
static void turn_to_com(float re, float im, float power, float *com) {
  const float x = re + 1e-5f, y = im + 1e-10f, mag = powf(re * re + im * im + 1e-9f, power / 2),
              size = sqrtf(x * x + y * y);
  if (size > 0 && size < INFINITY && (x > 0 || fabsf(y) > -1e-3f * x)) {
    com[0] = mag * (x / size), com[1] = mag * (y / size);
    return;
  }
  const float pha = atan2f(y, x);
  com[0] = mag * cosf(pha), com[1] = mag * sinf(pha);
}

static void forward_range(void *user, int64_t begin, int64_t end, int worker) {
  const forward_job *job = user;
  const kr_stft *s = job->s;
  bench *b = &s->benches[worker];
  for (int64_t t = job->first + begin; t < job->first + end; t++) {
    take_stft_frame(s, b, job->wav, job->n_samples, t);
    for (int64_t f = 0; f < s->F; f++) {
      const float re = b->re[f], im = b->im[f];
      turn_to_com(re, im, job->power, job->com + (f * job->T + t) * 2);
    }
  }
}

static int32_t check_length(const kr_stft *s, int64_t n_samples) {
  KR_CHECK(n_samples > s->n_fft / 2, KRAIT_ERR_SHAPE, "%lld samples are too few for a transform of %lld",
           (long long)n_samples, (long long)s->n_fft);
  return KRAIT_OK;
}

int32_t kr_stft_frame(kr_stft *s, const float *wav, int64_t n_samples, int64_t t, float *re, float *im) {
  KR_TRY(check_length(s, n_samples));
  take_stft_frame(s, s->benches, wav, n_samples, t);
  memcpy(re, s->benches->re, (size_t)s->F * sizeof *re), memcpy(im, s->benches->im, (size_t)s->F * sizeof *im);
  return KRAIT_OK;
}

int32_t kr_stft_forward_some(kr_stft *s, const float *wav, int64_t n_samples, int64_t first, int64_t n, double power,
                             float *com) {
  forward_job job = {s, wav, n_samples, kr_stft_n_frames(s, n_samples), first, (float)power, com};
  KR_TRY(check_length(s, n_samples));
  kr_pool_run(s->pool, n, SEGMENT, forward_range, &job);
  return KRAIT_OK;
}

int32_t kr_stft_forward(kr_stft *s, const float *wav, int64_t n_samples, double power, float *com) {
  return kr_stft_forward_some(s, wav, n_samples, 0, kr_stft_n_frames(s, n_samples), power, com);
}

typedef struct inverse_job {
  const kr_stft *s;
  const float *mag, *pha;
  int64_t T;
  float power, *wav;
} inverse_job;

/* Adds frame t, windowed, to samples begin to end; it starts half a frame before its hop. */
static void add_frame(const inverse_job *job, bench *b, int64_t t, int64_t begin, int64_t end) {
  const kr_stft *s = job->s;
  const int64_t start = t * s->hop - s->n_fft / 2;
  const float scale = 1.0f / (float)s->n_fft;
  for (int64_t f = 0; f < s->F; f++) {
    const float m = powf(job->mag[f * job->T + t], job->power), p = job->pha[f * job->T + t];
    b->re[f] = m * cosf(p), b->im[f] = m * sinf(p);
  }
  transform_back(s, b); /* the imaginary parts at both ends are dropped: a real signal has none there */
  for (int64_t i = 0; i < s->n_fft; i++)
    if (start + i >= begin && start + i < end) job->wav[start + i] += b->frame[i] * scale * s->window[i];
}

/* Divides by the sum of the squared windows that cover each sample. */
static void divide_by_windows(const inverse_job *job, int64_t begin, int64_t end) {
  const kr_stft *s = job->s;
  for (int64_t i = begin; i < end; i++) {
    const int64_t at = i + s->n_fft / 2;
    float sum = 0;
    for (int64_t t = at / s->hop; t >= 0 && at - t * s->hop < s->n_fft; t--)
      if (t < job->T) sum += s->window[at - t * s->hop] * s->window[at - t * s->hop];
    if (sum > 1e-11f) job->wav[i] /= sum;
  }
}

/* A segment of samples with every frame that overlaps it, in order: the sums do not depend on the splitting. */
static void inverse_range(void *user, int64_t first, int64_t last, int worker) {
  const inverse_job *job = user;
  const kr_stft *s = job->s;
  const int64_t begin = first * s->hop, end = last * s->hop, half = s->n_fft / 2;
  memset(job->wav + begin, 0, (size_t)(end - begin) * sizeof *job->wav);
  int64_t t = begin > half ? (begin - half) / s->hop : 0;
  for (; t < job->T && t * s->hop - half < end; t++) add_frame(job, &s->benches[worker], t, begin, end);
  divide_by_windows(job, begin, end);
}

int32_t kr_stft_inverse(kr_stft *s, const float *mag, const float *pha, int64_t T, double power, float *wav) {
  inverse_job job = {s, mag, pha, T, (float)(1 / power), wav};
  KR_CHECK(T >= 1, KRAIT_ERR_SHAPE, "no frames to transform back");
  kr_pool_run(s->pool, T - 1, SEGMENT, inverse_range, &job);
  return KRAIT_OK;
}
