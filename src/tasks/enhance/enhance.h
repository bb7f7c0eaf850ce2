/* enhance.h: runs recordings through any denoiser; krait_enhance_* call this with a session's denoiser. */
#ifndef KR_ENHANCE_H
#define KR_ENHANCE_H

#include <krait/enhance.h>

#include "band.h"
#include "denoiser.h"

int32_t kr_enhance_samples(const kr_denoiser *denoiser, const float *in, float *out, int64_t n_samples,
                           krait_progress_fn progress, void *user);
int32_t kr_enhance_file(const kr_denoiser *denoiser, const krait_enhance_options *options,
                        krait_enhance_result *result);
int32_t kr_stream_open(const kr_denoiser *denoiser, krait_denoiser_stream **stream);
/* The callers' structs, checked; the rate within these. */
int32_t kr_voice_take_options(const krait_voice_options *given, int32_t least_hz, int32_t most_hz,
                              krait_voice_options *known);
int32_t kr_voice_take_controls(const krait_voice_controls *given, kr_band_controls *known);

#endif
