/* gemm_q4k_params.h: sizes for the kernels of gemm_q4k.cu. */
#ifndef KR_GEMM_Q4K_PARAMS_H
#define KR_GEMM_Q4K_PARAMS_H

enum {
  KR_Q4K_FEW_THREADS = 128, /* a warp takes KR_Q4K_FEW_OUTPUTS of one row, or of up to KR_Q4K_FEW_ROWS */
  KR_Q4K_FEW_OUTPUTS = 2,
  KR_Q4K_FEW_ROWS = 8,
  KR_Q4K_TILE_THREADS = 256,
  KR_Q4K_TILE = 64, /* rows and outputs of a tile, weights per step */
};

#endif
