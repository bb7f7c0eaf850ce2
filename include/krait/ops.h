/* ops.h: the operators. One args struct and one function each.
 *
 * Conventions
 *   B batch, L length, D channels, N state size, W convolution width, H heads, P head size, G groups, S sequences.
 *   The comment of a tensor has its dimensions. Their sizes come from the tensors: what two of them say differently is
 *   KRAIT_ERR_SHAPE, with the tensor, the dimension and both sizes in krait_error_detail(). An int64_t of a struct is
 *   an option that no shape has, or where it says so a size that shapes may leave open.
 *   A tensor whose data is NULL is absent. Strides may be 0 (expanded) on inputs and anything on outputs that does not
 *   overlap itself. Pointers are host pointers for a CPU context and device pointers for a CUDA context.
 *   The caller owns every tensor. CUDA calls are enqueued on `stream` (a CUstream; NULL is the default stream) and do
 *   not synchronise.
 *   Storage is float32, float16 or bfloat16; states, sums and exponentials are float32.
 *   Unless said otherwise an output must not overlap an input.
 *   Gradients: an absent output gradient is zero; an absent input gradient is not computed. Parameter gradients are
 *   written, not accumulated. Results are bit-identical for repeated calls and all thread counts.
 * Equations: docs/OPS.md and the head of src/ops/<op>/<op>_ref.c. */
#ifndef KRAIT_OPS_H
#define KRAIT_OPS_H

#include <krait/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The head of every args struct. scratch may be NULL: the context then lends memory, which it keeps until it is closed.
 * Your own: krait_scratch_bytes (plan.h) says how much, aligned to 64 bytes, 256 on a device; it holds nothing between
 * calls. A call that is captured into a CUDA graph needs its own. */
typedef struct krait_call {
  uint32_t size;  /* sizeof the whole args struct */
  uint32_t flags; /* the op's own flags, 0 for none */
  void *stream;   /* CUstream for CUDA contexts, else NULL */
  void *scratch;
  uint64_t scratch_bytes;
} krait_call;

#define KRAIT_ACT_NONE 0
#define KRAIT_ACT_SILU 1
#define KRAIT_ACT_GELU 2      /* x (1 + erf(x / sqrt 2)) / 2; products and pointwise */
#define KRAIT_ACT_GELU_TANH 3 /* its tanh approximation; products only */
#define KRAIT_ACT_SIGMOID 4   /* pointwise only */
#define KRAIT_ACT_RELU 5      /* pointwise only */
#define KRAIT_ACT_EXP 6       /* pointwise only */

/* ==== causal conv1d (specs: causal_conv1d 1.6; Dao 2023) =====================================================
 * out[b,d,t] = act( bias[d] + sum_{w<W} weight[d,w] X[b,d,t-(W-1)+w] ), X = x for t >= 0, initial_states before, else
 * 0. With seq_idx a tap whose seq_idx differs from position t's is dropped; seq_idx[t] < 0 gives out 0.
 * KRAIT_CONV1D_REVERSE: time runs backwards, as if x, seq_idx and out were flipped in time; states are in the order of
 * that direction (initial_states[W-2] is the input right after the end, final_states[W-2] is x at time 0). */
#define KRAIT_CONV1D_REVERSE 1u

typedef struct krait_causal_conv1d_args {
  krait_call call;
  int32_t activation; /* KRAIT_ACT_* */
  int32_t reserved;
  krait_tensor x;              /* (B,D,L) activation type */
  krait_tensor weight;         /* (D,W) any float type */
  krait_tensor bias;           /* (D) or absent */
  krait_tensor seq_idx;        /* (B,L) int32 or absent; excludes initial_states and final_states */
  krait_tensor initial_states; /* (B,D,W-1) or absent */
  krait_tensor out;            /* (B,D,L) type of x; may be x itself (same strides) */
  krait_tensor final_states;   /* (B,D,W-1) or absent: the last W-1 inputs */
} krait_causal_conv1d_args;
KRAIT_API int32_t krait_causal_conv1d(const krait_ctx *ctx, const krait_causal_conv1d_args *args);

typedef struct krait_causal_conv1d_bwd_args {
  krait_call call; /* flags as forward */
  int32_t activation;
  int32_t reserved;
  krait_tensor x, weight, bias, seq_idx, initial_states; /* as forward */
  krait_tensor dout;                                     /* (B,D,L) */
  krait_tensor dfinal_states;                            /* (B,D,W-1) or absent */
  krait_tensor dx;                                       /* (B,D,L) type of x */
  krait_tensor dweight;                                  /* (D,W) */
  krait_tensor dbias;                                    /* (D) */
  krait_tensor dinitial_states;                          /* (B,D,W-1) */
} krait_causal_conv1d_bwd_args;
KRAIT_API int32_t krait_causal_conv1d_bwd(const krait_ctx *ctx, const krait_causal_conv1d_bwd_args *args);

/* L new tokens per sequence against a running state of the last S >= W-1 inputs. Without cache_seqlens the state
 * shifts left by L; with it the state is a ring whose write position is cache_seqlens % S. */
/* n_states is at least B unless conv_state_indices is given. */
typedef struct krait_causal_conv1d_update_args {
  krait_call call;
  int32_t activation;
  int32_t reserved;
  krait_tensor x;                  /* (B,D,L) */
  krait_tensor conv_state;         /* (n_states,D,S) read and written */
  krait_tensor weight, bias;       /* (D,W), (D) or absent */
  krait_tensor cache_seqlens;      /* (B) int32 or absent */
  krait_tensor conv_state_indices; /* (B) int32 or absent: row of conv_state; a negative one gives out 0 and no write,
                                      one of n_states or more is refused on the CPU and treated as negative on a GPU */
  krait_tensor out;                /* (B,D,L); may be x itself */
} krait_causal_conv1d_update_args;
KRAIT_API int32_t krait_causal_conv1d_update(const krait_ctx *ctx, const krait_causal_conv1d_update_args *args);

/* The last state_len inputs of each packed sequence, right-aligned, zero-padded on the left. */
typedef struct krait_causal_conv1d_varlen_states_args {
  krait_call call;
  krait_tensor x;          /* (total,D) */
  krait_tensor cu_seqlens; /* (S+1) int32, from 0 to at most total (padding follows), not decreasing */
  krait_tensor states;     /* (S,D,state_len) type of x, written */
} krait_causal_conv1d_varlen_states_args;
KRAIT_API int32_t krait_causal_conv1d_varlen_states(const krait_ctx *ctx,
                                                    const krait_causal_conv1d_varlen_states_args *args);

/* ==== selective scan (Mamba 1: Gu & Dao 2023, section 3) =====================================================
 * dt = delta + delta_bias, softplus if requested; x_t = exp(dt A) x_{t-1} + dt B_t u_t; y_t = sum_n C_t x_t + D u_t;
 * out = y silu(z) if z. Complex A (KRAIT_C64): y_t = 2 Re(sum_n C_t x_t); variable B, C are then interleaved on L (2L
 * values of the activation type), constant B, C are KRAIT_C64, states are KRAIT_C64.
 * Packed sequences: either seq_idx (the state is reset at every change of the index, and outputs at negative indices
 * are 0), or cu_seqlens with B == 1 (S sequences; states are then (S,D,N)).
 * Directions: forward, reverse in time, or both in one call: out = scan(A) + reverse scan(A_reverse), where D u and
 * the gate are applied once to the sum (VideoMamba's bimamba v1 form: see docs/OPS.md).
 * With KRAIT_SCAN_REVERSE initial_state is the state after the end, and last_state that after time 0. Complex A: u,
 * delta, D and z stay real; gradients of A, B and C are those of a real loss with respect to real and imaginary part
 * (dL/dre + i dL/dim). */
#define KRAIT_SCAN_SOFTPLUS 1u
#define KRAIT_SCAN_B_CONSTANT 2u /* Bmat is (D,N) instead of (B,G,N,L) */
#define KRAIT_SCAN_C_CONSTANT 4u
#define KRAIT_SCAN_REVERSE 8u
#define KRAIT_SCAN_BOTH 16u /* needs A_reverse; excludes KRAIT_SCAN_REVERSE, states and packed sequences */

/* D % G == 0; N in 1..512; n_kept is (L + 7) / 8. */
typedef struct krait_selective_scan_args {
  krait_call call;
  krait_tensor u;             /* (B,D,L) activation type */
  krait_tensor delta;         /* (B,D,L) float type, may differ from u's */
  krait_tensor A;             /* (D,N) float32 or complex64 */
  krait_tensor Bmat;          /* (B,G,N,L) float type, or (D,N) with KRAIT_SCAN_B_CONSTANT */
  krait_tensor Cmat;          /* same rule, KRAIT_SCAN_C_CONSTANT */
  krait_tensor Dvec;          /* (D) float32 or absent */
  krait_tensor z;             /* (B,D,L) or absent */
  krait_tensor delta_bias;    /* (D) float32 or absent */
  krait_tensor initial_state; /* (B or S,D,N) float32 / complex64 or absent; with seq_idx it applies to the first
                                 segment */
  krait_tensor seq_idx;       /* (B,L) int32 or absent */
  krait_tensor cu_seqlens;    /* (S+1) int32 or absent */
  krait_tensor A_reverse;     /* (D,N), only with KRAIT_SCAN_BOTH */
  krait_tensor out;           /* (B,D,L) type of u; may be u or z itself (same strides) */
  krait_tensor last_state; /* (B or S,D,N) float32 / complex64 or absent: state after the last step of the direction */
  krait_tensor states;     /* (B,D,N,n_kept) float32 / complex64 or absent: the state before each 8th step of the
                              direction, for the gradient; not with seq_idx, cu_seqlens or KRAIT_SCAN_BOTH */
} krait_selective_scan_args;
KRAIT_API int32_t krait_selective_scan(const krait_ctx *ctx, const krait_selective_scan_args *args);

/* The forward states are recomputed, from those before each 8th step if the forward call stored them. */
typedef struct krait_selective_scan_bwd_args {
  krait_call call; /* flags as forward */
  krait_tensor u, delta, A, Bmat, Cmat, Dvec, z, delta_bias, initial_state, seq_idx, cu_seqlens,
      A_reverse;               /* as forward */
  krait_tensor dout;           /* (B,D,L) */
  krait_tensor dlast_state;    /* like last_state, or absent */
  krait_tensor du, ddelta;     /* (B,D,L) */
  krait_tensor dA;             /* (D,N) float32 / complex64 */
  krait_tensor dB, dC;         /* like Bmat, Cmat */
  krait_tensor dDvec, dz;      /* (D) float32; (B,D,L) */
  krait_tensor ddelta_bias;    /* (D) float32 */
  krait_tensor dinitial_state; /* like initial_state */
  krait_tensor dA_reverse;
  krait_tensor states; /* as forward, or absent: only saves time */
} krait_selective_scan_bwd_args;
KRAIT_API int32_t krait_selective_scan_bwd(const krait_ctx *ctx, const krait_selective_scan_bwd_args *args);

/* ==== mamba_inner (the inside of a Mamba-1 block) ============================================================
 * x, z = halves of xz along channels; x = silu(conv1d(x)); [dt, B, C] = x_proj_weight x for each step (columns: dt the
 * first R, then B, C the last), plus B_proj_bias, C_proj_bias; delta = dt_proj_weight dt; y = selective scan of x with
 * delta, A, B, C, D, gated by z; out = out_proj_weight y + out_proj_bias, or y itself with M == 0. Columns exist for B
 * and C only if Bmat, Cmat are absent: N, or with complex A 2N (real, imaginary, real, ...). Optional RMS norms (x /
 * sqrt(mean x^2 + eps) weight): of delta after dt_proj, of the columns of B and of C after their bias. Flags:
 * KRAIT_SCAN_SOFTPLUS, _B_CONSTANT, _C_CONSTANT, _BOTH, as there; KRAIT_SCAN_REVERSE reverses time in the convolution
 * too, as if xz, B, C and out were flipped. Everything between xz and out is float32, whatever the storage. */
typedef struct krait_mamba_inner_args {
  krait_call call;
  float eps; /* of the norms */
  int32_t reserved;
  krait_tensor xz;                           /* (B,2D,L) activation type: x, then z */
  krait_tensor conv_weight;                  /* (D,W) */
  krait_tensor conv_bias;                    /* (D) or absent */
  krait_tensor x_proj_weight;                /* (R + columns of B + columns of C, D) */
  krait_tensor dt_proj_weight;               /* (D,R) */
  krait_tensor out_proj_weight;              /* (M,D); absent with M == 0 */
  krait_tensor out_proj_bias;                /* (M) or absent */
  krait_tensor A, A_reverse;                 /* (D,N) float32 or complex64; A_reverse only with KRAIT_SCAN_BOTH */
  krait_tensor Bmat, Cmat;                   /* absent, or as for the scan with G == 1 */
  krait_tensor Dvec, delta_bias;             /* (D) float32 or absent */
  krait_tensor B_proj_bias, C_proj_bias;     /* (columns) or absent */
  krait_tensor dt_norm_weight;               /* (D) or absent: no norm */
  krait_tensor B_norm_weight, C_norm_weight; /* (N) or absent; not with complex A */
  krait_tensor out;                          /* (B,L,M), or (B,D,L) with M == 0; any activation type */
} krait_mamba_inner_args;
KRAIT_API int32_t krait_mamba_inner(const krait_ctx *ctx, const krait_mamba_inner_args *args);

/* The forward call stores nothing: everything except the output projection is recomputed. */
typedef struct krait_mamba_inner_bwd_args {
  krait_call call; /* flags as forward */
  float eps;
  int32_t reserved;
  krait_tensor xz, conv_weight, conv_bias, x_proj_weight, dt_proj_weight, out_proj_weight, out_proj_bias, A, A_reverse,
      Bmat, Cmat, Dvec, delta_bias, B_proj_bias, C_proj_bias, dt_norm_weight, B_norm_weight,
      C_norm_weight; /* as forward */
  krait_tensor dout; /* like out */
  krait_tensor dxz;  /* (B,2D,L) */
  krait_tensor dconv_weight, dconv_bias, dx_proj_weight, ddt_proj_weight, dout_proj_weight,
      dout_proj_bias;              /* like their inputs */
  krait_tensor dA, dA_reverse;     /* (D,N) type of A */
  krait_tensor dB, dC;             /* like Bmat, Cmat */
  krait_tensor dDvec, ddelta_bias; /* (D) float32 */
  krait_tensor dB_proj_bias, dC_proj_bias, ddt_norm_weight, dB_norm_weight, dC_norm_weight;
} krait_mamba_inner_bwd_args;
KRAIT_API int32_t krait_mamba_inner_bwd(const krait_ctx *ctx, const krait_mamba_inner_bwd_args *args);

/* ==== SSD (Mamba 2: Dao & Gu 2024, "Transformers are SSMs") ==================================================
 * d = dt + dt_bias, softplus if requested, then clamped to dt_min ... dt_max; S_t = exp(d A) S_{t-1} + d x_t (outer)
 * B_t; y_t = S_t C_t + D x_t; out = y silu(z). One A for each head, or with log_decay S_t = exp(log_decay_t) S_{t-1} +
 * ...; head h uses B and C of group h / (H / G). The states are (P,N) per head. seq_idx: the state is reset to 0
 * wherever the index differs from the previous token's (0 before the first token, so initial_states apply only to a
 * first sequence with index 0); at a negative index out is 0 and the token leaves no state. cu_seqlens (B == 1) only
 * selects the tokens after which varlen_states are taken, 0 for an empty sequence; it is seq_idx that separates
 * sequences. Directions as for the scan: KRAIT_SSD_REVERSE runs from the end (initial_states are those after the end,
 * final_states those after time 0); KRAIT_SSD_BOTH adds the scan with A and the reverse scan with A_reverse before D x
 * and the gate. */
#define KRAIT_SSD_SOFTPLUS 1u
#define KRAIT_SSD_REVERSE 2u
#define KRAIT_SSD_BOTH 4u /* needs A_reverse; excludes KRAIT_SSD_REVERSE, states, seq_idx and cu_seqlens */
#define KRAIT_SSD_TF32 8u /* float32 factors of products may be rounded to 11 significant bits */

/* H % G == 0; P in 1..256, N in 1..512. */
typedef struct krait_ssd_args {
  krait_call call;
  float dt_min, dt_max;        /* dt_max 0 stands for infinity */
  krait_tensor x;              /* (B,L,H,P) activation type */
  krait_tensor dt;             /* (B,L,H) float type, may differ from x's */
  krait_tensor A;              /* (H) float32; absent with log_decay */
  krait_tensor Bmat, Cmat;     /* (B,L,G,N) float type */
  krait_tensor Dvec;           /* (H,P) any float type or absent; stride 0 along P for one value per head */
  krait_tensor z;              /* (B,L,H,P) or absent */
  krait_tensor dt_bias;        /* (H) any float type or absent */
  krait_tensor initial_states; /* (B,H,P,N) any float type or absent */
  krait_tensor seq_idx;        /* (B,L) int32 or absent */
  krait_tensor cu_seqlens;     /* (S+1) int32, from 0 to at most L, increasing; only with varlen_states, B == 1, not
                                  in reverse */
  krait_tensor A_reverse;      /* (H) float32, only with KRAIT_SSD_BOTH */
  krait_tensor log_decay;      /* (B,L,H) any float type or absent; not with KRAIT_SSD_BOTH */
  krait_tensor out;            /* (B,L,H,P) type of x; may be x or z itself (same strides) */
  krait_tensor final_states;   /* (B,H,P,N) float32 or absent: after the last token of the direction */
  krait_tensor varlen_states;  /* (S,H,P,N) float32 or absent */
} krait_ssd_args;
KRAIT_API int32_t krait_ssd(const krait_ctx *ctx, const krait_ssd_args *args);

/* The forward states are recomputed, the forward call stores nothing; varlen_states have no gradient. */
typedef struct krait_ssd_bwd_args {
  krait_call call; /* flags as forward */
  float dt_min, dt_max;
  krait_tensor x, dt, A, Bmat, Cmat, Dvec, z, dt_bias, initial_states, seq_idx, A_reverse,
      log_decay;                /* as forward */
  krait_tensor dout;            /* (B,L,H,P) */
  krait_tensor dfinal_states;   /* (B,H,P,N) float type or absent */
  krait_tensor dx, dz;          /* (B,L,H,P) */
  krait_tensor ddt;             /* (B,L,H) */
  krait_tensor dlog_decay;      /* (B,L,H) */
  krait_tensor dA, dA_reverse;  /* (H) float32 */
  krait_tensor dB, dC;          /* (B,L,G,N) */
  krait_tensor dDvec;           /* (H,P) float32; stride 0 along P: the sums over P */
  krait_tensor ddt_bias;        /* (H) float32 */
  krait_tensor dinitial_states; /* (B,H,P,N) float type */
} krait_ssd_bwd_args;
KRAIT_API int32_t krait_ssd_bwd(const krait_ctx *ctx, const krait_ssd_bwd_args *args);

/* ==== Mamba 3 (Lahoti et al. 2026, arXiv 2603.15569) ==========================================================
 * Per head, from the states before the first token (theta, h, k, x; all zero if not given):
 * theta_t = theta_{t-1} + pi tanh(angles_t) dt_t; q_{t,r} = Rot(theta_t) (C_{t,r} + C_bias_r), k_{t,r} likewise of B;
 * with lambda = sigmoid(trap_t) and alpha = exp(log_decay_t)
 * h_t = alpha h_{t-1} + (1 - lambda) dt alpha sum_r (x_{t-1} mimo_x_r) (outer) k_{t-1,r}
 *                     + lambda dt sum_r (x_t mimo_x_r) (outer) k_{t,r};   y_{t,r} = h_t q_{t,r} + D x_t mimo_x_r.
 * Each y_{t,r} is divided by its RMS over P and multiplied by norm_weight, if that is given, then by
 * silu(z_t mimo_z_r), if z is; out_t is the sum over ranks of mimo_o_r times that, or without mimo_o one row for each
 * rank and head (r H + h). R is 1 without ranks (SISO); factors that are absent are 1. Rot turns entries (2m, 2m+1) of
 * N, or with KRAIT_MAMBA3_HALVES (m, m + N/2), by theta_m; others stay. Rows of B and C are r G + g; head h uses group
 * h / (H / G). angles: stride 0 along H for one angle for all heads; dangles likewise then has the sums over H. Step
 * sizes dt are at least 0. cu_seqlens (B == 1): S packed sequences, whose states are rows of the states; a sequence
 * without tokens passes its states on. KRAIT_MAMBA3_REVERSE runs from the end: initial states are those after it,
 * final states those at time 0. final_angles are in 0 ... 2 pi; k is rotated; final_x is x before its ranks. */
#define KRAIT_MAMBA3_HALVES 1u
#define KRAIT_MAMBA3_REVERSE 2u /* excludes cu_seqlens */
#define KRAIT_MAMBA3_TF32 4u    /* as KRAIT_SSD_TF32 */

/* H % G == 0; 2 M <= N; P in 1..256, N in 1..512, R in 1..64. */
typedef struct krait_mamba3_args {
  krait_call call;
  float eps; /* of the norm */
  int32_t reserved;
  krait_tensor x;                    /* (B,L,H,P) activation type */
  krait_tensor log_decay, dt, trap;  /* (B,L,H) float type; trap before its sigmoid */
  krait_tensor Bmat, Cmat;           /* (B,L,RG,N) float type */
  krait_tensor B_bias, C_bias;       /* (H,R,N) */
  krait_tensor angles;               /* (B,L,H,M) before the tanh */
  krait_tensor Dvec;                 /* (H) or absent */
  krait_tensor z;                    /* (B,L,H,P) or absent */
  krait_tensor mimo_x, mimo_z, mimo_o; /* (H,R,P) or absent */
  krait_tensor norm_weight;          /* (H,P) or absent */
  krait_tensor initial_angles, initial_states, initial_B, initial_x; /* (B,H,M), (B,H,P,N), (B,R,H,N), (B,H,P); S in
                                                                        place of B with cu_seqlens; all or none */
  krait_tensor cu_seqlens;           /* (S+1) int32, from 0 to L, not decreasing, or absent */
  krait_tensor out;                  /* (B,L,H,P) type of x; without mimo_o (B,L,RH,P) */
  krait_tensor final_angles, final_states; /* as initial, float32, or absent */
  krait_tensor final_B, final_x;     /* as initial, or absent */
  krait_tensor kept;                 /* (B,H,(L + 63) / 64 (6208 + M) + 1) float32, dense, or absent: for a gradient on
                                        the same device, which is faster with it. Calls that leave nothing there are
                                        refused on a GPU; a CPU ignores it */
} krait_mamba3_args;
KRAIT_API int32_t krait_mamba3(const krait_ctx *ctx, const krait_mamba3_args *args);

/* The forward call stores nothing, but what it is asked to keep. */
typedef struct krait_mamba3_bwd_args {
  krait_call call; /* flags as forward */
  float eps;
  int32_t reserved;
  krait_tensor x, log_decay, dt, trap, Bmat, Cmat, B_bias, C_bias, angles, Dvec, z, mimo_x, mimo_z, mimo_o,
      norm_weight, initial_angles, initial_states, initial_B, initial_x, cu_seqlens; /* as forward */
  krait_tensor dout;                                                                 /* like out, or absent */
  krait_tensor dfinal_angles, dfinal_states, dfinal_B, dfinal_x;                     /* like their states, or absent */
  krait_tensor dx, dlog_decay, ddt, dtrap, dB, dC, dB_bias, dC_bias, dangles, dDvec, dz, dmimo_x, dmimo_z, dmimo_o,
      dnorm_weight, dinitial_angles, dinitial_states, dinitial_B, dinitial_x; /* like inputs; parameters': float32 */
  krait_tensor kept; /* as the forward call left it, or absent */
} krait_mamba3_bwd_args;
KRAIT_API int32_t krait_mamba3_bwd(const krait_ctx *ctx, const krait_mamba3_bwd_args *args);

/* One token for each of B sequences, from states that are read and written; n_states is at least B unless
 * state_batch_indices is given. */
typedef struct krait_mamba3_step_args {
  krait_call call; /* KRAIT_MAMBA3_HALVES */
  float eps;
  int32_t reserved;
  krait_tensor angle_state;          /* (n_states,H,M) float32 */
  krait_tensor state;                /* (n_states,H,P,N) */
  krait_tensor B_state, x_state;     /* (n_states,R,H,N), (n_states,H,P) */
  krait_tensor x;                    /* (B,H,P) activation type */
  krait_tensor log_decay, dt, trap;  /* (B,H) */
  krait_tensor Bmat, Cmat;           /* (B,RG,N) */
  krait_tensor B_bias, C_bias, angles, Dvec, z, mimo_x, mimo_z, mimo_o, norm_weight; /* as for the scan, without L */
  krait_tensor state_batch_indices;  /* (B) int32 or absent, as for state_update */
  krait_tensor out;                  /* (B,H,P), without mimo_o (B,RH,P); type of x */
} krait_mamba3_step_args;
KRAIT_API int32_t krait_mamba3_step(const krait_ctx *ctx, const krait_mamba3_step_args *args);

/* What the scan takes of a token's columns: dt = softplus(dt_raw + dt_bias), log_decay = -max(act(A_raw), A_floor) dt,
 * where act(v) is 1 + v from 0 on and 1 / (1 - v) below, or with KRAIT_MAMBA3_SOFTPLUS_A softplus(v). */
#define KRAIT_MAMBA3_SOFTPLUS_A 8u
typedef struct krait_mamba3_decay_args {
  krait_call call;
  float A_floor;
  int32_t reserved;
  krait_tensor dt_raw, A_raw, dt_bias, dt, log_decay; /* (R,H) but dt_bias: (H) or absent; dt, log_decay float32 */
} krait_mamba3_decay_args;
KRAIT_API int32_t krait_mamba3_decay(const krait_ctx *ctx, const krait_mamba3_decay_args *args);

/* ==== gated delta rule (Yang et al. 2024; with key_decay Kimi Delta Attention) =================================
 * k' = k / sqrt(sum k^2 + eps), q' = q / sqrt(sum q^2 + eps) / sqrt Dk of key head h / (H / Hk), or with
 * KRAIT_DELTA_KEYS_AS_GIVEN k' = k, q' = q / sqrt Dk; decay = exp(a), or with A exp(A softplus(a + dt_bias)), times
 * exp(key_decay) of its row; beta = beta_scale sigmoid(b), or with KRAIT_DELTA_BETA_AS_GIVEN beta_scale b. Per token,
 * with a state (Dk,Dv) for each head: state = decay state; state = state + k' (beta (v - state^T k'))^T; out =
 * state^T q'. H % Hk == 0; Dk and Dv at most 256. */
#define KRAIT_DELTA_KEYS_AS_GIVEN 1u
#define KRAIT_DELTA_BETA_AS_GIVEN 2u

typedef struct krait_gated_delta_rule_args {
  krait_call call;
  float eps, beta_scale;
  krait_tensor q, k;           /* (B,L,Hk,Dk) activation type */
  krait_tensor v;              /* (B,L,H,Dv) type of q */
  krait_tensor a;              /* (B,L,H) any float type, or absent: 0 */
  krait_tensor b;              /* (B,L,H) any float type */
  krait_tensor A, dt_bias;     /* (H) float32 or absent */
  krait_tensor key_decay;      /* (B,L,H,Dk) any float type, or absent: 0 */
  krait_tensor initial_states; /* (B,H,Dk,Dv) float32 or absent: 0 */
  krait_tensor out;            /* (B,L,H,Dv) type of q */
  krait_tensor final_states;   /* (B,H,Dk,Dv) float32 or absent */
} krait_gated_delta_rule_args;
KRAIT_API int32_t krait_gated_delta_rule(const krait_ctx *ctx, const krait_gated_delta_rule_args *args);

/* One decode step: dt = dt + dt_bias, softplus if requested; state = exp(dt A) state + dt B x; out = sum_n C state + D
 * x; times silu(z). Without heads: H = 1, P = channels, G = 1. Stride 0 is fine on every input. */
#define KRAIT_UPDATE_SOFTPLUS 1u
/* H % G == 0; n_states is at least B unless state_batch_indices is given. */
typedef struct krait_state_update_args {
  krait_call call;
  krait_tensor state;               /* (n_states,H,P,N) any float type, read and written */
  krait_tensor x, dt;               /* (B,H,P) */
  krait_tensor A;                   /* (H,P,N) float32 */
  krait_tensor Bmat, Cmat;          /* (B,G,N) */
  krait_tensor Dvec, dt_bias;       /* (H,P) or absent */
  krait_tensor z;                   /* (B,H,P) or absent */
  krait_tensor state_batch_indices; /* (B) int32 or absent; a negative one gives out 0 and no write, one of n_states or
                                       more is refused on the CPU and treated as negative on a GPU */
  krait_tensor out;                 /* (B,H,P) type of x */
} krait_state_update_args;
KRAIT_API int32_t krait_state_update(const krait_ctx *ctx, const krait_state_update_args *args);

/* ==== mamba2_inner (a Mamba-2 block) =========================================================================
 * zxbcdt = in_proj_weight x + in_proj_bias, or x with K == 0; its columns: z0 (F), x0 (F), z (HP), xBC (HP + 2GN), dt
 * (H); xBC = act(conv1d(xBC)); x, B, C = its columns; y = ssd of x with softplus(dt + dt_bias) clamped to dt_min ...
 * dt_max, A, B, C, D; gated = [silu(z0) x0, h], h = y silu(z) without norm_weight, else the RMS norm of y silu(z) in G
 * groups times norm_weight, or with KRAIT_MAMBA2_NORM_BEFORE_GATE silu(z) times the norm of y; out = out_proj_weight
 * gated + out_proj_bias, or gated with M == 0. seq_idx resets state and convolution. Tensors between steps have x's
 * type. K: columns of x, 0 without in_proj_weight; F: channels of the MLP; M: 0 without out_proj_weight. */
#define KRAIT_MAMBA2_NORM_BEFORE_GATE 1u
#define KRAIT_MAMBA2_LOG_A 2u /* A is -exp of what is given, which may be of any float type */
#define KRAIT_MAMBA2_TF32 4u /* float32 factors of the scan's products may be rounded to 11 significant bits */

typedef struct krait_mamba2_inner_args {
  krait_call call;
  int64_t P, G;                 /* 0 where the shapes say it: P those of Dvec, norm_weight or states */
  int32_t activation;           /* of the convolution: KRAIT_ACT_SILU or _NONE */
  float eps;                    /* of the norm */
  float dt_min, dt_max;         /* dt_max 0 stands for infinity */
  krait_tensor x;               /* (B,L,K) activation type, or (B,L,2F + 2HP + 2GN + H) with K == 0 */
  krait_tensor in_proj_weight;  /* (2F + 2HP + 2GN + H, K); absent with K == 0 */
  krait_tensor in_proj_bias;    /* (2F + 2HP + 2GN + H) or absent */
  krait_tensor conv_weight;     /* (HP + 2GN, W) */
  krait_tensor conv_bias;       /* (HP + 2GN) or absent */
  krait_tensor dt_bias;         /* (H) or absent */
  krait_tensor A;               /* (H) float32, or with KRAIT_MAMBA2_LOG_A any float type */
  krait_tensor Dvec;            /* (H,P) or absent; stride 0 along P for one value per head */
  krait_tensor norm_weight;     /* (HP) or absent: no norm */
  krait_tensor out_proj_weight; /* (M, F + HP); absent with M == 0 */
  krait_tensor out_proj_bias;   /* (M) or absent */
  krait_tensor initial_states;  /* (B,H,P,N) or absent: of the scan */
  krait_tensor seq_idx;         /* (B,L) int32 or absent, as for ssd */
  krait_tensor out;             /* (B,L,M), or (B,L,F + HP) with M == 0; any activation type */
  krait_tensor final_states;    /* (B,H,P,N) float32 or absent */
  krait_tensor zxbcdt;          /* (B,L,2F + 2HP + 2GN + H) type of x, or absent: stored for the gradient,
                                   as are */
  krait_tensor xBC;             /* (B,L,HP + 2GN) type of x, or absent: after the convolution */
  krait_tensor y;               /* (B,L,HP) type of x, or absent; not without norm_weight */
  krait_tensor gated;           /* (B,L,F + HP) type of x, or absent; not with M == 0 */
} krait_mamba2_inner_args;
KRAIT_API int32_t krait_mamba2_inner(const krait_ctx *ctx, const krait_mamba2_inner_args *args);

/* zxbcdt, xBC, y and gated are those of the forward call; absent ones are recomputed. */
typedef struct krait_mamba2_inner_bwd_args {
  krait_call call; /* flags as forward */
  int64_t P, G;
  int32_t activation;
  float eps, dt_min, dt_max;
  krait_tensor x, in_proj_weight, in_proj_bias, conv_weight, conv_bias, dt_bias, A, Dvec, norm_weight, out_proj_weight,
      out_proj_bias, initial_states, seq_idx, zxbcdt, xBC, y, gated;               /* as forward */
  krait_tensor dout;                                                               /* like out */
  krait_tensor dfinal_states;                                                      /* (B,H,P,N) float type or absent */
  krait_tensor dx;                                                                 /* like x */
  krait_tensor din_proj_weight, din_proj_bias, dconv_weight, dconv_bias, ddt_bias; /* like their inputs */
  krait_tensor dA;                                                                 /* (H) type of A */
  krait_tensor dDvec; /* (H,P); where Dvec's stride along P is 0 (H,1), the sums over P */
  krait_tensor dnorm_weight, dout_proj_weight, dout_proj_bias, dinitial_states; /* like their inputs */
} krait_mamba2_inner_bwd_args;
KRAIT_API int32_t krait_mamba2_inner_bwd(const krait_ctx *ctx, const krait_mamba2_inner_bwd_args *args);

/* ==== mamba3_inner (a Mamba-3 block) =========================================================================
 * columns = in_proj_weight x, or x with K == 0: z (HP), x (HP), B (RGN), C (RGN), dt (H), A (H), trap (H), angles (M);
 * dt, log_decay = mamba3_decay of dt, A and dt_bias; each N of B and C is divided by its RMS and multiplied by B_norm,
 * C_norm; y = mamba3 of these, with z and the angles for all heads; out = out_proj_weight y, or y with D == 0. Flags:
 * KRAIT_MAMBA3_HALVES, KRAIT_MAMBA3_SOFTPLUS_A. Tensors between steps have x's type, but dt and log_decay, which are
 * float32. K: columns of x, 0 without in_proj_weight; D: 0 without out_proj_weight. R is 1 without mimo_o. */
typedef struct krait_mamba3_inner_args {
  krait_call call;
  int64_t P, G, M;                     /* 0 where the shapes say it */
  float A_floor, BC_eps, eps;          /* BC_eps: of the norms of B and C, eps: of that of norm_weight */
  int32_t reserved;
  krait_tensor x, in_proj_weight;      /* (B,L,K) and (columns, K), or (B,L,columns) and absent with K == 0 */
  krait_tensor dt_bias, B_norm, C_norm, B_bias, C_bias, Dvec; /* (H) or absent, (N) twice, as for mamba3 */
  krait_tensor mimo_x, mimo_z, mimo_o, norm_weight;           /* as for mamba3 */
  krait_tensor out_proj_weight;        /* (D,HP); absent with D == 0 */
  krait_tensor initial_angles, initial_states, initial_B, initial_x, cu_seqlens; /* as for mamba3 */
  krait_tensor out;                    /* (B,L,D), or (B,L,HP) with D == 0; any activation type */
  krait_tensor final_angles, final_states, final_B, final_x; /* as for mamba3 */
  krait_tensor columns, BC, dt, log_decay, y; /* (B,L,columns), (B,L,2RGN): behind the norms, (B,L,H) float32 twice,
                                                 (B,L,HP); each or absent: stored for the gradient. y not with D == 0 */
  krait_tensor kept;                          /* as for mamba3 */
} krait_mamba3_inner_args;
KRAIT_API int32_t krait_mamba3_inner(const krait_ctx *ctx, const krait_mamba3_inner_args *args);

/* columns, BC, dt, log_decay, y and kept are those of the forward call; absent ones are recomputed. */
typedef struct krait_mamba3_inner_bwd_args {
  krait_call call; /* flags as forward, and what follows, but out, of which dout is the gradient */
  int64_t P, G, M;
  float A_floor, BC_eps, eps;
  int32_t reserved;
  krait_tensor x, in_proj_weight, dt_bias, B_norm, C_norm, B_bias, C_bias, Dvec, mimo_x, mimo_z, mimo_o, norm_weight,
      out_proj_weight, initial_angles, initial_states, initial_B, initial_x, cu_seqlens, columns, BC, dt, log_decay, y,
      kept;
  krait_tensor dout, dfinal_angles, dfinal_states, dfinal_B, dfinal_x; /* like their tensors; all but dout or absent */
  krait_tensor dx, din_proj_weight, ddt_bias, dB_norm, dC_norm, dB_bias, dC_bias, dDvec, dmimo_x, dmimo_z, dmimo_o,
      dnorm_weight, dout_proj_weight, dinitial_angles, dinitial_states, dinitial_B, dinitial_x; /* like their inputs */
} krait_mamba3_inner_bwd_args;
KRAIT_API int32_t krait_mamba3_inner_bwd(const krait_ctx *ctx, const krait_mamba3_inner_bwd_args *args);

/* ==== attention (Vaswani et al. 2017; Dao 2023, "FlashAttention-2") ===========================================
 * Of sequence b, query head h with key head h / (H / Hk), query i of nq and key j of nk:
 *   s_ij = scale q_i . k_j;  softcap: s := c tanh(s / c);  alibi_slopes: s -= slope |i + nk - nq - j|
 *   visible: j <= i + nk - nq with KRAIT_ATTENTION_CAUSAL (bottom right); with KRAIT_ATTENTION_WINDOW also
 *   i + nk - nq - window_left <= j <= i + nk - nq + window_right, where -1 is unlimited
 *   lse_i = log(sum_j exp(s_ij) + exp(sink_h));  P_ij = exp(s_ij - lse_i);  out_i = sum_j P_ij keep_ij / (1 - dropout)
 *                                                v_j
 * A query without a visible key: out 0, lse +inf (whatever the sink is), gradients 0. So are queries from nq on
 * (seqused_q). Queries lie in (B,Lq), or packed with cu_seqlens_q: then the first size of q, out and lse is 1 and Lq
 * counts the tokens of all B sequences. Keys and values are (Bk,Lk): sequence b is row b (Bk == B), row
 * cache_batch_idx[b], packed with cu_seqlens_k (Bk == 1), or pages of Lk keys, of which block_table (B,n_pages) names
 * the row of each (entries past the last key in use are not read). nk is Lk, the packed length, or Lk n_pages;
 * seqused_k says less. leftpad_k: the first keys are skipped, nk is so many less, key 0 is the first after them. The
 * CPU refuses offsets, lengths and rows that are out of range; on a GPU they must be right. A negative cache_batch_idx
 * has no keys. Dropout: Philox-4x32-10 (Salmon et al. 2011) with key (rng[0], rng[1] ^ rng[3]) and counter (j / 32 * 4
 * + j % 8 / 2, i / 16 * 8 + i % 8, b H + h, rng[2]) gives 16 bytes, word 0 first, lowest bits first; key j of query i
 * takes byte j % 32 / 8 * 4 + i % 16 / 8 * 2 + j % 2, and is kept if that is less than the whole part of 256 (1 -
 * dropout) + 0.5, in float32. i and j count within the sequence (j after leftpad_k). rng is seed, then offset, low
 * words first. */
#define KRAIT_ATTENTION_CAUSAL 1u
#define KRAIT_ATTENTION_WINDOW 2u /* window_left and window_right apply */
/* The gradient may be summed in any order: not bit-identical for repeated calls, faster on some GPUs. */
#define KRAIT_ATTENTION_ANY_ORDER 4u

/* H % Hk == 0; D, Dv in 1..512. */
typedef struct krait_attention_args {
  krait_call call;
  int64_t max_q, max_k; /* length of the longest packed sequence, or more; 0: unknown */
  int64_t window_left, window_right;
  float scale;   /* 0 is 1 / sqrt(D) */
  float softcap; /* 0: none; not with dropout */
  float dropout; /* 0 <= dropout < 1 */
  int32_t reserved;
  krait_tensor q;                    /* (B,Lq,H,D), or (1,Lq,H,D) with cu_seqlens_q */
  krait_tensor k;                    /* (Bk,Lk,Hk,D) type of q, or 16 bits beside a float32 q */
  krait_tensor v;                    /* (Bk,Lk,Hk,Dv) type of k */
  krait_tensor cu_seqlens_q;         /* (B+1) int32, from 0 to Lq, not decreasing, or absent */
  krait_tensor cu_seqlens_k;         /* (B+1) int32, from 0 to Lk, or absent */
  krait_tensor seqused_q, seqused_k; /* (B) int32 or absent: the length used of each sequence */
  krait_tensor leftpad_k;            /* (B) int32 or absent; not with block_table */
  krait_tensor cache_batch_idx;      /* (B) int32 or absent; not with cu_seqlens_k, block_table */
  krait_tensor block_table;          /* (B,n_pages) int32 or absent; not with cu_seqlens_k */
  krait_tensor alibi_slopes;         /* (B,H) float32 or absent; stride 0 along B for one value per head */
  krait_tensor sinks;                /* (H) any float type or absent */
  krait_tensor rng;                  /* (4) int32, only and always with dropout */
  krait_tensor out;                  /* (B,Lq,H,Dv) or (1,Lq,H,Dv) type of q */
  krait_tensor lse;                  /* (B,H,Lq) or (1,H,Lq) float32, or absent */
} krait_attention_args;
KRAIT_API int32_t krait_attention(const krait_ctx *ctx, const krait_attention_args *args);

/* P is recomputed from lse; memory is O(L). Rows of k and v that no query sees have gradient 0. No pages, cache
 * rows or left padding.
 *   delta_i = sum dout_i out_i;  dP = keep / (1 - dropout) dout v^T;  dS = P (dP - delta + dlse), times 1 - (s / c)^2
 *                                with softcap
 *   dq = scale dS k;  dk = scale dS^T q;  dv = (P keep / (1 - dropout))^T dout;  dsinks = sum exp(sink - lse) (dlse -
 *                     delta) */
typedef struct krait_attention_bwd_args {
  krait_call call; /* flags as forward */
  int64_t max_q, max_k, window_left, window_right;
  float scale, softcap, dropout;
  int32_t reserved;
  krait_tensor q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, alibi_slopes, sinks, rng; /* as forward */
  krait_tensor out, lse; /* of the forward call; both must be given */
  krait_tensor dout;     /* like out */
  krait_tensor dlse;     /* like lse, or absent; ignored where lse is infinite */
  krait_tensor dq;       /* like q */
  krait_tensor dk, dv;   /* like k, v */
  krait_tensor dsinks;   /* (H) */
} krait_attention_bwd_args;
KRAIT_API int32_t krait_attention_bwd(const krait_ctx *ctx, const krait_attention_bwd_args *args);

/* Rotary embedding (Su et al. 2021) of the first 2R of D features: of pair r, (x1, x2) becomes (x1 cos - x2 sin, x1 sin
 * + x2 cos), with the row of cos and sin of the token's position: its place in the sequence + offsets[b]. Pairs are (r,
 * r + R), or (2r, 2r + 1) if interleaved. */
#define KRAIT_ROTARY_INTERLEAVED 1u
#define KRAIT_ROTARY_INVERSE 2u /* by the negative angle: the gradient */
#define KRAIT_ROTARY_STILL 4u   /* every token of a sequence has position offsets[b] */

typedef struct krait_rotary_args {
  krait_call call;
  krait_tensor x;          /* (B,L,H,D), or (1,L,H,D) with cu_seqlens */
  krait_tensor cos, sin;   /* (T,R) any float type */
  krait_tensor offsets;    /* (B) int32 or absent: 0; positions must be below T (CPU: refused; GPU: T - 1 used) */
  krait_tensor cu_seqlens; /* (B+1) int32, from 0 to L, or absent */
  krait_tensor out;        /* like x; may be x itself */
} krait_rotary_args;
KRAIT_API int32_t krait_rotary(const krait_ctx *ctx, const krait_rotary_args *args);

/* Writes L new keys and values per sequence after the existing cache_seqlens[b], into a cache as krait_attention reads
 * it; if cos and sin are given, rotary embedding is applied to the keys first. seqused: cache_seqlens + L, for the
 * attention that follows. */
typedef struct krait_attention_append_args {
  krait_call call;              /* KRAIT_ROTARY_INTERLEAVED */
  krait_tensor k, v;            /* (B,L,Hk,D), (B,L,Hk,Dv) */
  krait_tensor cos, sin;        /* (T,R) any float type; both or neither */
  krait_tensor cache_seqlens;   /* (B) int32 or absent: 0 */
  krait_tensor cache_batch_idx; /* (B) int32 or absent; a negative one is not written */
  krait_tensor block_table;     /* (B,n_pages) int32 or absent */
  krait_tensor k_cache;         /* (Bk,Lk,Hk,D) type of k, or another, rounded */
  krait_tensor v_cache;         /* (Bk,Lk,Hk,Dv) type of k_cache */
  krait_tensor seqused;         /* (B) int32 or absent, written */
} krait_attention_append_args;
KRAIT_API int32_t krait_attention_append(const krait_ctx *ctx, const krait_attention_append_args *args);

/* ==== norms ==================================================================================================
 * add_norm: v = x rowscale (+ x1) (+ residual); out = (v - mean) / sqrt(var + eps) weight + bias, or with RMS
 * v / sqrt(mean v^2 + eps) weight + bias; residual_out = v. weight1/bias1 give a second output out1 from the same
 * statistics. Rows are R, features M. */
#define KRAIT_NORM_RMS 1u
typedef struct krait_add_norm_args {
  krait_call call;
  float eps;
  int32_t reserved;
  krait_tensor x;            /* (R,M) */
  krait_tensor x1;           /* (R,M) or absent */
  krait_tensor residual;     /* (R,M) or absent */
  krait_tensor rowscale;     /* (R) or absent: multiplies x */
  krait_tensor weight, bias; /* (M); either may be absent (1, 0) */
  krait_tensor weight1, bias1;
  krait_tensor out, out1;    /* (R,M); out1 only with weight1; out may be x itself */
  krait_tensor residual_out; /* (R,M) or absent; may be residual itself */
} krait_add_norm_args;
KRAIT_API int32_t krait_add_norm(const krait_ctx *ctx, const krait_add_norm_args *args);

typedef struct krait_add_norm_bwd_args {
  krait_call call;
  float eps;
  int32_t reserved;
  krait_tensor v;                          /* (R,M) residual_out of the forward call (x itself if nothing was added) */
  krait_tensor rowscale, weight, weight1;  /* as forward */
  krait_tensor dout, dout1, dresidual_out; /* any may be absent */
  krait_tensor dx, dx1, dresidual;         /* dx = rowscale dv; dx1 = dresidual = dv */
  krait_tensor dweight, dbias, dweight1, dbias1;
} krait_add_norm_bwd_args;
KRAIT_API int32_t krait_add_norm_bwd(const krait_ctx *ctx, const krait_add_norm_bwd_args *args);

/* gated_norm: norm(x) weight + bias times silu(z), or with KRAIT_GATED_NORM_GATE_FIRST norm(x silu(z)) weight + bias.
 * Statistics over contiguous groups of group_size features. */
#define KRAIT_GATED_NORM_RMS 1u
#define KRAIT_GATED_NORM_GATE_FIRST 2u
typedef struct krait_gated_norm_args {
  krait_call call;
  int64_t group_size; /* M % group_size == 0 */
  float eps;
  int32_t reserved;
  krait_tensor x;            /* (R,M) */
  krait_tensor z;            /* (R,M) or absent */
  krait_tensor weight, bias; /* (M); bias may be absent */
  krait_tensor out;          /* (R,M) type of x */
} krait_gated_norm_args;
KRAIT_API int32_t krait_gated_norm(const krait_ctx *ctx, const krait_gated_norm_args *args);

typedef struct krait_gated_norm_bwd_args {
  krait_call call;
  int64_t group_size;
  float eps;
  int32_t reserved;
  krait_tensor x, z, weight, bias;
  krait_tensor dout;
  krait_tensor dx, dz, dweight, dbias;
} krait_gated_norm_bwd_args;
KRAIT_API int32_t krait_gated_norm_bwd(const krait_ctx *ctx, const krait_gated_norm_bwd_args *args);

/* ==== layers ================================================================================================= */
/* out = residual + factor act(S A Bmat + bias) (S A B2 + bias2): rows M, inputs K, outputs N. S is scale times
 * row_scale; B2 makes a gated product (SwiGLU has activation SILU). Sums are float32, whatever the storage. A linear
 * layer with weight (N,K): Bmat is the weight with strides {1, row stride}. Its gradients: dX = dY W has A = dY, Bmat =
 * W as stored; dW (N,K) = dYᵀ X has A = dY with its strides swapped and Bmat = X. For a batch of P products every
 * tensor except bias and bias2 has P as an additional last dimension. */

/* Float32 factors may be rounded to 11 significant bits, for tensor cores; rows that do not use them ignore it. */
#define KRAIT_GEMM_TF32 1u

typedef struct krait_gemm_args {
  krait_call call;
  int32_t activation;     /* KRAIT_ACT_* */
  float scale;            /* 0 is 1 */
  krait_tensor A;         /* (M,K) activation type */
  krait_tensor Bmat;      /* (K,N) any float type */
  krait_tensor bias;      /* (N) any float type, or absent */
  krait_tensor residual;  /* (M,N) type of A or float32, or absent */
  krait_tensor out;       /* (M,N) type of A or float32; may be residual itself (same type and strides) */
  krait_tensor B2;        /* (K,N) type of Bmat, or absent */
  krait_tensor bias2;     /* (N) any float type, or absent */
  krait_tensor row_scale; /* (M) any float type, or absent */
  krait_tensor factor;    /* (M,N) type of A or float32, or absent; not on a GPU */
} krait_gemm_args;
KRAIT_API int32_t krait_gemm(const krait_ctx *ctx, const krait_gemm_args *args);

/* Element by element: out = f(x) x_scale + y y_scale; f is the activation, f(x) 1 if x is absent, an absent y 0 (1 in a
 * product). For sums, gates, casts, copies into another dimension order, constants, and their gradients. */
#define KRAIT_POINTWISE_PRODUCT 1u /* out = f(x) y x_scale */
#define KRAIT_POINTWISE_SLOPE 2u   /* f is the activation's derivative */
#define KRAIT_POINTWISE_GATE 4u    /* alone; gradients of f(g) u, I = 2: x is g, u; out f'(g) u y[0], f(g) y[0] */
typedef struct krait_pointwise_args {
  krait_call call;
  int32_t activation; /* KRAIT_ACT_NONE, _SILU, _SIGMOID, _RELU, _EXP or _GELU */
  float x_scale, y_scale;
  int32_t reserved;
  krait_tensor x, y; /* (I,J,K,N) any float type; either may be absent */
  krait_tensor out;  /* (I,J,K,N) any float type; may be x or y itself (same strides and type) */
} krait_pointwise_args;
KRAIT_API int32_t krait_pointwise(const krait_ctx *ctx, const krait_pointwise_args *args);

/* out[m] = sum of x[r,m] over r: the gradient of a bias added to every row. */
typedef struct krait_sum_rows_args {
  krait_call call;
  krait_tensor x;   /* (R,M) any float type */
  krait_tensor out; /* (M) any float type */
} krait_sum_rows_args;
KRAIT_API int32_t krait_sum_rows(const krait_ctx *ctx, const krait_sum_rows_args *args);

/* ==== convolutions over (B,H,W,C), channels last =============================================================
 * depthwise_conv: out[b,h,w,c] = bias[c] + sum over i, j of weight[c,i,j] x[b, h + i DH - PH, w + j DW - PW, c],
 * zeros outside. */
typedef struct krait_depthwise_conv_args {
  krait_call call;
  int64_t DH, DW;      /* dilation */
  int64_t PH, PW;      /* zero padding before the first position; as many zeros follow as needed */
  krait_tensor x;      /* (B,H,W,C) float32, as all of these */
  krait_tensor weight; /* (C,KH,KW) */
  krait_tensor bias;   /* (C) or absent */
  krait_tensor out;    /* (B,H,W,C) */
} krait_depthwise_conv_args;
KRAIT_API int32_t krait_depthwise_conv(const krait_ctx *ctx, const krait_depthwise_conv_args *args);

typedef struct krait_depthwise_conv_bwd_args {
  krait_call call;
  int64_t DH, DW, PH, PW;
  krait_tensor x, weight; /* as forward */
  krait_tensor dout;
  krait_tensor dx, dweight, dbias;
} krait_depthwise_conv_bwd_args;
KRAIT_API int32_t krait_depthwise_conv_bwd(const krait_ctx *ctx, const krait_depthwise_conv_bwd_args *args);

/* unfold: each window of KH by KW positions as a row: out[b,i,j,(k,l,c)] = x[b, i SH + k - PH, j SW + l - PW, c], zeros
 * outside. Followed by a product: any dense convolution. fold adds the rows at their original positions, the gradient
 * of unfold; after a product: a transposed convolution, or overlap-add. K is KH KW C. */
typedef struct krait_unfold_args {
  krait_call call;
  int64_t KH, KW, SH, SW, PH, PW;
  krait_tensor x;   /* (B,H,W,C) float32 */
  krait_tensor out; /* (B,OH,OW,K) float32 */
} krait_unfold_args;
KRAIT_API int32_t krait_unfold(const krait_ctx *ctx, const krait_unfold_args *args);

typedef struct krait_fold_args {
  krait_call call;
  int64_t KH, KW, SH, SW, PH, PW;
  krait_tensor x;   /* (B,OH,OW,K) float32 */
  krait_tensor out; /* (B,H,W,C) float32 */
} krait_fold_args;
KRAIT_API int32_t krait_fold(const krait_ctx *ctx, const krait_fold_args *args);

/* ==== instance norm and pools over (B,S,C) =====================================================================
 * instance_norm: v = (x - mean) / sqrt(var + eps) weight + bias with the statistics of each (b, c) over S; out = v, or
 * where slope is given and v is not above 0: slope v (PReLU). */
typedef struct krait_instance_norm_args {
  krait_call call;
  float eps;
  int32_t reserved;
  krait_tensor x;            /* (B,S,C) float32, as all of these */
  krait_tensor weight, bias; /* (C) or absent */
  krait_tensor slope;        /* (C) or absent */
  krait_tensor out;          /* (B,S,C) */
} krait_instance_norm_args;
KRAIT_API int32_t krait_instance_norm(const krait_ctx *ctx, const krait_instance_norm_args *args);

typedef struct krait_instance_norm_bwd_args {
  krait_call call;
  float eps;
  int32_t reserved;
  krait_tensor x, weight, bias, slope; /* as forward */
  krait_tensor dout;
  krait_tensor dx, dweight, dbias, dslope;
} krait_instance_norm_bwd_args;
KRAIT_API int32_t krait_instance_norm_bwd(const krait_ctx *ctx, const krait_instance_norm_bwd_args *args);

/* pool: the mean over S of each (b, c); with a flag the sum or the maximum. The gradient of the maximum goes to the
 * first position that has it. */
#define KRAIT_POOL_SUM 1u
#define KRAIT_POOL_MAX 2u
typedef struct krait_pool_args {
  krait_call call;
  krait_tensor x;   /* (B,S,C) float32 */
  krait_tensor out; /* (B,C) float32 */
} krait_pool_args;
KRAIT_API int32_t krait_pool(const krait_ctx *ctx, const krait_pool_args *args);

typedef struct krait_pool_bwd_args {
  krait_call call;
  krait_tensor x;
  krait_tensor dout;
  krait_tensor dx;
} krait_pool_bwd_args;
KRAIT_API int32_t krait_pool_bwd(const krait_ctx *ctx, const krait_pool_bwd_args *args);

/* ==== recurrent networks =====================================================================================
 * rnn: a GRU layer, or with KRAIT_RNN_LSTM an LSTM layer, after its input product: x has the gates' input parts (r, z,
 * n; or i, f, g, o), input bias included. U = weight h + bias. GRU: r, z = sigmoid(x + U), n = tanh(x + r U), h = (1 -
 * z) n + z h. LSTM: i, f, o = sigmoid(x + U), g = tanh(x + U), c = f c + i g, h = o tanh(c). h and c start at 0. The
 * gradient reads out, and for LSTM cells. */
#define KRAIT_RNN_LSTM 1u
typedef struct krait_rnn_args {
  krait_call call;
  krait_tensor x;      /* (B,L,3H or 4H) float32, as all of these */
  krait_tensor weight; /* (3H or 4H, H) */
  krait_tensor bias;   /* (3H or 4H) or absent */
  krait_tensor out;    /* (B,L,H) */
  krait_tensor cells;  /* (B,L,H) or absent; LSTM only */
} krait_rnn_args;
KRAIT_API int32_t krait_rnn(const krait_ctx *ctx, const krait_rnn_args *args);

typedef struct krait_rnn_bwd_args {
  krait_call call;
  krait_tensor x, weight, bias, out, cells; /* as forward */
  krait_tensor dout;
  krait_tensor dx, dweight, dbias;
} krait_rnn_bwd_args;
KRAIT_API int32_t krait_rnn_bwd(const krait_ctx *ctx, const krait_rnn_bwd_args *args);

/* ==== spectra and losses =======================================================================================
 * to_polar: mag = (re^2 + im^2 + eps)^(power / 2), pha = atan2(im + im_add, re + re_add). from_polar: re, im =
 * mag^power (cos, sin)(pha). */
typedef struct krait_to_polar_args {
  krait_call call;
  float eps, power, re_add, im_add;
  krait_tensor re, im;   /* (I,J,K) float32, as all of these */
  krait_tensor mag, pha; /* either may be absent */
} krait_to_polar_args;
KRAIT_API int32_t krait_to_polar(const krait_ctx *ctx, const krait_to_polar_args *args);

typedef struct krait_to_polar_bwd_args {
  krait_call call;
  float eps, power, re_add, im_add;
  krait_tensor re, im;
  krait_tensor dmag, dpha;
  krait_tensor dre, dim;
} krait_to_polar_bwd_args;
KRAIT_API int32_t krait_to_polar_bwd(const krait_ctx *ctx, const krait_to_polar_bwd_args *args);

typedef struct krait_from_polar_args {
  krait_call call;
  float power;
  int32_t reserved;
  krait_tensor mag, pha; /* (I,J,K) float32; mag >= 0 */
  krait_tensor re, im;
} krait_from_polar_args;
KRAIT_API int32_t krait_from_polar(const krait_ctx *ctx, const krait_from_polar_args *args);

typedef struct krait_from_polar_bwd_args {
  krait_call call;
  float power;
  int32_t reserved;
  krait_tensor mag, pha;
  krait_tensor dre, dim;
  krait_tensor dmag, dpha;
} krait_from_polar_bwd_args;
KRAIT_API int32_t krait_from_polar_bwd(const krait_ctx *ctx, const krait_from_polar_bwd_args *args);

/* loss: out = scale sum (x - y)^2, or with KRAIT_LOSS_ANGLE scale sum |d - 2 pi round(d / 2 pi)|, d = x - y. y absent:
 * 0. */
#define KRAIT_LOSS_ANGLE 1u
typedef struct krait_loss_args {
  krait_call call;
  float scale;
  int32_t reserved;
  krait_tensor x, y; /* (I,J,K,N) float32 */
  krait_tensor out;  /* (1) float32 */
} krait_loss_args;
KRAIT_API int32_t krait_loss(const krait_ctx *ctx, const krait_loss_args *args);

typedef struct krait_loss_bwd_args {
  krait_call call;
  float scale;
  int32_t reserved;
  krait_tensor x, y;
  krait_tensor dout;
  krait_tensor dx, dy;
} krait_loss_bwd_args;
KRAIT_API int32_t krait_loss_bwd(const krait_ctx *ctx, const krait_loss_bwd_args *args);

/* transform: out = x matrix with sums in float64, for transforms between samples and spectra, where weak bins are
 * differences of strong ones. The matrix is constant: it has no gradient. */
typedef struct krait_transform_args {
  krait_call call;
  krait_tensor x;      /* (R,K) float32, as all of these */
  krait_tensor matrix; /* (K,N) */
  krait_tensor out;    /* (R,N) */
} krait_transform_args;
KRAIT_API int32_t krait_transform(const krait_ctx *ctx, const krait_transform_args *args);

/* spectral_norm: one step of power iteration, v = normed(weight^T u), u_out = normed(weight v), sigma = u_out . weight
 * v, out = weight / sigma. Its gradient treats u_out and v as constants: dweight = (dout - (dout . out) u v^T) /
 * sigma. */
typedef struct krait_spectral_norm_args {
  krait_call call;
  krait_tensor weight; /* (O,K) float32, as all of these */
  krait_tensor u;      /* (O) */
  krait_tensor out;    /* (O,K) */
  krait_tensor u_out;  /* (O) */
  krait_tensor v_out;  /* (K) */
  krait_tensor sigma;  /* (1) */
} krait_spectral_norm_args;
KRAIT_API int32_t krait_spectral_norm(const krait_ctx *ctx, const krait_spectral_norm_args *args);

typedef struct krait_spectral_norm_bwd_args {
  krait_call call;
  krait_tensor out, u, v, sigma; /* as returned by the forward call */
  krait_tensor dout;             /* (O,K) */
  krait_tensor dweight;          /* (O,K) */
} krait_spectral_norm_bwd_args;
KRAIT_API int32_t krait_spectral_norm_bwd(const krait_ctx *ctx, const krait_spectral_norm_bwd_args *args);
/* out[r,m] = table[index[r],m]: embeddings. */
typedef struct krait_gather_rows_args {
  krait_call call;
  krait_tensor table; /* (V,M) any float type */
  krait_tensor index; /* (R) int32; a negative one gives zeros, one of V or more is refused on the CPU and treated
                         as negative on a GPU */
  krait_tensor out;   /* (R,M) any float type */
} krait_gather_rows_args;
KRAIT_API int32_t krait_gather_rows(const krait_ctx *ctx, const krait_gather_rows_args *args);

/* out[r] = the first m with the largest x[r,m]; NaN is ignored, and a row of only NaN gives 0. */
typedef struct krait_argmax_rows_args {
  krait_call call;
  krait_tensor x;   /* (R,M) any float type */
  krait_tensor out; /* (R) int32 */
} krait_argmax_rows_args;
KRAIT_API int32_t krait_argmax_rows(const krait_ctx *ctx, const krait_argmax_rows_args *args);

/* out[m,n] = bias[n] + sum over s of scales[n,s] sum over i < 32 of A[m,32s+i] w[n,32s+i]: 8-bit weights in blocks of
 * 32 inputs, each with a scale (q8_0). A word holds four weights, the first in its lowest byte, each -128 to 127. On a
 * GPU one or two rows of float16 or bfloat16. */
typedef struct krait_gemm_q8_args {
  krait_call call;
  krait_tensor A;       /* (M,32S) activation type */
  krait_tensor qweight; /* (N,8S) int32 */
  krait_tensor scales;  /* (N,S) any float type */
  krait_tensor bias;    /* (N) any float type, or absent */
  krait_tensor out;     /* (M,N) any activation type */
} krait_gemm_q8_args;
KRAIT_API int32_t krait_gemm_q8(const krait_ctx *ctx, const krait_gemm_q8_args *args);

/* out[m,n] = bias[n] + sum over k of A[m,k] w[n,k]: 4-bit weights in super-blocks of 256 inputs, 36 words each (q4_K):
 * two float16 d and e, eight 6-bit scales s and minima t, each for 32 inputs, and 256 4-bit q; w = d s q - e t. See
 * gemm_q4k_ref.c for the bit layout. */
typedef struct krait_gemm_q4k_args {
  krait_call call;
  krait_tensor A;       /* (M,256S) activation type */
  krait_tensor qweight; /* (N,36S) int32 */
  krait_tensor bias;    /* (N) any float type, or absent */
  krait_tensor out;     /* (M,N) any activation type */
} krait_gemm_q4k_args;
KRAIT_API int32_t krait_gemm_q4k(const krait_ctx *ctx, const krait_gemm_q4k_args *args);

/* One token of each of B sequences through Y layers of Mamba (Gu & Dao 2023), or without dt_proj of Mamba-2, whose
 * states move on. A layer, with h = x at first:
 *   n = norm_weight h / sqrt(mean(h h) + eps);  (x, z) = in_proj n, of Mamba-2 (z, x, B, C, dt) = in_proj n
 *   what the convolution takes (x, of Mamba-2 x, B and C) becomes silu(conv(.) + conv_bias), its last W - 1 inputs stay
 *     in conv_state
 *   Mamba: (r, B, C) = x_proj x;  dt = softplus(dt_proj r + dt_bias);  of Mamba-2 dt = softplus(dt + dt_bias), one for
 *                                 each head of E / H channels
 *   ssm_state = exp(dt A) ssm_state + dt x B;  y = sum over states of ssm_state C + Dvec x, times silu(z)
 *   Mamba-2, in G groups of channels: y = gate_norm y / sqrt(mean(y y) + 1e-5)
 *   h += out_proj y
 * Head h uses B and C of group h / (H / G). Layers lie at equal distances: stacked tensors may be views of what was
 * loaded one by one. */
/* H % G == 0, E % H == 0; SD and SE are D / 32 and E / 32. */
typedef struct krait_mamba_decode_args {
  krait_call call;
  float eps;
  int32_t reserved;
  krait_tensor dt_proj;                                           /* (Y,E,R); absent: Mamba-2 */
  krait_tensor in_proj_qweight, x_proj_qweight, out_proj_qweight; /* (Y,.,8S) int32, as of krait_gemm_q8: instead of
                                                               in_proj, x_proj and out_proj, all of them or none */
  krait_tensor in_proj_scales, x_proj_scales, out_proj_scales;    /* (Y,.,S) */
  krait_tensor x;                                                 /* (B,D) activation type */
  krait_tensor norm_weight;                                       /* (Y,D) */
  krait_tensor in_proj;     /* (Y,2E,D), Mamba-2 (Y,2E+2GN+H,D); absent with in_proj_qweight, as x_proj and out_proj */
  krait_tensor conv_weight; /* (Y,C,W), C = E, Mamba-2 E+2GN */
  krait_tensor conv_bias;   /* (Y,C) or absent */
  krait_tensor x_proj;      /* (Y,R+2N,E); absent: Mamba-2 */
  krait_tensor dt_bias;     /* (Y,E), Mamba-2 (Y,H) float32 */
  krait_tensor A;           /* (Y,E,N), Mamba-2 (Y,H) float32 */
  krait_tensor Dvec;        /* (Y,E), Mamba-2 (Y,H) float32 */
  krait_tensor gate_norm;   /* (Y,E), Mamba-2 alone */
  krait_tensor out_proj;    /* (Y,D,E) */
  krait_tensor conv_state;  /* (Y,n_states,C,W-1), read and written */
  krait_tensor ssm_state;   /* (Y,n_states,E,N), read and written */
  krait_tensor state_batch_indices; /* (B) int32, different ones, or absent; a negative one gives out x and no write,
                                       one of n_states or more is refused on the CPU and treated as negative on a GPU */
  krait_tensor out;                 /* (B,D) float32 */
} krait_mamba_decode_args;
KRAIT_API int32_t krait_mamba_decode(const krait_ctx *ctx, const krait_mamba_decode_args *args);

#ifdef __cplusplus
}
#endif
#endif
