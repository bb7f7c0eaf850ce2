/* gemm_few.h: how up to four rows times weights are shared out; for host and device. */
#ifndef KR_GEMM_FEW_H
#define KR_GEMM_FEW_H

enum { KR_FEW_GROUP = 4, KR_FEW_RUN = 256 }; /* columns whose weights a warp reads together; their k at a time */

#endif
