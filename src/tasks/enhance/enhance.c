/* enhance.c: runs recordings of any length, rate and format through a denoiser, in bounded memory. For every channel:
 *
 *   file block -> down to 16 kHz -> gain -> overlapping windows -> 1 / gain -> back up -> queue
 *
 * through a kr_band, or beyond its rates through two resamplers; one loop pushes and pulls (push_channel). When all
 * channels have samples waiting they are written as one block. The file is read twice: first for its length, its level
 * and errors, so that nothing is computed for a file that cannot be finished. */
#include "enhance.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "audio.h"
#include "band.h"
#include "clock.h"
#include "job.h"
#include "evaluate/mixture.h"
#include "plot.h"
#include "resample.h"
#include "evaluate/score.h"
#include "status.h"

enum { BLOCK = 4096 };

/* ---- files ---- */
typedef struct channel {
  kr_band *band; /* or NULL, and these two */
  kr_resampler *down, *up;
  kr_windows *windows;
  kr_queue low, queue, dry; /* low: what `down` made; dry: the recording itself, if resamplers are mixed with it */
  double sum_squares;
  float gain;
  int64_t n_low; /* pulled below */
} channel;

typedef struct run {
  const krait_enhance_options *options;
  krait_enhance_result *result;
  const kr_denoiser *denoiser;
  kr_audio_in *in;
  kr_audio_out *out, *mixed_out;
  kr_mixture *mixture; /* NULL: the recording itself */
  kr_plot *plot;
  kr_audio_info info;
  int64_t n_frames; /* measured, not according to the header */
  channel *channels;
  float *frames, *mono; /* BLOCK frames, interleaved; one channel of them */
  kr_job job;
} run;

/* Beyond a band's rates two resamplers do. */
static int has_band(const run *r) {
  return r->info.sample_rate_hz >= KR_BAND_LEAST_HZ && r->info.sample_rate_hz <= KR_BAND_MOST_HZ;
}

/* For a mixture, length and level are known only with the noise's gain: one more pass. */
static int32_t scan_for_mixture(run *r) {
  for (int64_t n = BLOCK; n == BLOCK;) {
    KR_TRY(kr_audio_read(r->in, r->frames, BLOCK, &n));
    KR_TRY(kr_mixture_measure(r->mixture, r->frames, n));
  }
  KR_TRY(kr_mixture_begin(r->mixture));
  return kr_audio_rewind(r->in);
}

static int32_t read_block(run *r, int64_t most, int64_t *n) {
  KR_TRY(kr_audio_read(r->in, r->frames, most, n));
  return r->mixture ? kr_mixture_mix(r->mixture, r->frames, *n) : KRAIT_OK;
}

/* In four sums, of which none waits for another. */
static double sum_squares(const float *v, int64_t n, int64_t stride) {
  double sums[4] = {0};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int k = 0; k < 4; k++) sums[k] += (double)v[(i + k) * stride] * v[(i + k) * stride];
  for (; i < n; i++) sums[0] += (double)v[i * stride] * v[i * stride];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

/* The first pass: length, levels, errors. */
static int32_t scan_enhance(run *r) {
  const int32_t n_channels = r->info.n_channels;
  if (r->mixture) KR_TRY(scan_for_mixture(r));
  for (int64_t n = BLOCK; n == BLOCK; r->n_frames += n) {
    KR_TRY(read_block(r, BLOCK, &n));
    for (int32_t c = 0; c < n_channels; c++) r->channels[c].sum_squares += sum_squares(r->frames + c, n, n_channels);
  }
  for (int32_t c = 0; c < n_channels; c++)
    r->channels[c].gain = kr_job_gain(r->denoiser, r->channels[c].sum_squares / (double)r->n_frames);
  if (r->mixture) KR_TRY(kr_mixture_begin(r->mixture));
  return kr_audio_rewind(r->in);
}

/* What is ready above goes to the channel's queue. */
static int32_t pull_band(channel *c) {
  float block[BLOCK];
  for (int64_t n; (n = kr_band_ready(c->band)) > 0;) {
    if (n > BLOCK) n = BLOCK;
    kr_band_pull(c->band, block, n);
    KR_TRY(kr_queue_push(&c->queue, block, n));
  }
  return KRAIT_OK;
}

static int32_t return_to_band(channel *c, const float *samples, int64_t n) {
  float block[BLOCK];
  for (int64_t some; n > 0; samples += some, n -= some) {
    some = n < BLOCK ? n : BLOCK;
    for (int64_t i = 0; i < some; i++) block[i] = samples[i] / c->gain;
    KR_TRY(kr_band_return(c->band, block, some));
    KR_TRY(pull_band(c));
  }
  return KRAIT_OK;
}

/* What the model makes of the windows that are complete goes up. */
static int32_t pull_results(run *r, channel *c, int is_end) {
  for (;;) {
    const float *samples = NULL;
    int64_t n;
    KR_TRY(kr_job_pull(&r->job, c->windows, is_end, &samples, &n));
    if (!n) return KRAIT_OK;
    KR_TRY(c->band ? return_to_band(c, samples, n) : kr_resampler_push(c->up, samples, n));
  }
}

static int32_t push_windows(run *r, channel *c, const float *samples, int64_t n) {
  for (int64_t taken; n > 0; samples += taken, n -= taken) {
    taken = kr_windows_push(c->windows, samples, n);
    KR_TRY(pull_results(r, c, 0));
  }
  return KRAIT_OK;
}

static int32_t end_windows(run *r, channel *c) {
  kr_windows_end(c->windows);
  return pull_results(r, c, 1);
}

/* What is ready below goes to the windows: of a band up to n_low samples in all, of a resampler what it made. */
static int32_t push_band_low(run *r, channel *c, int64_t n_low) {
  float block[BLOCK];
  for (int64_t n; (n = kr_band_low_ready(c->band)) > 0 && c->n_low < n_low; c->n_low += n) {
    if (n > BLOCK) n = BLOCK;
    if (n > n_low - c->n_low) n = n_low - c->n_low;
    KR_TRY(kr_band_low_pull(c->band, block, n));
    for (int64_t i = 0; i < n; i++) block[i] *= c->gain;
    KR_TRY(push_windows(r, c, block, n));
  }
  return KRAIT_OK;
}
static int32_t push_low(run *r, channel *c) {
  const int64_t n = kr_queue_count(&c->low);
  if (n) KR_TRY(push_windows(r, c, kr_queue_front(&c->low), n));
  kr_queue_pop(&c->low, n);
  return KRAIT_OK;
}

static int32_t open_channel_band(const run *r, channel *c) {
  const krait_enhance_options *o = r->options;
  const kr_band_options options = {.rate_hz = r->info.sample_rate_hz,
                                   .is_narrow = o->is_narrow,
                                   .looks_back = o->gate > 0,
                                   .block_samples = BLOCK};
  KR_TRY(kr_band_open(&options, &c->band));
  kr_band_set(c->band, &(kr_band_controls){1 - o->dry, o->has_limit ? o->limit_db : INFINITY, o->gate});
  return KRAIT_OK;
}

static int32_t open_channel(run *r, channel *c) {
  const int32_t hz = r->info.sample_rate_hz;
  KR_TRY(kr_job_open_windows(&r->job, &c->windows));
  if (has_band(r)) return open_channel_band(r, c);
  KR_TRY(kr_resampler_open(KR_MODEL_HZ, hz, (kr_sink){kr_queue_push, &c->queue}, &c->up));
  return kr_resampler_open(hz, KR_MODEL_HZ, (kr_sink){kr_queue_push, &c->low}, &c->down);
}

static void close_channel(const run *r, channel *c) {
  kr_band_close(&c->band);
  kr_resampler_close(&c->down);
  kr_job_close_windows(&r->job, &c->windows);
  kr_resampler_close(&c->up);
  kr_queue_free(&c->low);
  kr_queue_free(&c->queue);
  kr_queue_free(&c->dry);
}

static int64_t low_length(const run *r) {
  return kr_resampled_length(r->n_frames, r->info.sample_rate_hz, KR_MODEL_HZ);
}

static int32_t open_channels(run *r) {
  KR_TRY(kr_job_begin(&r->job, r->denoiser, low_length(r), r->info.n_channels));
  r->job.n_samples = r->n_frames;
  r->job.progress = r->options->progress;
  r->job.user = r->options->user;
  for (int32_t c = 0; c < r->info.n_channels; c++) KR_TRY(open_channel(r, &r->channels[c]));
  return KRAIT_OK;
}

/* The share of the recording itself in the output of resamplers. */
static double dry_share(const krait_enhance_options *o) {
  return 1 - (1 - o->dry) * (o->has_limit ? 1 - pow(10, -o->limit_db / 20) : 1);
}

/* Writes n samples of a channel into frames: those of resamplers at its level, and mixed with the recording. */
static int32_t mix_channel(run *r, int32_t c, int64_t n) {
  channel *ch = &r->channels[c];
  const krait_enhance_options *o = r->options;
  const double share = ch->band ? 0 : dry_share(o), gain = ch->band ? 1 : ch->gain;
  const float *wet = kr_queue_front(&ch->queue), *dry = share > 0 ? kr_queue_front(&ch->dry) : NULL;
  for (int64_t i = 0; i < n; i++) {
    const double clean = gain == 1 ? wet[i] : (double)wet[i] / gain,
                 mixed = dry ? share * dry[i] + (1 - share) * clean : clean;
    const float v = (float)mixed;
    KR_CHECK(isfinite(v), KRAIT_ERR_UNSUPPORTED,
             "%s: the model's result is not a finite number; the weights or the recording's level are out of range",
             o->in_path);
    r->frames[i * r->info.n_channels + c] = v;
  }
  kr_queue_pop(&ch->queue, n);
  if (dry) kr_queue_pop(&ch->dry, n);
  return KRAIT_OK;
}

/* Writes the samples that all channels have. */
static int32_t drain(run *r) {
  const int32_t n_channels = r->info.n_channels;
  for (;;) {
    int64_t n = BLOCK;
    for (int32_t c = 0; c < n_channels; c++)
      if (kr_queue_count(&r->channels[c].queue) < n) n = kr_queue_count(&r->channels[c].queue);
    if (n == 0) return KRAIT_OK;
    for (int32_t c = 0; c < n_channels; c++) KR_TRY(mix_channel(r, c, n));
    KR_TRY(kr_audio_write(r->out, r->frames, n));
  }
}

/* Processes one channel of the block in frames. */
static int32_t push_channel(run *r, int32_t c, int64_t n) {
  channel *ch = &r->channels[c];
  for (int64_t i = 0; i < n; i++) r->mono[i] = r->frames[i * r->info.n_channels + c];
  if (ch->band) {
    KR_TRY(kr_band_push(ch->band, r->mono, n));
    return push_band_low(r, ch, low_length(r));
  }
  if (dry_share(r->options) > 0) KR_TRY(kr_queue_push(&ch->dry, r->mono, n));
  for (int64_t i = 0; i < n; i++) r->mono[i] *= ch->gain;
  KR_TRY(kr_resampler_push(ch->down, r->mono, n));
  return push_low(r, ch);
}

static int32_t finish_channel(run *r, channel *c) {
  if (c->band) {
    KR_TRY(kr_band_end_input(c->band));
    KR_TRY(push_band_low(r, c, low_length(r)));
    KR_TRY(end_windows(r, c));
    KR_TRY(kr_band_end_return(c->band));
    return pull_band(c);
  }
  KR_TRY(kr_resampler_finish(c->down, low_length(r)));
  KR_TRY(push_low(r, c));
  KR_TRY(end_windows(r, c));
  return kr_resampler_finish(c->up, r->n_frames);
}

static int32_t stream(run *r) {
  const int32_t n_channels = r->info.n_channels;
  for (int64_t left = r->n_frames, n = 0; left > 0; left -= n) {
    KR_TRY(read_block(r, left < BLOCK ? left : BLOCK, &n));
    KR_CHECK(n > 0, KRAIT_ERR_FILE_READ, "%s changed while it was read", r->options->in_path);
    if (r->mixed_out) KR_TRY(kr_audio_write(r->mixed_out, r->frames, n));
    for (int32_t c = 0; c < n_channels; c++) KR_TRY(push_channel(r, c, n));
    KR_TRY(drain(r));
  }
  for (int32_t c = 0; c < n_channels; c++) KR_TRY(finish_channel(r, &r->channels[c]));
  KR_TRY(drain(r));
  if (r->mixed_out) KR_TRY(kr_audio_finish(r->mixed_out));
  return kr_audio_finish(r->out);
}

/* All checks before the work starts. */
static int32_t prepare_enhance(run *r) {
  const krait_enhance_options *o = r->options;
  KR_TRY(kr_audio_open(o->in_path, &r->in));
  r->info = *kr_audio_in_info(r->in);
  r->channels = kr_alloc_array((size_t)r->info.n_channels, sizeof(channel));
  r->frames = kr_alloc_array((size_t)r->info.n_channels * BLOCK, sizeof(float));
  r->mono = kr_alloc_array(BLOCK, sizeof(float));
  KR_CHECK(r->channels && r->frames && r->mono, KRAIT_ERR_NO_MEMORY, "no memory for %d channels", r->info.n_channels);
  if (o->reference_path)
    KR_TRY(kr_score_check_reference(o->reference_path, (double)r->info.n_frames / r->info.sample_rate_hz,
                                    r->info.n_channels));
  if (o->noise_path || o->rir_path)
    KR_TRY(kr_mixture_open(o->noise_path, o->rir_path, o->snr_db, r->info.sample_rate_hz, r->info.n_channels,
                           &r->mixture));
  KR_CHECK(!o->gate || has_band(r), KRAIT_ERR_UNSUPPORTED, "%s has %d Hz: a gate needs %d to %d Hz", o->in_path,
           r->info.sample_rate_hz, KR_BAND_LEAST_HZ, KR_BAND_MOST_HZ);
  KR_TRY(scan_enhance(r));
  if (o->mixed_path) KR_TRY(kr_audio_create(o->mixed_path, r->in, (o->flags & KRAIT_ENHANCE_KEEP) != 0, &r->mixed_out));
  KR_TRY(kr_audio_create(o->out_path, r->in, (o->flags & KRAIT_ENHANCE_KEEP) != 0, &r->out));
  if (o->plot_path) KR_TRY(kr_plot_begin(o->plot_path, (o->flags & KRAIT_ENHANCE_KEEP) != 0, &r->plot));
  return open_channels(r);
}

static int32_t score_and_plot(run *r, krait_enhance_result *result) {
  const krait_enhance_options *o = r->options;
  const char *in_path = kr_audio_in_path(r->in), *out_path = kr_audio_out_path(r->out);
  if (o->reference_path) {
    KR_TRY(kr_score_files(o->reference_path, in_path, out_path, r->info.n_channels, &result->noisy, &result->enhanced));
    result->has_scores = 1;
  }
  if (!o->plot_path) return KRAIT_OK;
  char scores[160] = "";
  if (result->has_scores)
    snprintf(scores, sizeof scores,
             "SI-SDR %.1f \xe2\x86\x92 %.1f dB,  segmental SNR %.1f \xe2\x86\x92 %.1f dB,  STOI %.3f \xe2\x86\x92 %.3f",
             result->noisy.si_sdr_db, result->enhanced.si_sdr_db, result->noisy.segmental_snr_db,
             result->enhanced.segmental_snr_db, result->noisy.stoi, result->enhanced.stoi);
  return kr_plot_draw(r->plot, &(kr_plot_text){o->in_path, scores}, in_path, out_path, o->reference_path);
}

static void release(run *r) {
  for (int32_t c = 0; r->channels && c < r->info.n_channels; c++) close_channel(r, &r->channels[c]);
  kr_free(r->channels);
  kr_free(r->frames);
  kr_free(r->mono);
  kr_plot_abandon(&r->plot);
  kr_mixture_close(&r->mixture);
  kr_audio_abandon(&r->mixed_out);
  kr_audio_abandon(&r->out);
  kr_audio_close(&r->in);
}

/* The caller's struct may be an older, shorter one. */
static void publish(krait_enhance_result *to, const krait_enhance_result *found) {
  if (!to) return;
  const uint32_t bytes = to->size;
  memcpy(to, found, bytes);
  to->size = bytes;
}

static void describe_input(run *r, krait_enhance_result *found) {
  found->n_channels = r->info.n_channels;
  found->n_samples = r->n_frames;
  found->sample_rate_hz = r->info.sample_rate_hz;
  found->audio_s = (double)r->n_frames / r->info.sample_rate_hz;
  snprintf(found->note, sizeof found->note, "%s", kr_audio_out_note(r->out));
  publish(r->result, found);
}

/* Commits the plot first: with KRAIT_ENHANCE_KEEP either may be refused, and the recording matters more. */
static int32_t commit(run *r) {
  if (r->plot) KR_TRY(kr_plot_commit(&r->plot));
  if (r->mixed_out) KR_TRY(kr_audio_commit(&r->mixed_out));
  return kr_audio_commit(&r->out);
}

int32_t kr_enhance_file(const kr_denoiser *denoiser, const krait_enhance_options *options,
                        krait_enhance_result *result) {
  const int64_t start_ns = kr_clock_ns();
  krait_enhance_result found = {.size = sizeof found};
  run r = {.options = options, .denoiser = denoiser, .result = result};
  int32_t status = prepare_enhance(&r);
  if (status == KRAIT_OK) describe_input(&r, &found);
  if (status == KRAIT_OK) status = stream(&r);
  if (status == KRAIT_OK) status = score_and_plot(&r, &found);
  if (status == KRAIT_OK) status = commit(&r);
  found.compute_s = (double)r.job.compute_ns * 1e-9;
  found.total_s = (double)(kr_clock_ns() - start_ns) * 1e-9;
  publish(result, &found);
  release(&r);
  return status;
}
