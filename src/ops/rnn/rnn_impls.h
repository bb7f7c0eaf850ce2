/* rnn_impls.h: scratch layout of rnn's vectorized implementations. A task has KR_RNN_TILE sequences; sums over
 * sequences are split into chunks that depend on the shape alone. Widths are padded to KR_RNN_LANES floats. */
#ifndef KR_RNN_IMPLS_H
#define KR_RNN_IMPLS_H

#include "op_args.h"

enum { KR_RNN_TILE = 4, KR_RNN_LANES = 32, KR_RNN_CHUNKS = 16 };
static inline int64_t kr_rnn_whole(int64_t n) { return (n + KR_RNN_LANES - 1) / KR_RNN_LANES * KR_RNN_LANES; }

/* GPU (rnn_64_cuda.c): 64 units, with or without tensor cores, and more than KR_RNN_MOST_UNITS. */
const char *kr_rnn_64_refuse(const krait_ctx *ctx, const void *args),
    *kr_rnn_64_tensor_refuse(const krait_ctx *ctx, const void *args),
    *kr_rnn_wide_refuse(const krait_ctx *ctx, const void *args),
    *kr_rnn_bwd_64_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_rnn_64(const krait_ctx *ctx, const void *args), kr_rnn_64_tensor(const krait_ctx *ctx, const void *args),
    kr_rnn_wide(const krait_ctx *ctx, const void *args), kr_rnn_bwd_64(const krait_ctx *ctx, const void *args);

uint64_t kr_rnn_bwd_ref_scratch(const krait_ctx *ctx, const void *args);
uint64_t kr_rnn_scratch(const krait_ctx *ctx, const void *args);
uint64_t kr_rnn_bwd_scratch(const krait_ctx *ctx, const void *args);

#endif
