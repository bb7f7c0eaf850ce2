/* attention_hopper.h: what host and device must agree on for attention_hopper.cu. */
#ifndef KR_ATTENTION_HOPPER_H
#define KR_ATTENTION_HOPPER_H

#include "attention_params.h"

/* Whether a block has 64 rows from the beginning of a causal call and the 64 as far from its end: all blocks see as
 * many keys. For calls of one turn of blocks, which would take as long as the last rows. */
#define KR_HOPPER_PAIRS(p, D)                                                                                     \
  (KR_HOPPER_GROUPS(D) == 2 && (p).left < 0 && (p).right == 0 && !(p).cu_q.data && !(p).used_q.data && \
   !(p).next_unit && (p).n_q_tiles > 1)

#endif
