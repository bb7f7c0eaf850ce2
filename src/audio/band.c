/* band.c: see band.h. What lies above is the input less what the filters down and up leave of it: if the model changes
 * nothing, the output is the input, without a notch where the bands meet. */
#include "band.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "polyphase.h"
#include "status.h"

enum {
  STEP = 16,       /* low samples per value of the upper band's gain */
  FRAME = 100,     /* per speech probability */
  LOOK_BACK = 480, /* low samples: 30 ms */
  HOLD = 3200      /* the gate stays open after speech: 200 ms */
};
/* Above 16 kHz the model's highest bins are left to what passes beside it: of speech in quiet they lack 1 to 2 dB. */
static const double CROSSING_HZ = 7000;
/* Time constants in seconds. */
static const double UPPER_S = 0.005, SPEECH_S = 0.02, GAIN_S = 0.001, GATE_S = 0.004, MIX_S = 0.01;

/* One section of a Butterworth filter of order 4. */
typedef struct section {
  double b, a1, a2; /* b (1 - 2 z^-1 + z^-2) / (1 + a1 z^-1 + a2 z^-2) */
} section;

/* Of the input or of the model's output, at 16 kHz. */
typedef struct levels {
  double z[2][2];       /* of the sections */
  double before;        /* the last sample */
  double upper, speech; /* smoothed squares: above 5 kHz; of all, the higher the louder */
} levels;

struct kr_band {
  kr_band_options o;
  int64_t rate_hz, latency;
  int measures;                     /* levels: for what lies beside the model's band, a gate, or who asks for speech */
  kr_polyphase *down, *up, *up_dry; /* up_dry: NULL if nothing lies beside the model's band */
  kr_queue dry, low, gains,
      speech; /* low: waits for its cleaned samples; a gain for each STEP, a speech for each FRAME */
  section sections[2];
  levels heard, said;
  double speech_peak_db, now_speech; /* now_speech: of the last frame that was returned */
  int64_t n_returned, n_gains, n_speech; /* gains and probabilities so far; of which the queues' fronts are `at` */
  int64_t n_pulled, i, remainder;        /* the next output's time: i + remainder / rate_hz low samples */
  int64_t gain_at, speech_at, opened_at;
  double gain, gate, wet, last_speech;   /* smoothed as they are applied */
  double gain_step, gate_step, wet_step, upper_step, speech_step;
  kr_band_controls controls;
};

/* ---- open and close ---- */

static double step_of(double seconds, double rate_hz) { return 1 - exp(-1 / (seconds * rate_hz)); }

static void design(kr_band *b) {
  static const double quality[2] = {0.54119610, 1.30656296}; /* a Butterworth filter's */
  const double angle = 2 * acos(-1) * 5000 / KR_BAND_LOW_HZ;
  for (int k = 0; k < 2; k++) {
    const double alpha = sin(angle) / (2 * quality[k]), a0 = 1 + alpha;
    b->sections[k] = (section){(1 + cos(angle)) / 2 / a0, -2 * cos(angle) / a0, (1 - alpha) / a0};
  }
  b->upper_step = step_of(UPPER_S, KR_BAND_LOW_HZ), b->speech_step = step_of(SPEECH_S, KR_BAND_LOW_HZ);
  b->gain_step = step_of(GAIN_S, (double)b->rate_hz), b->gate_step = step_of(GATE_S, (double)b->rate_hz);
  b->wet_step = step_of(MIX_S, (double)b->rate_hz);
}

static int64_t look_back(const kr_band *b) { return b->o.looks_back ? LOOK_BACK : 0; }

/* Cleaned low samples after the one at an output's time that the output needs. */
static int64_t low_after(const kr_band *b) { return kr_polyphase_after(b->up) + look_back(b); }

static double up_edge(const kr_band *b) {
  return b->o.is_narrow || b->rate_hz <= KR_BAND_LOW_HZ ? KR_POLYPHASE_EDGE : CROSSING_HZ / (KR_BAND_LOW_HZ / 2);
}

static int32_t open_band(kr_band *b) {
  const int32_t rate_hz = b->o.rate_hz;
  KR_CHECK(rate_hz >= KR_BAND_LEAST_HZ && rate_hz <= KR_BAND_MOST_HZ, KRAIT_ERR_ARGUMENT,
           "the rate is %d Hz, not %d to %d", rate_hz, KR_BAND_LEAST_HZ, KR_BAND_MOST_HZ);
  const int64_t low_block = b->o.block_samples * KR_BAND_LOW_HZ / rate_hz + 2,
                most_low = b->o.model_latency + low_block + LOOK_BACK + FRAME;
  const double edge = up_edge(b);
  KR_TRY(kr_polyphase_open(rate_hz, KR_BAND_LOW_HZ, KR_POLYPHASE_EDGE, b->o.block_samples, &b->down));
  KR_TRY(kr_polyphase_open(KR_BAND_LOW_HZ, rate_hz, edge, most_low, &b->up));
  if (!b->o.is_narrow && rate_hz != KR_BAND_LOW_HZ)
    KR_TRY(kr_polyphase_open(KR_BAND_LOW_HZ, rate_hz, edge, most_low, &b->up_dry));
  b->latency = (low_after(b) + b->o.model_latency) * rate_hz / KR_BAND_LOW_HZ + kr_polyphase_after(b->down);
  KR_TRY(kr_queue_reserve(&b->dry, 2 * (b->latency + b->o.block_samples + 2)));
  KR_TRY(kr_queue_reserve(&b->low, 2 * most_low));
  KR_TRY(kr_queue_reserve(&b->gains, 2 * most_low));
  return kr_queue_reserve(&b->speech, 2 * most_low);
}

int32_t kr_band_open(const kr_band_options *options, kr_band **band) {
  kr_band *b = *band = kr_zalloc(sizeof *b);
  KR_CHECK(b, KRAIT_ERR_NO_MEMORY, "no memory for a channel");
  b->o = *options, b->rate_hz = options->rate_hz;
  b->controls = (kr_band_controls){1, INFINITY, 0};
  const int32_t status = open_band(b);
  if (status < 0) return kr_band_close(band), status;
  design(b);
  kr_band_begin(b);
  return KRAIT_OK;
}

void kr_band_close(kr_band **band) {
  kr_band *b = *band;
  if (!b) return;
  kr_polyphase_close(&b->down), kr_polyphase_close(&b->up), kr_polyphase_close(&b->up_dry);
  kr_queue_free(&b->dry), kr_queue_free(&b->low), kr_queue_free(&b->gains), kr_queue_free(&b->speech);
  kr_free(b);
  *band = NULL;
}

static double wanted_wet(const kr_band *b) { return b->controls.mix * (1 - pow(10, -b->controls.limit_db / 20)); }

static const double quietest_db = -60; /* speech is louder than this at its loudest */

static int needs_levels(const kr_band *b) {
  return b->up_dry || b->o.looks_back || b->o.tells_speech || b->controls.gate > 0;
}

void kr_band_begin(kr_band *b) {
  kr_polyphase_begin(b->down), kr_polyphase_begin(b->up);
  if (b->up_dry) kr_polyphase_begin(b->up_dry);
  b->dry.begin = b->dry.end = b->low.begin = b->low.end = 0;
  b->gains.begin = b->gains.end = b->speech.begin = b->speech.end = 0;
  b->heard = b->said = (levels){0};
  b->n_returned = b->n_gains = b->n_speech = b->n_pulled = b->i = b->remainder = b->gain_at = b->speech_at = 0;
  b->measures = needs_levels(b);
  b->opened_at = -2 * HOLD, b->speech_peak_db = quietest_db;
  b->gain = 1, b->last_speech = b->now_speech = 0, b->gate = b->controls.gate > 0 ? 0 : 1, b->wet = wanted_wet(b);
}

void kr_band_set(kr_band *b, const kr_band_controls *controls) {
  b->controls = *controls;
  if (!b->n_returned && !kr_queue_count(&b->dry)) b->measures = needs_levels(b);
  if (b->n_pulled) return;
  b->gate = b->controls.gate > 0 ? 0 : 1, b->wet = wanted_wet(b);
}

int64_t kr_band_latency(const kr_band *b) { return b->latency; }
double kr_band_speech(const kr_band *b) { return b->last_speech; }

/* ---- down, and what is measured at 16 kHz ---- */

int32_t kr_band_push(kr_band *b, const float *in, int64_t n) {
  KR_TRY(kr_queue_push(&b->dry, in, n));
  return kr_polyphase_push(b->down, in, n);
}

int64_t kr_band_low_ready(const kr_band *b) { return kr_polyphase_ready(b->down); }

int32_t kr_band_low_pull(kr_band *b, float *low, int64_t n) {
  kr_polyphase_pull(b->down, low, n);
  return b->measures ? kr_queue_push(&b->low, low, n) : KRAIT_OK;
}

static double high_pass(const kr_band *b, levels *l, double x) {
  for (int k = 0; k < 2; k++) { /* transposed direct form 2 */
    const section *s = &b->sections[k];
    const double y = s->b * x + l->z[k][0];
    l->z[k][0] = -2 * s->b * x - s->a1 * y + l->z[k][1];
    l->z[k][1] = s->b * x - s->a2 * y;
    x = y;
  }
  return x;
}

static void measure_levels(const kr_band *b, levels *l, double x) {
  const double upper = high_pass(b, l, x), sharp = x - 0.95 * l->before;
  l->before = x;
  l->upper += b->upper_step * (upper * upper - l->upper);
  l->speech += b->speech_step * (sharp * sharp - l->speech);
}

/* A logistic regression on how much of the sound the model keeps, and on how loud that is beside the loudest of the
 * last seconds (docs/LIVE.md: how it was fitted, and how often it is right). */
static double judge(kr_band *b) {
  static const double fall_db = 0.02, least = 1e-12, silence = 1e-9; /* of silence nothing is kept */
  const double said_db = 10 * log10(b->said.speech + least), kept_db = said_db - 10 * log10(b->heard.speech + silence);
  b->speech_peak_db = fmax(fmax(b->speech_peak_db - fall_db, said_db), quietest_db);
  const double kept = fmin(fmax(kept_db, -20), 0), loud = fmax(said_db - b->speech_peak_db, -50);
  return 1 / (1 + exp(-(2.8 + 0.27 * kept + 0.057 * loud)));
}

/* The model's own above 5 kHz. In speech less, in dB, where little is taken: more of it than of noise is above 8 kHz;
 * and more where much is: there it is noise. */
static double upper_gain(const kr_band *b) {
  static const double least = 1e-14;
  const double kept = fmin((b->said.upper + least) / (b->heard.upper + least), 1), taken_db = -10 * log10(kept),
               noisy = fmin(fmax((taken_db - 1) / 5, 0), 1);
  return pow(kept, 0.5 * (1 + b->now_speech * (0.6 * noisy - 0.3)));
}

int32_t kr_band_return(kr_band *b, const float *cleaned, int64_t n) {
  const float *low = kr_queue_front(&b->low);
  KR_TRY(kr_polyphase_push(b->up, cleaned, n));
  if (!b->measures) return b->n_returned += n, KRAIT_OK;
  if (b->up_dry) KR_TRY(kr_polyphase_push(b->up_dry, low, n));
  for (int64_t k = 0; k < n; k++) {
    measure_levels(b, &b->heard, low[k]), measure_levels(b, &b->said, cleaned[k]);
    b->n_returned++;
    if (b->n_returned % STEP == 0) {
      const float gain = (float)upper_gain(b);
      KR_TRY(kr_queue_push(&b->gains, &gain, 1));
    }
    if (b->n_returned % FRAME == 0) {
      const float speech = (float)(b->now_speech = judge(b));
      KR_TRY(kr_queue_push(&b->speech, &speech, 1));
    }
  }
  kr_queue_pop(&b->low, n);
  return KRAIT_OK;
}

/* ---- up ---- */

int64_t kr_band_ready(const kr_band *b) {
  const int64_t last = b->n_returned - low_after(b) - 1, /* outputs before low sample last + 1 */
      due = last < b->i ? 0 : ((last + 1 - b->i) * b->rate_hz - b->remainder + KR_BAND_LOW_HZ - 1) / KR_BAND_LOW_HZ,
                most = kr_queue_count(&b->dry);
  return due < most ? due : most;
}

/* The last values of gain and speech that the next output may use: those from low samples that it waits for. */
static double gain_now(kr_band *b) {
  const int64_t n = (b->i + kr_polyphase_after(b->up) + 1) / STEP;
  if (n - 1 > b->gain_at) b->gains.begin += n - 1 - b->gain_at, b->gain_at = n - 1;
  return n ? *kr_queue_front(&b->gains) : 1;
}

static void judge_now(kr_band *b) {
  for (const int64_t n = (b->i + low_after(b) + 1) / FRAME; b->speech_at < n; b->speech_at++) {
    b->last_speech = *kr_queue_front(&b->speech);
    b->speech.begin++;
    if (b->last_speech >= b->controls.gate) b->opened_at = b->speech_at * FRAME;
  }
}

static void advance(kr_band *b, int64_t n) {
  const int64_t time = b->remainder + n * KR_BAND_LOW_HZ;
  b->i += time / b->rate_hz, b->remainder = time % b->rate_hz;
  b->n_pulled += n;
}

static float mix_sample(kr_band *b, float dry, float wet, float beside, double wet_share) {
  judge_now(b);
  const int is_open = b->controls.gate <= 0 || b->speech_at * FRAME - b->opened_at <= HOLD;
  b->gain += b->gain_step * (gain_now(b) - b->gain);
  b->gate += b->gate_step * (is_open - b->gate);
  b->wet += b->wet_step * (wet_share - b->wet);
  advance(b, 1);
  const double clean = b->gate * (wet + b->gain * beside);
  return (float)(dry + b->wet * (clean - dry));
}

/* Nothing lies beside, and no gate is closed. */
static void pull_unmeasured(kr_band *b, float *out, int64_t n) {
  const float *dry = kr_queue_front(&b->dry);
  const double share = wanted_wet(b);
  kr_polyphase_pull(b->up, out, n);
  for (int64_t k = 0; k < n && (b->wet != 1 || share != 1); k++) {
    b->wet += b->wet_step * (share - b->wet);
    out[k] = (float)(dry[k] + b->wet * ((double)out[k] - dry[k]));
  }
  kr_queue_pop(&b->dry, n);
  advance(b, n);
}

void kr_band_pull(kr_band *b, float *out, int64_t n) {
  enum { MOST = 64 };
  if (!b->measures) {
    pull_unmeasured(b, out, n);
    return;
  }
  float wet[MOST], dry_low[MOST];
  const double share = wanted_wet(b);
  for (int64_t some; n > 0; out += some, n -= some) {
    some = n < MOST ? n : MOST;
    const float *dry = kr_queue_front(&b->dry);
    kr_polyphase_pull(b->up, wet, some);
    if (b->up_dry) kr_polyphase_pull(b->up_dry, dry_low, some);
    for (int64_t k = 0; k < some; k++)
      out[k] = mix_sample(b, dry[k], wet[k], b->up_dry ? dry[k] - dry_low[k] : 0, share);
    kr_queue_pop(&b->dry, some);
  }
}

/* ---- the end ---- */

static int32_t push_silence(kr_polyphase *to, int64_t n) {
  static const float zeros[64];
  for (int64_t some; n > 0; n -= some) {
    some = n < 64 ? n : 64;
    KR_TRY(kr_polyphase_push(to, zeros, some));
  }
  return KRAIT_OK;
}

int32_t kr_band_end_input(kr_band *b) {
  return push_silence(b->down, kr_polyphase_after(b->down) + (low_after(b) + 2) * b->rate_hz / KR_BAND_LOW_HZ + 2);
}

int32_t kr_band_end_return(kr_band *b) {
  float low[FRAME];
  static const float zeros[FRAME];
  for (int64_t n; (n = kr_band_low_ready(b)) > 0;) {
    if (n > FRAME) n = FRAME;
    KR_TRY(kr_band_low_pull(b, low, n));
    KR_TRY(kr_band_return(b, zeros, n));
  }
  return KRAIT_OK;
}
