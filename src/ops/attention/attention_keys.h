/* attention_keys.h: attention of few rows with many keys, and a decode step's: sizes and parameters beyond those of
 * attention_params.h, for host and device. */
#ifndef KR_ATTENTION_KEYS_H
#define KR_ATTENTION_KEYS_H

#include "attention_params.h"

/* Most parts of a step's keys: their blocks form a cluster, and every device allows that many. Query heads of a key
 * head. */
enum { KR_KEYS_CLUSTER = 8, KR_STEP_HEADS = 16 };
/* A warp's ring has STAGES runs of keys and values; a step asks for all but one of them before it waits. */
#define KR_KEYS_WARPS(D, STEP) ((STEP) && (D) == 64 ? 8 : 4)
#define KR_KEYS_STAGES(STEP) ((STEP) ? 4 : KR_ATTENTION_KEYS_STAGES)
#define KR_STEP_RINGS(D) ((uint32_t)(KR_KEYS_WARPS(D, 1) * KR_KEYS_STAGES(1) * 2 * 16 * (D) * 2))
/* A part's row in shared memory: D channels, its reference maximum, its sum, padding. */
#define KR_KEYS_ROW(D) ((D) + 4)
#define KR_STEP_SHARED(D, n_parts) \
  (KR_STEP_RINGS(D) + (uint32_t)((n_parts) > 1 ? (n_parts) * 16 * KR_KEYS_ROW(D) * 4 : 0))

/* A decode step has one row per sequence and head. The kernel rotates it and the new key, before that norms both if
 * there are weights, and appends key and value to the cache, which has `lengths` of them. */
typedef struct kr_attention_fresh {
  kr_attention_tensor k, v, cos, sin; /* (batch, , head, channel); (position, angle) of float32 */
  const float *q_norm, *k_norm;       /* or NULL; a row of D for each head */
  int64_t q_norm_row, k_norm_row;
  float eps;
  kr_attention_index lengths;
  int32_t T, is_known, reserved; /* is_known: nobody writes indices, cache and angles meanwhile (overlap.h) */
} kr_attention_fresh;
typedef struct kr_attention_step_params {
  kr_attention_params params;
  kr_attention_fresh fresh;
} kr_attention_step_params;

#endif
