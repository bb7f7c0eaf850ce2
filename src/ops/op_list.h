/* op_list.h: declares the operators of this room, those of ops.def. A room above that has operators does the same with
 * a list of its own. */
#ifndef KR_OP_LIST_H
#define KR_OP_LIST_H
#include "cuda_impl.h"
#include "op.h"

typedef int32_t kr_run_fn(const krait_ctx *ctx, const void *args);
typedef int32_t kr_case_fn(struct kr_case *c, int64_t index);

/* What an operator's folder defines under these names: the op, its signature, the reference, vector and GPU
 * implementations, random cases. */
#define KR_OP_DECLARE(name)                                                                              \
  extern const kr_op kr_op_##name;                                                                       \
  kr_run_fn kr_##name##_ref, kr_##name##_avx512, kr_##name##_avx2, kr_##name##_neon, kr_##name##_scalar; \
  extern const kr_sig kr_sig_##name;                                                                     \
  KR_CUDA_DECLARE(name);                                                                                 \
  kr_case_fn kr_##name##_case;

#define KR_OP(name) KR_OP_DECLARE(name)
#include "ops.def"
#undef KR_OP
extern const kr_op *const kr_op_list[]; /* these, in the order of ops.def */
extern const int32_t kr_n_op_list;
#endif
