/* seedvr.h: SeedVR's transformer (MODEL.md): configuration, weights, windows, and its graph for a sample of one
 * shape. */
#ifndef KR_SEEDVR_H
#define KR_SEEDVR_H

#include <krait/krait.h>

#include "config.h"
#include "graph.h"
#include "weight_loader.h"

enum { KR_SEEDVR_MOST_LAYERS = 256, KR_SEEDVR_SINUSOIDS = 256 };
enum { KR_SEEDVR_PLAIN, KR_SEEDVR_SHIFTED, KR_SEEDVR_PARTITIONS };

typedef struct kr_seedvr_config {
  int32_t is_3b;                     /* else the 7B form */
  int64_t vid_in, vid_out, C, txt_in;/* channels of latents in and out, width, width of the text */
  int64_t H, D, F;                   /* heads, their size, hidden width of the mlp */
  int64_t n_layers, n_apart;         /* layers; those with separate weights for the text come first */
  int64_t rope_dim;                  /* the length for which the default frequencies are made */
  int64_t patch[3];                  /* (1, h, w) */
  int64_t window[3];                 /* how many at 720p */
  float eps;
  uint8_t is_shifted[KR_SEEDVR_MOST_LAYERS];
} kr_seedvr_config;

/* model: seedvr_dit3b or seedvr_dit7b, whose published sizes are the defaults. */
int32_t kr_seedvr_config_read(const char *model, const kr_config *config, kr_seedvr_config *to);

/* ---- weights, in the context's memory ---- */
/* Weights of a stream: video, text, or both. ada: (6,C) float32, rows attn shift, scale, gate, mlp shift, scale,
 * gate. */
typedef struct kr_seedvr_part {
  kr_weight_ref ada, qkv, norm_q, norm_k, out, out_bias;
  kr_weight_ref mlp_in, mlp_in_bias, mlp_gate, mlp_out, mlp_out_bias;
} kr_seedvr_part;
typedef struct kr_seedvr_layer {
  kr_seedvr_part part[2]; /* video, text; or only the first for both */
  int32_t n_parts, text_ends; /* text_ends: the text is neither modulated nor goes through the mlp */
} kr_seedvr_layer;
typedef struct kr_seedvr_weights {
  kr_seedvr_layer *layers;
  kr_weight_ref vid_in, vid_in_bias, txt_in, txt_in_bias; /* txt_in absent: the text is as wide as the model */
  kr_weight_ref emb_in, emb_in_bias, emb_hid, emb_hid_bias, emb_out, emb_out_bias;
  kr_weight_ref vid_out, vid_out_bias, out_norm, out_ada; /* out_ada: (2,C) float32: shift, scale */
  float *freqs;                                           /* host memory */
  int64_t n_freqs;
  int32_t dtype; /* of everything except ada, and of activations */
  kr_loader loader;
  const kr_seedvr_config *c;
  /* On a GPU, instead of all: what is outside of layers, and two layers at a time; bytes of the largest layer. */
  kr_loader ends, slots[2];
  struct kr_staging *staging;
  uint64_t layer_bytes;
} kr_seedvr_weights;

/* weights: of any float type or q8_0; NULL: random ones. On a GPU they become dtype, once they are held; weights and c
 * must outlive them. */
int32_t kr_seedvr_weights_open(const krait_ctx *ctx, const kr_seedvr_config *c, const kr_weights *weights,
                               int32_t dtype, kr_seedvr_weights *to);
/* Into the GPU's memory, of w->loader.used bytes, or out of it. */
int32_t kr_seedvr_weights_hold(kr_seedvr_weights *w);
void kr_seedvr_weights_release(kr_seedvr_weights *w); /* also of parts */
/* Part by part: counts, into w->ends.used and w->layer_bytes; the ends and memory for two layers; layer i in the place
 * of layer i - 2, whose addresses it gets. */
int32_t kr_seedvr_weights_count_parts(kr_seedvr_weights *w);
int32_t kr_seedvr_weights_hold_ends(kr_seedvr_weights *w);
int32_t kr_seedvr_weights_hold_layer(kr_seedvr_weights *w, int64_t i);
void kr_seedvr_weights_close(kr_seedvr_weights *w);

/* ---- windows (seedvr_windows.c) ---- */
/* Half open: t0, t1, h0, h1, w0, w1. */
typedef struct kr_seedvr_window {
  int64_t edge[6];
} kr_seedvr_window;
/* The number of windows of a grid of size[3] tokens; writes the first `most` of them. */
int64_t kr_seedvr_windows(const int64_t size[3], const int64_t count[3], int is_shifted, kr_seedvr_window *windows,
                          int64_t most);

/* The positions of video and text rows in the packed sequences of a partition, and their rotary angles. Host memory, in
 * one block. */
typedef struct kr_seedvr_layout {
  int64_t n_windows, n_packed, longest, n_turned; /* n_turned: rows with angles: all, or the video's */
  double pairs;        /* of query and key, over all sequences */
  int32_t *to_packed;  /* (n_packed): the row at that position */
  int32_t *video_at, *text_at, *starts; /* (T); (n_windows n); (n_windows + 1) */
  float *cos, *sin;    /* (n_turned, 3 n_freqs) */
  void *memory;
  size_t bytes;
} kr_seedvr_layout;
int32_t kr_seedvr_layout_open(const kr_seedvr_config *c, const float *freqs, int64_t n_freqs, const int64_t size[3],
                              int64_t n_text, int is_shifted, kr_seedvr_layout *to);
void kr_seedvr_layout_close(kr_seedvr_layout *layout);

/* ---- the graph (seedvr_graph.c) ---- */
enum { KR_SEEDVR_MOST_TAPS = 96 };
/* All; from inputs to rows; rows to rows; to outputs. */
enum { KR_SEEDVR_ALL, KR_SEEDVR_HEAD, KR_SEEDVR_BLOCKS, KR_SEEDVR_TAIL };
typedef struct kr_seedvr_tap {
  char name[32];
  kr_tensor tensor; /* an output, float32 */
  int64_t n;        /* elements */
  const void *at;   /* its bound address */
} kr_seedvr_tap;
typedef struct kr_seedvr_graph {
  const krait_ctx *ctx;
  int64_t size[3], n_text, T;   /* of the token grid; text; video tokens */
  int32_t with_taps, part, /* with_taps: also outputs the tensors of a golden file; part: KR_SEEDVR_* */
      only_planned;        /* to know what it takes: no runner, no memory on a GPU */
  int64_t from, n_layers;  /* of blocks; 0 layers: all */
  const struct kr_seedvr_graph *tables_of; /* another graph of these sizes, which outlives it; or NULL */
  void *arena;                             /* of arena_bytes, shared with other graphs; or NULL: its own */
  uint64_t arena_bytes;
  kr_graph *g;
  kr_runner *runner;
  kr_tensor patches, text, sinusoids,
      out; /* (T, 4 vid_in), (n_text, txt_in), (1, 256); (T, 4 vid_out); all float32 */
  kr_tensor rows, emb;          /* of blocks, tail: (T + n_text, C); (1, 6C) float32 */
  kr_tensor emb_out;            /* of head */
  kr_seedvr_layout layout[KR_SEEDVR_PARTITIONS];
  kr_seedvr_tap taps[KR_SEEDVR_MOST_TAPS];
  int32_t n_taps;
  char *tables;                 /* a GPU's copies of the layouts */
  double flops;                 /* of a run: products and attention */
} kr_seedvr_graph;
/* What stands before g is an input; the rest is filled in. */
int32_t kr_seedvr_graph_open(const krait_ctx *ctx, const kr_seedvr_config *c, const kr_seedvr_weights *w,
                             kr_seedvr_graph *graph);
void kr_seedvr_graph_close(kr_seedvr_graph *graph);
uint64_t kr_seedvr_graph_bytes(const kr_seedvr_graph *graph); /* of a GPU's or the host's memory, beside weights */

/* ---- the model part by part, for weights that do not fit (seedvr_stream.c); on a GPU ---- */
typedef struct kr_seedvr_stream kr_seedvr_stream;
int32_t kr_seedvr_stream_open(const krait_ctx *ctx, const kr_seedvr_config *c, kr_seedvr_weights *w,
                              const int64_t size[3], int64_t n_text, kr_seedvr_stream **stream);
void kr_seedvr_stream_close(kr_seedvr_stream **stream);
/* In the context's memory: as the graph's inputs and output. */
int32_t kr_seedvr_stream_run(kr_seedvr_stream *stream, void *patches, void *text, void *sinusoids, void *out);
/* With its weights, without inputs and output. */
int32_t kr_seedvr_stream_bytes(const krait_ctx *ctx, const kr_seedvr_config *c, kr_seedvr_weights *w,
                               const int64_t size[3], int64_t n_text, uint64_t *bytes);

#endif
