/* track.c: file -> one channel -> resampler -> queue -> caller. */
#include "track.h"

#include <string.h>

#include "alloc.h"
#include "audio.h"
#include "resample.h"
#include "status.h"

enum { BLOCK = 4096 };

struct kr_track {
  kr_audio_in *in;
  kr_resampler *resampler;
  kr_queue queue;
  int32_t channel, sample_rate_hz;
  int64_t n_frames; /* read from the file */
  int at_end;
  float *frames; /* BLOCK interleaved frames */
  float mono[BLOCK];
};

static int32_t open_track_parts(kr_track *t, const char *path, int32_t channel) {
  KR_TRY(kr_audio_open(path, &t->in));
  const kr_audio_info *info = kr_audio_in_info(t->in);
  t->channel = channel < info->n_channels ? channel : info->n_channels - 1;
  t->frames = kr_alloc_array((size_t)info->n_channels * BLOCK, sizeof(float));
  KR_CHECK(t->frames, KRAIT_ERR_NO_MEMORY, "no memory to read %s", path);
  return kr_resampler_open(info->sample_rate_hz, t->sample_rate_hz, (kr_sink){kr_queue_push, &t->queue}, &t->resampler);
}

int32_t kr_track_open(const char *path, int32_t channel, int32_t sample_rate_hz, kr_track **track) {
  kr_track *t = kr_zalloc(sizeof *t);
  KR_CHECK(t, KRAIT_ERR_NO_MEMORY, "no memory to read %s", path);
  t->sample_rate_hz = sample_rate_hz;
  int32_t status = open_track_parts(t, path, channel);
  if (status < 0) kr_track_close(&t);
  else *track = t;
  return status;
}

void kr_track_close(kr_track **track) {
  kr_track *t = *track;
  if (!t) return;
  kr_audio_close(&t->in);
  kr_resampler_close(&t->resampler);
  kr_queue_free(&t->queue);
  kr_free(t->frames);
  kr_free(t);
  *track = NULL;
}

int64_t kr_track_length(const kr_track *t) {
  const kr_audio_info *info = kr_audio_in_info(t->in);
  return kr_resampled_length(info->n_frames, info->sample_rate_hz, t->sample_rate_hz);
}

static int32_t read_block(kr_track *t) {
  const kr_audio_info *info = kr_audio_in_info(t->in);
  int64_t n = 0;
  KR_TRY(kr_audio_read(t->in, t->frames, BLOCK, &n));
  for (int64_t i = 0; i < n; i++) t->mono[i] = t->frames[i * info->n_channels + t->channel];
  t->n_frames += n;
  KR_TRY(kr_resampler_push(t->resampler, t->mono, n));
  if (n == BLOCK) return KRAIT_OK;
  t->at_end = 1;
  return kr_resampler_finish(t->resampler, kr_resampled_length(t->n_frames, info->sample_rate_hz, t->sample_rate_hz));
}

int32_t kr_track_read(kr_track *t, float *samples, int64_t n, int64_t *n_read) {
  while (kr_queue_count(&t->queue) < n && !t->at_end) KR_TRY(read_block(t));
  *n_read = kr_queue_count(&t->queue) < n ? kr_queue_count(&t->queue) : n;
  if (*n_read > 0) memcpy(samples, kr_queue_front(&t->queue), (size_t)*n_read * sizeof(float));
  kr_queue_pop(&t->queue, *n_read);
  return KRAIT_OK;
}
