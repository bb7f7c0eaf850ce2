/* mamba_decode_stream.h: parameters of the Hopper kernels of mamba_decode and mamba3_decode; host and device share the
 * structs. */
#ifndef KR_MAMBA_DECODE_STREAM_H
#define KR_MAMBA_DECODE_STREAM_H

#include "mamba_decode_params.h"

enum {
  KR_STREAM_WIDTH = 2560,                     /* of the model: 2.8b's and 2.7b's; the inner one is twice that */
  KR_STREAM_WORKERS = 256,                    /* more would have too few registers for what lives through a layer */
  KR_STREAM_THREADS = KR_STREAM_WORKERS + 32, /* the last warp copies weights */
  KR_STREAM_MOST_STAGES = 24,
  KR_STREAM_IN_ROWS = 4, /* of in_proj in a stage; of x_proj and out_proj */
  KR_STREAM_OUT_ROWS = 2,
  KR_STREAM_IN_ROWS_Q8 = 2 * KR_STREAM_IN_ROWS, /* as many bytes, and scales behind them */
  KR_STREAM_OUT_ROWS_Q8 = 2 * KR_STREAM_OUT_ROWS,
  KR_STREAM_SCALES_AT = KR_STREAM_IN_ROWS_Q8 * KR_STREAM_WIDTH,
  KR_STREAM_UNDER_WAY = 49152,  /* most bytes of weights a block has on their way, in whole stages: with
                                 * one stage of 20 KB or three, 2.8b's step takes 1.75 and 1.46 ms, not 1.38 */
  KR_STREAM_MOST_CHANNELS = 48, /* of a block */
  KR_STREAM_STREAM_PAIRS = 3,   /* most pairs of words a thread gathers */
  KR_STREAM_U_PAIRS = 4,
  KR_STREAM_Y_PAIRS = 6,      /* Mamba-2's y; others': as u */
  KR_STREAM_COLUMN_PAIRS = 1, /* Mamba-3's columns */
  KR_STREAM_HEADS = 2,        /* most heads of a block's channels, Mamba-3 */
  KR_STREAM_MOST_N = 128      /* states of a channel of a head */
};

/* What a head of Mamba-3 advances its states by and reads them with; zeros from N on. */
typedef struct kr_stream_head {
  float last[KR_STREAM_MOST_N], key[KR_STREAM_MOST_N], query[KR_STREAM_MOST_N]; /* last, key: with beta, gamma */
  float alpha[4];                                                               /* the first one */
} kr_stream_head;

/* Where in a block's shared memory things lie, in bytes; the ring is at 0. */
typedef struct kr_stream_places {
  int32_t inputs;       /* of the product: floats; u and Mamba's y as 16-bit elements */
  int32_t bytes, steps; /* the same beside weights of 8 bits (mamba_decode_products.cuh) */
  int32_t dt_rows;      /* dt_proj's rows of a layer, Mamba only */
  int32_t sums, z_sums, column_sums,
      out_sums;                           /* floats [row][quarter of K]; Mamba's x_proj: [2][row of a stage][warp] */
  int32_t columns, squares, gate_squares; /* squares: a sum a warp */
  int32_t residual;                       /* the block's part of the stream of layers */
  int32_t x, y;                           /* of the block's channels: u, the scan's output */
  int32_t full, empty, dt_full;           /* barriers of stages; of dt_rows */
  int32_t heads;                          /* kr_stream_head */
  int32_t end;
} kr_stream_places;

/* A block's share of rows: `least`, the first `more` blocks one more. */
typedef struct kr_stream_share {
  int32_t least, more;
} kr_stream_share;

typedef struct kr_stream_params {
  kr_decode_params p;
  kr_stream_share channels, columns, width;
  /* What blocks send each other: words of 8 bytes with a tag. */
  uint64_t *stream_words, *u_words, *y_words, *column_words;
  int32_t stream_pairs, channel_pairs; /* pairs of words a block sends; 2^16 over that, rounded up */
  int32_t over_stream_pairs, over_channel_pairs;
  int32_t column_pairs, over_column_pairs; /* Mamba-3 */
  uint32_t over_head_width;      /* 2^32 over a head's channels, rounded up: no division */
  int32_t stage_bytes, n_stages; /* the ring */
  int32_t window;                /* stages under way at most */
  kr_stream_places at;
} kr_stream_params;

#endif
