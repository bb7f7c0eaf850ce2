/* live_device.c: see live_device.h. libpulse-simple is opened when it is used: the program does not need it. */
#include "live_device.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* What of libpulse's interface (pulse/simple.h, sample.h, def.h; unchanged since 0.9) is used here. */
enum { PLAYBACK = 1, RECORD = 2, FLOAT32_LITTLE = 5, CONNECTION_REFUSED = 6 };
typedef struct sample_spec {
  int format;
  uint32_t rate;
  uint8_t channels;
} sample_spec;
typedef struct buffer_attributes {
  uint32_t maxlength, tlength, prebuf, minreq, fragsize; /* bytes; UINT32_MAX: the server's choice */
} buffer_attributes;

struct live_devices {
  void *library, *in, *out;
  int64_t n_heard;
  void *(*open)(const char *server, const char *name, int direction, const char *device, const char *stream,
                const sample_spec *spec, const void *channels, const buffer_attributes *attributes, int *error);
  void (*free)(void *stream);
  int (*read)(void *stream, void *data, size_t bytes, int *error);
  int (*write)(void *stream, const void *data, size_t bytes, int *error);
  uint64_t (*latency)(void *stream, int *error); /* microseconds; -1: unknown */
  int (*flush)(void *stream, int *error);
  const char *(*describe)(int error);
};

static int load_library(live_devices *d) {
  struct {
    const char *name;
    void *target;
  } functions[] = {{"pa_simple_new", &d->open},
                   {"pa_simple_free", &d->free},
                   {"pa_simple_read", &d->read},
                   {"pa_simple_write", &d->write},
                   {"pa_simple_get_latency", &d->latency},
                  {"pa_simple_flush", &d->flush},
                  {"pa_strerror", &d->describe}};
  d->library = dlopen("libpulse-simple.so.0", RTLD_NOW | RTLD_GLOBAL);
  for (size_t i = 0; d->library && i < sizeof functions / sizeof *functions; i++) {
    void *found = dlsym(d->library, functions[i].name); /* also of libpulse, which it needs */
    if (!found) return 0;
    memcpy(functions[i].target, &found, sizeof found);
  }
  return d->library != NULL;
}

static void *open_stream(const live_devices *d, int direction, const char *device, const char **why) {
  const sample_spec spec = {FLOAT32_LITTLE, LIVE_DEVICE_HZ, 1};
  const uint32_t piece = LIVE_DEVICE_FRAMES * sizeof(float);
  const buffer_attributes attributes = {UINT32_MAX, 3 * piece, UINT32_MAX, UINT32_MAX, piece};
  int error = 0;
  const char *name = strcmp(device, "default") == 0 ? NULL : device;
  void *stream = d->open(NULL, "krait", direction, name, "krait live", &spec, NULL, &attributes, &error);
  if (!stream && error == CONNECTION_REFUSED)
    *why = "no sound server answers; is PipeWire or PulseAudio running for this user?";
  else if (!stream) *why = d->describe(error);
  return stream;
}

live_devices *live_devices_open(const char *in, const char *out, const char **why) {
  live_devices *d = calloc(1, sizeof *d);
  *why = "no memory";
  if (!d) return NULL;
  if (!load_library(d)) *why = "there is no libpulse-simple.so.0 (Debian: apt-get install libpulse0)";
  else if ((d->in = open_stream(d, RECORD, in, why)) && (d->out = open_stream(d, PLAYBACK, out, why))) return d;
  live_devices_close(&d);
  return NULL;
}

/* The library stays: it has threads of its own. */
void live_devices_close(live_devices **handle) {
  live_devices *d = *handle;
  if (!d) return;
  if (d->in) d->free(d->in);
  if (d->out) d->free(d->out);
  free(d);
  *handle = NULL;
}

/* What has waited since a moment in which the machine was too slow would stay late for ever: it is dropped. */
static void catch_up(live_devices *d) {
  static const uint64_t most_us = 100000;
  int error = 0;
  const uint64_t waits_us = d->latency(d->in, &error);
  if (waits_us != UINT64_MAX && waits_us > most_us) d->flush(d->in, &error);
}

int live_devices_hear(live_devices *d, float *samples, const char **why) {
  int error = 0;
  if (d->n_heard++ % 50 == 0) catch_up(d);
  const int status = d->read(d->in, samples, LIVE_DEVICE_FRAMES * sizeof *samples, &error);
  if (status < 0) *why = d->describe(error);
  return status;
}

int live_devices_say(live_devices *d, const float *samples, const char **why) {
  int error = 0;
  const int status = d->write(d->out, samples, LIVE_DEVICE_FRAMES * sizeof *samples, &error);
  if (status < 0) *why = d->describe(error);
  return status;
}
