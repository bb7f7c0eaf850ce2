/* plug.c: see plug.h. */
#include "plug.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <krait/enhance.h>

enum { BLOCK = 64 };

struct plug {
  int n_channels;
  int32_t rate_hz;
  uint32_t flags; /* KRAIT_VOICE_* of the voices */
  krait_ctx *ctx;
  krait_denoiser *model;
  krait_denoiser_session *sessions[PLUG_CHANNELS];
  krait_voice *voices[PLUG_CHANNELS];
};

static int32_t open_voices(plug *p) {
  const krait_voice_options options = {.size = sizeof options, .flags = p->flags, .rate_hz = p->rate_hz};
  int32_t status = KRAIT_OK;
  for (int c = 0; c < p->n_channels && status >= 0; c++) {
    krait_voice_close(&p->voices[c]);
    status = krait_voice_open(p->sessions[c], &options, &p->voices[c]);
  }
  return status;
}

static int32_t open_all(plug *p) {
  const krait_ctx_options options = {.size = sizeof options, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  int32_t status = krait_ctx_open(&options, &p->ctx);
  if (status >= 0) status = krait_denoiser_open(p->ctx, NULL, &p->model);
  for (int c = 0; c < p->n_channels && status >= 0; c++)
    status = krait_denoiser_session_open(p->model, &p->sessions[c]);
  return status < 0 ? status : open_voices(p);
}

plug *plug_open(int n_channels, double rate_hz, char *why) {
  plug *p = calloc(1, sizeof *p);
  snprintf(why, 1024, "no memory");
  if (!p) return NULL;
  p->n_channels = n_channels;
  p->rate_hz = rate_hz > 0 && rate_hz < 1e9 ? (int32_t)lrint(rate_hz) : 0;
  if (open_all(p) >= 0) return p;
  snprintf(why, 1024, "%s", krait_error_detail());
  plug_close(&p);
  return NULL;
}

void plug_close(plug **handle) {
  plug *p = *handle;
  if (!p) return;
  for (int c = 0; c < p->n_channels; c++) {
    krait_voice_close(&p->voices[c]);
    krait_denoiser_session_close(&p->sessions[c]);
  }
  krait_denoiser_close(&p->model);
  krait_ctx_close(&p->ctx);
  free(p);
  *handle = NULL;
}

static double within(float value, double least, double most, double otherwise) {
  return isfinite(value) ? fmin(fmax(value, least), most) : otherwise;
}

static void set_controls(plug *p, const plug_controls *c) {
  const double limit_db = within(c->limit_db, 0, PLUG_NO_LIMIT, PLUG_NO_LIMIT);
  const krait_voice_controls controls = {.size = sizeof controls,
                                         .mix = within(c->mix, 0, 1, 1),
                                         .limit_db = limit_db < PLUG_NO_LIMIT ? limit_db : INFINITY,
                                         .gate = within(c->gate, 0, 1, 0)};
  for (int i = 0; i < p->n_channels; i++) krait_voice_set(p->voices[i], &controls);
}

/* A voice that could not be opened again is NULL: its channel is silent. */
void plug_begin(plug *p, const plug_controls *controls) {
  const uint32_t flags = controls->gate > 0 ? KRAIT_VOICE_LOOKS_BACK : 0;
  if (flags != p->flags) {
    p->flags = flags;
    if (open_voices(p) < 0) p->flags = UINT32_MAX; /* no beginning has these: the next one tries again */
  } else {
    for (int c = 0; c < p->n_channels; c++) krait_voice_reset(p->voices[c]);
  }
  set_controls(p, controls);
}

void plug_run(plug *p, const plug_controls *controls, const float *const *in, float *const *out, uint32_t n) {
  float heard[PLUG_CHANNELS][BLOCK];
  set_controls(p, controls);
  for (uint32_t i = 0, some; i < n; i += some) {
    some = n - i < BLOCK ? n - i : BLOCK;
    for (int c = 0; c < p->n_channels; c++) memcpy(heard[c], in[c] + i, some * sizeof **heard);
    for (int c = 0; c < p->n_channels; c++)
      if (krait_voice_process(p->voices[c], heard[c], out[c] + i, some) < 0)
        memset(out[c] + i, 0, some * sizeof **out);
  }
}

float plug_speech(const plug *p) {
  double most = 0;
  for (int c = 0; c < p->n_channels; c++) most = fmax(most, krait_voice_speech(p->voices[c]));
  return (float)most;
}

uint32_t plug_latency(const plug *p) { return (uint32_t)krait_voice_latency(p->voices[0]); }
