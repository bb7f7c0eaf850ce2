/* spectral.h: from a compressed spectrum to samples and back, as calls of a graph, so that gradients flow through both
 * (the transform of audio/stft as products with its matrix). */
#ifndef KR_SPECTRAL_H
#define KR_SPECTRAL_H

#include "ctx.h"
#include "graph.h"

/* Constants of a transform, in one block where the context's graphs run. */
typedef struct kr_spectral {
  int64_t n_fft, hop, T;
  float *forward;  /* (n_fft, 2F): window and transform: real parts, then imaginary ones */
  float *inverse;  /* (2F, n_fft): transform back and window */
  float *envelope; /* (T - 1) hop: one over the sum of squared windows */
  float *mirror;   /* (n_fft/2, n_fft/2): what reverses a row */
  const kr_cuda *cuda; /* NULL: in host memory */
} kr_spectral;
int32_t kr_spectral_open(const krait_ctx *ctx, int64_t n_fft, int64_t hop, int64_t T, kr_spectral *s);
void kr_spectral_close(kr_spectral *s);

/* mag, pha (B,F,T), power as audio/stft -> wav (B, (T-1) hop), written if given, else made. */
kr_tensor kr_spectral_inverse(kr_graph *g, const kr_spectral *s, double power, kr_tensor mag, kr_tensor pha,
                              kr_tensor wav);
/* wav (B, (T-1) hop) -> mag and pha (B,F,T), to be given. */
void kr_spectral_forward(kr_graph *g, const kr_spectral *s, double power, kr_tensor wav, kr_tensor mag, kr_tensor pha);

#endif
