/* mamba2_block.h: a Mamba-2 block as calls of a graph; the equation is at krait_mamba2_inner (krait/ops.h). */
#ifndef KR_MAMBA2_BLOCK_H
#define KR_MAMBA2_BLOCK_H

#include "graph.h"

typedef struct kr_mamba2_block {
  int64_t P, G, F; /* channels per head, groups, channels of the MLP part */
  int32_t activation, norm_before_gate, log_A,
      tf32; /* log_A: the input A is log(-A); tf32: the scan may round float32 factors to 11 bits */
  float eps, dt_min, dt_max;
  int32_t dtype;   /* of intermediates */
  /* As in kr_mamba2_inner_args; 0: absent. */
  kr_tensor x, in_proj_weight, in_proj_bias, conv_weight, conv_bias, dt_bias, A, Dvec, norm_weight, out_proj_weight,
      out_proj_bias, initial_states, seq_idx;
  kr_tensor out, final_states; /* written; out (B,L,M), or (B,L,F + HP) without out_proj_weight */
  /* (B,L,...): written if given (0: temporaries of the block); afterwards, the tensors with these values. y is 0
   * without norm_weight. */
  kr_tensor zxbcdt, xBC, y, gated;
} kr_mamba2_block;

void kr_mamba2_block_record(kr_graph *g, kr_mamba2_block *block);

#endif
