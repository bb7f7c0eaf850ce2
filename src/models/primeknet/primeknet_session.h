/* primeknet_session.h: the working memory of one forward pass, and the stages that share it. Activations are maps: (T,
 * width, Cp) with one zero column before and after each row's positions, so that filters over frequency need no
 * edges. */
#ifndef KR_PRIMEKNET_SESSION_H
#define KR_PRIMEKNET_SESSION_H

#include "graph.h"
#include "primeknet_packed.h"

enum { KR_PK_TILE = 36, KR_PK_CHUNK = 64 };

typedef struct pk_map {
  float *data;   /* position 0 of frame 0 */
  int64_t row;   /* floats from frame to frame: (width + 2) Cp */
  int64_t width; /* positions */
} pk_map;

/* What one thread needs; which fields are used depends on the stage. */
typedef struct pk_scratch {
  float *mixed, *mixed_first; /* dense: (TILE, depth Cp), (TILE, Cp) */
  float *lifted[3];        /* dense: (TILE + 2, Cp) */
  float *row;              /* dense: (F, Cp) */
  float *ring[2][3];       /* dense: (F + 2, Cp): the last rows of computed sources, and which frames they are */
  int64_t ring_frame[2][3];
  float *y, *g;            /* time: (group, T, Cp) each; freq: (F2, Cp) */
  float *normed;           /* (CHUNK group or F2, Cp) */
  kr_runner *layer[2];     /* Mamba: of the session's graphs */
  float *conv_state[2], *scan_state[2]; /* Mamba: (W-1, E), (E, N) */
  float *gates_x, *gates_h, *steps; /* recurrent: (CHUNK group, G Hp), (group, G Hp), (CHUNK group, Hp) */
  float *h, *c;            /* recurrent: (layers, group, Hp) each */
  float *mean, *attn;      /* (Cp) each */
  float *scaled;           /* panels of C -> C */
  float *wide, *narrow;    /* freq: rows of 2Cp and of Cp with zero rows before and after */
  float *taps_a, *taps_b;  /* freq: (F2, Cp) each */
  int32_t status;          /* first failure of this thread */
} pk_scratch;

/* A Mamba layer over a chunk as a graph, for any layer's weights (primeknet_mamba.c). */
typedef struct pk_mamba_chunk {
  kr_graph *graph;
  kr_tensor y, out, conv[2], scan[2]; /* rows before and after: may be the same; states before and after */
  kr_tensor in_w, in_b, conv_w, conv_b, x_w, dt_w, dt_b, A, D, out_w, out_b;
} pk_mamba_chunk;

struct kr_pk_session {
  const kr_primeknet *model;
  struct pk_device_session *device; /* the session on a GPU: then nothing below is used but this */
  struct pk_chunks *chunks; /* of a model that streams: likewise */
  double device_s;
  int64_t T;               /* what the memory below is laid out for; 0: nothing yet */
  float *memory;
  size_t memory_bytes;
  int64_t group;           /* sequences that a thread advances together in the time stage */
  float *x;                                 /* half width */
  float *decoder_maps[KR_PK_MAX_DEPTH + 1]; /* where output i + 1 of a decoder's dense block goes, half width */
  float *encoder_maps[KR_PK_MAX_DEPTH + 1]; /* by output as well: the encoder's, full width; over the same memory */
  float *wide_map;         /* the phase decoder's upsampled map, full width, clear of its last output */
  pk_scratch *scratch;     /* per thread */
  int n_threads;
  float *zeros;            /* (TILE + 2, Cp), or one row of a recurrence */
  float *mag, *pha;        /* (T, F) of the input */
  float *mask, *phase;     /* (T, F) of the output */
  float *row_mean, *row_m2;/* (T, Cp) statistics of each frame */
  float *scale, *shift;    /* (Cp) */
  float *first_scale, *first_shift; /* (Cp) the norm of the encoder's x1 */
  float *lift[3];          /* (Cp) the encoder's first layer with its norm folded in */
  krait_ctx *alone;        /* the model's context with one thread: what a thread's graphs are planned for */
  int64_t chunk;           /* frames that a Mamba layer takes at once */
  pk_mamba_chunk layer[2]; /* of whole chunks, and of what is left */
};

/* Lays the memory out for windows of T frames (primeknet_memory.c). */
int32_t pk_session_prepare(kr_pk_session *s, int64_t T);

/* Dense blocks, encoder and decoders (primeknet_dense.c). */
void pk_encode(kr_pk_session *s, pk_map *x);                /* s->mag, s->pha -> x, of width F2 */
void pk_decode_mask(kr_pk_session *s, const pk_map *x);     /* -> s->mask */
void pk_decode_phase(kr_pk_session *s, const pk_map *x);    /* -> s->phase; x is overwritten */

/* The two-stage blocks, in place (primeknet_time.c, primeknet_freq.c). */
void pk_time_stage(kr_pk_session *s, const pk_block *block, const pk_map *x);
void pk_freq_stage(kr_pk_session *s, const pk_block *block, const pk_map *x);

/* Graphs for windows of s->T frames; a layer over one sequence, in place (primeknet_mamba.c). */
int32_t pk_mamba_prepare(kr_pk_session *s);
void pk_mamba_close(kr_pk_session *s);
int32_t pk_mamba_run(const kr_pk_session *s, const pk_mamba *net, pk_scratch *w, float *y);

/* Steps that both stages share (primeknet_freq.c). C += g A with the attention's weights scaled by the channel
 * means. */
void pk_attend(const kr_primeknet *m, const pk_attention *a, pk_scratch *w, const float *g, int64_t n, float *y);

static inline void pk_gemm(const kr_primeknet *m, const kr_panels *weights, const float *A, int64_t lda, int64_t M,
                           float *C, int64_t ldc, int epilogue) {
  kr_gemm_rows_call call = {
      weights, A, lda, M, C, ldc, NULL, 0, weights->gate ? kr_padded(m->layers, weights->N / 2) : weights->N, epilogue};
  m->layers->gemm_rows(&call);
}

#endif
