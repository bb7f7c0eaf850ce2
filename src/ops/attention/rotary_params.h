/* rotary_params.h: kernel parameters of the rotary embedding and the cache append. */
#ifndef KR_ROTARY_PARAMS_H
#define KR_ROTARY_PARAMS_H

#include "attention_params.h"

enum { KR_ROTARY_THREADS = 128, KR_ROTARY_HEADS = 8 };
enum { KR_ROTARY_WHOLE_HEADS = 4 }; /* of a token that a thread takes, where a few lanes have a head in registers */

typedef struct kr_rotary_params {
  kr_attention_tensor x, out, cos, sin; /* cos, sin: t, d */
  kr_attention_index offsets, cu;       /* offsets: a sequence's first position */
  int32_t B, L, H, D, R, T;
  int32_t interleaved, still;
  float sign;
  int32_t packed;
  int32_t is_known; /* no earlier call of the recording writes indices or angles */
  int32_t heads; /* heads per thread, on packs */
  /* cache append: x are the keys, out the key cache */
  kr_attention_tensor v, v_cache;
  kr_attention_index cache_row, table, seqused;
  int64_t table_b;
  int32_t Dv, Bk, Lk, n_pages;
  /* queries rotated by the same call */
  kr_attention_tensor q, q_out;
  int32_t n_queries; /* heads */
  /* of heads before they rotate, or NULL; a row of D for each */
  float eps;
  const float *q_norm, *k_norm;
  int64_t q_norm_row, k_norm_row;
} kr_rotary_params;

#endif
