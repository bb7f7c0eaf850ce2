/* conv3d_params.h: kernel parameters of the causal convolution; the same structs for host and device. */
#ifndef KR_CONV3D_PARAMS_H
#define KR_CONV3D_PARAMS_H

#include <stdint.h>

#include "rows.h"

/* A tensor (time, height, width, channels); strides in elements. */
typedef struct kr_conv3d_map {
  void *data; /* NULL: absent */
  int64_t t, h, w, c;
  int32_t dtype, packs; /* packs: 16-byte accesses along the channels are aligned */
} kr_conv3d_map;

/* The convolution as a product: rows are output positions, terms are taps times input channels, columns are output
 * channels. */
typedef struct kr_conv3d_params {
  kr_conv3d_map x, states, residual, out, final_states;
  struct {
    void *data;
    int64_t k, tap, c; /* strides */
    int32_t dtype, packs; /* packs: a column's terms are adjacent, in aligned 16 bytes */
  } weight;
  struct {
    void *data;
    int64_t k;
    int32_t dtype, reserved;
  } bias;
  int32_t T, H, W, OT, OH, OW, C, K, TAPS, KH, KW, ST, SH, SW, PH, PW;
  int32_t front, past;               /* frames in front of x, and of the state */
  int32_t M, n_terms, n_m, n_n;      /* positions, terms; tiles */
  int32_t n_h, n_w, lines, columns;  /* hopper: tiles down and across; their size in positions */
  kr_divisor by_area, by_OW, by_C, by_KW, by_window, by_n;   /* output positions of a frame; taps of a frame; n_n */
  kr_divisor by_W, by_packs;                                 /* of the kept frames */
  kr_divisor by_across, by_frame, by_columns;                /* hopper: n_w, n_h; positions of a tile's line */
} kr_conv3d_params;

enum { KR_CONV3D_BASE_THREADS = 256, KR_CONV3D_KEEP_THREADS = 256 };

/* Tiles of 128 positions by BN channels, a warp for 64 x 64 of it; a stage is 64 bytes of terms. */
enum { KR_CONV3D_AMPERE_BM = 128, KR_CONV3D_AMPERE_BYTES = 64, KR_CONV3D_AMPERE_STAGES = 4 };
#define KR_CONV3D_AMPERE_SHARED(BN) \
  ((uint32_t)(KR_CONV3D_AMPERE_STAGES * (KR_CONV3D_AMPERE_BM + (BN)) * KR_CONV3D_AMPERE_BYTES))

/* A driver's tensor map. */
typedef struct __attribute__((aligned(64))) kr_conv3d_tensor {
  uint64_t words[16];
} kr_conv3d_tensor;

typedef struct kr_conv3d_hopper_params {
  kr_conv3d_tensor x, states, weight, out;
  kr_conv3d_params params;
} kr_conv3d_hopper_params;

/* Tiles of 128 BLOCKS positions by BN channels; a stage is 64 channels of a tap. */
enum { KR_CONV3D_HOPPER_THREADS = 384, KR_CONV3D_HOPPER_SLACK = 1024 + 2048 + 256 };
#define KR_CONV3D_HOPPER_STAGES(BLOCKS, BN) ((BLOCKS) * 128 + (BN) > 256 ? 3 : 5)
#define KR_CONV3D_HOPPER_SHARED(BLOCKS, BN)                                                         \
  (KR_CONV3D_HOPPER_STAGES(BLOCKS, BN) * ((BLOCKS) * 128 + (BN)) * 128 + (BLOCKS) * 128 * (BN) * 2 + \
   KR_CONV3D_HOPPER_SLACK)

#endif
