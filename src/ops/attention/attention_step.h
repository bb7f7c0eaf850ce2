/* attention_step.h: a decode step's attention: sizes and parameters of attention_step.cu, for host and device. */
#ifndef KR_ATTENTION_STEP_H
#define KR_ATTENTION_STEP_H

#include <stdint.h>

/* Query heads of a block, and its warps. Most parts of a sequence's keys: their blocks form a cluster, and every device
 * allows that many. Keys of a run. */
enum {
  KR_STEP_HEADS = 8,
  KR_STEP_WARPS = 8,
  KR_STEP_THREADS = 32 * KR_STEP_WARPS,
  KR_STEP_PARTS = 8,
  KR_STEP_KEYS = 16
};
/* A warp's ring has room for one run of keys and values, or for so many. */
#define KR_STEP_STAGES(D) (256 / (D))
#define KR_STEP_STAGE(D) (KR_STEP_KEYS * (D) * 4)
/* A row of sums: D channels, its reference maximum, its sum, padding. */
#define KR_STEP_ROW(D) ((D) + 4)
/* Bytes of a rotated row of queries, or of the new key. */
#define KR_STEP_TURNED(D) ((D) * 2 + 16)
/* Rings, in which a warp leaves its sums; the new key's sums; rotated rows; the parts' sums. */
#define KR_STEP_ROWS_AT(D, stages, heads) (KR_STEP_WARPS * (stages) * KR_STEP_STAGE(D) + (heads) * KR_STEP_ROW(D) * 4)
#define KR_STEP_PARTS_AT(D, stages, heads) (KR_STEP_ROWS_AT(D, stages, heads) + (KR_STEP_HEADS + 1) * KR_STEP_TURNED(D))
#define KR_STEP_SHARED(D, stages, heads, n_parts) \
  ((uint32_t)(KR_STEP_PARTS_AT(D, stages, heads) + ((n_parts) > 1 ? (n_parts) * (heads) * KR_STEP_ROW(D) * 4 : 0)))

/* Rows of heads: strides in elements. */
typedef struct kr_step_rows {
  void *data;
  int64_t b, h;
} kr_step_rows;
typedef struct kr_step_cache {
  void *data;
  int64_t b, t, h;
} kr_step_cache;
typedef struct kr_step_angles {
  const float *data;
  int64_t t, d;
} kr_step_angles;
typedef struct kr_step_index {
  const int32_t *data; /* or NULL */
  int64_t step;
} kr_step_index;

/* The kernel norms, if there are weights, and rotates queries and the new key, and appends key and value to the cache,
 * which has `lengths` of them. */
typedef struct kr_attention_step_params {
  kr_step_index lengths, cache_row;
  kr_step_cache k_cache, v_cache;
  int32_t Lk, Bk, Hk, heads, T;     /* heads: query heads of a key head */
  int32_t n_parts, n_groups, group; /* of keys; of a key head's query heads, `group` of them each */
  int32_t is_known;                 /* nobody writes indices, cache and angles meanwhile (overlap.h) */
  float scale, eps;
  int32_t n_stages; /* of a ring: 1, or KR_STEP_STAGES */
  kr_step_angles cos, sin;
  const float *q_norm, *k_norm; /* or NULL; a row of D for each head */
  int64_t q_norm_row, k_norm_row;
  kr_step_rows q, k, v, out;
} kr_attention_step_params;

#endif
