/* ssd_impls.h: scratch sizes of the implementations of the SSD and its gradient, and the rule shared by their
 * contracts. */
#ifndef KR_SSD_IMPLS_H
#define KR_SSD_IMPLS_H

#include <krait/krait.h>

const char *kr_ssd_chunks_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_chunks(const krait_ctx *ctx, const void *args);
uint64_t kr_ssd_chunks_scratch(const krait_ctx *ctx, const void *args);
const char *kr_ssd_turing_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_turing(const krait_ctx *ctx, const void *args);

const char *kr_ssd_parts_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_parts(const krait_ctx *ctx, const void *args);
uint64_t kr_ssd_parts_scratch(const krait_ctx *ctx, const void *args);
const char *kr_ssd_tf32_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_tf32(const krait_ctx *ctx, const void *args);

const char *kr_ssd_tiles_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_tiles(const krait_ctx *ctx, const void *args);
uint64_t kr_ssd_tiles_scratch(const krait_ctx *ctx, const void *args);
const char *kr_ssd_bwd_tiles_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_bwd_tiles(const krait_ctx *ctx, const void *args);
uint64_t kr_ssd_bwd_tiles_scratch(const krait_ctx *ctx, const void *args);

const char *kr_ssd_hopper_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_hopper(const krait_ctx *ctx, const void *args);
uint64_t kr_ssd_hopper_scratch(const krait_ctx *ctx, const void *args);

const char *kr_ssd_bwd_chunks_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_bwd_chunks(const krait_ctx *ctx, const void *args);
uint64_t kr_ssd_bwd_chunks_scratch(const krait_ctx *ctx, const void *args);

const char *kr_ssd_bwd_parts_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_bwd_parts(const krait_ctx *ctx, const void *args);
const char *kr_ssd_bwd_tf32_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_bwd_tf32(const krait_ctx *ctx, const void *args);

const char *kr_ssd_bwd_hopper_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_ssd_bwd_hopper(const krait_ctx *ctx, const void *args);
uint64_t kr_ssd_bwd_hopper_scratch(const krait_ctx *ctx, const void *args);

#define KR_SSD_SCRATCH(row)                                              \
  uint64_t kr_ssd_##row(const krait_ctx *ctx, const void *args);         \
  uint64_t kr_ssd_bwd_##row(const krait_ctx *ctx, const void *args);
KR_SSD_SCRATCH(ref_scratch)
KR_SSD_SCRATCH(scratch_avx512)
KR_SSD_SCRATCH(scratch_avx2)
KR_SSD_SCRATCH(scratch_neon)
KR_SSD_SCRATCH(scratch_scalar)

int32_t kr_ssd_check_limits(const char *op, float dt_min, float dt_max);

#endif
