/* primeknet_weights.h: every tensor of the state_dict: KR_PK_<SCOPE>_KEYS(X) is X(field, key, shape...) of each.
 * '@' in a key is ".conv" for causal models and nothing otherwise (in freq_stage of a model that streams: nothing).
 * Letters: C channels, F bins, H hidden, E inner, R dt rank, N states, W taps; n: what the scope says. A model that
 * streams has running_mean and running_var (C) beside weight and bias of each norm with a PReLU. */
#ifndef KR_PRIMEKNET_WEIGHTS_H
#define KR_PRIMEKNET_WEIGHTS_H

/* dense_encoder. */
#define KR_PK_ENCODER_KEYS(X) \
  X(lift_w, "dense_conv_1.0.weight", C, 2, 1, 1) \
  X(lift_b, "dense_conv_1.0.bias", C) \
  X(lift_norm_w, "dense_conv_1.1.weight", C) \
  X(lift_norm_b, "dense_conv_1.1.bias", C) \
  X(lift_slope, "dense_conv_1.2.weight", C) \
  X(down_w, "dense_conv_2.0.weight", C, C, 1, 3) \
  X(down_b, "dense_conv_2.0.bias", C) \
  X(down_norm_w, "dense_conv_2.1.weight", C) \
  X(down_norm_b, "dense_conv_2.1.bias", C) \
  X(down_slope, "dense_conv_2.2.weight", C)

/* {dense_encoder,mask_decoder,phase_decoder}.dense_block.dense_block.{i}.; n is (i + 1) C */
#define KR_PK_DENSE_KEYS(X) \
  X(taps, "0@.weight", n, 1, 3, 3) \
  X(taps_b, "0@.bias", n) \
  X(w, "1.weight", C, n, 1, 1) \
  X(b, "1.bias", C) \
  X(norm_w, "2.weight", C) \
  X(norm_b, "2.bias", C) \
  X(slope, "3.weight", C)

/* sequence_block.{b}. */
#define KR_PK_BLOCK_KEYS(X) \
  X(beta_t, "beta_t", 1, C, 1) \
  X(beta_f, "beta_f", 1, C, 1)

/* sequence_block.{b}.{time,freq}_stage.{k}.0.; n is 1 along time, 3 along frequency */
#define KR_PK_ATTENTION_KEYS(X) \
  X(beta, "beta", 1, C, 1) \
  X(norm_w, "norm.weight", C) \
  X(norm_b, "norm.bias", C) \
  X(gate_w, "gate.0.weight", 2 * C, C, 1) \
  X(gate_b, "gate.0.bias", 2 * C) \
  X(taps, "gate.1@.weight", 2 * C, 1, n) \
  X(taps_b, "gate.1@.bias", 2 * C) \
  X(attn_w, "channel_attn.1.weight", C, C, 1) \
  X(attn_b, "channel_attn.1.bias", C) \
  X(out_w, "pwconv.weight", C, C, 1) \
  X(out_b, "pwconv.bias", C)

/* sequence_block.{b}.time_stage.{k}.0. of a model that streams; n is 11 */
#define KR_PK_MOVING_KEYS(X) \
  X(taps, "channel_attn.0.conv.weight", C, 1, n)

/* sequence_block.{b}.time_stage.{k}.1. and freq_stage.{k}.1.; n is H, in the latter C for each kernel */
#define KR_PK_WRAP_KEYS(X) \
  X(beta, "beta", 1, C, 1) \
  X(norm_w, "norm.weight", C) \
  X(norm_b, "norm.bias", C) \
  X(in_w, "proj_conv1.weight", n, C, 1) \
  X(in_b, "proj_conv1.bias", n) \
  X(out_w, "proj_conv2.weight", C, n, 1) \
  X(out_b, "proj_conv2.bias", C)

/* sequence_block.{b}.time_stage.{k}.1.mamba. */
#define KR_PK_MAMBA_KEYS(X) \
  X(A_log, "A_log", E, N) \
  X(D, "D", E) \
  X(in_w, "in_proj.weight", 2 * E, H) \
  X(conv_w, "conv1d.weight", E, 1, W) \
  X(conv_b, "conv1d.bias", E) \
  X(x_w, "x_proj.weight", R + 2 * N, E) \
  X(dt_w, "dt_proj.weight", E, R) \
  X(dt_b, "dt_proj.bias", E) \
  X(out_w, "out_proj.weight", H, E)

/* sequence_block.{b}.time_stage.{k}.1.{gru,lstm}.; # is the layer; n is 3 or 4 */
#define KR_PK_RECURRENT_KEYS(X) \
  X(ih_w, "weight_ih_l#", n * H, H) \
  X(hh_w, "weight_hh_l#", n * H, H) \
  X(ih_b, "bias_ih_l#", n * H) \
  X(hh_b, "bias_hh_l#", n * H)

/* sequence_block.{b}.freq_stage.{k}.1.; # is the kernel, and n */
#define KR_PK_PRIME_KEYS(X) \
  X(attn_taps, "attn_#.0@.weight", C, 1, n) \
  X(attn_taps_b, "attn_#.0@.bias", C) \
  X(attn_w, "attn_#.1.weight", C, C, 1) \
  X(attn_b, "attn_#.1.bias", C) \
  X(conv_taps, "conv_#@.weight", C, 1, n) \
  X(conv_taps_b, "conv_#@.bias", C)

/* mask_decoder. */
#define KR_PK_MASK_KEYS(X) \
  X(up_w, "mask_conv.0.weight", C, C, 1, 3) \
  X(up_b, "mask_conv.0.bias", C) \
  X(merge_w, "mask_conv.1.weight", 1, C, 1, 1) \
  X(merge_b, "mask_conv.1.bias", 1) \
  X(norm_w, "mask_conv.2.weight", 1) \
  X(norm_b, "mask_conv.2.bias", 1) \
  X(slope, "mask_conv.3.weight", 1) \
  X(last_w, "mask_conv.4.weight", 1, 1, 1, 1) \
  X(last_b, "mask_conv.4.bias", 1) \
  X(sigmoid_slope, "lsigmoid.slope", F, 1)

/* phase_decoder. */
#define KR_PK_PHASE_KEYS(X) \
  X(up_w, "phase_conv.0.weight", C, C, 1, 3) \
  X(up_b, "phase_conv.0.bias", C) \
  X(norm_w, "phase_conv.1.weight", C) \
  X(norm_b, "phase_conv.1.bias", C) \
  X(slope, "phase_conv.2.weight", C) \
  X(real_w, "phase_conv_r.weight", 1, C, 1, 1) \
  X(real_b, "phase_conv_r.bias", 1) \
  X(imag_w, "phase_conv_i.weight", 1, C, 1, 1) \
  X(imag_b, "phase_conv_i.bias", 1)

#endif
