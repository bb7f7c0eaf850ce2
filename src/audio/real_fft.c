/* real_fft.c: see real_fft.h. A pass of radix r combines r interleaved half-complex spectra of length m into one of
 * length r m, for every one of l groups: in (l, r, m) with the spectrum index k innermost, out (l, m r) by frequency.
 * Half-complex: re0, re1, im1, re2, ... */
#include "real_fft.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

enum { MAX_PASSES = 16, MAX_RADIX = 5 };

typedef struct pass {
  int radix;
  int64_t m, groups; /* length of the spectra that it joins; how many results */
  float *twiddles;   /* (radix - 1, m - 1): cos, sin of 2 pi j k groups / n for k = 1 .. (m - 1) / 2 */
} pass;

struct kr_real_fft {
  int64_t n;
  int n_passes;
  pass passes[MAX_PASSES]; /* in order of execution */
  float *work;             /* (n) */
  float *twiddles;
};

int kr_real_fft_fits(int64_t n) {
  if (n < 4) return 0;
  while (n % 4 == 0) n /= 4;
  while (n % 5 == 0) n /= 5;
  return n == 1;
}

static void fill_twiddles(pass *p, int64_t n) {
  const double pi = 3.14159265358979323846;
  for (int j = 1; j < p->radix; j++)
    for (int64_t k = 1; k <= (p->m - 1) / 2; k++) {
      const double angle = 2 * pi * (double)(j * k * p->groups) / (double)n;
      p->twiddles[(j - 1) * (p->m - 1) + 2 * k - 2] = (float)cos(angle);
      p->twiddles[(j - 1) * (p->m - 1) + 2 * k - 1] = (float)sin(angle);
    }
}

int32_t kr_real_fft_open(int64_t n, kr_real_fft **fft) {
  *fft = NULL;
  KR_CHECK(kr_real_fft_fits(n), KRAIT_ERR_ARGUMENT,
           "no transform of %lld samples: it must be a product of fours and fives", (long long)n);
  kr_real_fft *f = kr_zalloc(sizeof *f);
  if (f)
    f->work = kr_alloc_array((size_t)n, sizeof *f->work),
    f->twiddles = kr_alloc_array((size_t)n * 4, sizeof *f->twiddles);
  if (!f || !f->work || !f->twiddles) {
    kr_real_fft_close(&f);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the transform");
  }
  f->n = n;
  float *twiddles = f->twiddles;
  int64_t m = 1, fives = n;
  while (fives % 4 == 0) fives /= 4;
  while (m < n) { /* the fives first */
    pass *p = &f->passes[f->n_passes++];
    *p = (pass){m < fives ? 5 : 4, m, 0, twiddles};
    p->groups = n / (p->radix * m);
    fill_twiddles(p, n);
    twiddles += (p->radix - 1) * (m - 1);
    m *= p->radix;
  }
  *fft = f;
  return KRAIT_OK;
}

void kr_real_fft_close(kr_real_fft **fft) {
  if (!*fft) return;
  kr_free((*fft)->work);
  kr_free((*fft)->twiddles);
  kr_free(*fft);
  *fft = NULL;
}

/* The r-th input spectrum of a group at index k, times its twiddle factor: (re, im) of frequency (k + 1) / 2, k odd. */
typedef struct pair {
  float re, im;
} pair;

static pair turned(const pass *p, const float *in, int j, int64_t k) {
  const float *w = p->twiddles + (j - 1) * (p->m - 1) + k - 1, re = in[k], im = in[k + 1];
  return (pair){w[0] * re + w[1] * im, w[0] * im - w[1] * re};
}

/* in[j] are the inputs of one group; out[b] its output blocks of m: block 0 is ascending, the others are met from both
 * ends. */
static void join_four(const pass *p, const float *const in[4], float *out) {
  const int64_t m = p->m, last = m - 1;
  float *const a = out, *const b = out + m, *const c = out + 2 * m, *const d = out + 3 * m;
  const float odd = in[3][0] + in[1][0], even = in[0][0] + in[2][0];
  c[0] = in[3][0] - in[1][0];
  b[last] = in[0][0] - in[2][0];
  a[0] = even + odd;
  d[last] = even - odd;
  if (m % 2 == 0) {
    const float half = 0.70710678118654752440f, down = -half * (in[1][last] + in[3][last]),
                across = half * (in[1][last] - in[3][last]);
    a[last] = in[0][last] + across;
    c[last] = in[0][last] - across;
    d[0] = down + in[2][last];
    b[0] = down - in[2][last];
  }
  for (int64_t k = 1; k + 1 < m; k += 2) {
    const int64_t back = m - k - 2;
    const pair x1 = turned(p, in[1], 1, k), x2 = turned(p, in[2], 2, k), x3 = turned(p, in[3], 3, k);
    const float r1 = x3.re + x1.re, r4 = x3.re - x1.re, i1 = x1.im + x3.im, i4 = x1.im - x3.im;
    const float r2 = in[0][k] + x2.re, r3 = in[0][k] - x2.re, i2 = in[0][k + 1] + x2.im, i3 = in[0][k + 1] - x2.im;
    a[k] = r2 + r1, d[back] = r2 - r1;
    a[k + 1] = i1 + i2, d[back + 1] = i1 - i2;
    c[k] = r3 + i4, b[back] = r3 - i4;
    c[k + 1] = r4 + i3, b[back + 1] = r4 - i3;
  }
}

static void join_five(const pass *p, const float *const in[5], float *out) {
  const float c1 = 0.3090169943749474241f, s1 = 0.95105651629515357212f, c2 = -0.8090169943749474241f,
              s2 = 0.58778525229247312917f;
  const int64_t m = p->m, last = m - 1;
  float *const a = out, *const b = out + m, *const c = out + 2 * m, *const d = out + 3 * m, *const e = out + 4 * m;
  const float x0 = in[0][0], p1 = in[4][0] + in[1][0], q1 = in[4][0] - in[1][0], p2 = in[3][0] + in[2][0],
              q2 = in[3][0] - in[2][0];
  a[0] = x0 + p1 + p2;
  b[last] = x0 + c1 * p1 + c2 * p2;
  c[0] = s1 * q1 + s2 * q2;
  d[last] = x0 + c2 * p1 + c1 * p2;
  e[0] = s2 * q1 - s1 * q2;
  for (int64_t k = 1; k + 1 < m; k += 2) {
    const int64_t back = m - k - 2;
    const pair x1 = turned(p, in[1], 1, k), x2 = turned(p, in[2], 2, k), x3 = turned(p, in[3], 3, k),
               x4 = turned(p, in[4], 4, k);
    const float re = in[0][k], im = in[0][k + 1];
    const float pr1 = x4.re + x1.re, qi1 = x4.re - x1.re, pi1 = x1.im + x4.im, qr1 = x1.im - x4.im;
    const float pr2 = x3.re + x2.re, qi2 = x3.re - x2.re, pi2 = x2.im + x3.im, qr2 = x2.im - x3.im;
    a[k] = re + pr1 + pr2;
    a[k + 1] = im + pi1 + pi2;
    const float r2 = re + c1 * pr1 + c2 * pr2, i2 = im + c1 * pi1 + c2 * pi2, r3 = re + c2 * pr1 + c1 * pr2,
                i3 = im + c2 * pi1 + c1 * pi2;
    const float r5 = qr1 * s1 + qr2 * s2, r4 = qr1 * s2 - qr2 * s1, i5 = qi1 * s1 + qi2 * s2, i4 = qi1 * s2 - qi2 * s1;
    c[k] = r2 + r5, b[back] = r2 - r5;
    c[k + 1] = i5 + i2, b[back + 1] = i5 - i2;
    e[k] = r3 + r4, d[back] = r3 - r4;
    e[k + 1] = i4 + i3, d[back + 1] = i4 - i3;
  }
}

static void transform_pass(const pass *p, const float *in, float *out) {
  for (int64_t g = 0; g < p->groups; g++) {
    const float *inputs[MAX_RADIX];
    for (int j = 0; j < p->radix; j++) inputs[j] = in + (j * p->groups + g) * p->m;
    if (p->radix == 4) join_four(p, inputs, out + g * p->radix * p->m);
    else join_five(p, inputs, out + g * p->radix * p->m);
  }
}

void kr_real_fft_run(kr_real_fft *fft, float *x, float *re, float *im) {
  float *from = x, *to = fft->work;
  for (int i = 0; i < fft->n_passes; i++) {
    transform_pass(&fft->passes[i], from, to);
    float *swap = from;
    from = to;
    to = swap;
  }
  const int64_t n = fft->n;
  re[0] = from[0], im[0] = 0;
  for (int64_t f = 1; f < (n + 1) / 2; f++) re[f] = from[2 * f - 1], im[f] = from[2 * f];
  if (n % 2 == 0) re[n / 2] = from[n - 1], im[n / 2] = 0;
}
