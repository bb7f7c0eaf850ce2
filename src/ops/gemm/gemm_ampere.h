/* gemm_ampere.h: parameters of the ampere tier's products of float32 factors in two float16 parts; the same for host
 * and device. */
#ifndef KR_GEMM_AMPERE_H
#define KR_GEMM_AMPERE_H

#include "gemm_params.h"

typedef struct kr_gemm_halves_params {
  kr_gemm_params params;                           /* with the float32 factors */
  kr_gemm_matrix A, B, B2;                         /* their parts: part i of product p is batch i P + p */
  const float *unscale_m, *unscale_n, *unscale_n2; /* of rows of A, columns of B and B2; product after product */
} kr_gemm_halves_params;

enum { KR_AMPERE_HALVES_STAGES = 2 };

#endif
