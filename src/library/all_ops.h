/* all_ops.h: all operators of the library, by name. A room declares its own (op_list.h, block_ops.h,
 * primeknet_ops.h) and knows no list of all: that stands here, above them, and its addresses make a linker keep what
 * it names, of a static library too, where constructors that add to a table at the start would be lost. */
#ifndef KR_ALL_OPS_H
#define KR_ALL_OPS_H
#include "block_ops.h"
#include "op_list.h"
#include "lm_ops.h"
#include "primeknet_ops.h"
#include "public_op.h"
#include "seedvr/ops/seedvr_ops.h"
extern const kr_op *const kr_ops[];
extern const int32_t kr_n_ops;
const kr_op *kr_op_find(const char *name); /* NULL if there is none */
/* Those of krait/ops.h and krait/train_ops.h. */
extern const kr_public_op *const kr_public_ops[];
extern const int32_t kr_n_public_ops;
const kr_public_op *kr_public_find(const char *name);
#endif
