/* voice.c: one channel, live, at any rate: a krait_denoiser_stream between the two ends of a kr_band, with as many
 * samples out as in. After krait_voice_open nothing here allocates, locks or prints, if the stream's model does not. */
#include "public_names.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "denormals.h"
#include "enhance.h"
#include "sized.h"
#include "status.h"

/* BLOCK: samples between two looks at the model, whose work is spread over them; MOST_LOW: what they are at most at
 * 16 kHz. */
enum { BLOCK = 64, MOST_LOW = 2 * BLOCK + 2, LEAST_HZ = 8000, MOST_HZ = 192000 };
static const float LOUDEST = 100; /* full scale is 1 */

struct krait_voice {
  krait_denoiser_stream *stream;
  kr_band *band;
  int64_t rate_hz, latency, n_in, n_out, n_low; /* counts since the beginning; n_low: what the model has heard */
  float low[MOST_LOW], *cleaned;
  int64_t capacity; /* of cleaned */
};

int32_t kr_voice_take_options(const krait_voice_options *given, int32_t least_hz, int32_t most_hz,
                              krait_voice_options *known) {
  KR_TRY(kr_struct_take("krait_voice_options", given, sizeof *known, known, sizeof *known));
  KR_CHECK((known->flags & ~(uint32_t)(KRAIT_VOICE_NARROW | KRAIT_VOICE_LOOKS_BACK)) == 0, KRAIT_ERR_ARGUMENT,
           "options.flags is %u; this library knows KRAIT_VOICE_NARROW and KRAIT_VOICE_LOOKS_BACK", known->flags);
  KR_CHECK(known->rate_hz >= least_hz && known->rate_hz <= most_hz, KRAIT_ERR_ARGUMENT,
           "the rate is %d Hz, not %d to %d", known->rate_hz, least_hz, most_hz);
  return KRAIT_OK;
}

int32_t kr_voice_take_controls(const krait_voice_controls *given, kr_band_controls *known) {
  krait_voice_controls c;
  KR_TRY(kr_struct_take("krait_voice_controls", given, sizeof c, &c, sizeof c));
  KR_CHECK(c.mix >= 0 && c.mix <= 1, KRAIT_ERR_ARGUMENT, "controls.mix is %g, not 0 to 1", c.mix);
  KR_CHECK(c.limit_db >= 0, KRAIT_ERR_ARGUMENT, "controls.limit_db is %g, which is not 0 or more", c.limit_db);
  KR_CHECK(c.gate >= 0 && c.gate <= 1, KRAIT_ERR_ARGUMENT, "controls.gate is %g, not 0 to 1", c.gate);
  *known = (kr_band_controls){c.mix, c.limit_db, c.gate};
  return KRAIT_OK;
}

static int32_t open_voice(krait_voice *v, krait_denoiser_session *session, const krait_voice_options *o) {
  KR_TRY(krait_denoiser_stream_open(session, &v->stream));
  const int64_t model_latency = krait_denoiser_stream_latency(v->stream);
  const kr_band_options options = {.rate_hz = o->rate_hz,
                                   .is_narrow = (o->flags & KRAIT_VOICE_NARROW) != 0,
                                   .looks_back = (o->flags & KRAIT_VOICE_LOOKS_BACK) != 0,
                                   .tells_speech = 1,
                                   .model_latency = model_latency,
                                   .block_samples = BLOCK};
  KR_TRY(kr_band_open(&options, &v->band));
  v->rate_hz = o->rate_hz, v->latency = kr_band_latency(v->band);
  v->capacity = model_latency + MOST_LOW;
  v->cleaned = kr_alloc_array((size_t)v->capacity, sizeof *v->cleaned);
  KR_CHECK(v->cleaned, KRAIT_ERR_NO_MEMORY, "no memory for a voice");
  return KRAIT_OK;
}

int32_t krait_voice_open(krait_denoiser_session *session, const krait_voice_options *options, krait_voice **voice) {
  krait_voice_options known;
  KR_CHECK(session && options && voice, KRAIT_ERR_ARGUMENT, "session, options and voice must not be NULL");
  *voice = NULL;
  KR_TRY(kr_voice_take_options(options, LEAST_HZ, MOST_HZ, &known));
  krait_voice *v = *voice = kr_zalloc(sizeof *v);
  KR_CHECK(v, KRAIT_ERR_NO_MEMORY, "no memory for a voice");
  const int32_t status = open_voice(v, session, &known);
  if (status < 0) krait_voice_close(voice);
  return status;
}

void krait_voice_close(krait_voice **voice) {
  if (!voice || !*voice) return;
  krait_voice *v = *voice;
  krait_denoiser_stream_close(&v->stream);
  kr_band_close(&v->band);
  kr_free(v->cleaned);
  kr_free(v);
  *voice = NULL;
}

int64_t krait_voice_latency(const krait_voice *v) { return v ? v->latency : 0; }
double krait_voice_speech(const krait_voice *v) { return v ? kr_band_speech(v->band) : 0; }

int32_t krait_voice_set(krait_voice *v, const krait_voice_controls *controls) {
  kr_band_controls known;
  KR_CHECK(v && controls, KRAIT_ERR_ARGUMENT, "voice and controls must not be NULL");
  KR_TRY(kr_voice_take_controls(controls, &known));
  kr_band_set(v->band, &known);
  return KRAIT_OK;
}

static void begin(krait_voice *v) {
  v->n_in = v->n_out = v->n_low = 0;
  kr_band_begin(v->band);
}

int32_t krait_voice_reset(krait_voice *v) {
  int64_t n;
  KR_CHECK(v, KRAIT_ERR_ARGUMENT, "voice must not be NULL");
  begin(v);
  return krait_denoiser_stream_finish(v->stream, v->cleaned, v->capacity, &n);
}

/* Through the model: what has come down, up to low sample n_low. */
static int32_t clean_low(krait_voice *v, int64_t n_low) {
  for (int64_t n, n_cleaned; (n = kr_band_low_ready(v->band)) > 0 && v->n_low < n_low; v->n_low += n) {
    if (n > MOST_LOW) n = MOST_LOW;
    if (n > n_low - v->n_low) n = n_low - v->n_low;
    KR_TRY(kr_band_low_pull(v->band, v->low, n));
    KR_TRY(krait_denoiser_stream_push(v->stream, v->low, n, v->cleaned, v->capacity, &n_cleaned));
    KR_TRY(kr_band_return(v->band, v->cleaned, n_cleaned));
  }
  return KRAIT_OK;
}

static int32_t hear_block(krait_voice *v, const float *in, int64_t n) {
  float heard[BLOCK];
  for (int64_t i = 0; i < n; i++) heard[i] = isfinite(in[i]) ? fminf(fmaxf(in[i], -LOUDEST), LOUDEST) : 0;
  KR_TRY(kr_band_push(v->band, heard, n));
  return clean_low(v, INT64_MAX);
}

static int32_t process_block(krait_voice *v, const float *in, float *out, int64_t n) {
  KR_TRY(hear_block(v, in, n));
  int64_t n_silent = v->latency > v->n_in ? v->latency - v->n_in : 0;
  if (n_silent > n) n_silent = n;
  v->n_in += n;
  memset(out, 0, (size_t)n_silent * sizeof *out);
  kr_band_pull(v->band, out + n_silent, n - n_silent);
  return KRAIT_OK;
}

static int32_t begin_after(krait_voice *v, int32_t status) {
  int64_t n_left;
  begin(v);
  krait_denoiser_stream_finish(v->stream, v->cleaned, v->capacity,
                               &n_left); /* of a streaming model nothing is computed after a failure */
  return status;
}

int32_t krait_voice_process(krait_voice *v, const float *in, float *out, int64_t n_samples) {
  int32_t status = KRAIT_OK;
  if (!v || !in || !out || n_samples < 0) return KRAIT_ERR_ARGUMENT;
  const uint64_t before = kr_denormals_begin();
  for (int64_t i = 0, n; i < n_samples && status >= 0; i += n) {
    n = n_samples - i < BLOCK ? n_samples - i : BLOCK;
    status = process_block(v, in + i, out + i, n);
    if (status < 0) memset(out + i, 0, (size_t)(n_samples - i) * sizeof *out);
  }
  kr_denormals_end(before);
  return status < 0 ? begin_after(v, status) : status;
}

/* ---- as many samples as are due ---- */

static void pull_ready(krait_voice *v, float *out, int64_t *n_out) {
  const int64_t n = kr_band_ready(v->band);
  kr_band_pull(v->band, out + *n_out, n);
  *n_out += n, v->n_out += n;
}

int32_t krait_voice_push(krait_voice *v, const float *in, int64_t n_samples, float *out, int64_t room, int64_t *n_out) {
  KR_CHECK(v && n_out && n_samples >= 0 && (in || !n_samples) && (out || !room), KRAIT_ERR_ARGUMENT,
           "voice, in, out and n_out must not be NULL, n_samples not negative");
  *n_out = 0;
  KR_CHECK(room >= v->n_in - v->n_out + n_samples, KRAIT_ERR_ARGUMENT, "room for %lld samples, but %lld may be due",
           (long long)room, (long long)(v->n_in - v->n_out + n_samples));
  int32_t status = KRAIT_OK;
  const uint64_t before = kr_denormals_begin();
  for (int64_t i = 0, n; i < n_samples && status >= 0; i += n) {
    n = n_samples - i < BLOCK ? n_samples - i : BLOCK;
    status = hear_block(v, in + i, n);
    v->n_in += n;
    if (status >= 0) pull_ready(v, out, n_out);
  }
  kr_denormals_end(before);
  return status < 0 ? begin_after(v, status) : status;
}

/* The model hears what belongs to the last sample, and no more. */
static int32_t finish_voice(krait_voice *v, float *out, int64_t *n_out) {
  int64_t n;
  KR_TRY(kr_band_end_input(v->band));
  KR_TRY(clean_low(v, (v->n_in * KR_BAND_LOW_HZ + v->rate_hz - 1) / v->rate_hz));
  KR_TRY(krait_denoiser_stream_finish(v->stream, v->cleaned, v->capacity, &n));
  KR_TRY(kr_band_return(v->band, v->cleaned, n));
  KR_TRY(kr_band_end_return(v->band));
  pull_ready(v, out, n_out);
  begin(v);
  return KRAIT_OK;
}

int32_t krait_voice_finish(krait_voice *v, float *out, int64_t room, int64_t *n_out) {
  KR_CHECK(v && n_out && (out || !room), KRAIT_ERR_ARGUMENT, "voice, out and n_out must not be NULL");
  *n_out = 0;
  KR_CHECK(room >= v->n_in - v->n_out, KRAIT_ERR_ARGUMENT, "room for %lld samples, but %lld are due", (long long)room,
           (long long)(v->n_in - v->n_out));
  const int32_t status = finish_voice(v, out, n_out);
  return status < 0 ? begin_after(v, status) : status;
}
