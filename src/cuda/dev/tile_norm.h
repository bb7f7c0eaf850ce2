/* tile_norm.h: instance norms after products of tile64.cuh (dense_block/tile_norm.cu), for host and device. A
 * product stores for each of its tiles 3 C numbers: count, mean and squared deviations of C channels. */
#ifndef KR_TILE_NORM_H
#define KR_TILE_NORM_H

#include <stdint.h>

enum { KR_TILE_MOMENTS_CHANNELS = 8, KR_TILE_MOMENTS_THREADS = 512, KR_TILE_NORM_THREADS = 128 };

/* Pending instance norm and PReLU of a map, applied when it is read: per item and channel, (n_items, C), slope (C). */
typedef struct kr_tile_affine {
  const float *scale, *shift, *slope; /* scale NULL: none */
} kr_tile_affine;

/* kr_tile_moments, tiles of a map -> scale and shift. Grid: x C / KR_TILE_MOMENTS_CHANNELS, y items. */
typedef struct kr_tile_moments_params {
  const float *partial;       /* (n_items, n_tiles, 3, C) */
  const float *weight, *bias; /* (C), or NULL: weight_one, bias_one */
  float weight_one, bias_one, eps;
  float *scale, *shift;
  int32_t n_tiles, C;
} kr_tile_moments_params;

/* kr_tile_norm, in place: x + beta x, or a norm with its PReLU. A thread has four numbers of n. */
typedef struct kr_tile_norm_params {
  float *x;
  const float *beta;
  kr_tile_affine affine;
  int64_t n, per_item;
  int32_t C;
} kr_tile_norm_params;

#endif
