/* mamba3_decay_impls.h: the GPU implementations and scratch sizes of Mamba 3's time steps and decays. */
#ifndef KR_MAMBA3_DECAY_IMPLS_H
#define KR_MAMBA3_DECAY_IMPLS_H

#include <krait/krait.h>

uint64_t kr_mamba3_decay_bwd_scratch_avx512(const krait_ctx *ctx, const void *args);
uint64_t kr_mamba3_decay_bwd_scratch_avx2(const krait_ctx *ctx, const void *args);
uint64_t kr_mamba3_decay_bwd_scratch_neon(const krait_ctx *ctx, const void *args);
uint64_t kr_mamba3_decay_bwd_scratch_scalar(const krait_ctx *ctx, const void *args);

#endif
