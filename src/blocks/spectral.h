/* spectral.h: from a compressed spectrum to samples and back, as calls of a graph: training sends gradients through
 * both, and GPU inference starts from samples (the transform of audio/stft, hop of a quarter frame, as products with
 * its matrix). */
#ifndef KR_SPECTRAL_H
#define KR_SPECTRAL_H

#include "cuda.h"
#include "graph.h"

/* Constants of a transform, in one block, shared by every graph recorded with them. */
typedef struct kr_spectral {
  int64_t n_fft;
  float *forward;  /* (n_fft, 2F): windowed transform: real parts, then imaginary ones */
  float *inverse;  /* (2F, n_fft): windowed inverse transform */
  float *mirror;   /* (n_fft/2, n_fft/2): reverses a row */
  float *envelope; /* (3, n_fft/4): reciprocal of the summed squared windows: in the first hop, between, in the last */
  const kr_cuda *cuda; /* NULL: in host memory */
} kr_spectral;
/* n_fft is a multiple of 4. */
int32_t kr_spectral_open(const kr_cuda *cuda, int64_t n_fft, kr_spectral *s);
void kr_spectral_close(kr_spectral *s);

/* mag, pha (B,F,T), T at least 4, power as audio/stft -> wav (B, (T-1) n_fft/4), into wav if given, else a new tensor.
 * */
kr_tensor kr_spectral_inverse(kr_graph *g, const kr_spectral *s, double power, kr_tensor mag, kr_tensor pha,
                              kr_tensor wav);
/* wav (B, (T-1) n_fft/4) -> mag and pha (B,F,T), which must be given. first (B, 2F): each row's first frame,
 * transformed elsewhere: real parts, then imaginary ones; 0: computed here like the others. */
void kr_spectral_forward(kr_graph *g, const kr_spectral *s, double power, kr_tensor wav, kr_tensor first, kr_tensor mag,
                         kr_tensor pha);
/* mag, pha (B,F,T) as real and imaginary parts, com (B,F,T,2), which must be given. */
void kr_spectral_parts(kr_graph *g, const char *name, kr_tensor mag, kr_tensor pha, kr_tensor com);

#endif
