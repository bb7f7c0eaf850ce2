/* round_trip.h: runs a call on device tensors on the CPU (KRAIT_FALLBACK_CPU). */
#ifndef KR_ROUND_TRIP_H
#define KR_ROUND_TRIP_H

#include "op.h"

/* args: complete and checked, tensors in the memory of ctx's device. Waits for the call's stream before and after. */
int32_t kr_round_trip(const kr_op *op, const krait_ctx *ctx, const void *args);

#endif
