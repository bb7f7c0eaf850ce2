/* gemm_q8_cuda.c: one row or two of A on a GPU: which calls, and how they are shared out. */
#include "cuda_row.h"
#include "gemm_q8/gemm_q8_plan.h"
#include "gemm_q8/gemm_q8_rows.h"
#include "op_list.h"
#include "overlap.h"
#include "view.h"

enum { FEWEST_WIDE = 1024 }; /* outputs from which on eight a warp leave enough warps */

static int is_packed(const krait_view *v, int64_t per_pack) {
  return v->stride[1] == 1 && v->stride[0] % per_pack == 0 && (uintptr_t)v->data % 16 == 0;
}

const char *kr_gemm_q8_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const krait_gemm_q8_args *a = args;
  (void)ctx;
  if (a->M > KR_Q8_ROWS) return "more than two rows";
  if (a->A.dtype != KRAIT_F16 && a->A.dtype != KRAIT_BF16) return "A is not float16 or bfloat16";
  if (a->bias.dtype == KRAIT_F64 || a->out.dtype == KRAIT_F64) return "no float64";
  if (a->S == 0 || a->scales.dtype != KRAIT_F16 || (a->S > 1 && a->scales.stride[1] != 1))
    return "no scales of float16 without gaps";
  if (!is_packed(&a->words, 4) || !is_packed(&a->A, 8))
    return "rows of A or of words with gaps, or not aligned to 16 bytes";
  return a->N >= 1ll << 30 || a->S >= 1ll << 25 ? "2^30 outputs or inputs and more" : NULL;
}

int32_t kr_gemm_q8_cuda(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernels[KR_Q8_ROWS][2] = {
      {{"gemm_q8_f16", "kr_gemm_q8_one"}, {"gemm_q8_bf16", "kr_gemm_q8_one"}},
      {{"gemm_q8_f16", "kr_gemm_q8_two"}, {"gemm_q8_bf16", "kr_gemm_q8_two"}}};
  static const kr_kernel wide[2] = {{"gemm_q8_f16", "kr_gemm_q8_wide"}, {"gemm_q8_bf16", "kr_gemm_q8_wide"}};
  const krait_gemm_q8_args *a = args;
  const int64_t runs = (32 * a->S + KR_Q8_RUN - 1) / KR_Q8_RUN,
                rounds = (runs + KR_Q8_MOST_WARPS - 1) / KR_Q8_MOST_WARPS;
  if (a->M == 0 || a->N == 0) return KRAIT_OK;
  kr_q8_plan p = {.A = a->A.data,
                  .words = a->words.data,
                  .scales = a->scales.data,
                  .bias = a->bias.data,
                  .out = a->out.data,
                  .A_row = a->A.stride[0],
                  .words_row = 4 * a->words.stride[0],
                  .scales_row = a->scales.stride[0],
                  .out_row = a->out.stride[0],
                  .out_column = a->out.stride[1],
                  .bias_step = a->bias.stride[0],
                  .M = (int32_t)a->M,
                  .N = (int32_t)a->N,
                  .K = (int32_t)(32 * a->S),
                  .n_splits = (int32_t)((runs + rounds - 1) / rounds),
                  .out_dtype = a->out.dtype,
                  .bias_dtype = a->bias.dtype};
  p.n_groups = KR_Q8_MOST_WARPS / p.n_splits;
  p.scale_packs = p.scales_row % 8 == 0 && (uintptr_t)p.scales % 16 == 0;
  const int is_wide = a->M == 1 && rounds == 1 && a->N >= FEWEST_WIDE;
  const int64_t each = (int64_t)(is_wide ? KR_Q8_WIDE : KR_Q8_GROUP) * p.n_groups;
  /* the words are no parameter but indices to the signature */
  const uint32_t both = KR_CALL_AHEAD | KR_CALL_STATE_AHEAD;
  const kr_grid grid = {.x = (uint32_t)((a->N + each - 1) / each),
                        .block = (uint32_t)(32 * p.n_splits * p.n_groups),
                        .is_ahead = (a->call.flags & both) == both,
                        .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, &(is_wide ? wide : kernels[a->M - 1])[a->A.dtype == KRAIT_BF16], &grid, &p,
                        sizeof p);
}
