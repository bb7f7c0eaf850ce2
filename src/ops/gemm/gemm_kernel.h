/* gemm_kernel.h: the product of many rows with one packed matrix, for callers that keep the packed form (models pack
 * their weights once). All float32.
 *
 * Packed form: column panels two vectors wide, the last one vector if that suffices; a panel is [K][width], padded
 * with zeros; `bias` has the padded length, zeros if absent. */
#ifndef KR_GEMM_KERNEL_H
#define KR_GEMM_KERNEL_H

#include <krait/krait.h>

typedef struct kr_panels {
  int64_t K, N;
  float *data, *bias; /* not owned */
} kr_panels;

/* C = A B + bias. Columns beyond n_store are computed but not stored; C must hold n_store columns. */
typedef struct kr_gemm_rows_call {
  const kr_panels *weights;
  const float *A; /* M rows of K, lda apart */
  int64_t lda, M;
  float *C;
  int64_t ldc;
  int64_t n_store;
} kr_gemm_rows_call;

/* sums += rows of A times terms k to k + n of the panel that begins at column `first`: for products whose terms lie in
 * several places. sums (M, two vectors). */
typedef struct kr_panel_call {
  const kr_panels *weights;
  int64_t first, k, n;
  const float *A; /* M rows of n, lda apart */
  int64_t lda, M;
  float *sums;
} kr_panel_call;

#define KR_GEMM_KERNEL(isa)                                                                               \
  int64_t kr_panels_floats_##isa(int64_t K, int64_t N); /* of data and bias together */                   \
  /* B[k][n] at B + k * stride_k + n * stride_n; bias NULL or N values. storage is aligned to 64 bytes. */ \
  void kr_panels_pack_##isa(kr_panels *p, float *storage, int64_t K, int64_t N, const float *B,           \
                            int64_t stride_k, int64_t stride_n, const float *bias);                       \
  void kr_gemm_rows_##isa(const kr_gemm_rows_call *c);                                                    \
  void kr_panel_add_##isa(const kr_panel_call *c);
KR_GEMM_KERNEL(avx512)
KR_GEMM_KERNEL(avx2)
KR_GEMM_KERNEL(neon)
KR_GEMM_KERNEL(scalar)

#endif
