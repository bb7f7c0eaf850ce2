/* lm_ops.h: declares language models' own operators. */
#ifndef KR_LM_OPS_H
#define KR_LM_OPS_H
#include "lm_op_args.h"
#include "op_list.h"
#define KR_OP(name) KR_OP_DECLARE(name)
#include "lm_ops.def"
#undef KR_OP
#endif
