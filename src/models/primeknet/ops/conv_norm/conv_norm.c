/* conv_norm.c: contract, cost, rows and random cases of a convolution along H with norm and PReLU: a graph of other
 * operators (conv_norm_graph.c), launches of its own on a GPU, one position along W at a time on a CPU. Error bound:
 * 2e-4 of the result's scale. */
#include "check.h"
#include "conv_norm/conv_norm_impls.h"
#include "primeknet_ops.h"
#include "status.h"

static void count_conv_norm(const void *args, kr_cost *cost) {
  const kr_conv_norm_args *a = args;
  const double n = (double)a->B * (double)a->W, C = (double)a->C, N = (double)a->N, K = (double)a->K,
               H = (double)a->H, OH = (double)a->OH;
  *cost = (kr_cost){.flops = n * (2 * C * N * K * (a->call.flags & KR_CONV_NORM_TRANSPOSED ? H : OH) + 8 * OH * N),
                    .bytes = 4 * n * (H * C + 3 * OH * N) + 4 * C * N * K};
}

static int32_t conv_norm_rules(const void *args) {
  const kr_conv_norm_args *a = args;
  const int is_transposed = (a->call.flags & KR_CONV_NORM_TRANSPOSED) != 0;
  KR_CHECK(is_transposed || a->H >= a->K, KRAIT_ERR_SHAPE, "conv_norm: H is %lld, of %lld taps", (long long)a->H,
           (long long)a->K);
  const int64_t OH = is_transposed ? (a->H - 1) * a->S + a->K : (a->H - a->K) / a->S + 1;
  KR_CHECK(a->OH == OH, KRAIT_ERR_SHAPE, "conv_norm: OH is %lld, it must be %lld", (long long)a->OH, (long long)OH);
  return KRAIT_OK;
}

static const char *refuse_conv_norm_simd(const krait_ctx *ctx, const void *args) {
  const kr_conv_norm_args *a = args;
  (void)ctx;
  return a->x.stride[3] != 1 || a->out.stride[3] != 1 ? "channels are not contiguous" : NULL;
}

static const kr_impl impls[] = {
    {"ampere_aligned_rows", KRAIT_CAP_CUDA_AMPERE, kr_conv_norm_refuse, kr_conv_norm_ampere, kr_conv_norm_scratch},
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_conv_norm_composed, kr_conv_norm_composed_scratch},
    {"base_aligned_rows", KRAIT_CAP_CUDA_BASE, kr_conv_norm_refuse, kr_conv_norm_base, kr_conv_norm_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_conv_norm_composed, kr_conv_norm_composed_scratch},
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_conv_norm_simd, kr_conv_norm_##isa, kr_conv_norm_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"composed", KRAIT_CAP_CPU, NULL, kr_conv_norm_composed, kr_conv_norm_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_conv_norm_ref, kr_conv_norm_ref_scratch},
};

/* Two of every three cases suit the GPU launches. */
int32_t kr_conv_norm_case(kr_case *c, int64_t index) {
  kr_conv_norm_args *a = (kr_conv_norm_args *)c->args;
  const int is_fast = index % 3 && !c->is_exact;
  a->B = kr_case_int(c, 1, 2), a->W = kr_case_int(c, 3, 40);
  a->C = !is_fast ? kr_case_edge(c, 12) : kr_case_chance(c, 0.3) ? kr_case_int(c, 1, 8) : 16 * kr_case_int(c, 1, 5);
  a->N = is_fast ? 16 * kr_case_int(c, 1, 5) : kr_case_edge(c, 12);
  if (a->C < 1) a->C = 1;
  if (a->N < 1) a->N = 1;
  a->K = kr_case_int(c, 1, 4), a->S = kr_case_int(c, 1, 3);
  a->H = a->K + kr_case_int(c, 0, 9);
  a->OH = a->call.flags & KR_CONV_NORM_TRANSPOSED ? (a->H - 1) * a->S + a->K : (a->H - a->K) / a->S + 1;
  c->contiguous = is_fast;
  if (is_fast) { /* contiguous outputs per input; positions of few channels in multiples of four */
    kr_view *weight = kr_case_give(c, "weight");
    weight->stride[0] = 1, weight->stride[1] = a->C * a->N, weight->stride[2] = a->N;
  }
  return c->status;
}

KR_OP_DEFINE(conv_norm, impls, conv_norm_rules, count_conv_norm, kr_conv_norm_case, 150)
