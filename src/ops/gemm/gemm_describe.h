/* gemm_describe.h: a product as its kernels get it. */
#ifndef KR_GEMM_DESCRIBE_H
#define KR_GEMM_DESCRIBE_H

#include "gemm/gemm_impls.h"
#include "gemm/gemm_params.h"

/* Memory order of the factors: contiguous in k (K), or in m or n (M, N). */
enum { KR_ORDER_KK, KR_ORDER_KN, KR_ORDER_MN, KR_GEMM_ORDERS, KR_NO_ORDER };

kr_gemm_matrix kr_gemm_matrix_of(const kr_view *v, int64_t rows, int64_t columns, int64_t P);
kr_gemm_params kr_gemm_describe(const kr_gemm_args *a);
int kr_gemm_order_of(const kr_gemm_params *p);

#endif
