/* cross_entropy_params.h: kernel parameters of cross_entropy.cu, the same struct for host and device. */
#ifndef KR_CROSS_ENTROPY_PARAMS_H
#define KR_CROSS_ENTROPY_PARAMS_H

#include "lm_op_args.h"

enum { KR_LOSS_ROW_THREADS = 256 };

typedef struct kr_cross_entropy_params {
  kr_view logits, labels, losses, lse; /* losses: read as their gradient by the gradient's kernel */
  kr_view top, log_sum, dlse, dlogits;
  int64_t V;
  float smoothing, scale;
  int32_t packs, reserved; /* rows are contiguous, and those of dlogits aligned as those of logits */
} kr_cross_entropy_params;

#endif
