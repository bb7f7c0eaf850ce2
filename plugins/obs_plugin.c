/* obs_plugin.c: krait as an audio filter of OBS. What comes out is stamped with the time at which it went in, so sound
 * and picture stay together. OBS calls it with planes of float, in a thread of the source; its settings come from
 * others: they pass through atomics, and a filter that begins anew through a slot that the audio thread empties. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <obs-module.h>

#include "plug.h"

OBS_DECLARE_MODULE()

enum { MOST_PLUGS = (MAX_AUDIO_CHANNELS + PLUG_CHANNELS - 1) / PLUG_CHANNELS };

/* The channels of a source, by twos. */
typedef struct line {
  int n_channels;
  plug *plugs[MOST_PLUGS];
} line;

typedef struct filter {
  uint32_t rate_hz;
  line *now;              /* the audio thread's; NULL: what could not be opened passes the sound on */
  _Atomic(line *) next;   /* to replace it */
  _Atomic(line *) before; /* replaced, for another thread to close */
  _Atomic float mix, limit_db, gate, speech;
  atomic_uint latency;
} filter;

static void close_line(line *l) {
  for (int i = 0; l && i < MOST_PLUGS; i++) plug_close(&l->plugs[i]);
  free(l);
}

static line *open_line(const filter *f, int n_channels, const plug_controls *controls) {
  char why[1024] = "no memory";
  line *l = calloc(1, sizeof *l);
  int is_open = l != NULL;
  if (l) l->n_channels = n_channels;
  for (int i = 0; is_open && i * PLUG_CHANNELS < n_channels; i++) {
    const int left = n_channels - i * PLUG_CHANNELS;
    l->plugs[i] = plug_open(left < PLUG_CHANNELS ? left : PLUG_CHANNELS, f->rate_hz, why);
    is_open = l->plugs[i] != NULL;
    if (is_open) plug_begin(l->plugs[i], controls);
  }
  if (is_open) return l;
  blog(LOG_ERROR, "[krait] the filter passes sound on unchanged: %s", why);
  close_line(l);
  return NULL;
}

static plug_controls controls_of_obs(filter *f) {
  return (plug_controls){atomic_load(&f->mix), atomic_load(&f->limit_db), atomic_load(&f->gate)};
}

static const char *name_of(void *type) {
  (void)type;
  return "Krait speech denoiser";
}

static void set_defaults(obs_data_t *settings) {
  obs_data_set_default_double(settings, "mix", 1);
  obs_data_set_default_double(settings, "limit", PLUG_NO_LIMIT);
  obs_data_set_default_double(settings, "gate", 0);
}

/* A gate that comes into use, or is in use no more, begins anew: it looks back. */
static void update(void *data, obs_data_t *settings) {
  filter *f = data;
  const int had_gate = atomic_load(&f->gate) > 0;
  atomic_store(&f->mix, (float)obs_data_get_double(settings, "mix"));
  atomic_store(&f->limit_db, (float)obs_data_get_double(settings, "limit"));
  atomic_store(&f->gate, (float)obs_data_get_double(settings, "gate"));
  const plug_controls controls = controls_of_obs(f);
  if (had_gate == (controls.gate > 0)) return;
  line *l = open_line(f, (int)audio_output_get_channels(obs_get_audio()), &controls);
  if (l) close_line(atomic_exchange(&f->next, l));
}

static void close_replaced(void *data, float seconds) {
  filter *f = data;
  (void)seconds;
  close_line(atomic_exchange(&f->before, NULL));
}

static void tell_latency(void *data, calldata_t *answer) {
  calldata_set_int(answer, "samples", atomic_load(&((filter *)data)->latency));
}
static void tell_speech(void *data, calldata_t *answer) {
  calldata_set_float(answer, "probability", (double)atomic_load(&((filter *)data)->speech));
}

static void destroy(void *data) {
  filter *f = data;
  close_line(f->now), close_line(f->next), close_line(f->before);
  free(f);
}

static void *create(obs_data_t *settings, obs_source_t *source) {
  filter *f = calloc(1, sizeof *f);
  if (!f) return NULL;
  f->rate_hz = audio_output_get_sample_rate(obs_get_audio());
  atomic_store(&f->gate, (float)obs_data_get_double(settings, "gate"));
  update(f, settings);
  const plug_controls controls = controls_of_obs(f);
  f->now = open_line(f, (int)audio_output_get_channels(obs_get_audio()), &controls);
  atomic_store(&f->latency, f->now ? plug_latency(f->now->plugs[0]) : 0);
  proc_handler_t *calls = obs_source_get_proc_handler(source);
  proc_handler_add(calls, "void latency(out int samples)", tell_latency, f);
  proc_handler_add(calls, "void speech(out float probability)", tell_speech, f);
  return f;
}

static void take_next(filter *f) {
  line *next = atomic_load(&f->before) ? NULL : atomic_exchange(&f->next, NULL);
  if (!next) return;
  atomic_store(&f->before, f->now), f->now = next;
  atomic_store(&f->latency, plug_latency(next->plugs[0]));
}

static struct obs_audio_data *filter_audio(void *data, struct obs_audio_data *audio) {
  filter *f = data;
  const plug_controls controls = controls_of_obs(f);
  float speech = 0;
  take_next(f);
  if (!f->now) return audio;
  for (int c = 0; c < f->now->n_channels; c++)
    if (!audio->data[c]) return audio;
  for (int c = 0; c < f->now->n_channels; c += PLUG_CHANNELS) {
    plug *p = f->now->plugs[c / PLUG_CHANNELS];
    float *const planes[] = {(float *)audio->data[c], (float *)audio->data[c + 1]};
    plug_run(p, &controls, (const float *const *)planes, planes, audio->frames);
    speech = speech > plug_speech(p) ? speech : plug_speech(p);
  }
  atomic_store(&f->speech, speech);
  audio->timestamp -= (uint64_t)atomic_load(&f->latency) * 1000000000 / f->rate_hz;
  return audio;
}

static obs_properties_t *list_properties(void *data) {
  obs_properties_t *list = obs_properties_create();
  char text[64];
  obs_properties_add_float_slider(list, "mix", "Mix (0: as it was, 1: clean)", 0, 1, 0.01);
  obs_properties_add_float_slider(list, "limit", "Limit (dB; 60: none)", 0, PLUG_NO_LIMIT, 1);
  obs_properties_add_float_slider(list, "gate", "Gate (speech probability; 0: none)", 0, 1, 0.01);
  if (!data) return list;
  const filter *f = data;
  snprintf(text, sizeof text, "Latency: %u samples, %.1f ms", atomic_load(&f->latency),
           1e3 * atomic_load(&f->latency) / f->rate_hz);
  obs_properties_add_text(list, "latency", text, OBS_TEXT_INFO);
  return list;
}

MODULE_EXPORT const char *obs_module_description(void) { return "Krait: removes noise from speech"; }

MODULE_EXPORT bool obs_module_load(void) {
  static struct obs_source_info info = {.id = "krait_denoiser",
                                        .type = OBS_SOURCE_TYPE_FILTER,
                                        .output_flags = OBS_SOURCE_AUDIO,
                                        .get_name = name_of,
                                        .create = create,
                                        .destroy = destroy,
                                        .get_defaults = set_defaults,
                                        .get_properties = list_properties,
                                        .update = update,
                                        .video_tick = close_replaced,
                                        .filter_audio = filter_audio};
  obs_register_source(&info);
  return true;
}
