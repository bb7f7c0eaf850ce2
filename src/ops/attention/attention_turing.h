/* attention_turing.h: parameters of the turing tier's attention; the same for host and device. */
#ifndef KR_ATTENTION_TURING_H
#define KR_ATTENTION_TURING_H

#include "attention_params.h"

/* With bfloat16, params' q, k and v are float16 copies, those of a head times 2^up. */
typedef struct kr_attention_turing_params {
  kr_attention_params params;
  const int32_t *up_q, *up_k, *up_v; /* [batch in memory][head]; NULL: q, k and v are the call's own */
} kr_attention_turing_params;

/* A bfloat16 tensor (batch in memory, token, head, channel) that becomes a float16 one, [batch][head][token][channel].
 * Blocks take runs of a head's tokens. */
typedef struct kr_attention_scaled {
  kr_attention_tensor from;
  uint16_t *to;
  int32_t *up;       /* [batch][head] */
  uint32_t *largest; /* bits of magnitudes, [batch][head][run] */
  int32_t L, H, run, n_runs;
  int32_t first_block, none;
} kr_attention_scaled;

typedef struct kr_attention_scale_params {
  kr_attention_scaled of[3];
  int32_t D, log_lanes; /* log2 of the lanes of a token: 3 to 5 */
} kr_attention_scale_params;

enum { KR_ATTENTION_SCALE_THREADS = 256 };

#endif
