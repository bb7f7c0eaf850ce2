/* lv2_plugin.c: krait for LV2 hosts: Ardour, Audacity, jalv, ffmpeg. Ports as in denoiser.ttl. */
#include <lv2/core/lv2.h>
#include <stdlib.h>

#include "plug.h"

/* The controls come first, so that they have the same numbers with one channel and with two. */
enum { MIX, LIMIT, GATE, SPEECH, LATENCY, N_CONTROLS, MOST_PORTS = 2 * PLUG_CHANNELS + N_CONTROLS };

typedef struct instance {
  plug *plug;
  int n_channels;
  float *ports[MOST_PORTS];
} instance;

static const LV2_Descriptor descriptors[PLUG_CHANNELS];

static LV2_Handle instantiate_lv2(const LV2_Descriptor *d, double rate_hz, const char *bundle,
                              const LV2_Feature *const *features) {
  char why[1024];
  instance *i = calloc(1, sizeof *i);
  (void)bundle, (void)features;
  if (!i) return NULL;
  i->n_channels = (int)(d - descriptors) + 1;
  i->plug = plug_open(i->n_channels, rate_hz, why);
  if (i->plug) return i;
  free(i);
  return NULL;
}

static void connect_port_lv2(LV2_Handle handle, uint32_t port, void *data) {
  instance *i = handle;
  if (port < MOST_PORTS) i->ports[port] = data;
}

static plug_controls controls_of_lv2(const instance *i) {
  float *const *c = i->ports;
  return (plug_controls){c[MIX] ? *c[MIX] : 1, c[LIMIT] ? *c[LIMIT] : PLUG_NO_LIMIT, c[GATE] ? *c[GATE] : 0};
}

static void activate_lv2(LV2_Handle handle) {
  instance *i = handle;
  const plug_controls controls = controls_of_lv2(i);
  plug_begin(i->plug, &controls);
}

static void run_lv2(LV2_Handle handle, uint32_t n) {
  instance *i = handle;
  const plug_controls controls = controls_of_lv2(i);
  float *const *in = i->ports + N_CONTROLS, *const *out = in + i->n_channels;
  plug_run(i->plug, &controls, (const float *const *)in, out, n);
  if (i->ports[SPEECH]) *i->ports[SPEECH] = plug_speech(i->plug);
  if (i->ports[LATENCY]) *i->ports[LATENCY] = (float)plug_latency(i->plug);
}

static void cleanup_lv2(LV2_Handle handle) {
  instance *i = handle;
  plug_close(&i->plug);
  free(i);
}

static const LV2_Descriptor descriptors[PLUG_CHANNELS] = {
    {"urn:krait:denoiser:mono", instantiate_lv2, connect_port_lv2, activate_lv2, run_lv2, NULL, cleanup_lv2, NULL},
    {"urn:krait:denoiser:stereo", instantiate_lv2, connect_port_lv2, activate_lv2, run_lv2, NULL, cleanup_lv2, NULL}};

__attribute__((visibility("default"))) const LV2_Descriptor *lv2_descriptor(uint32_t index) {
  return index < PLUG_CHANNELS ? &descriptors[index] : NULL;
}
