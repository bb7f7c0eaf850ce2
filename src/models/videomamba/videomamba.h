/* videomamba.h: VideoMamba (MODEL.md): classes of a clip, or its tokens for another model. */
#ifndef KR_VIDEOMAMBA_H
#define KR_VIDEOMAMBA_H

#include <krait/krait.h>

#include "graph.h"
#include "weight_loader.h"

/* Everything follows from the shapes of the tensors. */
typedef struct kr_videomamba_config {
  int64_t side, patch;    /* pixels of a frame (square) and of a patch */
  int64_t T, D, n_layers; /* frames, width, layers */
  int64_t Di, N, R, W;    /* inner width, states, rank of dt, taps */
  int64_t n_classes;      /* 0: the multimodal form, which outputs tokens */
} kr_videomamba_config;

typedef struct kr_videomamba kr_videomamba;

/* The weights must outlive the model. Keys may have the prefix "vision_encoder.". */
int32_t kr_videomamba_open(const krait_ctx *ctx, const kr_weights *weights, kr_videomamba **model);
/* As part of a larger model: keys with this prefix. */
int32_t kr_videomamba_open_part(const krait_ctx *ctx, const kr_model_folder *folder, const char *prefix,
                                kr_videomamba **model);
/* Random weights, for timing. */
int32_t kr_videomamba_open_random(const krait_ctx *ctx, const kr_videomamba_config *config, int32_t dtype,
                                  kr_videomamba **model);
const kr_graph *kr_videomamba_graph(const kr_videomamba *model); /* of one clip */
uint64_t kr_videomamba_bytes(const kr_videomamba *model); /* of weights */
void kr_videomamba_close(kr_videomamba **model);
const kr_videomamba_config *kr_videomamba_config_of(const kr_videomamba *model);
static inline int64_t kr_videomamba_tokens(const kr_videomamba_config *c) {
  return 1 + c->T * (c->side / c->patch) * (c->side / c->patch);
}

/* The tokens of the latest run, in the context's memory: (1 + T patches, D) float32. */
const float *kr_videomamba_tokens_at(const kr_videomamba *model);
/* One clip: frames (3,T,side,side), normalised. logits (n_classes), tokens (1 + T patches, D) after the last norm;
 * either may be NULL. */
int32_t kr_videomamba_run(kr_videomamba *model, const float *frames, float *logits, float *tokens);

#endif
