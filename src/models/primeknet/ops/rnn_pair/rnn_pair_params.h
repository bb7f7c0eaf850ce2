/* rnn_pair_params.h: kernel parameters of rnn_pair.cu, the same structs for host and device. */
#ifndef KR_RNN_PAIR_PARAMS_H
#define KR_RNN_PAIR_PARAMS_H

#include <stdint.h>

/* Two layers of 64 units in one launch: blocks from n_blocks on run the second. A block has two, four or eight
 * sequences, and this much shared memory for each; unless it has eight, 32 more threads exchange messages. */
enum { KR_RNN_PAIR_THREADS = 256, KR_RNN_SEQUENCE_BYTES = 9312 };
typedef struct kr_rnn_pair_layer {
  const uint16_t *in_weight, *weight; /* float16: gates by inputs, inputs contiguous */
  const float *in_bias, *bias;
  int32_t in_gate, own_gate, in_bias_gate, bias_gate; /* gate strides */
} kr_rnn_pair_layer;
typedef struct kr_rnn_pair_params {
  const float *x;
  kr_rnn_pair_layer layers[2];
  float *between, *out; /* (B,L,64): states of the first layer, of the second */
  int32_t *progress;    /* one zero per first-layer block: steps ready for the second layer */
  int64_t B, x_b, out_b;
  int32_t x_t, out_t, L, C, gates, n_blocks;
  float eps;            /* of the preceding norm; negative: no norm */
} kr_rnn_pair_params;

#endif
