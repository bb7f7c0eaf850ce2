/* mamba_block.h: the inside of a Mamba-1 block as calls of a graph (mamba_inner_ref.c has the equation), for
 * krait_mamba_inner and for models with Mamba layers. */
#ifndef KR_MAMBA_BLOCK_H
#define KR_MAMBA_BLOCK_H

#include "graph.h"

typedef struct kr_mamba_block {
  uint32_t flags; /* KRAIT_SCAN_* */
  float eps;      /* of the norms */
  int32_t dtype;  /* of intermediates between xz and out */
  int is_merged; /* delta comes from u by one product, as B and C do: more work, but full rows, and no intermediate.
                  * Plain blocks only: real states, no norms, no biases of B and C */
  kr_tensor xz;   /* (B,2D,L): x, then z */
  /* As in kr_mamba_inner_args; 0: absent. */
  kr_tensor conv_weight, conv_bias, x_proj_weight, dt_proj_weight, out_proj_weight, out_proj_bias, A, A_reverse, Bmat,
      Cmat, Dvec, delta_bias, B_proj_bias, C_proj_bias, dt_norm_weight, B_norm_weight, C_norm_weight;
  /* (B,D,W-1) and (B,D,N), 0: absent: from earlier time, read; for later time, written. If they are the same tensors
   * (L is 1, states are real), these are updated in place. */
  kr_tensor conv_states, scan_state, conv_states_out, scan_state_out;
  kr_tensor out;  /* (B,L,M), or (B,D,L) without out_proj_weight; written */
} kr_mamba_block;

void kr_mamba_block_record(kr_graph *g, const kr_mamba_block *block);

#endif
