/* expert_gemm_params.h: kernel parameters of expert_gemm.cu, the same structs for host and device. */
#ifndef KR_EXPERT_GEMM_PARAMS_H
#define KR_EXPERT_GEMM_PARAMS_H

#include "lm_op_args.h"

enum {
  KR_EXPERTS_WARPS = 4,     /* of a block; each computes outputs of its own */
  KR_EXPERTS_SUM_WARPS = 8, /* of a block that sums a row's choices, which they share */
  KR_EXPERTS_EACH = 4,      /* outputs of a warp */
  KR_ROUTE_CUDA_FEW = 128,    /* experts, of the kernel for few */
  KR_ROUTE_CUDA_EXPERTS = 512 /* at most */
};

typedef struct kr_experts_params {
  kr_expert_gemm_args a;
  uint32_t tiles; /* blocks of a row */
  int32_t packs;  /* 16 bytes of A and B at a time */
} kr_experts_params;

typedef struct kr_route_params {
  kr_expert_route_args a;
} kr_route_params;

#endif
