/* op_list.h: the list of all operators, from ops.def. */
#ifndef KR_OP_LIST_H
#define KR_OP_LIST_H
#include "cuda_impl.h"
#include "op.h"
extern const kr_op *const kr_ops[];
extern const int32_t kr_n_ops;
const kr_op *kr_op_find(const char *name); /* NULL if there is none */

/* The functions that every op folder defines under these names: reference, vector implementations, random cases. */
typedef int32_t kr_run_fn(const krait_ctx *ctx, const void *args);
typedef int32_t kr_case_fn(struct kr_case *c, int64_t index);
#define KR_OP(name)                                                                   \
  extern const kr_op kr_op_##name;                                                    \
  kr_run_fn kr_##name##_ref, kr_##name##_avx512, kr_##name##_avx2, kr_##name##_neon, kr_##name##_scalar; \
  extern const kr_sig kr_sig_##name;                                                  \
  KR_CUDA_DECLARE(name);                                                              \
  kr_case_fn kr_##name##_case;
#include "ops.def"
#undef KR_OP
#endif
