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

/* Tokens of a chunk, on tensor cores, features of its keys, columns of a state that a block walks with. */
enum {
  KR_DELTA_CHUNK = 32,
  KR_DELTA_CHUNK_DK = 128,
  KR_DELTA_CHUNK_THREADS = 256,
  KR_DELTA_WALK_COLUMNS = 16,
  KR_DELTA_WALK_BYTES = 104064
};

/* What a chunk's keys, queries and gates make, for one head: y, of n_columns, follows. */
typedef struct kr_delta_made {
  float w[KR_DELTA_CHUNK][KR_DELTA_CHUNK_DK], weigh[KR_DELTA_CHUNK][KR_DELTA_CHUNK];
  float of_q[KR_DELTA_CHUNK], of_k[KR_DELTA_CHUNK], decay, spoilt, none[2]; /* spoilt: not 0 if any is not finite */
} kr_delta_made;

typedef struct kr_delta_chunk_params {
  kr_delta_params of;
  float *made; /* made_floats each, chunk by chunk, head by head */
  int64_t made_floats;
  int32_t n_chunks, n_columns; /* n_columns: of y, whole blocks */
} kr_delta_chunk_params;

#endif
