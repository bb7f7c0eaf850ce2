/* spectra_params.h: kernel parameters of spectra.cu, the same structs for host and device. */
#ifndef KR_SPECTRA_PARAMS_H
#define KR_SPECTRA_PARAMS_H

#include "op_args.h"
#include "rows.h"

enum {
  KR_POLAR_THREADS = 256,
  KR_LOSS_THREADS = 256,
  KR_LOSS_PARTS = 512,
  KR_SPECTRAL_THREADS = 1024,
  KR_TRANSFORM_TILE = 32, KR_TRANSFORM_DEPTH = 16, KR_TRANSFORM_THREADS = 256, /* 2 x 2 sums per thread */
};

/* Both directions and their gradients over (I,J,K): inputs a, b (and gradients da, db), outputs c, d. */
typedef struct kr_polar_params {
  kr_view a, b, da, db, c, d;
  kr_divisor K, J;
  uint32_t n;
  float eps, power, re_add, im_add;
} kr_polar_params;

typedef struct kr_loss_params {
  kr_view x, y, out, dout, dx, dy;
  double *partial;  /* (n_parts) */
  kr_divisor N, K, J;
  uint32_t n, n_parts;
  int32_t angle;
  float scale;
} kr_loss_params;

#endif
