/* primeknet_session.h: the working memory of one forward pass, and the stages that share it. Activations are maps: (T,
 * width, Cp) with one zero column before and after each row's positions, so that filters over frequency need no
 * edges. */
#ifndef KR_PRIMEKNET_SESSION_H
#define KR_PRIMEKNET_SESSION_H

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
  float *xz, *xc, *delta, *dbl; /* Mamba: (CHUNK, 2Ep), (CHUNK, Ep), (CHUNK, Ep), (CHUNK, Xp) */
  float *conv_state[2], *scan_state[2]; /* Mamba: (W-1, Ep), (E, N) */
  float *gates_x, *gates_h, *steps; /* recurrent: (CHUNK group, G Hp), (group, G Hp), (CHUNK group, Hp) */
  float *h, *c;            /* recurrent: (layers, group, Hp) each */
  float *mean, *attn;      /* (Cp) each */
  float *scaled;           /* panels of C -> C */
  float *wide, *narrow;    /* freq: rows of 2Cp and of Cp with zero rows before and after */
  float *taps_a, *taps_b;  /* freq: (F2, Cp) each */
  void *op_scratch;        /* for the scan */
  int32_t status;          /* first failure of this thread */
} pk_scratch;

struct kr_pk_session {
  const kr_primeknet *model;
  struct pk_device_session *device; /* the session on a GPU: then nothing below is used but this */
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
  uint64_t op_scratch_bytes;
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

/* Bytes of scratch that the scan wants for a chunk (primeknet_time.c). */
int32_t pk_scan_scratch_bytes(const kr_primeknet *model, uint64_t *bytes);

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
