/* gemm_hopper.h: what host and device must agree on for gemm_hopper.cu's results. */
#ifndef KR_GEMM_HOPPER_H
#define KR_GEMM_HOPPER_H

/* Columns of a box of 16-bit results, of a tile of so many. */
#define KR_HOPPER_BOX(COLUMNS) ((COLUMNS) % 64 == 0 ? 64 : 32)

#endif
