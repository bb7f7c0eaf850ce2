/* gated_delta_rule_params.h: kernel parameters of gated_delta_rule.cu, the same struct for host and device. */
#ifndef KR_GATED_DELTA_RULE_PARAMS_H
#define KR_GATED_DELTA_RULE_PARAMS_H

#include "op_args.h"

/* A warp has 8 columns of a state, four lanes each, a block 4 warps. */
enum { KR_DELTA_THREADS = 128, KR_DELTA_COLUMNS = 32 };
enum { KR_DELTA_STEP_THREADS = 128, KR_DELTA_STEP_COLUMNS = 32 }; /* of one token: four columns a thread */
/* Some tokens at a time: of a block. */
enum { KR_DELTA_STAGED_THREADS = 128, KR_DELTA_STAGED_COLUMNS = 16, KR_DELTA_TOKENS = 16 };

typedef struct kr_delta_params {
  kr_gated_delta_rule_args a;
  kr_view before, after, rows; /* (rows,H,Dk,Dv); (B) int32: of them, or absent */
  int32_t parts;               /* blocks of a head */
} kr_delta_params;

#endif
