/* embedded.c: the weights embedded into the program by the build (src/models/meson.build), by name. */
#include <string.h>

#include "model_kind.h"

#ifdef KR_EMBEDDED_WEIGHTS
extern const unsigned char kr_embed_denoiser_weights[];
extern const size_t kr_embed_denoiser_weights_bytes;
#endif
#ifdef KR_EMBEDDED_STREAMING
extern const unsigned char kr_embed_streaming_weights[];
extern const size_t kr_embed_streaming_weights_bytes;
#endif

const unsigned char *kr_embedded_weights(const char *name, size_t *n_bytes) {
  (void)name;
#ifdef KR_EMBEDDED_WEIGHTS
  if (!name) {
    *n_bytes = kr_embed_denoiser_weights_bytes;
    return kr_embed_denoiser_weights;
  }
#endif
#ifdef KR_EMBEDDED_STREAMING
  if (name && strcmp(name, "streaming") == 0) {
    *n_bytes = kr_embed_streaming_weights_bytes;
    return kr_embed_streaming_weights;
  }
#endif
  *n_bytes = 0;
  return NULL;
}
