/* gemm_q8.c: cost and implementations of products with 8-bit weights. gemm_q8_ref.c has the equation. Bound: float32
 * 1e-5 of the result's scale, with more than 16 rows 3e-4, since these may be rounded to 16 bits a block (2e-5 in the
 * mean); 16-bit storage one rounding; the quantization error itself is not this op's. On a GPU one or two rows. */
#include <stdatomic.h>

#include "gemm/gemm_q8_impls.h"
#include "op_list.h"
#include "probe.h"
#include "view.h"

static void count_gemm_q8_cost(const void *args, kr_cost *cost) {
  const kr_gemm_q8_args *a = args;
  const double M = (double)a->M, N = (double)a->N, S = (double)a->S;
  cost->flops = 64 * M * N * S;
  cost->bytes = N * S * (32 + (double)krait_dtype_bytes(a->scales.dtype)) +
                32 * M * S * (double)krait_dtype_bytes(a->A.dtype) + M * N * (double)krait_dtype_bytes(a->out.dtype);
}

/* The vector implementations take contiguous rows of float32 and of qweight. */
static const char *refuse_gemm_q8_simd(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q8_args *a = args;
  (void)ctx;
  if (a->A.dtype != KRAIT_F32 || (a->A.stride[1] != 1 && a->S > 0)) return "rows of A are not float32 without gaps";
  if (a->out.dtype != KRAIT_F32 || (a->out.stride[1] != 1 && a->N > 1))
    return "rows of out are not float32 without gaps";
  if (a->qweight.stride[1] != 1 && a->S > 0) return "qweight of an output have gaps";
  return !kr_is_activation_dtype(a->scales.dtype) || a->bias.dtype == KRAIT_F64 ? "no float64" : NULL;
}

static const char *refuse_gemm_q8_few(const krait_ctx *ctx, const void *args) {
  return ((const kr_gemm_q8_args *)args)->M > KR_GEMM_Q8_MOST_FEW ? "more than 16 rows"
                                                                     : refuse_gemm_q8_simd(ctx, args);
}

#ifdef KR_BUILD_vnni
static const char *refuse_gemm_q8_words(const krait_ctx *ctx, const void *args) {
  static atomic_int known; /* 1: no, 2: yes */
  if (!atomic_load(&known)) atomic_store(&known, 1 + kr_cpu_has_vnni());
  if (atomic_load(&known) == 1) return "this processor has no AVX-512 VNNI";
  if (((const kr_gemm_q8_args *)args)->M <= KR_GEMM_Q8_MOST_FEW) return "no more than 16 rows";
  return refuse_gemm_q8_simd(ctx, args);
}
#endif

#ifdef KR_BUILD_amx
/* Cases where the vector implementations are as fast: mostly padding in the tiles, or packing for few rows. */
static const char *refuse_gemm_q8_tiles(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q8_args *a = args;
  if (a->M < 13 || a->N < 64) return "fewer than 13 rows or 64 outputs";
  if ((double)a->M * (double)a->N * 32 * (double)a->S < 1 << 20) return "a small product";
  return refuse_gemm_q8_simd(ctx, args);
}
#endif

static const kr_impl impls[] = {
    {"ampere_few_rows", KRAIT_CAP_CUDA_AMPERE, kr_gemm_q8_cuda_refuse, kr_gemm_q8_cuda, NULL},
    {"turing_few_rows", KRAIT_CAP_CUDA_TURING, kr_gemm_q8_turing_refuse, kr_gemm_q8_turing, NULL},
#ifdef KR_BUILD_amx
    {"simd_amx_tiles", KRAIT_CAP_CPU | KRAIT_CAP_AVX512 | KRAIT_CAP_AMX, refuse_gemm_q8_tiles, kr_gemm_q8_tiles_avx512,
     kr_gemm_q8_tiles_scratch_avx512},
#endif
#define KR_ISA(isa, cap) {"simd_" #isa "_few", KRAIT_CAP_CPU | cap, refuse_gemm_q8_few, kr_gemm_q8_few_##isa, NULL},
#include "isa.def"
#undef KR_ISA
#ifdef KR_BUILD_vnni
    {"simd_avx512_words", KRAIT_CAP_CPU | KRAIT_CAP_AVX512, refuse_gemm_q8_words, kr_gemm_q8_words_avx512,
     kr_gemm_q8_words_scratch_avx512},
#endif
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_gemm_q8_simd, kr_gemm_q8_##isa, kr_gemm_q8_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gemm_q8_ref, NULL},
};

KR_OP_DEFINE(gemm_q8, impls, NULL, count_gemm_q8_cost, kr_gemm_q8_case, 300, .takes_pdl = 1)
