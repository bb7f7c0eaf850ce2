/* gemm_q8_cuda.c: one or two rows of A on a GPU: which calls are taken, and how work is divided. */
#include "cuda_impl.h"
#include "gemm/gemm_impls.h"
#include "gemm/gemm_q8_params.h"
#include "gemm/gemm_q8_impls.h"
#include "op_list.h"
#include "overlap.h"
#include "turing_impl.h"
#include "view.h"

/* Measured on an H200: outputs from which eight per warp leave enough warps; weights from which a separate norm is
 * faster. */
enum { FEWEST_WIDE = 1024, MANY_WEIGHTS = 1 << 23 };

static int is_packed_for_gemm_q8(const kr_view *v, int64_t per_pack) {
  return v->stride[1] == 1 && v->stride[0] % per_pack == 0 && (uintptr_t)v->data % 16 == 0;
}

const char *kr_gemm_q8_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q8_args *a = args;
  (void)ctx;
  if (a->M > KR_Q8_ROWS) return "more than two rows";
  if (a->A.dtype != KRAIT_F16 && a->A.dtype != KRAIT_BF16) return "A is not float16 or bfloat16";
  if (a->bias.dtype == KRAIT_F64 || a->out.dtype == KRAIT_F64) return "no float64";
  if (a->S == 0 || a->scales.dtype != KRAIT_F16 || (a->S > 1 && a->scales.stride[1] != 1))
    return "no scales of float16 without gaps";
  if (!is_packed_for_gemm_q8(&a->qweight, 4) || !is_packed_for_gemm_q8(&a->A, 8))
    return "rows of A or of qweight with gaps, or not aligned to 16 bytes";
  return a->N >= 1ll << 30 || a->S >= 1ll << 25 ? "2^30 outputs or inputs and more" : NULL;
}

static int64_t gemm_q8_runs_of(const kr_gemm_q8_args *a) { return (32 * a->S + KR_Q8_RUN - 1) / KR_Q8_RUN; }

static kr_q8_params describe_gemm_q8(const kr_gemm_q8_args *a) {
  const int64_t runs = gemm_q8_runs_of(a), rounds = (runs + KR_Q8_MOST_WARPS - 1) / KR_Q8_MOST_WARPS;
  return (kr_q8_params){.A = a->A.data,
                      .qweight = a->qweight.data,
                      .scales = a->scales.data,
                      .bias = a->bias.data,
                      .out = a->out.data,
                      .A_row = a->A.stride[0],
                      .qweight_row = 4 * a->qweight.stride[0],
                      .scales_row = a->scales.stride[0],
                      .out_row = a->out.stride[0],
                      .out_column = a->out.stride[1],
                      .bias_step = a->bias.stride[0],
                      .M = (int32_t)a->M,
                      .N = (int32_t)a->N,
                      .K = (int32_t)(32 * a->S),
                      .n_splits = (int32_t)((runs + rounds - 1) / rounds),
                      .out_dtype = a->out.dtype,
                      .bias_dtype = a->bias.dtype,
                      .scale_packs = a->scales.stride[0] % 8 == 0 && (uintptr_t)a->scales.data % 16 == 0};
}

/* columns: per warp. */
static int32_t launch_gemm_q8(const krait_ctx *ctx, const kr_gemm_q8_args *a, kr_q8_params *p,
                              const kr_kernel *kernels, int64_t columns, uint64_t tier) {
  /* to the signature, the words are indices, not a parameter */
  const uint32_t both = KR_CALL_PDL | KR_CALL_STATE_PDL;
  p->n_groups = kr_groups_of_block(ctx, (a->N + columns - 1) / columns, p->n_splits, KR_Q8_MOST_WARPS);
  const int64_t each = columns * p->n_groups;
  const kr_grid grid = {.x = (uint32_t)((a->N + each - 1) / each),
                        .block = (uint32_t)(32 * p->n_splits * p->n_groups),
                        .is_pdl = (a->call.flags & both) == both,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernels[a->A.dtype == KRAIT_BF16], &grid, p, sizeof *p);
}

#define Q8(name) {{"gemm_q8_f16", name}, {"gemm_q8_bf16", name}}
static int32_t run_gemm_q8(const krait_ctx *ctx, const kr_gemm_q8_args *a, uint64_t tier) {
  static const kr_kernel kernels[KR_Q8_ROWS][2] = {Q8("kr_gemm_q8_one"), Q8("kr_gemm_q8_two")},
                         wide[2] = Q8("kr_gemm_q8_wide");
  if (a->M == 0 || a->N == 0) return KRAIT_OK;
  const int is_wide = a->M == 1 && gemm_q8_runs_of(a) <= KR_Q8_MOST_WARPS && a->N >= FEWEST_WIDE;
  kr_q8_params p = describe_gemm_q8(a);
  return launch_gemm_q8(ctx, a, &p, is_wide ? wide : kernels[a->M - 1], is_wide ? KR_Q8_WIDE : KR_Q8_GROUP, tier);
}

int32_t kr_gemm_q8_cuda(const krait_ctx *ctx, const void *args) {
  return run_gemm_q8(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}

const char *kr_gemm_q8_turing_refuse(const krait_ctx *ctx, const void *args) {
  const char *why = kr_turing_refuse(((const kr_gemm_q8_args *)args)->A.dtype);
  return why ? why : kr_gemm_q8_cuda_refuse(ctx, args);
}

int32_t kr_gemm_q8_turing(const krait_ctx *ctx, const void *args) {
  return run_gemm_q8(ctx, args, KRAIT_CAP_CUDA_TURING);
}

const char *kr_gemm_q8_normed_refuse(const krait_ctx *ctx, const kr_gemm_q8_args *a) {
  const char *why = a->M > 1 ? "more than one row" : kr_gemm_q8_cuda_refuse(ctx, a);
  if (why) return why;
  const int is_float = a->out.dtype == KRAIT_F32;
  if ((double)a->N * 32 * (double)a->S >= MANY_WEIGHTS) return "2^23 weights or more";
  if (gemm_q8_runs_of(a) > KR_Q8_MOST_WARPS || a->N % 4 || kr_has(&a->bias))
    return "more than 5120 inputs, outputs that are no fours, or a bias";
  return (is_float || a->out.dtype == a->A.dtype) && a->out.stride[1] == 1 &&
                 (uintptr_t)a->out.data % (is_float ? 16 : 8) == 0
             ? NULL
             : "out is neither float32 nor of the row's type, or not aligned";
}

int32_t kr_gemm_q8_normed(const krait_ctx *ctx, const kr_gemm_q8_args *a, const kr_normed *norm,
                          const kr_conv_step *conv, uint64_t tier) {
  static const kr_kernel normed[2] = Q8("kr_norm_gemm_q8");
  kr_q8_params p = describe_gemm_q8(a);
  p.norm = *norm, p.conv = *conv;
  p.state_ahead = (a->call.flags & KR_CALL_STATE_PDL) != 0;
  if (norm->other == a->A.data && norm->other_is_float) p.A = NULL;
  return launch_gemm_q8(ctx, a, &p, normed, KR_Q8_WIDE, tier);
}
