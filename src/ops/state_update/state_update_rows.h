/* state_update_rows.h: the families of GPU kernels of state_update. */
#ifndef KR_STATE_UPDATE_ROWS_H
#define KR_STATE_UPDATE_ROWS_H

#include "cuda_row.h"

#define KR_UPDATE_FAMILIES(X, op) X(op, heads) X(op, four_states) X(op, any_strides)
KR_UPDATE_FAMILIES(KR_CUDA_FAMILY_DECLARE, state_update)

#endif
