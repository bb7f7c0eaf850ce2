/* mamba3_block.h: a Mamba-3 block as calls of a graph; the equation is at krait_mamba3_inner (krait/ops.h). */
#ifndef KR_MAMBA3_BLOCK_H
#define KR_MAMBA3_BLOCK_H

#include "graph.h"

typedef struct kr_mamba3_block {
  int64_t P, G, M; /* channels per head, groups, angles */
  int32_t halves, softplus_A;
  float A_floor, BC_eps, eps;
  int32_t dtype, wide; /* of intermediates; of time steps and decays */
  /* As in kr_mamba3_inner_args; 0: absent. */
  kr_tensor x, in_proj_weight, dt_bias, B_norm, C_norm, B_bias, C_bias, Dvec, mimo_x, mimo_z, mimo_o, norm_weight,
      out_proj_weight, initial_angles, initial_states, initial_B, initial_x, cu_seqlens;
  kr_tensor out, final_angles, final_states, final_B, final_x; /* written; out (B,L,D), or (B,L,HP) */
  /* (B,L,...): written if given (0: temporaries of the block); afterwards, the tensors with these values. */
  kr_tensor columns, BC, dt, log_decay, y;
  kr_tensor kept; /* (B,H,n_kept) of the scan, or 0 */
} kr_mamba3_block;

void kr_mamba3_block_record(kr_graph *g, kr_mamba3_block *block);

#endif
