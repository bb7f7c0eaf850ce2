/* clip.h: CLIP's vision tower (MODEL.md): features of every patch of images, as part of a model's graph. */
#ifndef KR_CLIP_H
#define KR_CLIP_H

#include <krait/krait.h>

#include "graph.h"
#include "weight_loader.h"

typedef struct kr_clip_config {
  int64_t C, n_layers, F, H; /* width, layers, width of the MLP, heads */
  int64_t patch, edge;       /* pixels of a patch; patches along a side */
  int32_t activation;        /* KRAIT_ACT_*; KRAIT_ACT_SILU: quick GELU, x sigmoid(1.702 x) */
  float eps;
} kr_clip_config;

typedef struct kr_clip_layer {
  kr_weight_ref norm1, norm1_bias, qkv[3], qkv_bias[3], o, o_bias, norm2, norm2_bias, fc1, fc1_bias, fc2, fc2_bias;
} kr_clip_layer;

typedef struct kr_clip_weights {
  kr_clip_layer *layers;   /* provided by the caller, for n_layers */
  kr_weight_ref embed, pos_embed; /* position embeddings: (1 + patches, C) float32, the class token's including its
                              embedding */
  kr_weight_ref norm, norm_bias;
  int32_t dtype, is_joined; /* of activations; the matrices of queries, keys and values are adjacent in memory */
} kr_clip_weights;

/* Sizes from the tensors with p's prefix; heads, activation and eps from the object (CLIP's vision_config); if absent,
 * OpenAI's. */
int32_t kr_clip_config_read(const kr_loader *p, const json_t *object, kr_clip_config *c);
/* In a kr_take_fn, p's prefix before "embeddings.class_embedding": the tensors of the first n_layers. */
int32_t kr_clip_take(kr_loader *p, const kr_clip_config *c, int64_t n_layers, kr_clip_weights *w);
/* patches: (B edge^2, 3 patch patch) float32. Returns the hidden state of every patch after n_layers layers: (B,
 * edge^2, C), without the class token. */
kr_tensor kr_clip_record(kr_graph *g, const kr_clip_config *c, const kr_clip_weights *w, int64_t n_layers, int64_t B,
                         kr_tensor patches);

#endif
