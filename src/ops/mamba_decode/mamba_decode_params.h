/* mamba_decode_params.h: parameters of the kernels of mamba_decode and mamba3_decode; host and device share the
 * structs. */
#ifndef KR_MAMBA_DECODE_PARAMS_H
#define KR_MAMBA_DECODE_PARAMS_H

#include <stdint.h>

/* A weight of all layers, contiguous along the inputs; strides of data in bytes, of scales in elements. With scales,
 * data are 8-bit. */
typedef struct kr_decode_matrix {
  const unsigned char *data;
  int64_t layer, row;
  const uint16_t *scales; /* NULL: 16-bit data */
  int64_t scales_layer, scales_row;
} kr_decode_matrix;
typedef struct kr_decode_halves {
  const uint16_t *data; /* NULL: absent */
  int64_t layer, row;
} kr_decode_halves;
typedef struct kr_decode_floats {
  const float *data;
  int64_t layer, row;
} kr_decode_floats;
typedef struct kr_decode_state {
  void *data;
  int64_t layer, slot, channel, last; /* last: taps, or states */
  int32_t is_float, reserved;
} kr_decode_state;

/* Of layers: kr_decode_params.kind. */
enum { KR_DECODE_MAMBA, KR_DECODE_MAMBA2, KR_DECODE_MAMBA3 };

typedef struct kr_decode_params {
  kr_decode_matrix in_proj, x_proj, dt_proj, out_proj;
  kr_decode_halves norm, conv, conv_bias, gate_norm;
  kr_decode_floats dt_bias, A, D;
  kr_decode_state conv_state, ssm_state;
  const uint16_t *x;
  float *out;
  const int32_t *slots;
  float eps;
  int32_t n_layers, n_slots, width, inner, N, W, R, H, n_columns, kind;
  int32_t head_width; /* channels per head; Mamba: 1 */
} kr_decode_params;

#endif
