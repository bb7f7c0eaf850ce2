/* expert_step_cuda.c: a mixture of experts on a GPU: scores, then hidden values, each block of which chooses the expert
 * by itself, then sums. */
#include "cuda_views.h"
#include "expert_step/expert_step.h"
#include "expert_step/expert_step_params.h"
#include "lm_ops.h"
#include "overlap.h"
#include "status.h"
#include "view.h"

static uint64_t hidden_bytes(const kr_expert_step_args *a) {
  return kr_scratch_round((uint64_t)(a->T * (kr_expert_step_shared(a) + a->K * a->F)) * 2);
}

static kr_expert_step_params lay_out_step(const kr_expert_step_args *a) {
  const int64_t S = kr_expert_step_shared(a);
  char *at = a->call.scratch;
  kr_expert_step_params p = {.a = *a,
                             .T = (int32_t)a->T,
                             .E = (int32_t)a->E,
                             .K = (int32_t)a->K,
                             .M = (int32_t)a->M,
                             .F = (int32_t)a->F,
                             .S = (int32_t)S,
                             .tiles = (int32_t)kr_blocks_of(a->F, KR_EXPERT_STEP_HIDDEN),
                             .shared_tiles = (int32_t)kr_blocks_of(S, KR_EXPERT_STEP_HIDDEN),
                             .parts = (int32_t)kr_blocks_of(a->F, KR_EXPERT_STEP_PART),
                             .shared_parts = (int32_t)kr_blocks_of(S, KR_EXPERT_STEP_PART)};
  p.hidden = at, at += hidden_bytes(a);
  p.scores = (float *)at, at += kr_scratch_round((uint64_t)(a->T * a->E) * sizeof(float));
  p.index = (int32_t *)at, at += kr_scratch_round((uint64_t)(a->T * a->K) * sizeof(int32_t));
  p.weights = (float *)at;
  return p;
}

uint64_t kr_expert_step_scratch(const krait_ctx *ctx, const void *args) {
  const kr_expert_step_args *a = args;
  (void)ctx;
  return hidden_bytes(a) + kr_scratch_round((uint64_t)(a->T * a->E) * sizeof(float)) +
         2 * kr_scratch_round((uint64_t)(a->T * a->K) * sizeof(float));
}

int32_t kr_expert_step_ampere(const krait_ctx *ctx, const void *args) {
  static const kr_kernel f16[] = {{"expert_step", "kr_expert_scores_f16"},
                                  {"expert_step", "kr_expert_hidden_f16"},
                                  {"expert_step", "kr_expert_sums_f16"}},
                         bf16[] = {{"expert_step", "kr_expert_scores_bf16"},
                                   {"expert_step", "kr_expert_hidden_bf16"},
                                   {"expert_step", "kr_expert_sums_bf16"}};
  const kr_expert_step_args *a = args;
  const kr_expert_step_params p = lay_out_step(a);
  const int64_t blocks[] = {kr_blocks_of(a->E, KR_EXPERT_STEP_WARPS), p.shared_tiles + a->K * p.tiles,
                            kr_blocks_of(a->M, KR_EXPERT_STEP_SUMS)};
  for (int i = 0; i < 3 && a->T; i++) {
    const kr_grid grid = {.x = (uint32_t)(a->T * blocks[i]),
                          .block = 32 * (i == 2 ? KR_EXPERT_STEP_SUM_WARPS : KR_EXPERT_STEP_WARPS),
                          .is_pdl = (a->call.flags & KR_CALL_PDL) != 0,
                          .stream = a->call.stream};
    const kr_kernel *kernel = &(a->x.dtype == KRAIT_BF16 ? bf16 : f16)[i];
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_AMPERE, kernel, &grid, &p, sizeof p));
  }
  return KRAIT_OK;
}

/* Rows of `n` dimensions without gaps along the last, in aligned groups of eight. */
static int lie_in_packs(const kr_view *v, int n) {
  int64_t strides = 0;
  for (int i = 0; i < n - 1; i++) strides |= v->stride[i];
  return !kr_has(v) || (v->stride[n - 1] == 1 && strides % 8 == 0 && kr_is_aligned(v));
}

const char *kr_expert_step_refuse(const krait_ctx *ctx, const void *args) {
  const kr_expert_step_args *a = args;
  const kr_view *const matrices[] = {&a->gate,        &a->up,        &a->down,       &a->router,
                                     &a->shared_gate, &a->shared_up, &a->shared_down};
  (void)ctx;
  if (!kr_expert_step_has(a->T, a->E, a->K, a->M, a->F, kr_expert_step_shared(a)))
    return "more than 4 rows, 128 experts or 32 choices, or columns of no multiple of 8";
  if (a->x.dtype != KRAIT_F16 && a->x.dtype != KRAIT_BF16) return "x is neither float16 nor bfloat16";
  if ((double)a->K * (double)a->F + (double)a->S + (double)a->M >= 1 << 28) return "2^28 columns or more";
  for (int i = 0; i < 7; i++) {
    if (kr_has(matrices[i]) && matrices[i]->dtype != a->x.dtype) return "factors of other types";
    if (!lie_in_packs(matrices[i], i < 3 ? 3 : 2)) return "a factor with gaps, or not aligned to 16 bytes";
  }
  return lie_in_packs(&a->x, 2) ? NULL : "rows of x with gaps, or not aligned to 16 bytes";
}
