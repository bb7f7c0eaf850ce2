/* conv2d_impls.h: shared by the vectorized implementations of channels-last convolutions and their table. */
#ifndef KR_CONV2D_IMPLS_H
#define KR_CONV2D_IMPLS_H

#include "op_args.h"

enum { KR_CONV_LANES = 64, KR_CONV_MOST_CHUNKS = 64 };
static inline int64_t kr_whole_lanes(int64_t C) { return (C + KR_CONV_LANES - 1) / KR_CONV_LANES * KR_CONV_LANES; }
/* Sums over positions are split into chunks of rows (b, h) that depend on the shape alone. */
static inline int64_t kr_conv_chunks(int64_t rows) { return rows < KR_CONV_MOST_CHUNKS ? rows : KR_CONV_MOST_CHUNKS; }

uint64_t kr_depthwise_conv_scratch(const krait_ctx *ctx, const void *args);
uint64_t kr_depthwise_conv_bwd_scratch(const krait_ctx *ctx, const void *args);

#endif
