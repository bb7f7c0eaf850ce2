/* expert_tiles_params.h: kernel parameters of expert_tiles.cu, the same structs for host and device. */
#ifndef KR_EXPERT_TILES_PARAMS_H
#define KR_EXPERT_TILES_PARAMS_H

#include "lm_op_args.h"

enum {
  KR_EXPERT_TILE_ROWS = 64,     /* pairs of a tile: a row and one of its choices */
  KR_EXPERT_TILE_COLUMNS = 128, /* rows of an expert's matrix; gated: half of them of each matrix */
  KR_EXPERT_TILE_THREADS = 128,
  KR_EXPERT_TILE_STAGES = 3,
  KR_EXPERT_STAGE_BYTES = (KR_EXPERT_TILE_ROWS + KR_EXPERT_TILE_COLUMNS) * 128, /* 64 of K */
  KR_EXPERT_SORT_THREADS = 1024,
  KR_EXPERT_SORT_MOST = 1023, /* experts */
  KR_EXPERT_SUM_THREADS = 128,
  KR_EXPERT_SUM_EACH = 4 /* outputs of a thread */
};

/* Pairs [first, first + n) of the sorted ones, all of one expert; E: of none, whose results are 0. */
typedef struct kr_expert_tile {
  int32_t expert, first, n;
} kr_expert_tile;

typedef struct kr_expert_tiles_params {
  kr_expert_gemm_args a;
  int32_t *pairs;        /* (T J): t J + j, by expert */
  int32_t *n_tiles;      /* 1 */
  kr_expert_tile *tiles; /* n_tiles */
  float *y;              /* (T J, N), where they are summed afterwards; else NULL */
  uint32_t across;       /* tiles across N */
} kr_expert_tiles_params;

#endif
