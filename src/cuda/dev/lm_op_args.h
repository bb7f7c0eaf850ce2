/* lm_op_args.h: the calls of language models' own operators, the same structs for host and device. */
#ifndef KR_LM_OP_ARGS_H
#define KR_LM_OP_ARGS_H

#include "op_args.h"

/* ==== cross_entropy (the loss at labels) ==================================================================
 * krait/train_ops.h has the equations. */
typedef struct kr_cross_entropy_args {
  kr_call call;
  int64_t R, V;
  float label_smoothing, logit_scale;
  kr_view logits; /* (R,V) */
  kr_view labels; /* (R) int32 */
  kr_view losses, lse;  /* (R) float32, or absent */
  kr_view top, log_sum; /* (R) float32 */
} kr_cross_entropy_args;

typedef struct kr_cross_entropy_bwd_args {
  kr_call call;
  int64_t R, V;
  float label_smoothing, logit_scale;
  kr_view logits, labels, top, log_sum;
  kr_view dlosses, dlse; /* (R) float32, or absent */
  kr_view dlogits;       /* (R,V) */
} kr_cross_entropy_bwd_args;

/* ==== expert_route, expert_gemm (mixtures of experts) =====================================================
 * expert_route: the K best of a row's E experts, best first, of equal ones the lower, and their weights. Scores are x,
 * softmax x, or sigmoid x. With KR_ROUTE_CHOSEN weights are the softmax of the chosen x, else the chosen scores; with
 * KR_ROUTE_NORMED divided by their sum + eps; then times scale. With sigmoid the choice is by scores + bias, within
 * the best_groups of n_groups whose two best experts have the largest sum. */
#define KR_ROUTE_NORMED 1u
enum { KR_ROUTE_CHOSEN, KR_ROUTE_ALL, KR_ROUTE_SIGMOID };
typedef struct kr_expert_route_args {
  kr_call call;
  int64_t T, E, K;
  int64_t n_groups, best_groups;
  int32_t scores; /* KR_ROUTE_CHOSEN, _ALL, _SIGMOID */
  float eps, scale;
  int32_t reserved;
  kr_view x;       /* (T,E) */
  kr_view bias;    /* (E), with KR_ROUTE_SIGMOID, or absent */
  kr_view index;   /* (T,K) int32 */
  kr_view weights; /* (T,K) float32 */
} kr_expert_route_args;

/* expert_gemm: y[t,j] = act(A[t,j] B[e]) (A[t,j] B2[e]), e = index[t,j], where B is (N,K) of each expert: a matrix, or
 * 8-bit words with scales (op gemm_q8), or 4-bit words (gemm_q4k). out = y, or with weights the sum over j of weights
 * y, in the order of j. */
typedef struct kr_expert_gemm_args {
  kr_call call;
  int64_t T, J, S, E, N, K, Q, U;
  int32_t activation; /* KRAIT_ACT_NONE, _SILU */
  int32_t reserved;
  kr_view A;       /* (T,S,K), S: J, or 1 for all j */
  kr_view index;   /* (T,J) int32 */
  kr_view Bmat;    /* (E,N,K) */
  kr_view B2;      /* (E,N,K) or absent */
  kr_view qweight; /* (E,N,Q) instead of Bmat: Q is K / 4 with scales, else 36 K / 256 */
  kr_view scales;  /* (E,N,U), U: K / 32, or absent */
  kr_view weights; /* (T,J) or absent */
  kr_view out;     /* (T,N) with weights, else (T,J,N) */
} kr_expert_gemm_args;

/* ==== expert_step (a mixture of experts of a few rows in one call) ========================================
 * scores = router x, of which the K best experts and their weights as of expert_route (without bias and groups), with
 * KR_ROUTE_NORMED as there; out = sum over the choices of weight down (silu(gate x) * up x), plus shared_scale times
 * that of the MLP that all rows have. */
typedef struct kr_expert_step_args {
  kr_call call;
  int64_t T, E, K, M, F, S;
  int32_t scores; /* KR_ROUTE_CHOSEN, _ALL */
  float eps, scale, shared_scale;
  kr_view x;                      /* (T,M) */
  kr_view router;                 /* (E,M) */
  kr_view gate, up;               /* (E,F,M) */
  kr_view down;                   /* (E,M,F) */
  kr_view shared_gate, shared_up; /* (S,M) or absent */
  kr_view shared_down;            /* (M,S) or absent */
  kr_view out;                    /* (T,M) */
} kr_expert_step_args;

/* ==== mamba3_raw_step (a token of Mamba 3 from in_proj's columns) =========================================
 * B and C of each group normed (B / rms(B) B_norm), dt and log_decay as of mamba3_decay, then mamba3_step of one rank,
 * with the angles of all heads. KRAIT_MAMBA3_SOFTPLUS_A as there. */
typedef struct kr_mamba3_raw_step_args {
  kr_call call;
  int64_t B, H, P, N, G, M, n_states;
  float eps, A_floor;
  kr_view angle_state;         /* (n_states,H,M) float32 */
  kr_view state;               /* (n_states,H,P,N) */
  kr_view B_state, x_state;    /* (n_states,H,N), (n_states,H,P) float32 */
  kr_view arrivals;            /* (B,H) float32, zero before and after, of no other call; absent: one block a head */
  kr_view x, z;                /* (B,H,P); z or absent */
  kr_view Bmat, Cmat;          /* (B,G,N) */
  kr_view dt_raw, A_raw, trap; /* (B,H) */
  kr_view angles;              /* (B,M) */
  kr_view B_norm, C_norm;      /* (N) float32 */
  kr_view B_bias, C_bias;      /* (H,N) float32 */
  kr_view dt_bias, Dvec;       /* (H) float32 */
  kr_view state_batch_indices; /* (B) int32 or absent */
  kr_view out;                 /* (B,H,P) */
} kr_mamba3_raw_step_args;

/* ==== mamba3_decode (a token through all layers of a Mamba-3 model) ========================================
 * Of one rank and group, without norms behind the scan and MLPs. h = x at first and is out at the end; a layer is
 * columns = in_proj (h / rms(h) norm_weight), with eps, y = mamba3_raw_step of columns z, x, B, C, dt, A, trap, angles
 * with its eps 1e-5, h += out_proj y. KRAIT_MAMBA3_SOFTPLUS_A as there. */
typedef struct kr_mamba3_decode_args {
  kr_call call;
  int64_t B, Y, D, H, P, N, M, n_states;
  float eps, A_floor;
  kr_view x;                   /* (B,D) */
  kr_view norm_weight;         /* (Y,D) */
  kr_view in_proj;             /* (Y,2HP+2N+3H+M,D) */
  kr_view BC_norm;             /* (Y,2N) float32 */
  kr_view B_bias, C_bias;      /* (Y,H,N) float32 */
  kr_view dt_bias, Dvec;       /* (Y,H) float32 */
  kr_view out_proj;            /* (Y,D,HP) */
  kr_view angle_state;         /* (Y,n_states,H,M) float32 */
  kr_view ssm_state;           /* (Y,n_states,HP,N) */
  kr_view B_state, x_state;    /* (Y,n_states,H,N), (Y,n_states,H,P) float32 */
  kr_view state_batch_indices; /* (B) int32, different ones, or absent; a negative one gives out x and no write */
  kr_view out;                 /* (B,D) float32 */
} kr_mamba3_decode_args;

#endif
