/* norm_gemm_check.c: random calls; two thirds in forms that a GPU implementation accepts: one or two rows, Bmat
 * contiguous along K. */
#include "check.h"
#include "gemm/norm_gemm_impls.h"
#include "op_list.h"

/* Transposes the storage of a dense (K,N) tensor: contiguous along K. */
static void turn_norm_gemm(kr_view *v, int64_t K) {
  if (v) v->stride[0] = 1, v->stride[1] = K;
}

static void choose_norm_gemm_as_gpu(kr_case *c, kr_norm_gemm_args *a, int64_t index) {
  c->contiguous = 1;
  c->dtype = c->other = (int32_t[]){KRAIT_F32, KRAIT_F16, KRAIT_BF16}[kr_case_int(c, 0, 2)];
  a->M = kr_case_int(c, 1, 2), a->N = index % 6 == 1 ? kr_case_edge(c, 90) : 4 * kr_case_int(c, 1, 30);
  a->K = 8 * (kr_case_chance(c, 0.2) ? kr_case_int(c, 90, 900) : kr_case_int(c, 1, 110));
  if (a->K > 900) a->N = kr_case_int(c, 1, 12);
  if (kr_case_chance(c, 0.07)) a->M = 1, a->N = 4096 + 4 * kr_case_int(c, 0, 9), a->K = 8 * kr_case_int(c, 1, 40);
}

/* 8-bit weights; for a GPU one row, float16 scales. */
static void give_words(kr_case *c, kr_norm_gemm_args *a, int is_gpu) {
  if (is_gpu && c->dtype == KRAIT_F32) c->dtype = c->other = KRAIT_F16;
  const int32_t weights = c->other;
  a->S = kr_case_int(c, 1, is_gpu && kr_case_chance(c, 0.3) ? 160 : 12), a->K = 32 * a->S;
  if (is_gpu) a->M = 1, a->N = 4 * kr_case_int(c, 1, a->S > 20 ? 12 : 40);
  const kr_view *qweight = kr_case_give(c, "qweight");
  for (int64_t n = 0; qweight && qweight->data && n < a->N; n++)
    for (int64_t k = 0; k < 8 * a->S; k++)
      ((int32_t *)qweight->data)[n * qweight->stride[0] + k * qweight->stride[1]] =
          (int32_t)((uint32_t)kr_case_int(c, 0, 65535) << 16 | (uint32_t)kr_case_int(c, 0, 65535));
  if (is_gpu) c->other = KRAIT_F16, kr_case_leave_out(c, "bias"), kr_case_leave_out(c, "z");
  kr_case_give(c, "scales");
  c->other = weights;
}

/* A gate of one row, as a model's MLP has it. */
static void choose_gate(kr_case *c, kr_norm_gemm_args *a, int is_gpu) {
  if (is_gpu) a->M = 1, a->K = a->K > 2048 ? 2048 : a->K, kr_case_leave_out(c, "z");
  kr_case_leave_out(c, "conv_weight"), kr_case_leave_out(c, "qweight");
}

/* A convolution of some of the columns; for a GPU four taps, channels in multiples of four, float32 state. */
static void choose_conv(kr_case *c, kr_norm_gemm_args *a, int is_gpu) {
  const int32_t weights = c->other;
  if (is_gpu && a->N % 4) {
    kr_case_leave_out(c, "conv_weight");
    return;
  }
  const int64_t by = is_gpu ? 4 : 1;
  a->conv_from = by * kr_case_int(c, 0, a->N / by - 1), a->C = by * kr_case_int(c, 1, (a->N - a->conv_from) / by);
  a->W = is_gpu ? 4 : kr_case_int(c, 2, 6), a->n_states = a->M + kr_case_int(c, 0, 3);
  kr_case_give(c, "conv_weight");
  if (is_gpu) kr_case_leave_out(c, "bias"), c->other = KRAIT_F32;
  kr_case_give(c, "conv_state");
  c->other = weights;
}

int32_t kr_norm_gemm_case(kr_case *c, int64_t index) {
  kr_norm_gemm_args *a = (kr_norm_gemm_args *)c->args;
  const int is_gpu = index % 3 != 0 && !c->is_exact;
  kr_case_hard(c, KR_NAMES("x", "z", "residual"), KR_MOST_CUBED);
  a->M = kr_case_edge(c, 9), a->N = kr_case_edge(c, 70), a->K = kr_case_edge(c, 130);
  if (is_gpu) choose_norm_gemm_as_gpu(c, a, index);
  const int is_gated = kr_case_chance(c, 0.25);
  if (is_gated)
    choose_gate(c, a, is_gpu);
  else
    kr_case_leave_out(c, "B2");
  if (!is_gated && kr_case_chance(c, 0.27))
    give_words(c, a, is_gpu);
  else kr_case_leave_out(c, "qweight");
  const int32_t dtype = c->dtype;
  const int is_stream = is_gpu && kr_case_chance(c, 0.3);
  if (is_stream) c->dtype = KRAIT_F32;
  kr_case_give(c, "x");
  c->dtype = dtype;
  if (is_gpu && a->x.data) a->x.stride[0] = a->K, a->x.stride[1] = 1;
  if (is_gpu && kr_case_chance(c, 0.9)) kr_case_give(c, "weight");
  if (is_stream) kr_case_leave_out(c, "z"), kr_case_leave_out(c, "residual");
  else if (is_gpu && kr_case_chance(c, 0.7)) { /* a model's residual stream is float32 */
    const int32_t type = c->other;
    if (!is_gated && kr_case_chance(c, 0.3))
      kr_case_give(c, "z");
    else kr_case_leave_out(c, "z");
    c->other = KRAIT_F32;
    if (a->z.data) kr_case_leave_out(c, "residual"), kr_case_leave_out(c, "residual_out");
    else kr_case_give(c, "residual"), kr_case_give(c, "residual_out");
    c->other = type;
  }
  if (!is_gated && kr_case_chance(c, 0.4))
    choose_conv(c, a, is_gpu);
  else kr_case_leave_out(c, "conv_weight");
  if (is_gpu && !a->S) turn_norm_gemm(kr_case_give(c, "Bmat"), a->K);
  if (is_gated) {
    if (!is_gpu) kr_case_give(c, "Bmat");
    kr_view *second = kr_case_give(c, "B2");
    if (is_gpu) turn_norm_gemm(second, a->K);
  } else if (a->S) {
    a->activation = KRAIT_ACT_NONE;
  }
  return KRAIT_OK;
}
