/* ladspa_plugin.c: krait for LADSPA hosts: ffmpeg, Audacity, PipeWire's filter-chain. */
#include <ladspa.h>
#include <stdlib.h>

#include "plug.h"

/* After the channels' inputs and outputs. */
enum { MIX, LIMIT, GATE, SPEECH, LATENCY, N_CONTROLS, MOST_PORTS = 2 * PLUG_CHANNELS + N_CONTROLS };

typedef struct instance {
  plug *plug;
  int n_channels;
  LADSPA_Data *ports[MOST_PORTS];
} instance;

static int channels_of(const LADSPA_Descriptor *d) { return (int)(d->PortCount - N_CONTROLS) / 2; }

static LADSPA_Handle instantiate_ladspa(const LADSPA_Descriptor *d, unsigned long rate_hz) {
  char why[1024];
  instance *i = calloc(1, sizeof *i);
  if (!i) return NULL;
  i->n_channels = channels_of(d);
  i->plug = plug_open(i->n_channels, (double)rate_hz, why);
  if (i->plug) return i;
  free(i);
  return NULL;
}

static void connect_port_ladspa(LADSPA_Handle handle, unsigned long port, LADSPA_Data *data) {
  instance *i = handle;
  if (port < MOST_PORTS) i->ports[port] = data;
}

static plug_controls controls_of_ladspa(const instance *i) {
  LADSPA_Data *const *c = i->ports + 2 * i->n_channels;
  return (plug_controls){c[MIX] ? *c[MIX] : 1, c[LIMIT] ? *c[LIMIT] : PLUG_NO_LIMIT, c[GATE] ? *c[GATE] : 0};
}

static void tell(const instance *i) {
  LADSPA_Data *const *c = i->ports + 2 * i->n_channels;
  if (c[SPEECH]) *c[SPEECH] = plug_speech(i->plug);
  if (c[LATENCY]) *c[LATENCY] = (LADSPA_Data)plug_latency(i->plug);
}

static void activate_ladspa(LADSPA_Handle handle) {
  instance *i = handle;
  const plug_controls controls = controls_of_ladspa(i);
  plug_begin(i->plug, &controls);
}

static void run_ladspa(LADSPA_Handle handle, unsigned long n) {
  instance *i = handle;
  const plug_controls controls = controls_of_ladspa(i);
  plug_run(i->plug, &controls, (const float *const *)i->ports, i->ports + i->n_channels, (uint32_t)n);
  tell(i);
}

static void cleanup_ladspa(LADSPA_Handle handle) {
  instance *i = handle;
  plug_close(&i->plug);
  free(i);
}

#define IN LADSPA_PORT_INPUT
#define OUT LADSPA_PORT_OUTPUT
#define AUDIO LADSPA_PORT_AUDIO
#define CONTROL LADSPA_PORT_CONTROL
#define BOUNDED (LADSPA_HINT_BOUNDED_BELOW | LADSPA_HINT_BOUNDED_ABOVE)

#define CONTROL_PORTS IN | CONTROL, IN | CONTROL, IN | CONTROL, OUT | CONTROL, OUT | CONTROL
#define CONTROL_NAMES "Mix", "Limit (dB)", "Gate (speech probability)", "Speech probability", "latency"
#define CONTROL_HINTS \
  {BOUNDED | LADSPA_HINT_DEFAULT_1, 0, 1}, {BOUNDED | LADSPA_HINT_DEFAULT_MAXIMUM, 0, PLUG_NO_LIMIT}, \
      {BOUNDED | LADSPA_HINT_DEFAULT_0, 0, 1}, {BOUNDED, 0, 1}, {LADSPA_HINT_INTEGER, 0, 0}

static const LADSPA_PortDescriptor mono_ports[] = {IN | AUDIO, OUT | AUDIO, CONTROL_PORTS},
                                   stereo_ports[] = {IN | AUDIO, IN | AUDIO, OUT | AUDIO, OUT | AUDIO, CONTROL_PORTS};
static const char *const mono_names[] = {"Input", "Output", CONTROL_NAMES},
                         *const stereo_names[] = {"Input left", "Input right", "Output left", "Output right",
                                                  CONTROL_NAMES};
static const LADSPA_PortRangeHint mono_hints[] = {{0, 0, 0}, {0, 0, 0}, CONTROL_HINTS},
                                  stereo_hints[] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, CONTROL_HINTS};

#define DESCRIPTOR(id, label, name, n, ports, names, hints) \
  { \
    .UniqueID = id, .Label = label, .Properties = LADSPA_PROPERTY_HARD_RT_CAPABLE, .Name = name, .Maker = "krait", \
    .Copyright = "Apache-2.0", .PortCount = n, .PortDescriptors = ports, .PortNames = names, .PortRangeHints = hints, \
    .instantiate = instantiate_ladspa, .connect_port = connect_port_ladspa, .activate = activate_ladspa,              \
    .run = run_ladspa, .cleanup = cleanup_ladspa                                                                      \
  }

static const LADSPA_Descriptor descriptors[] = {
    DESCRIPTOR(4936257, "krait_mono", "Krait speech denoiser (mono)", 2 + N_CONTROLS, mono_ports, mono_names,
               mono_hints),
    DESCRIPTOR(4936258, "krait_stereo", "Krait speech denoiser (stereo)", 4 + N_CONTROLS, stereo_ports, stereo_names,
               stereo_hints)};

__attribute__((visibility("default"))) const LADSPA_Descriptor *ladspa_descriptor(unsigned long index) {
  return index < sizeof descriptors / sizeof *descriptors ? &descriptors[index] : NULL;
}
