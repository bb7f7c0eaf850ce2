/* softmax_params.h: kernel parameters of the softmax of rows; the same struct for host and device. */
#ifndef KR_SOFTMAX_PARAMS_H
#define KR_SOFTMAX_PARAMS_H

#include "op_args.h"

enum { KR_SOFTMAX_THREADS = 256 };
typedef struct kr_softmax_params {
  kr_view x, out;
  int64_t N;
} kr_softmax_params;

#endif
