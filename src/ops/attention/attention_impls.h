/* attention_impls.h: implementations of attention, its gradient and its companion ops that op_list.h does not declare.
 */
#ifndef KR_ATTENTION_IMPLS_H
#define KR_ATTENTION_IMPLS_H

#include <krait/krait.h>

struct kr_attention_inputs;
/* Query-key pairs that a call's masks leave, all heads. */
double kr_attention_pairs(const struct kr_attention_inputs *in);

enum { KR_ATTENTION_MOST_D = 512 };

#define KR_ATTENTION_SCRATCH(row)                                       \
  uint64_t kr_attention_##row(const krait_ctx *ctx, const void *args);  \
  uint64_t kr_attention_bwd_##row(const krait_ctx *ctx, const void *args);
KR_ATTENTION_SCRATCH(ref_scratch)
KR_ATTENTION_SCRATCH(scratch_avx512)
KR_ATTENTION_SCRATCH(scratch_avx2)
KR_ATTENTION_SCRATCH(scratch_neon)
KR_ATTENTION_SCRATCH(scratch_scalar)

/* Few queries: one row per instruction set, before the tiled one. */
#define KR_ATTENTION_FEW(isa)                                                                \
  const char *kr_attention_few_refuse_##isa(const krait_ctx *ctx, const void *args);         \
  int32_t kr_attention_few_##isa(const krait_ctx *ctx, const void *args);                    \
  uint64_t kr_attention_few_scratch_##isa(const krait_ctx *ctx, const void *args);
/* Of rotary and attention_append. */
#define KR_ROTARY_REFUSE(isa)                                                          \
  const char *kr_rotary_refuse_##isa(const krait_ctx *ctx, const void *args);          \
  const char *kr_attention_append_refuse_##isa(const krait_ctx *ctx, const void *args);
KR_ROTARY_REFUSE(avx512)
KR_ROTARY_REFUSE(avx2)
KR_ROTARY_REFUSE(neon)
KR_ROTARY_REFUSE(scalar)
KR_ATTENTION_FEW(avx512)
KR_ATTENTION_FEW(avx2)
KR_ATTENTION_FEW(neon)
KR_ATTENTION_FEW(scalar)

#endif
