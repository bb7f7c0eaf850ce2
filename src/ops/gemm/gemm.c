/* gemm.c: contract, cost and implementations of the product of activation rows with a weight matrix. gemm_ref.c has the
 * equation. Bound: float32 1e-5 of the result's scale for K up to thousands, 16-bit storage one rounding; with
 * KRAIT_GEMM_TF32, float32 factors may be rounded to 11 significant bits: 6e-3. */
#include "gemm/gemm_kernel.h"
#include "gemm/gemm_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

/* More elements fit in no memory; up to this limit no size, offset or scratch size overflows. */
static int32_t check_product(const char *what, int64_t a, int64_t b) {
  const int64_t most = (int64_t)1 << 48;
  KR_CHECK(b == 0 || a <= most / b, KRAIT_ERR_SHAPE, "gemm: %s is %lld x %lld, more than 2^48 elements", what,
           (long long)a, (long long)b);
  return KRAIT_OK;
}

static int32_t check_gemm_rules(const void *args) {
  const kr_gemm_args *a = args;
  KR_TRY(check_product("A", a->M, a->K));
  KR_TRY(check_product("Bmat", a->K, a->N));
  KR_TRY(check_product("out", a->M, a->N));
  const int in_place = kr_has(&a->residual) && a->residual.data == a->out.data;
  KR_CHECK(!kr_has(&a->residual) || a->residual.dtype == KRAIT_F32 || a->residual.dtype == a->A.dtype, KRAIT_ERR_DTYPE,
           "gemm: residual is %s but A is %s", krait_dtype_name(a->residual.dtype), krait_dtype_name(a->A.dtype));
  KR_CHECK(!kr_has(&a->factor) || a->factor.dtype == KRAIT_F32 || a->factor.dtype == a->A.dtype, KRAIT_ERR_DTYPE,
           "gemm: factor is %s but A is %s", krait_dtype_name(a->factor.dtype), krait_dtype_name(a->A.dtype));
  KR_CHECK(a->out.dtype == KRAIT_F32 || a->out.dtype == a->A.dtype, KRAIT_ERR_DTYPE, "gemm: out is %s but A is %s",
           krait_dtype_name(a->out.dtype), krait_dtype_name(a->A.dtype));
  KR_CHECK(!in_place || a->residual.dtype == a->out.dtype, KRAIT_ERR_DTYPE, "gemm: out is residual but %s, not %s",
           krait_dtype_name(a->out.dtype), krait_dtype_name(a->residual.dtype));
  KR_CHECK(!in_place || (a->activation == KRAIT_ACT_NONE && !kr_has(&a->B2)), KRAIT_ERR_ARGUMENT,
           "gemm: out may be residual only without an activation");
  KR_CHECK(a->scale - a->scale == 0, KRAIT_ERR_ARGUMENT, "gemm: scale is not finite");
  return KRAIT_OK;
}

static void count_gemm_cost(const void *args, kr_cost *cost) {
  const kr_gemm_args *a = args;
  const double P = (double)kr_gemm_products(a), M = P * (double)a->M, N = (double)a->N, K = (double)a->K,
               factors = kr_has(&a->B2) ? 2 : 1;
  cost->flops = 2 * M * N * K * factors;
  cost->bytes = M * K * (double)krait_dtype_bytes(a->A.dtype) + M * N * (double)krait_dtype_bytes(a->out.dtype) +
                factors * P * K * N * (double)krait_dtype_bytes(a->Bmat.dtype);
  if (kr_has(&a->residual)) cost->bytes += M * N * (double)krait_dtype_bytes(a->residual.dtype);
  if (kr_has(&a->factor)) cost->bytes += M * N * (double)krait_dtype_bytes(a->factor.dtype);
  cost->exps = a->activation != KRAIT_ACT_NONE ? M * N : 0;
}

static const char *refuse_gemm_simd(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  const kr_view *const views[] = {&a->A,  &a->Bmat,  &a->bias,      &a->residual, &a->out,
                                     &a->B2, &a->bias2, &a->row_scale, &a->factor};
  (void)ctx;
  for (size_t i = 0; i < sizeof views / sizeof *views; i++)
    if (kr_has(views[i]) && views[i]->dtype == KRAIT_F64) return "no float64";
  return NULL;
}

static const char *refuse_few_simd(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  (void)ctx;
  if (a->M > KR_GEMM_MOST_M16) return "more than 16 rows";
  if (kr_gemm_products(a) > 1) return "several products";
  if ((a->Bmat.stride[0] != 1 && a->K > 1) || (kr_has(&a->B2) && a->B2.stride[0] != 1 && a->K > 1))
    return "the inputs of an output do not lie side by side";
  return refuse_gemm_simd(ctx, args);
}

#ifdef KR_BUILD_amx
/* Cases where the vector implementations are as fast: mostly padding in the tiles, packing for few columns, or a result
 * that takes longer to write than to compute. Float32 takes six products of parts. */
static const char *refuse_gemm_tiles(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  const int is_wide = a->A.dtype == KRAIT_F32 && a->Bmat.dtype == KRAIT_F32;
  const double results = (double)a->M * (double)a->N;
  if (a->M < 24 || a->N < 48 || a->K < 32) return "fewer than 24 rows, 48 columns or 32 terms";
  if (results * (double)a->K < 1 << 19) return "a small product";
  if (a->K > 8 * (a->M + a->N)) return "many terms for few results";
  if (is_wide && (a->N < 80 || (a->K < 96 && results > 1 << 23))) return "float32 of few columns or terms";
  return refuse_gemm_simd(ctx, args);
}
#endif

static const kr_impl impls[] = {
    {"ampere_few_rows", KRAIT_CAP_CUDA_AMPERE, kr_gemm_m16_refuse, kr_gemm_m16, NULL},
    {"turing_few_rows", KRAIT_CAP_CUDA_TURING, kr_gemm_m16_turing_refuse, kr_gemm_m16_turing, NULL},
    {"hopper_64_rows", KRAIT_CAP_CUDA_HOPPER, kr_gemm_m64_refuse, kr_gemm_m64, NULL},
    {"ampere_long_k", KRAIT_CAP_CUDA_AMPERE, kr_gemm_long_k_refuse, kr_gemm_long_k, kr_gemm_long_k_scratch},
    {"base_few_rows", KRAIT_CAP_CUDA_BASE, kr_gemm_few_base_refuse, kr_gemm_few_base, NULL},
    {"hopper_tiles", KRAIT_CAP_CUDA_HOPPER, kr_gemm_hopper_refuse, kr_gemm_hopper, kr_gemm_hopper_scratch},
    {"ampere_tiles", KRAIT_CAP_CUDA_AMPERE, kr_gemm_ampere_refuse, kr_gemm_ampere, kr_gemm_ampere_scratch},
    {"turing_tiles", KRAIT_CAP_CUDA_TURING, kr_gemm_turing_refuse, kr_gemm_turing, kr_gemm_ampere_scratch},
    {"turing_tiles_scaled", KRAIT_CAP_CUDA_TURING, kr_gemm_turing_scaled_refuse, kr_gemm_turing_scaled,
     kr_gemm_turing_scaled_scratch},
    {"hopper_tiles_tf32", KRAIT_CAP_CUDA_HOPPER, kr_gemm_hopper_tf32_refuse, kr_gemm_hopper_tf32,
     kr_gemm_hopper_tf32_scratch},
    {"ampere_tiles_tf32", KRAIT_CAP_CUDA_AMPERE, kr_gemm_tf32_refuse, kr_gemm_tf32, kr_gemm_tf32_scratch},
    {"hopper_tiles_halves", KRAIT_CAP_CUDA_HOPPER, kr_gemm_hopper_halves_refuse, kr_gemm_hopper_halves,
     kr_gemm_hopper_halves_scratch},
    {"ampere_tiles_halves", KRAIT_CAP_CUDA_AMPERE, kr_gemm_ampere_halves_refuse, kr_gemm_ampere_halves,
     kr_gemm_ampere_halves_scratch},
    {"turing_tiles_halves", KRAIT_CAP_CUDA_TURING, kr_gemm_turing_halves_refuse, kr_gemm_turing_halves,
     kr_gemm_turing_halves_scratch},
    {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_gemm_base_refuse, kr_gemm_base, kr_gemm_base_scratch},
#ifdef KR_BUILD_amx
    {"simd_amx_tiles", KRAIT_CAP_CPU | KRAIT_CAP_AVX512 | KRAIT_CAP_AMX, refuse_gemm_tiles, kr_gemm_tiles_avx512,
     kr_gemm_tiles_scratch_avx512},
#endif
#define KR_ISA(isa, cap) \
  {"simd_" #isa "_few", KRAIT_CAP_CPU | cap, refuse_few_simd, kr_gemm_m16_##isa, kr_gemm_m16_scratch_##isa},
#include "isa.def"
#undef KR_ISA
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_gemm_simd, kr_gemm_##isa, kr_gemm_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gemm_ref, NULL},
};

KR_OP_DEFINE(gemm, impls, check_gemm_rules, count_gemm_cost, kr_gemm_case, 500, .takes_pdl = 1)
