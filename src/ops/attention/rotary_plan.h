/* rotary_plan.h: what the host tells the kernels of the rotary embedding and of what writes into a cache. */
#ifndef KR_ROTARY_PLAN_H
#define KR_ROTARY_PLAN_H

#include "attention_plan.h"

enum { KR_ROTARY_THREADS = 128, KR_ROTARY_HEADS = 8 };

typedef struct kr_rotary_plan {
  kr_attention_tensor x, out, cos, sin; /* cos, sin: t, d */
  kr_attention_index offsets, cu;       /* offsets: the first position of a sequence */
  int32_t B, L, H, D, R, T;
  int32_t interleaved, still;
  float sign;
  int32_t packed;
  int32_t is_known; /* no call before it in a recording writes indices and angles */
  int32_t heads; /* of a thread of packs */
  /* into a cache: x are keys, out the cache of keys */
  kr_attention_tensor v, v_cache;
  kr_attention_index cache_row, table, seqused;
  int64_t table_b;
  int32_t Dv, Bk, Lk, n_pages;
  /* queries that are turned by the same call */
  kr_attention_tensor q, q_out;
  int32_t n_queries; /* heads */
} kr_rotary_plan;

#endif
