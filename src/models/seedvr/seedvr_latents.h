/* seedvr_latents.h: SeedVR's transformer on latents in host memory: graphs of one shape, for one or two texts. */
#ifndef KR_SEEDVR_LATENTS_H
#define KR_SEEDVR_LATENTS_H

#include "seedvr.h"

/* Values of each patch adjacent, row by row; latents (size..., channels); is_back: from patches to latents. */
void kr_seedvr_cut(const kr_seedvr_config *c, const int64_t size[3], int64_t channels, float *patches, float *latents,
                   int is_back);
/* KR_SEEDVR_SINUSOIDS values. */
void kr_seedvr_sinusoids(float timestep, float *values);

typedef struct kr_seedvr_latents kr_seedvr_latents;
/* size: t, h, w of latents, h and w multiples of the patch. w: held, or streamed. */
int32_t kr_seedvr_latents_open(const krait_ctx *ctx, const kr_seedvr_config *c, kr_seedvr_weights *w,
                               const int64_t size[3], int is_streamed, kr_seedvr_latents **latents);
void kr_seedvr_latents_close(kr_seedvr_latents **latents);
/* x (t,h,w,vid_in), text (n_text, txt_in) to v (t,h,w,vid_out). which: 0 or 1, a graph is kept for each. */
int32_t kr_seedvr_latents_run(kr_seedvr_latents *latents, int which, const float *x, const float *text, int64_t n_text,
                              double timestep, float *v);
/* Memory of one of its graphs, with what goes in and out; streamed, with the weights that are held then; 0: it
 * cannot. */
int32_t kr_seedvr_latents_bytes(const krait_ctx *ctx, const kr_seedvr_config *c, kr_seedvr_weights *w,
                                const int64_t size[3], int64_t n_text, uint64_t *bytes, uint64_t *streamed);

#endif
