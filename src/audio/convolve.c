/* convolve.c: convolution, correlation and filtering with kissfft's real transforms (convolve.h). */
#include "convolve.h"

#include <kiss_fftr.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

struct kr_convolver {
  int64_t n;
  kiss_fftr_cfg forward, inverse;
  kiss_fft_cpx *a, *b;
  float *in, *out;
};

int64_t kr_power_of_two(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

/* In our own memory, so that running out of it is handled like everywhere else. */
static kiss_fftr_cfg plan_convolve(int n_fft, int is_inverse) {
  size_t bytes = 0;
  kiss_fftr_alloc(n_fft, is_inverse, NULL, &bytes);
  void *memory = kr_alloc(bytes);
  return memory ? kiss_fftr_alloc(n_fft, is_inverse, memory, &bytes) : NULL;
}

int32_t kr_convolver_open(int64_t n_fft, kr_convolver **convolver) {
  KR_CHECK(n_fft >= 2 && n_fft <= 1 << 28 && kr_power_of_two(n_fft) == n_fft, KRAIT_ERR_ARGUMENT,
           "a transform of %lld samples: it must be a power of two", (long long)n_fft);
  kr_convolver *c = kr_zalloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a transform");
  c->n = n_fft;
  c->forward = plan_convolve((int)n_fft, 0);
  c->inverse = plan_convolve((int)n_fft, 1);
  c->a = kr_alloc_array((size_t)n_fft / 2 + 1, sizeof *c->a);
  c->b = kr_alloc_array((size_t)n_fft / 2 + 1, sizeof *c->b);
  c->in = kr_alloc_array((size_t)n_fft, sizeof *c->in);
  c->out = kr_alloc_array((size_t)n_fft, sizeof *c->out);
  if (c->forward && c->inverse && c->a && c->b && c->in && c->out) return *convolver = c, KRAIT_OK;
  kr_convolver_close(&c);
  return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a transform of %lld samples", (long long)n_fft);
}

void kr_convolver_close(kr_convolver **convolver) {
  kr_convolver *c = *convolver;
  if (!c) return;
  kr_free(c->forward);
  kr_free(c->inverse);
  kr_free(c->a);
  kr_free(c->b);
  kr_free(c->in);
  kr_free(c->out);
  kr_free(c);
  *convolver = NULL;
}

int64_t kr_convolver_size(const kr_convolver *c) { return c->n; }

static void transform_convolve(kr_convolver *c, const float *x, int64_t n, kiss_fft_cpx *spectrum) {
  memcpy(c->in, x, (size_t)n * sizeof *x);
  memset(c->in + n, 0, (size_t)(c->n - n) * sizeof *x);
  kiss_fftr(c->forward, c->in, spectrum);
}

static const float *back(kr_convolver *c) {
  kiss_fftri(c->inverse, c->a, c->out);
  return c->out;
}

/* sign 1: a times b; -1: conjugated a times b. */
static const float *multiply(kr_convolver *c, const float *a, int64_t n_a, const float *b, int64_t n_b, float sign) {
  const float scale = 1 / (float)c->n;
  transform_convolve(c, a, n_a, c->a);
  transform_convolve(c, b, n_b, c->b);
  for (int64_t k = 0; k <= c->n / 2; k++) {
    const kiss_fft_cpx x = {c->a[k].r * scale, sign * c->a[k].i * scale}, y = c->b[k];
    c->a[k].r = x.r * y.r - x.i * y.i;
    c->a[k].i = x.r * y.i + x.i * y.r;
  }
  return back(c);
}

const float *kr_convolver_convolve(kr_convolver *c, const float *a, int64_t n_a, const float *b, int64_t n_b) {
  return multiply(c, a, n_a, b, n_b, 1);
}
const float *kr_convolver_correlate(kr_convolver *c, const float *a, int64_t n_a, const float *b, int64_t n_b) {
  return multiply(c, a, n_a, b, n_b, -1);
}

const float *kr_convolver_filter(kr_convolver *c, const float *a, int64_t n_a,
                                 double (*gain)(const void *user, int64_t bin), const void *user) {
  transform_convolve(c, a, n_a, c->a);
  for (int64_t k = 0; k <= c->n / 2; k++) {
    const float g = (float)(gain(user, k) / (double)c->n);
    c->a[k].r *= g;
    c->a[k].i *= g;
  }
  return back(c);
}
