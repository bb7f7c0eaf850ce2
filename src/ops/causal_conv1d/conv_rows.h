/* conv_rows.h: what the files of the convolution say to each other: the inputs that both directions share, scratch sizes. */
#ifndef KR_CONV_ROWS_H
#define KR_CONV_ROWS_H

#include <krait/ops.h>

typedef struct kr_conv_inputs {
  const krait_call *call;
  int64_t B, D, L, W;
  int32_t activation;
  const krait_view *x, *weight, *bias, *seq_idx, *initial_states;
} kr_conv_inputs;

#define KR_CONV_INPUTS(a) \
  {&(a)->call, (a)->B, (a)->D, (a)->L, (a)->W, (a)->activation, &(a)->x, &(a)->weight, &(a)->bias, &(a)->seq_idx, &(a)->initial_states}

int32_t kr_conv_check_inputs(const char *op, const kr_conv_inputs *in);

typedef uint64_t kr_conv_scratch_fn(const krait_ctx *ctx, const void *args);
kr_conv_scratch_fn kr_causal_conv1d_update_ref_scratch, kr_causal_conv1d_bwd_ref_scratch, kr_causal_conv1d_bwd_scratch_avx512, kr_causal_conv1d_bwd_scratch_avx2,
    kr_causal_conv1d_bwd_scratch_neon, kr_causal_conv1d_bwd_scratch_scalar;

struct kr_case;
typedef struct kr_conv_case {
  krait_call *call;
  int64_t *B, *D, *L, *W;
  int32_t *activation;
  krait_view *x, *weight, *bias, *seq_idx, *initial_states;
} kr_conv_case;

#define KR_CONV_CASE(a) \
  {&(a)->call, &(a)->B, &(a)->D, &(a)->L, &(a)->W, &(a)->activation, &(a)->x, &(a)->weight, &(a)->bias, &(a)->seq_idx, &(a)->initial_states}

void kr_conv_case_inputs(struct kr_case *c, kr_conv_case *s, int64_t index); /* random inputs of either direction */

#endif
