/* state_update_plan.h: what the kernels of a step of the scan are told; host and device read the same struct. */
#ifndef KR_STATE_UPDATE_PLAN_H
#define KR_STATE_UPDATE_PLAN_H

#include <krait/ops.h>

#include "rows.h"

enum { KR_DT_PACKS = 5 }; /* eights of inputs of a time step's product, in a lane */
/* Of the kernels whose threads have all states of a channel: how many, and sequences of a thread where states are
 * float32 or as narrow as the inputs; the same with a time step's product. */
enum { KR_UPDATE_ROW_STATES = 16, KR_UPDATE_ROWS_WIDE = 2, KR_UPDATE_ROWS_SAME = 4 };
/* STEP_PACKS: of eight inputs of that product, at most. */
enum { KR_DT_ROWS_WIDE = 4, KR_DT_ROWS_SAME = 8, KR_UPDATE_STEP_PACKS = 20 };

typedef struct kr_update_plan {
  krait_state_update_args a;
  kr_divisor P, H, heads_per_group;
  int32_t lanes, lanes_shift; /* threads per channel, a power of two up to 32 */
  const void *r, *dt_weight;  /* of dt_state_update */
  int64_t r_row, dt_row;
  int32_t packs;
} kr_update_plan;

#endif
