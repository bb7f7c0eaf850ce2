/* ssd_inputs.h: the inputs shared by the SSD and its gradient, by name, independent of the args struct. */
#ifndef KR_SSD_INPUTS_H
#define KR_SSD_INPUTS_H

#include "op_args.h"

/* Flags of calls within this library, for GPU implementations: runs of 2^k rows are ranks of one token (Mamba 3), of
 * which only the first decays the state; each is added before any is read. Chunked implementations take up to eight. */
#define KR_SSD_RANKS(k) ((uint32_t)(k) << 24)
#define KR_SSD_LAST_RANK(flags) ((1 << ((flags) >> 24 & 7)) - 1)
#define KR_SSD_MOST_RANKS 8
/* As these: Dvec and dDvec are (B,L,H), a number of each token (Mamba 3). Only the warpgroup implementations take it,
 * for calls without sequences. */
#define KR_SSD_TOKEN_D (1u << 27)

typedef struct kr_ssd_inputs {
  uint32_t flags;
  int64_t B, L, H, P, N, G, S;
  float dt_min, dt_max;
  const kr_view *x, *dt, *A, *Bmat, *Cmat, *Dvec, *z, *dt_bias, *initial_states, *seq_idx, *A_reverse,
      *log_decay;
} kr_ssd_inputs;

#define KR_SSD_INPUTS(a) \
  {(a)->call.flags,      \
   (a)->B,               \
   (a)->L,               \
   (a)->H,               \
   (a)->P,               \
   (a)->N,               \
   (a)->G,               \
   (a)->S,               \
   (a)->dt_min,          \
   (a)->dt_max,          \
   &(a)->x,              \
   &(a)->dt,             \
   &(a)->A,              \
   &(a)->Bmat,           \
   &(a)->Cmat,           \
   &(a)->Dvec,           \
   &(a)->z,              \
   &(a)->dt_bias,        \
   &(a)->initial_states, \
   &(a)->seq_idx,        \
   &(a)->A_reverse,      \
   &(a)->log_decay}

#endif
