/* lm_builder.h: what a block of a language model sees while it records itself: for B sequences of one token (a step,
 * with states by slots) or L tokens of one sequence (with the states of one slot). Rows are tokens. */
#ifndef KR_LM_BUILDER_H
#define KR_LM_BUILDER_H

#include "lm_config.h"
#include "token_builder.h"

typedef struct kr_lm_run {
  int64_t B, L;      /* sequences, tokens of each; L > 1 only with B == 1 */
  int32_t is_step;   /* uses the single-token ops; otherwise the parallel ones */
  int32_t all;       /* logits of every token */
  int32_t with_rows; /* rows are added to the embeddings */
  int32_t fused;     /* kr_lm_choose_fused */
} kr_lm_run;

typedef struct kr_lm_graph {
  kr_lm_run run;
  kr_graph *g;
  kr_runner *runner;
  kr_tensor ids, rows, slots;             /* (B L) int32; (B L, d); (B) int32, of steps */
  kr_tensor lengths;                      /* (B) int32: tokens that came before */
  kr_tensor cos[KR_LM_MOST_ROPES], sin[KR_LM_MOST_ROPES]; /* by rope: (capacity, pairs) */
  kr_tensor logits, argmax;               /* (B or B L, V) float32; (B) int32, of steps */
  kr_tensor (*states)[KR_LM_MOST_STATES]; /* by block; 0: none, or a part of all */
  kr_tensor all[KR_LM_MOST_STATES];       /* of all blocks, if one call or one copy covers them all; else 0 */
  uint64_t used;                          /* time of last use, by its owner's counter */
} kr_lm_graph;

struct kr_lm_builder {
  kr_token_builder rows;
  const kr_lm_config *c;
  const struct kr_lm_slots *slots;
  kr_lm_run run;
  kr_lm_graph *to;
  const kr_lm_block *joined; /* a block whose result the one before it has added to its own; or NULL */
  kr_tensor embedded, stream; /* rows before the first block; the residual stream, without what is not yet added */
  kr_tensor new_all[KR_LM_MOST_STATES], old_all[KR_LM_MOST_STATES]; /* float32, if states are copied all at once */
};

/* ---- states: k is the number of the block's state ---- */
int32_t kr_lm_state_dtype(const kr_lm_builder *b, const kr_lm_state *state);
/* As it is kept: (slots, ...) in a step, (1, ...) else; per token (slots or 1, capacity, ...). */
kr_tensor kr_lm_state_of(const kr_lm_builder *b, const kr_lm_block *block, int k);
/* Not in a step. Its value before, in float32; where the value after goes, in float32, and that it is there. */
kr_tensor kr_lm_state_before(kr_lm_builder *b, const kr_lm_block *block, int k);
kr_tensor kr_lm_state_after(kr_lm_builder *b, const kr_lm_block *block, int k);
void kr_lm_state_keep(kr_lm_builder *b, const kr_lm_block *block, int k, kr_tensor after);

/* ---- calls ---- */
/* Rows as (1,C,L) of the parallel ops, or (B,C,1) of the step's. */
kr_tensor kr_lm_channels(const kr_lm_builder *b, kr_tensor rows);
/* act(causal convolution of x) as rows of C channels, with the last W - 1 as the block's state k. */
kr_tensor kr_lm_convolve(kr_lm_builder *b, const kr_lm_block *block, int k, kr_tensor x, const kr_weight_ref *w,
                         const kr_weight_ref *bias, int64_t W, int32_t activation);

/* A block's last product: what it adds to the stream, times its out_scale. */
kr_tensor kr_lm_result(const kr_lm_builder *b, const kr_lm_block *block, const char *name, kr_tensor x,
                       const kr_linear *p);
#define result_of(b, block, name, x, ...) kr_lm_result(b, block, name, x, &(kr_linear){__VA_ARGS__})

/* Of a gated MLP of silu: rows of gate and up (F,d), down (d,F). */
typedef struct kr_lm_mlp_matrices {
  kr_weight_ref gate, up, down;
  int64_t F;
} kr_lm_mlp_matrices;
/* Whether a block is such an MLP and nothing else: no biases, adapters or scales but its out_scale. */
int kr_lm_mlp_has_matrices(const kr_lm_block *block, kr_lm_mlp_matrices *to);

/* ---- states of all blocks, for kr_lm_block_kind.record_fused: blocks are alike ---- */
/* (blocks, slots, rows, columns) of state k, as they are kept; only strides and type count. */
kr_view kr_lm_states_layout(const kr_lm_builder *b, const kr_lm_block *block, int k);
/* They, of n slots. */
kr_tensor kr_lm_record_all_states(kr_lm_builder *b, const kr_lm_block *block, int k, int64_t n);

#endif
