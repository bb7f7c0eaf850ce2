/* scan_plan.h: what the host tells the scan kernels: every tensor as strides in scan order (a reversed scan is a base at
 * the far end and a negative stride), and how the work is cut.
 *
 * A lane group of T threads holds 2 channels x N states (S states of each channel per lane, T = N / S rounded up to a
 * power of two, at least 4); a block of 128 threads holds 2 * 128 / T channels and walks along time in
 * tiles of TL steps. */
#ifndef KR_SCAN_PLAN_H
#define KR_SCAN_PLAN_H

#include "rows.h"

#define KR_SCAN_THREADS 128
#define KR_SCAN_BWD_TILE 16

/* B or C: (batch, group, state, time). */
typedef struct kr_scan_mat {
  void *data;
  int64_t b, g, n, t;
  int32_t dtype, packs;
} kr_scan_mat;

/* (batch, channel, state) float32. */
typedef struct kr_scan_state {
  float *data;
  int64_t b, d, n;
} kr_scan_state;

typedef struct kr_scan_plan {
  int64_t B, L, D, D_group; /* D_group: channels that share B and C */
  int32_t N, S, N_padded;   /* N_padded = T * S */
  int32_t T, T_shift, TL;   /* lanes per group, log2 of it, steps per tile (as the kernels' enum has it) */
  int32_t blocks_per_group, G;
  int32_t rows_shift;       /* log2 of 2 N_padded */
  int32_t softplus, n_chunks, mixed; /* mixed: B or C are of another type than u */
  int64_t chunk;            /* steps per chunk, a multiple of TL */
  kr_rows u, delta, z, out, add; /* add: float32 summand of y before gate (the other direction), or absent */
  kr_scan_mat B_mat, C_mat;
  const float *A, *D_vec, *bias;
  int64_t A_d, A_n, D_stride, bias_stride;
  kr_scan_state initial, last;
  const int32_t *seq_idx; /* (batch, time) or absent */
  int64_t seq_b, seq_t;
  float *chunk_state;     /* (B, n_chunks, D, N): end state of a chunk from zero, then start state of each chunk */
  float *chunk_dt;        /* (B, n_chunks, D): sum of dt over the chunk */

  /* backward */
  kr_rows dout, du, ddelta, dz;
  kr_scan_mat dB, dC;
  kr_scan_state dlast, dinitial;
  float *dA, *dD_vec, *dbias;
  int64_t dA_d, dA_n, dD_stride, dbias_stride;
  int32_t n_tiles;        /* of KR_SCAN_BWD_TILE steps, over all of L */
  float *tile_state;      /* (B, n_tiles, D, N): state before each tile */
  float *chunk_carry;     /* (B, n_chunks, D, N): gradient of a chunk's last state from the chunks after it */
  float *part_bc;         /* (B, G, blocks_per_group, L, 2 N_padded): dB and dC of one block's channels */
  float *part_A;          /* (B, n_chunks, D, N) */
  float *part_D, *part_bias; /* (B, n_chunks, D) */
} kr_scan_plan;

#endif
