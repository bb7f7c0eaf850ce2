/* attention_rows.h: the rows of attention, its gradient and what goes before them, beyond the functions that op_list.h knows. */
#ifndef KR_ATTENTION_ROWS_H
#define KR_ATTENTION_ROWS_H

#include <krait/krait.h>

struct kr_attention_inputs;
/* Pairs of a query and a key that a call's masks leave, all heads. */
double kr_attention_pairs(const struct kr_attention_inputs *in);

enum { KR_ATTENTION_MOST_D = 256 };

#define KR_ATTENTION_SCRATCH(row)                                       \
  uint64_t kr_attention_##row(const krait_ctx *ctx, const void *args);  \
  uint64_t kr_attention_bwd_##row(const krait_ctx *ctx, const void *args);
KR_ATTENTION_SCRATCH(ref_scratch)
KR_ATTENTION_SCRATCH(scratch_avx512)
KR_ATTENTION_SCRATCH(scratch_avx2)
KR_ATTENTION_SCRATCH(scratch_neon)
KR_ATTENTION_SCRATCH(scratch_scalar)

#endif
