/* conv3d.c: contract, cost and implementations of the causal convolution; conv3d_ref.c has the equation. Bound: float32
 * 1e-5 of the result's scale for thousands of terms, 16-bit storage one rounding. */
#include "conv3d/conv3d_impls.h"
#include "status.h"

enum { MOST_WINDOW = 1024 };

static int32_t check_window(const kr_conv3d_args *a) {
  const int64_t *window = &a->KT; /* KT KH KW ST SH SW PH PW */
  for (int i = 0; i < 8; i++)
    KR_CHECK(window[i] <= MOST_WINDOW, KRAIT_ERR_SHAPE, "conv3d: a window, step or border of %lld is more than %d",
             (long long)window[i], MOST_WINDOW);
  KR_CHECK(a->TAPS == a->KT * a->KH * a->KW, KRAIT_ERR_SHAPE, "conv3d: TAPS is %lld, must be KT KH KW = %lld",
           (long long)a->TAPS, (long long)(a->KT * a->KH * a->KW));
  return KRAIT_OK;
}

static int32_t check_conv3d_rules(const void *args) {
  const kr_conv3d_args *a = args;
  KR_TRY(check_window(a));
  const int has_states = kr_has(&a->initial_states) || kr_has(&a->final_states);
  KR_CHECK(!has_states || (a->KT > a->ST && a->past == a->KT - a->ST), KRAIT_ERR_SHAPE,
           "conv3d: states of %lld frames, must be KT - ST = %lld", (long long)a->past, (long long)(a->KT - a->ST));
  const int64_t frames = a->T + kr_conv3d_front(a) - a->KT;
  KR_CHECK(frames >= 0 && a->OT == frames / a->ST + 1, KRAIT_ERR_SHAPE,
           "conv3d: %lld frames out, but %lld frames with %lld in front give %lld", (long long)a->OT, (long long)a->T,
           (long long)kr_conv3d_front(a), (long long)(frames < 0 ? 0 : frames / a->ST + 1));
  return KRAIT_OK;
}

static void count_conv3d_cost(const void *args, kr_cost *cost) {
  const kr_conv3d_args *a = args;
  const double out = (double)a->OT * (double)a->OH * (double)a->OW * (double)a->K,
               in = (double)a->T * (double)a->H * (double)a->W * (double)a->C,
               terms = (double)a->TAPS * (double)a->C;
  cost->flops = 2 * out * terms;
  cost->bytes = (in + (kr_has(&a->residual) ? 2 : 1) * out) * (double)krait_dtype_bytes(a->x.dtype) +
                terms * (double)a->K * (double)krait_dtype_bytes(a->weight.dtype);
}

static const char *refuse_conv3d_simd(const krait_ctx *ctx, const void *args) {
  const kr_conv3d_args *a = args;
  const kr_view *const views[] = {&a->x, &a->residual, &a->initial_states, &a->out, &a->final_states};
  (void)ctx;
  if (a->x.dtype == KRAIT_F64 || a->weight.dtype == KRAIT_F64 || a->bias.dtype == KRAIT_F64) return "no float64";
  for (size_t i = 0; i < sizeof views / sizeof *views; i++)
    if (kr_has(views[i]) && views[i]->stride[3] != 1) return "channels are not contiguous";
  return NULL;
}

static const kr_impl impls[] = {
    {"hopper_boxes", KRAIT_CAP_CUDA_HOPPER, kr_conv3d_hopper_refuse, kr_conv3d_hopper, NULL},
    {"ampere_tiles", KRAIT_CAP_CUDA_AMPERE, kr_conv3d_ampere_refuse, kr_conv3d_ampere, NULL},
    {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_conv3d_base_refuse, kr_conv3d_base, NULL},
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_conv3d_simd, kr_conv3d_##isa, kr_conv3d_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_conv3d_ref, NULL},
};

KR_OP_DEFINE(conv3d, impls, check_conv3d_rules, count_conv3d_cost, kr_conv3d_case, 200)
