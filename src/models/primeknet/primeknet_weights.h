/* primeknet_weights.h: every tensor of the state_dict: KR_PK_<SCOPE>_KEYS(X, XB, XN) is X(field, key, shape...) of each
 * single tensor, XB(field, key, shape...) of key.weight and key.bias, whose size is the first of the shape, and
 * XN(field, key, slope, channels) of a norm, key.weight and key.bias, with its PReLU, slope.weight. '@' in a key is
 * ".conv" for causal models and nothing otherwise (in freq_stage of a model that streams: nothing). Letters: C
 * channels, F bins, H hidden, E inner, R dt rank, N states, W taps; n: as the scope says. A streaming model also has
 * running_mean and running_var (C) for each XN. */
#ifndef KR_PRIMEKNET_WEIGHTS_H
#define KR_PRIMEKNET_WEIGHTS_H

/* Taps of a convolution along frequency with this stride: neighbours share a bin. */
#define KR_PK_TAPS(stride) ((stride) > 1 ? (stride) + 1 : 1)

/* dense_encoder. */
#define KR_PK_ENCODER_KEYS(X, XB, XN) \
  XB(lift, "dense_conv_1.0", C, 2, 1, KR_PK_TAPS(c->stride)) \
  XN(lift_norm, "dense_conv_1.1", "dense_conv_1.2", C) \
  XB(down, "dense_conv_2.0", C, C, 1, KR_PK_TAPS(c->down)) \
  XN(down_norm, "dense_conv_2.1", "dense_conv_2.2", C)

/* {dense_encoder,mask_decoder,phase_decoder}.dense_block.dense_block.{i}.; n is (i + 1) C */
#define KR_PK_DENSE_KEYS(X, XB, XN) \
  XB(taps, "0@", n, 1, 3, 3) \
  XB(mix, "1", C, n, 1, 1) \
  XN(norm, "2", "3", C)

/* sequence_block.{b}. */
#define KR_PK_BLOCK_KEYS(X, XB, XN) \
  X(beta_t, "beta_t", 1, C, 1) \
  X(beta_f, "beta_f", 1, C, 1)

/* sequence_block.{b}. with position_bias; n is the number of positions */
#define KR_PK_POSITION_KEYS(X, XB, XN) \
  X(bias, "position_bias", n, C)

/* sequence_block.{b}.{time,freq}_stage.{k}.0.; n is 1 along time, 3 along frequency */
#define KR_PK_ATTENTION_KEYS(X, XB, XN) \
  X(beta, "beta", 1, C, 1) \
  XB(norm, "norm", C) \
  XB(gate, "gate.0", 2 * C, C, 1) \
  XB(taps, "gate.1@", 2 * C, 1, n) \
  XB(attn, "channel_attn.1", C, C, 1) \
  XB(out, "pwconv", C, C, 1)

/* sequence_block.{b}.time_stage.{k}.0. of a model that streams; n is 11 */
#define KR_PK_MOVING_KEYS(X, XB, XN) \
  X(taps, "channel_attn.0.conv.weight", C, 1, n)

/* sequence_block.{b}.time_stage.{k}.1. and freq_stage.{k}.1.; n is H, in the latter C for each kernel */
#define KR_PK_WRAP_KEYS(X, XB, XN) \
  X(beta, "beta", 1, C, 1) \
  XB(norm, "norm", C) \
  XB(in, "proj_conv1", n, C, 1) \
  XB(out, "proj_conv2", C, n, 1)

/* sequence_block.{b}.time_stage.{k}.1.mamba. */
#define KR_PK_MAMBA_KEYS(X, XB, XN) \
  X(A_log, "A_log", E, N) \
  X(D, "D", E) \
  X(in_w, "in_proj.weight", 2 * E, H) \
  XB(conv, "conv1d", E, 1, W) \
  X(x_w, "x_proj.weight", R + 2 * N, E) \
  XB(dt, "dt_proj", E, R) \
  X(out_w, "out_proj.weight", H, E)

/* sequence_block.{b}.time_stage.{k}.1.{gru,lstm}.; # is the layer; n is 3 or 4 */
#define KR_PK_RECURRENT_KEYS(X, XB, XN) \
  X(ih_w, "weight_ih_l#", n * H, H) \
  X(hh_w, "weight_hh_l#", n * H, H) \
  X(ih_b, "bias_ih_l#", n * H) \
  X(hh_b, "bias_hh_l#", n * H)

/* sequence_block.{b}.freq_stage.{k}.1.; # is the kernel, and n */
#define KR_PK_PRIME_KEYS(X, XB, XN) \
  XB(attn_taps, "attn_#.0@", C, 1, n) \
  XB(attn, "attn_#.1", C, C, 1) \
  XB(conv_taps, "conv_#@", C, 1, n)

/* mask_decoder. */
#define KR_PK_MASK_KEYS(X, XB, XN) \
  XB(up, "mask_conv.0", C, C, 1, KR_PK_TAPS(c->up)) \
  XB(merge, "mask_conv.1", 1, C, 1, 1) \
  XN(norm, "mask_conv.2", "mask_conv.3", 1) \
  XB(last, "mask_conv.4", 1, 1, 1, 1) \
  X(sigmoid_slope, "lsigmoid.slope", F, 1)

/* phase_decoder. */
#define KR_PK_PHASE_KEYS(X, XB, XN) \
  XB(up, "phase_conv.0", C, C, 1, KR_PK_TAPS(c->up)) \
  XN(norm, "phase_conv.1", "phase_conv.2", C) \
  XB(real, "phase_conv_r", 1, C, 1, 1) \
  XB(imag, "phase_conv_i", 1, C, 1, 1)

#endif
