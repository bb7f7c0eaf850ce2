/* row_lanes.h: kernel parameters for normalising a row of a product's left operand as it is loaded, and for a fused
 * convolution step; the same structs for host and device. */
#ifndef KR_ROW_LANES_H
#define KR_ROW_LANES_H

#include <stdint.h>

typedef struct kr_normed {
  const void *other, *weight; /* the addend (or NULL), or the gate; the norm's weight, of the operand's 16-bit type */
  void *sum;                  /* receives the norm's input, or NULL */
  int64_t other_row, sum_row;
  float eps, inverse_K;
  int32_t other_is_float, sum_is_float; /* float32 instead of the operand's type */
} kr_normed;

/* For norm_gemm: a convolution step of four taps on columns of the result; state NULL: none. */
typedef struct kr_conv_step {
  float *state;             /* (n_states, channels, 3), contiguous per state */
  const void *weight, *bias, *slots; /* of the operands' type; bias and slots may be NULL */
  void *out;
  int64_t state_row, slot_step, out_row;
  int32_t from, channels, n_states, out_is_float;
} kr_conv_step;

#endif
