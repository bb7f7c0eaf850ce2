/* pointwise_walk.h: a pointwise call as the fewest nested loops: out's innermost dimension last. */
#ifndef KR_POINTWISE_WALK_H
#define KR_POINTWISE_WALK_H

#include "op_args.h"

enum { KR_WALK_OUT, KR_WALK_X, KR_WALK_Y, KR_WALK_VIEWS };
typedef struct kr_walk {
  int64_t n[4], stride[KR_WALK_VIEWS][4]; /* strides of absent views are 0 */
} kr_walk;

/* Of a gate's gradients, I is 1: the gate's elements and those of its gradient. */
kr_walk kr_walk_of(const kr_pointwise_args *args);

static inline int kr_is_gate(const kr_pointwise_args *a) { return (a->call.flags & KRAIT_POINTWISE_GATE) != 0; }
const char *kr_pointwise_refuse_gate(const kr_pointwise_args *args);

#endif
