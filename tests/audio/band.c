/* band.c: around models of which the result is known: what changes nothing gives back the input to a hair's breadth, at
 * any rate and in any blocks; and what is above 8 kHz follows what the model does below. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "band.h"
#include "polyphase.h"

enum { MODEL_LATENCY = 500, MOST_BLOCK = 64, SECOND = 16000 };

static uint32_t random_state;
static int64_t draw_band(int64_t low, int64_t high) {
  random_state = random_state * 1664525u + 1013904223u;
  return low + (int64_t)((random_state >> 8) % (uint32_t)(high - low + 1));
}
static float draw_noise(void) { return (float)draw_band(-1000, 1000) * 1e-4f; }

/* A model: a gain, 1 for what is louder than `least`, and without what is at notch_hz, if that is not 0; in hops of 100
 * samples, as late as it may be. */
typedef struct model {
  double gain, least, notch_hz, z[2];
  kr_queue queue;
  int64_t n_in, n_out;
} model;

static double cut_notch(model *m, double x) {
  static const double radius = 0.97;
  const double middle = -2 * cos(2 * acos(-1) * m->notch_hz / 16000), y = x + m->z[0];
  m->z[0] = middle * x - radius * middle * y + m->z[1], m->z[1] = x - radius * radius * y;
  return y;
}

static int64_t run_model(model *m, const float *low, int64_t n, float *out) {
  kr_queue_push(&m->queue, low, n);
  m->n_in += n;
  const int64_t some = m->n_in < MODEL_LATENCY ? 0 : (m->n_in - MODEL_LATENCY) / 100 * 100 + 100 - m->n_out;
  for (int64_t i = 0; i < some; i++) {
    const float x = kr_queue_front(&m->queue)[i];
    out[i] = fabsf(x) > m->least ? x : (float)m->gain * x;
    if (m->notch_hz > 0) out[i] = (float)cut_notch(m, out[i]);
  }
  kr_queue_pop(&m->queue, some);
  m->n_out += some;
  return some;
}

/* In random blocks, as many samples out as in, after the latency. */
static void run_band(kr_band *band, model m, const float *in, int64_t n, float *out) {
  const int64_t latency = kr_band_latency(band);
  float low[200], cleaned[1000];
  for (int64_t i = 0, said = 0; i < n;) {
    const int64_t most = n - i < MOST_BLOCK ? n - i : MOST_BLOCK, some = draw_band(0, most);
    assert_int_equal(kr_band_push(band, in + i, some), 0);
    i += some;
    const int64_t n_low = kr_band_low_ready(band);
    assert_in_range(n_low, 0, 200);
    assert_int_equal(kr_band_low_pull(band, low, n_low), 0);
    assert_int_equal(kr_band_return(band, cleaned, run_model(&m, low, n_low, cleaned)), 0);
    const int64_t due = i - latency - said;
    if (due <= 0) continue;
    assert_in_range(kr_band_ready(band), due, n);
    kr_band_pull(band, out + said, due);
    said += due;
  }
  kr_queue_free(&m.queue);
}

static kr_band *open_at(int32_t rate_hz, int32_t is_narrow) {
  kr_band *band = NULL;
  const kr_band_options o = {.rate_hz = rate_hz, .is_narrow = is_narrow, .model_latency = MODEL_LATENCY,
                             .block_samples = MOST_BLOCK};
  assert_int_equal(kr_band_open(&o, &band), 0);
  return band;
}

static double power(const float *x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
  return sum / (double)n;
}

static const int32_t rates[] = {8000,  11025, 12000, 16000, 16001, 22050, 24000,
                                32000, 44100, 48000, 88200, 96000, 192000};

static void what_changes_nothing_is_transparent(void **state) {
  (void)state;
  for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
    const int64_t n = rates[r] / 2;
    float *in = malloc((size_t)n * sizeof *in), *out = calloc((size_t)n, sizeof *out);
    double worst = 0;
    for (int64_t i = 0; i < n; i++) in[i] = draw_noise();
    kr_band *band = open_at(rates[r], 0);
    for (int again = 0; again < 2; again++) { /* and once more after a new beginning */
      const int64_t said = n - kr_band_latency(band);
      kr_band_begin(band);
      run_band(band, (model){.gain = 1, .least = 1}, in, n, out);
      for (int64_t i = 0; i < said; i++) worst = fmax(worst, fabs((double)out[i] - in[i]));
    }
    print_message("%d Hz: latency %lld, off by %.1e\n", rates[r], (long long)kr_band_latency(band), worst);
    assert_true(worst < 1e-6);
    kr_band_close(&band), free(in), free(out);
  }
}

/* The level of a tone of this amplitude in dB after a model, among noise. */
static double level_after(model m, double hz, double amplitude, int32_t is_narrow, const kr_band_controls *controls) {
  enum { N = 48000 };
  static float in[N], out[N];
  double re = 0, im = 0;
  for (int64_t i = 0; i < N; i++)
    in[i] = draw_noise() + (float)(amplitude * sin(2 * acos(-1) * hz / 48000 * (double)i));
  kr_band *band = open_at(48000, is_narrow);
  if (controls) kr_band_set(band, controls);
  run_band(band, m, in, N, out);
  for (int64_t i = 4800; i < 43200; i++) {
    const double angle = 2 * acos(-1) * hz / 48000 * (double)i;
    re += out[i] * cos(angle), im += out[i] * sin(angle);
  }
  kr_band_close(&band);
  return 20 * log10(2 * sqrt(re * re + im * im) / 38400 / amplitude);
}

/* After one that has this gain for everything; the noise is as loud. */
static double level_of(double hz, double gain, int32_t is_narrow, const kr_band_controls *controls) {
  return level_after((model){.gain = gain, .least = 1}, hz, 0.1, is_narrow, controls);
}

static void what_is_above_follows(void **state) {
  (void)state;
  for (double hz = 500; hz < 23000; hz += 1125) {
    const double db = level_of(hz, 0.2511886, 0, NULL), least_db = hz < 6400 ? -12.3 : -16; /* in noisy speech more */
    if (db < least_db || db > -11.7) fail_msg("%g Hz is at %.2f dB", hz, db);
  }
  assert_true(level_of(12000, 1, 1, NULL) < -40), assert_true(fabs(level_of(7000, 1, 1, NULL)) < 0.3);
}

/* What the model takes away near the end of its band, and nowhere else, passes beside it. */
static void what_the_model_lacks_at_its_end_is_kept(void **state) {
  (void)state;
  for (double hz = 6000; hz <= 7800; hz += 200) {
    const double db = level_after((model){.gain = 1, .least = 1, .notch_hz = hz}, hz, 0.01, 0, NULL);
    print_message("without %g Hz: %.2f dB\n", hz, db);
    assert_true(hz < 6400 ? db < -20 : hz < 7400 || fabs(db) < 1.5);
  }
}

static void dry_and_clean_mix(void **state) {
  (void)state;
  assert_true(fabs(level_of(3000, 0, 0, &(kr_band_controls){1, 6.0206, 0}) + 6.02) < 0.1);
  assert_true(fabs(level_of(13000, 0, 0, &(kr_band_controls){1, 6.0206, 0}) + 6.02) < 0.1);
  assert_true(fabs(level_of(13000, 0, 0, &(kr_band_controls){0.5, INFINITY, 0}) + 6.02) < 0.1);
  assert_true(fabs(level_of(13000, 0, 0, &(kr_band_controls){0, INFINITY, 1})) < 0.1);
  assert_true(level_of(3000, 1, 0, &(kr_band_controls){1, INFINITY, 1}) < -60); /* never so probable */
  assert_true(level_of(3000, 1, 0, &(kr_band_controls){1, 20, 1}) > -20.2);
}

/* A word after silence: the gate is open when it begins only if it looks back. */
static double start_of_a_word(int looks_back) {
  enum { N = 32000, WORD = 16000, MORE = 320 };
  static float in[N], out[N];
  kr_band *band = NULL;
  const kr_band_options o = {.rate_hz = 16000, .looks_back = looks_back, .model_latency = MODEL_LATENCY,
                             .block_samples = MOST_BLOCK};
  assert_int_equal(kr_band_open(&o, &band), 0);
  assert_int_equal(kr_band_latency(band), MODEL_LATENCY + (looks_back ? 480 : 0));
  kr_band_set(band, &(kr_band_controls){1, INFINITY, 0.5});
  for (int64_t i = 0; i < N; i++) in[i] = draw_noise() * (i < WORD ? 1e-3f : 1.0f);
  run_band(band, (model){.gain = 0.05, .least = 1e-3}, in, N, out);
  assert_true(power(out + 8000, 4000) < 1e-4 * power(in + 8000, 4000)); /* closed before */
  const double kept = power(out + WORD, MORE) / power(in + WORD, MORE);
  assert_true(power(out + WORD + 4000, 4000) > 0.99 * power(in + WORD + 4000, 4000));
  assert_true(kr_band_speech(band) > 0.9);
  kr_band_close(&band);
  return kept;
}

static void words_begin_whole(void **state) {
  (void)state;
  const double with = start_of_a_word(1), without = start_of_a_word(0);
  print_message("of the first 20 ms of a word: %.3f with look-back, %.3f without\n", with, without);
  assert_true(with > 0.98), assert_true(without < with);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_changes_nothing_is_transparent), cmocka_unit_test(what_is_above_follows),
      cmocka_unit_test(what_the_model_lacks_at_its_end_is_kept),
      cmocka_unit_test(dry_and_clean_mix), cmocka_unit_test(words_begin_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
