/* spectral.h: from a compressed spectrum to samples and back, as calls of a graph: what trains a model sends gradients
 * through both, and what runs one on a GPU takes samples there (the transform of audio/stft, a quarter of a frame from
 * frame to frame, as products with its matrix). */
#ifndef KR_SPECTRAL_H
#define KR_SPECTRAL_H

#include "cuda.h"
#include "graph.h"

/* Constants of a transform, in one block, which every graph that is recorded with them reads. */
typedef struct kr_spectral {
  int64_t n_fft;
  float *forward;  /* (n_fft, 2F): window and transform: real parts, then imaginary ones */
  float *inverse;  /* (2F, n_fft): transform back and window */
  float *mirror;   /* (n_fft/2, n_fft/2): what reverses a row */
  float *envelope; /* (3, n_fft/4): one over the sum of squared windows: in the first hop, between, in the last */
  const kr_cuda *cuda; /* NULL: in host memory */
} kr_spectral;
/* n_fft is a multiple of 4. */
int32_t kr_spectral_open(const kr_cuda *cuda, int64_t n_fft, kr_spectral *s);
void kr_spectral_close(kr_spectral *s);

/* mag, pha (B,F,T), T at least 4, power as audio/stft -> wav (B, (T-1) n_fft/4), written if given, else made. */
kr_tensor kr_spectral_inverse(kr_graph *g, const kr_spectral *s, double power, kr_tensor mag, kr_tensor pha,
                              kr_tensor wav);
/* wav (B, (T-1) n_fft/4) -> mag and pha (B,F,T), to be given. first (B, 2F): each row's first frame, transformed
 * elsewhere: real parts, then imaginary ones; 0: here, as the others are. */
void kr_spectral_forward(kr_graph *g, const kr_spectral *s, double power, kr_tensor wav, kr_tensor first, kr_tensor mag,
                         kr_tensor pha);
/* mag, pha (B,F,T) as real and imaginary parts, com (B,F,T,2), to be given. */
void kr_spectral_parts(kr_graph *g, const char *name, kr_tensor mag, kr_tensor pha, kr_tensor com);

#endif
