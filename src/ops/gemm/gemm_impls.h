/* gemm_impls.h: the GPU implementations of products (gemm_cuda.c), and what all implementations derive from a call. */
#ifndef KR_GEMM_IMPLS_H
#define KR_GEMM_IMPLS_H

#include "op_args.h"
#include "row_lanes.h"
#include "op.h"

static inline int64_t kr_gemm_products(const kr_gemm_args *a) { return a->P > 1 ? a->P : 1; }

typedef const char *kr_refuse_fn(const krait_ctx *ctx, const void *args);
typedef int32_t kr_impl_fn(const krait_ctx *ctx, const void *args);
typedef uint64_t kr_scratch_fn(const krait_ctx *ctx, const void *args);

/* m16: up to 16 rows of A against weights as layers store them (float32: up to two); m64: up to 64; few_base: up to 16,
 * of any types, on any GPU. long_k: a small result with a very long K. hopper, ampere: tensor-core tiles, 16-bit
 * factors; turing: the same, float16 alone. tf32: float32 factors where the call allows it (hopper: in float16, each
 * line scaled). halves: float32 factors as sums of two float16 parts, with float32's accuracy; turing_scaled: bfloat16
 * ones as one. base: everything. */
kr_refuse_fn kr_gemm_m16_refuse, kr_gemm_m64_refuse, kr_gemm_hopper_refuse, kr_gemm_ampere_refuse, kr_gemm_tf32_refuse,
    kr_gemm_ampere_halves_refuse, kr_gemm_hopper_halves_refuse, kr_gemm_hopper_tf32_refuse, kr_gemm_base_refuse,
    kr_gemm_few_base_refuse, kr_gemm_long_k_refuse, kr_gemm_m16_turing_refuse, kr_gemm_turing_refuse,
    kr_gemm_turing_halves_refuse, kr_gemm_turing_scaled_refuse;
kr_impl_fn kr_gemm_m16, kr_gemm_m64, kr_gemm_hopper, kr_gemm_ampere, kr_gemm_tf32, kr_gemm_ampere_halves,
    kr_gemm_hopper_halves, kr_gemm_hopper_tf32, kr_gemm_base, kr_gemm_few_base, kr_gemm_long_k, kr_gemm_m16_turing,
    kr_gemm_turing, kr_gemm_turing_halves, kr_gemm_turing_scaled;
kr_scratch_fn kr_gemm_hopper_scratch, kr_gemm_ampere_scratch, kr_gemm_tf32_scratch, kr_gemm_ampere_halves_scratch,
    kr_gemm_hopper_halves_scratch, kr_gemm_hopper_tf32_scratch, kr_gemm_base_scratch, kr_gemm_long_k_scratch,
    kr_gemm_turing_halves_scratch, kr_gemm_turing_scaled_scratch;

/* Groups of columns, n_warps warps each, that share a block of at most most_warps: as many as do not raise the largest
 * number of groups per multiprocessor. */
int kr_groups_of_block(const krait_ctx *ctx, int64_t n_groups, int n_warps, int most_warps);

/* few, up to two rows, with a fused RMS norm (norm_gemm); is_gate: norm->other is a gate; where it is A itself, A is
 * float32 whatever its view says. */
const char *kr_gemm_normed_refuse(const krait_ctx *ctx, const kr_gemm_args *a, int with_conv);
int32_t kr_gemm_normed(const krait_ctx *ctx, const kr_gemm_args *a, const kr_normed *norm, int is_gate,
                       const kr_conv_step *conv, uint64_t tier);

/* The vector implementations for few rows of A (gemm_m16_simd.c). */
enum { KR_GEMM_MOST_M16 = 16 };
kr_impl_fn kr_gemm_m16_avx512, kr_gemm_m16_avx2, kr_gemm_m16_neon, kr_gemm_m16_scalar;
kr_scratch_fn kr_gemm_m16_scratch_avx512, kr_gemm_m16_scratch_avx2, kr_gemm_m16_scratch_neon,
    kr_gemm_m16_scratch_scalar;

/* Scratch of the vector implementations (gemm_simd.c). */
kr_scratch_fn kr_gemm_scratch_avx512, kr_gemm_scratch_avx2, kr_gemm_scratch_neon, kr_gemm_scratch_scalar;

/* The matrix-unit implementation (gemm_tiles_simd.c) with AVX-512 vectors around it; scalar: for tests, loops emulating
 * the unit. */
kr_impl_fn kr_gemm_tiles_avx512, kr_gemm_tiles_scalar;
kr_scratch_fn kr_gemm_tiles_scratch_avx512, kr_gemm_tiles_scratch_scalar;

#endif
