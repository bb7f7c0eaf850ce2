/* seedvr_vae.h: SeedVR's autoencoder of films (MODEL.md): between frames (T,H,W,3) in -1..1 and latents
 * (t,h,w,latent), t = (T - 1) / 4 + 1, whole or in slices of time, with the same result. Maps are channels-last. */
#ifndef KR_SEEDVR_VAE_H
#define KR_SEEDVR_VAE_H

#include <krait/krait.h>

#include "config.h"
#include "graph.h"
#include "weight_loader.h"

enum { KR_VAE_MOST_LEVELS = 8, KR_VAE_COLOURS = 3 };
enum { KR_VAE_ENCODER, KR_VAE_DECODER, KR_VAE_SIDES };

typedef struct kr_vae_config {
  int64_t n_levels, width[KR_VAE_MOST_LEVELS]; /* from the full size to the smallest */
  int64_t n_layers, n_groups, latent, n_time;  /* residual blocks a level; levels that halve time */
  int64_t more;                                /* frames of a latent, after the first, of one frame */
  float eps;
} kr_vae_config;
int32_t kr_vae_config_read(const kr_config *config, kr_vae_config *to);

typedef struct kr_vae kr_vae;
/* weights: any float types; every key, and no other; NULL: random ones, for timing. dtype: of maps and of filters,
 * copied; norms and biases are float32. */
int32_t kr_vae_open(const krait_ctx *ctx, const kr_vae_config *c, const kr_weights *weights, int32_t dtype,
                    kr_vae **vae);
void kr_vae_close(kr_vae **vae);
const kr_vae_config *kr_vae_config_of(const kr_vae *vae);

/* After some frames: their share of the whole, above 0 to 1. A negative status ends the work. */
typedef int32_t (*kr_vae_progress_fn)(void *user, double share);
typedef void (*kr_vae_line_fn)(void *user, const char *line);
/* How a run's memory is saved: {0} takes most of it, and is the fastest. */
typedef struct kr_vae_saving {
  uint64_t host_above, host_to; /* memories of more bytes than the one and up to the other are on the host */
  /* Bit k: all frames of the film go through the levels to k before the next level begins, so that both's memories need
   * not be there at once; what is between them is stored, in host_cuts on the host. */
  uint32_t cuts, host_cuts;
} kr_vae_saving;
/* size: T, H, W of the film, T = 4 n + 1. All in host memory. */
typedef struct kr_vae_run {
  int64_t size[3];
  int is_whole; /* all frames at once: for tests */
  int64_t tile[2], tile_overlap[2]; /* height and width in pixels, of larger frames; 0: whole frames */
  kr_vae_saving saving;
  kr_vae_progress_fn progress;
  kr_vae_line_fn line; /* or NULL: the operators of each segment's last frames are timed, a line each */
  void *user;
} kr_vae_run;
/* moments (t,h,w,2 latent): means, then logarithms of variances. */
int32_t kr_vae_encode(kr_vae *vae, const kr_vae_run *run, const float *film, float *moments);
/* film (T, scale h, scale w, 3). */
int32_t kr_vae_decode(kr_vae *vae, const kr_vae_run *run, const float *latents, float *film);
/* t, h, w of a film's latents, or of T, H, W of a film from its latents. */
void kr_vae_latent_size(const kr_vae_config *c, const int64_t film[3], int64_t latent[3]);
void kr_vae_film_size(const kr_vae_config *c, const int64_t latent[3], int64_t film[3]);
uint64_t kr_vae_weight_bytes(const kr_vae *vae, int side); /* in the context's memory, of a side */
double kr_vae_flops(const kr_vae *vae); /* of products in all runs so far */
/* Memory of a run of this size beside the weights: the graphs', the convolutions' memories, frames between levels; on
 * the host; what is copied between both. */
typedef struct kr_vae_needs {
  uint64_t bytes, host_bytes, moved_bytes;
} kr_vae_needs;
int32_t kr_vae_count(kr_vae *vae, int side, const kr_vae_run *run, kr_vae_needs *needs);
/* The same for every way to cut. */
typedef void (*kr_vae_needs_fn)(void *user, const kr_vae_saving *saving, const kr_vae_needs *needs);
int32_t kr_vae_each_cut(kr_vae *vae, int side, const kr_vae_run *run, kr_vae_needs_fn fn, void *user);
/* The sizes of convolutions' memories, each once, the largest first; returns their number. */
int32_t kr_vae_memory_sizes(kr_vae *vae, int side, const kr_vae_run *run, int32_t most, uint64_t *sizes, int32_t *n);

/* ---- the graph (seedvr_vae_graph.c): a segment is a level, with what leads to it or (encoder) from it ---- */
/* Without memory; the first frame; where time is doubled, the second one; those that follow. */
enum { KR_VAE_WHOLE, KR_VAE_FIRST, KR_VAE_SECOND, KR_VAE_LATER, KR_VAE_PARTS };
enum { KR_VAE_APART = 16 }; /* channels of a convolution whose kernel frames are computed apart: at most a third */
typedef struct kr_vae_memory {
  kr_tensor was, is;
  uint64_t bytes;
  int is_on_host; /* in page-locked memory of the host, and copied to the GPU's when it is read */
} kr_vae_memory;
typedef struct kr_vae_graph {
  int is_decoder, part;
  int64_t segment;
  int32_t dtype;   /* of maps; what a side reads and writes is float32 */
  int by_products; /* attention as products and softmax: on a GPU, whose attention takes heads of up to 256 */
  int64_t size[3]; /* of what is read */
  uint64_t host_above, host_to; /* as kr_vae_saving's */
  int64_t out_size[3];
  kr_graph *g;
  kr_runner *runner;
  kr_tensor in, out;
  kr_vae_memory *memories; /* of convolutions, in the order of recording */
  double flops;            /* of products */
  int64_t n_memories;
} kr_vae_graph;
/* A weight: a convolution's as (K, taps, C). */
typedef int32_t (*kr_vae_weight_fn)(void *user, const char *key, kr_sizes want, const void **at);
/* is_decoder, part, segment, dtype, by_products and size are given. Only recorded. */
int32_t kr_vae_record(const kr_vae_config *c, kr_vae_weight_fn find, void *user, kr_vae_graph *graph);
int64_t kr_vae_channels(const kr_vae_config *c, int is_decoder, int64_t segment); /* of what it reads */
void kr_vae_graph_close(kr_vae_graph *graph);

/* ---- upsampling as small convolutions (seedvr_vae_up.c) ---- */
/* Sets of weights: of the first frame, which comes alone; of the cell of frames after it; of later ones; without
 * time, of any. */
enum { KR_VAE_UP_FIRST, KR_VAE_UP_SECOND, KR_VAE_UP_LATER, KR_VAE_UP_FRAMES, KR_VAE_UP_SETS };
int64_t kr_vae_up_frames(int set); /* of the small map that it sees */
typedef struct kr_vae_up {
  const krait_ctx *ctx;
  int64_t C;
  int r; /* frames of a cell */
  const float *places, *place_bias, *conv, *conv_bias; /* (4 r,C,C), (4 r,C), (C,27,C), (C) */
  /* place: (row 2 + column) r + frame; weights: (C, 4 frames, C); bias: (4,C): see add_bias. */
  int32_t (*keep)(void *user, int set, int place, const float *weights, const float *bias);
  void *user;
} kr_vae_up;
int32_t kr_vae_up_make(const kr_vae_up *up); /* calls keep for each place of each set */

/* ---- of the model's files ---- */
const krait_ctx *kr_vae_ctx(const kr_vae *vae);
void kr_vae_add_flops(kr_vae *vae, double flops);
int32_t kr_vae_plan_graph(kr_vae *vae, kr_vae_graph *graph); /* of the model's type; recorded and planned */
/* A side's weights into the context's memory, or out of it: on a GPU, where they lie in host memory otherwise. */
int32_t kr_vae_hold(kr_vae *vae, int side);
void kr_vae_release(kr_vae *vae, int side);
/* ---- tiles (seedvr_vae_tiles.c) ---- */
int kr_vae_has_tiles(const kr_vae_run *run);
int32_t kr_vae_run_tiles(kr_vae *vae, int is_decoder, const kr_vae_run *run, const float *from, float *to);

/* Page-locked memory on the host (on a CPU: any) for so many bytes, kept until the model is closed: locking takes
 * longer than copying. NULL: there is none. */
char *kr_vae_host_room(kr_vae *vae, uint64_t bytes);

#endif
