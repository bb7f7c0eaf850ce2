/* metrics.c: SI-SDR and segmental SNR against closed forms, STOI against its defining properties.
 * tests/golden/metrics/check.py compares with published implementations. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "metrics.h"
#include "status.h"

enum { N = 40000 };
static float clean[N], noise[N], other[N];

static float uniform(uint64_t *random) {
  *random = *random * 6364136223846793005ull + 1442695040888963407ull;
  return (float)(*random >> 40) / 8388608.0f - 1;
}

/* Noise with a syllable-like envelope. */
static int make_signals(void **state) {
  (void)state;
  uint64_t random = 1;
  for (int i = 0; i < N; i++) {
    clean[i] = 0.3f * uniform(&random) * (float)pow(sin(i * 3.14159 / 2500), 2);
    noise[i] = 0.3f * uniform(&random);
  }
  return 0;
}

static void mix(float clean_gain, float noise_gain) {
  for (int i = 0; i < N; i++) other[i] = clean_gain * clean[i] + noise_gain * noise[i];
}

static void si_sdr_ignores_gain_and_counts_noise(void **state) {
  (void)state;
  double first = 0;
  for (int i = 0; i < 3; i++) {
    kr_si_sdr sums = {0};
    mix(1.0f + 3 * (float)i, 0.1f * (1.0f + 3 * (float)i));
    for (int k = 0; k < N; k += 777) kr_si_sdr_push(&sums, clean + k, other + k, N - k < 777 ? N - k : 777);
    if (i == 0) first = kr_si_sdr_db(&sums);
    assert_float_equal(kr_si_sdr_db(&sums), first, 1e-4);
  }
  double cc = 0, nn = 0;
  for (int i = 0; i < N; i++) {
    cc += (double)clean[i] * clean[i];
    nn += 0.01 * noise[i] * noise[i];
  }
  assert_float_equal(first, 10 * log10(cc / nn), 0.05); /* clean and noise are nearly orthogonal */
  kr_si_sdr silent = {0};
  assert_true(isnan(kr_si_sdr_db(&silent)));
}

static double segsnr(float gain, int piece) {
  kr_segsnr state = {0};
  for (int i = 0; i < N; i++) other[i] = gain * clean[i];
  for (int k = 0; k < N; k += piece) kr_segsnr_push(&state, clean + k, other + k, N - k < piece ? N - k : piece);
  return kr_segsnr_db(&state);
}

static void segsnr_of_a_gain_error(void **state) {
  (void)state;
  assert_float_equal(segsnr(0.9f, N), 20, 1e-3); /* an error of a tenth in every frame */
  assert_float_equal(segsnr(0.9f, 1), 20, 1e-3);
  assert_float_equal(segsnr(1.0f, 333), 35, 1e-9); /* clipped */
  assert_float_equal(segsnr(9.0f, 333), -10, 1e-9);
  kr_segsnr empty = {0};
  assert_true(isnan(kr_segsnr_db(&empty)));
}

static double stoi(const float *x, const float *y, int64_t n, int64_t piece) {
  kr_stoi *state = NULL;
  assert_int_equal(kr_stoi_open(&state), KRAIT_OK);
  for (int64_t k = 0; k < n; k += piece) kr_stoi_scan(state, x + k, n - k < piece ? n - k : piece);
  for (int64_t k = 0; k < n; k += piece) kr_stoi_push(state, x + k, y + k, n - k < piece ? n - k : piece);
  const double value = kr_stoi_value(state);
  kr_stoi_close(&state);
  return value;
}

static void stoi_falls_with_noise_and_ignores_gain(void **state) {
  (void)state;
  assert_float_equal(stoi(clean, clean, N, 1000), 1, 1e-6);
  double previous = 1;
  for (int i = 0; i < 5; i++) {
    mix(1, 0.02f * (float)(1 << 2 * i));
    const double value = stoi(clean, other, N, 1000);
    assert_true(value < previous);
    assert_float_equal(stoi(clean, other, N, 1), value, 1e-12);
    previous = value;
    mix(0.5f, 0.01f * (float)(1 << 2 * i));
    assert_float_equal(stoi(clean, other, N, 1000), value, 1e-5);
  }
  assert_true(previous < 0.5);
  assert_true(isnan(stoi(clean, clean, 3000, 1000))); /* shorter than 30 frames */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(si_sdr_ignores_gain_and_counts_noise),
                                     cmocka_unit_test(segsnr_of_a_gain_error),
                                     cmocka_unit_test(stoi_falls_with_noise_and_ignores_gain)};
  return cmocka_run_group_tests(tests, make_signals, NULL);
}
