/* score.c: computes the metrics of audio/metrics.h for files: SI-SDR and segmental SNR at 16 kHz, STOI at 10 kHz. */
#include "score.h"

#include <math.h>

#include "audio.h"
#include "metrics.h"
#include "status.h"
#include "track.h"

enum { BLOCK = 4096 };

typedef int32_t (*pair_fn)(void *user, const float *clean, const float *other, int64_t n);

/* Both files side by side until the shorter one ends. */
static int32_t walk_pair(const char *clean_path, const char *other_path, int32_t channel, int32_t hz, pair_fn fn,
                         void *user) {
  float clean[BLOCK], other[BLOCK];
  kr_track *clean_track = NULL, *other_track = NULL;
  int32_t status = kr_track_open(clean_path, channel, hz, &clean_track);
  if (status == KRAIT_OK) status = kr_track_open(other_path, channel, hz, &other_track);
  for (int64_t n = BLOCK, n_other = BLOCK; status == KRAIT_OK && n == BLOCK;) {
    status = kr_track_read(clean_track, clean, BLOCK, &n);
    if (status == KRAIT_OK) status = kr_track_read(other_track, other, BLOCK, &n_other);
    if (n_other < n) n = n_other;
    if (status == KRAIT_OK) status = fn(user, clean, other, n);
  }
  kr_track_close(&clean_track);
  kr_track_close(&other_track);
  return status;
}

typedef struct energy_scores {
  kr_si_sdr si_sdr;
  kr_segsnr segsnr;
} energy_scores;

static int32_t push_energy(void *user, const float *clean, const float *other, int64_t n) {
  energy_scores *s = user;
  kr_si_sdr_push(&s->si_sdr, clean, other, n);
  kr_segsnr_push(&s->segsnr, clean, other, n);
  return KRAIT_OK;
}

static int32_t scan_stoi(void *user, const float *clean, const float *other, int64_t n) {
  (void)other;
  kr_stoi_scan(user, clean, n);
  return KRAIT_OK;
}

static int32_t push_stoi(void *user, const float *clean, const float *other, int64_t n) {
  kr_stoi_push(user, clean, other, n);
  return KRAIT_OK;
}

static int32_t score_stoi(const char *clean_path, const char *other_path, int32_t channel, double *value) {
  kr_stoi *stoi = NULL;
  KR_TRY(kr_stoi_open(&stoi));
  int32_t status = walk_pair(clean_path, other_path, channel, KR_STOI_HZ, scan_stoi, stoi);
  if (status == KRAIT_OK) status = walk_pair(clean_path, other_path, channel, KR_STOI_HZ, push_stoi, stoi);
  if (status == KRAIT_OK) *value = kr_stoi_value(stoi);
  kr_stoi_close(&stoi);
  return status;
}

static int32_t score_pair(const char *clean_path, const char *other_path, int32_t n_channels, krait_scores *scores) {
  *scores = (krait_scores){0};
  for (int32_t channel = 0; channel < n_channels; channel++) {
    energy_scores energy = {0};
    double stoi = NAN;
    KR_TRY(walk_pair(clean_path, other_path, channel, KR_SEGSNR_HZ, push_energy, &energy));
    KR_TRY(score_stoi(clean_path, other_path, channel, &stoi));
    scores->si_sdr_db += kr_si_sdr_db(&energy.si_sdr) / n_channels;
    scores->segmental_snr_db += kr_segsnr_db(&energy.segsnr) / n_channels;
    scores->stoi += stoi / n_channels;
  }
  return KRAIT_OK;
}

int32_t kr_score_files(const char *clean_path, const char *noisy_path, const char *enhanced_path, int32_t n_channels,
                       krait_scores *noisy, krait_scores *enhanced) {
  KR_TRY(score_pair(clean_path, noisy_path, n_channels, noisy));
  return score_pair(clean_path, enhanced_path, n_channels, enhanced);
}

int32_t kr_score_check_reference(const char *clean_path, double audio_s, int32_t n_channels) {
  kr_audio_in *in = NULL;
  KR_TRY(kr_audio_open(clean_path, &in));
  const kr_audio_info info = *kr_audio_in_info(in);
  kr_audio_close(&in);
  const double clean_s = (double)info.n_frames / info.sample_rate_hz;
  KR_CHECK(fabs(clean_s - audio_s) <= 0.1, KRAIT_ERR_FILE_FORMAT,
           "the reference %s is %.3f s long but the input %.3f s; it must be the same recording without noise",
           clean_path, clean_s, audio_s);
  KR_CHECK(info.n_channels == 1 || info.n_channels == n_channels, KRAIT_ERR_FILE_FORMAT,
           "the reference %s has %d channels but the input %d; it must have one or the same number", clean_path,
           info.n_channels, n_channels);
  return KRAIT_OK;
}
