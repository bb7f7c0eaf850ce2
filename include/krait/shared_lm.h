/* shared_lm.h: a language model of Mamba, Mamba-2, Mamba-3 or attention as a framework generates with it: prompts and
 * steps by the graphs of krait_lm, on weights and states that the framework keeps. Nothing is copied, and everything is
 * in the context's memory. The drop-in's generate(cg=True) and krait.accelerate (docs/ACCELERATE.md) are made of it.
 *
 *   krait_shared_lm_open(ctx, &options, layers, &lm);
 *   krait_shared_lm_prefill(lm, 0, ids, n, logits, stream);           // of slot 0, whose states begin as zeros
 *   krait_shared_lm_step(lm, 1, slots, ids, logits, best, stream);    // one token for each of some slots
 *
 * A model is used by one thread at a time. Its context, weights and states must outlive it; weights that change in
 * place are read as they are. */
#ifndef KRAIT_SHARED_LM_H
#define KRAIT_SHARED_LM_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_shared_lm krait_shared_lm;

/* Of a layer, row-major, in the model's type; but A (-exp(A_log)), D and dt_bias are float32. Sizes are those of
 * krait_mamba_decode_args (ops.h). Where layers lie at equal distances, a step of few sequences can be one call. */
typedef struct krait_shared_lm_layer {
  const void *norm;
  const void *in_proj;
  const void *conv, *conv_bias; /* conv_bias NULL: none */
  const void *x_proj, *dt_proj; /* of Mamba */
  const void *A, *D, *dt_bias;
  const void *gate_norm; /* of Mamba-2 */
  const void *out_proj;
} krait_shared_lm_layer;

#define KRAIT_SHARED_LM_NARROW 1u /* states of the scans are in the model's type, else in float32 */
typedef struct krait_shared_lm_options {
  uint32_t size;
  uint32_t flags; /* KRAIT_SHARED_LM_* */
  int32_t dtype;  /* KRAIT_F32, KRAIT_F16, KRAIT_BF16; on a CPU activations are float32 */
  float eps;      /* of the norms */
  int64_t n_layers, n_slots;
  int64_t D, V;    /* width; rows of embedding and head */
  int64_t E, N, W; /* inner width, states, taps */
  int64_t R;       /* Mamba: rank of dt; 0: Mamba-2 */
  int64_t H, G;    /* Mamba-2: heads, groups */
  const void *embedding, *head, *norm_f;
  void *states; /* by layer: (n_slots,C,W-1) float32, C = E, of Mamba-2 E+2GN; then (n_slots,E,N) */
} krait_shared_lm_options;

/* layers: n_layers. */
KRAIT_API int32_t krait_shared_lm_open(const krait_ctx *ctx, const krait_shared_lm_options *options,
                                       const krait_shared_lm_layer *layers, krait_shared_lm **lm);
KRAIT_API void krait_shared_lm_close(krait_shared_lm **lm);

/* ---- Mamba-3, and a gated MLP in every layer or none ---- */

/* Of a layer, row-major: what is const void * in the model's type. */
typedef struct krait_shared_lm_mamba3_layer {
  const void *norm;
  const void *in_proj; /* (2 H P + 2 R G N + 3 H + M, D): rows of z, x, B, C, dt, A, trap, angles */
  const float *dt_bias, *Dvec;           /* (H) */
  const float *BC_norm;                  /* (2, R G N): weights of the norm of each vector of B, then of C */
  const float *B_bias, *C_bias;          /* (H,R,N) */
  const float *mimo_x, *mimo_z, *mimo_o; /* (H,R,P): halves turn; all NULL: R is 1, and neighbours turn */
  const float *gate_norm;                /* (H P): of every head's y; or NULL */
  const void *out_proj;                  /* (D, H P) */
  const void *norm2;                     /* with F, as those below */
  const void *gate, *up, *down;          /* of silu: (F, D) twice, (D, F) */
} krait_shared_lm_mamba3_layer;

#define KRAIT_SHARED_LM_SOFTPLUS_A 2u /* A's form: KRAIT_MAMBA3_SOFTPLUS_A (train_ops.h) */
typedef struct krait_shared_lm_mamba3_options {
  uint32_t size;
  uint32_t flags; /* KRAIT_SHARED_LM_*; NARROW is of the states (n_slots,H,P,N) */
  int32_t dtype;  /* as in krait_shared_lm_options */
  float eps;      /* of the layers' norms */
  float A_floor;
  int64_t n_layers, n_slots;
  int64_t D, V;          /* width; rows of embedding and head */
  int64_t H, P, N, G, R; /* heads, their size, states, groups, ranks */
  int64_t M;             /* pairs that turn, at most N/2 */
  int64_t F;             /* inner width of the MLP; 0: none */
  const void *embedding, *head, *norm_f;
  void *states; /* by layer: angles (n_slots,H,M), states (n_slots,H,P,N), keys (n_slots,R,H,N), inputs (n_slots,H,P) of
                 * the last token; float32 */
} krait_shared_lm_mamba3_options;

/* layers: n_layers. */
KRAIT_API int32_t krait_shared_lm_open_mamba3(const krait_ctx *ctx, const krait_shared_lm_mamba3_options *options,
                                              const krait_shared_lm_mamba3_layer *layers, krait_shared_lm **lm);

/* ---- causal attention and a gated MLP in every layer: Qwen2, Llama, Mistral, Qwen3 ---- */

/* Of a layer, row-major, in the model's type. Where q, k and v lie one behind the other, and their biases too, they are
 * one product. */
typedef struct krait_shared_lm_attention_layer {
  const void *norm;
  const void *q, *k, *v;                /* (H P, D), (Hk P, D) twice */
  const void *q_bias, *k_bias, *v_bias; /* all NULL: none */
  const float *qk_norm; /* (H + Hk, P): weights of every head's norm, of queries, then of keys; or NULL */
  const void *o;        /* (D, H P) */
  const void *norm2;
  const void *gate, *up, *down; /* of silu: (F, D) twice, (D, F) */
} krait_shared_lm_attention_layer;

typedef struct krait_shared_lm_attention_options {
  uint32_t size;
  int32_t dtype;      /* as in krait_shared_lm_options */
  float eps;          /* of the norms */
  float angle_factor; /* of the rotary embedding's cosines and sines; 0: 1 */
  int64_t n_layers, n_slots;
  int64_t n_tokens;          /* that a slot has memory for */
  int64_t D, V;              /* width; rows of embedding and head */
  int64_t H, Hk, P;          /* heads of queries, of keys and values; their size */
  int64_t F;                 /* inner width of the MLP */
  const double *frequencies; /* (P/2), of the rotary embedding, which turns a head's first half with its second */
  const void *embedding, *head, *norm_f;
  void *keys_values;      /* by layer: keys (n_slots,n_tokens,Hk,P), then values; on a CPU float32 */
  const int32_t *lengths; /* (n_slots), in the context's memory: tokens that were read before a call; of a prompt by
                           * slot, of a step by its sequences. The caller adds to them, at most to n_tokens */
} krait_shared_lm_attention_options;

/* layers: n_layers. */
KRAIT_API int32_t krait_shared_lm_open_attention(const krait_ctx *ctx, const krait_shared_lm_attention_options *options,
                                                 const krait_shared_lm_attention_layer *layers, krait_shared_lm **lm);

/* ---- calls ---- */

/* A slot reads n tokens, behind those that it has; ids (n), logits (V) float32, of the last. A graph for each of the
 * eight latest numbers of tokens is kept, and on a GPU replayed where addresses are those of the call before. On a GPU
 * calls are enqueued; tokens that are not the model's are refused on a CPU alone. */
KRAIT_API int32_t krait_shared_lm_prefill(krait_shared_lm *lm, int64_t slot, const int32_t *ids, int64_t n,
                                          float *logits, void *stream);
/* One token for each of B slots; slots (B), all different; ids (B); logits (B,V); best (B): the likeliest tokens, which
 * may be where ids are. */
KRAIT_API int32_t krait_shared_lm_step(krait_shared_lm *lm, int64_t B, const int32_t *slots, const int32_t *ids,
                                       float *logits, int32_t *best, void *stream);

#ifdef __cplusplus
}
#endif
#endif
