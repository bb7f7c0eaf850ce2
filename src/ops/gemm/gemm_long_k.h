/* gemm_long_k.h: shared-memory layout of the kernels for small products with a very long K, for host and device. */
#ifndef KR_GEMM_LONG_K_H
#define KR_GEMM_LONG_K_H

#include "gemm_params.h"

/* A stage is KR_TERMS_DEPTH rows of both factors, each padded by KR_TERMS_PAD floats. */
enum { KR_TERMS_THREADS = 256, KR_TERMS_STAGES = 4, KR_TERMS_DEPTH = 16, KR_TERMS_PAD = 8 };
#define KR_TERMS_SHARED_BYTES(M, N) \
  ((uint32_t)(KR_TERMS_STAGES * KR_TERMS_DEPTH * ((M) + (N) + 2 * KR_TERMS_PAD) * 4))

#endif
