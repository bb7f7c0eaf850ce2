/* lm_blocks.h: the kinds of blocks that families share, with their sizes; the fields of their weights are in their
 * files. A family's own kind may stand in its folder. */
#ifndef KR_LM_BLOCKS_H
#define KR_LM_BLOCKS_H

#include "lm_config.h"

/* Causal attention. States keys, values and, with a convolution, conv. */
extern const kr_lm_block_kind kr_lm_attention;
enum { KR_LM_NO_QK_NORM, KR_LM_NORM_OF_HEADS, KR_LM_NORM_OF_ALL }; /* of each head's features, or of all heads' */
/* sigmoid of what its results are multiplied by: as many rows as the query has, which follow each head's in the matrix
 * q; or a row for each head, in the matrix head_gate. */
enum { KR_LM_NO_GATE, KR_LM_GATE_IN_Q, KR_LM_GATE_OF_HEADS };
typedef struct kr_lm_attention_sizes {
  int64_t d, H, Hk, D;       /* width; heads of queries, of keys and values; their size */
  int64_t in;                /* width of what it reads; 0: d */
  int64_t rank;              /* of adapters of q, k and v: q += q_out(q_in x); 0: none */
  int64_t W;                 /* taps of a convolution of queries, keys and values; 0: none */
  int64_t R, is_interleaved; /* rotated pairs of features (0: no positions), and which */
  int64_t rope;              /* the number of their table, of R pairs */
  double scale;              /* 0: 1 / sqrt D */
  int64_t qk_norm, gate;     /* KR_LM_NO_QK_NORM, KR_LM_NO_GATE, ... */
  int64_t window;            /* keys that a query sees, its own included; 0: all before it */
} kr_lm_attention_sizes;

/* A gated MLP: down(silu(gate x) * up x), or with gelu (by erf); or down(relu(up x)^2). */
extern const kr_lm_block_kind kr_lm_mlp;
enum { KR_LM_SILU, KR_LM_RELU2, KR_LM_GELU };
typedef struct kr_lm_mlp_sizes {
  int64_t d, F;
  int64_t is_up_first; /* of one matrix with both */
  int64_t activation;  /* KR_LM_SILU, ... */
  int64_t rank;        /* of the adapter of gate and up in one matrix: += gate_up_out(gate_up_in x); 0: none */
  double gate_scale;   /* silu(gate_scale gate x); 0: 1 */
  int64_t is_shared;   /* an expert for all tokens: its fields begin with shared_, and shared_scale x may scale it */
} kr_lm_mlp_sizes;

/* A mixture of experts: of E MLPs the k that the router chooses for each token, summed with its weights (operators
 * expert_route, expert_gemm). */
extern const kr_lm_block_kind kr_lm_moe;
typedef struct kr_lm_moe_sizes {
  int64_t d, F, E, k;
  int64_t activation;            /* KR_LM_SILU, KR_LM_RELU2 */
  int64_t scores, is_normed;     /* KR_ROUTE_CHOSEN, ...; weights are divided by their sum + norm_eps */
  int64_t n_groups, best_groups; /* of experts; 0: 1 */
  int64_t latent;                /* width that the experts see; 0: d */
  double norm_eps, scale;        /* scale: of the weights; 0: 1 */
} kr_lm_moe_sizes;

/* The gated delta rule, behind a convolution of queries, keys and values. States conv and delta. */
extern const kr_lm_block_kind kr_lm_delta;
typedef struct kr_lm_delta_sizes {
  int64_t d, H, Hk, Dk, Dv, W; /* width; heads of values, of keys; their sizes; taps */
  double beta_scale, eps;      /* of sigmoid(b); of the result's norm */
} kr_lm_delta_sizes;

/* Gated short convolution: out(c * conv(b * x)), (b, c, x) = in x. State conv: the last values of b * x. */
extern const kr_lm_block_kind kr_lm_short_conv;
typedef struct kr_lm_short_conv_sizes {
  int64_t d, W; /* width, taps */
} kr_lm_short_conv_sizes;

/* The mixers of Mamba and Mamba-2. States conv and ssm. */
extern const kr_lm_block_kind kr_lm_mamba1, kr_lm_mamba2;
enum { KR_LM_GATE_FIRST, KR_LM_GATE_LAST, KR_LM_GATE_ALONE }; /* norm(y silu z), norm(y) silu z, y silu z */
typedef struct kr_lm_mamba_sizes {
  int64_t d, Di, N, W; /* width, inner width, states, taps */
  int64_t R;           /* Mamba: rank of dt */
  int64_t H, P, G;     /* Mamba-2: heads, their size, groups; Mamba: 1, Di, 1 */
  double dt_eps;       /* Mamba: of norms of dt, B and C, with or without weights; 0: none */
  int64_t gate;        /* Mamba-2: KR_LM_GATE_FIRST, ... */
  double gate_eps;     /* 0: 1e-5 */
  double scales[5];    /* Mamba-2: of in_proj's z, x, B, C, dt; all 0: 1 */
} kr_lm_mamba_sizes;

/* The mixer of Mamba-3. States angle, ssm, k and v: the last token's rotated B, and x. */
extern const kr_lm_block_kind kr_lm_mamba3;
typedef struct kr_lm_mamba3_sizes {
  int64_t d, H, P, N, G, R, M; /* width; heads, their size; states, groups, ranks; rotated pairs */
  int64_t is_mimo;             /* several ranks, with factors of their own, and halves rotate, not neighbours */
  int64_t is_normed;           /* heads' results are normed before their gate */
  int64_t is_A_softplus;       /* A is -softplus, else the heavy tail (operator mamba3_decay) */
  double A_floor;
} kr_lm_mamba3_sizes;

#endif
