/* planted_op.h: an operator that reverses a row, by one of planted.cu's kernels, most of which have a fault. */
#ifndef KR_PLANTED_OP_H
#define KR_PLANTED_OP_H

#include "op.h"

extern const kr_op kr_planted_op;
void kr_planted_choose(const char *name, int is_cooperative);

#endif
