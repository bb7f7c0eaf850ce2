/* videogpt.h: Mobile-VideoGPT (MODEL.md) between its towers and its language model: frame selection, and the rows that
 * represent the video in the prompt. */
#ifndef KR_VIDEOGPT_H
#define KR_VIDEOGPT_H

#include <krait/krait.h>

#include "clip/clip.h"

enum {
  KR_VIDEOGPT_IMAGES = 16, /* of a video, missing ones zero */
  KR_VIDEOGPT_CHUNK = 8,   /* frames that are compared with each other */
  KR_VIDEOGPT_CHUNKS = KR_VIDEOGPT_IMAGES / KR_VIDEOGPT_CHUNK,
  KR_VIDEOGPT_CHOSEN = 4, /* of a chunk */
  KR_VIDEOGPT_T = KR_VIDEOGPT_CHUNKS * KR_VIDEOGPT_CHOSEN,
  KR_VIDEOGPT_EDGE = 14, /* patches per side, of both towers */
  KR_VIDEOGPT_PATCHES = KR_VIDEOGPT_EDGE * KR_VIDEOGPT_EDGE,
  KR_VIDEOGPT_CONTEXT_EDGE = 12, /* after pooling */
  KR_VIDEOGPT_VIDEO_EDGE = 7,
  KR_VIDEOGPT_CONTEXT_ROWS = KR_VIDEOGPT_IMAGES * KR_VIDEOGPT_CONTEXT_EDGE * KR_VIDEOGPT_CONTEXT_EDGE,
  KR_VIDEOGPT_VIDEO_ROWS = KR_VIDEOGPT_CHUNKS * KR_VIDEOGPT_VIDEO_EDGE * KR_VIDEOGPT_VIDEO_EDGE,
  KR_VIDEOGPT_ROWS = KR_VIDEOGPT_CONTEXT_ROWS + KR_VIDEOGPT_VIDEO_ROWS, /* 2304 + 98 */
};

typedef struct kr_projector {
  int64_t K;    /* input width */
  int64_t edge; /* output width */
  kr_weight_ref first, first_bias, second, second_bias;
  kr_weight_ref taps, taps_bias; /* (9, d) float32, the identity added to the middle tap; (d) */
  kr_weight_ref pool;            /* (edge^2, PATCHES) */
} kr_projector;

typedef struct kr_videogpt_weights {
  kr_clip_config clip_config;
  kr_clip_weights clip;
  int64_t n_layers; /* of CLIP, that run */
  int64_t d;        /* width of the language model */
  kr_projector context, video;
  kr_weight_ref frame_pool; /* (VIDEO_EDGE^2, PATCHES): as video.pool */
  kr_weight_ref ones,
      of_frames; /* (C, 1) and (CHUNK PATCHES, 16) float32: 1 in the column of a row's frame, and in column CHUNK */
} kr_videogpt_weights;

enum { KR_VIDEOGPT_SUMS = 16 }; /* columns of of_frames */

/* A graph's bound tensors; 0: none. */
typedef struct kr_videogpt_graph {
  kr_graph *g;
  kr_runner *runner;
  kr_tensor in, rows;                 /* patches, or tokens of the video tower; rows of the language model */
  kr_tensor sums[KR_VIDEOGPT_CHUNKS]; /* (CHUNK PATCHES, SUMS) float32 */
} kr_videogpt_graph;

/* ---- the model ---- */
typedef struct kr_videogpt kr_videogpt;
/* clip_folder: the source of CLIP's tensors, with clip_prefix; rows are output as rows_dtype. */
typedef struct kr_videogpt_source {
  const kr_model_folder *folder, *clip_folder;
  const char *clip_prefix;
  int32_t rows_dtype, random_type; /* both folders NULL: random weights of random_type, for timing */
} kr_videogpt_source;
int32_t kr_videogpt_open(const krait_ctx *ctx, const kr_videogpt_source *source, kr_videogpt **model);
void kr_videogpt_close(kr_videogpt **model);
const kr_graph *kr_videogpt_graph_of(
    const kr_videogpt *model, int is_video); /* CLIP's tower with what follows it, or what follows the video tower */
uint64_t kr_videogpt_bytes(const kr_videogpt *model); /* of weights */
int64_t kr_videogpt_side(const kr_videogpt *model);   /* pixels per side of CLIP's images */
int64_t kr_videogpt_width(const kr_videogpt *model);  /* of the video tower's tokens */
int64_t kr_videogpt_d(const kr_videogpt *model);

/* images (IMAGES,3,side,side), as CLIP takes them. rows: in the context's memory, (ROWS, d); the first CONTEXT_ROWS are
 * written. scores (IMAGES) of the frames, chosen (T): the selected ones in order; scores may be NULL. */
int32_t kr_videogpt_look(kr_videogpt *model, const float *images, void *rows, double *scores, int32_t *chosen);
/* tokens: in the context's memory, (1 + T PATCHES, width) float32 of the selected frames. The last VIDEO_ROWS of rows
 * are written. */
int32_t kr_videogpt_watch(kr_videogpt *model, const float *tokens, void *rows);

/* ---- graphs (videogpt_graph.c) ---- */
int32_t kr_videogpt_record_context(const krait_ctx *ctx, const kr_videogpt_weights *w, int32_t rows_dtype,
                                   kr_videogpt_graph *to);
int32_t kr_videogpt_record_video(const krait_ctx *ctx, const kr_videogpt_weights *w, int32_t rows_dtype,
                                 kr_videogpt_graph *to);

#endif
