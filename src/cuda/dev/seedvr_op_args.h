/* seedvr_op_args.h: the calls of SeedVR's own operators, the same structs for host and device. */
#ifndef KR_SEEDVR_OP_ARGS_H
#define KR_SEEDVR_OP_ARGS_H

#include "op_args.h"

/* softmax: out[m,n] = exp(x[m,n] - max_i x[m,i]) / sum_i exp(x[m,i] - max_i x[m,i]). */
typedef struct kr_softmax_args {
  kr_call call;
  int64_t M, N;
  kr_view x;   /* (M,N) float32 */
  kr_view out; /* (M,N) */
} kr_softmax_args;

#endif
