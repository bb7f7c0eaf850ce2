/* plug.h: what all plug-ins do: one or two channels of speech through the streaming model that is built in, block by
 * block. */
#ifndef KR_PLUG_H
#define KR_PLUG_H

#include <stdint.h>

enum { PLUG_CHANNELS = 2 };

typedef struct plug plug;
/* As hosts give them. */
typedef struct plug_controls {
  float mix;      /* 0: dry, 1: clean */
  float limit_db; /* PLUG_NO_LIMIT and more: no limit */
  float gate;     /* speech probability; 0: no gate */
} plug_controls;
#define PLUG_NO_LIMIT 60.0f

/* NULL if it cannot be opened; why: the sentence that says so, at most 1,024 bytes. */
plug *plug_open(int n_channels, double rate_hz, char *why);
void plug_close(plug **p);
/* Starts again, not in an audio thread. The gate looks back, for 30 ms more latency, if it is in use now. */
void plug_begin(plug *p, const plug_controls *controls);
/* Any of in may be any of out. */
void plug_run(plug *p, const plug_controls *controls, const float *const *in, float *const *out, uint32_t n);
float plug_speech(const plug *p); /* the most probable channel's */
uint32_t plug_latency(const plug *p);

#endif
