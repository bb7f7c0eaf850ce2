/* embedded.c: the weights that the build put into the program (src/models/meson.build). */
#include "model_kind.h"

#ifdef KR_EMBEDDED_WEIGHTS
extern const unsigned char kr_embed_denoiser_weights[];
extern const size_t kr_embed_denoiser_weights_bytes;
const unsigned char *kr_embedded_weights(size_t *n_bytes) {
  *n_bytes = kr_embed_denoiser_weights_bytes;
  return kr_embed_denoiser_weights;
}
#else
const unsigned char *kr_embedded_weights(size_t *n_bytes) {
  *n_bytes = 0;
  return NULL;
}
#endif
