/* stft.c: the transform against its definition in double, and there and back. */
#include "test.h"

#include <math.h>

#include "alloc.h"
#include "lane_fft.h"
#include "real_fft.h"
#include "status.h"
#include "stft.h"

static float wave(int64_t i) {
  return (float)(0.4 * sin(0.05 * (double)i) + 0.3 * sin(0.31 * (double)i + 1) +
                 0.2 * cos(1.7 * (double)i * (double)i));
}

static double worst_of(int64_t n) {
  kr_real_fft *fft = NULL;
  assert_int_equal(kr_real_fft_open(n, &fft), KRAIT_OK);
  float *x = kr_alloc((size_t)n * 4), *re = kr_alloc((size_t)n * 4), *im = kr_alloc((size_t)n * 4);
  double worst = 0;
  for (int64_t t = 0; t < n; t++) x[t] = wave(t);
  kr_real_fft_run(fft, x, re, im);
  for (int64_t f = 0; f <= n / 2; f++) {
    double r = 0, i = 0;
    for (int64_t t = 0; t < n; t++) {
      const double angle = 2 * 3.14159265358979323846 * (double)(f * t % n) / (double)n;
      r += wave(t) * cos(angle), i -= wave(t) * sin(angle);
    }
    worst = fmax(worst, fmax(fabs(r - re[f]), fabs(i - im[f])));
  }
  kr_free(x);
  kr_free(re);
  kr_free(im);
  kr_real_fft_close(&fft);
  return worst / sqrt((double)n);
}

static double worst_of_lanes(int64_t n, int lanes) {
  kr_lane_fft fft;
  double worst = 0;
  assert_int_equal(kr_lane_fft_open(n, lanes, &fft), KRAIT_OK);
  for (int64_t i = 0; i < n * lanes; i++) fft.re[i] = wave(i), fft.im[i] = wave(i + 1000);
  kr_lane_fft_run(&fft, lanes);
  for (int64_t i = 0; i < n * lanes; i++) {
    double r = 0, j = 0;
    for (int64_t t = 0, f = i / lanes; t < n; t++) {
      const double angle = 2 * 3.14159265358979323846 * (double)(f * t % n) / (double)n;
      const double a = wave(t * lanes + i % lanes), b = wave(t * lanes + i % lanes + 1000);
      r += a * cos(angle) + b * sin(angle), j += b * cos(angle) - a * sin(angle);
    }
    worst = fmax(worst, fmax(fabs(r - fft.re[i]), fabs(j - fft.im[i])));
  }
  kr_lane_fft_close(&fft);
  return worst / sqrt((double)n);
}

/* Of several signals at once: powers of four and twice that. */
static void lanes_are_the_definition(void **state) {
  (void)state;
  for (int64_t n = 2; n <= 512; n *= 2)
    for (int lanes = 1; lanes <= 8; lanes += lanes == 1 ? 2 : 5) assert_true(worst_of_lanes(n, lanes) < 1e-6);
}

static void transform_is_the_definition(void **state) {
  (void)state;
  static const int64_t lengths[] = {4, 5, 16, 20, 25, 64, 80, 100, 125, 320, 400, 500};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
    if (!(worst_of(lengths[i]) < 1e-6))
      fail_msg("length %lld is off by %.1e", (long long)lengths[i], worst_of(lengths[i]));
  static const int64_t others[] = {0, 1, 2, 3, 6, 8, 10, 30, 402, 512};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_false(kr_real_fft_fits(others[i]));
}

enum { N = 9000 };

static void there_and_back(int64_t n_fft, double power, int n_threads, float *back) {
  static float wav[N];
  kr_pool *pool = kr_pool_open(n_threads);
  kr_stft *stft = NULL;
  const int64_t hop = n_fft / 4, F = n_fft / 2 + 1;
  assert_int_equal(kr_stft_open(n_fft, hop, pool, &stft), KRAIT_OK);
  const int64_t n = N / hop * hop, T = kr_stft_n_frames(stft, n);
  float *com = kr_alloc((size_t)(F * T) * 8), *mag = kr_alloc((size_t)(F * T) * 4),
        *pha = kr_alloc((size_t)(F * T) * 4);
  for (int64_t i = 0; i < n; i++) wav[i] = wave(i);
  assert_int_equal(kr_stft_forward(stft, wav, n, power, com), KRAIT_OK);
  for (int64_t i = 0; i < F * T; i++) {
    mag[i] = hypotf(com[2 * i], com[2 * i + 1]);
    pha[i] = atan2f(com[2 * i + 1], com[2 * i]);
  }
  assert_int_equal(kr_stft_inverse(stft, mag, pha, T, power, back), KRAIT_OK);
  /* The front end's epsilons rotate phases by up to 1e-5 / |x|. */
  for (int64_t i = 0; i < n; i++)
    if (!(fabsf(back[i] - wav[i]) < 3e-4f))
      fail_msg("n_fft %lld: sample %lld is %g, not %g", (long long)n_fft, (long long)i, (double)back[i],
               (double)wav[i]);
  kr_free(com);
  kr_free(mag);
  kr_free(pha);
  kr_stft_close(&stft);
  kr_pool_close(&pool);
}

static void with_any_number_of_threads(int64_t n_fft, double power) {
  static float one[N], three[N];
  there_and_back(n_fft, power, 1, one);
  there_and_back(n_fft, power, 3, three);
  assert_memory_equal(one, three, (size_t)(N / (n_fft / 4) * (n_fft / 4)) * sizeof *one);
}

static void spectra_come_back(void **state) {
  (void)state;
  with_any_number_of_threads(400, 0.3);
  with_any_number_of_threads(400, 1);
  with_any_number_of_threads(320, 0.5);
  with_any_number_of_threads(512, 0.3);
  with_any_number_of_threads(24, 1);
}

static void refusals(void **state) {
  (void)state;
  kr_stft *stft = NULL;
  kr_pool *pool = kr_pool_open(1);
  float wav[300] = {0}, com[4 * 201 * 2];
  assert_int_equal(kr_stft_open(401, 100, pool, &stft), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_stft_open(400, 0, pool, &stft), KRAIT_ERR_ARGUMENT);
  assert_null(stft);
  assert_int_equal(kr_stft_open(400, 100, pool, &stft), KRAIT_OK);
  assert_int_equal(kr_stft_forward(stft, wav, 200, 0.3, com),
                   KRAIT_ERR_SHAPE); /* reflection needs more than half a frame */
  assert_int_equal(kr_stft_forward(stft, wav, 201, 0.3, com), KRAIT_OK);
  assert_int_equal(kr_stft_inverse(stft, wav, wav, 0, 0.3, com), KRAIT_ERR_SHAPE);
  kr_stft_close(&stft);
  kr_pool_close(&pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(transform_is_the_definition), cmocka_unit_test(lanes_are_the_definition),
      cmocka_unit_test(spectra_come_back),
      cmocka_unit_test(refusals),
  };
  return cmocka_run_group_tests_name("stft", tests, NULL, NULL);
}
