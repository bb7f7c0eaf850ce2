/* warm.h: the driver's cache of translated device code, filled ahead. */
#ifndef KR_WARM_H
#define KR_WARM_H

#include <krait/krait.h>

typedef struct kr_warm_cache {
  char path[4096]; /* empty: none */
  char why[4224];  /* why nothing is kept there; empty: it is */
  int64_t used_bytes, most_bytes; /* most: CUDA_CACHE_MAXSIZE, else -1 */
} kr_warm_cache;

void kr_warm_find_cache(kr_warm_cache *cache);
/* Every kernel that the context's GPU takes, by the context's threads. */
int32_t kr_warm_all(const krait_ctx *ctx);
/* What a model launches: a language model for prompts of several lengths and their next tokens; a denoiser. */
int32_t kr_warm_language(const krait_ctx *ctx, const char *path);
int32_t kr_warm_denoiser(const krait_ctx *ctx, const char *weights);

#endif
