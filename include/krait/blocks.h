/* blocks.h: parts of models' blocks as one call each: compositions of the operators in ops.h, with the same
 * conventions, on CPU and GPU. Equations: docs/OPS.md. */
#ifndef KRAIT_BLOCKS_H
#define KRAIT_BLOCKS_H

#include <krait/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== mamba2_inner (a Mamba-2 block) =========================================================================
 * zxbcdt = in_proj_weight x + in_proj_bias, or x itself with K == 0; of its columns the first F are z0, then x0 (F), z
 * (HP), xBC (HP + 2GN), dt (H); xBC = act(conv1d(xBC)); x, B, C = its columns; y = ssd of x with softplus(dt + dt_bias)
 * clamped to dt_min ... dt_max, A, B, C, D; gated = [silu(z0) x0, h], where h = y silu(z) without norm_weight, else the
 * RMS norm over each of G groups of y silu(z) times norm_weight, or with KRAIT_MAMBA2_NORM_BEFORE_GATE silu(z) times
 * the norm of y; out = out_proj_weight gated + out_proj_bias, or gated itself with M == 0. Where seq_idx resets the
 * state, it resets the convolution too. Tensors between two of these steps have x's type. */
#define KRAIT_MAMBA2_NORM_BEFORE_GATE 1u
#define KRAIT_MAMBA2_LOG_A 2u /* A is -exp of what is given, which may be of any float type */

typedef struct krait_mamba2_inner_args {
  krait_call call;
  int64_t B, L, K, H, P, N, G, W, F,
      M; /* K: columns of x, 0 without in_proj_weight; F: channels of the MLP part; M: 0 without out_proj_weight */
  int32_t activation;              /* of the convolution: KRAIT_ACT_SILU or _NONE */
  float eps;                       /* of the norm */
  float dt_min, dt_max;            /* dt_max 0 stands for infinity */
  krait_view x;                    /* (B,L,K) activation type, or (B,L,2F + 2HP + 2GN + H) with K == 0 */
  krait_view in_proj_weight;       /* (2F + 2HP + 2GN + H, K); absent with K == 0 */
  krait_view in_proj_bias;         /* (2F + 2HP + 2GN + H) or absent */
  krait_view conv_weight;          /* (HP + 2GN, W) */
  krait_view conv_bias;            /* (HP + 2GN) or absent */
  krait_view dt_bias;              /* (H) or absent */
  krait_view A;                    /* (H) float32, or with KRAIT_MAMBA2_LOG_A any float type */
  krait_view Dvec;                 /* (H,P) or absent; stride 0 along P for one value per head */
  krait_view norm_weight;          /* (HP) or absent: no norm */
  krait_view out_proj_weight;      /* (M, F + HP); absent with M == 0 */
  krait_view out_proj_bias;        /* (M) or absent */
  krait_view initial_states;       /* (B,H,P,N) or absent: of the scan */
  krait_view seq_idx;              /* (B,L) int32 or absent, as for ssd */
  krait_view out;                  /* (B,L,M), or (B,L,F + HP) with M == 0; any activation type */
  krait_view final_states;         /* (B,H,P,N) float32 or absent */
  krait_view zxbcdt;               /* (B,L,2F + 2HP + 2GN + H) type of x, or absent: stored for the gradient, as are */
  krait_view xBC;                  /* (B,L,HP + 2GN) type of x, or absent: after the convolution */
  krait_view y;                    /* (B,L,HP) type of x, or absent; not without norm_weight */
  krait_view gated;                /* (B,L,F + HP) type of x, or absent; not with M == 0 */
} krait_mamba2_inner_args;

KRAIT_API int32_t krait_mamba2_inner(const krait_ctx *ctx, const krait_mamba2_inner_args *args);
KRAIT_API int32_t krait_mamba2_inner_scratch_bytes(const krait_ctx *ctx, const krait_mamba2_inner_args *args,
                                                   uint64_t *bytes);

/* zxbcdt, xBC, y and gated are those of the forward call; absent ones are recomputed. */
typedef struct krait_mamba2_inner_bwd_args {
  krait_call call; /* flags as forward */
  int64_t B, L, K, H, P, N, G, W, F, M;
  int32_t activation;
  float eps, dt_min, dt_max;
  krait_view x, in_proj_weight, in_proj_bias, conv_weight, conv_bias, dt_bias, A, Dvec, norm_weight, out_proj_weight,
      out_proj_bias, initial_states, seq_idx, zxbcdt, xBC, y, gated; /* as forward */
  krait_view dout;                 /* like out */
  krait_view dfinal_states;        /* (B,H,P,N) float type or absent */
  krait_view dx;                   /* like x */
  krait_view din_proj_weight, din_proj_bias, dconv_weight, dconv_bias, ddt_bias; /* like their inputs */
  krait_view dA;                   /* (H) type of A */
  krait_view dDvec;                /* (H,P); where Dvec's stride along P is 0 (H,1), the sums over P */
  krait_view dnorm_weight, dout_proj_weight, dout_proj_bias, dinitial_states;    /* like their inputs */
} krait_mamba2_inner_bwd_args;

KRAIT_API int32_t krait_mamba2_inner_bwd(const krait_ctx *ctx, const krait_mamba2_inner_bwd_args *args);
KRAIT_API int32_t krait_mamba2_inner_bwd_scratch_bytes(const krait_ctx *ctx, const krait_mamba2_inner_bwd_args *args,
                                                       uint64_t *bytes);

/* ==== gated_filter, mean_product (a channel attention) ================================================
 * gated_filter: y[b,h,w,c] = bias[c] + sum over k of weight[c,k] x[b, h + k - P, w, c], zeros outside; out[.,c] =
 * y[.,c] y[.,C + c]. */
typedef struct krait_gated_filter_args {
  krait_call call;
  int64_t B, H, W, C, K, P;
  krait_view x;      /* (B,H,W,2C) float32, as all of these */
  krait_view weight; /* (2C,K) */
  krait_view bias;   /* (2C) or absent */
  krait_view out;    /* (B,H,W,C) */
} krait_gated_filter_args;

KRAIT_API int32_t krait_gated_filter(const krait_ctx *ctx, const krait_gated_filter_args *args);
KRAIT_API int32_t krait_gated_filter_scratch_bytes(const krait_ctx *ctx, const krait_gated_filter_args *args,
                                                   uint64_t *bytes);

/* mean_product: out[i,j] = weight (mean over s of x[i,j,s]) + bias. */
typedef struct krait_mean_product_args {
  krait_call call;
  int64_t I, J, S, C;
  krait_view x;      /* (I,J,S,C) float32, as all of these */
  krait_view weight; /* (C,C) */
  krait_view bias;   /* (C) or absent */
  krait_view out;    /* (I,J,C) */
} krait_mean_product_args;

KRAIT_API int32_t krait_mean_product(const krait_ctx *ctx, const krait_mean_product_args *args);
KRAIT_API int32_t krait_mean_product_scratch_bytes(const krait_ctx *ctx, const krait_mean_product_args *args,
                                                   uint64_t *bytes);

/* ==== projected_scan (the middle of a Mamba block) ===========================================================
 * A row of proj has r (R, the rank), B (N) and C (N); further columns are ignored. delta = softplus(dt_weight r +
 * dt_bias), h = exp(delta A) h + delta B u, out = (C h + Dvec u) z; h starts at 0. z is the gate with its activation
 * already applied. */
typedef struct krait_projected_scan_args {
  krait_call call;
  int64_t B, L, D, N, R, X;
  krait_view u;         /* (B,L,D) float32, as all of these */
  krait_view proj;      /* (B,L,X), X >= R + 2N */
  krait_view dt_weight; /* (D,R) */
  krait_view dt_bias;   /* (D) */
  krait_view A;         /* (D,N) */
  krait_view Dvec;      /* (D) */
  krait_view z;         /* (B,L,D) */
  krait_view out;       /* (B,L,D); may be u itself (same strides) */
} krait_projected_scan_args;

KRAIT_API int32_t krait_projected_scan(const krait_ctx *ctx, const krait_projected_scan_args *args);
KRAIT_API int32_t krait_projected_scan_scratch_bytes(const krait_ctx *ctx, const krait_projected_scan_args *args,
                                                     uint64_t *bytes);

/* ==== rnn_pair (two layers of GRU or LSTM) ===================================================================
 * X = x, or with KRAIT_RNN_NORM (x - mean) / sqrt(var + eps) over C; h = rnn of in_weight X + in_bias with weight and
 * bias, out = rnn of in_weight2 h + in_bias2 with weight2 and bias2 (rnn: ops.h, its flag KRAIT_RNN_LSTM and order of
 * gates). */
#define KRAIT_RNN_TF32 2u /* rows and states may be rounded to 11 significant bits, like float16 weights */
#define KRAIT_RNN_NORM 4u

typedef struct krait_rnn_pair_args {
  krait_call call;
  int64_t B, L, C, H;
  float eps;
  int32_t reserved;
  krait_view x;                                    /* (B,L,C) float32 */
  krait_view in_weight, in_bias;                   /* (3H or 4H, C), (3H or 4H) or absent; weights any float type */
  krait_view weight, bias;                         /* (3H or 4H, H), (3H or 4H) or absent */
  krait_view in_weight2, in_bias2, weight2, bias2; /* the same for the second layer: (3H or 4H, H) */
  krait_view out;                                  /* (B,L,H) float32 */
} krait_rnn_pair_args;

KRAIT_API int32_t krait_rnn_pair(const krait_ctx *ctx, const krait_rnn_pair_args *args);
KRAIT_API int32_t krait_rnn_pair_scratch_bytes(const krait_ctx *ctx, const krait_rnn_pair_args *args, uint64_t *bytes);
/* ==== filter_bank (a gated bank of filters along H, mixed) ===================================================
 * Chunk j of x has C channels and two filters a channel, of length K_j, whose taps stand one chunk behind the other in
 * taps and gate_taps: a_j and b_j, with their biases, zeros outside, (K_j - 1) / 2 taps in front of a position or, with
 * KRAIT_FILTER_BANK_ONE_SIDED, all K_j - 1. out = residual + skip_scale skip + out_bias
 * + sum over j of out_weight[.,j] ((weight_j a_j + weight_bias_j) b_j). */
#define KRAIT_FILTER_BANK_ONE_SIDED 1u
#define KRAIT_FILTER_BANK_TF32 2u /* factors of both products may be rounded to 11 significant bits */

typedef struct krait_filter_bank_args {
  krait_call call;
  int64_t B, H, W, C, J, K;               /* K: of all chunks */
  int64_t K1, K2, K3, K4, K5, K6, K7, K8; /* lengths; 0 after the first J */
  krait_view x;                           /* (B,H,W,JC) float32, as all but weight and out_weight */
  krait_view taps, taps_bias;             /* (C,K), (JC) */
  krait_view gate_taps, gate_bias;        /* (C,K), (JC) */
  krait_view weight, weight_bias;         /* (JC,C) any float type, (JC) */
  krait_view out_weight, out_bias;        /* (C,JC) any float type, (C) */
  krait_view residual;                    /* (B,H,W,C) */
  krait_view skip, skip_scale;            /* (B,H,W,C), (C); or both absent */
  krait_view out;                         /* (B,H,W,C); may be residual or skip itself (same strides) */
} krait_filter_bank_args;

KRAIT_API int32_t krait_filter_bank(const krait_ctx *ctx, const krait_filter_bank_args *args);
KRAIT_API int32_t krait_filter_bank_scratch_bytes(const krait_ctx *ctx, const krait_filter_bank_args *args,
                                                  uint64_t *bytes);

/* ==== conv_norm (a convolution along H, or its transpose, with instance norm and PReLU) ======================
 * y[b,o,w,:] = sum over k of weight[:,k,:] x[b,o S + k,w,:]; with KRAIT_CONV_NORM_TRANSPOSED over those k for which
 * o - k is a multiple of S, of weight[:,k,:] x[b,(o - k) / S,w,:], zeros outside. out is norm_weight (y - mean) /
 * sqrt(var + eps) + norm_bias over all of (OH,W), times slope where that is negative. */
#define KRAIT_CONV_NORM_TRANSPOSED 1u

typedef struct krait_conv_norm_args {
  krait_call call;
  int64_t B, H, W, C, N, K, S, OH; /* OH: (H - K) / S + 1, transposed (H - 1) S + K */
  float eps;
  int32_t reserved;
  krait_view x;                             /* (B,H,W,C) float32, as all of these */
  krait_view weight;                        /* (N,K,C) */
  krait_view norm_weight, norm_bias, slope; /* (N) */
  krait_view out;                           /* (B,OH,W,N) */
} krait_conv_norm_args;

KRAIT_API int32_t krait_conv_norm(const krait_ctx *ctx, const krait_conv_norm_args *args);
KRAIT_API int32_t krait_conv_norm_scratch_bytes(const krait_ctx *ctx, const krait_conv_norm_args *args,
                                                uint64_t *bytes);

/* ==== map_product (a product for every position of a map, with what surrounds it) ============================
 * v = x; with KRAIT_MAP_NORM (x - mean) / sqrt(var + eps) over C; with factors x times these, which may be broadcast
 * along H or W; with conv_weight silu of a causal convolution along W, conv_out. y = weight v + bias; with
 * KRAIT_MAP_SILU its columns from silu_from on go through silu; with KRAIT_MAP_GATE columns 2 m and 2 m + 1 are
 * multiplied with each other. out = y + residual + skip_scale skip. */
#define KRAIT_MAP_NORM 1u
#define KRAIT_MAP_GATE 2u
#define KRAIT_MAP_SILU 4u
#define KRAIT_MAP_TF32 8u /* factors of the product may be rounded to 11 significant bits */

typedef struct krait_map_product_args {
  krait_call call;
  int64_t B, H, W, C, N, M, K; /* M: N, or N / 2 with KRAIT_MAP_GATE; K: taps, 0 without conv_weight */
  int64_t silu_from;           /* 0 without KRAIT_MAP_SILU */
  float eps;
  int32_t reserved;
  krait_view x;                            /* (B,H,W,C) float32, as all but weight */
  krait_view factors;                      /* (B,H,W,C) or absent; this or conv_weight or the norm */
  krait_view conv_weight, conv_bias;       /* (C,K), (C); or both absent */
  krait_view weight, bias;                 /* (N,C) any float type, (N) or absent */
  krait_view residual;                     /* (B,H,W,M) or absent */
  krait_view skip, skip_scale;             /* (B,H,W,M), (M); or both absent */
  krait_view out;                          /* (B,H,W,M); may be residual or skip itself (same strides) */
  krait_view conv_out;                     /* (B,H,W,C); absent without conv_weight */
} krait_map_product_args;

KRAIT_API int32_t krait_map_product(const krait_ctx *ctx, const krait_map_product_args *args);
KRAIT_API int32_t krait_map_product_scratch_bytes(const krait_ctx *ctx, const krait_map_product_args *args,
                                                  uint64_t *bytes);

/* ==== dense_block (filters over the outputs of all previous layers) ==========================================
 * Layer i = 0..L-1 has i + 1 sources of C channels: the outputs of the previous layers, the newest first, and x0. Each
 * channel through a 3x3 filter (taps along W, along H) with dilation 2^i along W, zeros outside; times the layer's
 * weights; norm over all of (H,W) and PReLU: slope where it is negative. Layer i has the rows (of taps) and columns (of
 * weight) from C i (i + 1) / 2 on. Filters are centred, or with KRAIT_DENSE_ONE_SIDED causal along W. x0 is x, or with
 * a lift the norm over all of (H,W) of lift x, and PReLU. out is the output of the last layer. */
#define KRAIT_DENSE_ONE_SIDED 1u
#define KRAIT_DENSE_TF32 2u /* factors of products may be rounded to 11 significant bits */

typedef struct krait_dense_block_args {
  krait_call call;
  int64_t B, H, W, C, L, N, K; /* N = C L (L + 1) / 2; K = C without a lift */
  float eps;
  int32_t reserved;
  krait_view x;                                         /* (B,H,W,K) float32, as all but weight */
  krait_view taps, taps_bias;                           /* (N,3,3), (N) */
  krait_view weight;                                    /* (C,N) any float type */
  krait_view norm_weight, norm_bias, slope;             /* (L,C) */
  krait_view lift, lift_weight, lift_bias, lift_slope;  /* (C,K), (C), (C), (C); or all absent */
  krait_view out;                                       /* (B,H,W,C) */
} krait_dense_block_args;

KRAIT_API int32_t krait_dense_block(const krait_ctx *ctx, const krait_dense_block_args *args);
KRAIT_API int32_t krait_dense_block_scratch_bytes(const krait_ctx *ctx, const krait_dense_block_args *args,
                                                  uint64_t *bytes);

/* ==== dt_state_update (a step of Mamba's scan, Gu & Dao 2023) =================================================
 * dt[b,d] = sum over R of r[b,.] dt_weight[d,.] + dt_bias[d], with KRAIT_UPDATE_SOFTPLUS its softplus; then as
 * krait_state_update with one head: state = exp(dt A) state + dt B x, out = (sum over N of C state + D x) silu(z). dt
 * is not rounded. */
typedef struct krait_dt_state_update_args {
  krait_call call;                /* flags of krait_state_update */
  int64_t B, D, N, R, n_states;
  krait_view state;               /* (n_states,D,N), read and written */
  krait_view x;                   /* (B,D) activation type */
  krait_view r;                   /* (B,R) */
  krait_view dt_weight;           /* (D,R) */
  krait_view A;                   /* (D,N) float32 */
  krait_view Bmat, Cmat;          /* (B,N) */
  krait_view Dvec, dt_bias;       /* (D) or absent */
  krait_view z;                   /* (B,D) or absent */
  krait_view state_batch_indices; /* (B) int32 or absent, as of krait_state_update */
  krait_view out;                 /* (B,D) type of x */
} krait_dt_state_update_args;

KRAIT_API int32_t krait_dt_state_update(const krait_ctx *ctx, const krait_dt_state_update_args *args);
KRAIT_API int32_t krait_dt_state_update_scratch_bytes(const krait_ctx *ctx, const krait_dt_state_update_args *args,
                                                      uint64_t *bytes);

/* ==== norm_gemm (a decode step's norm, the product that reads it, then a convolution's step) =================
 * v = x + residual, with z x silu(z); y = v weight / sqrt(mean over K of v v + eps); residual_out = v; out = y Bmat +
 * bias. y is not rounded. With conv_weight the columns from conv_from on of out, before they are rounded, are the
 * newest inputs of a causal convolution: conv_out[m,c] = silu(conv_bias[c] + sum over W of conv_weight[c,.] and the
 * last inputs), of which the last W - 1 stay in conv_state. With qweight and scales, as of krait_gemm_q8, Bmat[k,n] is
 * scales[n,k/32] times byte k of qweight[n,.]. */
typedef struct krait_norm_gemm_args {
  krait_call call;
  int64_t M, N, K;
  int64_t C, W, conv_from, n_states; /* conv_from + C <= N, W >= 2; without conv_weight 0 */
  float eps;
  int32_t reserved;
  krait_view x;            /* (M,K) activation type */
  krait_view z;            /* (M,K) or absent */
  krait_view residual;     /* (M,K) any activation type, or absent; not with z */
  krait_view weight;       /* (K) or absent */
  krait_view Bmat;         /* (K,N), or absent with qweight */
  krait_view bias;         /* (N) or absent */
  krait_view conv_weight;  /* (C,W) or absent */
  krait_view conv_bias;    /* (C) or absent; this and the following only with conv_weight */
  krait_view conv_state;   /* (n_states,C,W-1) any float type, read and written */
  krait_view conv_state_indices; /* (M) int32, different ones, or absent; a negative one gives conv_out 0 and no write,
                                    one of n_states or more is refused on the CPU and treated as negative on a
                                    GPU */
  krait_view out;          /* (M,N) any activation type */
  krait_view residual_out; /* (M,K) any activation type, or absent; not with z; not the memory of an input */
  krait_view conv_out;     /* (M,C) any activation type */
  int64_t S;               /* with words: K is 32 S; without 0 */
  krait_view qweight;        /* (N,8S) int32, or absent: instead of Bmat */
  krait_view scales;       /* (N,S), with words */
} krait_norm_gemm_args;

KRAIT_API int32_t krait_norm_gemm(const krait_ctx *ctx, const krait_norm_gemm_args *args);
KRAIT_API int32_t krait_norm_gemm_scratch_bytes(const krait_ctx *ctx, const krait_norm_gemm_args *args,
                                                uint64_t *bytes);

/* ==== rotary_append (what precedes attention in a decode step) ===============================================
 * out is krait_rotary of q with positions from cache_seqlens[b] on; as krait_attention_append, k, rotated in the same
 * way, and v are written after the cache_seqlens[b] entries of the cache. */
typedef struct krait_rotary_append_args {
  krait_call call;            /* KRAIT_ROTARY_INTERLEAVED */
  int64_t B, L, H, Hk, D, Dv, R, T, Bk, Lk;
  krait_view q, k, v;         /* (B,L,H,D), (B,L,Hk,D), (B,L,Hk,Dv) */
  krait_view cos, sin;        /* (T,R) any float type */
  krait_view cache_seqlens;   /* (B) int32 or absent: 0 */
  krait_view cache_batch_idx; /* (B) int32 or absent; a negative one is not written */
  krait_view k_cache;         /* (Bk,Lk,Hk,D) */
  krait_view v_cache;         /* (Bk,Lk,Hk,Dv) */
  krait_view out;             /* (B,L,H,D) */
  krait_view seqused;         /* (B) int32 or absent, written */
} krait_rotary_append_args;

KRAIT_API int32_t krait_rotary_append(const krait_ctx *ctx, const krait_rotary_append_args *args);
KRAIT_API int32_t krait_rotary_append_scratch_bytes(const krait_ctx *ctx, const krait_rotary_append_args *args,
                                                    uint64_t *bytes);

/* ==== attention_step (rotary_append of one token per sequence, then attention to it and all before it) ==========
 * krait_rotary_append of q, k and v, each rounded to its type, then krait_attention of the rotated q with the first
 * cache_seqlens[b] + 1 entries of the cache. */
typedef struct krait_attention_step_args {
  krait_call call;            /* KRAIT_ROTARY_INTERLEAVED */
  int64_t B, H, Hk, D, R, T, Bk, Lk;
  float scale;                /* 0: 1/sqrt(D) */
  krait_view q, k, v;         /* (B,1,H,D), (B,1,Hk,D), (B,1,Hk,D) */
  krait_view cos, sin;        /* (T,R) any float type */
  krait_view cache_seqlens;   /* (B) int32 */
  krait_view cache_batch_idx; /* (B) int32 or absent */
  krait_view k_cache;         /* (Bk,Lk,Hk,D) */
  krait_view v_cache;         /* (Bk,Lk,Hk,D) */
  krait_view out;             /* (B,1,H,D) */
} krait_attention_step_args;

KRAIT_API int32_t krait_attention_step(const krait_ctx *ctx, const krait_attention_step_args *args);
KRAIT_API int32_t krait_attention_step_scratch_bytes(const krait_ctx *ctx, const krait_attention_step_args *args,
                                                     uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
