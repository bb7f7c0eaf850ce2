/* op_args.h: the args of operators as the library has them, the same for C and device code: sizes and views, which
 * runtime/public_op.c makes of a caller's tensors (krait/ops.h says what each is). At the end the operators that only
 * this library calls: parts of blocks as one call each. Equations: docs/OPS.md. */
#ifndef KR_OP_ARGS_H
#define KR_OP_ARGS_H

#include <krait/ops.h>

#include "view_struct.h"

/* The head of every args struct: as krait_call. */
typedef struct kr_call {
  uint32_t size;  /* sizeof the whole args struct */
  uint32_t flags; /* the op's own flags, 0 for none */
  void *stream;   /* CUstream for CUDA contexts, else NULL */
  void *scratch;  /* aligned to 64 bytes, 256 on a device; holds nothing between calls */
  uint64_t scratch_bytes;
} kr_call;

typedef struct kr_causal_conv1d_args {
  kr_call call;
  int64_t B, D, L, W;
  int32_t activation;
  int32_t reserved;
  kr_view x;
  kr_view weight;
  kr_view bias;
  kr_view seq_idx;
  kr_view initial_states;
  kr_view out;
  kr_view final_states;
} kr_causal_conv1d_args;

typedef struct kr_causal_conv1d_bwd_args {
  kr_call call;
  int64_t B, D, L, W;
  int32_t activation;
  int32_t reserved;
  kr_view x, weight, bias, seq_idx, initial_states;
  kr_view dout;
  kr_view dfinal_states;
  kr_view dx;
  kr_view dweight;
  kr_view dbias;
  kr_view dinitial_states;
} kr_causal_conv1d_bwd_args;

typedef struct kr_causal_conv1d_update_args {
  kr_call call;
  int64_t B, D, L, W, S;
  int64_t n_states;
  int32_t activation;
  int32_t reserved;
  kr_view x;
  kr_view conv_state;
  kr_view weight, bias;
  kr_view cache_seqlens;
  kr_view conv_state_indices;
  kr_view out;
} kr_causal_conv1d_update_args;

typedef struct kr_causal_conv1d_varlen_states_args {
  kr_call call;
  int64_t S, D, total, state_len;
  kr_view x;
  kr_view cu_seqlens;
  kr_view states;
} kr_causal_conv1d_varlen_states_args;

typedef struct kr_selective_scan_args {
  kr_call call;
  int64_t B, D, L, N, G, S;
  kr_view u;
  kr_view delta;
  kr_view A;
  kr_view Bmat;
  kr_view Cmat;
  kr_view Dvec;
  kr_view z;
  kr_view delta_bias;
  kr_view initial_state;
  kr_view seq_idx;
  kr_view cu_seqlens;
  kr_view A_reverse;
  kr_view out;
  kr_view last_state;
  kr_view states;
  int64_t n_kept;
} kr_selective_scan_args;

typedef struct kr_selective_scan_bwd_args {
  kr_call call;
  int64_t B, D, L, N, G, S;
  kr_view u, delta, A, Bmat, Cmat, Dvec, z, delta_bias, initial_state, seq_idx, cu_seqlens, A_reverse;
  kr_view dout;
  kr_view dlast_state;
  kr_view du, ddelta;
  kr_view dA;
  kr_view dB, dC;
  kr_view dDvec, dz;
  kr_view ddelta_bias;
  kr_view dinitial_state;
  kr_view dA_reverse;
  kr_view states;
  int64_t n_kept;
} kr_selective_scan_bwd_args;

typedef struct kr_mamba_inner_args {
  kr_call call;
  int64_t B, D, L, N, W, R, M;
  float eps;
  int32_t reserved;
  kr_view xz;
  kr_view conv_weight;
  kr_view conv_bias;
  kr_view x_proj_weight;
  kr_view dt_proj_weight;
  kr_view out_proj_weight;
  kr_view out_proj_bias;
  kr_view A, A_reverse;
  kr_view Bmat, Cmat;
  kr_view Dvec, delta_bias;
  kr_view B_proj_bias, C_proj_bias;
  kr_view dt_norm_weight;
  kr_view B_norm_weight, C_norm_weight;
  kr_view out;
} kr_mamba_inner_args;

typedef struct kr_mamba_inner_bwd_args {
  kr_call call;
  int64_t B, D, L, N, W, R, M;
  float eps;
  int32_t reserved;
  kr_view xz, conv_weight, conv_bias, x_proj_weight, dt_proj_weight, out_proj_weight, out_proj_bias, A, A_reverse, Bmat,
      Cmat, Dvec, delta_bias, B_proj_bias, C_proj_bias, dt_norm_weight, B_norm_weight, C_norm_weight;
  kr_view dout;
  kr_view dxz;
  kr_view dconv_weight, dconv_bias, dx_proj_weight, ddt_proj_weight, dout_proj_weight, dout_proj_bias;
  kr_view dA, dA_reverse;
  kr_view dB, dC;
  kr_view dDvec, ddelta_bias;
  kr_view dB_proj_bias, dC_proj_bias, ddt_norm_weight, dB_norm_weight, dC_norm_weight;
} kr_mamba_inner_bwd_args;

typedef struct kr_ssd_args {
  kr_call call;
  int64_t B, L, H, P, N, G, S;
  float dt_min, dt_max;
  kr_view x;
  kr_view dt;
  kr_view A;
  kr_view Bmat, Cmat;
  kr_view Dvec;
  kr_view z;
  kr_view dt_bias;
  kr_view initial_states;
  kr_view seq_idx;
  kr_view cu_seqlens;
  kr_view A_reverse;
  kr_view log_decay;
  kr_view out;
  kr_view final_states;
  kr_view varlen_states;
} kr_ssd_args;

typedef struct kr_ssd_bwd_args {
  kr_call call;
  int64_t B, L, H, P, N, G, S;
  float dt_min, dt_max;
  kr_view x, dt, A, Bmat, Cmat, Dvec, z, dt_bias, initial_states, seq_idx, A_reverse, log_decay;
  kr_view dout;
  kr_view dfinal_states;
  kr_view dx, dz;
  kr_view ddt;
  kr_view dlog_decay;
  kr_view dA, dA_reverse;
  kr_view dB, dC;
  kr_view dDvec;
  kr_view ddt_bias;
  kr_view dinitial_states;
} kr_ssd_bwd_args;

typedef struct kr_mamba3_args {
  kr_call call;
  int64_t B, L, H, P, N, G, R, M, S, n_kept;
  float eps;
  int32_t reserved;
  kr_view x, log_decay, dt, trap, Bmat, Cmat, B_bias, C_bias, angles, Dvec, z, mimo_x, mimo_z, mimo_o, norm_weight;
  kr_view initial_angles, initial_states, initial_B, initial_x;
  kr_view cu_seqlens;
  kr_view out;
  kr_view final_angles, final_states, final_B, final_x;
  kr_view kept;
} kr_mamba3_args;

typedef struct kr_mamba3_bwd_args {
  kr_call call;
  int64_t B, L, H, P, N, G, R, M, S, n_kept;
  float eps;
  int32_t reserved;
  kr_view x, log_decay, dt, trap, Bmat, Cmat, B_bias, C_bias, angles, Dvec, z, mimo_x, mimo_z, mimo_o, norm_weight;
  kr_view initial_angles, initial_states, initial_B, initial_x;
  kr_view cu_seqlens;
  kr_view dout;
  kr_view dfinal_angles, dfinal_states, dfinal_B, dfinal_x;
  kr_view dx, dlog_decay, ddt, dtrap, dB, dC, dB_bias, dC_bias, dangles, dDvec, dz;
  kr_view dmimo_x, dmimo_z, dmimo_o, dnorm_weight;
  kr_view dinitial_angles, dinitial_states, dinitial_B, dinitial_x;
  kr_view kept;
} kr_mamba3_bwd_args;

typedef struct kr_mamba3_step_args {
  kr_call call;
  int64_t B, H, P, N, G, R, M, n_states;
  float eps;
  int32_t reserved;
  kr_view angle_state, state, B_state, x_state;
  kr_view x, log_decay, dt, trap, Bmat, Cmat, B_bias, C_bias, angles, Dvec, z, mimo_x, mimo_z, mimo_o, norm_weight;
  kr_view state_batch_indices;
  kr_view out;
} kr_mamba3_step_args;

typedef struct kr_mamba3_decay_args {
  kr_call call;
  int64_t R, H;
  float A_floor;
  int32_t reserved;
  kr_view dt_raw, A_raw; /* (R,H) */
  kr_view dt_bias;
  kr_view dt, log_decay;
} kr_mamba3_decay_args;

typedef struct kr_mamba3_decay_bwd_args {
  kr_call call;
  int64_t R, H;
  float A_floor;
  int32_t reserved;
  kr_view dt_raw, A_raw, dt_bias;
  kr_view ddt, dlog_decay;
  kr_view ddt_raw, dA_raw, ddt_bias;
} kr_mamba3_decay_bwd_args;

typedef struct kr_gated_delta_rule_args {
  kr_call call;
  int64_t B, L, H, Hk, Dk, Dv;
  float eps, beta_scale;
  kr_view q, k, v;
  kr_view a, b;
  kr_view A, dt_bias;
  kr_view key_decay;
  kr_view initial_states;
  kr_view out;
  kr_view final_states;
} kr_gated_delta_rule_args;

typedef struct kr_state_update_args {
  kr_call call;
  int64_t B, H, P, N, G, n_states;
  kr_view state;
  kr_view x, dt;
  kr_view A;
  kr_view Bmat, Cmat;
  kr_view Dvec, dt_bias;
  kr_view z;
  kr_view state_batch_indices;
  kr_view out;
} kr_state_update_args;

typedef struct kr_mamba2_inner_args {
  kr_call call;
  int64_t B, L, K, H, P, N, G, W, F, M;
  int32_t activation;
  float eps;
  float dt_min, dt_max;
  kr_view x;
  kr_view in_proj_weight;
  kr_view in_proj_bias;
  kr_view conv_weight;
  kr_view conv_bias;
  kr_view dt_bias;
  kr_view A;
  kr_view Dvec;
  kr_view norm_weight;
  kr_view out_proj_weight;
  kr_view out_proj_bias;
  kr_view initial_states;
  kr_view seq_idx;
  kr_view out;
  kr_view final_states;
  kr_view zxbcdt;
  kr_view xBC;
  kr_view y;
  kr_view gated;
} kr_mamba2_inner_args;

typedef struct kr_mamba2_inner_bwd_args {
  kr_call call;
  int64_t B, L, K, H, P, N, G, W, F, M;
  int32_t activation;
  float eps, dt_min, dt_max;
  kr_view x, in_proj_weight, in_proj_bias, conv_weight, conv_bias, dt_bias, A, Dvec, norm_weight, out_proj_weight,
      out_proj_bias, initial_states, seq_idx, zxbcdt, xBC, y, gated;
  kr_view dout;
  kr_view dfinal_states;
  kr_view dx;
  kr_view din_proj_weight, din_proj_bias, dconv_weight, dconv_bias, ddt_bias;
  kr_view dA;
  kr_view dDvec;
  kr_view dnorm_weight, dout_proj_weight, dout_proj_bias, dinitial_states;
} kr_mamba2_inner_bwd_args;

typedef struct kr_mamba3_inner_args {
  kr_call call;
  int64_t B, L, K, H, P, N, G, R, V, M, S, D, n_kept;
  float A_floor, BC_eps, eps;
  int32_t reserved;
  kr_view x, in_proj_weight, dt_bias, B_norm, C_norm, B_bias, C_bias, Dvec, mimo_x, mimo_z, mimo_o, norm_weight,
      out_proj_weight;
  kr_view initial_angles, initial_states, initial_B, initial_x;
  kr_view cu_seqlens;
  kr_view out;
  kr_view final_angles, final_states, final_B, final_x;
  kr_view columns, BC, dt, log_decay, y, kept;
} kr_mamba3_inner_args;

typedef struct kr_mamba3_inner_bwd_args {
  kr_call call;
  int64_t B, L, K, H, P, N, G, R, V, M, S, D, n_kept;
  float A_floor, BC_eps, eps;
  int32_t reserved;
  kr_view x, in_proj_weight, dt_bias, B_norm, C_norm, B_bias, C_bias, Dvec, mimo_x, mimo_z, mimo_o, norm_weight,
      out_proj_weight;
  kr_view initial_angles, initial_states, initial_B, initial_x;
  kr_view cu_seqlens;
  kr_view columns, BC, dt, log_decay, y, kept;
  kr_view dout;
  kr_view dfinal_angles, dfinal_states, dfinal_B, dfinal_x;
  kr_view dx, din_proj_weight, ddt_bias, dB_norm, dC_norm, dB_bias, dC_bias, dDvec, dmimo_x, dmimo_z, dmimo_o,
      dnorm_weight, dout_proj_weight;
  kr_view dinitial_angles, dinitial_states, dinitial_B, dinitial_x;
} kr_mamba3_inner_bwd_args;

typedef struct kr_attention_args {
  kr_call call;
  int64_t B, Lq, Lk, H, Hk, D, Dv;
  int64_t Bk, n_pages;
  int64_t max_q, max_k;
  int64_t window_left, window_right;
  float scale;
  float softcap;
  float dropout;
  int32_t reserved;
  kr_view q;
  kr_view k;
  kr_view v;
  kr_view cu_seqlens_q;
  kr_view cu_seqlens_k;
  kr_view seqused_q, seqused_k;
  kr_view leftpad_k;
  kr_view cache_batch_idx;
  kr_view block_table;
  kr_view alibi_slopes;
  kr_view sinks;
  kr_view rng;
  kr_view out;
  kr_view lse;
} kr_attention_args;

typedef struct kr_attention_bwd_args {
  kr_call call;
  int64_t B, Lq, Lk, H, Hk, D, Dv, Bk, n_pages, max_q, max_k, window_left, window_right;
  float scale, softcap, dropout;
  int32_t reserved;
  kr_view q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, alibi_slopes, sinks, rng;
  kr_view out, lse;
  kr_view dout;
  kr_view dlse;
  kr_view dq;
  kr_view dk, dv;
  kr_view dsinks;
} kr_attention_bwd_args;

typedef struct kr_rotary_args {
  kr_call call;
  int64_t B, L, H, D, R, T;
  kr_view x;
  kr_view cos, sin;
  kr_view offsets;
  kr_view cu_seqlens;
  kr_view out;
} kr_rotary_args;

typedef struct kr_attention_append_args {
  kr_call call;
  int64_t B, L, Hk, D, Dv, R, T, Bk, Lk, n_pages;
  kr_view k, v;
  kr_view cos, sin;
  kr_view cache_seqlens;
  kr_view cache_batch_idx;
  kr_view block_table;
  kr_view k_cache;
  kr_view v_cache;
  kr_view seqused;
} kr_attention_append_args;

typedef struct kr_add_norm_args {
  kr_call call;
  int64_t R, M;
  float eps;
  int32_t reserved;
  kr_view x;
  kr_view x1;
  kr_view residual;
  kr_view rowscale;
  kr_view weight, bias;
  kr_view weight1, bias1;
  kr_view out, out1;
  kr_view residual_out;
} kr_add_norm_args;

typedef struct kr_add_norm_bwd_args {
  kr_call call;
  int64_t R, M;
  float eps;
  int32_t reserved;
  kr_view v;
  kr_view rowscale, weight, weight1;
  kr_view dout, dout1, dresidual_out;
  kr_view dx, dx1, dresidual;
  kr_view dweight, dbias, dweight1, dbias1;
} kr_add_norm_bwd_args;

typedef struct kr_gated_norm_args {
  kr_call call;
  int64_t R, M, group_size;
  float eps;
  int32_t reserved;
  kr_view x;
  kr_view z;
  kr_view weight, bias;
  kr_view out;
} kr_gated_norm_args;

typedef struct kr_gated_norm_bwd_args {
  kr_call call;
  int64_t R, M, group_size;
  float eps;
  int32_t reserved;
  kr_view x, z, weight, bias;
  kr_view dout;
  kr_view dx, dz, dweight, dbias;
} kr_gated_norm_bwd_args;

typedef struct kr_gemm_args {
  kr_call call;
  int64_t M, N, K;
  int32_t activation;
  float scale;
  kr_view A;
  kr_view Bmat;
  kr_view bias;
  kr_view residual;
  kr_view out;
  int64_t P;
  kr_view B2;
  kr_view bias2;
  kr_view row_scale;
  kr_view factor;
} kr_gemm_args;

typedef struct kr_pointwise_args {
  kr_call call;
  int64_t I, J, K, N;
  int32_t activation;
  int32_t reserved;
  float x_scale, y_scale;
  kr_view x, y;
  kr_view out;
} kr_pointwise_args;

typedef struct kr_sum_rows_args {
  kr_call call;
  int64_t R, M;
  kr_view x;
  kr_view out;
} kr_sum_rows_args;

typedef struct kr_depthwise_conv_args {
  kr_call call;
  int64_t B, H, W, C;
  int64_t KH, KW;
  int64_t DH, DW;
  int64_t PH, PW;
  kr_view x;
  kr_view weight;
  kr_view bias;
  kr_view out;
} kr_depthwise_conv_args;

typedef struct kr_depthwise_conv_bwd_args {
  kr_call call;
  int64_t B, H, W, C, KH, KW, DH, DW, PH, PW;
  kr_view x, weight;
  kr_view dout;
  kr_view dx, dweight, dbias;
} kr_depthwise_conv_bwd_args;

typedef struct kr_unfold_args {
  kr_call call;
  int64_t B, H, W, C, OH, OW, K;
  int64_t KH, KW, SH, SW, PH, PW;
  kr_view x;
  kr_view out;
} kr_unfold_args;

typedef struct kr_fold_args {
  kr_call call;
  int64_t B, H, W, C, OH, OW, K;
  int64_t KH, KW, SH, SW, PH, PW;
  kr_view x;
  kr_view out;
} kr_fold_args;

typedef struct kr_conv3d_args {
  kr_call call;
  int64_t T, H, W, OT, OH, OW, C, K, TAPS;
  int64_t KT, KH, KW, ST, SH, SW, PH, PW, past;
  kr_view x;
  kr_view weight, bias;
  kr_view residual;
  kr_view initial_states;
  kr_view out;
  kr_view final_states;
} kr_conv3d_args;

typedef struct kr_group_norm_args {
  kr_call call;
  int64_t B, S, C, G;
  int32_t activation;
  float eps;
  kr_view x;
  kr_view weight, bias;
  kr_view out;
} kr_group_norm_args;

typedef struct kr_instance_norm_args {
  kr_call call;
  int64_t B, S, C;
  float eps;
  int32_t reserved;
  kr_view x;
  kr_view weight, bias;
  kr_view slope;
  kr_view out;
} kr_instance_norm_args;

typedef struct kr_instance_norm_bwd_args {
  kr_call call;
  int64_t B, S, C;
  float eps;
  int32_t reserved;
  kr_view x, weight, bias, slope;
  kr_view dout;
  kr_view dx, dweight, dbias, dslope;
} kr_instance_norm_bwd_args;

typedef struct kr_pool_args {
  kr_call call;
  int64_t B, S, C;
  kr_view x;
  kr_view out;
} kr_pool_args;

typedef struct kr_pool_bwd_args {
  kr_call call;
  int64_t B, S, C;
  kr_view x;
  kr_view dout;
  kr_view dx;
} kr_pool_bwd_args;

typedef struct kr_rnn_args {
  kr_call call;
  int64_t B, L, H;
  kr_view x;
  kr_view weight;
  kr_view bias;
  kr_view out;
  kr_view cells;
} kr_rnn_args;

typedef struct kr_rnn_bwd_args {
  kr_call call;
  int64_t B, L, H;
  kr_view x, weight, bias, out, cells;
  kr_view dout;
  kr_view dx, dweight, dbias;
} kr_rnn_bwd_args;

typedef struct kr_to_polar_args {
  kr_call call;
  int64_t I, J, K;
  float eps, power, re_add, im_add;
  kr_view re, im;
  kr_view mag, pha;
} kr_to_polar_args;

typedef struct kr_to_polar_bwd_args {
  kr_call call;
  int64_t I, J, K;
  float eps, power, re_add, im_add;
  kr_view re, im;
  kr_view dmag, dpha;
  kr_view dre, dim;
} kr_to_polar_bwd_args;

typedef struct kr_from_polar_args {
  kr_call call;
  int64_t I, J, K;
  float power;
  int32_t reserved;
  kr_view mag, pha;
  kr_view re, im;
} kr_from_polar_args;

typedef struct kr_from_polar_bwd_args {
  kr_call call;
  int64_t I, J, K;
  float power;
  int32_t reserved;
  kr_view mag, pha;
  kr_view dre, dim;
  kr_view dmag, dpha;
} kr_from_polar_bwd_args;

typedef struct kr_loss_args {
  kr_call call;
  int64_t I, J, K, N;
  float scale;
  int32_t reserved;
  kr_view x, y;
  kr_view out;
} kr_loss_args;

typedef struct kr_loss_bwd_args {
  kr_call call;
  int64_t I, J, K, N;
  float scale;
  int32_t reserved;
  kr_view x, y;
  kr_view dout;
  kr_view dx, dy;
} kr_loss_bwd_args;

typedef struct kr_transform_args {
  kr_call call;
  int64_t R, K, N;
  kr_view x;
  kr_view matrix;
  kr_view out;
} kr_transform_args;

typedef struct kr_spectral_norm_args {
  kr_call call;
  int64_t O, K;
  kr_view weight;
  kr_view u;
  kr_view out;
  kr_view u_out;
  kr_view v_out;
  kr_view sigma;
} kr_spectral_norm_args;

typedef struct kr_spectral_norm_bwd_args {
  kr_call call;
  int64_t O, K;
  kr_view out, u, v, sigma;
  kr_view dout;
  kr_view dweight;
} kr_spectral_norm_bwd_args;

typedef struct kr_gather_rows_args {
  kr_call call;
  int64_t R, M, V;
  kr_view table;
  kr_view index;
  kr_view out;
} kr_gather_rows_args;

typedef struct kr_argmax_rows_args {
  kr_call call;
  int64_t R, M;
  kr_view x;
  kr_view out;
} kr_argmax_rows_args;

typedef struct kr_gemm_q8_args {
  kr_call call;
  int64_t M, N, S;
  kr_view A;
  kr_view qweight;
  kr_view scales;
  kr_view bias;
  kr_view out;
} kr_gemm_q8_args;

typedef struct kr_gemm_q4k_args {
  kr_call call;
  int64_t M, N, S;
  kr_view A;
  kr_view qweight;
  kr_view bias;
  kr_view out;
} kr_gemm_q4k_args;

typedef struct kr_mamba_decode_args {
  kr_call call;
  int64_t B, Y, D, E, N, W, R, H, G, n_states;
  int64_t SD, SE;
  float eps;
  int32_t reserved;
  kr_view dt_proj;
  kr_view in_proj_qweight, x_proj_qweight, out_proj_qweight;
  kr_view in_proj_scales, x_proj_scales, out_proj_scales;
  kr_view x;
  kr_view norm_weight;
  kr_view in_proj;
  kr_view conv_weight;
  kr_view conv_bias;
  kr_view x_proj;
  kr_view dt_bias;
  kr_view A;
  kr_view Dvec;
  kr_view gate_norm;
  kr_view out_proj;
  kr_view conv_state;
  kr_view ssm_state;
  kr_view state_batch_indices;
  kr_view out;
} kr_mamba_decode_args;

/* ==== gated_filter, mean_product (a channel attention) ================================================
 * gated_filter: y[b,h,w,c] = bias[c] + sum over k of weight[c,k] x[b, h + k - P, w, c], zeros outside; out[.,c] =
 * y[.,c] y[.,C + c]. */
typedef struct kr_gated_filter_args {
  kr_call call;
  int64_t B, H, W, C, K, P;
  kr_view x;      /* (B,H,W,2C) float32, as all of these */
  kr_view weight; /* (2C,K) */
  kr_view bias;   /* (2C) or absent */
  kr_view out;    /* (B,H,W,C) */
} kr_gated_filter_args;

/* mean_product: out[i,j] = weight (mean over s of x[i,j,s]) + bias. */
typedef struct kr_mean_product_args {
  kr_call call;
  int64_t I, J, S, C;
  kr_view x;      /* (I,J,S,C) float32, as all of these */
  kr_view weight; /* (C,C) */
  kr_view bias;   /* (C) or absent */
  kr_view out;    /* (I,J,C) */
} kr_mean_product_args;

/* ==== projected_scan (the middle of a Mamba block) ===========================================================
 * A row of proj has r (R, the rank), B (N) and C (N); further columns are ignored. delta = softplus(dt_weight r +
 * dt_bias), h = exp(delta A) h + delta B u, out = (C h + Dvec u) z; h starts at 0. z is the gate with its activation
 * already applied. */
typedef struct kr_projected_scan_args {
  kr_call call;
  int64_t B, L, D, N, R, X;
  kr_view u;         /* (B,L,D) float32, as all of these */
  kr_view proj;      /* (B,L,X), X >= R + 2N */
  kr_view dt_weight; /* (D,R) */
  kr_view dt_bias;   /* (D) */
  kr_view A;         /* (D,N) */
  kr_view Dvec;      /* (D) */
  kr_view z;         /* (B,L,D) */
  kr_view out;       /* (B,L,D); may be u itself (same strides) */
} kr_projected_scan_args;

/* ==== rnn_pair (two layers of GRU or LSTM) ===================================================================
 * X = x, or with KR_RNN_NORM (x - mean) / sqrt(var + eps) over C; h = rnn of in_weight X + in_bias with weight and
 * bias, out = rnn of in_weight2 h + in_bias2 with weight2 and bias2 (rnn: ops.h, its flag KRAIT_RNN_LSTM and order of
 * gates). */
#define KR_RNN_TF32 2u /* rows and states may be rounded to 11 significant bits, like float16 weights */
#define KR_RNN_NORM 4u

typedef struct kr_rnn_pair_args {
  kr_call call;
  int64_t B, L, C, H;
  float eps;
  int32_t reserved;
  kr_view x;                                    /* (B,L,C) float32 */
  kr_view in_weight, in_bias;                   /* (3H or 4H, C), (3H or 4H) or absent; weights any float type */
  kr_view weight, bias;                         /* (3H or 4H, H), (3H or 4H) or absent */
  kr_view in_weight2, in_bias2, weight2, bias2; /* the same for the second layer: (3H or 4H, H) */
  kr_view out;                                  /* (B,L,H) float32 */
} kr_rnn_pair_args;

/* ==== filter_bank (a gated bank of filters along H, mixed) ===================================================
 * Chunk j of x has C channels and two filters a channel, of length K_j, whose taps stand one chunk behind the other in
 * taps and gate_taps: a_j and b_j, with their biases, zeros outside, (K_j - 1) / 2 taps in front of a position or, with
 * KR_FILTER_BANK_ONE_SIDED, all K_j - 1. out = residual + skip_scale skip + out_bias
 * + sum over j of out_weight[.,j] ((weight_j a_j + weight_bias_j) b_j). */
#define KR_FILTER_BANK_ONE_SIDED 1u
#define KR_FILTER_BANK_TF32 2u /* factors of both products may be rounded to 11 significant bits */

typedef struct kr_filter_bank_args {
  kr_call call;
  int64_t B, H, W, C, J, K;               /* K: of all chunks */
  int64_t K1, K2, K3, K4, K5, K6, K7, K8; /* lengths; 0 after the first J */
  kr_view x;                              /* (B,H,W,JC) float32, as all but weight and out_weight */
  kr_view taps, taps_bias;                /* (C,K), (JC) */
  kr_view gate_taps, gate_bias;           /* (C,K), (JC) */
  kr_view weight, weight_bias;            /* (JC,C) any float type, (JC) */
  kr_view out_weight, out_bias;           /* (C,JC) any float type, (C) */
  kr_view residual;                       /* (B,H,W,C) */
  kr_view skip, skip_scale;               /* (B,H,W,C), (C); or both absent */
  kr_view out;                            /* (B,H,W,C); may be residual or skip itself (same strides) */
} kr_filter_bank_args;

/* ==== conv_norm (a convolution along H, or its transpose, with instance norm and PReLU) ======================
 * y[b,o,w,:] = sum over k of weight[:,k,:] x[b,o S + k,w,:]; with KR_CONV_NORM_TRANSPOSED over those k for which
 * o - k is a multiple of S, of weight[:,k,:] x[b,(o - k) / S,w,:], zeros outside. out is norm_weight (y - mean) /
 * sqrt(var + eps) + norm_bias over all of (OH,W), times slope where that is negative. */
#define KR_CONV_NORM_TRANSPOSED 1u

typedef struct kr_conv_norm_args {
  kr_call call;
  int64_t B, H, W, C, N, K, S, OH; /* OH: (H - K) / S + 1, transposed (H - 1) S + K */
  float eps;
  int32_t reserved;
  kr_view x;                             /* (B,H,W,C) float32, as all of these */
  kr_view weight;                        /* (N,K,C) */
  kr_view norm_weight, norm_bias, slope; /* (N) */
  kr_view out;                           /* (B,OH,W,N) */
} kr_conv_norm_args;

/* ==== map_product (a product for every position of a map, with what surrounds it) ============================
 * v = x; with KR_MAP_NORM (x - mean) / sqrt(var + eps) over C; with factors x times these, which may be broadcast
 * along H or W; with conv_weight silu of a causal convolution along W, conv_out. y = weight v + bias; with
 * KR_MAP_SILU its columns from silu_from on go through silu; with KR_MAP_GATE columns 2 m and 2 m + 1 are
 * multiplied with each other. out = y + residual + skip_scale skip. */
#define KR_MAP_NORM 1u
#define KR_MAP_GATE 2u
#define KR_MAP_SILU 4u
#define KR_MAP_TF32 8u /* factors of the product may be rounded to 11 significant bits */

typedef struct kr_map_product_args {
  kr_call call;
  int64_t B, H, W, C, N, M, K; /* M: N, or N / 2 with KR_MAP_GATE; K: taps, 0 without conv_weight */
  int64_t silu_from;           /* 0 without KR_MAP_SILU */
  float eps;
  int32_t reserved;
  kr_view x;                      /* (B,H,W,C) float32, as all but weight */
  kr_view factors;                /* (B,H,W,C) or absent; this or conv_weight or the norm */
  kr_view conv_weight, conv_bias; /* (C,K), (C); or both absent */
  kr_view weight, bias;           /* (N,C) any float type, (N) or absent */
  kr_view residual;               /* (B,H,W,M) or absent */
  kr_view skip, skip_scale;       /* (B,H,W,M), (M); or both absent */
  kr_view out;                    /* (B,H,W,M); may be residual or skip itself (same strides) */
  kr_view conv_out;               /* (B,H,W,C); absent without conv_weight */
} kr_map_product_args;

/* ==== dense_block (filters over the outputs of all previous layers) ==========================================
 * Layer i = 0..L-1 has i + 1 sources of C channels: the outputs of the previous layers, the newest first, and x0. Each
 * channel through a 3x3 filter (taps along W, along H) with dilation 2^i along W, zeros outside; times the layer's
 * weights; norm over all of (H,W) and PReLU: slope where it is negative. Layer i has the rows (of taps) and columns (of
 * weight) from C i (i + 1) / 2 on. Filters are centred, or with KR_DENSE_ONE_SIDED causal along W. x0 is x, or with
 * a lift the norm over all of (H,W) of lift x, and PReLU. out is the output of the last layer. */
#define KR_DENSE_ONE_SIDED 1u
#define KR_DENSE_TF32 2u /* factors of products may be rounded to 11 significant bits */

typedef struct kr_dense_block_args {
  kr_call call;
  int64_t B, H, W, C, L, N, K; /* N = C L (L + 1) / 2; K = C without a lift */
  float eps;
  int32_t reserved;
  kr_view x;                                        /* (B,H,W,K) float32, as all but weight */
  kr_view taps, taps_bias;                          /* (N,3,3), (N) */
  kr_view weight;                                   /* (C,N) any float type */
  kr_view norm_weight, norm_bias, slope;            /* (L,C) */
  kr_view lift, lift_weight, lift_bias, lift_slope; /* (C,K), (C), (C), (C); or all absent */
  kr_view out;                                      /* (B,H,W,C) */
} kr_dense_block_args;

/* ==== dt_state_update (a step of Mamba's scan, Gu & Dao 2023) =================================================
 * dt[b,d] = sum over R of r[b,.] dt_weight[d,.] + dt_bias[d], with KRAIT_UPDATE_SOFTPLUS its softplus; then as
 * krait_state_update with one head: state = exp(dt A) state + dt B x, out = (sum over N of C state + D x) silu(z). dt
 * is not rounded. */
typedef struct kr_dt_state_update_args {
  kr_call call; /* flags of krait_state_update */
  int64_t B, D, N, R, n_states;
  kr_view state;               /* (n_states,D,N), read and written */
  kr_view x;                   /* (B,D) activation type */
  kr_view r;                   /* (B,R) */
  kr_view dt_weight;           /* (D,R) */
  kr_view A;                   /* (D,N) float32 */
  kr_view Bmat, Cmat;          /* (B,N) */
  kr_view Dvec, dt_bias;       /* (D) or absent */
  kr_view z;                   /* (B,D) or absent */
  kr_view state_batch_indices; /* (B) int32 or absent, as of krait_state_update */
  kr_view out;                 /* (B,D) type of x */
} kr_dt_state_update_args;

/* ==== norm_gemm (a decode step's norm, the product that reads it, then a convolution's step) =================
 * v = x + residual, with z x silu(z); y = v weight / sqrt(mean over K of v v + eps); residual_out = v; out =
 * act(y Bmat + bias), with B2 times y B2. y is not rounded. With conv_weight the columns from conv_from on of out,
 * before they are rounded, are the newest inputs of a causal convolution: conv_out[m,c] = silu(conv_bias[c] + sum over
 * W of conv_weight[c,.] and the last inputs), of which the last W - 1 stay in conv_state. With qweight and scales, as
 * of krait_gemm_q8, Bmat[k,n] is scales[n,k/32] times byte k of qweight[n,.]. */
typedef struct kr_norm_gemm_args {
  kr_call call;
  int64_t M, N, K;
  int64_t C, W, conv_from, n_states; /* conv_from + C <= N, W >= 2; without conv_weight 0 */
  float eps;
  int32_t activation;         /* KRAIT_ACT_NONE, _SILU */
  kr_view x;                  /* (M,K) activation type */
  kr_view z;                  /* (M,K) or absent */
  kr_view residual;           /* (M,K) any activation type, or absent; not with z */
  kr_view weight;             /* (K) or absent */
  kr_view Bmat;               /* (K,N), or absent with qweight */
  kr_view bias;               /* (N) or absent */
  kr_view conv_weight;        /* (C,W) or absent */
  kr_view conv_bias;          /* (C) or absent; this and the following only with conv_weight */
  kr_view conv_state;         /* (n_states,C,W-1) any float type, read and written */
  kr_view conv_state_indices; /* (M) int32, different ones, or absent; a negative one gives conv_out 0 and no write,
                                    one of n_states or more is refused on the CPU and treated as negative on a
                                    GPU */
  kr_view out;                /* (M,N) any activation type */
  kr_view residual_out;       /* (M,K) any activation type, or absent; not with z; not the memory of an input */
  kr_view conv_out;           /* (M,C) any activation type */
  int64_t S;                  /* with words: K is 32 S; without 0 */
  kr_view qweight;            /* (N,8S) int32, or absent: instead of Bmat */
  kr_view scales;             /* (N,S), with words */
  kr_view B2;                 /* (K,N) type of Bmat, or absent; not with qweight or conv_weight */
} kr_norm_gemm_args;

/* ==== rotary_append (what precedes attention in a decode step) ===============================================
 * out is krait_rotary of q with positions from cache_seqlens[b] on; as krait_attention_append, k, rotated in the same
 * way, and v are written after the cache_seqlens[b] entries of the cache. With q_norm and k_norm each head of q and k
 * is first divided by sqrt(mean over D of its squares + eps) and multiplied by its row of them, and is not rounded
 * before it rotates. */
typedef struct kr_rotary_append_args {
  kr_call call; /* KRAIT_ROTARY_INTERLEAVED */
  int64_t B, L, H, Hk, D, Dv, R, T, Bk, Lk;
  kr_view q, k, v;         /* (B,L,H,D), (B,L,Hk,D), (B,L,Hk,Dv) */
  kr_view cos, sin;        /* (T,R) any float type */
  kr_view cache_seqlens;   /* (B) int32 or absent: 0 */
  kr_view cache_batch_idx; /* (B) int32 or absent; a negative one is not written */
  kr_view k_cache;         /* (Bk,Lk,Hk,D) */
  kr_view v_cache;         /* (Bk,Lk,Hk,Dv) */
  kr_view out;             /* (B,L,H,D) */
  kr_view seqused;         /* (B) int32 or absent, written */
  float eps;
  int32_t reserved;
  kr_view q_norm, k_norm; /* (H,D), (Hk,D), or both absent */
} kr_rotary_append_args;

/* ==== attention_step (rotary_append of one token per sequence, then attention to it and all before it) ==========
 * krait_rotary_append of q, k and v, each rounded to its type, with the same norms, then krait_attention of the rotated
 * q with the first cache_seqlens[b] + 1 entries of the cache. */
typedef struct kr_attention_step_args {
  kr_call call; /* KRAIT_ROTARY_INTERLEAVED */
  int64_t B, H, Hk, D, R, T, Bk, Lk;
  float scale;             /* 0: 1/sqrt(D) */
  float eps;
  kr_view q, k, v;         /* (B,1,H,D), (B,1,Hk,D), (B,1,Hk,D) */
  kr_view cos, sin;        /* (T,R) any float type */
  kr_view cache_seqlens;   /* (B) int32 */
  kr_view cache_batch_idx; /* (B) int32 or absent */
  kr_view k_cache;         /* (Bk,Lk,Hk,D) */
  kr_view v_cache;         /* (Bk,Lk,Hk,D) */
  kr_view out;             /* (B,1,H,D) */
  kr_view q_norm, k_norm;  /* (H,D), (Hk,D), or both absent */
} kr_attention_step_args;

/* ==== gated_delta_update (the gated delta rule for one token) ================================================
 * krait_gated_delta_rule of one token with a, A and dt_bias, in place, for the states at state_batch_indices (negative:
 * out is 0). */
typedef struct kr_gated_delta_update_args {
  kr_call call;
  int64_t B, H, Hk, Dk, Dv, n_states;
  float eps, beta_scale;
  kr_view state; /* (n_states,H,Dk,Dv) float32 */
  kr_view q, k;  /* (B,Hk,Dk) */
  kr_view v;     /* (B,H,Dv) */
  kr_view a, b;  /* (B,H) */
  kr_view A, dt_bias;
  kr_view state_batch_indices; /* (B) or absent: b */
  kr_view out;                 /* (B,H,Dv) */
} kr_gated_delta_update_args;

#endif
