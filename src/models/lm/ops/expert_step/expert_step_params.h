/* expert_step_params.h: parameters of the kernels of a mixture of experts in one call. */
#ifndef KR_EXPERT_STEP_PARAMS_H
#define KR_EXPERT_STEP_PARAMS_H

#include "lm_op_args.h"

enum {
  KR_EXPERT_STEP_EXPERTS = 128, /* at most */
  KR_EXPERT_STEP_WARPS = 4,     /* of a block that computes scores or hidden values */
  KR_EXPERT_STEP_HIDDEN = 8,    /* hidden values of a block */
  KR_EXPERT_STEP_SUM_WARPS = 8, /* of a block that sums, which share a row's parts */
  KR_EXPERT_STEP_SUMS = 4,      /* outputs of such a block */
  KR_EXPERT_STEP_PART = 512     /* hidden values that a warp sums at once */
};

typedef struct kr_expert_step_params {
  kr_expert_step_args a;
  float *scores;                 /* (T,E) */
  int32_t *index;                /* (T,K) */
  float *weights;                /* (T,K) */
  void *hidden;                  /* (T, S + K F), of x's type */
  int32_t T, E, K, M, F, S;
  int32_t tiles, shared_tiles;   /* blocks of hidden values of a choice, of the MLP for all rows */
  int32_t parts, shared_parts;   /* of a choice's hidden values, of the MLP's */
} kr_expert_step_params;

#endif
