/* row_lanes.h: what device code is told that norms a row of a product's left factor while it reads it, and lets a step
 * of a convolution follow; host and device read the same structs. */
#ifndef KR_ROW_LANES_H
#define KR_ROW_LANES_H

#include <stdint.h>

typedef struct kr_normed {
  const void *other, *weight; /* what is added (or NULL), or the gate; the norm's weight, of the factor's 16 bits */
  void *sum;                  /* gets what is normed, or NULL */
  int64_t other_row, sum_row;
  float eps, inverse_K;
  int32_t other_is_float, sum_is_float; /* float32 instead of the factor's type */
} kr_normed;

/* Of norm_gemm: a convolution's step of four taps on columns of the result; state NULL: there is none. */
typedef struct kr_conv_step {
  float *state;             /* (n_states, channels, 3) without gaps but between states */
  const void *weight, *bias, *slots; /* of the factors' type; bias and slots may be NULL */
  void *out;
  int64_t state_row, slot_step, out_row;
  int32_t from, channels, n_states, out_is_float;
} kr_conv_step;

#endif
