/* mamba3_decode.h: implementations of a token through Mamba-3's layers. */
#ifndef KR_MAMBA3_DECODE_H
#define KR_MAMBA3_DECODE_H

#include "ctx.h"
#include "lm_op_args.h"

/* Rows of in_proj: z, x, and those behind, B, C, dt, A, trap, angles. */
static inline int64_t kr_mamba3_decode_columns(const kr_mamba3_decode_args *a) { return 2 * a->N + 3 * a->H + a->M; }
static inline int64_t kr_mamba3_decode_rows(const kr_mamba3_decode_args *a) {
  return 2 * a->H * a->P + kr_mamba3_decode_columns(a);
}

int32_t kr_mamba3_decode_streamed(const krait_ctx *ctx, const void *args);
const char *kr_mamba3_decode_streamed_refuse(const krait_ctx *ctx, const void *args);
uint64_t kr_mamba3_decode_streamed_scratch(const krait_ctx *ctx, const void *args);
int32_t kr_mamba3_decode_ref(const krait_ctx *ctx, const void *args);
uint64_t kr_mamba3_decode_ref_scratch(const krait_ctx *ctx, const void *args);

#endif
