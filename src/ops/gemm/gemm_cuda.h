/* gemm_cuda.h: what gemm_cuda.c and gemm_few_cuda.c share. */
#ifndef KR_GEMM_CUDA_H
#define KR_GEMM_CUDA_H

#include "gemm/gemm_params.h"

static int32_t gemm_ceil_div(int64_t a, int64_t b) { return (int32_t)((a + b - 1) / b); }

/* Whether only a float32 residual is added and out has packs of four. */
int kr_gemm_is_bare_sum(const kr_gemm_params *p);

#endif
