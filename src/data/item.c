/* item.c: one training item, step by step in the order of upstream's data set: piece, noise, ratio, room, levels;
 * augmentation if configured. Each step has its own random stream. */
#include "item.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "augment.h"
#include "codec.h"
#include "mix.h"
#include "random.h"
#include "status.h"

enum { HZ = KR_RECORDINGS_HZ, MOST_TRIES = 64 };
enum {
  FOR_SHIFT,
  FOR_NOISE,
  FOR_SNR,
  FOR_ROOM,
  FOR_LEVEL,
  FOR_GAIN,
  FOR_SPEED,
  FOR_BAND,
  FOR_CLIP,
  FOR_CODEC,
  FOR_ANOTHER,
  FOR_CURVE,
  FOR_KIND,
  FOR_RUMBLE,
  FOR_TILT
};
static const double FULL = 0.999, BELOW_FULL = 0.99 - 1e-6;

typedef struct draw {
  const kr_item_source *source;
  const kr_data_config *config;
  uint64_t epoch, index;
} draw;

static draw draw_for(const kr_item_source *s, int64_t epoch, int64_t index) {
  return (draw){s, s->config, s->config->deterministic ? 0 : (uint64_t)epoch, (uint64_t)index};
}

static kr_random stream(const draw *d, uint64_t purpose) {
  return kr_random_for(d->config->seed, d->epoch, d->index, purpose);
}

/* ---- the piece ---- */
int64_t kr_item_pieces(const kr_data_config *c, int64_t n_samples) {
  return c->segment == 0 || n_samples < c->segment ? 1 : (n_samples - c->segment + c->stride - 1) / c->stride + 1;
}

const kr_piece_file *kr_item_file(const kr_item_source *s, int64_t index) {
  const int64_t piece = index % s->n_pieces;
  int64_t low = 0, high = s->n_files;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (s->files[middle].first <= piece) low = middle;
    else high = middle;
  }
  return &s->files[low];
}

/* The start of the item in its file. The shift stays inside short files and last pieces; upstream's may reach into the
 * zero padding. */
static int64_t item_start(const draw *d, const kr_piece_file *file, int64_t piece, int64_t n) {
  const kr_data_config *c = d->config;
  if (c->segment == 0) return 0;
  kr_random r = stream(d, FOR_SHIFT);
  const int64_t start = (piece - file->first) * c->stride, slack = file->n_samples - start - n;
  return start + kr_random_whole(&r, 0,
                                 slack <= 0 || c->deterministic ? 0
                                 : slack < c->shift             ? slack
                                                                   : c->shift);
}

static int32_t read_side(kr_recordings *from, int64_t recording, int64_t start, double speed, float *out, int64_t n) {
  if (speed == 1) return kr_recordings_read(from, recording, 0, start, n, out);
  const int64_t n_in = (int64_t)ceil((double)n * speed) + 64;
  float *in = kr_alloc_array((size_t)n_in, sizeof *in);
  KR_CHECK(in, KRAIT_ERR_NO_MEMORY, "no memory for a training item");
  int32_t status = kr_recordings_read(from, recording, 0, start, n_in, in);
  if (status == KRAIT_OK) status = kr_augment_speed(in, n_in, speed, out, n);
  kr_free(in);
  return status;
}

static double draw_speed(const draw *d) {
  kr_random r = stream(d, FOR_SPEED);
  return !d->config->deterministic && kr_random_chance(&r, d->config->speed_proportion)
             ? 1 + 0.01 * (double)kr_random_whole(&r, -10, 10)
             : 1;
}

/* The target, and the input: the same, or the noisy side of a pair. */
static int32_t read_piece(const draw *d, int64_t index, float *heard, float *clean, int64_t *n) {
  const kr_item_source *s = d->source;
  const kr_piece_file *file = kr_item_file(s, index);
  *n = d->config->segment == 0 ? file->n_samples : s->n_samples;
  const int64_t start = item_start(d, file, index % s->n_pieces, *n);
  const double speed = draw_speed(d);
  KR_TRY(read_side(s->speech, file->recording, start, speed, clean, *n));
  if (file->partner >= 0) return read_side(s->noisy, file->partner, start, speed, heard, *n);
  memcpy(heard, clean, (size_t)*n * sizeof *heard);
  return KRAIT_OK;
}

/* The same equaliser on both sides. */
static int32_t equalise(const draw *d, float *heard, float *clean, int64_t n) {
  kr_random r = stream(d, FOR_CURVE + 1000), again;
  if (d->config->deterministic || !kr_random_chance(&r, d->config->curve_proportion)) return KRAIT_OK;
  again = r;
  KR_TRY(kr_augment_curve(&r, heard, n, 2.5, 0));
  return kr_augment_curve(&again, clean, n, 2.5, 0);
}

/* Pieces of a bad file are replaced by others. */
static int32_t read_some_piece(const draw *d, float *heard, float *clean, int64_t *n) {
  kr_random r = stream(d, FOR_ANOTHER);
  int64_t index = (int64_t)d->index;
  for (int tries = 0;; tries++) {
    const int32_t status = read_piece(d, index, heard, clean, n);
    if (status >= 0 || status == KRAIT_ERR_NO_MEMORY || tries == MOST_TRIES || d->source->n_pieces == 1) return status;
    index = kr_random_whole(&r, 0, d->source->n_pieces - 1);
  }
}

/* ---- noise ---- */
/* The first channel of file number `index`, looped. */
static int32_t noise_by_index(const draw *d, float *out, int64_t n) {
  kr_recordings *noise = d->source->noise;
  kr_random r = stream(d, FOR_NOISE);
  int64_t i = (int64_t)d->index % kr_recordings_count(noise), length;
  int32_t n_channels, status;
  for (int tries = 0; (status = kr_recordings_check(noise, i, &length, &n_channels)) < 0; tries++) {
    if (status == KRAIT_ERR_NO_MEMORY || tries == MOST_TRIES) return status;
    i = kr_random_whole(&r, 0, kr_recordings_count(noise) - 1);
  }
  const int64_t first = length < n ? length : n;
  KR_TRY(kr_recordings_read(noise, i, 0, 0, first, out));
  for (int64_t at = first; at < n; at++) out[at] = out[at - first];
  return KRAIT_OK;
}

typedef struct stretch {
  int64_t recording, length;
  int32_t channel;
} stretch;

static int32_t draw_stretch(kr_recordings *noise, kr_random *r, stretch *s) {
  int32_t status = KRAIT_OK, n_channels = 1;
  for (int tries = 0; tries <= MOST_TRIES; tries++) {
    s->recording = kr_random_whole(r, 0, kr_recordings_count(noise) - 1);
    status = kr_recordings_check(noise, s->recording, &s->length, &n_channels);
    s->channel = (int32_t)kr_random_whole(r, 0, n_channels > 1 ? n_channels - 1 : 0);
    if (status >= 0 || status == KRAIT_ERR_NO_MEMORY) break;
  }
  return status;
}

/* Concatenates files with silence between them until there is enough; then takes a window. */
static int32_t noise_at_random(const draw *d, kr_random *r, float *out, int64_t n) {
  enum { MOST_STRETCHES = 256 };
  const int64_t silence = (int64_t)(d->config->silence_s * HZ);
  stretch stretches[MOST_STRETCHES];
  int count = 0;
  int64_t total = 0, last = 0;
  for (; total < n && count < MOST_STRETCHES; count++) {
    KR_TRY(draw_stretch(d->source->noise, r, &stretches[count]));
    total += stretches[count].length;
    last = total;
    if (total < n) total += silence < n - total ? silence : n - total;
  }
  total = total > last ? total : last;
  int64_t at = total > n ? -kr_random_whole(r, 0, total - n - 1) : 0;
  memset(out, 0, (size_t)n * sizeof *out);
  for (int i = 0; i < count && at < n; i++) {
    const int64_t skipped = at < 0 ? -at : 0, to = at + skipped, left = stretches[i].length - skipped;
    if (left > 0 && to < n)
      KR_TRY(kr_recordings_read(d->source->noise, stretches[i].recording, stretches[i].channel, skipped,
                                left < n - to ? left : n - to, out + to));
    at += stretches[i].length + silence;
  }
  return KRAIT_OK;
}

/* 3 to 8 voices, each from a random position in a random recording, with levels within a few decibels. */
static int32_t babble(const draw *d, kr_random *r, float *out, float *scratch, int64_t n) {
  memset(out, 0, (size_t)n * sizeof *out);
  for (int64_t left = kr_random_whole(r, 3, 8); left > 0; left--) {
    stretch voice;
    KR_TRY(draw_stretch(d->source->speech, r, &voice));
    const int64_t start = kr_random_whole(r, 0, voice.length - 1),
                  n_end = voice.length - start < n ? voice.length - start : n;
    KR_TRY(kr_recordings_read(d->source->speech, voice.recording, 0, start, n, scratch));
    if (n_end < n)
      KR_TRY(kr_recordings_read(d->source->speech, voice.recording, 0, 0, n - n_end,
                                scratch + n_end)); /* and continue from its start */
    kr_set_level(scratch, n, -25 + 4 * kr_random_normal(r));
    for (int64_t i = 0; i < n; i++) out[i] += scratch[i];
  }
  return KRAIT_OK;
}

static int32_t coloured(kr_random *r, float *out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = (float)(0.1 * kr_random_normal(r));
  return kr_augment_curve(r, out, n, 5, kr_random_between(r, -12, 2));
}

static int32_t one_noise(const draw *d, kr_random *r, float *out, float *scratch, int64_t n) {
  const kr_data_config *c = d->config;
  kr_random kind = stream(d, FOR_KIND), curve = stream(d, FOR_CURVE);
  const double at = kr_random_unit(&kind);
  if (at < c->babble_proportion) return babble(d, r, out, scratch, n);
  if (at < c->babble_proportion + c->colour_proportion) return coloured(r, out, n);
  KR_TRY(noise_at_random(d, r, out, n));
  return kr_random_chance(&curve, c->curve_proportion)
             ? kr_augment_curve(&curve, out, n, 5, kr_random_between(&curve, -3, 1))
             : KRAIT_OK;
}

/* One noise, or several at once, within 5 dB of each other. */
static int32_t make_noise(const draw *d, float *out, float *scratch, int64_t n) {
  if (d->config->deterministic) return noise_by_index(d, out, n);
  kr_random r = stream(d, FOR_NOISE);
  KR_TRY(one_noise(d, &r, out, scratch, n));
  const int64_t more =
      d->config->most_noises > 1 && d->source->noise ? kr_random_whole(&r, 0, d->config->most_noises - 1) : 0;
  for (int64_t k = 0; k < more; k++) {
    KR_TRY(noise_at_random(d, &r, scratch, n));
    const double gain = kr_snr_gain(out, scratch, n, kr_random_between(&r, -5, 5));
    for (int64_t i = 0; i < n; i++) out[i] += (float)(gain * scratch[i]);
  }
  kr_random swell = stream(d, FOR_GAIN), tilt = stream(d, FOR_TILT);
  if (kr_random_chance(&swell, d->config->gain_proportion)) kr_augment_gain(&swell, out, n, 6);
  if (!kr_random_chance(&tilt, d->config->tilt_proportion)) return KRAIT_OK;
  return kr_augment_tilt(out, n, 500, kr_random_between(&tilt, -6, 0));
}

int64_t kr_item_snr_db(const kr_item_source *source, int64_t epoch, int64_t index) {
  const draw d = draw_for(source, epoch, index);
  kr_random r = stream(&d, FOR_SNR);
  return kr_random_whole(&r, d.config->snr_low_db, d.config->snr_high_db);
}

/* ---- rooms ---- */
static int32_t put_into_room(const draw *d, float *heard, float *clean, int64_t n) {
  kr_random r = stream(d, FOR_ROOM);
  const kr_data_config *c = d->config;
  kr_recordings *rir = d->source->rir;
  if (!rir || d->source->noisy || !kr_random_chance(&r, c->reverb_proportion)) return KRAIT_OK;
  stretch where = {.recording = (int64_t)d->index % kr_recordings_count(rir)};
  int32_t n_channels, status = c->deterministic
                                   ? kr_recordings_check(rir, where.recording, &where.length, &n_channels)
                                   : KRAIT_ERR_FILE_FORMAT;
  if (status < 0) KR_TRY(draw_stretch(rir, &r, &where));
  float *response = kr_alloc_array((size_t)where.length, sizeof *response);
  KR_CHECK(response, KRAIT_ERR_NO_MEMORY, "no memory for a room response");
  status = kr_recordings_read(rir, where.recording, where.channel, 0, where.length, response);
  if (status == KRAIT_OK)
    status = kr_reverberate(heard, n, response, where.length, (int64_t)(c->reverb_early_s * HZ), clean);
  kr_free(response);
  return status;
}

/* ---- levels ---- */
static int has_noise(const draw *d) {
  kr_random r = stream(d, FOR_NOISE + 1000);
  const int is_made_up = d->config->babble_proportion + d->config->colour_proportion >= 1;
  return (d->source->noise || is_made_up) && kr_random_chance(&r, d->config->noise_proportion);
}

/* Added to the noise, whose ratio does not change; x: buffer for it. */
static void add_rumble(const draw *d, float *heard, float *x, int64_t n) {
  kr_random r = stream(d, FOR_RUMBLE);
  if (d->config->deterministic || !kr_random_chance(&r, d->config->rumble_proportion)) return;
  kr_augment_rumble(&r, x, n);
  kr_set_level(x, n, d->config->part_level_db - kr_random_between(&r, -5, 15));
  for (int64_t i = 0; i < n; i++) heard[i] += x[i];
}

/* Sets each part to the same level, the noise below the speech by the ratio, and mixes all into heard. */
static int32_t mix(const draw *d, float *heard, float *clean, int64_t n) {
  const kr_data_config *c = d->config;
  const double level = kr_set_level(heard, n, c->part_level_db);
  const int is_shared = (d->source->noisy && !c->own_levels) || (!d->source->noisy && c->reverb_early_s > 0);
  if (is_shared) kr_scale(clean, n, level);
  else kr_set_level(clean, n, c->part_level_db);
  if (!has_noise(d)) return KRAIT_OK;
  float *noise = kr_alloc_array((size_t)n * 2, sizeof *noise);
  KR_CHECK(noise, KRAIT_ERR_NO_MEMORY, "no memory for a training item");
  const int32_t status = make_noise(d, noise, noise + n, n);
  if (status == KRAIT_OK) {
    kr_set_level(noise, n, c->part_level_db);
    const double gain =
        kr_snr_gain(heard, noise, n, (double)kr_item_snr_db(d->source, (int64_t)d->epoch, (int64_t)d->index));
    for (int64_t i = 0; i < n; i++) heard[i] += (float)(gain * noise[i]);
    add_rumble(d, heard, noise, n);
  }
  kr_free(noise);
  return status;
}

static void set_final_level(const draw *d, float *heard, float *clean, int64_t n) {
  kr_random r = stream(d, FOR_LEVEL);
  const int64_t db = kr_random_whole(&r, d->config->level_db - d->config->level_float_db,
                                     d->config->level_db + d->config->level_float_db);
  const double factor = pow(10, (double)db / 20) / (kr_rms(heard, n) + 1e-6);
  kr_scale(heard, n, factor);
  kr_scale(clean, n, factor);
  const double peak = kr_peak(heard, n);
  if (peak <= FULL) return;
  kr_scale(heard, n, BELOW_FULL / peak);
  kr_scale(clean, n, BELOW_FULL / peak);
}

static int32_t spoil(const draw *d, float *heard, float *clean, int64_t n) {
  kr_random band = stream(d, FOR_BAND), clip = stream(d, FOR_CLIP);
  if (d->config->deterministic) return KRAIT_OK;
  if (kr_random_chance(&band, d->config->band_proportion)) {
    const double hz = kr_random_between(&band, 3400, 7500);
    KR_TRY(kr_augment_band(heard, n, hz));
    KR_TRY(kr_augment_band(clean, n, hz));
  }
  if (kr_random_chance(&clip, d->config->clip_proportion))
    kr_augment_clip(heard, n, kr_random_between(&clip, 0.25, 0.9));
  return KRAIT_OK;
}

static int32_t encode(const draw *d, float *heard, int64_t n) {
  kr_random r = stream(d, FOR_CODEC);
  if (d->config->deterministic || !kr_random_chance(&r, d->config->codec_proportion) || kr_codec_count() == 0)
    return KRAIT_OK;
  return kr_codec_pass((int)kr_random_whole(&r, 0, kr_codec_count() - 1), heard, n);
}

int32_t kr_item_make(const kr_item_source *source, int64_t epoch, int64_t index, float *noisy, float *clean,
                     int64_t *n) {
  const draw d = draw_for(source, epoch, index);
  KR_TRY(read_some_piece(&d, noisy, clean, n));
  KR_TRY(equalise(&d, noisy, clean, *n));
  KR_TRY(put_into_room(&d, noisy, clean, *n));
  KR_TRY(mix(&d, noisy, clean, *n));
  KR_TRY(spoil(&d, noisy, clean, *n));
  set_final_level(&d, noisy, clean, *n);
  KR_TRY(encode(&d, noisy, *n));
  memset(noisy + *n, 0, (size_t)(source->n_samples - *n) * sizeof *noisy);
  memset(clean + *n, 0, (size_t)(source->n_samples - *n) * sizeof *clean);
  return KRAIT_OK;
}
