/* seedvr_ops.h: declares SeedVR's own operators. */
#ifndef KR_SEEDVR_OPS_H
#define KR_SEEDVR_OPS_H
#include "op_list.h"
#include "seedvr_op_args.h"
#define KR_OP(name) KR_OP_DECLARE(name)
#include "seedvr_ops.def"
#undef KR_OP
#endif
