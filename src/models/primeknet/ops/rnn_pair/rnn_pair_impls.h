/* rnn_pair_impls.h: the implementations of rnn_pair: both layers in one launch (rnn_pair_cuda.c), graphs of other
 * operators (rnn_pair_graph.c). */
#ifndef KR_RNN_PAIR_IMPLS_H
#define KR_RNN_PAIR_IMPLS_H

#include "op_args.h"

const char *kr_rnn_pair_64_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_rnn_pair_64(const krait_ctx *ctx, const void *args),
    kr_rnn_pair_composed(const krait_ctx *ctx, const void *args);
uint64_t kr_rnn_pair_64_scratch(const krait_ctx *ctx, const void *args),
    kr_rnn_pair_composed_scratch(const krait_ctx *ctx, const void *args),
    kr_rnn_pair_ref_scratch(const krait_ctx *ctx, const void *args);

#endif
