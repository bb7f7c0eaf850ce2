/* scan_plan.h: what the host tells the scan kernels: every tensor as strides in scan order (a reversed scan is a base
 * at the far end and a negative stride), and how the work is cut.
 *
 * A lane group of T threads holds 2 channels x N states (S states of each channel per lane, T = N / S rounded up to a
 * power of two, at least 4); a block of 128 threads holds 2 * 128 / T channels and walks along time in
 * tiles of TL steps. */
#ifndef KR_SCAN_PLAN_H
#define KR_SCAN_PLAN_H

#include "rows.h"

#define KR_SCAN_THREADS 128
#define KR_SCAN_WHOLE_PACKS 4 /* of 16 bytes of a row in a tile of selective_scan_whole.cu */
#define KR_SCAN_LAST_CHANNELS 32 /* of a block of selective_scan_last.cu */
#define KR_SCAN_LAST_TILE 32     /* steps of a tile there */
#define KR_SCAN_USUAL_CHANNELS 16 /* of a block of selective_scan_usual.cu */
#define KR_SCAN_BWD_TILE 16
#define KR_SCAN_BWD_ROW 84 /* floats of a channel of a tile in shared memory */
#define KR_SCAN_PART 4096 /* floats of the threads' parts of dB and dC over four steps, with four states per lane */
#define KR_SCAN_KEPT 8 /* the gradient keeps the state before every so many steps */

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
  const int32_t
      *offsets; /* sequence b lies in steps offsets[b] ... offsets[b + 1] - 1 of the one row there is, or absent */
  int64_t offsets_step;
  int32_t reverse, brief, whole; /* brief: kr_scan_short; whole: selective_scan_whole.cu */
  int32_t TT, direct, slab; /* lanes.cuh: lanes of a channel (0: not this way), all tensors aligned, states of B and C
                               in shared memory at a time */
  int32_t few, few_shift; /* channels of a block of selective_scan_few.cu (0: not this way), log2 of it */
  float *chunk_state; /* (B, n_chunks, D, N_padded): end state of a chunk from zero, then start state of each chunk */
  float *chunk_dt;        /* (B, n_chunks, D): sum of dt over the chunk */

  /* backward */
  kr_rows dout, du, ddelta, dz;
  kr_scan_mat dB, dC;
  kr_scan_state dlast, dinitial;
  float *dA, *dD_vec, *dbias;
  int64_t dA_d, dA_n, dD_stride, dbias_stride;
  int32_t n_kept;         /* states kept over all of L, whole tiles */
  int32_t part_step;      /* floats between the two halves of a block's parts of dB and dC; 0: there is one */
  int32_t n_matrix_blocks, reserved; /* blocks that add up dB and dC */
  float *
      kept_state; /* (B, n_kept, D, N_padded): state before every KR_SCAN_KEPT steps, swept from zero if n_chunks > 1 */
  float *kept_dt;         /* (B, n_kept, D): sum of dt since the chunk began, if n_chunks > 1 */
  float *chunk_carry;     /* (B, n_chunks, D, N_padded): gradient of a chunk's last state from the chunks after it */
  float *part_bc;         /* (B, G, blocks_per_group, L, 2 N_padded): dB and dC of one block's channels */
  float *part_A;          /* (B, n_chunks, D, N_padded) */
  float *part_D, *part_bias; /* (B, n_chunks, D) */
  int32_t channels_last, align, align_bc,
      usual; /* last.cuh: taken this way; what all rows, and those of B and C, are multiples of, in bytes; whether the
                kernels for the usual call take it */
  /* channels-last: kept_state's states of a channel and its strides, of (B, n_kept, D, kept_N) or the caller's; keeps:
   * the gradient's caller has the states */
  int32_t keeps, kept_N;
  int64_t kept_b, kept_d, kept_k;
} kr_scan_plan;

#endif
