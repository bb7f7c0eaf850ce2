/* gemm_plain.h: products of the form that other calls are merged with. */
#ifndef KR_GEMM_PLAIN_H
#define KR_GEMM_PLAIN_H

/* args: kr_gemm_args. A product of two matrices with at most bias, residual and activation. */
int kr_gemm_is_plain(const void *args);

#endif
