/* mamba3_params.h: parameters of Mamba 3's kernels (mamba3.cu): the call's tensors in scan order, and the rows in
 * scratch that the SSD is given. */
#ifndef KR_MAMBA3_PARAMS_H
#define KR_MAMBA3_PARAMS_H

#include "op_args.h"

#define KR_MAMBA3_THREADS 256
#define KR_MAMBA3_CHUNK 64 /* tokens of a block */
#define KR_MAMBA3_PAIRS 64 /* of rows of B and C that rotate, at a time */
#define KR_MAMBA3_TILE 32  /* tokens of a block that leaves gradients of B and C */
#define KR_MAMBA3_SPAN 16  /* tokens whose angles are summed at once */
#define KR_MAMBA3_PLAIN_PART 128 /* tokens of a block that makes the rows of a plain call */
#define KR_MAMBA3_PLAIN_N 128 /* most states of a plain call, and of one with ranks in vectors */
#define KR_MAMBA3_RANKED_P 128 /* most channels of a call with ranks in vectors */
#define KR_MAMBA3_SLICES 8 /* of the sums over blocks */

/* Token t of a sequence is a block of `ranks` rows for the SSD (R, to the next power of two, the others zeros): with
 * its queries, but the keys and inputs of the token before (the first: of the initial states), weighted as they reach
 * it; only a block's first row decays, and all are added before one is read (ssd_inputs.h). So a key's weight, which
 * the next token completes, is known where the key enters, and y needs only the token's own term besides, products
 * of its R queries and R keys. A chunk of 64 rows is 64 / ranks tokens; operations per token and head are
 * R (4 P N + 64 (P + N)) for the SSD, 2 R^2 (N + P) besides, and bytes those of R rows of q and k (2 N), x, y (2 P) and
 * their gradients, written once and read once.
 * After a sequence's last token a block may follow (has_ends) with that token's keys and inputs: the state after it is
 * the final state. Sequences of a pack lie one behind the other, each with `before` blocks of unit keys, whose inputs
 * are the columns of its initial state, and `after` blocks of unit queries, whose outputs are those of its final
 * state.
 * A direct gradient's call (one rank, no states before, no pack) has a token's own key, its input and its output in the
 * block: the key is weighted as it reaches later tokens, with the next token's share, which the token's own output must
 * not have: less that share of q k is what multiplies x beside the SSD's pairs, with D (a D of each token). The SSD
 * then reads x and writes the output, gate included, and its gradient the same. Such a call is walked, as most scans of
 * one rank are on warpgroups, if it has a gate and enough heads: no rows are made before (mamba3_walk.cu). */
typedef struct kr_mamba3_params {
  uint32_t flags;
  int32_t B, H, P, N, G, R, M, S;
  int32_t is_plain;              /* mamba3_plain.cu */
  int32_t is_direct;
  int32_t is_ranked, is_ranked_output; /* mamba3_ranks.cu: rows of B and C; what reads and writes channels */
  int32_t ranks;                 /* R, to the next power of two */
  int32_t row_N, row_P;          /* of rows in scratch */
  int32_t before, after, has_ends, n_chunks, n_tiles, n_spans;
  int32_t span_heads;            /* whose angles a warp sums */
  float eps;
  int64_t L, n_rows;
  kr_view x, log_decay, dt, trap, Bmat, Cmat, B_bias, C_bias, angles, Dvec, z, mimo_x, mimo_z, mimo_o, norm_weight;
  kr_view initial_angles, initial_states, initial_B, initial_x, cu_seqlens;
  kr_view out, final_angles, final_states, final_B, final_x;
  void *q, *k, *rows_x, *y;      /* (B,H,n_rows,row_N or row_P) */
  float *weight, *decay;         /* (B,H,n_rows): of keys, and log of the decay */
  float *dots;                   /* (B,H,L,R,R): q_r k_s of a token */
  float *gamma;                  /* (B,H,L): lambda dt; of a direct call, less the next token's share */
  float *skips;                  /* (B,H,L), of a direct call: D of each token */
  unsigned char *packets;        /* (B,H,chunks), of a walked call (mamba3_walk_params.h): instead of angles */
  int32_t packet_bytes, is_walked;
  uint32_t *angles_within;       /* (B,H,L,M): of a token, since its span or its sequence began */
  uint32_t *angles_before;       /* (B,H,n_spans,M): of a span's last token, then of the token before the span */
  int32_t *seq_idx;              /* (n_rows), of a pack */
} kr_mamba3_params;

typedef struct kr_mamba3_bwd_params {
  kr_mamba3_params f;
  kr_view dout, dfinal_angles, dfinal_states, dfinal_B, dfinal_x;
  kr_view dx, dlog_decay, ddt, dtrap, dB, dC, dB_bias, dC_bias, dangles, dDvec, dz;
  kr_view dmimo_x, dmimo_z, dmimo_o, dnorm_weight, dinitial_angles, dinitial_states, dinitial_B, dinitial_x;
  void *dq, *dk, *rows_dx;  /* float32 as f.q, f.k: what angles change is a sum of theirs over tokens, which largely
                               cancels; as f.rows_x; f.y: dy */
  float *dweight, *ddecay;  /* as f.weight */
  float *products;          /* (B,H,L,R,R): dy_r x_s of a token */
  float *psi;               /* (B,H,L,M): a token's share of the gradient of angles; dangles, if heads share them */
  float *later;             /* (B,H,n_spans,M): sums of psi over a span, then over those behind it */
  float *slopes;            /* (B,H,L): of a token's angles about dt */
  float *crossing;          /* (B,H,n_bounds,M), or absent: the sum of psi from a bound on, if the SSD met no NaN or
                               infinity, else infinity. Bound i is before block (i + 1) << bound_shift */
  const void *S, *M_states; /* tiles of 64 channels: states before the SSD's chunks, gradients of those behind them */
  const int32_t *spoilt;    /* (B,H): heads with NaN or infinity */
  int32_t n_bounds, bound_shift, has_warpgroup_tiles;
  float *biases;            /* (B n_tiles,H,2,R,N): dC_bias, dB_bias of a tile */
  float *factors;           /* (n_factors,H,n_parts): of a chunk dmimo_z, dmimo_o, dmimo_x, dnorm_weight, dD */
  int32_t n_factors, n_parts; /* n_factors: chunks of the batch, and sequences, for initial_x */
  int32_t shares_angles, needs_y; /* needs_y: a gate, norm or sum over ranks; else dy is dout */
} kr_mamba3_bwd_params;

#endif
