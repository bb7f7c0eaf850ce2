/* block_ops.h: declares the operators that are graphs of other operators. */
#ifndef KR_BLOCK_OPS_H
#define KR_BLOCK_OPS_H
#include "op_args.h"
#include "op_list.h"
#define KR_OP(name) KR_OP_DECLARE(name)
#include "block_ops.def"
#undef KR_OP
#endif
