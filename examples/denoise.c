/* Removes the noise from a second of 16 kHz samples: cc denoise.c $(pkg-config --cflags --libs krait) */
#include <krait/enhance.h>
#include <stdio.h>

int main(void) {
  static float samples[16000];
  krait_ctx *ctx = NULL;
  krait_denoiser *denoiser = NULL;
  krait_denoiser_session *session = NULL;
  for (int i = 0; i < 16000; i++) samples[i] = (float)(i * 7919 % 2003 - 1001) * 1e-4f;
  if (krait_ctx_open(NULL, &ctx) || krait_denoiser_open(ctx, NULL, &denoiser) || /* NULL: the built-in model */
      krait_denoiser_session_open(denoiser, &session) ||
      krait_enhance_samples(session, samples, samples, 16000, NULL, NULL)) /* in place */
    return fprintf(stderr, "%s\n", krait_error_detail()), 1;
  krait_denoiser_session_close(&session), krait_denoiser_close(&denoiser), krait_ctx_close(&ctx);
  return printf("%g\n", samples[8000]), 0;
}
