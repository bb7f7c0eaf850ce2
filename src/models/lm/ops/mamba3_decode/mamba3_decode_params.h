/* mamba3_decode_params.h: parameters of the kernels of Mamba-3's layers in one launch; host and device share the
 * struct. */
#ifndef KR_MAMBA3_DECODE_PARAMS_H
#define KR_MAMBA3_DECODE_PARAMS_H

#include "../../../../ops/mamba_decode/mamba_decode_stream.h"

typedef struct kr_stream3_params {
  kr_stream_params s;                       /* first */
  kr_decode_floats BC_norm, B_bias, C_bias; /* rows: of a head */
  kr_decode_state angles, keys, values;     /* of the last token, float32; values: channel by channel */
  int32_t M;
  uint32_t flags;
  float A_floor, inverse_N;
} kr_stream3_params;

#endif
