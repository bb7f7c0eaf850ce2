/* mamba_decode.c: contract, cost and implementations of a decoding step through the layers of a Mamba or Mamba-2 model.
 * The equation is in krait/ops.h; models/lm records it in place of the layers' own calls where a GPU's
 * implementation takes them. Hopper's streams the weights, of 16 bits or 8, of the widest published layers. */
#include "mamba_decode_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

/* Whether each product has exactly one form of weight, the same for all. */
static int has_weights(const kr_mamba_decode_args *a) {
  const kr_view *const whole[] = {&a->in_proj, &a->out_proj, &a->x_proj},
                          *const words[] = {&a->in_proj_qweight, &a->out_proj_qweight, &a->x_proj_qweight},
                          *const scales[] = {&a->in_proj_scales, &a->out_proj_scales, &a->x_proj_scales};
  const int is_first = kr_has(&a->dt_proj), is_q8 = kr_has(&a->in_proj_qweight);
  for (int i = 0; i < 3; i++) {
    const int is_needed = i < 2 || is_first;
    if (kr_has(whole[i]) != (is_needed && !is_q8) || kr_has(words[i]) != (is_needed && is_q8) ||
        kr_has(scales[i]) != (is_needed && is_q8))
      return 0;
  }
  return 1;
}

static int32_t check_mamba_decode_rules(const void *args) {
  const kr_mamba_decode_args *a = args;
  const int is_first = kr_has(&a->dt_proj), is_q8 = kr_has(&a->in_proj_qweight);
  KR_CHECK(is_first != kr_has(&a->gate_norm), KRAIT_ERR_ARGUMENT, "mamba_decode: Mamba has dt_proj, Mamba-2 gate_norm");
  KR_CHECK(
      has_weights(a), KRAIT_ERR_ARGUMENT,
      "mamba_decode: in_proj, out_proj and Mamba's x_proj must be given, all as they are or all as words and scales");
  KR_CHECK(is_first ? a->R >= 1 && a->H == 1 && a->G == 1 : a->R == 0, KRAIT_ERR_SHAPE,
           "mamba_decode: R, H and G are %lld, %lld and %lld; Mamba has a rank, Mamba-2 heads and groups",
           (long long)a->R, (long long)a->H, (long long)a->G);
  KR_CHECK(is_q8 ? 32 * a->SD == a->D && 32 * a->SE == a->E : a->SD == 0 && a->SE == 0, KRAIT_ERR_SHAPE,
           "mamba_decode: SD and SE are %lld and %lld, must be D / 32 and E / 32 with words and else 0",
           (long long)a->SD, (long long)a->SE);
  return KRAIT_OK;
}

static void count_mamba_decode_cost(const void *args, kr_cost *cost) {
  const kr_mamba_decode_args *a = args;
  const double Y = (double)a->Y, B = (double)a->B, E = (double)a->E, D = (double)a->D, states = E * (double)a->N;
  const double weights =
      (double)kr_decode_rows(a) * D + E * D + (kr_has(&a->dt_proj) ? E * (double)(2 * a->R + 2 * a->N) : 0);
  cost->flops = Y * B * (2 * weights + 6 * states);
  cost->exps = Y * B * states;
  cost->bytes = Y * (weights * (kr_has(&a->in_proj_qweight) ? 1.0625 : (double)krait_dtype_bytes(a->in_proj.dtype)) +
                     2 * B * states * (double)krait_dtype_bytes(a->ssm_state.dtype));
}

static const kr_impl impls[] = {
    {"hopper_streamed", KRAIT_CAP_CUDA_HOPPER, kr_mamba_decode_streamed_refuse, kr_mamba_decode_streamed,
     kr_mamba_decode_streamed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba_decode_ref, kr_mamba_decode_ref_scratch},
};

KR_OP_DEFINE(mamba_decode, impls, check_mamba_decode_rules, count_mamba_decode_cost, kr_mamba_decode_case, 81)
