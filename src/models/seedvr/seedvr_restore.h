/* seedvr_restore.h: a batch of frames through SeedVR: encoder, sampler with the transformer, decoder. */
#ifndef KR_SEEDVR_RESTORE_H
#define KR_SEEDVR_RESTORE_H

#include "seedvr_latents.h"
#include "seedvr_memory.h"
#include "seedvr_vae.h"

enum { KR_TEXT_POSITIVE, KR_TEXT_NEGATIVE, KR_TEXTS };

typedef struct kr_restore_models {
  const krait_ctx *ctx;
  kr_vae *vae;
  kr_seedvr_config c;
  kr_seedvr_weights w;
  float *text[KR_TEXTS]; /* (n_text, txt_in) float32, in host memory; the negative one may be missing */
  int64_t n_text[KR_TEXTS];
  int is_loaded; /* c and w */
  int32_t dtype; /* of maps, rows and matrices; given */
  kr_memory_use plan; /* how a batch runs; by default all weights stay */
  int64_t tile, tile_overlap; /* of the autoencoder, in pixels; 0: whole frames. Given, before the plan */
} kr_restore_models;
/* On a GPU weights are copied when a stage first needs them: those of the transformer must outlive the models. */
/* Each from a weights file of any format, whose configuration is the published one unless it has its own. */
int32_t kr_restore_load_vae(kr_restore_models *m, const kr_weights *weights);
int32_t kr_restore_load_dit(kr_restore_models *m, const kr_weights *weights);
/* item: (tokens, features), any float type; after the transformer. */
int32_t kr_restore_load_text(kr_restore_models *m, int which, const kr_weight *item);
/* Random values of a published model's sizes, and of its text: for timing. */
int32_t kr_restore_load_random(kr_restore_models *m, int is_7b);
void kr_restore_unload(kr_restore_models *m);
/* Makes the plan for batches of T, H, W in `most` bytes of the context's memory, 0: all that is free. text: what it
 * says. KRAIT_ERR_NO_MEMORY names the least that would do. */
int32_t kr_restore_plan_for(kr_restore_models *m, const int64_t size[3], uint64_t most, char *text,
                            size_t text_bytes);

/* Stages of a batch, for progress. */
enum { KR_STAGE_ENCODE, KR_STAGE_SAMPLE, KR_STAGE_DECODE, KR_STAGES };
typedef int32_t (*kr_restore_progress_fn)(void *user, int stage, double share);

typedef struct kr_restore_settings {
  int64_t steps;
  double scale, rescale;
  double condition_noise; /* 0 to 1 */
  uint64_t seed;
} kr_restore_settings;

typedef struct kr_restore_batch {
  int64_t size[3];   /* T (4 n + 1), H, W */
  const float *film; /* (T,H,W,3) in -1..1 */
  uint64_t number;   /* of the batch, for its noise */
  const float *eps, *noise, *aug_noise; /* (t,h,w,16), or NULL: drawn */
  kr_restore_progress_fn progress;
  void *user;
  float *latent, *condition, *x0; /* (t,h,w,16), (t,h,w,17), (t,h,w,16), or NULL: not asked for */
  float *decoded;                 /* (T,H,W,3) */
  kr_vae_line_fn line; /* or NULL: what the autoencoder's operators take, for timing; with user */
} kr_restore_batch;
int32_t kr_restore_run(kr_restore_models *m, const kr_restore_settings *s, const kr_restore_batch *b);

#endif
