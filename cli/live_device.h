/* live_device.h: microphones and loudspeakers, through the client library of PulseAudio, which PipeWire serves too. */
#ifndef CLI_LIVE_DEVICE_H
#define CLI_LIVE_DEVICE_H

#include <stdint.h>

enum { LIVE_DEVICE_HZ = 48000, LIVE_DEVICE_FRAMES = 480 };

typedef struct live_devices live_devices;

/* Mono, at LIVE_DEVICE_HZ; "default" is the system's. NULL: *why says why not. */
live_devices *live_devices_open(const char *in, const char *out, const char **why);
void live_devices_close(live_devices **d);
/* LIVE_DEVICE_FRAMES samples, when they have come, and when there is room for them. 0, or -1 and *why. */
int live_devices_hear(live_devices *d, float *samples, const char **why);
int live_devices_say(live_devices *d, const float *samples, const char **why);

#endif
