/* rnn_pair_rows.h: the rows of rnn_pair: both layers in one launch (rnn_64_cuda.c), graphs of other operators
 * (src/fuse/rnn_pair_graph.c). */
#ifndef KR_RNN_PAIR_ROWS_H
#define KR_RNN_PAIR_ROWS_H

#include <krait/blocks.h>

const char *kr_rnn_pair_64_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_rnn_pair_64(const krait_ctx *ctx, const void *args),
    kr_rnn_pair_composed(const krait_ctx *ctx, const void *args);
uint64_t kr_rnn_pair_64_scratch(const krait_ctx *ctx, const void *args),
    kr_rnn_pair_composed_scratch(const krait_ctx *ctx, const void *args),
    kr_rnn_pair_ref_scratch(const krait_ctx *ctx, const void *args);

#endif
