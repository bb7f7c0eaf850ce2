/* state_update_impls.h: the families of GPU kernels of state_update. */
#ifndef KR_STATE_UPDATE_IMPLS_H
#define KR_STATE_UPDATE_IMPLS_H

#include "cuda_impl.h"
#include "state_update_params.h"

#define KR_UPDATE_FAMILIES(X, op) X(op, heads) X(op, whole_channels) X(op, four_states) X(op, any_strides)
KR_UPDATE_FAMILIES(KR_CUDA_FAMILY_DECLARE, state_update)

/* Lanes per channel for that many units of states; per_run: channels per thread. */
int32_t kr_update_lanes(int64_t units);
kr_update_params kr_update_params_of(kr_state_update_args a, int per_run, int64_t units);

#endif
