/* scan_params.h: kernel parameters of the scan: every tensor as strides in scan order (a reversed scan starts at the
 * far end with a negative stride), and the work split. A lane group of T threads holds 2 channels x N states (S states
 * of each channel per lane, T = N / S rounded up to a power of two, at least 4); a block of 128 threads holds 2 * 128 /
 * T channels and advances through time in tiles of TL steps. */
#ifndef KR_SCAN_PARAMS_H
#define KR_SCAN_PARAMS_H

#include "rows.h"

#define KR_SCAN_THREADS 128
#define KR_SCAN_PACKED_ROWS_PACKS 4 /* packs per row of a tile in selective_scan_packed_rows.cu; a pack is 16 bytes */
#define KR_SCAN_CHANNELS_LAST_CHANNELS 32 /* channels per block of selective_scan_channels_last.cu */
#define KR_SCAN_CHANNELS_LAST_TILE 32     /* steps per tile there */
#define KR_SCAN_CHANNELS_LAST_N16_CHANNELS 16 /* channels per block of selective_scan_channels_last_n16.cu */
#define KR_SCAN_BWD_TILE 16
#define KR_SCAN_BWD_ROW 84 /* floats per channel of a tile in shared memory */
#define KR_SCAN_PART 4096 /* floats for the threads' partial dB and dC over four steps, four states per lane */
#define KR_SCAN_KEPT 8 /* the gradient keeps the state once every so many steps */

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

typedef struct kr_scan_params {
  int64_t B, L, D, D_group; /* channels that share B and C */
  int32_t N, S, N_padded;   /* N_padded = T * S */
  int32_t T, T_shift, TL;   /* lanes per group, log2 of it, steps per tile (as the kernels' enum has it) */
  int32_t blocks_per_group, G;
  int32_t rows_shift;       /* log2 of 2 N_padded */
  int32_t softplus, n_chunks, mixed; /* mixed: B or C differ in type from u */
  int64_t chunk;            /* steps per chunk, a multiple of TL */
  kr_rows u, delta, z, out, add; /* add: float32 added to y before the gate (the other direction), or absent */
  kr_scan_mat B_mat, C_mat;
  const float *A, *D_vec, *bias;
  int64_t A_d, A_n, D_stride, bias_stride;
  kr_scan_state initial, last;
  const int32_t *seq_idx; /* (batch, time) or absent */
  int64_t seq_b, seq_t;
  const int32_t
      *offsets; /* sequence b is steps offsets[b] ... offsets[b + 1] - 1 of the single row; or absent */
  int64_t offsets_step;
  int32_t reverse, brief, whole; /* brief: kr_scan_short; whole: selective_scan_packed_rows.cu */
  int32_t TT, direct, slab; /* scan_time_over_lanes.cuh: lanes per channel (0: not used), all tensors aligned, states of
                             * B and C in shared memory at a time */
  float *chunk_state; /* (B, n_chunks, D, N_padded): chunk's end state from zero, then its start state */
  float *chunk_dt;        /* (B, n_chunks, D): sum of dt over the chunk */

  /* backward */
  kr_rows dout, du, ddelta, dz;
  kr_scan_mat dB, dC;
  kr_scan_state dlast, dinitial;
  float *dA, *dD_vec, *dbias;
  int64_t dA_d, dA_n, dD_stride, dbias_stride;
  int32_t n_kept;         /* states kept over L, in whole tiles */
  int32_t part_step;      /* floats between the two buffers of a block's partial dB and dC; 0: one buffer */
  int32_t n_matrix_blocks, reserved; /* blocks that reduce dB and dC */
  float *
      kept_state; /* (B, n_kept, D, N_padded): state before every KR_SCAN_KEPT steps, from zero if n_chunks > 1 */
  float *kept_dt;         /* (B, n_kept, D): sum of dt since the chunk's start, if n_chunks > 1 */
  float *chunk_carry;     /* (B, n_chunks, D, N_padded): gradient of a chunk's last state from later chunks */
  float *part_bc;         /* (B, G, blocks_per_group, L, 2 N_padded): partial dB and dC of one block's channels */
  float *part_A;          /* (B, n_chunks, D, N_padded) */
  float *part_D, *part_bias; /* (B, n_chunks, D) */
  int32_t channels_last, align, align_bc,
      usual; /* scan_channels_last.cuh: kernels used; bytes that divide all rows, and B and C, in address and stride;
              * whether the common-case kernels apply */
  /* channels-last: states per channel in kept_state and its strides, for (B, n_kept, D, kept_N) or the caller's array;
   * keeps: the gradient's caller supplies the states */
  int32_t keeps, kept_N;
  int64_t kept_b, kept_d, kept_k;
} kr_scan_params;

#endif
