/* primeknet_ops.h: declares the denoiser's own operators. */
#ifndef KR_PRIMEKNET_OPS_H
#define KR_PRIMEKNET_OPS_H
#include "op_args.h"
#include "op_list.h"
#define KR_OP(name) KR_OP_DECLARE(name)
#include "primeknet_ops.def"
#undef KR_OP
#endif
