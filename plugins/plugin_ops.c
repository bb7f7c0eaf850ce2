/* plugin_ops.c: what a plug-in's library, which has the streaming model alone, contains of the operators: those of its
 * graph. Gradients and the other models' blocks refer to more, which are here without an implementation. Not part of
 * the program. */
#include "op_list.h"

#define KR_OP(op) const kr_op kr_op_##op = {.name = #op};
KR_OP(argmax_rows)
KR_OP(attention)
KR_OP(attention_append)
KR_OP(attention_step)
KR_OP(causal_conv1d)
KR_OP(causal_conv1d_bwd)
KR_OP(conv_norm)
KR_OP(dense_block)
KR_OP(dt_state_update)
KR_OP(filter_bank)
KR_OP(gated_filter)
KR_OP(gated_norm)
KR_OP(gemm_q8)
KR_OP(mamba3)
KR_OP(map_product)
KR_OP(mean_product)
KR_OP(projected_scan)
KR_OP(rnn)
KR_OP(rnn_pair)
KR_OP(rotary)
KR_OP(rotary_append)
KR_OP(selective_scan)
KR_OP(selective_scan_bwd)
KR_OP(ssd)
#undef KR_OP

/* No operator's rewriting applies to the model's graph. */
const kr_op *const kr_op_list[] = {&kr_op_gemm};
const int32_t kr_n_op_list = 0;
