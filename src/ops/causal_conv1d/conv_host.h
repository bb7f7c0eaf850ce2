/* conv_host.h: the arguments common to the forward and backward convolution, as the kernels read them. */
#ifndef KR_CONV_HOST_H
#define KR_CONV_HOST_H

#include "conv_params.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

/* Whether the tensor is channels-last with aligned groups of four channels. */
static inline int kr_conv_quads(const kr_rows *v) {
  const uintptr_t bytes = v->dtype == KRAIT_F32 ? 16 : 8;
  return v->row == 1 && v->b % 4 == 0 && v->t % 4 == 0 && (uintptr_t)v->data % bytes == 0;
}

/* Bytes per step. */
static inline int64_t kr_conv_step(const kr_rows *v) { return v->t * (int64_t)krait_dtype_bytes(v->dtype); }

#define KR_CONV_PARAMS(a, reverse)                                                                                 \
  (kr_conv_params) {                                                                                               \
    .B = (a)->B, .D = (a)->D, .L = (a)->L, .W = (a)->W, .silu = (a)->activation == KRAIT_ACT_SILU,               \
    .x = kr_rows_of(&(a)->x, reverse, (a)->L), .initial = kr_rows_of(&(a)->initial_states, 0, 0),                \
    .weight = (a)->weight.data, .weight_d = (a)->weight.stride[0], .weight_w = (a)->weight.stride[1],            \
    .weight_dtype = (a)->weight.dtype,                                                                           \
    .taps_packed = (a)->W == 4 && (a)->weight.dtype == KRAIT_F32 && (a)->weight.stride[1] == 1 &&                \
                   (a)->weight.stride[0] == 4 && (uintptr_t)(a)->weight.data % 16 == 0,                          \
    .bias = (a)->bias.data, .bias_d = (a)->bias.stride[0], .bias_dtype = (a)->bias.dtype,                        \
    .seq_idx = !(a)->seq_idx.data                                                                                \
                   ? NULL                                                                                        \
                   : (const int32_t *)(a)->seq_idx.data + (reverse ? ((a)->L - 1) * (a)->seq_idx.stride[1] : 0), \
    .seq_b = (a)->seq_idx.stride[0], .seq_t = reverse ? -(a)->seq_idx.stride[1] : (a)->seq_idx.stride[1]         \
  }

#endif
