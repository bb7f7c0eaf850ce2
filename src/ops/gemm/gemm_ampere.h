/* gemm_ampere.h: parameters of the ampere and turing tiers' products of scaled factors: float32 ones in two float16
 * parts, bfloat16 ones (turing) as one; the same for host and device. */
#ifndef KR_GEMM_AMPERE_H
#define KR_GEMM_AMPERE_H

#include "gemm_params.h"

typedef struct kr_gemm_halves_params {
  kr_gemm_params params;                           /* with the factors as they are */
  kr_gemm_matrix A, B, B2;                         /* their parts: part i of product p is batch i P + p */
  const float *unscale_m, *unscale_n, *unscale_n2; /* of rows of A, columns of B and B2; product after product; NULL:
                                                    * the factors themselves, which are float16 */
} kr_gemm_halves_params;

enum { KR_AMPERE_HALVES_STAGES = 2 };

#endif
