/* gemm.c: contract, cost and rows of the product of rows with a weight matrix. The equation is in gemm_ref.c. Bound: float32
 * 1e-5 of the result's scale for K up to thousands, 16-bit storage one rounding. */
#include "gemm/gemm_kernel.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static int32_t check_args(const void *args) {
  const krait_gemm_args *a = args;
  KR_CHECK(a->M >= 0 && a->N >= 1 && a->K >= 1, KRAIT_ERR_SHAPE, "gemm: M must not be negative, N and K must be positive");
  KR_CHECK(kr_has(&a->A) && kr_has(&a->Bmat) && kr_has(&a->out), KRAIT_ERR_ARGUMENT, "gemm: A, Bmat and out must be given");
  KR_CHECK(a->activation == KRAIT_ACT_NONE || a->activation == KRAIT_ACT_SILU, KRAIT_ERR_ARGUMENT, "gemm: unknown activation %d", a->activation);
  KR_CHECK(kr_is_activation_dtype(a->A.dtype), KRAIT_ERR_DTYPE,
           "gemm: A is %s, must be float32, float16 or bfloat16", krait_dtype_name(a->A.dtype));
  KR_CHECK(kr_is_float_dtype(a->Bmat.dtype), KRAIT_ERR_DTYPE, "gemm: Bmat is %s, must be a float type",
           krait_dtype_name(a->Bmat.dtype));
  KR_CHECK(!kr_has(&a->bias) || kr_is_float_dtype(a->bias.dtype), KRAIT_ERR_DTYPE,
           "gemm: bias is %s, must be a float type", krait_dtype_name(a->bias.dtype));
  KR_CHECK(!kr_has(&a->residual) || a->residual.dtype == a->A.dtype, KRAIT_ERR_DTYPE,
           "gemm: residual is %s but A is %s", krait_dtype_name(a->residual.dtype), krait_dtype_name(a->A.dtype));
  KR_CHECK(a->out.dtype == a->A.dtype, KRAIT_ERR_DTYPE,
           "gemm: out is %s but A is %s", krait_dtype_name(a->out.dtype), krait_dtype_name(a->A.dtype));
  int in_place = kr_has(&a->residual) && a->residual.data == a->out.data;
  KR_CHECK(!in_place || (a->residual.stride[0] == a->out.stride[0] && a->residual.stride[1] == a->out.stride[1]), KRAIT_ERR_ARGUMENT,
           "gemm: out is residual but with other strides");
  KR_CHECK(!in_place || a->activation == KRAIT_ACT_NONE, KRAIT_ERR_ARGUMENT, "gemm: out may be residual only without an activation");
  return KRAIT_OK;
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_gemm_args *a = args;
  double element = (double)krait_dtype_bytes(a->A.dtype), M = (double)a->M, N = (double)a->N, K = (double)a->K;
  cost->flops = 2 * M * N * K;
  cost->bytes = element * (M * K + M * N * (kr_has(&a->residual) ? 2 : 1)) + K * N * (double)krait_dtype_bytes(a->Bmat.dtype);
  cost->exps = a->activation == KRAIT_ACT_SILU ? M * N : 0;
}

static const char *refuse_simd(const krait_ctx *ctx, const void *args) {
  const krait_gemm_args *a = args;
  (void)ctx;
  if (a->A.dtype != KRAIT_F32 || a->Bmat.dtype != KRAIT_F32) return "A and Bmat must be float32";
  if (a->A.stride[1] != 1 || a->out.stride[1] != 1 || (kr_has(&a->residual) && a->residual.stride[1] != 1))
    return "rows of A, residual and out must be contiguous";
  return NULL;
}

#define KR_ISA(isa, cap)                                                                              \
  static uint64_t scratch_##isa(const krait_ctx *ctx, const void *args) {                             \
    (void)ctx;                                                                                        \
    return (uint64_t)kr_panels_floats_##isa(((const krait_gemm_args *)args)->K, ((const krait_gemm_args *)args)->N, 0) * sizeof(float); \
  }
#include "isa.def"
#undef KR_ISA

static const kr_row rows[] = {
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_simd, kr_gemm_##isa, scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gemm_ref, NULL},
};

const kr_op kr_op_gemm = {"gemm", sizeof(krait_gemm_args), KR_ROWS(rows), check_args, count_cost, kr_gemm_case, 500, kr_gemm_views};

KR_OP_FUNCTIONS(gemm)
