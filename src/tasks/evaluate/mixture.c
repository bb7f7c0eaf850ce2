/* mixture.c: room responses by overlap-add and looped noise, in two passes: the first determines the noise's gain
 * (mixture.h). */
#include "mixture.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "convolve.h"
#include "mix.h"
#include "status.h"
#include "stream.h"
#include "track.h"

enum { BLOCK = 4096 };
static const double FULL = 0.99;

struct kr_mixture {
  int32_t n_channels;
  double snr_db;
  float *noise, *rir;
  int64_t n_noise, n_rir;
  kr_convolver *convolver;
  float *tails, *mono;     /* per channel: the remaining tail of the room response, n_rir samples; one channel of a
                              block */
  double speech_power;     /* first pass */
  float speech_peak;
  int64_t n_measured, n_mixed; /* frames */
  double noise_gain, gain;
};

static int32_t read_mixture_whole(const char *path, int32_t hz, float **samples, int64_t *n) {
  kr_queue queue = {0};
  kr_track *track = NULL;
  float block[BLOCK];
  KR_TRY(kr_track_open(path, 0, hz, &track));
  int32_t status = KRAIT_OK;
  for (int64_t got = 1; status == KRAIT_OK && got > 0;) {
    status = kr_track_read(track, block, BLOCK, &got);
    if (status == KRAIT_OK) status = kr_queue_push(&queue, block, got);
  }
  kr_track_close(&track);
  *n = kr_queue_count(&queue);
  if (status == KRAIT_OK) *samples = kr_alloc_array((size_t)*n + 1, sizeof **samples);
  if (status == KRAIT_OK && !*samples) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %s", path);
  if (status == KRAIT_OK) memcpy(*samples, kr_queue_front(&queue), (size_t)*n * sizeof **samples);
  kr_queue_free(&queue);
  if (status == KRAIT_OK && !(kr_rms(*samples, *n) > 0)) status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is silent", path);
  return status;
}

static int32_t open_mixture_parts(kr_mixture *m, const char *noise_path, const char *rir_path, int32_t hz) {
  if (noise_path) KR_TRY(read_mixture_whole(noise_path, hz, &m->noise, &m->n_noise));
  if (!rir_path) return KRAIT_OK;
  KR_TRY(read_mixture_whole(rir_path, hz, &m->rir, &m->n_rir));
  const double energy = kr_rms(m->rir, m->n_rir) * sqrt((double)m->n_rir);
  kr_scale(m->rir, m->n_rir, 1 / energy); /* about the same loudness as before */
  m->tails = kr_alloc_array((size_t)m->n_channels * (size_t)m->n_rir, sizeof *m->tails);
  m->mono = kr_alloc_array(BLOCK, sizeof *m->mono);
  KR_CHECK(m->tails && m->mono, KRAIT_ERR_NO_MEMORY, "no memory for the room %s", rir_path);
  return kr_convolver_open(kr_power_of_two(BLOCK + m->n_rir), &m->convolver);
}

int32_t kr_mixture_open(const char *noise_path, const char *rir_path, double snr_db, int32_t hz, int32_t n_channels,
                        kr_mixture **mixture) {
  kr_mixture *m = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory to mix");
  *m = (kr_mixture){.n_channels = n_channels, .snr_db = snr_db, .gain = 1};
  const int32_t status = open_mixture_parts(m, noise_path, rir_path, hz);
  if (status < 0) kr_mixture_close(&m);
  else *mixture = m;
  return status;
}

void kr_mixture_close(kr_mixture **mixture) {
  kr_mixture *m = *mixture;
  if (!m) return;
  kr_convolver_close(&m->convolver);
  void *const blocks[] = {m->noise, m->rir, m->tails, m->mono};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) kr_free(blocks[i]);
  kr_free(m);
  *mixture = NULL;
}

/* Convolves n <= BLOCK samples of one channel, stride apart, with the room response. */
static void put_into_room(kr_mixture *m, int32_t channel, float *samples, int64_t n) {
  float *tail = m->tails + channel * m->n_rir;
  for (int64_t i = 0; i < n; i++) m->mono[i] = samples[i * m->n_channels];
  const float *wet = kr_convolver_convolve(m->convolver, m->mono, n, m->rir, m->n_rir);
  for (int64_t i = 0; i < n; i++) samples[i * m->n_channels] = wet[i] + (i < m->n_rir ? tail[i] : 0);
  for (int64_t i = 0; i < m->n_rir; i++) tail[i] = (i + n < m->n_rir ? tail[i + n] : 0) + wet[i + n];
}

static void put_all_into_room(kr_mixture *m, float *frames, int64_t n) {
  for (int32_t c = 0; m->rir && c < m->n_channels; c++) put_into_room(m, c, frames + c, n);
}

int32_t kr_mixture_measure(kr_mixture *m, const float *frames, int64_t n_frames) {
  const size_t most = (size_t)BLOCK * (size_t)m->n_channels;
  float *copy = kr_alloc_array(most, sizeof *copy);
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory to mix");
  for (int64_t at = 0; at < n_frames; at += BLOCK) {
    const int64_t n = n_frames - at < BLOCK ? n_frames - at : BLOCK, n_values = n * m->n_channels;
    memcpy(copy, frames + at * m->n_channels, (size_t)n_values * sizeof *copy);
    put_all_into_room(m, copy, n);
    const double rms = kr_rms(copy, n_values);
    m->speech_power += rms * rms * (double)n;
    m->speech_peak = fmaxf(m->speech_peak, kr_peak(copy, n_values));
    m->n_measured += n;
  }
  kr_free(copy);
  return KRAIT_OK;
}

/* The power of the part of the looped noise that is used. */
static double noise_power(const kr_mixture *m) {
  const int64_t whole = m->n_measured / m->n_noise, rest = m->n_measured % m->n_noise;
  const double all = kr_rms(m->noise, m->n_noise), some = kr_rms(m->noise, rest);
  return (all * all * (double)m->n_noise * (double)whole + some * some * (double)rest) / (double)m->n_measured;
}

int32_t kr_mixture_begin(kr_mixture *m) {
  if (m->rir) memset(m->tails, 0, (size_t)m->n_channels * (size_t)m->n_rir * sizeof *m->tails);
  m->n_mixed = 0;
  if (m->n_measured == 0) return KRAIT_OK;
  const double speech = m->speech_power / (double)m->n_measured;
  if (m->noise) {
    const double noise = noise_power(m);
    KR_CHECK(speech > 0 && noise > 0, KRAIT_ERR_FILE_FORMAT, "the %s is silent: there is no signal-to-noise ratio",
             speech > 0 ? "noise" : "recording");
    m->noise_gain = sqrt(speech / noise) / pow(10, m->snr_db / 20);
  }
  const double most = m->speech_peak + m->noise_gain * (m->noise ? kr_peak(m->noise, m->n_noise) : 0);
  m->gain = most > FULL ? FULL / most : 1; /* integer files must not clip */
  return KRAIT_OK;
}

int32_t kr_mixture_mix(kr_mixture *m, float *frames, int64_t n_frames) {
  for (int64_t at = 0; at < n_frames; at += BLOCK) {
    const int64_t n = n_frames - at < BLOCK ? n_frames - at : BLOCK;
    float *block = frames + at * m->n_channels;
    put_all_into_room(m, block, n);
    for (int64_t i = 0; i < n; i++) {
      const double noise = m->noise ? m->noise_gain * m->noise[(m->n_mixed + i) % m->n_noise] : 0;
      for (int32_t c = 0; c < m->n_channels; c++)
        block[i * m->n_channels + c] = (float)(m->gain * (block[i * m->n_channels + c] + noise));
    }
    m->n_mixed += n;
  }
  return KRAIT_OK;
}
