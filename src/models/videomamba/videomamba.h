/* videomamba.h: VideoMamba and Vim (MODEL.md): classes of a clip or an image, or a clip's tokens for another model. */
#ifndef KR_VIDEOMAMBA_H
#define KR_VIDEOMAMBA_H

#include <krait/krait.h>

#include "graph.h"
#include "patches.h"
#include "weight_loader.h"

/* Everything follows from the shapes of the tensors, but which of two models an image's are. */
typedef struct kr_videomamba_config {
  kr_patch_grid grid;     /* of a frame */
  int32_t is_vim;         /* the class token stands in the middle, and the two directions' mean is taken */
  int64_t T, D, n_layers; /* frames, width, layers */
  int64_t Di, N, R, W;    /* inner width, states, rank of dt, taps */
  int64_t n_classes;      /* 0: the multimodal form, which outputs tokens */
} kr_videomamba_config;

typedef struct kr_videomamba kr_videomamba;

/* The weights must outlive the model. Keys may have the prefix "vision_encoder.". name: of an image's model, which its
 * tensors do not tell: "vim", "videomamba", or a name that upstream gives to one of their sizes; NULL: the name in the
 * weights' metadata. */
int32_t kr_videomamba_open(const krait_ctx *ctx, const kr_weights *weights, const char *name, kr_videomamba **model);
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
  return 1 + c->T * kr_patch_grid_edge(&c->grid) * kr_patch_grid_edge(&c->grid);
}
/* The class token's row. */
static inline int64_t kr_videomamba_class(const kr_videomamba_config *c) {
  return c->is_vim ? (kr_videomamba_tokens(c) - 1) / 2 : 0;
}

/* The tokens of the latest run, in the context's memory: (1 + T patches, D) float32. */
const float *kr_videomamba_tokens_at(const kr_videomamba *model);
/* One clip: frames (3,T,side,side), normalised. logits (n_classes), tokens (1 + T patches, D) after the last norm;
 * either may be NULL. */
int32_t kr_videomamba_run(kr_videomamba *model, const float *frames, float *logits, float *tokens);

#endif
