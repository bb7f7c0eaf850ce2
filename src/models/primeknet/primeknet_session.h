/* primeknet_session.h: the working memory of one forward pass, and the stages that share it. Activations are maps: (T,
 * width, Cp) with one zero column before and after each row's positions, so that filters over frequency need no
 * edges. */
#ifndef KR_PRIMEKNET_SESSION_H
#define KR_PRIMEKNET_SESSION_H

#include "graph.h"
#include "primeknet_packed.h"

enum { KR_PK_TILE = 36 };

typedef struct pk_map {
  float *data;   /* position 0 of frame 0 */
  int64_t row;   /* floats from frame to frame: (width + 2) Cp */
  int64_t width; /* positions */
} pk_map;

/* What one thread needs. */
typedef struct pk_scratch {
  float *mixed, *mixed_first; /* dense: (TILE, depth Cp), (TILE, Cp) */
  float *lifted[3];        /* dense: (TILE + 2, Cp) */
  float *row;              /* dense: (F, Cp) */
  float *ring[2][3];       /* dense: (F + 2, Cp): the last rows of computed sources, and which frames they are */
  int64_t ring_frame[2][3];
  float *real;             /* phase: (F) */
  kr_runner **runners;     /* of the session's stages, which take turns in stage_memory */
  void *stage_memory;
  int32_t status;          /* first failure of this thread */
} pk_scratch;

/* A stage of a block over a piece of the map, in place (primeknet_stages.c). */
typedef struct pk_stage {
  kr_graph *graph; /* NULL: there is no such piece */
  kr_tensor x, out;
} pk_stage;

struct kr_pk_session {
  const kr_primeknet *model;
  struct pk_device_session *device; /* the session on a GPU: then nothing below is used but this */
  struct pk_chunks *chunks; /* of a model that streams: likewise */
  double device_s;
  int64_t T;               /* what the memory below is laid out for; 0: nothing yet */
  float *memory;
  size_t memory_bytes;
  float *x;                                 /* half width */
  float *decoder_maps[KR_PK_MAX_DEPTH + 1]; /* where output i + 1 of a decoder's dense block goes, half width */
  float *encoder_maps[KR_PK_MAX_DEPTH + 1]; /* by output as well: the encoder's, full width; over the same memory */
  float *wide_map;         /* the phase decoder's upsampled map, full width, clear of its last output */
  pk_scratch *scratch;     /* per thread */
  int n_threads;
  float *zeros;            /* (TILE + 2, Cp) */
  float *mag, *pha;        /* (T, F) of the input */
  float *mask, *phase;     /* (T, F) of the output */
  float *row_mean, *row_m2;/* (T, Cp) statistics of each frame */
  float *scale, *shift;    /* (Cp) */
  float *first_scale, *first_shift; /* (Cp) the norm of the encoder's x1 */
  float *lift[3];          /* (Cp) the encoder's first layer with its norm folded in */
  krait_ctx *alone;        /* the model's context with one thread: what a thread's graphs are planned for */
  pk_stage *stages;
  int64_t n_stages;
};

/* Lays the memory out for windows of T frames (primeknet_memory.c). */
int32_t pk_session_prepare(kr_pk_session *s, int64_t T);

/* Dense blocks, encoder and decoders (primeknet_dense.c). */
void pk_encode(kr_pk_session *s, pk_map *x);                /* s->mag, s->pha -> x, of width F2 */
void pk_decode_mask(kr_pk_session *s, const pk_map *x);     /* -> s->mask */
void pk_decode_phase(kr_pk_session *s, const pk_map *x);    /* -> s->phase; x is overwritten */

/* The stages of the blocks (primeknet_stages.c): graphs for windows of s->T frames; a stage, in place. */
int32_t pk_stages_prepare(kr_pk_session *s);
void pk_stages_close(kr_pk_session *s);
void pk_stage_run(kr_pk_session *s, int64_t block, int along_time, const pk_map *x);

static inline void pk_gemm(const kr_primeknet *m, const kr_panels *weights, const float *A, int64_t lda, int64_t M,
                           float *C, int64_t ldc) {
  m->layers->gemm_rows(&(kr_gemm_rows_call){weights, A, lda, M, C, ldc, weights->N});
}

#endif
