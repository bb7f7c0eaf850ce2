/* gemm_q4k.c: cost and implementations of products with 4-bit weights. gemm_q4k_ref.c has the equation. Bound: float32
 * 1e-5 of the result's scale, 16-bit storage one rounding; the quantization error itself is not this op's. */
#include "gemm/gemm_q4k_impls.h"
#include "op_list.h"
#include "view.h"

static void count_gemm_q4k_cost(const void *args, kr_cost *cost) {
  const kr_gemm_q4k_args *a = args;
  const double M = (double)a->M, N = (double)a->N, S = (double)a->S;
  cost->flops = 512 * M * N * S;
  cost->bytes = 144 * N * S + 256 * M * S * (double)krait_dtype_bytes(a->A.dtype) +
                M * N * (double)krait_dtype_bytes(a->out.dtype);
}

/* The vector implementations take contiguous rows of float32 and of qweight. */
static const char *refuse_gemm_q4k_simd(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q4k_args *a = args;
  (void)ctx;
  if (a->A.dtype != KRAIT_F32 || (a->A.stride[1] != 1 && a->S > 0)) return "rows of A are not float32 without gaps";
  if (a->out.dtype != KRAIT_F32 || (a->out.stride[1] != 1 && a->N > 1))
    return "rows of out are not float32 without gaps";
  if (a->qweight.stride[1] != 1 && a->S > 0) return "qweight of an output have gaps";
  return a->bias.dtype == KRAIT_F64 ? "no float64" : NULL;
}

static const char *refuse_gemm_q4k_few(const krait_ctx *ctx, const void *args) {
  return ((const kr_gemm_q4k_args *)args)->M > 8 ? "more than 8 rows" : refuse_gemm_q4k_simd(ctx, args);
}

#ifdef KR_BUILD_amx
/* Cases where the vector implementations are as fast: mostly padding in the tiles, or packing for few rows. */
static const char *refuse_gemm_q4k_tiles(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q4k_args *a = args;
  if (a->M < 13 || a->N < 64) return "fewer than 13 rows or 64 outputs";
  if ((double)a->M * (double)a->N * 256 * (double)a->S < 1 << 20) return "a small product";
  return refuse_gemm_q4k_simd(ctx, args);
}
#endif

static const kr_impl impls[] = {
    KR_Q4K_FAMILIES(KR_CUDA_FAMILY_BASE, gemm_q4k)
#ifdef KR_BUILD_amx
        {"simd_amx_tiles", KRAIT_CAP_CPU | KRAIT_CAP_AVX512 | KRAIT_CAP_AMX, refuse_gemm_q4k_tiles,
         kr_gemm_q4k_tiles_avx512, kr_gemm_q4k_tiles_scratch_avx512},
#endif
#define KR_ISA(isa, cap) {"simd_" #isa "_few", KRAIT_CAP_CPU | cap, refuse_gemm_q4k_few, kr_gemm_q4k_few_##isa, NULL},
#include "isa.def"
#undef KR_ISA
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_gemm_q4k_simd, kr_gemm_q4k_##isa, kr_gemm_q4k_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gemm_q4k_ref, NULL},
};

KR_OP_DEFINE(gemm_q4k, impls, NULL, count_gemm_q4k_cost, kr_gemm_q4k_case, 300)
