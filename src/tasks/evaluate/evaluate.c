/* evaluate.c: krait_evaluate_*: scores a pair of recordings, or a mixed item, before and after a model. */
#include "public_names.h"

#include <krait/data.h>
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "audio.h"
#include "clock.h"
#include "denoiser.h"
#include "enhance/enhance.h"
#include "enhance/job.h"
#include "outfile.h"
#include "quality.h"
#include "sized.h"
#include "status.h"
#include "stream.h"
#include "track.h"

static krait_quality to_public(const kr_quality *q) {
  return (krait_quality){.size = sizeof(krait_quality),
                         .pesq = q->pesq,
                         .csig = q->csig,
                         .cbak = q->cbak,
                         .covl = q->covl,
                         .segmental_snr_db = q->segsnr_db,
                         .si_sdr_db = q->si_sdr_db,
                         .stoi = q->stoi,
                         .llr = q->llr,
                         .wss = q->wss};
}

int32_t krait_quality_samples(const float *clean, const float *other, int64_t n_samples, krait_quality *quality) {
  kr_quality q;
  KR_CHECK(clean && other && quality && n_samples >= 0, KRAIT_ERR_ARGUMENT,
           "clean, other and quality must not be NULL, n_samples not negative");
  for (int64_t i = 0; i < n_samples; i++)
    KR_CHECK(isfinite(clean[i]) && isfinite(other[i]), KRAIT_ERR_ARGUMENT, "sample %lld is not a finite number",
             (long long)i);
  KR_TRY(kr_quality_of(clean, other, n_samples, &q));
  const krait_quality found = to_public(&q);
  return kr_struct_give("krait_quality", quality, sizeof found, &found, sizeof found);
}

static void add_evaluate(krait_quality *sum, const kr_quality *q, double share) {
  sum->pesq += q->pesq * share;
  sum->csig += q->csig * share;
  sum->cbak += q->cbak * share;
  sum->covl += q->covl * share;
  sum->segmental_snr_db += q->segsnr_db * share;
  sum->si_sdr_db += q->si_sdr_db * share;
  sum->stoi += q->stoi * share;
  sum->llr += q->llr * share;
  sum->wss += q->wss * share;
}

/* One channel of an evaluation; other is enhanced in place after it was scored. */
static int32_t evaluate_samples(krait_denoiser_session *session, const float *clean, float *other, int64_t n,
                                double share, krait_evaluation *e) {
  kr_quality q;
  kr_denoiser denoiser;
  KR_TRY(kr_quality_of(clean, other, n, &q));
  add_evaluate(&e->noisy, &q, share);
  if (!session) return KRAIT_OK;
  KR_TRY(kr_session_denoiser(session, &denoiser));
  const int64_t start_ns = kr_clock_ns();
  KR_TRY(kr_enhance_samples(&denoiser, other, other, n, NULL, NULL));
  e->compute_s += (double)(kr_clock_ns() - start_ns) * 1e-9;
  KR_TRY(kr_quality_of(clean, other, n, &q));
  add_evaluate(&e->enhanced, &q, share);
  e->has_enhanced = 1;
  return KRAIT_OK;
}

static int32_t read_channel(const char *path, int32_t channel, kr_queue *queue) {
  float block[4096];
  kr_track *track = NULL;
  KR_TRY(kr_track_open(path, channel, KR_MODEL_HZ, &track));
  int32_t status = KRAIT_OK;
  for (int64_t n = 1; status == KRAIT_OK && n > 0;) {
    status = kr_track_read(track, block, (int64_t)(sizeof block / sizeof *block), &n);
    if (status == KRAIT_OK) status = kr_queue_push(queue, block, n);
  }
  kr_track_close(&track);
  return status;
}

static int32_t evaluate_channel(krait_denoiser_session *session, const char *clean_path, const char *other_path,
                                int32_t channel, int32_t n_channels, krait_evaluation *e) {
  kr_queue clean = {0}, other = {0};
  int32_t status = read_channel(clean_path, channel, &clean);
  if (status == KRAIT_OK) status = read_channel(other_path, channel, &other);
  const int64_t n = kr_queue_count(&clean) < kr_queue_count(&other) ? kr_queue_count(&clean) : kr_queue_count(&other);
  if (status == KRAIT_OK)
    status = evaluate_samples(session, kr_queue_front(&clean), (float *)kr_queue_front(&other), n, 1.0 / n_channels, e);
  e->audio_s = (double)n / KR_MODEL_HZ;
  kr_queue_free(&clean);
  kr_queue_free(&other);
  return status;
}

static int32_t count_channels(const char *path, int32_t *n_channels) {
  kr_audio_in *in = NULL;
  KR_TRY(kr_audio_open(path, &in));
  *n_channels = kr_audio_in_info(in)->n_channels;
  kr_audio_close(&in);
  return KRAIT_OK;
}

static const krait_evaluation nothing_yet = {
    .size = sizeof(krait_evaluation), .noisy.size = sizeof(krait_quality), .enhanced.size = sizeof(krait_quality)};

int32_t krait_evaluate_files(krait_denoiser_session *session, const char *clean_path, const char *other_path,
                             krait_evaluation *evaluation) {
  int32_t n_clean, n_other;
  krait_evaluation e = nothing_yet;
  KR_CHECK(clean_path && other_path && evaluation, KRAIT_ERR_ARGUMENT,
           "clean_path, other_path and evaluation must not be NULL");
  KR_TRY(count_channels(clean_path, &n_clean));
  KR_TRY(count_channels(other_path, &n_other));
  KR_CHECK(n_clean == 1 || n_clean == n_other, KRAIT_ERR_FILE_FORMAT,
           "%s has %d channels but %s has %d; the clean one must have one or the same number", clean_path, n_clean,
           other_path, n_other);
  for (int32_t channel = 0; channel < n_other; channel++)
    KR_TRY(evaluate_channel(session, clean_path, other_path, channel, n_other, &e));
  return kr_struct_give("krait_evaluation", evaluation, sizeof e, &e, sizeof e);
}

int32_t krait_evaluate_item(krait_denoiser_session *session, krait_data *data, int64_t index,
                            krait_evaluation *evaluation) {
  krait_evaluation e = nothing_yet;
  int64_t n = 0;
  KR_CHECK(data && evaluation, KRAIT_ERR_ARGUMENT, "data and evaluation must not be NULL");
  const size_t most = (size_t)krait_data_samples(data);
  float *noisy = kr_alloc_array(most, sizeof *noisy), *clean = kr_alloc_array(most, sizeof *clean);
  int32_t status = noisy && clean ? krait_data_item(data, 0, index, noisy, clean, &n)
                                  : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %zu samples", most);
  if (status == KRAIT_OK) status = evaluate_samples(session, clean, noisy, n, 1, &e);
  e.audio_s = (double)n / KR_MODEL_HZ;
  kr_free(noisy);
  kr_free(clean);
  KR_TRY(status);
  return kr_struct_give("krait_evaluation", evaluation, sizeof e, &e, sizeof e);
}

int32_t krait_text_write(const char *path, const char *text) {
  KR_CHECK(path && text, KRAIT_ERR_ARGUMENT, "path and text must not be NULL");
  return kr_outfile_text(path, text);
}
