/* data.c: training items by their definition: independent of threads and ranks, mixed and levelled as specified, every
 * piece once per epoch; bad files reported once. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../test.h"
#include "augment.h"
#include "codec.h"
#include "data.h"
#include "mix.h"
#include "random.h"
#include "recordings.h"
#include "safetensors.h"
#include "status.h"

enum { HZ = 16000, N_SPEECH = 6, N_NOISE = 4 };
static char folder[64] = "/tmp/krait-data-XXXXXX";
static char lines[4096];

static void put_wav(const char *name, int hz, int n_channels, int n, double hz_of_tone, double level) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  const uint32_t bytes = (uint32_t)(2 * n * n_channels);
  const uint32_t head[] = {0x46464952,
                           36 + bytes,
                           0x45564157,
                           0x20746d66,
                           16,
                           1u | (uint32_t)n_channels << 16,
                           (uint32_t)hz,
                           (uint32_t)(hz * n_channels * 2),
                           (uint32_t)(2 * n_channels) | 16u << 16,
                           0x61746164,
                           bytes};
  fwrite(head, 1, sizeof head, file);
  uint64_t random = (uint64_t)(hz_of_tone * 1000) + 1;
  for (int i = 0; i < n; i++)
    for (int c = 0; c < n_channels; c++) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      const double noise = (double)(random >> 40) / 8388608.0 - 1,
                   tone = sin(6.2831853 * hz_of_tone * i / hz) * (0.6 + 0.4 * sin(i * 0.002));
      const int16_t v = (int16_t)lrint(level * 32767 * (0.7 * tone + 0.3 * noise) * (c ? 0.5 : 1));
      fwrite(&v, 2, 1, file);
    }
  fclose(file);
}

static void put_text(const char *name, const char *text) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static void make_folder(const char *name) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  assert_int_equal(mkdir(path, 0700), 0);
}

static int fill_folder(void **state) {
  (void)state;
  char name[64];
  if (!mkdtemp(folder)) return -1;
  const char *const parts[] = {"speech", "noise", "rir", "bad", "pair", "pair/clean", "pair/noisy"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) make_folder(parts[i]);
  for (int i = 0; i < N_SPEECH; i++) {
    snprintf(name, sizeof name, "speech/s%d.wav", i);
    put_wav(name, i == 2 ? 48000 : HZ, 1, (i == 2 ? 3 : 1) * (20000 + 30000 * i), 200 + 100 * i, 0.1 + 0.1 * i);
  }
  for (int i = 0; i < N_NOISE; i++) {
    snprintf(name, sizeof name, "noise/n%d.wav", i);
    put_wav(name, HZ, 1 + i % 2, 9000 + 20000 * i, 3000 + 700 * i, 0.3);
  }
  for (int i = 0; i < 2; i++) {
    put_wav(i ? "pair/clean/b.wav" : "pair/clean/a.wav", HZ, 1, 40000, 300 + i, 0.2);
    put_wav(i ? "pair/noisy/b.wav" : "pair/noisy/a.wav", HZ, 1, 40000, 900 + i, 0.4);
  }
  return 0;
}

static int drop_folder(void **state) {
  char command[128];
  (void)state;
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command);
}

static char speech_path[128], noise_path[128], rir_path[128];

static kr_data_config config(void) {
  kr_data_config c;
  kr_data_defaults(&c);
  snprintf(speech_path, sizeof speech_path, "%s/speech", folder);
  snprintf(noise_path, sizeof noise_path, "%s/noise", folder);
  snprintf(rir_path, sizeof rir_path, "%s/rir", folder);
  c.speech = speech_path, c.noise = noise_path;
  return c;
}

static kr_data *open_data(const kr_data_config *c) {
  kr_data *data = NULL;
  const int32_t status = kr_data_open(c, &data);
  if (status < 0) print_message("%s\n", krait_error_detail());
  assert_int_equal(status, KRAIT_OK);
  return data;
}

static uint64_t hash(uint64_t h, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], 4);
    h = (h ^ bits) * 0x100000001b3ull;
  }
  return h;
}

/* The bits of `n_steps` steps from `from` on, all ranks together, with this many threads. */
static uint64_t hash_steps(kr_data_config c, int64_t from, int64_t n_steps, int n_ranks, int n_workers) {
  uint64_t h = 1469598103934665603ull;
  kr_data *data[2] = {NULL};
  c.batch = 4 / n_ranks, c.n_ranks = n_ranks, c.n_workers = n_workers;
  for (int r = 0; r < n_ranks; r++) {
    c.rank = r;
    data[r] = open_data(&c);
    assert_int_equal(kr_data_begin(data[r], from), KRAIT_OK);
  }
  const int64_t n = kr_data_samples(data[0]) * c.batch;
  float *noisy = malloc((size_t)n * sizeof *noisy), *clean = malloc((size_t)n * sizeof *clean);
  for (int64_t s = 0; s < n_steps; s++)
    for (int r = 0; r < n_ranks; r++) {
      assert_int_equal(kr_data_next(data[r], noisy, clean), KRAIT_OK);
      for (int64_t i = 0; i < c.batch; i++) {
        h = hash(h, noisy + i * n / c.batch, n / c.batch);
        h = hash(h, clean + i * n / c.batch, n / c.batch);
      }
    }
  free(noisy);
  free(clean);
  for (int r = 0; r < n_ranks; r++) kr_data_close(&data[r]);
  return h;
}

static void same_bits_for_any_threads_ranks_and_start(void **state) {
  (void)state;
  kr_data_config c = config();
  c.most_noises = 3, c.babble_proportion = c.colour_proportion = 0.3,
  c.curve_proportion = c.gain_proportion = c.speed_proportion = c.rumble_proportion = c.tilt_proportion =
      c.band_proportion = c.clip_proportion = c.codec_proportion = 0.5;
  const uint64_t one = hash_steps(c, 0, 9, 1, 1);
  assert_int_equal(hash_steps(c, 0, 9, 1, 7), one);
  assert_int_equal(hash_steps(c, 0, 9, 2, 3), one);
  const uint64_t later = hash_steps(c, 5, 4, 1, 2);
  assert_int_equal(hash_steps(c, 5, 4, 2, 1), later);
  c.seed++;
  assert_true(hash_steps(c, 0, 9, 1, 7) != one);
  kr_data *data = open_data(&c); /* going back to a step within one handle */
  const int64_t n = kr_data_samples(data) * 4;
  float *a = malloc((size_t)n * 8), *b = malloc((size_t)n * 8);
  for (int turn = 0; turn < 2; turn++) {
    assert_int_equal(kr_data_begin(data, 3), KRAIT_OK);
    assert_int_equal(kr_data_next(data, turn ? b : a, (turn ? b : a) + n), KRAIT_OK);
  }
  assert_memory_equal(a, b, (size_t)n * 8);
  free(a);
  free(b);
  kr_data_close(&data);
}

static void every_piece_once_an_epoch(void **state) {
  (void)state;
  for (int64_t n = 1; n < 300; n = n * 2 + 1)
    for (uint64_t key = 0; key < 5; key++) {
      char seen[512] = {0};
      int64_t moved = 0;
      for (int64_t i = 0; i < n; i++) {
        const int64_t place = kr_random_place(key, n, i);
        assert_true(place >= 0 && place < n && !seen[place]);
        seen[place] = 1;
        moved += place != i;
      }
      if (n > 20) assert_true(moved > n / 2);
    }
  kr_data_config c = config();
  kr_data *data = open_data(&c);
  int64_t pieces = 0; /* ceil((length - segment) / stride) + 1 where a segment fits, else 1 */
  for (int i = 0; i < N_SPEECH; i++) {
    const int64_t length = 20000 + 30000 * i;
    pieces += length < 64000 ? 1 : (length - 64000 + 31999) / 32000 + 1;
  }
  assert_int_equal(kr_data_n_items(data), pieces);
  assert_int_equal(kr_data_n_steps(data), pieces / 4);
  assert_int_equal(kr_data_samples(data), 32000);
  assert_int_equal(kr_data_count(data).n_files, N_SPEECH);
  assert_string_equal(kr_data_item_name(data, 0), "s0");
  kr_data_close(&data);
}

static double db(double ratio) { return 20 * log10(ratio); }

/* Without a room noisy - clean is the noise: its ratio is the drawn one, and all integer decibels occur. */
static void ratios_and_levels_as_drawn(void **state) {
  (void)state;
  kr_data_config c = config();
  kr_data *data = open_data(&c);
  const int64_t n = kr_data_samples(data), n_items = kr_data_n_items(data);
  float *noisy = malloc((size_t)n * 4), *clean = malloc((size_t)n * 4);
  int ratios[64] = {0}, levels[64] = {0}, n_limited = 0, n_all = 0;
  double sum = 0;
  for (int64_t epoch = 0; epoch < 40; epoch++)
    for (int64_t i = 0; i < n_items; i++, n_all++) {
      int64_t own;
      assert_int_equal(kr_data_item(data, epoch, i, noisy, clean, &own), KRAIT_OK);
      assert_int_equal(own, n);
      const double level = db(kr_rms(noisy, n)), drawn = kr_data_item_snr_db(data, epoch, i), peak = kr_peak(noisy, n);
      assert_true(peak <= 0.9991);
      const int is_limited = fabs(peak - 0.99) < 1e-4;
      n_limited += is_limited;
      if (!is_limited) assert_true(fabs(level - rint(level)) < 0.01 && rint(level) >= -35 && rint(level) <= -15);
      if (!is_limited) levels[(int)rint(-level)]++;
      for (int64_t k = 0; k < n; k++) noisy[k] -= clean[k];
      assert_float_equal(db(kr_rms(clean, n) / kr_rms(noisy, n)), drawn, 0.05);
      assert_true(drawn >= -15 && drawn <= 20 && drawn == rint(drawn));
      ratios[(int)drawn + 15]++;
      sum += drawn;
    }
  for (int k = 0; k < 36; k++) assert_true(ratios[k] > n_all / 36 / 4);
  for (int k = 17; k < 36; k++) assert_true(levels[k] > 0);
  assert_float_equal(sum / n_all, 2.5, 4 * 10.4 / sqrt(n_all)); /* uniform: mean 2.5, deviation 10.4 */
  assert_true(n_limited < n_all / 2);
  free(noisy);
  free(clean);
  kr_data_close(&data);
}

/* Samples of a 16-bit file, as read. */
static void read_wav(const char *name, int n_channels, float *x, int64_t n) {
  char path[160];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  fseek(file, 44, SEEK_SET);
  for (int64_t i = 0; i < n; i++) {
    int16_t v[2] = {0};
    assert_int_equal(fread(v, 2, (size_t)n_channels, file), n_channels);
    x[i] = (float)v[0] / 32768;
  }
  fclose(file);
}

/* The specification's nine steps reimplemented in double, for validation's whole files. */
static void validation_by_the_formulas(void **state) {
  (void)state;
  kr_data_config c = config();
  kr_data_for_validation(&c);
  kr_data *data = open_data(&c);
  const int64_t most = kr_data_samples(data);
  assert_int_equal(most, 170000);
  assert_int_equal(kr_data_n_items(data), N_SPEECH);
  float *noisy = malloc((size_t)most * 4), *clean = malloc((size_t)most * 4), *s = malloc((size_t)most * 4),
        *v = malloc((size_t)most * 4);
  for (int i = 0; i < N_SPEECH; i++) {
    const int64_t n = 20000 + 30000 * i, n_noise = 9000 + 20000 * (i % N_NOISE);
    char name[32];
    int64_t own;
    assert_int_equal(kr_data_item(data, 7, i, noisy, clean, &own), KRAIT_OK);
    assert_int_equal(own, n);
    if (i == 2) continue; /* resampled */
    snprintf(name, sizeof name, "speech/s%d.wav", i);
    read_wav(name, 1, s, n);
    snprintf(name, sizeof name, "noise/n%d.wav", i % N_NOISE);
    read_wav(name, 1 + i % N_NOISE % 2, v, n_noise < n ? n_noise : n);
    for (int64_t k = n_noise; k < n; k++) v[k] = v[k - n_noise];
    double speech_gain = 1 / (kr_peak(s, n) + 1e-6), noise_gain = 1 / (kr_peak(v, n) + 1e-6);
    speech_gain *= pow(10, -25 / 20.0) / (kr_rms(s, n) * speech_gain + 1e-6);
    noise_gain *= pow(10, -25 / 20.0) / (kr_rms(v, n) * noise_gain + 1e-6);
    noise_gain *=
        kr_rms(s, n) * speech_gain / pow(10, kr_data_item_snr_db(data, 0, i) / 20) / (kr_rms(v, n) * noise_gain + 1e-6);
    double power = 0, peak = 0;
    for (int64_t k = 0; k < n; k++) power += pow(speech_gain * s[k] + noise_gain * v[k], 2);
    double scale = pow(10, -25 / 20.0) / (sqrt(power / (double)n) + 1e-6);
    for (int64_t k = 0; k < n; k++) peak = fmax(peak, fabs(scale * (speech_gain * s[k] + noise_gain * v[k])));
    if (peak > 0.999) scale *= (0.99 - 1e-6) / peak;
    for (int64_t k = 0; k < n; k++) {
      assert_float_equal(clean[k], scale * speech_gain * s[k], 2e-6);
      assert_float_equal(noisy[k], scale * (speech_gain * s[k] + noise_gain * v[k]), 2e-6);
    }
    for (int64_t k = n; k < most; k++) assert_true(noisy[k] == 0 && clean[k] == 0);
  }
  free(noisy);
  free(clean);
  free(s);
  free(v);
  kr_data_close(&data);
}

/* Synthetic noise: its ratio is still the drawn one; colours tilt, babble is speech. */
static void synthetic_noises(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++) {
    kr_data_config c = config();
    if (kind == 0) c.babble_proportion = 1, c.noise = NULL;
    if (kind == 1) c.colour_proportion = 1;
    if (kind == 2) c.curve_proportion = 1;
    kr_data *data = open_data(&c);
    const int64_t n = kr_data_samples(data);
    float *noisy = malloc((size_t)n * 4), *clean = malloc((size_t)n * 4);
    double low = 1e9, high = -1e9;
    for (int64_t i = 0; i < kr_data_n_items(data); i++) {
      int64_t own;
      double slope = 0, power = 0;
      assert_int_equal(kr_data_item(data, 1, i, noisy, clean, &own), KRAIT_OK);
      for (int64_t k = 0; k < n; k++) noisy[k] -= clean[k];
      assert_float_equal(db(kr_rms(clean, n) / kr_rms(noisy, n)), kr_data_item_snr_db(data, 1, i), 0.05);
      for (int64_t k = 1; k < n; k++) slope += pow(noisy[k] - noisy[k - 1], 2), power += pow(noisy[k], 2);
      low = fmin(low, slope / power),
      high = fmax(high, slope / power); /* 2 for white noise, less for low, more for high sounds */
    }
    if (kind == 1) assert_true(low < 0.5 && high > 1);
    if (kind == 0) assert_true(high < 1.5); /* the voices are tones of 200 to 700 Hz and some noise */
    free(noisy);
    free(clean);
    kr_data_close(&data);
  }
}

/* Rumble is added to the noise: without it the item is the same, and the difference is below speech, at -15 to 5 dB of
 * it. */
static void rumble(void **state) {
  (void)state;
  kr_data *data[2];
  for (int k = 0; k < 2; k++) {
    kr_data_config c = config();
    c.rumble_proportion = k;
    data[k] = open_data(&c);
  }
  const int64_t n = kr_data_samples(data[0]);
  float *noisy[2], *clean[2];
  double quietest = 1e9, loudest = -1e9;
  for (int k = 0; k < 2; k++) noisy[k] = malloc((size_t)n * 4), clean[k] = malloc((size_t)n * 4);
  for (int64_t i = 0; i < kr_data_n_items(data[0]); i++) {
    int64_t own;
    for (int k = 0; k < 2; k++) assert_int_equal(kr_data_item(data[k], 1, i, noisy[k], clean[k], &own), KRAIT_OK);
    const double level = kr_rms(clean[0], n) / kr_rms(clean[1], n);
    double slope = 0, power = 0, apart = 0;
    for (int64_t t = 0; t < n; t++) {
      noisy[1][t] = (float)(level * noisy[1][t]) - noisy[0][t], power += pow(noisy[1][t], 2);
      apart = fmax(apart, fabs(level * clean[1][t] - clean[0][t]));
      if (t) slope += pow(noisy[1][t] - noisy[1][t - 1], 2);
    }
    assert_true(apart < 1e-5);
    assert_true(slope < pow(6.2832 * 100 / HZ, 2) * power); /* 100 Hz in the mean of squares */
    const double ratio = db(kr_rms(clean[0], n) / kr_rms(noisy[1], n));
    quietest = fmin(quietest, ratio), loudest = fmax(loudest, ratio);
  }
  print_message("speech is %.1f to %.1f dB above it\n", quietest, loudest);
  assert_true(quietest > -5.1 && loudest < 15.1 && loudest - quietest > 5);
  for (int k = 0; k < 2; k++) free(noisy[k]), free(clean[k]), kr_data_close(&data[k]);
}

/* A tilt takes high frequencies from the noise; its ratio to speech stays the drawn one. */
static void tilt(void **state) {
  (void)state;
  double slopes[2] = {0};
  for (int k = 0; k < 2; k++) {
    kr_data_config c = config();
    c.colour_proportion = 1, c.tilt_proportion = k;
    kr_data *data = open_data(&c);
    const int64_t n = kr_data_samples(data);
    float *noisy = malloc((size_t)n * 4), *clean = malloc((size_t)n * 4);
    for (int64_t i = 0; i < kr_data_n_items(data); i++) {
      int64_t own;
      double slope = 0, power = 0;
      assert_int_equal(kr_data_item(data, 1, i, noisy, clean, &own), KRAIT_OK);
      for (int64_t t = 0; t < n; t++) noisy[t] -= clean[t];
      assert_float_equal(db(kr_rms(clean, n) / kr_rms(noisy, n)), kr_data_item_snr_db(data, 1, i), 0.05);
      for (int64_t t = 1; t < n; t++) slope += pow(noisy[t] - noisy[t - 1], 2), power += pow(noisy[t], 2);
      slopes[k] += slope / power;
    }
    free(noisy);
    free(clean);
    kr_data_close(&data);
  }
  assert_true(slopes[1] < 0.8 * slopes[0]);
}

/* Two octaves above the edge a tone loses twice the tilt, below it nothing. */
static void tilt_of_tones(void **state) {
  (void)state;
  enum { N = 4096, FROM = 1024, USED = 2048 };
  const double hz[] = {250, 2000}, loss_db[] = {0, 12};
  for (int k = 0; k < 2; k++) {
    float x[N];
    for (int t = 0; t < N; t++) x[t] = (float)sin(6.283185307179586 * hz[k] * t / HZ);
    const double before = kr_rms(x + FROM, USED);
    assert_int_equal(kr_augment_tilt(x, N, 500, -6), KRAIT_OK);
    assert_float_equal(db(before / kr_rms(x + FROM, USED)), loss_db[k], 0.1);
  }
}

/* A room that only delays: the input is 100 samples late, the target is not; with early parts it is too. */
static void rooms(void **state) {
  (void)state;
  char path[128];
  enum { DELAY = 100 };
  snprintf(path, sizeof path, "%s/rir/delay.wav", folder);
  put_wav("rir/delay.wav", HZ, 1, 400, 0, 0);
  FILE *file = fopen(path, "r+b");
  const int16_t one = 16384;
  fseek(file, 44 + 2 * DELAY, SEEK_SET);
  fwrite(&one, 2, 1, file);
  fclose(file);
  for (int early = 0; early < 2; early++) {
    kr_data_config c = config();
    c.rir = rir_path, c.reverb_proportion = 1, c.snr_low_db = c.snr_high_db = 100, c.level_float_db = 0,
    c.reverb_early_s = early * 0.05;
    kr_data *data = open_data(&c);
    const int64_t n = kr_data_samples(data);
    float *noisy = malloc((size_t)n * 4), *clean = malloc((size_t)n * 4);
    int64_t own;
    assert_int_equal(kr_data_item(data, 0, 5, noisy, clean, &own), KRAIT_OK);
    for (int64_t i = DELAY; i < n; i++)
      assert_float_equal(noisy[i], clean[early ? i : i - DELAY], 4e-3 * kr_peak(clean, n));
    free(noisy);
    free(clean);
    kr_data_close(&data);
  }
}

/* Real pairs stay unchanged except for a common level; throat microphones have their own level. */
static void pairs(void **state) {
  (void)state;
  char clean_path[128], noisy_path[128];
  snprintf(clean_path, sizeof clean_path, "%s/pair/clean", folder);
  snprintf(noisy_path, sizeof noisy_path, "%s/pair/noisy", folder);
  for (int own_levels = 0; own_levels < 2; own_levels++) {
    kr_data_config c = config();
    c.speech = clean_path, c.noisy = noisy_path, c.noise = NULL, c.own_levels = own_levels, c.segment = 0;
    kr_data *data = open_data(&c);
    const int64_t n = kr_data_samples(data);
    float *noisy = malloc((size_t)n * 4), *clean = malloc((size_t)n * 4), *s = malloc((size_t)n * 4),
          *v = malloc((size_t)n * 4);
    int64_t own;
    read_wav("pair/clean/b.wav", 1, s, n);
    read_wav("pair/noisy/b.wav", 1, v, n);
    assert_int_equal(kr_data_item(data, 0, 1, noisy, clean, &own), KRAIT_OK);
    const double want = own_levels ? 1 : kr_rms(s, n) / kr_rms(v, n);
    assert_float_equal(kr_rms(clean, n) / kr_rms(noisy, n), want, 1e-3);
    assert_float_equal(noisy[1234] / kr_rms(noisy, n), v[1234] / kr_rms(v, n), 1e-4);
    assert_float_equal(clean[1234] / kr_rms(clean, n), s[1234] / kr_rms(s, n), 1e-4);
    free(noisy);
    free(clean);
    free(s);
    free(v);
    kr_data_close(&data);
  }
}

/* Cached data has the same bits as the file: a 48 kHz recording and a second channel, read whole, in parts and
 * again. */
static void kept_or_read(void **state) {
  (void)state;
  enum { N = 6000 };
  static float whole[80000], part[N];
  kr_recordings *first = NULL, *again = NULL;
  int64_t n;
  int32_t n_channels;
  snprintf(noise_path, sizeof noise_path, "%s/noise", folder);
  snprintf(speech_path, sizeof speech_path, "%s/speech/s2.wav", folder);
  const char *const sources[] = {speech_path, noise_path};
  for (int k = 0; k < 2; k++)
    for (int32_t channel = 0; channel <= k; channel++) {
      assert_int_equal(kr_recordings_open(sources[k], NULL, "sound", NULL, NULL, &first), KRAIT_OK);
      assert_int_equal(kr_recordings_open(sources[k], NULL, "sound", NULL, NULL, &again), KRAIT_OK);
      assert_int_equal(kr_recordings_probe(first, k, &n, &n_channels), KRAIT_OK);
      assert_true(n_channels == 1 + k && n > 2 * N && n <= 80000);
      assert_int_equal(kr_recordings_read(first, k, channel, 0, n, whole), KRAIT_OK);
      for (int64_t from = 0; from < n + N; from += 4999) {
        assert_int_equal(kr_recordings_read(from % 2 ? first : again, k, channel, from, N, part), KRAIT_OK);
        for (int64_t i = 0; i < N; i++) assert_true(part[i] == (from + i < n ? whole[from + i] : 0));
      }
      kr_recordings_close(&first);
      kr_recordings_close(&again);
    }
}

static void note_line(void *user, const char *line) {
  (void)user;
  const size_t n = strlen(lines);
  snprintf(lines + n, sizeof lines - n, "%s\n", line);
}

static int count_lines_with(const char *text) {
  int n = 0;
  for (const char *at = lines; (at = strstr(at, text)); at++) n++;
  return n;
}

/* Tensors of a file as recordings: by prefix, of each type, paired by name; the same samples as from files. */
static void safetensors_sources(void **state) {
  (void)state;
  enum { N = 40000 };
  static int16_t whole[N], silent[N];
  static float real[N], read[N];
  static double wide[N];
  read_wav("pair/clean/a.wav", 1, read, N);
  for (int i = 0; i < N; i++) whole[i] = (int16_t)lrintf(read[i] * 32768), real[i] = read[i] * 0.5f;
  const kr_weight items[] = {{"clean/a", KRAIT_I16, 1, {N}, whole, sizeof whole},
                             {"noisy/a", KRAIT_F32, 1, {N}, real, sizeof real},
                             {"noisy/other", KRAIT_F32, 1, {N}, real, sizeof real},
                             {"clean/silent", KRAIT_I16, 1, {N}, silent, sizeof silent},
                             {"clean/wide", KRAIT_F64, 1, {N}, wide, sizeof wide},
                             {"clean/plane", KRAIT_I16, 2, {2, N / 2}, whole, sizeof whole}};
  char path[128], clean_source[160], noisy_source[160];
  snprintf(path, sizeof path, "%s/set.safetensors", folder);
  snprintf(clean_source, sizeof clean_source, "%s:clean/", path);
  snprintf(noisy_source, sizeof noisy_source, "%s:noisy/", path);
  assert_int_equal(kr_safetensors_write(path, items, sizeof items / sizeof *items, NULL, 0), KRAIT_OK);
  kr_data_config c = config();
  c.speech = clean_source, c.noisy = noisy_source, c.noise = NULL, c.segment = 0, c.level_float_db = 0,
  c.report = note_line;
  lines[0] = 0;
  kr_data *data = open_data(&c);
  assert_int_equal(kr_data_n_items(data), 1); /* silent has no partner; float64 and 2-D tensors are not recordings */
  assert_string_equal(kr_data_item_name(data, 0), "a");
  int64_t own;
  float *noisy = malloc(N * 4), *clean = malloc(N * 4);
  assert_int_equal(kr_data_item(data, 0, 0, noisy, clean, &own), KRAIT_OK);
  assert_int_equal(own, N);
  for (int i = 0; i < N; i++) assert_float_equal(clean[i], 2 * noisy[i], 1e-6);
  assert_float_equal(noisy[777] / kr_rms(noisy, N), real[777] / kr_rms(real, N), 1e-5);
  kr_data_close(&data);
  c.noisy = NULL, c.noise = noise_path;
  data = open_data(&c);
  assert_int_equal(kr_data_n_items(data), 2);
  for (int i = 0; i < 2; i++)
    assert_int_equal(kr_data_item(data, 0, i, noisy, clean, &own), KRAIT_OK); /* the silent one is replaced */
  assert_int_equal(count_lines_with("clean/silent is silent"), 1);
  kr_data_close(&data);
  snprintf(clean_source, sizeof clean_source, "%s:nothing/", path);
  assert_true(kr_data_open(&c, &data) < 0 && strstr(krait_error_detail(), "nothing/"));
  free(noisy);
  free(clean);
}

static void bad_files_are_reported_once_and_skipped(void **state) {
  (void)state;
  char bad[128];
  snprintf(bad, sizeof bad, "%s/bad", folder);
  put_wav("bad/good.wav", HZ, 1, 40000, 440, 0.3);
  put_wav("bad/low.wav", 8000, 1, 40000, 440, 0.3);
  put_wav("bad/silent.wav", HZ, 1, 40000, 440, 0);
  put_wav("bad/none.wav", HZ, 1, 0, 440, 0);
  put_text("bad/empty.wav", "");
  put_text("bad/text.flac", "this is no sound");
  put_text("bad/index.tsv", "not looked at");
  put_text("list.txt", "# a list\nbad/good.wav\r\n  bad/missing.wav\n\nbad/low.wav\n");
  for (int side = 0; side < 2; side++) {
    kr_data_config c = config();
    if (side) c.noise = bad;
    else c.speech = bad;
    c.report = note_line, c.n_workers = 4;
    lines[0] = 0;
    kr_data *data = open_data(&c);
    const int64_t n = kr_data_samples(data) * c.batch;
    float *noisy = malloc((size_t)n * 4), *clean = malloc((size_t)n * 4);
    assert_int_equal(kr_data_begin(data, 0), KRAIT_OK);
    for (int step = 0; step < 12; step++) {
      assert_int_equal(kr_data_next(data, noisy, clean), KRAIT_OK);
      assert_true(isfinite(kr_rms(noisy, n)) && kr_rms(noisy, n) > 0);
    }
    for (size_t i = 0; i < 5; i++) {
      const char *const names[] = {"low.wav", "silent.wav", "none.wav", "empty.wav", "text.flac"};
      if (count_lines_with(names[i]) != 1) print_message("%s: %s", names[i], lines);
      assert_int_equal(count_lines_with(names[i]), 1);
    }
    assert_int_equal(count_lines_with("\n"), 5);
    assert_int_equal(kr_data_count(data).n_bad, 5);
    assert_non_null(strstr(lines, "8000 Hz"));
    assert_non_null(strstr(lines, "is silent"));
    free(noisy);
    free(clean);
    kr_data_close(&data);
  }
  char list[128];
  snprintf(list, sizeof list, "%s/list.txt", folder);
  kr_data_config c = config();
  c.speech = list, c.report = note_line, lines[0] = 0;
  kr_data *data = open_data(&c);
  assert_int_equal(kr_data_n_items(data), 1);
  assert_non_null(strstr(lines, "missing.wav"));
  kr_data_close(&data);
}

static void data_refusals(void **state) {
  (void)state;
  kr_data *data = NULL;
  kr_data_config c = config();
  c.speech = "/nonexistent/place";
  assert_true(kr_data_open(&c, &data) < 0 && strstr(krait_error_detail(), "/nonexistent/place"));
  c = config();
  c.noise = NULL;
  assert_true(kr_data_open(&c, &data) < 0 && strstr(krait_error_detail(), "noise"));
  c = config();
  c.reverb_proportion = 0.5;
  assert_true(kr_data_open(&c, &data) < 0 && strstr(krait_error_detail(), "rir"));
  c = config();
  c.shift = c.segment;
  assert_true(kr_data_open(&c, &data) < 0 && strstr(krait_error_detail(), "shift"));
  c = config();
  put_text("rir/only.txt", "rir/nothing_there.wav\n");
  static char list[128];
  snprintf(list, sizeof list, "%s/rir/only.txt", folder);
  c.speech = list;
  assert_true(kr_data_open(&c, &data) < 0 && strstr(krait_error_detail(), "only.txt"));
  assert_null(data);
}

/* No codec adds a delay, and each keeps speech-like sound close to the original. */
static void codecs_add_no_delay(void **state) {
  (void)state;
  enum { N = 16000 };
  static float x[N], y[N];
  assert_true(kr_codec_count() >= 5);
  uint64_t random = 3;
  double low = 0;
  for (int i = 0; i < N; i++) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    low = 0.9 * low + 0.1 * ((double)(random >> 40) / 8388608.0 - 1);
    x[i] = (float)(low * (0.6 + 0.4 * sin(i * 0.003)));
  }
  for (int codec = 0; codec < kr_codec_count(); codec++) {
    memcpy(y, x, sizeof x);
    assert_int_equal(kr_codec_pass(codec, y, N), KRAIT_OK);
    double best = 0;
    int best_lag = -1000;
    for (int lag = -400; lag <= 400; lag++) {
      double xy = 0, xx = 0, yy = 0;
      for (int i = 1000; i < N - 1000; i++)
        xy += (double)x[i] * y[i + lag], xx += (double)x[i] * x[i], yy += (double)y[i + lag] * y[i + lag];
      if (xy / sqrt(xx * yy) > best) best = xy / sqrt(xx * yy), best_lag = lag;
    }
    if (best_lag != 0 || best < 0.8)
      print_message("%s: correlation %.3f at %d\n", kr_codec_name(codec), best, best_lag);
    assert_int_equal(best_lag, 0);
    assert_true(best > 0.8);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_for_any_threads_ranks_and_start),
                                     cmocka_unit_test(every_piece_once_an_epoch),
                                     cmocka_unit_test(ratios_and_levels_as_drawn),
                                     cmocka_unit_test(validation_by_the_formulas),
                                     cmocka_unit_test(rooms),
                                     cmocka_unit_test(synthetic_noises), cmocka_unit_test(rumble),
                                     cmocka_unit_test(tilt), cmocka_unit_test(tilt_of_tones),
                                     cmocka_unit_test(pairs),
                                     cmocka_unit_test(kept_or_read),
                                     cmocka_unit_test(safetensors_sources),
                                     cmocka_unit_test(bad_files_are_reported_once_and_skipped),
                                     cmocka_unit_test(data_refusals),
                                     cmocka_unit_test(codecs_add_no_delay)};
  return cmocka_run_group_tests(tests, fill_folder, drop_folder);
}
