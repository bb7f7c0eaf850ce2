/* enhance.c: recordings through trivial denoisers: sample-exact in every format, rate and channel count; failures leave
 * no file. */
#define _GNU_SOURCE
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../folder.h"
#include "../test.h"
#include "alloc.h"
#include "enhance/enhance.h"
#include "status.h"

static char folder[] = "/tmp/krait-enhance-XXXXXX";
static char in_path[128], out_path[128];

/* ---- denoisers ---- */
typedef struct probe {
  float gain;
  double loudest; /* root mean square of the loudest window */
  int n_calls, fail_at;
} probe;

static int32_t scale_window(void *user, const float *in, float *out, int64_t n) {
  probe *p = user;
  double sum = 0;
  if (++p->n_calls == p->fail_at) return kr_fail(KRAIT_ERR_NO_MEMORY, "failure requested");
  for (int64_t i = 0; i < n; i++) {
    out[i] = in[i] * p->gain;
    sum += (double)in[i] * in[i];
  }
  p->loudest = fmax(p->loudest, sqrt(sum / (double)n));
  return KRAIT_OK;
}
static int32_t scale(void *user, int64_t n, const float *const *in, float *const *out, int64_t n_samples) {
  for (int64_t i = 0; i < n; i++) KR_TRY(scale_window(user, in[i], out[i], n_samples));
  return KRAIT_OK;
}

static int32_t enhance(probe *p, int32_t level, krait_progress_fn progress, void *user, krait_enhance_result *result) {
  const kr_denoiser denoiser = {.run = scale, .user = p, .level = level, .window_samples = 8000};
  const krait_enhance_options options = {
      .size = sizeof options, .in_path = in_path, .out_path = out_path, .progress = progress, .user = user};
  return kr_enhance_file(&denoiser, &options, result);
}

/* ---- files ---- */
static void name_files(const char *in, const char *out) {
  snprintf(in_path, sizeof in_path, "%s/%s", folder, in);
  snprintf(out_path, sizeof out_path, "%s/%s", folder, out);
}

/* A chirp below 4 kHz, different in every channel, faded in and out. */
static float sample_at(int64_t i, int64_t n, int channel, int32_t hz, double level) {
  const double t = (double)i / hz;
  return (float)(level * sin(2 * 3.14159265 * (100 + 50 * channel + 800 * t) * t) *
                 fmin(1, 20 * fmin(t, (double)(n - i) / hz)));
}

static float *write_file(int format, int32_t hz, int n_channels, int64_t n, double level) {
  SF_INFO info = {.format = format, .samplerate = hz, .channels = n_channels};
  float *x = malloc((size_t)(n * n_channels + 1) * sizeof(float));
  for (int64_t i = 0; i < n; i++)
    for (int c = 0; c < n_channels; c++) x[i * n_channels + c] = sample_at(i, n, c, hz, level);
  SNDFILE *file = sf_open(in_path, SFM_WRITE, &info);
  assert_non_null(file);
  assert_int_equal(sf_writef_float(file, x, n), n);
  sf_close(file);
  return x;
}

static float *read_enhance_file(SF_INFO *info) {
  *info = (SF_INFO){0};
  SNDFILE *file = sf_open(out_path, SFM_READ, info);
  assert_non_null(file);
  float *x = malloc((size_t)(info->frames * info->channels + 1) * sizeof(float));
  assert_int_equal(sf_readf_float(file, x, info->frames), info->frames);
  sf_close(file);
  return x;
}

static int make_enhance_folder(void **state) {
  (void)state;
  return mkdtemp(folder) ? 0 : -1;
}

static int clean_folder(void **state) {
  (void)state;
  unlink(in_path);
  unlink(out_path);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  return rmdir(folder);
}

/* ---- tests ---- */
static double error_db(const float *got, const float *want, int64_t n, float gain) {
  double signal = 0, noise = 0;
  for (int64_t i = 0; i < n; i++) {
    const double w = (double)gain * want[i];
    signal += w * w;
    noise += (got[i] - w) * (got[i] - w);
  }
  return 10 * log10(noise / signal + 1e-30);
}

static void same_rate_length_channels_and_format(void **state) {
  (void)state;
  static const struct {
    int format, hz, n_channels;
    int64_t n;
    double worst_db;
  } cases[] = {
      {SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 1, 50000, -70},
      {SF_FORMAT_WAV | SF_FORMAT_FLOAT, 44100, 2, 60001, -75},
      {SF_FORMAT_WAV | SF_FORMAT_PCM_U8, 8000, 1, 4001, -29},
      {SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 48000, 1, 100003, -75},
      {SF_FORMAT_AIFF | SF_FORMAT_PCM_24, 22050, 3, 12345, -75},
      {SF_FORMAT_CAF | SF_FORMAT_PCM_32, 96000, 2, 77777, -75},
      {SF_FORMAT_WAV | SF_FORMAT_ULAW, 8000, 1, 8000, -25},
      {SF_FORMAT_OGG | SF_FORMAT_VORBIS, 44100, 2, 44100, -10},
      {SF_FORMAT_WAVEX | SF_FORMAT_PCM_16, 16000, 6, 9000, -70},
      {SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 1, 1, -1},
      {SF_FORMAT_WAV | SF_FORMAT_FLOAT, 11025, 1, 2, 100},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    SF_INFO info;
    probe p = {.gain = 0.5f};
    krait_enhance_result result = {.size = sizeof result};
    name_files("in.dat", "out.dat");
    float *x = write_file(cases[i].format, cases[i].hz, cases[i].n_channels, cases[i].n, 0.3);
    assert_int_equal(enhance(&p, KR_LEVEL_AS_IS, NULL, NULL, &result), KRAIT_OK);
    float *y = read_enhance_file(&info);
    assert_int_equal(info.format, cases[i].format);
    assert_int_equal(info.samplerate, cases[i].hz);
    assert_int_equal(info.channels, cases[i].n_channels);
    assert_int_equal(info.frames, cases[i].n);
    assert_int_equal(result.n_samples, cases[i].n);
    assert_int_equal(kr_count_files(folder), 2);
    if (cases[i].n > 10) assert_true(error_db(y, x, cases[i].n * cases[i].n_channels, 0.5f) < cases[i].worst_db);
    free(x);
    free(y);
    clean_folder(state);
  }
}

static void identity_changes_no_bit_of_integer_samples(void **state) {
  (void)state;
  static const int encodings[] = {SF_FORMAT_PCM_U8, SF_FORMAT_PCM_16, SF_FORMAT_PCM_24};
  for (int i = 0; i < 3; i++) {
    SF_INFO info;
    probe p = {.gain = 1};
    krait_enhance_result result = {.size = sizeof result};
    name_files("in.wav", "out.wav");
    free(write_file(SF_FORMAT_WAV | encodings[i], 16000, 1, 20000, 0.2));
    assert_int_equal(enhance(&p, KR_LEVEL_AS_IS, NULL, NULL, &result), KRAIT_OK);
    float *y = read_enhance_file(&info);
    memcpy(out_path, in_path, sizeof out_path);
    float *x = read_enhance_file(&info);
    assert_memory_equal(x, y, 20000 * sizeof(float));
    free(x);
    free(y);
    clean_folder(state);
    name_files("in.wav", "out.wav");
    clean_folder(state);
  }
}

static void extension_names_the_format(void **state) {
  (void)state;
  static const struct {
    const char *out;
    int in_format, out_format;
  } cases[] = {
      {"a.flac", SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_FLAC | SF_FORMAT_PCM_16},
      {"a.FLAC", SF_FORMAT_WAV | SF_FORMAT_FLOAT, SF_FORMAT_FLAC | SF_FORMAT_PCM_24},
      {"a.flac", SF_FORMAT_WAV | SF_FORMAT_PCM_U8, SF_FORMAT_FLAC | SF_FORMAT_PCM_S8},
      {"a.wav", SF_FORMAT_OGG | SF_FORMAT_VORBIS, SF_FORMAT_WAV | SF_FORMAT_PCM_16},
      {"a.wav", SF_FORMAT_WAVEX | SF_FORMAT_PCM_24, SF_FORMAT_WAVEX | SF_FORMAT_PCM_24},
      {"a.ogg", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, SF_FORMAT_OGG | SF_FORMAT_VORBIS},
      {"a.opus", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, SF_FORMAT_OGG | SF_FORMAT_OPUS},
      {"a", SF_FORMAT_AU | SF_FORMAT_PCM_16, SF_FORMAT_AU | SF_FORMAT_PCM_16},
      {"a.aiff", SF_FORMAT_AIFF | SF_FORMAT_FLOAT, SF_FORMAT_AIFF | SF_FORMAT_FLOAT},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    SF_INFO info;
    probe p = {.gain = 1};
    krait_enhance_result result = {.size = sizeof result};
    name_files("in.dat", cases[i].out);
    free(write_file(cases[i].in_format, 16000, 1, 8000, 0.3));
    assert_int_equal(enhance(&p, KR_LEVEL_AS_IS, NULL, NULL, &result), KRAIT_OK);
    free(read_enhance_file(&info));
    assert_int_equal(info.format, cases[i].out_format);
    assert_int_equal(info.frames, 8000);
    clean_folder(state);
  }
}

static void loudness_is_brought_into_range_and_back(void **state) {
  (void)state;
  static const struct {
    double level, model_rms;
    int32_t rule;
  } cases[] = {{0.1, 0.0707, KR_LEVEL_AS_IS},
               {1e-4, 0.01778, KR_LEVEL_AS_IS},
               {200, 0.1778, KR_LEVEL_AS_IS},
               {0.01, 1, KR_LEVEL_UNIT_RMS}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    SF_INFO info;
    probe p = {.gain = 1};
    krait_enhance_result result = {.size = sizeof result};
    name_files("in.wav", "out.wav");
    float *x = write_file(SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000, 1, 20000, cases[i].level);
    assert_int_equal(enhance(&p, cases[i].rule, NULL, NULL, &result), KRAIT_OK);
    assert_float_equal(p.loudest / cases[i].model_rms, 1, 0.05);
    float *y = read_enhance_file(&info);
    assert_true(error_db(y, x, 20000, 1) < -110);
    free(x);
    free(y);
    clean_folder(state);
  }
}

static int32_t stop_later(void *user, int64_t done, int64_t total) {
  int *n_calls = user;
  assert_true(done >= 0 && done <= total && total == 50000);
  return ++*n_calls == 3;
}

static void stopping_and_failing_leave_nothing(void **state) {
  (void)state;
  int n_calls = 0;
  krait_enhance_result result = {.size = sizeof result};
  name_files("in.wav", "out.wav");
  free(write_file(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 1, 50000, 0.3));
  probe p = {.gain = 1};
  assert_int_equal(enhance(&p, KR_LEVEL_AS_IS, stop_later, &n_calls, &result), KRAIT_ERR_CANCELLED);
  assert_int_equal(kr_count_files(folder), 1);
  probe failing = {.gain = 1, .fail_at = 2};
  assert_int_equal(enhance(&failing, KR_LEVEL_AS_IS, NULL, NULL, &result), KRAIT_ERR_NO_MEMORY);
  assert_string_equal(krait_error_detail(), "failure requested");
  assert_int_equal(kr_count_files(folder), 1);
  memcpy(out_path, in_path, sizeof out_path);
  assert_int_equal(enhance(&p, KR_LEVEL_AS_IS, NULL, NULL, &result), KRAIT_ERR_ARGUMENT);
  assert_int_equal(kr_count_files(folder), 1);
}

/* Every allocation of a run with scores and a picture fails in turn: a status, no file, no leak (under sanitizers). */
static void running_out_of_memory_leaves_nothing(void **state) {
  (void)state;
  char plot_path[128];
  probe p = {.gain = 1};
  krait_enhance_result result = {.size = sizeof result};
  name_files("in.wav", "out.wav");
  snprintf(plot_path, sizeof plot_path, "%s/plot.png", folder);
  free(write_file(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 8000, 2, 9000, 0.3));
  const kr_denoiser denoiser = {.run = scale, .user = &p, .window_samples = 8000};
  const krait_enhance_options options = {.size = sizeof options,
                                         .in_path = in_path,
                                         .out_path = out_path,
                                         .plot_path = plot_path,
                                         .reference_path = in_path};
  int32_t status = KRAIT_ERR_NO_MEMORY;
  int n = 0;
  while (status == KRAIT_ERR_NO_MEMORY) {
    kr_alloc_fail_after(++n);
    status = kr_enhance_file(&denoiser, &options, &result);
    kr_alloc_fail_after(0);
    assert_int_equal(kr_count_files(folder), status == KRAIT_OK ? 3 : 1);
  }
  assert_int_equal(status, KRAIT_OK);
  assert_true(n > 30);
  unlink(plot_path);
}

static void silence_stays_silent_without_the_model(void **state) {
  (void)state;
  SF_INFO info;
  probe p = {.gain = 1};
  krait_enhance_result result = {.size = sizeof result};
  name_files("in.wav", "out.wav");
  free(write_file(SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000, 1, 30000, 0));
  assert_int_equal(enhance(&p, KR_LEVEL_UNIT_RMS, NULL, NULL, &result), KRAIT_OK);
  assert_int_equal(p.n_calls, 0);
  float *y = read_enhance_file(&info);
  for (int i = 0; i < 30000; i++) assert_true(y[i] == 0);
  free(y);
}

/* A denoiser with several windows in flight: a window's result depends on all its samples. */
typedef struct later {
  int64_t most, n, n_samples, n_runs, n_windows;
  float *out[KR_WINDOWS_AT_ONCE], said[KR_WINDOWS_AT_ONCE][8000];
} later;

static int32_t finish_later(void *user) {
  later *l = user;
  for (int64_t i = 0; i < l->n; i++) memcpy(l->out[i], l->said[i], (size_t)l->n_samples * sizeof(float));
  l->n = 0;
  return KRAIT_OK;
}
static int32_t run_later(void *user, int64_t n, const float *const *in, float *const *out, int64_t n_samples) {
  later *l = user;
  assert_true(n >= 1 && n <= l->most && n_samples <= 8000);
  assert_int_equal(finish_later(l), KRAIT_OK);
  for (int64_t i = 0; i < n; i++) {
    float sum = 0;
    for (int64_t k = 0; k < n_samples; k++) sum += in[i][k] * (float)k;
    assert_true(sum != 0);
    for (int64_t k = 0; k < n_samples; k++) l->said[i][k] = in[i][k] * (0.5f + 0.5f / (1 + sum * sum));
    l->out[i] = out[i];
  }
  l->n = n, l->n_samples = n_samples, l->n_runs++, l->n_windows += n;
  return KRAIT_OK;
}
static int32_t later_at_once(void *user, int64_t n_windows, int64_t n_samples, int64_t *n) {
  later *l = user;
  assert_true(n_windows > 1 && n_windows <= KR_WINDOWS_AT_ONCE && n_samples <= 8000);
  return *n = l->most < n_windows ? l->most : n_windows, KRAIT_OK;
}

static void write_gaps(void) {
  enum { N = 90000 };
  SF_INFO info = {.samplerate = 16000, .channels = 2, .format = SF_FORMAT_WAV | SF_FORMAT_FLOAT};
  SNDFILE *file = sf_open(in_path, SFM_WRITE, &info);
  static float x[2 * N];
  for (int i = 0; i < N; i++)
    for (int c = 0; c < 2; c++)
      x[2 * i + c] = (c ? i > 70000 : i > 26000 && i < 60000) ? 0 : sample_at(i, N, c, 16000, 0.2);
  assert_int_equal(sf_writef_float(file, x, N), N);
  sf_close(file);
}

static void windows_under_way(void **state) {
  static later l;
  float *want = NULL;
  SF_INFO info;
  krait_enhance_result result = {.size = sizeof result};
  (void)state;
  name_files("in.wav", "out.wav");
  write_gaps();
  const krait_enhance_options options = {.size = sizeof options, .in_path = in_path, .out_path = out_path};
  int64_t n_windows = 0;
  for (int64_t most = 1; most <= 6; most++) {
    l = (later){.most = most};
    const kr_denoiser denoiser = {
        .run = run_later, .finish = finish_later, .at_once = later_at_once, .user = &l, .window_samples = 8000};
    if (kr_enhance_file(&denoiser, &options, &result) < 0) fail_msg("%s", krait_error_detail());
    assert_true(result.compute_s >= 0 && result.compute_s <= result.total_s);
    if (most == 1) n_windows = l.n_windows;
    assert_int_equal(l.n_windows, n_windows);
    assert_true(most == 1 ? l.n_runs == n_windows : l.n_runs < n_windows);
    float *got = read_enhance_file(&info);
    assert_int_equal(info.frames, 90000);
    if (want) assert_memory_equal(got, want, 2 * 90000 * sizeof *got);
    if (want) free(got);
    else want = got;
  }
  free(want);
}

static void length_without_reading(void **state) {
  (void)state;
  double audio_s = -1;
  name_files("a.wav", "pipe");
  free(write_file(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 8000, 2, 6000, 0.1));
  assert_int_equal(krait_audio_length(in_path, &audio_s), KRAIT_OK);
  assert_true(audio_s == 1.5); /* both channels */
  assert_int_equal(krait_audio_length("-", &audio_s), KRAIT_OK);
  assert_true(isinf(audio_s));
  assert_int_equal(mkfifo(out_path, 0600), 0); /* no writer: opening it would steal another reader's data, or block */
  assert_int_equal(krait_audio_length(out_path, &audio_s), KRAIT_OK);
  assert_true(isinf(audio_s));
  assert_int_equal(krait_audio_length(folder, &audio_s), KRAIT_ERR_FILE_OPEN);
  assert_true(audio_s == 0);
  assert_int_equal(krait_audio_length(NULL, &audio_s), KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_audio_length(in_path, NULL), KRAIT_ERR_ARGUMENT);
}

static void samples_in_place(void **state) {
  (void)state;
  static float x[30000], want[30000];
  probe p = {.gain = 0.5f};
  const kr_denoiser denoiser = {.run = scale, .user = &p, .level = KR_LEVEL_UNIT_RMS, .window_samples = 8000};
  for (int i = 0; i < 30000; i++) want[i] = x[i] = sample_at(i, 30000, 0, 16000, 0.01);
  assert_int_equal(kr_enhance_samples(&denoiser, x, x, 30000, NULL, NULL), KRAIT_OK);
  assert_true(error_db(x, want, 30000, 0.5f) < -110);
  assert_int_equal(kr_enhance_samples(&denoiser, x, x, 0, NULL, NULL), KRAIT_OK);
  assert_int_equal(kr_enhance_samples(&denoiser, x, x, 1, NULL, NULL), KRAIT_OK);
  x[7] = NAN;
  assert_int_equal(kr_enhance_samples(&denoiser, x, x, 30, NULL, NULL), KRAIT_ERR_ARGUMENT);
  assert_non_null(strstr(krait_error_detail(), "in[7]"));
}

/* Any split of the sound gives the same samples, each at most the latency late; through a gain. */
static void streams(void **state) {
  enum { N = 40123, LATE = 5600 };
  static float in[N], out[N + LATE], first[N];
  (void)state;
  probe p = {.gain = 0.5f};
  const kr_denoiser denoiser = {.run = scale, .user = &p, .level = 0, .window_samples = 32000};
  krait_denoiser_stream *stream = NULL;
  assert_int_equal(kr_stream_open(&denoiser, &stream), KRAIT_OK);
  assert_int_equal(krait_denoiser_stream_latency(stream), LATE);
  for (int64_t i = 0; i < N; i++) in[i] = sample_at(i, N, 0, 16000, 0.3);
  const int64_t pieces[] = {N, 1, 160, 3999, 4000, 4001, 16001};
  for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
    int64_t heard = 0, said = 0, n;
    while (heard < N) {
      const int64_t now = N - heard < pieces[k] ? N - heard : pieces[k];
      assert_int_equal(krait_denoiser_stream_push(stream, in + heard, now, out + said, now + LATE, &n), KRAIT_OK);
      heard += now, said += n;
      assert_true(said <= heard && heard - said < LATE);
    }
    assert_int_equal(krait_denoiser_stream_push(stream, in, 0, NULL, 0, &n), KRAIT_OK);
    assert_int_equal(n, 0);
    assert_true(krait_denoiser_stream_finish(stream, out + said, N - said - 1, &n) == KRAIT_ERR_ARGUMENT && n == 0);
    assert_int_equal(krait_denoiser_stream_finish(stream, out + said, LATE, &n), KRAIT_OK);
    assert_int_equal(said + n, N); /* and the stream restarts */
    if (k == 0) memcpy(first, out, sizeof first);
    assert_memory_equal(first, out, sizeof first);
  }
  for (int64_t i = 0; i < N; i++) assert_true(fabsf(first[i] - 0.5f * in[i]) < 1e-6f);
  krait_denoiser_stream_close(&stream);
  assert_null(stream);
}

/* Input is not consumed if its output does not fit. */
static void streams_refuse(void **state) {
  enum { N = 8000 };
  static float in[N], out[N];
  (void)state;
  probe p = {.gain = 1, .fail_at = 2};
  const kr_denoiser denoiser = {.run = scale, .user = &p, .level = 0, .window_samples = 32000};
  krait_denoiser_stream *stream = NULL;
  int64_t n = 7;
  for (int i = 0; i < N; i++) in[i] = 0.1f;
  assert_int_equal(kr_stream_open(&denoiser, &stream), KRAIT_OK);
  assert_int_equal(krait_denoiser_stream_push(stream, in, N, out, N - 1601, &n), KRAIT_ERR_ARGUMENT);
  assert_non_null(strstr(krait_error_detail(), "6400 are due"));
  assert_int_equal(n, 0);
  in[5] = NAN;
  assert_int_equal(krait_denoiser_stream_push(stream, in, N, out, N, &n), KRAIT_ERR_ARGUMENT);
  assert_non_null(strstr(krait_error_detail(), "in[5]"));
  in[5] = 0.1f;
  assert_int_equal(p.n_calls, 0);
  assert_int_equal(krait_denoiser_stream_push(stream, in, N, out, N, &n), KRAIT_ERR_NO_MEMORY);
  assert_int_equal(n, 2400); /* what came before */
  assert_int_equal(krait_denoiser_stream_push(stream, in, N, out, N, &n), KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_denoiser_stream_finish(stream, out, N, &n), KRAIT_OK);
  assert_int_equal(n, 5600);
  assert_int_equal(krait_denoiser_stream_push(stream, in, N, out, N, &n), KRAIT_OK);
  assert_int_equal(n, 6400);
  assert_int_equal(krait_denoiser_stream_open(NULL, &stream), KRAIT_ERR_ARGUMENT);
  krait_denoiser_stream_close(&stream);
  krait_denoiser_stream_close(NULL);
}

/* A recording through its file and in memory, with and without what lies above the model's band: to one 16-bit step. */
static void files_are_channels(void **state) {
  enum { N = 9011 };
  (void)state;
  krait_denoiser *denoiser = NULL;
  krait_denoiser_session *session = NULL;
  krait_ctx *ctx = NULL;
  float *got = malloc(N * sizeof *got);
  const krait_ctx_options cpu = {.size = sizeof cpu, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  const krait_denoiser_options weights = {.size = sizeof weights,
                                          .weights_path = "tests/golden/primeknet/tiny-gru.weights.safetensors"};
  assert_int_equal(krait_ctx_open(&cpu, &ctx), KRAIT_OK);
  assert_int_equal(krait_denoiser_open(ctx, &weights, &denoiser), KRAIT_OK);
  assert_int_equal(krait_denoiser_session_open(denoiser, &session), KRAIT_OK);
  static const int32_t rates[] = {8000, 44100};
  for (int k = 0; k < 2 * 4; k++) {
    const int32_t hz = rates[k / 4], is_narrow = k % 2;
    SF_INFO info;
    name_files("in.wav", "out.wav");
    float *x = write_file(SF_FORMAT_WAV | SF_FORMAT_FLOAT, hz, 1, N, k / 2 % 2 ? 0.5 : 0.05);
    const krait_enhance_options options = {
        .size = sizeof options, .in_path = in_path, .out_path = out_path, .is_narrow = is_narrow};
    const krait_voice_options voice = {
        .size = sizeof voice, .rate_hz = hz, .flags = is_narrow ? KRAIT_VOICE_NARROW : 0};
    double worst = 0, kept = 0;
    assert_int_equal(krait_enhance_file(session, &options, NULL), KRAIT_OK);
    assert_int_equal(krait_enhance_channel(session, &voice, NULL, x, got, N, NULL, NULL), KRAIT_OK);
    float *y = read_enhance_file(&info);
    assert_int_equal(info.frames, N);
    for (int64_t i = 0; i < N; i++) worst = fmax(worst, fabs((double)y[i] - got[i])), kept = fmax(kept, fabs(got[i]));
    print_message("%d Hz%s: %.2f steps of 16 bits apart\n", (int)hz, is_narrow ? ", 16k" : "", worst * 32768);
    assert_true(worst * 32768 <= 1 && kept > 1e-3);
    free(x), free(y);
    clean_folder(state);
  }
  free(got);
  krait_denoiser_session_close(&session), krait_denoiser_close(&denoiser), krait_ctx_close(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(same_rate_length_channels_and_format, clean_folder),
      cmocka_unit_test_teardown(identity_changes_no_bit_of_integer_samples, clean_folder),
      cmocka_unit_test_teardown(extension_names_the_format, clean_folder),
      cmocka_unit_test_teardown(loudness_is_brought_into_range_and_back, clean_folder),
      cmocka_unit_test_teardown(stopping_and_failing_leave_nothing, clean_folder),
      cmocka_unit_test_teardown(running_out_of_memory_leaves_nothing, clean_folder),
      cmocka_unit_test_teardown(silence_stays_silent_without_the_model, clean_folder),
      cmocka_unit_test_teardown(windows_under_way, clean_folder),
      cmocka_unit_test_teardown(length_without_reading, clean_folder),
      cmocka_unit_test(samples_in_place),
      cmocka_unit_test_teardown(files_are_channels, clean_folder),
      cmocka_unit_test(streams),
      cmocka_unit_test(streams_refuse),
  };
  return cmocka_run_group_tests(tests, make_enhance_folder, remove_folder);
}
