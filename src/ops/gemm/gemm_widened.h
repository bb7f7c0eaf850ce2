/* gemm_widened.h: the product with a group of quantized outputs, once these are float32. */
#ifndef KR_GEMM_WIDENED_H
#define KR_GEMM_WIDENED_H

#include "gemm/gemm_kernel.h"
#include "vec.h"

typedef struct widened {
  int64_t K, n;                    /* of the group: terms, outputs */
  float *weights, *bias, *storage; /* (n,K), (n), and what packing them takes */
} widened;

/* Columns `first` and on of out, M rows. */
static inline void multiply_widened(const widened *w, const kr_view *A, int64_t M, const kr_view *out,
                                    int64_t first) {
  kr_panels panels;
  KR_FN(kr_panels_pack)(&panels, w->storage, w->K, w->n, w->weights, 1, w->K, w->bias);
  KR_FN(kr_gemm_rows)(&(kr_gemm_rows_call){.weights = &panels,
                                           .A = A->data,
                                           .lda = A->stride[0],
                                           .M = M,
                                           .C = (float *)out->data + first,
                                           .ldc = out->stride[0],
                                           .n_store = w->n});
}

#endif
